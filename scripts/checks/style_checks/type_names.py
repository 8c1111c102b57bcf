"""A type name has one meaning in all production crates.

Alternatives for one platform count once: files that differ only in a platform's folder or name,
and definitions in one file of which each stands under a `#[cfg]`.
"""

import re
from collections import defaultdict

from .result import Result, Violation
from .rust import crates

# The simulated GPU and the fuzz targets are tools of the tests.
NOT_PRODUCTION = ("simgpu", "fuzz")
_TYPE = re.compile(r"\b(struct|enum|union|trait|type)\s+(?P<name>[A-Z]\w*)(?P<after>\s*[^\n]?)")
_PLATFORM = re.compile(r"\b(linux|macos|mac|unix|x86_64|aarch64|arm64)\b")
_CFG_BEFORE = re.compile(r"#\[cfg[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?$")


def check(tree, exemptions):
    places, scanned = defaultdict(list), 0
    for crate in crates(tree, exclude=NOT_PRODUCTION):
        for module in crate.modules.values():
            scanned += 1
            for name, line, has_cfg in definitions(module):
                places[name].append((module.file.path, line, has_cfg))
    violations = []
    for name, found in sorted(places.items()):
        if name in exemptions.type_names or len(_meanings(found)) < 2:
            continue
        for path, line, _ in found:
            others = sorted({other for other, _, _ in found if other != path}) or ["the same file"]
            problem = f"type name {name} is defined {len(found)} times (also in {', '.join(others)})"
            violations.append(Violation(path, line, problem, "qualify it, or share one type"))
    return Result(scanned, violations)


def definitions(module):
    """Triples (name, line, stands under a cfg) of the types that the module defines."""
    depth_of = _impl_depths(module.code)
    for match in _TYPE.finditer(module.code):
        if match.group(1) == "type" and depth_of(match.start()):
            continue
        before = module.code[max(0, match.start() - 300) : match.start()]
        yield match.group("name"), module.line(match.start()), bool(_CFG_BEFORE.search(before))


def _impl_depths(code):
    """A function that tells whether an offset lies inside an `impl`, `trait` or function body."""
    bodies = []
    for match in re.finditer(r"\b(?:impl|trait|fn)\b[^;{}]*\{", code):
        if bodies and match.start() < bodies[-1][1]:
            continue
        depth, end = 0, len(code)
        for brace in re.compile(r"[{}]").finditer(code, match.end() - 1):
            depth += 1 if brace.group() == "{" else -1
            if depth == 0:
                end = brace.end()
                break
        bodies.append((match.end(), end))
    return lambda offset: any(start <= offset < end for start, end in bodies)


def _meanings(found):
    """The definitions that are left when alternatives for other platforms count once."""
    meanings = {(_PLATFORM.sub("PLATFORM", path), line, has_cfg) for path, line, has_cfg in found}
    by_file = defaultdict(list)
    for path, line, has_cfg in meanings:
        by_file[path].append((line, has_cfg))
    result = []
    for path, entries in by_file.items():
        platform_file = "PLATFORM" in path
        if platform_file or all(has_cfg for _, has_cfg in entries):
            result.append((path, 0))
        else:
            result += [(path, line) for line, _ in entries]
    return result
