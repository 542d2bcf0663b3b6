"""The verbs: what the command line and Python callers use. Each returns plain records; only cli.py prints."""

from __future__ import annotations

import math
import os
import pwd
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper import catalog, checks, planning, seeds
from sweeper.checks import FieldError, RequestError
from sweeper.launch.outcome import Finished, Say, silent
from sweeper.planning import Plan
from sweeper.privacy.chain import Head
from sweeper.privacy.ledger import Ledger, Standing
from sweeper.spec.sweep import SweepSpec
from sweeper.store.home import Home

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from sweeper.doctor.checkup import Hear, Watch
    from sweeper.doctor.finding import Finding
    from sweeper.planning.suggest import Suggestion
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


def suggest(
    spec: SweepSpec | Mapping[str, Any] | str | Path, *, chance: float | None = None, say: Callable[[int, int], None] | None = None
) -> Suggestion:
    """The ways to search a sweep's space at its total bill, priced. Opens no data.

    `chance`: to draw a setting in the good part of the space (planning/good_part.py); default 0.8. `say`: hears (done, of all).
    """
    from sweeper.planning import suggest

    return suggest.suggest(spec_of(spec), chance=suggest.CHANCE if chance is None else chance, say=say or suggest.nobody)


def budget_for(plan: Plan, home: Home | None = None) -> dict[str, Any] | None:
    """The budget a plan would draw on: data_set, epsilon, delta, spent, after, over, head. None without one, or without a charge.

    spent and after are None where they are infinite.
    """
    if plan.spec.data.public:
        return None
    home = home or Home()
    if not home.ledger_exists():
        return None
    ledger, name = Ledger(home.ledger_uri), plan.spec.budget_of
    budget = ledger.budget(name)
    if budget is None:
        return None
    spent, after = ledger.spent(name).epsilon, ledger.after(name, plan.event, plan.guarantee).epsilon
    why: dict[str, Any] = {}
    if math.isinf(after) and math.isfinite(plan.guarantee.epsilon):  # its own price is not the reason
        why = {"why": ledger.refusal(name, plan.event, plan.guarantee)}
    return {
        "data_set": name,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "spent": spent if math.isfinite(spent) else None,
        "after": after if math.isfinite(after) else None,
        "over": not after <= budget.epsilon,
        "head": "{0.seq}:{0.hash}".format(ledger.head()),
    } | why


def run(
    spec: SweepSpec | Mapping[str, Any] | str | Path,
    *,
    home: Home | None = None,
    say: Say = silent,
    secret: bytes | None = None,
    reservation: str | None = None,
) -> Finished:
    """Reserve the price, seal the candidates, run them on Ray, release what is paid for.

    `secret` replaces the operating system's randomness, for replays: the guarantee is then marked `seeded`, which is no privacy
    against whoever knows the secret; private data refuses it. `reservation`: the id that `reserve` gave for this very sweep.

    Raises:
      RequestError: over budget, no budget, a name that exists, a table that is not what was stated. Nothing is charged then.
    """
    from sweeper.launch.driver import Driver

    spec = spec_of(spec)
    if secret is not None and not spec.data.public:
        raise RequestError("a secret given by the user cannot protect private data; leave it out, or declare data.public: true")
    home, planned = home or Home(), planning.plan(spec, seeded=secret is not None)
    if reservation is not None:
        reservation = _whole_id(Ledger(home.ledger_uri), reservation)
    return Driver(home, say).run(planned, secret or seeds.new_secret(), _who(), reservation)


def resume(sweep: str, *, home: Home | None = None, say: Say = silent) -> Finished:
    """Run what a sweep left unsettled, with the same streams, and release. Settled trials never run again."""
    from sweeper.launch.driver import Driver

    return Driver(home or Home(), say).resume(sweep)


def best(sweep: str, *, home: Home | None = None) -> Best:
    """The best released trial with its whole bill."""
    from sweeper.store import queries

    return queries.best(sweep, home)


def compare(sweep: str, *, by: str | None = None, home: Home | None = None) -> pd.DataFrame:
    """Released trials in groups; of a sweep with arms, a row per arm, unless `by` says otherwise."""
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
            plan, unsealed = vault.meta("plan"), vault.meta("unsealed_bill")
            found.append(
                {
                    "sweep": name,
                    "phase": "unsealed" if unsealed else vault.phase,
                    "protocol": plan["protocol"],
                    "epsilon": unsealed["epsilon"] if unsealed else plan["epsilon"],
                    "delta": plan["delta"],
                }
            )
    return found


