"""What a crate shows to others: few public items in replay, and no idle public module.

The rows of reports do not count: each analysis and each value in JSON needs some.

A public module of a library is idle when no other crate, nor the package's own programs, uses it;
one that only tests or fuzz targets need is marked `#[doc(hidden)]`.
"""

import re

from .result import Result, Violation
from .rust import Crate, crates, expand_use_tree, without_tests

COUNTED_FOLDER = "replay/src/"
ROWS_FOLDER = "replay/src/report/"
LIMIT = 130
_PUBLIC_ITEM = re.compile(r"^\s*pub (const |unsafe |async )*(fn|struct|enum|trait|type|const|static|mod|use) ")
_PUBLIC_MODULE = re.compile(r"^(?P<attributes>(?:[ \t]*#\[[^\n]*\]\n)*)pub mod (?P<name>\w+)", re.M)


def check_count(tree, _exemptions):
    """Public items below replay/src, rows of reports aside: fewer than LIMIT."""
    files = [file for file in tree.by_language("rust")
             if file.path.startswith(COUNTED_FOLDER) and not file.path.startswith(ROWS_FOLDER)]
    per_file = {file: sum(bool(_PUBLIC_ITEM.match(line)) for line in file.text.split("\n")) for file in files}
    total = sum(per_file.values())
    if total < LIMIT:
        return Result(len(files))
    most = sorted(files, key=lambda file: -per_file[file])[:3]
    problem = f"{total} public items (most in {', '.join(f'{file.path}: {per_file[file]}' for file in most)})"
    return Result(len(files), [Violation(COUNTED_FOLDER, 1, problem, f"pub(crate), at most {LIMIT - 1} are public")])


def check_modules(tree, exemptions):
    """Public modules of a library: another crate uses each, or it is #[doc(hidden)]."""
    violations, scanned = [], 0
    found = crates(tree)
    production = [file for file in tree.by_language("rust") if not file.is_test]
    for crate in found:
        library = tree.file(f"{crate.source}lib.rs")
        if library is None:
            continue
        scanned += 1
        code = without_tests(library.lexed.code)
        public = {match.group("name"): match for match in _PUBLIC_MODULE.finditer(code)}
        public = {name: match for name, match in public.items() if not _is_hidden(match)}
        if not public:
            continue
        used = _used_names(crate, production)
        for name, match in public.items():
            if name in used or (crate.name, name) in exemptions.public_modules:
                continue
            line = code.count("\n", 0, match.start("name")) + 1
            problem = f"no other crate uses the public module {crate.name}::{name}"
            violations.append(Violation(library.path, line, problem, "make it private, or #[doc(hidden)] for fuzz and tests"))
    return Result(scanned, violations)


def _is_hidden(match):
    return "doc(hidden)" in match.group("attributes").replace(" ", "")


def _used_names(crate: Crate, files):
    """First path segments behind the crate's name, in code outside of its library."""
    own_programs = (f"{crate.source}main.rs", f"{crate.source}bin/")
    path = re.compile(rf"(?<![\w:]){crate.name}::(?P<rest>\w+|\{{)")
    used = set()
    for file in files:
        if file.path.startswith(crate.source) and not file.path.startswith(own_programs):
            continue
        code = without_tests(file.lexed.code)
        for match in path.finditer(code):
            if match.group("rest") != "{":
                used.add(match.group("rest"))
                continue
            tree = code[match.start("rest") : code.find(";", match.start())]
            used |= {segments[0] for segments in expand_use_tree(tree) if segments}
    return used
