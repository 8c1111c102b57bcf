"""Lines of text for terminals."""

from __future__ import annotations

import sys

from ._holders.text import printable

__all__ = ["print_line", "printable"]


def print_line(line: str) -> None:
    """Prints a line of gpumemtrace on stderr, if the program has one."""
    # A service may have closed stderr.
    if sys.stderr is not None:
        print(f"gpumemtrace: {printable(line)}", file=sys.stderr)