def ledger_standings(home: Home | None = None) -> list[Standing]:
    """Budget and spending of every data set."""
    home = home or Home()
    return Ledger(home.ledger_uri).data_sets() if home.ledger_exists() else []


def ledger_reservations(home: Home | None = None) -> list[dict[str, Any]]:
    """Every charge, oldest first."""
    home = home or Home()
    return [r.to_dict() for r in Ledger(home.ledger_uri).reservations()] if home.ledger_exists() else []


def ledger_head(home: Home | None = None) -> str | None:
    """seq:hash of the ledger's last row, which bills quote so that a rebuilt ledger shows; None when there is no row."""
    home = home or Home()
    if not home.ledger_exists():
        return None
    head = Ledger(home.ledger_uri).head()
    return None if head.seq == 0 else f"{head.seq}:{head.hash}"


def ledger_broken(home: Home | None = None) -> dict[str, Any] | None:
    """The first row of the ledger that is not what was appended; None where all is well or there is no ledger."""
    home = home or Home()
    broken = Ledger(home.ledger_uri).verify() if home.ledger_exists() else None
    return None if broken is None else broken.to_dict()


def ledger_verify(head: str | None = None, *, home: Home | None = None) -> dict[str, Any]:
    """rows, head, broken: the first row that is not what was appended, or the quoted `head` (seq:hash) that is gone."""
    home = home or Home()
    if not home.ledger_exists():
        raise RequestError(f"there is no ledger at {home.ledger}; SWEEPER_HOME or SWEEPER_LEDGER_URI may point elsewhere")
    ledger = Ledger(home.ledger_uri)
    quoted = None
    if head is not None:
        seq, _, digest = head.partition(":")
        if not (seq.isdigit() and digest):
            raise FieldError("head", head, "must be SEQ:HASH, as a bill quotes it")
        quoted = Head(seq=int(seq), hash=digest)
    broken = ledger.verify(quoted)
    if broken is not None:
        return {"rows": None, "head": None, "broken": broken.to_dict()}
    last = ledger.head()
    return {"rows": last.seq, "head": f"{last.seq}:{last.hash}", "broken": None}


def ledger_release(reservation: str, reason: str, *, home: Home | None = None) -> dict[str, Any]:
    """Give back a reservation that no run has started. A unique beginning of the id will do."""
    ledger = Ledger((home or Home()).ledger_uri)
    return ledger.release(_whole_id(ledger, reservation), reason).to_dict()


def ledger_recover(sweep: str, *, give_back: bool = False, home: Home | None = None) -> list[dict[str, Any]]:
    """What is known of every charge of a sweep; with `give_back`, those that provably opened no data cost nothing afterwards."""
    from sweeper.launch.recovery import recover

    return recover(home or Home(), sweep, give_back=give_back)


def ledger_export(data_set: str | None = None, *, home: Home | None = None) -> dict[str, Any]:
    """What the statement is made of: budgets, charges, the head of the chain."""
    home = home or Home()
    if (broken := ledger_broken(home)) is not None:
        raise RequestError(f"the ledger was changed: row {broken['seq']}: {broken['rule']}. No statement can be made of it")
    standings = [s.to_dict() for s in ledger_standings(home)]
    if data_set is not None and data_set not in {s["data_set"] for s in standings}:
        known = [s["data_set"] for s in standings]
        raise FieldError("data set", data_set, f"is not in the ledger{checks.suggestion(data_set, known)}", "See: sweeper ledger.")
    chosen = [s for s in standings if data_set in (None, s["data_set"])]
    charges = [c for c in ledger_reservations(home) if data_set in (None, c["data_set"])]
    return {"data_sets": chosen, "charges": charges, "head": ledger_head(home)}


def ledger_csv(data_set: str | None = None, *, home: Home | None = None) -> str:
    """One line per charge."""
    from sweeper.report.statement import charges_csv

    return charges_csv(ledger_export(data_set, home=home)["charges"])


def ledger_statement(data_set: str | None = None, *, home: Home | None = None) -> str:
    """The privacy statement as one HTML page."""
    from sweeper.report.statement import statement_html

    found = ledger_export(data_set, home=home)
    seq, _, digest = (found["head"] or "0:none").partition(":")
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return statement_html(found["data_sets"], found["charges"], {"seq": int(seq), "hash": digest}, made)


def reserve(plan: Plan, *, home: Home | None = None) -> str:
    """Hold a plan's price now, for a later run of the same sweep; the reservation's id.

    Raises:
      RequestError: over budget, no budget, or nothing to charge.
    """
    if plan.spec.data.public:
        raise RequestError("data.public is true: nothing is charged, so there is nothing to reserve")
    home = (home or Home()).ensure()
    spec = plan.spec
    return Ledger(home.ledger_uri).reserve(spec.budget_of, spec.name, plan.fingerprint, plan.event, plan.guarantee, _who())


