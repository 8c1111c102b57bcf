"""From the names that a user knows to the tensors that have the leaked blocks, by the shortest way.

Constraint: a heap has millions of objects, and asking each who refers to it (`gc.get_referrers`) is a pass over all of them each time.
Consequence: one walk from the roots outwards, level by level, which ends when all blocks are found or the time is up. The program's own
modules and the variables of running functions come first; libraries, and classes that only their objects lead to, when those were
not enough. What is reached is kept alive until the walk ends, and no longer.
"""

import gc
import sys
import sysconfig
import time
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from .frames import OUR_MODULES, main_name, running
from .torch_objects import Torch

#: Objects between two looks at the clock; children of one object, too.
_AT_A_TIME = 256
_CHILDREN_AT_A_TIME = 50_000
#: Most objects: what the walk itself needs is bounded.
_MOST_OBJECTS = 8_000_000
#: Ways to one tensor that are kept.
_MOST_WAYS = 6

_module_dict: Callable[[Any], Dict[str, Any]] = vars(ModuleType)["__dict__"].__get__

Place = Tuple[int, int]


class OutOfTime(Exception):
    """The limit was reached."""


class Walk:
    """One walk. `objects` are what was reached, `parents` the place of the one that led there, -1 for a root."""

    def __init__(self, torch: Torch, wanted: "Dict[Place, int]", deadline: float) -> None:
        self._torch, self._wanted, self._deadline = torch, wanted, deadline
        self.objects: List[Any] = []
        self.parents: List[int] = []
        #: What a root is called, by its place.
        self.roots: Dict[int, str] = {}
        #: By block: the tensors that have it, in the order in which they were reached.
        self.found: Dict[Place, List[int]] = {}
        #: By such a tensor's place: others that lead to it.
        self.ways: Dict[int, List[int]] = {}
        self.is_cut = False
        self._seen: Dict[int, int] = {}
        self._later: Dict[int, Tuple[Any, int]] = {}
        self._missing = set(wanted)

    def run(self) -> None:
        """Walks. Raises nothing but what a signal's handler raises."""
        try:
            libraries = self._add_roots()
            self._until_found(0)
            if self._missing:
                self._add_later(libraries)
        except OutOfTime:
            self.is_cut = True

    def missing(self) -> "Set[Place]":
        """Blocks that no name leads to."""
        return self._missing

    def _add_roots(self) -> "List[Tuple[str, Any]]":
        modules = [(name, module) for name, module in list(sys.modules.items()) if _is_module(module)]
        for _, module in modules:
            # Each is a root of its own: nothing leads through one to another.
            self._seen.setdefault(id(module), -1)
        own: List[Tuple[str, Any]] = []
        libraries: List[Tuple[str, Any]] = []
        folders = _library_folders()
        for name, module in modules:
            names = _module_dict(module)
            if type(name) is not str or name.split(".", 1)[0] in OUR_MODULES or id(names) in self._seen:
                continue
            self._seen[id(names)] = -1
            if name == "__main__":
                own.insert(0, (main_name(names), names))
            else:
                (own if _is_own(names, folders) else libraries).append((name, names))
        for name, names in own:
            self._add_root(name, names)
        for name, variables in running():
            self._add_root(name, variables)
        return libraries

    def _add_root(self, name: str, names: Dict[str, Any]) -> None:
        self.roots[len(self.objects)] = name
        self.objects.append(names)
        self.parents.append(-1)

    def _add_later(self, libraries: "List[Tuple[str, Any]]") -> None:
        start = len(self.objects)
        for name, names in libraries:
            self._add_root(name, names)
        later, self._later = self._later, {}
        for thing, parent in later.values():
            if id(thing) not in self._seen:
                self._add(thing, parent)
        self._until_found(start)

    def _until_found(self, at: int) -> None:
        objects, torch = self.objects, self._torch
        deadline, now = self._deadline, time.monotonic
        while at < len(objects) and self._missing:
            if at % _AT_A_TIME == 0 and (now() > deadline or len(objects) > _MOST_OBJECTS):
                raise OutOfTime
            thing = objects[at]
            kind = type(thing)
            # A class's own objects would lead from any of them to all that it has.
            self._take(gc.get_referents(thing), at, kind)
            if torch.is_tensor(kind):
                self._take_beyond(torch.beyond(thing), at)
            elif torch.is_node(kind):
                self._take_beyond(torch.behind(thing), at)
            at += 1

    def _take(self, children: List[Any], parent: int, kind: type) -> None:
        if len(children) > _CHILDREN_AT_A_TIME:
            for start in range(0, len(children), _CHILDREN_AT_A_TIME):
                if time.monotonic() > self._deadline:
                    raise OutOfTime
                self._take_some(children[start : start + _CHILDREN_AT_A_TIME], parent, kind)
        else:
            self._take_some(children, parent, kind)

    def _take_some(self, children: List[Any], parent: int, kind: type) -> None:
        seen, is_tracked, is_tensor, add = self._seen, gc.is_tracked, self._torch.is_tensor, self._add
        for child in children:
            if not is_tracked(child):
                continue
            known = seen.get(id(child))
            if known is not None:
                if known in self.ways:
                    self._also(known, parent)
            elif child is kind:
                self._later.setdefault(id(child), (child, parent))
            else:
                add(child, parent)

    def _take_beyond(self, children: "Iterator[Any] | List[Any]", parent: int) -> None:
        for child in children:
            known = self._seen.get(id(child))
            if child is None or known is not None:
                if known in self.ways:
                    self._also(known, parent)
                continue
            self._add(child, parent)

    def _also(self, place: "Optional[int]", parent: int) -> None:
        ways = self.ways[place]  # type: ignore[index]
        if len(ways) < _MOST_WAYS and parent not in ways:
            ways.append(parent)

    def _add(self, child: Any, parent: int) -> None:
        place = len(self.objects)
        self._seen[id(child)] = place
        self.objects.append(child)
        self.parents.append(parent)
        if self._torch.is_tensor(type(child)):
            block = self._torch.storage(child)
            if block is not None and block in self._wanted:
                self.found.setdefault(block, []).append(place)
                self.ways[place] = [parent]
                self._missing.discard(block)


def owned(torch: Torch, blocks: "Set[Place]") -> "Set[Place]":
    """Those of the blocks that some tensor of Python's has, whether a name leads to it or not."""
    found = set()
    for thing in gc.get_objects():
        if torch.is_tensor(type(thing)):
            block = torch.storage(thing)
            if block in blocks:
                found.add(block)
    return found


def _is_module(thing: Any) -> bool:
    try:
        return type(_module_dict(thing)) is dict
    except TypeError:
        return False


def _library_folders() -> "Tuple[str, ...]":
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    return tuple(folder.rstrip("/") + "/" for folder in folders if folder)


def _is_own(names: Dict[str, Any], folders: "Tuple[str, ...]") -> bool:
    """Of a module: whether it is the program's own, and no library's."""
    file = names.get("__file__")
    if type(file) is not str:
        return False
    if "/site-packages/" in file or "/dist-packages/" in file:
        return False
    return not file.startswith(folders)
