"""Rust crates as modules: production code without tests, `use` trees, names that a module defines.

A module is a file: `src/a/b.rs` and `src/a/b/mod.rs` are `("a", "b")`, `src/lib.rs` is `()`.
Inline modules belong to their file. Code under `#[cfg(test)]` or `#[cfg(loom)]` is blanked.
"""

import re
from functools import cached_property, lru_cache

from .lexer import line_of

_TEST_ATTRIBUTE = re.compile(r"#!?\[cfg\((?:all\()?\s*(?:test|loom)\b[^\]]*\]")
_OTHER_ATTRIBUTES = re.compile(r"(?:\s*#\[[^\]]*\])*")
_ITEM = re.compile(
    r"\b(?:fn|struct|enum|union|trait|type|const|static|mod|macro_rules!)\s+(?:mut\s+)?(?P<name>[A-Za-z_]\w*)"
)
_USE = re.compile(r"\buse\s+(?P<tree>[^;]+);")
_PATH = re.compile(r"(?<![\w:$])(?:crate|super|self)(?:::(?:super|[A-Za-z_]\w*))+")
_PACKAGE_NAME = re.compile(r'^name\s*=\s*"([^"]+)"', re.M)


class RustModule:
    """One module: its file, its code and what the file imports."""

    def __init__(self, path, file):
        self.path = path
        self.file = file
        self.code = without_tests(file.lexed.code)

    @cached_property
    def defined(self):
        """Names of the items that the file defines, at any depth."""
        return {match.group("name") for match in _ITEM.finditer(self.code)}

    @cached_property
    def imports(self):
        """Pairs (path segments, offset) of every `use`, nested trees written out."""
        return [
            (segments, match.start())
            for match in _USE.finditer(self.code)
            for segments in expand_use_tree(match.group("tree"))
        ]

    @cached_property
    def import_names(self):
        """What `use` brings into the module: local name -> path; and the paths of its globs."""
        names, globs = {}, []
        for segments, _ in self.imports:
            path, _, alias = segments[-1].partition(" as ")
            if path == "*":
                globs.append(segments[:-1])
            elif path == "self":
                names[(alias or segments[-2]).strip()] = segments[:-1]
            else:
                names[(alias or path).strip()] = [*segments[:-1], path]
        return names, globs

    @cached_property
    def inline_paths(self):
        """Pairs (path segments, offset) of `crate::`, `super::` and `self::` paths in the code."""
        return [(match.group().split("::"), match.start()) for match in _PATH.finditer(self.code)]

    def line(self, offset):
        return line_of(self.file.lexed, offset)


class Crate:
    """A package folder with its library's modules; test modules are left out."""

    def __init__(self, tree, folder):
        self.folder = folder
        manifest = tree.file(f"{folder}/Cargo.toml".lstrip("/"))
        self.name = _crate_name(manifest.text)
        self.source = f"{folder}/src/".lstrip("/")
        found = {}
        for file in tree.by_language("rust"):
            inside = file.path.startswith(self.source)
            if inside and not file.is_test and not file.path[len(self.source) :].startswith("bin/"):
                found.setdefault(_module_path(file.path[len(self.source) :]), RustModule((), file))
        for path, module in found.items():
            module.path = path
        self.modules = {path: module for path, module in found.items() if not self._is_declared_for_tests(path, found)}

    @staticmethod
    def _is_declared_for_tests(path, found):
        """Whether the module or one of its parents is declared under `#[cfg(test)]`."""
        for depth in range(1, len(path) + 1):
            parent = found.get(path[: depth - 1])
            declaration = re.compile(rf"\bmod\s+{path[depth - 1]}\s*;")
            if parent and declaration.search(parent.file.lexed.code) and not declaration.search(parent.code):
                return True
        return False

    @property
    def root(self):
        return self.modules.get(())

    def resolve(self, segments, module, depth=0):
        """The module that defines what `segments`, used in `module`, names; None outside the crate."""
        if depth > 8:
            return None
        position, rest = self._start(list(segments), module)
        if position is None:
            return None
        while rest and (*position, rest[0]) in self.modules:
            position, rest = (*position, rest[0]), rest[1:]
        owner = self.modules.get(position)
        if owner is None or not rest or rest[0] in ("*", "self") or rest[0] in owner.defined:
            return position
        return self._through_reexports(owner, rest, depth) or position

    def _start(self, segments, module):
        """Where a path begins: a module's path and the segments that are left."""
        head = segments[0]
        if head == "crate":
            return (), segments[1:]
        position, rest = module.path, segments
        if head == "self":
            rest = rest[1:]
        elif head == "super":
            while rest and rest[0] == "super":
                position, rest = position[:-1], rest[1:]
        elif (*module.path, head) not in self.modules:
            return None, rest
        return position, rest

    def _through_reexports(self, owner, rest, depth):
        names, globs = owner.import_names
        if rest[0] in names and names[rest[0]] != list(rest):
            return self.resolve(names[rest[0]] + list(rest[1:]), owner, depth + 1)
        for glob in globs:
            target = self.resolve(glob, owner, depth + 1)
            if target is not None and target != owner.path and rest[0] in self.modules[target].defined:
                return target
        return None