def unseal_quote(sweep: str, *, home: Home | None = None) -> dict[str, Any]:
    """What publishing every trial of a sweep would cost. Charges nothing."""
    from sweeper.launch.unseal import Unsealing

    with Unsealing(home or Home(), sweep) as unsealing:
        return unsealing.quote()


def unseal(sweep: str, *, home: Home | None = None, say: Say = silent) -> dict[str, Any]:
    """Charge the price of all trials, publish them, and give back what the number of runs leaves over. A second call is free.

    Raises:
      RequestError: over budget, or nothing is sealed. Nothing is charged or shown then.
    """
    from sweeper.launch.unseal import Unsealing

    with Unsealing(home or Home(), sweep) as unsealing:
        return unsealing.run(_who(), say)


def _whole_id(ledger: Ledger, beginning: str) -> str:
    found = [r.id for r in ledger.reservations() if beginning and r.id.startswith(beginning)]
    if len(found) != 1:
        rule = "is the beginning of no reservation" if not found else f"is the beginning of {len(found)} reservations"
        raise FieldError("reservation", beginning, rule, "See: sweeper ledger --json.")
    return found[0]


def set_budget(data_set: str, epsilon: float, delta: float, *, home: Home | None = None) -> dict[str, Any]:
    """Set what may ever be spent on a data set."""
    home = (home or Home()).ensure()
    return Ledger(home.ledger_uri).set_budget(data_set, epsilon, delta, _who()).to_dict()


def data_sets(home: Home | None = None) -> list[dict[str, Any]]:
    """The published sources in the catalog and whether their files are here."""
    home = home or Home()
    rows = []
    for kind in catalog.published():
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


def split(file: str | Path, *, home: Home | None = None) -> dict[str, Any]:
    """How many rows of a sweep's table train and how many are held out. Of a table with ids the ids are read, and nothing else."""
    from sweeper.data.split import held_out_ids, split_sizes

    data = spec_of(file).data
    if not (data.source.description.ids and data.holdout):
        train, held = split_sizes(data)
        return {"train_rows": train, "holdout_rows": held, "n_holdout": None}
    held = int(held_out_ids(data, data.source.row_ids(str((home or Home()).cache))).sum())
    return {"train_rows": data.rows - held, "holdout_rows": held, "n_holdout": held}


def show(kind: str) -> dict[str, Any]:
    """What is public about a source: its description and its columns with their declared ranges and words.

    `kind`: of a published source, or the file of a sweep.
    """
    source = _source(kind)
    description = source.description
    columns = [{"name": c.name, "features": c.width, "declared": c.summary} for c in getattr(source, "columns", ())]
    facts = {name: getattr(description, name) for name in ("rows", "features", "classes", "test_rows", "stated_by")}
    return {"kind": source.kind, **facts, "columns": columns}


def ui(port: int, *, home: Home | None = None) -> tuple[list[str], dict[str, str]]:
    """The command that opens the MLflow pages of this home, and what to add to its environment."""
    from sweeper.store.mlflow import Store

    store = Store((home or Home()).ensure())
    command, settings = store.ui_command(port), store.ui_environment()
    store.reconcile()  # no run that a killed publication left open is shown as running for ever
    return command, settings


def doctor(
    file: str | Path | None = None, *, home: Home | None = None, watch: Watch | None = None, hear: Hear | None = None
) -> list[Finding]:
    """What is wrong with this installation, this home, what they reach, and a sweep's file. Opens no data, charges nothing.

    `watch` stands around each check, which may take seconds; `hear` gets each finding as soon as it is there.

    Raises:
      RequestError: there is no such file.
    """
    from sweeper.doctor import checkup

    given = {name: value for name, value in (("watch", watch), ("hear", hear)) if value is not None}
    return checkup.examine(None if file is None else str(file), home or Home(), **given)


def _source(kind: str) -> Any:
    """A published source by its kind, or that of a sweep's file."""
    if kind.endswith((".yaml", ".yml")):
        return catalog.load_spec(kind).data.source
    names = catalog.published()
    if kind not in names:
        rule = f"must be one of {', '.join(names)}, or the file of a sweep{checks.suggestion(kind, names)}"
        raise FieldError("data source", kind, rule)
    return catalog.resolve("data", kind)()


def _who() -> str:
    """The operating system's word for who asks; the environment's could be anybody's."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
