"""The files of a source tree, each read and split into comments and code once.

`Tree(root)` lists what git tracks plus new files that git does not ignore. A tree without git
is walked instead. Each `SourceFile` knows its language and whether it is test code.
"""

import os
import re
import subprocess
from functools import cached_property

from . import lexer

LANGUAGE_OF_SUFFIX = {
    ".rs": "rust",
    ".py": "python",
    ".sh": "shell",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".c": "c",
    ".cc": "c",
    ".cpp": "c",
    ".h": "c",
    ".m": "c",
    ".md": "markdown",
}
# Folders whose files are data: recorded traces, fuzzing inputs, snapshots of test output.
DATA_FOLDERS = re.compile(r"(^|/)(fuzz/corpus|tests/golden|snapshots|tests/data)/")
# The vocabulary checks and their test quote the words that they search for.
OWN_FILES = re.compile(r"^(scripts/style$|scripts/checks/style_checks/|tests/style/)")
TEST_PATH = re.compile(r"(^|/)(tests?|benches|fuzz)/|(^|/)(tests|conftest|test_\w+|\w+_tests?)\.\w+$")


class SourceFile:
    """One text file: `path` relative to the root, its text and what the lexer makes of it."""

    def __init__(self, root, path):
        self.path = path
        self._full_path = os.path.join(root, path)

    @cached_property
    def text(self):
        with open(self._full_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    @cached_property
    def language(self):
        """A value of LANGUAGE_OF_SUFFIX or None. Scripts without a suffix are told by `#!`."""
        suffix = os.path.splitext(self.path)[1]
        if suffix in LANGUAGE_OF_SUFFIX:
            return LANGUAGE_OF_SUFFIX[suffix]
        if suffix:
            return None
        with open(self._full_path, "rb") as file:
            first_line = file.readline(200)
        if first_line.startswith(b"#!"):
            if b"python" in first_line:
                return "python"
            if b"sh" in first_line:
                return "shell"
        return None

    @cached_property
    def lexed(self):
        return lexer.lex(self.text, self.language)

    @property
    def is_test(self):
        """Whether the file is part of tests, benches or fuzz targets."""
        return bool(TEST_PATH.search(self.path))


class Tree:
    """All files below `root`, sorted by path."""

    def __init__(self, root):
        self.root = os.path.abspath(root)
        self.paths = sorted(_git_paths(self.root) or _walked_paths(self.root))
        self.files = [
            file
            for file in (SourceFile(self.root, path) for path in self.paths)
            if not DATA_FOLDERS.search(file.path) and file.language
        ]

    def by_language(self, *languages):
        return [file for file in self.files if file.language in languages]

    def prose(self):
        """Files whose wording is checked: all but this tool and its test, which quote bad words."""
        return [file for file in self.files if not OWN_FILES.match(file.path)]

    def file(self, path):
        """The source file at `path`, or None."""
        return self._by_path.get(path)

    @cached_property
    def _by_path(self):
        return {file.path: file for file in self.files}


def git(root, *arguments):
    """Output of a git command in `root`, or None where it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", root, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _git_paths(root):
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        return None
    paths = {path for path in listed.split("\0") if path}
    return [path for path in paths if os.path.isfile(os.path.join(root, path))]


def _walked_paths(root):
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", "target", "__pycache__")]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return found
