"""What is another matter on macOS: the file of the library, and how it gets into a program.

Constraint: what is done on a Mac is to be tried where there is none. Consequence: the system is an argument, as `sys.platform` has it.
"""

from __future__ import annotations

import os
import sys
from typing import Dict, Mapping


def library_name(platform: str = sys.platform) -> str:
    """The file name of the library."""
    return "libgpumemtrace.dylib" if platform == "darwin" else "libgpumemtrace.so"


def untraced(environment: Mapping[str, str], platform: str = sys.platform) -> Dict[str, str]:
    """This environment, without our library among what is loaded before others: a reader has nothing to record."""
    is_mac = platform == "darwin"
    variable = "DYLD_INSERT_LIBRARIES" if is_mac else "LD_PRELOAD"
    rest = dict(environment)
    value = rest.pop(variable, "")
    # glibc's loader takes spaces for separators too; macOS has paths with spaces.
    entries = value.split(":") if is_mac else value.replace(":", " ").split()
    others = [entry for entry in entries if entry and os.path.basename(entry) != library_name(platform)]
    if others:
        rest[variable] = ":".join(others)
    return rest
