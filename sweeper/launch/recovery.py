"""What is known of a sweep's charges: from the ledger, and from the vault where it lies here."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from sweeper.checks import RequestError
from sweeper.launch.alone import alone
from sweeper.privacy.account import RESERVED, Reservation
from sweeper.privacy.ledger import Ledger
from sweeper.store.home import Home
from sweeper.store.vault import Vault
from sweeper.store.vault_rows import FINAL

UNTOUCHED = "no trial of it was ever claimed, so that no answer can depend on the data"


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of one charge, what to do next, and whether it provably opened no data."""

    known: str
    next: str
    untouched: bool


def recover(home: Home, sweep: str, *, give_back: bool) -> list[dict[str, Any]]:
    """Every charge of a sweep with what is known of it. With `give_back`, what provably opened no data is committed as nothing.

    Proof is one of two: the ledger has no start row, which the driver writes before data is opened; or it has one, and the vault
    that it names is here and shows that no trial was claimed. A vault that is not here proves nothing.

    Raises:
      RequestError: no charge of that name, or nothing can be given back.
    """
    ledger = Ledger(home.ledger_uri)
    charges = ledger.of_sweep(sweep)
    if not charges:
        raise RequestError(f'no charge of a sweep "{sweep}" is in this ledger: `sweeper ledger` lists them')
    found = [(charge, known(home, charge)) for charge in charges]
    if give_back:
        idle = [(charge, what) for charge, what in found if charge.state == RESERVED and what.untouched]
        if not idle:
            raise RequestError(f"nothing of sweep {sweep} can be given back: `sweeper ledger recover {sweep}` says why")
        for charge, _ in idle:
            _give_back(home, ledger, charge)
        found = [(charge, known(home, charge)) for charge in ledger.of_sweep(sweep)]
    return [_row(charge, what) for charge, what in found]


def _give_back(home: Home, ledger: Ledger, charge: Reservation) -> None:
    """While no driver has the vault, which goes first: a vault never outlives its charge."""
    try:
        vault = Vault.open(home.path, charge.sweep)
    except RequestError:
        vault = None
    with vault if vault is not None else nullcontext():
        if vault is None or not _pays_for(charge, vault):
            ledger.release(charge.id, "given back: never started")
            return
        with alone(vault):
            if _claimed(vault):
                raise RequestError(f"sweep {charge.sweep} was started meanwhile, so its charge stays")
            vault.destroy()
            if charge.started:
                ledger.recover(charge.id, UNTOUCHED)
            else:
                ledger.release(charge.id, "given back: never started")


def known(home: Home, charge: Reservation) -> Known:
    """What ledger and vault say of a charge."""
    if charge.state != RESERVED:
        return Known(known=f"closed: {charge.state}. {charge.reason}".strip(), next="nothing to do", untouched=False)
    vault = _vault(home, charge)
    if not charge.started:
        if vault is not None:
            resume = f"sweeper resume {charge.sweep} runs it; sweeper ledger recover {charge.sweep} --give-back gives it up"
            return Known(known="sealed here, never started: no data was opened", next=resume, untouched=True)
        hold = f"sweeper run FILE --reservation {charge.id[:12]}, or sweeper ledger release {charge.id[:12]}"
        return Known(known="reserved, never started: no data was opened", next=hold, untouched=True)
    if vault is None:
        return Known(
            known="started, and its vault is not in this home: it may have opened data, so it stays charged",
            next="look in the home that ran it",
            untouched=False,
        )
    claimed = vault["claimed"]
    if claimed:
        return Known(
            known="started, and trials were run on the data: it stays charged",
            next=f"sweeper resume {charge.sweep} finishes it without a new charge",
            untouched=False,
        )
    return Known(
        known=f"started, but {UNTOUCHED}",
        next=f"sweeper resume {charge.sweep} runs it; sweeper ledger recover {charge.sweep} --give-back gives it up",
        untouched=True,
    )


def _vault(home: Home, charge: Reservation) -> dict[str, bool] | None:
    """Whether the vault of this very charge is here, and whether any charged trial of it was ever claimed."""
    try:
        with Vault.open(home.path, charge.sweep) as vault:
            if not _pays_for(charge, vault):
                return None
            return {"claimed": _claimed(vault)}
    except RequestError:
        return None


def _pays_for(charge: Reservation, vault: Vault) -> bool:
    """Whether this is the vault of the run that the charge pays for; with nothing started, of the run it would pay for."""
    return bool(vault.meta("reservation") == charge.id and charge.started in ("", vault.meta("run")))


def _claimed(vault: Vault) -> bool:
    """Whether a trial on the private table was ever about to run; a public proxy's trials are not charged."""
    stage = FINAL if vault.meta("plan")["protocol"] == "public-proxy" else None
    return any(row.attempts for row in vault.rows(stage, params=False))


def _row(charge: Reservation, what: Known) -> dict[str, Any]:
    return {
        "reservation": charge.id,
        "sweep": charge.sweep,
        "data_set": charge.data_set,
        "state": charge.state,
        "started": bool(charge.started),
        "epsilon": charge.guarantee["epsilon"],
        "delta": charge.guarantee["delta"],
        "who": charge.who,
        "at": charge.at,
        "known": what.known,
        "next": what.next,
        "may_be_given_back": what.untouched,
    }
