"""Paths of this repository that prose names in backticks exist.

A path counts as ours if it begins with a folder at the top of the repository. Comments may also
name a path relative to their crate or to any folder above their file.
"""

import posixpath
import re

from .result import Result, Violation

_QUOTED = re.compile(r"`([\w.-]+(?:/[\w.-]+)+/?)`")


def check(tree, exemptions):
    known = set(tree.paths)
    for path in tree.paths:
        while "/" in path:
            path = posixpath.dirname(path)
            known.add(path)
    top_folders = {path.split("/")[0] for path in tree.paths if "/" in path}
    violations, scanned = [], 0
    for file in tree.prose():
        for line in file.lexed.comments:
            for quoted in _QUOTED.findall(line.text):
                scanned += 1
                if quoted.split("/")[0] not in top_folders or _exists(quoted, file.path, known):
                    continue
                if quoted in exemptions.absent_paths:
                    continue
                violations.append(
                    Violation(file.path, line.number, f"no file or folder `{quoted}`", "name the file that exists")
                )
    return Result(scanned, violations)


def _exists(quoted, file_path, known):
    """Whether the path exists from the root or from a folder above the file."""
    quoted = quoted.rstrip("/")
    folder = file_path
    while True:
        folder = posixpath.dirname(folder)
        if posixpath.normpath(posixpath.join(folder, quoted)) in known:
            return True
        if not folder:
            return False
