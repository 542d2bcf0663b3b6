"""Where a ledger is: an SQLite file or a PostgreSQL database. What is shown of an address never holds a password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus, unquote

from sweeper import checks
from sweeper.checks import FieldError

if TYPE_CHECKING:
    from sqlalchemy import URL

VARIABLE = "SWEEPER_LEDGER_URI"
SQLITE = "sqlite:///"
POSTGRESQL = ("postgresql+psycopg", "postgresql", "postgres")  # all by way of psycopg 3
_RULE = "must be sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"


@dataclass(frozen=True, kw_only=True)
class Address:
    """A file, or else the URI of a PostgreSQL database."""

    file: Path | None = None
    uri: str = field(default="", repr=False)

    def __str__(self) -> str:
        """For messages: the file, or the URI without its password and without options, which may hold one."""
        if self.file is not None:
            return str(self.file)
        url = self.url()
        shown = {key: value for key, value in url.query.items() if key in ("host", "port")}
        return url.set(query=shown).render_as_string(hide_password=True)

    def url(self) -> URL:
        """The URI of a PostgreSQL database as SQLAlchemy takes it.

        Raises:
          FieldError: it cannot be read as one. The text of it is not shown, for it may hold a password.
        """
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            url = make_url(self.uri)
        except (ArgumentError, ValueError):
            url = None
        if url is None or "@" in (url.host or ""):
            hint = "In a password, write @ as %40, / as %2F, : as %3A and % as %25."
            raise FieldError(VARIABLE, checks.MISSING, _RULE, hint)
        return url.set(drivername=POSTGRESQL[0])

    def hide(self, text: str) -> str:
        """`text` without the passwords of this address, however they are written."""
        if self.file is not None:
            return text
        url = self.url()
        secrets = [url.password, *(value for key, value in url.query.items() if "password" in key)]
        for secret in (str(s) for s in secrets if s):
            for written in (secret, quote(secret, safe=""), quote_plus(secret)):
                text = text.replace(written, "***")
        return text


def address(where: str | Path) -> Address:
    """The address in a path or a URI.

    Raises:
      FieldError: a URI of another kind of database.
    """
    if isinstance(where, Path):
        return Address(file=where)
    scheme, separator, rest = where.partition("://")
    if not separator:
        if not where.startswith(("/", "./", "../", "~")):  # a URI that lost its scheme would become a file, password and all
            raise FieldError(
                VARIABLE, checks.MISSING, _RULE, "Write a file as sqlite:///PATH, or as a path that starts with / or ./"
            )
        return Address(file=Path(where))
    if scheme in POSTGRESQL:
        found = Address(uri=where)
        found.url()
        return found
    if where.startswith(SQLITE) and (name := unquote(where.removeprefix(SQLITE).partition("?")[0])):
        return Address(file=Path(name))
    shown = f"{scheme}://..." if rest and re.fullmatch(r"[a-z0-9+]+", scheme) else checks.MISSING
    raise FieldError(VARIABLE, shown, _RULE)
