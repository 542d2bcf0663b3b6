"""`sweeper price --law auto`: the law chosen for the run that is priced, and the noise where that is asked for too."""

from __future__ import annotations

from sweeper.checks import FieldError
from sweeper.privacy.auto_law import choose
from sweeper.privacy.laws import RunCountLaw, TruncatedNegativeBinomial
from sweeper.privacy.price import noise_for, run_loss
from sweeper.privacy.question import Question

LEAST_MEAN = 1.01


def settle_auto(question: Question) -> tuple[float, RunCountLaw]:
    """(noise multiplier, law). With question.epsilon the law is chosen at the noise that the geometric law of that chance needs.

    Which law is best hardly depends on the noise (auto_law.py); the noise is then found for the law chosen, so the bill holds
    whatever it is.

    Raises:
      FieldError: no law has the chance within --max-trials, or one run alone passes --max-epsilon.
    """
    if question.noise_multiplier is not None:
        return question.noise_multiplier, chosen(question, question.noise_multiplier)
    law = chosen(question, noise_for(question, _geometric(question)))
    return noise_for(question, law), law


def chosen(question: Question, noise_multiplier: float) -> RunCountLaw:
    """The law of smallest bill at question.chance, or of largest chance at question.max_epsilon."""
    runs, trial = question.runs, question.trial(noise_multiplier)
    if trial.unprotected:
        raise FieldError("noise_multiplier", noise_multiplier, "protects nothing: every law has an infinite bill", "Give it noise.")
    try:
        return choose(
            lambda interval: run_loss(trial, interval),
            delta=question.bill_delta,
            top=runs.best_share,
            chance=runs.chance,
            epsilon=runs.max_epsilon,
            max_trials=runs.max_trials,
        ).law
    except FieldError as error:
        field = "max_epsilon" if error.field == "epsilon" else error.field
        raise FieldError(field, error.value, error.rule, error.hint) from None


def _geometric(question: Question) -> RunCountLaw:
    """The geometric law of the chance asked: f(x) = x / (m - (m - 1) x) gives m = (1 - p) c / (p (1 - c))."""
    chance, top = question.runs.chance, question.runs.best_share
    assert chance is not None
    mean = max(LEAST_MEAN, (1 - top) * chance / (top * (1 - chance)))
    return TruncatedNegativeBinomial(eta=1.0, mean=min(mean, 1e6))
