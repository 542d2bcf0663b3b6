"""Published files that no package index holds: the user brings them; where the publisher states an MD5, it is checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from sweeper.checks import RequestError
from sweeper.data.fetch import DataFile, PublishedFiles


@dataclass(frozen=True, kw_only=True)
class GivenFiles(PublishedFiles):
    """Files under `$SWEEPER_DATA/<kind>/` or `<cache>/data/<kind>/`, with the names that their usual library gives them."""

    published: str  # where to get them, for the user
    md5: Mapping[str, str] = field(default_factory=dict)  # as that library states them

    def fetch(self, cache: str) -> list[str]:
        """The paths, once the user has put the files there.

        Raises:
          RequestError: a file is missing, or is not the published one.
        """
        missing = [file.name for file in self.files if self.find(cache, file) is None]
        if missing:
            place = os.path.join(os.environ.get("SWEEPER_DATA") or os.path.join(cache, "data"), self.kind)
            raise RequestError(
                f"{self.kind}: {missing[0]} is not here, and no package index holds it. Get it from {self.published}, and put it "
                f"into {place}; SWEEPER_DATA may name another folder above {self.kind}"
            )
        for file, path in zip(self.files, self.paths(cache), strict=True):
            if file.name in self.md5:
                with open(path, "rb") as content:
                    got = hashlib.file_digest(content, "md5").hexdigest()
                if got != self.md5[file.name]:
                    raise RequestError(f"{path} has not the published MD5 {self.md5[file.name]}: not the published file")
        return self.paths(cache)


def given(kind: str, names: tuple[str, ...], published: str, md5: Mapping[str, str] | None = None) -> GivenFiles:
    """Files of which neither size nor SHA-256 is known here."""
    files = tuple(DataFile(name=name, size=0, sha256="") for name in names)
    return GivenFiles(kind=kind, files=files, origins=(), published=published, md5=md5 or {})
