"""A finished Vault -> the Release that the store writes. Only what the protocol pays for leaves the Vault here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from sweeper.backends.choice import network_of
from sweeper.catalog import dump_spec
from sweeper.launch.candidate import settings_of, trial_spec
from sweeper.launch.outcome import winners_of
from sweeper.planning import Plan
from sweeper.store import schema
from sweeper.store.release import Release, ReleasedTrial, synthetic_rows
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import SEARCH, Row

if TYPE_CHECKING:
    from torch import nn

UNCOVERED = (
    "Clock time is not covered: whoever watches the command can see how long it ran. All times stored here are the release time."
)


class Shown(Sequence[ReleasedTrial]):
    """The trials that `fixed` gives ids to, each read from the Vault when it is asked for: never all their models in memory."""

    def __init__(self, vault: Vault, plan: Plan, fixed: Mapping[str, Any]) -> None:
        self._vault, self._plan, self._fixed = vault, plan, fixed
        self._indices = sorted(int(index) for index in fixed["ids"])

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, position: int) -> ReleasedTrial: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[ReleasedTrial]: ...

    def __getitem__(self, position: int | slice) -> ReleasedTrial | Sequence[ReleasedTrial]:
        if isinstance(position, slice):
            return [self[each] for each in range(len(self))[position]]
        return _trial(self._vault.row(self._indices[position]), self._plan, self._fixed)


def build_release(vault: Vault, plan: Plan) -> Release:
    """The release fixed in the Vault, the same at every call. Keep the Vault open until it is published."""
    fixed = vault.meta("release")
    return _release(vault, plan, fixed, _ledger_entry(vault, plan, fixed.get("ledger_head")))


def build_unsealed(vault: Vault, plan: Plan, fixed: Mapping[str, Any], head: str) -> Release:
    """Every trial. It stands in for the release of the winners alone, whose bill it contains.

    `plan`: told with the bill of all trials; `fixed`: what the Vault recorded for it; `head`: the ledger's last row, which holds
    the charge.
    """
    release = _release(vault, plan, fixed, _ledger_entry(vault, plan, head), protocol="release-all")
    return replace(release, supersedes=vault.meta("release")["submission"])


def _release(vault: Vault, plan: Plan, fixed: Mapping[str, Any], ledger: dict[str, Any], protocol: str | None = None) -> Release:
    """The trials that `fixed` gives ids to, under the plan's guarantee. `protocol`: another than the sweep's own, if it changed."""
    spec = plan.spec
    every = getattr(spec.protocol, "release_every", None)
    covered = (
        f"Released at a whole multiple of {every:g} s after the start, so that time shows only the multiple."
        if every
        else UNCOVERED
    )
    return Release(
        sweep=spec.name,
        submission=fixed["submission"],
        spec_yaml=dump_spec(spec),
        spec=vault.meta("spec"),
        plan=plan.to_dict(),
        guarantee=plan.guarantee.to_dict(),
        ledger=ledger,
        protocol=protocol or spec.protocol.kind,
        public=spec.data.public,
        released_at=fixed["released_at"],
        timing=covered,
        description_markdown=_description(plan, protocol),
        trials=Shown(vault, plan, fixed),
        build_model=lambda params: _module(params, plan),
        build_example=lambda: synthetic_rows(spec.data.source.description.features),
        score_noise=score_noise(spec.score.epsilon, _scored_rows(plan)),
    )


def _scored_rows(plan: Plan) -> float:
    """The public number of rows, of a secret part the expected one, that the released score is a share of."""
    if plan.spec.score.split == "holdout":
        return plan.holdout_rows
    part = plan.spec.protocol.part(final=True)
    return plan.train_rows * (part.share if part is not None else 1.0)


def score_noise(epsilon: float, rows: float) -> float:
    """Standard deviation of a score: discrete Laplace noise on a count, over the public number of rows."""
    return math.sqrt(2 * math.exp(-epsilon)) / -math.expm1(-epsilon) / rows


def _trial(row: Row, plan: Plan, fixed: Mapping[str, Any]) -> ReleasedTrial:
    spec, noise, arm = plan.spec.of_arm(row.arm), plan.noises[row.arm], plan.arm(row.arm)
    on_proxy = spec.protocol.final_run and row.stage == SEARCH  # it chose the setting of another run, on other rows
    clip, step = spec.space.build(row.candidate)
    return ReleasedTrial(
        id=fixed["ids"][str(row.index)],
        settings=row.settings or settings_of(trial_spec(spec, noise, row.index, row.candidate)),
        candidate=row.candidate,
        metric=f"proxy_{spec.score.metric}" if on_proxy else spec.score.metric,
        score=row.score,
        clip_policy=clip.kind,
        step_policy=step.kind,
        trainer=spec.trainer.kind,
        arm=row.arm,
        arm_epsilon=arm.epsilon if arm else None,
        arm_relation=arm.relation if arm else "",
        noise_multiplier=noise,
        trace=row.trace or {},
        params=None if on_proxy else row.params,
        is_best=row.index in winners_of(fixed).values(),
        tags={schema.STAGE: schema.PROXY if on_proxy else "public" if spec.data.public else "private"},
    )


def _module(params: bytes, plan: Plan) -> nn.Module:
    vector_P = torch.from_numpy(np.frombuffer(params, dtype=np.float32).copy())
    module: nn.Module = network_of(plan.spec.model).torch_module(vector_P, plan.spec.data.source.description)
    return module


def _ledger_entry(vault: Vault, plan: Plan, head: str | None) -> dict[str, Any]:
    if plan.spec.data.public:
        return {"charged": False, "why": "the data is declared public; the bill is shown as if it were private"}
    return {
        "charged": True,
        "data_set": plan.spec.budget_of,
        "reservation": vault.meta("reservation"),
        "event": plan.event.to_dict(),
        "head": head,  # seq:hash of the ledger's last row then: `sweeper ledger verify --head` says whether it is still there
    }


def _description(plan: Plan, protocol: str | None = None) -> str:
    """Markdown at the head of the experiment: the bill and how to read it."""
    spec, guarantee = plan.spec, plan.guarantee
    as_if = " (as if private: the data is declared public, nothing was charged)" if spec.data.public else ""
    visible = spec.protocol.visible if protocol is None else "every trial; they were unsealed"
    if plan.arms and protocol is None:
        visible = f"of each of the {len(plan.arms)} arms {visible}"
    seeded = " **Seeded by the user: no privacy against whoever knows the seed.**" if guarantee.seeded else ""
    return (
        f"**Whole bill: epsilon {guarantee.epsilon:.3f} at delta {guarantee.delta:g}**, tuning included{as_if}. "
        f"Unit {guarantee.unit}, relation {guarantee.relation}.{seeded}\n\n"
        f"Protocol {protocol or spec.protocol.kind}: visible is {visible}. One trial alone would be reported as epsilon "
        f"{plan.epsilon_one_trial:.3f}, which is not the truth about a sweep.\n\n"
        f"{_arms(plan)}"
        f"Scores carry noise; `hp/...` metrics are the settings as numbers, for filters and charts."
    )


def _arms(plan: Plan) -> str:
    """One paragraph: what each arm is billed, and how the bills make the whole one."""
    if not plan.arms:
        return ""
    bills = ", ".join(f"{arm.name} {arm.epsilon:.3f}" for arm in plan.arms)
    how = "each is billed alone, as if private" if plan.spec.data.public else "on private data they compose to the whole bill"
    return f"Arms, with the epsilon of each: {bills}; {how}.\n\n"
