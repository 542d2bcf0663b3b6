"""Streams: whole states, no collisions, exact replays, secrets that stay secret."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from oracles import FALSE_ALARM, REJECTED, frequency_p_value
from scipy import stats

from sweeper import seeds
from sweeper.checks import FieldError
from sweeper.seeds import BitSource, Streams, new_secret, secret_from_seed

SECRET = secret_from_seed("tests")


def mt_words(generator: torch.Generator) -> np.ndarray:
    return np.frombuffer(generator.get_state().numpy().tobytes()[24 : 24 + 8 * 624], "<u8")


def philox_words(generator: np.random.Generator) -> np.ndarray:
    state = generator.bit_generator.state["state"]
    return np.concatenate([state["counter"], state["key"]])


def test_equal_keys_replay_equal_bits():
    one, two = Streams(SECRET, 3), Streams(SECRET, 3)
    assert np.array_equal(one.generator("sampling").random(100), two.generator("sampling").random(100))
    noise = [torch.empty(100).normal_(generator=s.torch_generator("noise")) for s in (one, two)]
    assert torch.equal(*noise)
    assert one.bits("score").randbits(5000) == two.bits("score").randbits(5000)


def test_streams_stay_what_they_were_in_the_first_release():
    """A trial recorded by an older version must replay: changing any of these is a new _DOMAIN tag and a note to users."""
    streams = Streams(bytes(range(32)), 7)
    state = hashlib.sha256(mt_words(streams.torch_generator("noise")).tobytes()).hexdigest()
    assert state[:16] == "ac26204aa84a32db"
    assert int(philox_words(streams.generator("sampling"))[0]) == 0xE11E4179EA33AF34
    assert streams.bits("score").randbits(64) == 0xE2CCE2517B1F075C


def test_no_two_keys_give_the_same_stream():
    purposes = [
        "noise",
        "sampling",
        "init",
        "1",
        "11",
        "-1",
        " noise",
        "noise ",
        "noise\x00",
        "\x00noise",
        "NOISE",
        "noise1",
        "1noise",
    ]
    purposes += ["numpy philox", "bits", "é", "e\u0301", "\ud800", "noise" * 100, "\x00", "\x00\x00", "noise\x00\x00\x00\x05"]
    trials = [*range(-1, 31), 111, 2**31, 2**32, 2**32 + 1, 2**64 + 1, 10**30]
    seen = {}
    for secret, trial, purpose in itertools.product((SECRET, bytes(32), bytes(31) + b"\1"), trials, purposes):
        streams = Streams(secret, trial)
        for consumer, start in (
            ("bits", streams.bits(purpose).randbits(128)),
            ("numpy", int.from_bytes(philox_words(streams.generator(purpose)).tobytes()[:16], "little")),
        ):
            assert start not in seen, (seen[start], consumer, trial, purpose)
            seen[start] = (consumer, trial, purpose)
    states = {mt_words(Streams(SECRET, trial).torch_generator(p)).tobytes() for trial, p in itertools.product(trials, purposes)}
    assert len(states) == len(trials) * len(purposes)


def test_seeds_that_agree_in_32_bits_differ():
    assert secret_from_seed(1) != secret_from_seed(1 + 2**32)
    assert secret_from_seed(1) != secret_from_seed(-1)
    one, two = (Streams(SECRET, trial).torch_generator("noise") for trial in (1, 1 + 2**32))
    assert not torch.equal(torch.rand(8, generator=one), torch.rand(8, generator=two))


@pytest.mark.parametrize("position", [0, 17, 31])
def test_one_flipped_byte_of_the_secret_changes_every_word(position):
    other = bytes(b ^ (1 if i == position else 0) for i, b in enumerate(SECRET))
    one, two = Streams(SECRET, 0), Streams(other, 0)
    assert (mt_words(one.torch_generator("noise")) != mt_words(two.torch_generator("noise"))).all()
    assert (philox_words(one.generator("noise")) != philox_words(two.generator("noise"))).all()
    assert all(a != b for a, b in ((one.bits("n").randbits(32), two.bits("n").randbits(32)) for _ in range(3)))


def test_torch_draws_from_the_words_that_were_filled():
    """The same words in numpy's mt19937, which is another program, give the same numbers past two twists."""
    generator = Streams(SECRET, 5).torch_generator("noise")
    oracle = np.random.MT19937()
    oracle.state = {"bit_generator": "MT19937", "state": {"key": mt_words(generator).astype(np.uint32), "pos": 624}}
    drawn = torch.rand(2000, generator=generator).numpy() * 2.0**24  # a float32 takes the low 24 bits of one word
    assert np.array_equal(drawn, oracle.random_raw(2000) % 2**24)


def test_torch_generators_hold_no_cached_normal():
    state = Streams(SECRET, 5).torch_generator("noise").get_state().numpy().tobytes()
    assert state[24 + 8 * 624 :] == bytes(40)
    assert len(set(mt_words(Streams(SECRET, 5).torch_generator("noise")).tolist())) == 624


def test_numpy_generator_is_philox_at_the_start_of_its_buffer():
    state = Streams(SECRET, 5).generator("sampling").bit_generator.state
    assert state["bit_generator"] == "Philox"
    assert state["buffer_pos"] == 4  # nothing buffered: the first draw uses the counter
    assert not state["has_uint32"]


