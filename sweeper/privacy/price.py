"""The calculator behind `sweeper price`: a question, or an event, answered by its whole bill in plain JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper import checks
from sweeper.checks import FieldError
from sweeper.privacy import accountant
from sweeper.privacy.events import Event, PrivateQuantile, SelectBest
from sweeper.privacy.guarantee import Guarantee
from sweeper.privacy.laws import RunCountLaw
from sweeper.privacy.question import PROTOCOLS, SECRET, Question
from sweeper.privacy.renyi_check import renyi_check

if TYPE_CHECKING:
    from sweeper.privacy.loss import PrivacyLoss

__all__ = ["PROTOCOLS", "Bill", "Question", "answer", "answer_bill", "answer_event", "noise_for", "run_loss", "settle"]

UNIT = "record"


@dataclass(frozen=True, kw_only=True)
class Bill:
    """A question with nothing left open: the noise, the law, and the events of one run and of the whole protocol."""

    question: Question
    noise_multiplier: float
    law: RunCountLaw | None
    trial: Event
    total: Event


def settle(question: Question) -> Bill:
    """Find the noise that meets question.epsilon, and the law where it is `auto`.

    Raises:
      FieldError: no noise meets the epsilon, or no law meets the chance or the bill.
    """
    law: RunCountLaw | None
    if question.law == "auto":
        from sweeper.privacy.price_auto import settle_auto

        multiplier, law = settle_auto(question)
    else:
        law = question.run_counts() if question.protocol in SECRET else None
        multiplier = noise_for(question, law)
    total = question.total(multiplier, law)
    return Bill(question=question, noise_multiplier=multiplier, law=law, trial=question.trial(multiplier), total=total)


def noise_for(question: Question, law: RunCountLaw | None) -> float:
    """The noise multiplier given, or the one that makes the whole bill question.epsilon."""
    if question.noise_multiplier is not None:
        return float(question.noise_multiplier)
    assert question.epsilon is not None
    try:
        return accountant.calibrate(lambda multiplier: question.total(multiplier, law), question.epsilon, question.bill_delta)
    except FieldError as error:
        raise FieldError(error.field, error.value, error.rule, _way_out(question, error)) from None


def _way_out(question: Question, error: FieldError) -> str:
    """The accountant's hints name fields of a sweep file."""
    own = [name for name in ("score_epsilon", "quantile_epsilon", "line_search_epsilon") if getattr(question, name) is not None]
    if "carry their own noise" in error.rule:
        lower = ", ".join("--" + name.replace("_", "-") for name in own) or "--threshold-noise"
        return f"Lower {lower}, or raise --epsilon."
    return "Give --noise-multiplier instead." if "no noise" in error.rule else error.hint


def run_loss(trial: Event, interval: float) -> PrivacyLoss:
    """The loss of one run as a selection must price it: one law for all places of a quantile, which may differ from run to run."""
    from sweeper.privacy.profile import fused

    loss = accountant.privacy_loss(trial, interval)
    return fused(loss) if _asks_quantile(trial) else loss


def _asks_quantile(event: Event) -> bool:
    return isinstance(event, PrivateQuantile) or any(_asks_quantile(part) for part in event.inside)


def answer(question: Question) -> dict[str, Any]:
    """The bill, in plain JSON. epsilon is null where nothing is protected, epsilon_renyi where no Renyi bound is known.

    Guarantee: epsilon is an upper bound for the whole protocol, in the relation that `guarantee` names, within 0.3% of the exact
    theorem's value for a trial whose loss is attained.
    """
    return answer_bill(settle(question))


def answer_bill(bill: Bill) -> dict[str, Any]:
    question = bill.question
    result = _priced(bill.total, question.bill_delta) | {
        "noise_multiplier": bill.noise_multiplier,
        "calibrated": question.noise_multiplier is None,
        "epsilon_one_trial": _finite(accountant.epsilon(bill.trial, question.bill_delta)),
        "protocol": question.protocol,
        "notes": _notes(bill),
    }
    if bill.law is not None:
        result |= _chances(bill.law)
        if question.runs.top is not None:
            result |= {"top": question.runs.best_share, "chance_of_top": bill.law.chance(question.runs.best_share)}
    if question.search_event is not None:
        result["line_search"] = question.search_event.to_dict()
    return result


def answer_event(event: Event, delta: float) -> dict[str, Any]:
    """The bill of an event from a file. Guarantee, nulls: as `answer`."""
    checks.probability(delta=delta)
    result = _priced(event, delta) | {"protocol": "as the event says", "notes": []}
    found = _first_selection(event)
    return result if found is None else result | _chances(found.law)


def _priced(event: Event, delta: float) -> dict[str, Any]:
    epsilon = accountant.epsilon(event, delta)
    guarantee = Guarantee(epsilon=epsilon, delta=delta, unit=UNIT)
    if event.relation is not None:  # None: nothing is released, which holds under any relation
        guarantee = Guarantee(epsilon=epsilon, delta=delta, unit=UNIT, relation=event.relation)
    return {
        "epsilon": _finite(epsilon),
        "delta": delta,
        "epsilon_renyi": renyi_check(event, delta),
        "guarantee": guarantee.to_dict(),
        "event": event.to_dict(),
    }


def _chances(law: RunCountLaw) -> dict[str, Any]:
    chances: dict[str, Any] = {
        "law": law.to_dict(),
        "mean_trials": law.mean_trials(),
        "chance_of_top_10_percent": law.chance(0.1),
    }
    return chances | ({"chance_of_no_answer": law.nothing} if law.nothing > 0 else {})


def _first_selection(event: Event) -> SelectBest | None:
    if isinstance(event, SelectBest):
        return event
    return next((found for part in event.inside if (found := _first_selection(part)) is not None), None)


def _notes(bill: Bill) -> list[str]:
    """What the bill takes for granted beyond the flags."""
    question, notes = bill.question, []
    if question.batches.fixed_size:
        notes.append(
            "replace-one: a replaced record moves a clipped sum by twice the clip norm; noise is in units of the clip norm"
        )
        if question.quantile_epsilon is not None:
            notes.append("the quantile must be drawn with rank sensitivity 1, as replace-one needs")
    if question.quantile_epsilon is not None and question.protocol != "no-tuning":
        notes.append("every run asks the quantile anew")
    if question.score is not None and not question.on_holdout:
        notes.append("the score reads training rows, so it composes with training")
    if question.protocol == "subsample-tune":
        notes.append("tuning runs and the final run use the same sampling probability, steps and noise on their parts of the rows")
    if question.protocol == "public-proxy":
        notes.append("the search ran on public data and is free; only the one private run is paid for")
    return notes


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
