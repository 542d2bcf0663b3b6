"""The only maker of randomness. Every stream is keyed by (secret, trial, purpose); a retry that asks again gets the same bits.

SHAKE-256 of an unambiguous encoding of the key fills the WHOLE state of a generator, because the usual seeds do not: torch's
manual_seed keeps 32 bits, so that 30,000 streams collide one time in ten. Streams of different keys are independent as long as
SHAKE-256 behaves like a random function.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sweeper import checks
from sweeper.checks import FieldError

if TYPE_CHECKING:
    import numpy
    import torch

SECRET_BYTES = 32
SWEEP = -1  # the trial number of streams that belong to the sweep as a whole

# Purposes. A trial's (SEARCH: a line search's; PREPARE: what a policy asks before the first step; COUNT_NOISE: of the count that
# moves an adaptive clip norm; ITERATE: which iterate is the answer):
SAMPLING, NOISE, INIT, SCORE = "sampling", "noise", "init", "score"
SEARCH, PREPARE, COUNT_NOISE, ITERATE = "search", "prepare", "count-noise", "iterate"
CHECKPOINT = "checkpoint"  # of the key that a kept run is signed with
DROPOUT = "dropout"  # of the layers of a user's module that draw while they train
# The sweep's (SUBSET: which rows a subsample-tune sweep tunes on):
COUNT, CANDIDATES, TIES, SUBSET = "count", "candidates", "ties", "subset"

_DOMAIN = b"sweeper.seeds.1"
_MT_WORDS = 624
_MT_HEADER = struct.Struct("<QiiQ")  # initial seed, draws left before the next twist, seeded, index of the next word
_MT_TAIL = bytes(24 + 4 + 4 + 4 + 4)  # x, y, rho and flag of a cached normal, then the same for float32: nothing cached


def new_secret() -> bytes:
    """32 bytes from the operating system. Whoever knows them sees through the noise: never log, never release."""
    return os.urandom(SECRET_BYTES)


def secret_from_seed(seed: int | str) -> bytes:
    """A secret somebody chose, for replays and tests. A guarantee made with it must be marked `seeded`: it is not private."""
    return _shake(SECRET_BYTES, b"seed", str(seed).encode())


def of_arm(purpose: str, arm: str) -> str:
    """A purpose of the sweep, for one arm alone: arms draw independently, which their joint price counts on."""
    return f"{purpose}/{arm}" if arm else purpose


@dataclass(frozen=True)
class Streams:
    """The random streams of one trial, or of the sweep (trial -1). Equal keys replay equal bits."""

    secret: bytes = field(repr=False)
    trial: int

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != SECRET_BYTES:
            raise FieldError("secret", checks.MISSING, f"must be {SECRET_BYTES} bytes", "Use sweeper.seeds.new_secret().")
        checks.whole(SWEEP, trial=self.trial)

    def of_sweep(self) -> Streams:
        """The streams of the sweep that this trial belongs to."""
        return Streams(self.secret, SWEEP)

    def generator(self, purpose: str) -> numpy.random.Generator:
        """A numpy generator (Philox) whose counter and key are filled from the key."""
        import numpy as np

        words = np.frombuffer(self._bytes(b"numpy philox", purpose, 48), dtype="<u8").astype(np.uint64)
        return np.random.Generator(np.random.Philox(counter=words[:4], key=words[4:]))

    def torch_generator(self, purpose: str) -> torch.Generator:
        """A torch CPU generator (mt19937) whose 624 words are filled from the key; its first draw twists them all."""
        import torch

        words = struct.unpack(f"<{_MT_WORDS}I", self._bytes(b"torch mt19937", purpose, 4 * _MT_WORDS))
        state = _MT_HEADER.pack(0, 1, 1, 0) + struct.pack(f"<{_MT_WORDS}Q", *words) + _MT_TAIL  # torch keeps a word in 8 bytes
        generator = torch.Generator()
        if len(state) != generator.get_state().numel():
            raise RuntimeError(f"torch {torch.__version__} lays its generator out in another way: sweeper.seeds must learn it")
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        return generator

    def bits(self, purpose: str) -> BitSource:
        """An endless stream of bits, for draws in exact arithmetic."""
        return BitSource(self._bytes(b"bits", purpose, SECRET_BYTES))

    def key(self, purpose: str) -> bytes:
        """32 bytes to sign with. Never released."""
        return self._bytes(b"key", purpose, SECRET_BYTES)

    def _bytes(self, consumer: bytes, purpose: str, length: int) -> bytes:
        if not isinstance(purpose, str) or not purpose:
            raise FieldError("purpose", purpose, "must be a word that names the stream")
        return _shake(length, consumer, self.secret, str(self.trial).encode(), purpose.encode("utf-8", "surrogatepass"))


class BitSource:
    """SHAKE-256 in counter mode, read bit by bit."""

    __slots__ = ("_block", "_key", "_left", "_pool")
    _BLOCK_BYTES = 1088  # eight blocks of the sponge

    def __init__(self, key: bytes) -> None:
        self._key, self._block, self._pool, self._left = key, 0, 0, 0

    def randbits(self, k: int) -> int:
        """k fresh uniform bits as a number in [0, 2^k)."""
        checks.whole(0, k=k)
        while self._left < k:
            block = _shake(self._BLOCK_BYTES, b"block", self._key, self._block.to_bytes(8, "big"))
            self._pool |= int.from_bytes(block, "little") << self._left
            self._left += 8 * self._BLOCK_BYTES
            self._block += 1
        drawn = self._pool & ((1 << k) - 1)
        self._pool >>= k
        self._left -= k
        return drawn

    def randbelow(self, n: int) -> int:
        """Uniform in [0, n), without bias: numbers at or above n are thrown away."""
        checks.whole(1, n=n)
        k = (n - 1).bit_length()
        while (drawn := self.randbits(k)) >= n:
            pass
        return drawn

    def uniforms(self) -> Iterator[float]:
        """Endless floats in [0, 1), 53 bits each."""
        while True:
            yield self.randbits(53) * 2.0**-53


def _shake(length: int, *parts: bytes) -> bytes:
    """SHAKE-256 of the parts, each behind its length, so that no two lists of parts encode alike."""
    text = b"".join(len(part).to_bytes(8, "big") + part for part in (_DOMAIN, *parts))
    return hashlib.shake_256(text).digest(length)
