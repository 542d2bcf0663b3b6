"""Arms are priced: composed to one bill on private data, each alone on public data."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tiny_sweeps import armed, tiny

from sweeper.catalog import sweep_from_dict
from sweeper.checks import FieldError
from sweeper.planning import Plan, again, plan
from sweeper.planning.arms import LEAST, _root, together
from sweeper.privacy import accountant
from sweeper.privacy.events import (
    Composed,
    DiscreteLaplace,
    Disjoint,
    Gaussian,
    PoissonSubsampled,
    RandomPart,
    Repeated,
    SelectBest,
    event_from_dict,
)
from sweeper.report.bill import plan_text

DELTA = 1e-5
PUBLIC = {"data": {"source": "adult", "holdout": 0.2, "public": True}}


def priced(**sections: Any) -> Plan:
    return plan(sweep_from_dict(armed("arms", **sections)))


@pytest.fixture(scope="module")
def private() -> Plan:
    return priced()


def selection(found: Plan, steps: int, batch: int, noise: float) -> tuple[SelectBest, SelectBest]:
    """What a training and a held-out record see of one arm, written out."""
    law = found.spec.protocol.run_counts()
    training = Repeated(PoissonSubsampled(batch / found.train_rows, Gaussian(noise)), steps)
    return SelectBest(training, law), SelectBest(DiscreteLaplace(0.1), law)


def test_private_arms_compose_to_the_whole_bill_at_equal_shares(private):
    assert LEAST * 2.0 <= private.guarantee.epsilon <= 2.0
    bills = [arm.epsilon for arm in private.arms]
    assert max(bills) <= min(bills) * 1.005
    assert 2.0 / 3 < min(bills) < max(bills) < 2.0
    assert [arm.name for arm in private.arms] == ["wide", "low", "slow"]
    shapes = {"wide": (20, 64), "low": (20, 64), "slow": (30, 128)}
    seen = [selection(private, *shapes[arm.name], arm.noise_multiplier) for arm in private.arms]
    for arm, (training, scored) in zip(private.arms, seen, strict=True):
        assert arm.epsilon == pytest.approx(accountant.epsilon(Disjoint((training, scored)), DELTA), rel=1e-6)
    by_hand = Disjoint((Composed(tuple(t for t, _ in seen)), Composed(tuple(s for _, s in seen))))
    assert private.guarantee.epsilon == pytest.approx(accountant.epsilon(by_hand, DELTA), rel=1e-6)
    whole = accountant.epsilon(Composed(tuple(arm.event for arm in private.arms)), DELTA)  # in any part of each arm
    assert private.guarantee.epsilon <= whole * (1 + 1e-4)  # of the account's own precision
    assert whole == pytest.approx(private.guarantee.epsilon, rel=1e-3)  # training rows are the dear ones in every arm
    every = Composed(tuple(Repeated(training.trial, 40) for training, _ in seen))
    unsealed = Disjoint((every, Repeated(DiscreteLaplace(0.1), 120)))
    assert private.epsilon_unsealed == pytest.approx(accountant.epsilon(unsealed, DELTA), rel=1e-3)
    for wrong in (2 / 3, 3 / 2):  # a share off by half would be seen
        off = [selection(private, *shapes[arm.name], arm.noise_multiplier * wrong)[0] for arm in private.arms]
        assert not LEAST * 2.0 <= accountant.epsilon(Composed(tuple(off)), DELTA) <= 2.0


def test_public_arms_are_each_billed_the_whole_epsilon_alone(private):
    found = priced(**PUBLIC)
    alone = plan(sweep_from_dict(tiny("arms", **PUBLIC)))
    for arm in found.arms:
        assert 0.995 * 2.0 <= arm.epsilon <= 2.0
    assert found.arms[0].noise_multiplier == alone.noise_multiplier
    assert found.guarantee.epsilon == max(arm.epsilon for arm in found.arms)
    assert all(of.noise_multiplier < on.noise_multiplier for of, on in zip(found.arms, private.arms, strict=True))


def test_a_given_noise_is_every_arms_and_the_bills_are_shown():
    found = priced(privacy={"noise_multiplier": 0.8, "delta": DELTA})
    assert {arm.noise_multiplier for arm in found.arms} == {0.8}
    assert not found.calibrated
    bills = [arm.epsilon for arm in found.arms]
    assert bills[0] == bills[1] < bills[2]
    assert max(bills) < found.guarantee.epsilon < sum(bills)
    text = plan_text(found.to_dict(), None, "x")
    together = ", ".join(f"{bill:.2f}" for bill in bills)
    assert f"Bills of {together} come to epsilon {found.guarantee.epsilon:.2f} together" in text


def test_the_table_shows_every_arm_and_says_how_they_make_the_bill(private):
    data = json.loads(json.dumps(private.to_dict(), allow_nan=False))
    text = plan_text(data, None, "jobs/arms.yaml")
    bill = f"{max(arm.epsilon for arm in private.arms):.2f}"
    for part in (
        *("3 arms, one selection each", "wide: clip.clip_norm", "slow: clip.clip_norm", "in each arm: secret, at most 40"),
        f"3 bills of epsilon {bill} come to {private.guarantee.epsilon:.2f} together, that of this sweep",
        *("as large as privacy.epsilon 2 allows", "30 of 128", "relation zero-out", "visible afterwards: of each arm the winner"),
    ):
        assert part in text, part
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ") and line.split()}
    for arm in private.arms:
        assert f"{arm.noise_multiplier:.4g}" in next(line for line in text.splitlines() if line.startswith(f"  {arm.name}  "))
        assert any(line.startswith(f"  arm {arm.name} ") and line.endswith(f"{arm.epsilon:.2f}") for line in text.splitlines())
    assert "tuning by" not in text
    assert lines["="].startswith("  = this sweep")
    said = plan_text(priced(**PUBLIC).to_dict(), None, "x")
    assert "each arm is billed alone, as if private. On private data the bills of the arms would compose" in said
    assert "= the dearest arm" in said


def test_the_json_says_what_is_an_arms_own_and_gives_the_plan_again(private):
    data = json.loads(json.dumps(private.to_dict(), allow_nan=False))
    own = ("noise_multiplier", "sampling_probability", "steps", "batch_size", "trial_event")
    for name in own:
        assert data[name] is None
        assert all(arm[name] is not None for arm in data["arms"])
    assert event_from_dict(data["event"]) == private.event
    assert sweep_from_dict(data["spec"]) == private.spec
    assert data["expected_trials"] == pytest.approx(sum(arm["expected_trials"] for arm in data["arms"]))
    kept = again(private.spec, data)
    assert kept == private
    assert private.noises == {arm["name"]: arm["noise_multiplier"] for arm in data["arms"]}


def test_the_alternatives_are_those_of_all_arms_together(private):
    other = {row.name: row for row in private.alternatives}
    ones = [arm.trial_event.parts[0] for arm in private.arms]
    assert other["no-tuning"].epsilon == pytest.approx(accountant.epsilon(Composed(tuple(ones)), DELTA), rel=1e-3)
    nine = Disjoint((Composed(tuple(Repeated(one, 9) for one in ones)), Repeated(DiscreteLaplace(0.1), 27)))
    assert other["release-all"].epsilon == pytest.approx(accountant.epsilon(nine, DELTA), rel=1e-3)
    assert other["naive composition"].epsilon == pytest.approx(9 * sum(arm.epsilon_one_trial for arm in private.arms))
    assert "in each arm" in other["release-all"].note


def test_arms_of_subsample_tune_draw_their_parts_apart_and_compose():
    protocol = {"kind": "subsample-tune", "law": "fixed", "trials": 3, "tune_fraction": 0.25}
    found = priced(protocol=protocol, privacy={"noise_multiplier": 0.8, "delta": DELTA})
    training, scored = found.event.parts
    assert [part.kind for part in training.events] == ["random-part"] * 3
    assert isinstance(training.events[0], RandomPart)
    assert scored == Composed(tuple(arm.event.parts[1] for arm in found.arms))
    both = Composed(tuple(arm.event for arm in found.arms))
    assert found.guarantee.epsilon <= accountant.epsilon(both, DELTA) * (1 + 1e-6)


def test_events_that_split_the_rows_differently_compose_in_any_part():
    one, other = Disjoint((Gaussian(1.0), DiscreteLaplace(0.1))), Gaussian(2.0)
    assert together([one, other]) == Composed((one, other))
    assert together([one, one]) == Disjoint((Composed((Gaussian(1.0),) * 2), Composed((DiscreteLaplace(0.1),) * 2)))
    assert together([Repeated(one, 3)]).parts == (
        Composed((Repeated(Gaussian(1.0), 3),)),
        Composed((Repeated(DiscreteLaplace(0.1), 3),)),
    )


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"protocol": {"kind": "select-best", "law": "auto", "chance": 0.6}},
            "protocol.law = 'auto' weighs the bill of one selection",
        ),
        (
            {"privacy": {"epsilon": 0.2, "delta": DELTA}, "score": {"epsilon": 0.1}},
            "privacy.epsilon = 0.2 leaves arm wide a bill of",
        ),
        (
            {"data": {"source": "adult", "public": True}, "privacy": {"epsilon": 0.01, "delta": DELTA}},
            "privacy.epsilon = 0.01 of arm wide cannot be reached",
        ),
    ],
)
def test_what_cannot_be_planned_with_arms_is_refused(sections, words):
    with pytest.raises(FieldError) as caught:
        priced(**sections)
    assert str(caught.value).startswith(words)


def test_a_batch_larger_than_the_training_rows_is_refused_in_its_arm():
    data = armed()
    data["arms"]["slow"]["trainer"]["batch_size"] = 30_000
    with pytest.raises(FieldError, match=r"^arms\.slow\.trainer\.batch_size = 30000 must be at most the 26,"):
        plan(sweep_from_dict(data))


@pytest.mark.parametrize("power", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("target", [1e-3, 0.3, 2.0, 40.0])
def test_the_share_is_found_wherever_the_price_grows_like_a_power(power, target):
    asked = []

    def price(bill: float) -> float:
        asked.append(bill)
        return bill * (1.2 + bill ** (power - 1))  # never below the bill of one

    found = price(_root(price, target, target / 2))
    assert LEAST * target <= found <= target
    assert len(asked) < 20


def test_where_the_price_jumps_the_share_below_the_jump_is_taken():
    found = _root(lambda bill: 1.5 * bill if bill < 1.0 else 3.0 * bill, 2.0, 1.1)
    assert 0.999 < found < 1.0


def test_a_share_that_no_noise_reaches_is_too_small():
    def price(bill: float) -> float:
        if bill < 0.7:
            raise FieldError("privacy.epsilon", bill, "cannot be reached")
        return 1.2 * bill

    assert LEAST <= price(_root(price, 1.0, 0.4)) <= 1.0
    with pytest.raises(FieldError, match="cannot be reached"):
        _root(lambda bill: price(min(bill, 0.5)), 1.0, 0.4)
    assert math.isfinite(_root(price, 3.0, 0.1))
