"""What a sweep file may ask for by a known name and is refused, with the reason and the way out. Unknown names are codec's.

Each stands for a release that no bill here covers; calling it "not a field" would leave the user to build it beside the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from sweeper.checks import FieldError

SEEDS = ("seed", "secret", "random_seed", "random_state", "rng")
SEED = "is refused: whoever knows the seed sees through the noise, so that no guarantee is left"
SEED_HINT = "Leave it out: the operating system gives the secret, and sweeper resume replays it. In Python, "
SEED_HINT += "sweeper.run(spec, secret=...) replays a sweep on public data."

STATISTIC = "is refused: it is computed from the rows, and of private rows that is a release which nothing here pays for"
DECLARED = "Use what the source declares (sweeper data show {source}), which is public."
OF_DATA: tuple[str, ...] = ("normalise", "normalize", "standardise", "standardize", "zscore", "scaler", "scaling", "whiten")
OF_DATA += ("pca", "impute", "vocabulary", "feature_selection", "outliers", "balance", "oversample")
WEIGHTS = ("class_weight", "class_weights", "sample_weight", "sample_weights", "label_weights")
WEIGHTS_HINT = "Leave it out: records count equally, and label counts of private rows are not public."
OF_CLIP = ("percentile", "quantile", "median")
CLIP_HINT = "Give range: or value:, chosen without looking at the rows, or use policy: private-quantile, which is priced."

INSIDE = "is refused: it chooses by scores inside a trial, a selection of its own that the price of {protocol} does not cover"
INSIDE_HINT = "Leave it out, or give the protocol more trials."
CHOOSING = ("best_of", "restarts", "early_stopping", "keep_best", "save_best")
NESTED = ("trial", "trials_protocol", "protocol", "inner", "nested")
NESTED_RULE = "is refused: a selection inside a selection has a price of its own, and no protocol here states it"
NESTED_HINT = "Use one protocol with more trials."

NOISELESS = "is refused: a score without noise of its own is an exact answer about the scored rows, at no finite price"
NOISELESS_HINT = "Use score: {epsilon: 0.1}, or choose on a public table: protocol public-proxy, or data.public: true."


def refusals(top: Mapping[str, Any]) -> Iterator[FieldError]:
    """What a sweep's mapping asks for and cannot have, in the order of its sections."""
    sections = {name: section for name, section in top.items() if isinstance(section, Mapping)}
    protocol = sections.get("protocol", {}).get("kind", "select-best")
    data = sections.get("data", {})
    public = data.get("public") is True
    arms = {f"arms.{name}": arm for name, arm in sections.get("arms", {}).items() if isinstance(arm, Mapping)}
    trainers = {f"{place}.trainer": arm["trainer"] for place, arm in arms.items() if isinstance(arm.get("trainer"), Mapping)}
    parts = {place: sections.get(place, {}) for place in ("model", "trainer")} | trainers
    for place, section in ({"": top} | sections | arms | trainers).items():
        for key in SEEDS:
            if key in section:
                yield _error(place, key, section, SEED, SEED_HINT)
    if not public:
        source = data.get("source")
        yield from _each("data", data, OF_DATA, STATISTIC, DECLARED.format(source=source if isinstance(source, str) else "adult"))
        for place, section in ({"data": data} | parts).items():
            yield from _each(place, section, WEIGHTS, STATISTIC, WEIGHTS_HINT)
        for place, section in ({"space": sections.get("space", {})} | arms).items():
            yield from _of_clip(place, section)
    for place, section in (parts | {"score": sections.get("score", {})}).items():
        yield from _each(place, section, CHOOSING, INSIDE.format(protocol=f"protocol {protocol}"), INSIDE_HINT)
    yield from _each("protocol", sections.get("protocol", {}), NESTED, NESTED_RULE, NESTED_HINT)
    if "search" in sections.get("protocol", {}):
        kind = sections["protocol"]["search"]
        yield FieldError("protocol.search", kind, "is a section of its own", f"Write search: {{kind: {kind}}} beside protocol.")
    score = sections.get("score", {})
    if "epsilon" in score and noiseless(score["epsilon"]):
        yield no_noise(score["epsilon"]).within("score")


def noiseless(epsilon: object) -> bool:
    """Whether this value of score.epsilon asks for a score without noise."""
    if isinstance(epsilon, str):
        return epsilon.lower() in ("none", "no", "off", "null", "inf", "infinite", "infinity")
    if epsilon is None or epsilon is False:
        return True
    return isinstance(epsilon, (int, float)) and not isinstance(epsilon, bool) and (epsilon == 0 or epsilon == math.inf)


def no_noise(epsilon: object) -> FieldError:
    return FieldError("epsilon", epsilon, NOISELESS, NOISELESS_HINT)


def _of_clip(place: str, space: Mapping[str, Any]) -> Iterator[FieldError]:
    """Clip norms read off the rows, as a policy or as a value of one."""
    clip = space.get("clip")
    if not isinstance(clip, Mapping):
        return
    policy = clip.get("policy")
    if policy in OF_CLIP and policy != "percentile":  # that one is a policy for public rows: SweepSpec says the same of it
        yield FieldError(f"{place}.clip.policy", policy, STATISTIC, "Use policy: private-quantile, which is priced.")
    own = tuple(key for key in OF_CLIP if isinstance(policy, str) and policy.endswith(key))  # `quantile` of private-quantile
    yield from _each(f"{place}.clip", clip, tuple(key for key in OF_CLIP if key not in own), STATISTIC, CLIP_HINT)
    for key, value in clip.items():
        if isinstance(value, Mapping):
            yield from _each(f"{place}.clip.{key}", value, OF_CLIP, STATISTIC, CLIP_HINT)


def _each(place: str, section: Mapping[str, Any], keys: tuple[str, ...], rule: str, hint: str) -> Iterator[FieldError]:
    for key in keys:
        if key in section:
            yield _error(place, key, section, rule, hint)


def _error(place: str, key: str, section: Mapping[str, Any], rule: str, hint: str) -> FieldError:
    return FieldError(f"{place}.{key}" if place else key, section[key], rule, hint)
