"""Makes text safe for terminals."""

from __future__ import annotations

import sys


def printable(text: str) -> str:
    """One line without control characters and direction marks: these are written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def print_line(line: str) -> None:
    """Prints a line of gpumemtrace on stderr, if the program has one."""
    # A service may have closed stderr.
    if sys.stderr is not None:
        print(f"gpumemtrace: {printable(line)}", file=sys.stderr)
