"""The verbs: what the command line and Python callers use. Each returns plain records; only cli.py prints."""

from __future__ import annotations

import getpass
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper import catalog, planning, seeds
from sweeper.checks import FieldError, RequestError
from sweeper.launch.outcome import Finished, Say, silent
from sweeper.planning import Plan
from sweeper.privacy.ledger import Ledger, Standing
from sweeper.spec.sweep import SweepSpec
from sweeper.store.home import Home

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from sweeper.store.queries import Best


def spec_of(spec: SweepSpec | Mapping[str, Any] | str | Path) -> SweepSpec:
    """A sweep from a spec, a mapping of the YAML shape, or a file."""
    if isinstance(spec, SweepSpec):
        return spec
    if isinstance(spec, Mapping):
        return catalog.sweep_from_dict(spec)
    return catalog.load_spec(spec)


def plan(spec: SweepSpec | Mapping[str, Any] | str | Path) -> Plan:
    """Price a sweep before any data is opened."""
    return planning.plan(spec_of(spec))


def budget_for(plan: Plan, home: Home | None = None) -> dict[str, Any] | None:
    """The budget a plan would draw on: data_set, epsilon, delta, spent, after, over. None when none is set or nothing is charged.

    spent and after are None where they are infinite.
    """
    if plan.spec.data.public:
        return None
    home = home or Home()
    if not home.ledger.exists():
        return None
    ledger, name = Ledger(home.ledger), plan.spec.budget_of
    budget = ledger.budget(name)
    if budget is None:
        return None
    spent, after = ledger.spent(name).epsilon, ledger.after(name, plan.event, plan.guarantee).epsilon
    return {
        "data_set": name,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "spent": spent if math.isfinite(spent) else None,
        "after": after if math.isfinite(after) else None,
        "over": not after <= budget.epsilon,
    }


def run(
    spec: SweepSpec | Mapping[str, Any] | str | Path,
    *,
    home: Home | None = None,
    say: Say = silent,
    secret: bytes | None = None,
) -> Finished:
    """Reserve the price, seal the candidates, run them on Ray, release what is paid for.

    `secret` replaces the operating system's randomness, for replays: the guarantee is then marked `seeded`, which is no privacy
    against whoever knows the secret; private data refuses it.

    Raises:
      RequestError: over budget, no budget, a name that exists, a table that is not what was stated. Nothing is charged then.
    """
    from sweeper.launch.driver import Driver

    spec = spec_of(spec)
    if secret is not None and not spec.data.public:
        raise RequestError("a secret given by the user cannot protect private data; leave it out, or declare data.public: true")
    return Driver(home or Home(), say).run(planning.plan(spec, seeded=secret is not None), secret or seeds.new_secret(), _who())


def resume(sweep: str, *, home: Home | None = None, say: Say = silent) -> Finished:
    """Run what a sweep left unsettled, with the same streams, and release. Settled trials never run again."""
    from sweeper.launch.driver import Driver

    return Driver(home or Home(), say).resume(sweep)


def best(sweep: str, *, home: Home | None = None) -> Best:
    """The best released trial with its whole bill."""
    from sweeper.store import queries

    return queries.best(sweep, home)


def compare(sweep: str, *, by: str = "clip", home: Home | None = None) -> pd.DataFrame:
    """Released trials in groups."""
    from sweeper.store import queries

    return queries.compare(sweep, by, home)


def compare_note(sweep: str, *, home: Home | None = None) -> str:
    """What a comparison cannot show, and what seeing it would cost."""
    from sweeper.store import queries

    return queries.compare_note(sweep, home)


def trials(sweep: str, *, home: Home | None = None) -> pd.DataFrame:
    """All released trials."""
    from sweeper.store import queries

    return queries.trials(sweep, home)


def load(sweep: str, *, home: Home | None = None) -> nn.Module:
    """The best released model of a sweep as a torch module: features [B, d] to logits."""
    from sweeper.store import queries
    from sweeper.store.mlflow import Store

    found = queries.best(sweep, home)
    if found.model_uri is None:
        raise RequestError(f"the best trial of sweep {sweep} has no model in the store")
    return Store(home or Home()).load_model(found.model_uri)


def status(sweep: str | None = None, *, home: Home | None = None) -> list[dict[str, Any]]:
    """Name, phase and protocol of the sweeps of this home. Says nothing that a protocol seals: no counts, no times."""
    from sweeper.store.vault import Vault
    from sweeper.store.vault_files import sweeps

    home = home or Home()
    names = [sweep] if sweep else sweeps(home.path)
    found = []
    for name in names:
        with Vault.open(home.path, name) as vault:
            plan = vault.meta("plan")
            found.append(
                {
                    "sweep": name,
                    "phase": vault.phase,
                    "protocol": plan["protocol"],
                    "epsilon": plan["epsilon"],
                    "delta": plan["delta"],
                }
            )
    return found


def ledger_standings(home: Home | None = None) -> list[Standing]:
    """Budget and spending of every data set."""
    home = home or Home()
    return Ledger(home.ledger).data_sets() if home.ledger.exists() else []


def ledger_reservations(home: Home | None = None) -> list[dict[str, Any]]:
    """Every charge, oldest first."""
    home = home or Home()
    return [r.to_dict() for r in Ledger(home.ledger).reservations()] if home.ledger.exists() else []


def set_budget(data_set: str, epsilon: float, delta: float, *, home: Home | None = None) -> dict[str, Any]:
    """Set what may ever be spent on a data set."""
    home = (home or Home()).ensure()
    return Ledger(home.ledger).set_budget(data_set, epsilon, delta, _who()).to_dict()


def data_sets(home: Home | None = None) -> list[dict[str, Any]]:
    """The sources in the catalog and whether their files are here."""
    home = home or Home()
    rows = []
    for kind in catalog.KINDS["data"]:
        source = catalog.resolve("data", kind)()
        rows.append(
            {
                "kind": kind,
                "rows": source.description.rows,
                "features": source.description.features,
                "classes": source.description.classes,
                "fetched": ready(source, home),
                "stated_by": source.description.stated_by,
            }
        )
    return rows


def ready(source: Any, home: Home) -> bool:
    """Whether a source's files are here, without opening them."""
    return bool(source.present(str(home.cache)))


def fetch(kind: str, *, home: Home | None = None) -> list[str]:
    """Fetch a source's files into the cache and check their hashes."""
    home = (home or Home()).ensure()
    files: list[str] = _source(kind).fetch(str(home.cache))
    return files


def show(kind: str) -> dict[str, Any]:
    """What is public about a source: its description and its columns with their declared ranges and words."""
    source = _source(kind)
    description = source.description
    columns = [{"name": c.name, "features": c.width, "declared": c.summary} for c in source.columns]
    facts = {name: getattr(description, name) for name in ("rows", "features", "classes", "test_rows", "stated_by")}
    return {"kind": kind, **facts, "columns": columns}


def ui(port: int, *, home: Home | None = None) -> tuple[list[str], dict[str, str]]:
    """The command that opens the MLflow pages of this home, and what to add to its environment."""
    from sweeper.store.mlflow import Store

    store = Store((home or Home()).ensure())
    command, settings = store.ui_command(port), store.ui_environment()
    store.reconcile()  # no run that a killed publication left open is shown as running for ever
    return command, settings


def _source(kind: str) -> Any:
    try:
        return catalog.resolve("data", kind)()
    except FieldError as error:
        raise FieldError("data source", error.value, error.rule, error.hint) from None


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
