"""Writes the package's files by the rules of the command's outputs.

The command's are in replay-cli/src/terminal/output_file.rs.

A file is complete or not there, the umask decides who may read it, and a file that gpumemtrace did
not write is kept.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from typing import Set

#: The extended attribute of our outputs. Its value is the kind of the output.
_MARK = "user.gpumemtrace.output"

#: The files that this process wrote, for file systems without attributes.
_written: Set[str] = set()


def is_replaceable(path: str, kind: str) -> bool:
    """True if nothing is at the path, or an empty file, or an output of this kind."""
    if not os.path.lexists(path) or os.path.realpath(path) in _written:
        return True
    try:
        if os.path.isfile(path) and os.path.getsize(path) == 0:
            return True
        return sys.platform == "linux" and os.getxattr(path, _MARK) == kind.encode()
    except OSError:
        return False


def free_stem(stem: str, kind: str, *extensions: str) -> str:
    """`stem`, or the first of `stem.1`, `stem.2`, ... with which all files may be written."""
    number, candidate = 0, stem
    while not all(is_replaceable(candidate + extension, kind) for extension in extensions):
        number += 1
        candidate = f"{stem}.{number}"
    return candidate


def write_file(path: str, kind: str, content: bytes) -> None:
    """Writes a file that may be replaced. A link stays, and its target is replaced."""
    path = os.path.realpath(path)
    unfinished = os.path.join(os.path.dirname(path), f".gpumemtrace-{secrets.token_hex(8)}")
    try:
        with open(unfinished, "xb") as file:
            file.write(content)
            # macOS has no such function, and some file systems have no attributes.
            if sys.platform == "linux":
                with contextlib.suppress(OSError):
                    os.setxattr(file.fileno(), _MARK, kind.encode())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    _written.add(path)

