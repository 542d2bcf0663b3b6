"""What `doctor` shows in a terminal: a line for each finding, aligned, and what to do under it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

WORD, NAME = 5, 12  # columns: ok, warn or fail; what was looked at
INDENT = " " * (2 + WORD + 1 + NAME + 1)


def finding_text(finding: Mapping[str, str], width: int = 100) -> str:
    """One finding: its word, its name, what was found; the fix on lines of its own.

    >>> print(finding_text({"word": "fail", "name": "disk", "text": "0 MB free", "fix": "Free space."}))
      fail  disk         0 MB free
                         fix: Free space.
    """
    head = f"  {finding['word']:<{WORD}} {finding['name']:<{NAME}} "
    lines = [_wrapped(finding["text"], head, width)]
    if finding["fix"]:
        lines.append(_wrapped(f"fix: {finding['fix']}", INDENT, width))
    return "\n".join(lines)


def summary(findings: Sequence[Mapping[str, str]]) -> str:
    """The last line."""
    fails, warns = (sum(finding["word"] == word for finding in findings) for word in ("fail", "warn"))
    if not fails and not warns:
        return f"all {len(findings)} checks are fine"
    parts = [f"{fails} to fix"] if fails else ["nothing must be fixed"]
    parts += [f"{warns} warning{'s' if warns > 1 else ''}"] if warns else []
    return ", ".join(parts)


def _wrapped(text: str, first: str, width: int) -> str:
    """Lines under each other; a path or a command is never cut."""
    return textwrap.fill(
        text,
        max(width, len(INDENT) + 40),
        initial_indent=first,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