def crates(tree, exclude=()):
    """Every crate with Rust files below `src/`, but those in or below the folders in `exclude`."""
    return [crate for crate in _all_crates(tree) if not (crate.folder + "/").startswith(tuple(f"{e}/" for e in exclude))]


@lru_cache(maxsize=1)
def _all_crates(tree):
    manifests = [path for path in tree.paths if path.rpartition("/")[2] == "Cargo.toml"]
    packages = [path.rpartition("/")[0] for path in manifests if _PACKAGE_NAME.search(tree.file(path).text)]
    return [crate for crate in (Crate(tree, folder) for folder in packages) if crate.modules]


def without_tests(code):
    """`code` with every item under `#[cfg(test)]` blanked; all of it under `#![cfg(test)]`."""
    position = 0
    while True:
        match = _TEST_ATTRIBUTE.search(code, position)
        if not match:
            return code
        if match.group().startswith("#!"):
            return re.sub(r"[^\n]", " ", code)
        end = item_end(code, _OTHER_ATTRIBUTES.match(code, match.end()).end())
        code = code[: match.start()] + re.sub(r"[^\n]", " ", code[match.start() : end]) + code[end:]
        position = end


def item_end(code, start):
    """The offset behind the item at `start`: behind its `;`, or its closing brace."""
    depth = 0
    for match in re.compile(r"[{}();\[\],]").finditer(code, start):
        sign = match.group()
        if sign in "{([":
            depth += 1
        elif sign in "})]":
            depth -= 1
            if depth == 0 and sign == "}":
                return match.end()
            if depth < 0:
                return match.start()
        elif depth == 0 and sign in ";,":
            return match.end()
    return len(code)


def expand_use_tree(text):
    """`a::{b, c::{self, d as e}}` as [["a","b"], ["a","c","self"], ["a","c","d as e"]]."""
    text = " ".join(text.split())
    brace = text.find("{")
    if brace < 0:
        return [[part.strip() for part in text.split("::") if part.strip()]]
    prefix = [part.strip() for part in text[:brace].split("::") if part.strip()]
    paths, depth, start = [], 0, brace + 1
    for index in range(brace, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
        if (text[index] == "," and depth == 1) or depth == 0:
            part = text[start:index].strip()
            if part:
                paths += [prefix + path for path in expand_use_tree(part)]
            start = index + 1
        if depth == 0:
            break
    return paths


def _module_path(relative):
    parts = relative[: -len(".rs")].split("/")
    if parts[-1] == "mod" or parts in (["lib"], ["main"]):
        parts.pop()
    return tuple(parts)


def _crate_name(manifest):
    """The library's name where `[lib]` gives one, else the package's, with underscores."""
    library = manifest.partition("[lib]")[2].split("\n[")[0]
    name = _PACKAGE_NAME.search(library) or _PACKAGE_NAME.search(manifest)
    return name.group(1).replace("-", "_")