def correlation_p_value(streams: list[np.ndarray]) -> float:
    """Smallest Bonferroni-corrected p-value of a correlation between any two streams of standard normals."""
    stack = np.stack(streams)
    table = stack @ stack.T / stack.shape[1]
    worst = np.abs(table[np.triu_indices(len(streams), 1)]).max() * np.sqrt(stack.shape[1])
    return float(min(1.0, 2 * stats.norm.sf(worst) * len(streams) * (len(streams) - 1) / 2))


def test_streams_look_independent_and_the_test_would_see_a_shared_one():
    noise = [torch.empty(4096).normal_(generator=Streams(SECRET, t).torch_generator("noise")).double().numpy() for t in range(40)]
    noise += [Streams(SECRET, t).generator("noise").standard_normal(4096) for t in range(40)]
    assert correlation_p_value(noise) > FALSE_ALARM
    assert correlation_p_value([*noise, 0.3 * noise[0] + 0.95 * noise[5]]) < REJECTED


def test_thirty_thousand_streams_never_collide():
    starts = {Streams(SECRET, t).bits("noise").randbits(64) for t in range(30_000)}
    assert len(starts) == 30_000  # by chance two agree with probability 2.4e-11


def test_the_secret_is_never_shown():
    streams = Streams(SECRET, 2)
    shown = f"{streams} {streams!r} {[streams]} {streams.bits('score')!r}"
    assert SECRET.hex() not in shown
    assert repr(SECRET)[2:-1] not in shown
    assert "trial=2" in shown
    with pytest.raises(FieldError) as caught:
        Streams(b"hunter2", 0)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("wrong", [b"", b"short", bytes(33), "a" * 32, None])
def test_a_secret_is_32_bytes(wrong):
    with pytest.raises(FieldError, match="secret must be 32 bytes"):
        Streams(wrong, 0)


@pytest.mark.parametrize(("trial", "purpose"), [(-2, "noise"), (0, ""), (True, "noise"), (1.0, "noise"), (0, b"noise")])
def test_other_keys_are_refused(trial, purpose):
    with pytest.raises(FieldError):
        Streams(SECRET, trial).bits(purpose)


def test_new_secrets_differ():
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert {len(s) for s in secrets} == {32}


def test_a_trials_streams_know_those_of_its_sweep():
    assert Streams(SECRET, 7).of_sweep() == Streams(SECRET, seeds.SWEEP) != Streams(SECRET, 7)


def test_purposes_differ():
    names = [seeds.SAMPLING, seeds.NOISE, seeds.INIT, seeds.SCORE, seeds.COUNT, seeds.CANDIDATES, seeds.TIES, seeds.SUBSET]
    assert len(set(names)) == len(names)


def test_bits_do_not_depend_on_how_they_are_cut():
    whole = BitSource(SECRET).randbits(30_000)
    source = BitSource(SECRET)
    pieces, shift = 0, 0
    for width in itertools.cycle([1, 53, 7, 0, 64, 3000]):
        width = min(width, 30_000 - shift)
        pieces |= source.randbits(width) << shift
        shift += width
        if shift == 30_000:
            break
    assert pieces == whole
    assert abs(whole.bit_count() - 15_000) < 5 * np.sqrt(30_000) / 2  # five standard deviations, fixed key


@pytest.mark.parametrize("n", [1, 2, 3, 192, 257])
def test_randbelow_is_unbiased(n):
    source = Streams(SECRET, n).bits("below")
    counts = np.bincount([source.randbelow(n) for _ in range(20_000)], minlength=n)
    assert len(counts) == n
    if n == 1:
        return
    assert frequency_p_value(counts, np.full(n, 1 / n)) > FALSE_ALARM
    if n == 192:  # what "8 bits modulo n" would give
        biased = np.bincount([source.randbits(8) % n for _ in range(20_000)], minlength=n)
        assert frequency_p_value(biased, np.full(n, 1 / n)) < REJECTED


@pytest.mark.parametrize("wrong", [0, -1, 2.0])
def test_randbelow_needs_a_range(wrong):
    with pytest.raises(FieldError):
        BitSource(SECRET).randbelow(wrong)


def test_uniforms_are_53_bit_and_uniform():
    draws = np.array(list(itertools.islice(Streams(SECRET, 0).bits("candidates").uniforms(), 20_000)))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert np.array_equal(draws * 2.0**53, np.floor(draws * 2.0**53))
    assert (np.floor(draws * 2.0**53) % 2).mean() == pytest.approx(0.5, abs=0.02)  # the last bit is used
    assert stats.kstest(draws, "uniform").pvalue > FALSE_ALARM
    assert stats.kstest(draws**1.5, "uniform").pvalue < REJECTED


def test_seeds_and_policies_load_neither_numpy_nor_torch():
    modules = ["seeds", "clip.fixed", "step.fixed", "step.coupled", "models.linear", "trainers.dp_sgd", "privacy.discrete_laplace"]
    code = "import sys\n" + "".join(f"import sweeper.{m}\n" for m in modules)
    code += "print(sorted({'numpy', 'torch', 'pandas', 'scipy', 'ray', 'mlflow', 'opacus', 'dp_accounting'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
