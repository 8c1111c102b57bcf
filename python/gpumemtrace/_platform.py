"""Differences between Linux and macOS: the library's file name and the preload variable.

Each function takes the platform, in the form of `sys.platform`, so that tests on Linux cover both.
"""

from __future__ import annotations

import os
import sys
from typing import Dict, Mapping


def library_name(platform: str = sys.platform) -> str:
    """The file name of the recording library."""
    return "libgpumemtrace.dylib" if platform == "darwin" else "libgpumemtrace.so"


def untraced(environment: Mapping[str, str], platform: str = sys.platform) -> Dict[str, str]:
    """A copy of the environment that does not preload the recording library.

    Other preloaded libraries stay. The command runs in this environment, so it is not recorded.
    """
    is_mac = platform == "darwin"
    variable = "DYLD_INSERT_LIBRARIES" if is_mac else "LD_PRELOAD"
    rest = dict(environment)
    value = rest.pop(variable, "")
    # glibc's loader accepts spaces as separators too; on macOS a path may contain spaces.
    entries = value.split(":") if is_mac else value.replace(":", " ").split()
    others = [entry for entry in entries if entry and os.path.basename(entry) != library_name(platform)]
    if others:
        rest[variable] = ":".join(others)
    return rest
