"""The published files that are here: which, and whether they are whole. No table is built of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from sweeper import catalog
from sweeper.checks import RequestError
from sweeper.data import efficientnet, minilm
from sweeper.data.fetch import PublishedFiles
from sweeper.doctor.finding import FAIL, OK, Verdict
from sweeper.store.home import Home

CHEAP = 200_000_000  # bytes on disk whose hash is taken: about a second


def files(home: Home) -> Iterator[Verdict]:
    """A line for all that are whole, one for each that is torn."""
    whole, large, torn, cache = [], [], [], str(home.cache)
    for kind, published in known().items():
        if not published.present(cache):
            continue
        if sum(map(os.path.getsize, published.paths(cache))) > CHEAP:
            large.append(kind)
            continue
        try:
            verified(published, cache)
            whole.append(kind)
        except RequestError as error:
            text, _, fix = str(error).partition(". ")
            torn.append(Verdict(FAIL, text, fix or f"Delete it and run: sweeper data fetch {kind}"))
    yield from torn
    parts = [f"whole: {', '.join(whole)}"] if whole else []
    parts += [f"here, and too large to be read now: {', '.join(large)}"] if large else []
    if parts or not torn:
        yield Verdict(OK, "; ".join(parts) or "nothing fetched yet; sweeper run fetches what it needs")


def known() -> dict[str, PublishedFiles]:
    """Kind -> its files, of all published sources and frozen networks."""
    sources = {kind: files_of(catalog.resolve("data", kind)()) for kind in catalog.published()}
    networks = {minilm.NAME: minilm.WEIGHTS, efficientnet.NAME: efficientnet.WEIGHTS}
    return {kind: found for kind, found in {**sources, **networks}.items() if found is not None}


def files_of(source: Any) -> PublishedFiles | None:
    """The published files of a source; None of a table of the user's own."""
    found = getattr(source, "files", None) or getattr(sys.modules[type(source).__module__], "FILES", None)
    return found if isinstance(found, PublishedFiles) else None


def verified(published: PublishedFiles, cache: str) -> None:
    """Compare the files with what is pinned of them; of files that the user brings, with what their publisher states.

    Raises:
      RequestError: names the file and the way out.
    """
    if all(file.sha256 for file in published.files):
        published.verify(cache)
    else:
        published.fetch(cache)  # all are here, so that nothing is fetched
