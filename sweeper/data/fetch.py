"""Published files: pinned by the hash of their content, fetched once, kept under <cache>/data/<kind>/.

`$SWEEPER_DATA/<kind>/` is looked at first and never written to: it serves machines without a network.
`fetch` and `verify` compare with the pinned hash. Loading does not: a mechanism must answer on every neighbour of the
published table, or its answer "this is not the published table" would be a statement about one record.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sweeper.checks import RequestError
from sweeper.data.origins import Origin, Unavailable
from sweeper.data.table import digest, open_content
from sweeper.data.waiting import tell

NOTICE_AFTER = 2.0  # seconds of silence before the user is told what is being waited for
_SLACK = 1024  # bytes by which a packed file may be longer than its content


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One published file. Size and hash are those of its content: gzip unpacked."""

    name: str  # in the cache; ends in .gz if it is kept packed
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class PublishedFiles:
    """The files of one data source and the places they may come from, tried in order."""

    kind: str
    files: tuple[DataFile, ...]
    origins: tuple[Origin, ...]

    def find(self, cache: str, file: DataFile) -> str | None:
        """Where the file lies, if it does; packed or unpacked."""
        bare = file.name.removesuffix(".gz")
        for folder in filter(None, (self._given(), self._kept(cache))):
            for name in (file.name, bare, f"{bare}.gz"):
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    return path
        return None

    def paths(self, cache: str) -> list[str]:
        """Where all the files lie. Never fetches.

        Raises:
          RequestError: a file is missing; says what to run.
        """
        found = {file.name: self.find(cache, file) for file in self.files}
        missing = [name for name, path in found.items() if path is None]
        if missing:
            raise RequestError(f"{self.kind}: {', '.join(missing)} not found; run: sweeper data fetch {self.kind}")
        return [path for path in found.values() if path is not None]

    def present(self, cache: str) -> bool:
        """Whether every file lies somewhere, without opening any."""
        return all(self.find(cache, file) is not None for file in self.files)

    def contents(self, cache: str) -> list[bytes]:
        """The unpacked content of every file, in their order."""
        return [self._read(path) for path in self.paths(cache)]

    def digest(self, cache: str) -> str:
        """What the ledger knows the table by."""
        try:
            return digest(*self.paths(cache))
        except (OSError, EOFError, zlib.error):
            rule = "a file of it cannot be read or unpacked"
            raise RequestError(f"{self.kind}: {rule}. Delete it and run: sweeper data fetch {self.kind}") from None

    def verify(self, cache: str) -> None:
        """Every file is the published one.

        Raises:
          RequestError: names the file, both hashes and the way out.
        """
        for file, path in zip(self.files, self.paths(cache), strict=True):
            self._verify(file, path)

    def fetch(self, cache: str) -> list[str]:
        """Put what is missing into the cache, each file whole or not at all, and verify all of it. Returns the paths."""
        missing = [file for file in self.files if self.find(cache, file) is None]
        if missing:
            self._deliver(cache, missing)
        self.verify(cache)
        return self.paths(cache)

    def _deliver(self, cache: str, missing: list[DataFile]) -> None:
        limits = {file.name: file.size + _SLACK for file in missing}
        reasons = []
        for origin in self.origins:
            if not origin.present:
                continue
            try:
                with notice(f"fetching {self.kind} ({origin.label}) ..."):
                    contents = origin.contents(limits)
            except Unavailable as error:
                reasons.append(f"{origin.label}: {error}")
                continue
            self._keep(cache, missing, contents, origin.label)
            return
        way_out = f"On a machine with a network run `sweeper data fetch {self.kind}`, copy <SWEEPER_HOME>/cache/data from there"
        raise RequestError(f"{self.kind} could not be fetched. {'; '.join(reasons)}. {way_out}, and set SWEEPER_DATA to that copy.")

    def _keep(self, cache: str, files: list[DataFile], contents: dict[str, bytes], label: str) -> None:
        import tempfile

        folder = self._kept(cache)
        os.makedirs(folder, exist_ok=True)
        # Verified before it bears its name; the rename is atomic, so two fetches at once end with one good file.
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
            for file in files:
                with open(os.path.join(part, file.name), "wb") as written:
                    written.write(contents[file.name])
                self._verify(file, os.path.join(part, file.name), f"{file.name} from the {label}")
            for file in files:
                os.replace(os.path.join(part, file.name), os.path.join(folder, file.name))

    def _verify(self, file: DataFile, path: str, delivered: str = "") -> None:
        try:
            got = digest(path)
        except (OSError, EOFError, zlib.error):
            got = "none (it cannot be unpacked)"
        if got == file.sha256:
            return
        if delivered:
            remedy = f"Use another package index, or put the published file into {self.kind}/ under a folder named by SWEEPER_DATA."
        elif os.path.dirname(path) == self._given():
            remedy = "Put the published file in its place, or unset SWEEPER_DATA."
        else:
            remedy = f"Delete it and run: sweeper data fetch {self.kind}"
        has = f" has SHA-256 {got}, and {file.sha256} is pinned" if delivered else f" has not the pinned SHA-256 {file.sha256}"
        raise RequestError(f"{delivered or path}{has}: not the published file. {remedy}")  # never the digest of a user's own file

    def _read(self, path: str) -> bytes:
        try:
            with open_content(path) as file:
                return file.read()
        except (OSError, EOFError, zlib.error) as error:
            raise RequestError(f"{path} cannot be read ({error}). Delete it and run: sweeper data fetch {self.kind}") from error

    def _kept(self, cache: str) -> str:
        return os.path.join(cache, "data", self.kind)

    def _given(self) -> str | None:
        root = os.environ.get("SWEEPER_DATA")
        return os.path.join(root, self.kind) if root else None


@contextmanager
def notice(text: str) -> Iterator[None]:
    """Say on stderr what is being waited for, if the wait is long."""
    timer = threading.Timer(NOTICE_AFTER, lambda: tell(text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
