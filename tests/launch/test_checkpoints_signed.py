"""A kept state is loaded only by the trial that kept it, under the charge that pays for it; and it lies in the Vault until then."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from sweeper import seeds
from sweeper.checks import RequestError
from sweeper.launch.checkpoints import SECONDS, TrialKeep, opened, signed
from sweeper.seeds import Streams, secret_from_seed
from sweeper.spec.result import TrialResult
from sweeper.store.vault import Vault

STREAMS = Streams(secret_from_seed("kept"), 3)
REFERENCE = json.dumps(["fingerprint", "reservation", "sweep", 3, False, ""])
CONTENT = b"a state \x00 of many bytes" * 100


def test_it_opens_for_the_trial_that_kept_it() -> None:
    kept = signed(CONTENT, STREAMS, REFERENCE)
    assert opened(kept, STREAMS, REFERENCE) == CONTENT
    assert CONTENT[:50] in kept  # it is signed, not hidden: the Vault is closed


@pytest.mark.parametrize(
    ("streams", "reference"),
    [
        (Streams(secret_from_seed("kept"), 4), REFERENCE),
        (Streams(secret_from_seed("another sweep"), 3), REFERENCE),
        (STREAMS, REFERENCE.replace("reservation", "another")),
        (STREAMS, REFERENCE.replace("fingerprint", "another")),
        (STREAMS, REFERENCE.replace("false", "true")),
    ],
    ids=["trial", "sweep", "reservation", "file", "stage"],
)
def test_it_opens_for_no_other(streams: Streams, reference: str) -> None:
    with pytest.raises(RequestError, match="was not saved by this trial under this charge"):
        opened(signed(CONTENT, STREAMS, REFERENCE), streams, reference)


@pytest.mark.parametrize("place", [0, 5, 25, 60, -1])
def test_a_byte_that_changed_closes_it(place: int) -> None:
    kept = bytearray(signed(CONTENT, STREAMS, REFERENCE))
    kept[place] ^= 1
    with pytest.raises(RequestError, match="not loaded"):
        opened(bytes(kept), STREAMS, REFERENCE)
    with pytest.raises(RequestError, match="not loaded"):
        opened(bytes(kept[: place if place > 0 else 10]), STREAMS, REFERENCE)


def test_a_weights_file_without_a_signature_is_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    keep = TrialKeep(streams=STREAMS, reference=REFERENCE, found=CONTENT, store=lambda _: None)
    assert keep.load() is None
    assert "in no ledger" in capsys.readouterr().out


def test_when_it_is_due_is_a_matter_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stored = [100.0], list[bytes]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setenv(SECONDS, "7")
    keep = TrialKeep(streams=STREAMS, reference=REFERENCE, found=None, store=stored.append)
    due = []
    for now[0] in (101.0, 106.9, 107.0):
        due.append(keep.due())
    assert due == [False, False, True]
    keep.save(CONTENT)
    assert not keep.due()
    assert opened(stored[0], STREAMS, REFERENCE) == CONTENT


def test_the_key_is_no_stream_that_noise_comes_from() -> None:
    key = STREAMS.key(seeds.CHECKPOINT)
    others = [Streams(STREAMS.secret, 4).key(seeds.CHECKPOINT), STREAMS.key(seeds.NOISE)]
    assert len(key) == 32
    assert key not in others


def test_the_vault_keeps_one_state_a_trial_until_it_is_settled(tmp_path: Path) -> None:
    vault = Vault.create(
        tmp_path, "kept", spec={}, plan={}, fingerprint="f", secret=STREAMS.secret, reservation=None, candidates=[{}, {}]
    )
    for index in (0, 1):
        vault.claim(index)
        assert vault.checkpoint(index) is None
        vault.keep_checkpoint(index, b"first")
        vault.keep_checkpoint(index, b"%d" % index)
        assert vault.checkpoint(index) == b"%d" % index
    folder = vault.directory / "checkpoints"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert len(list(folder.iterdir())) == 2
    vault.settle(0, TrialResult(released={"score": 0.5}, sealed={}))
    vault.fail(1, "error", "")
    assert not list(folder.iterdir())
    vault.keep_checkpoint(0, b"late")  # of a worker that was thought lost
    assert vault.checkpoint(0) is None
