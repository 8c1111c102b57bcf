"""A breadth-first search from the program's names to the tensors that own the leaked blocks.

A heap has millions of objects, and `gc.get_referrers` scans all of them at each call. So there is
one search from the roots outwards, which ends when all blocks are found or the time is up. Roots
are first the program's own modules and the variables of running functions. Optimizers and
libraries follow if these were not enough, and so do classes that only their instances lead to.
Every reached object is kept alive until the search ends, and no longer.
"""

import gc
import sys
import sysconfig
import time
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from .frames import OUR_MODULES, main_module_name, running_functions
from .torch_objects import TorchObjects

#: Objects between two checks of the clock.
_OBJECTS_PER_CHECK = 256
#: Children of one object between two checks of the clock.
_CHILDREN_PER_CHECK = 50_000
#: Bounds the memory of the search itself.
_MAX_OBJECTS = 8_000_000
#: Parents kept per tensor.
_MAX_PARENTS = 6

_module_dict: Callable[[Any], Dict[str, Any]] = vars(ModuleType)["__dict__"].__get__

#: Device and address of a block.
BlockAddress = Tuple[int, int]


class OutOfTime(Exception):
    """The deadline has passed, or too many objects were reached."""


class ReferenceSearch:
    """One search. Reached objects are identified by their index in `objects`."""

    def __init__(self, torch: TorchObjects, wanted: "Dict[BlockAddress, int]", deadline: float) -> None:
        self._torch, self._wanted, self._deadline = torch, wanted, deadline
        self.objects: List[Any] = []
        #: By object: the object that led to it; -1 for a root.
        self.parents: List[int] = []
        #: By root object: its name.
        self.roots: Dict[int, str] = {}
        #: By block: the tensors that own it, in the order in which they were reached.
        self.found: Dict[BlockAddress, List[int]] = {}
        #: By such a tensor: all kept parents.
        self.tensor_parents: Dict[int, List[int]] = {}
        self.is_cut = False
        self._seen: Dict[int, int] = {}
        self._deferred_classes: Dict[int, Tuple[Any, int]] = {}
        self._deferred_optimizers: Dict[int, Tuple[Any, int]] = {}
        self._missing = set(wanted)

    def run(self) -> None:
        """Searches. Raises nothing itself; a signal handler of the program may raise."""
        try:
            libraries = self._add_program_roots()
            self._search_from(0)
            if self._missing:
                self._search_optimizers()
            if self._missing:
                self._search_libraries(libraries)
            if self._missing:
                self._search_optimizers()
        except OutOfTime:
            self.is_cut = True

    def missing(self) -> "Set[BlockAddress]":
        """Blocks that no path leads to."""
        return self._missing

    def _add_program_roots(self) -> "List[Tuple[str, Any]]":
        """Adds the program's own modules and running functions. Returns the library modules."""
        modules = [(name, module) for name, module in list(sys.modules.items()) if _is_module(module)]
        for _, module in modules:
            # Each module is a root, so no path goes through one module to another.
            self._seen.setdefault(id(module), -1)
        own: List[Tuple[str, Any]] = []
        libraries: List[Tuple[str, Any]] = []
        folders = library_folders()
        for name, module in modules:
            names = _module_dict(module)
            if type(name) is not str or name.split(".", 1)[0] in OUR_MODULES or id(names) in self._seen:
                continue
            self._seen[id(names)] = -1
            if name == "__main__":
                own.insert(0, (main_module_name(names), names))
            else:
                (own if is_program_module(names, folders) else libraries).append((name, names))
        for name, names in own:
            self._add_root(name, names)
        for name, variables in running_functions():
            self._add_root(name, variables)
        return libraries

    def _add_root(self, name: str, names: Dict[str, Any]) -> None:
        self.roots[len(self.objects)] = name
        self.objects.append(names)
        self.parents.append(-1)

    def _search_optimizers(self) -> None:
        """Their groups list all parameters, which have better names in their model."""
        start = len(self.objects)
        deferred, self._deferred_optimizers = self._deferred_optimizers, {}
        for optimizer, parent in deferred.values():
            self._add(optimizer, parent)
        self._search_from(start)

    def _search_libraries(self, libraries: "List[Tuple[str, Any]]") -> None:
        start = len(self.objects)
        for name, names in libraries:
            self._add_root(name, names)
        deferred, self._deferred_classes = self._deferred_classes, {}
        for thing, parent in deferred.values():
            if id(thing) not in self._seen:
                self._add(thing, parent)
        self._search_from(start)

    def _search_from(self, at: int) -> None:
        objects, torch = self.objects, self._torch
        deadline, now = self._deadline, time.monotonic
        while at < len(objects) and self._missing:
            if at % _OBJECTS_PER_CHECK == 0 and (now() > deadline or len(objects) > _MAX_OBJECTS):
                raise OutOfTime
            thing = objects[at]
            kind = type(thing)
            self._add_referents(gc.get_referents(thing), at, kind)
            if torch.is_tensor_type(kind):
                self._add_torch_referents(torch.tensor_referents(thing), at)
            elif torch.is_node_type(kind):
                self._add_torch_referents(torch.node_referents(thing), at)
            at += 1

    def _add_referents(self, children: List[Any], parent: int, kind: type) -> None:
        if len(children) > _CHILDREN_PER_CHECK:
            for start in range(0, len(children), _CHILDREN_PER_CHECK):
                if time.monotonic() > self._deadline:
                    raise OutOfTime
                self._add_some(children[start : start + _CHILDREN_PER_CHECK], parent, kind)
        else:
            self._add_some(children, parent, kind)

    def _add_some(self, children: List[Any], parent: int, kind: type) -> None:
        seen, is_tracked, add = self._seen, gc.is_tracked, self._add
        for child in children:
            if not is_tracked(child):
                continue
            known = seen.get(id(child))
            if known is not None:
                if known in self.tensor_parents:
                    self._add_parent(known, parent)
            elif child is kind:
                # A path from an object through its class to all that the class holds comes last.
                self._deferred_classes.setdefault(id(child), (child, parent))
            elif self._torch.is_optimizer_type(type(child)) and id(child) not in self._seen:
                self._deferred_optimizers.setdefault(id(child), (child, parent))
            else:
                add(child, parent)

    def _add_torch_referents(self, children: "Iterator[Any] | List[Any]", parent: int) -> None:
        for child in children:
            known = self._seen.get(id(child))
            if child is None or known is not None:
                if known in self.tensor_parents:
                    self._add_parent(known, parent)
                continue
            self._add(child, parent)

    def _add_parent(self, tensor: "Optional[int]", parent: int) -> None:
        parents = self.tensor_parents[tensor]  # type: ignore[index]
        if len(parents) < _MAX_PARENTS and parent not in parents:
            parents.append(parent)

    def _add(self, child: Any, parent: int) -> None:
        at = len(self.objects)
        self._seen[id(child)] = at
        self.objects.append(child)
        self.parents.append(parent)
        if self._torch.is_tensor_type(type(child)):
            block = self._torch.storage_address(child)
            if block is not None and block in self._wanted:
                self.found.setdefault(block, []).append(at)
                self.tensor_parents[at] = [parent]
                self._missing.discard(block)


def blocks_with_tensor(torch: TorchObjects, blocks: "Set[BlockAddress]") -> "Set[BlockAddress]":
    """Those of the blocks that a Python tensor owns, whether a path leads to it or not."""
    found = set()
    for thing in gc.get_objects():
        if torch.is_tensor_type(type(thing)):
            block = torch.storage_address(thing)
            if block in blocks:
                found.add(block)
    return found


def _is_module(thing: Any) -> bool:
    try:
        return type(_module_dict(thing)) is dict
    except TypeError:
        return False


def library_folders() -> "Tuple[str, ...]":
    """The folders of the standard library, each with a slash at its end."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    return tuple(folder.rstrip("/") + "/" for folder in folders if folder)


def is_program_module(names: Dict[str, Any], folders: "Tuple[str, ...]") -> bool:
    """Whether a module is the program's own, from its `__file__`."""
    file = names.get("__file__")
    if type(file) is not str:
        return False
    if "/site-packages/" in file or "/dist-packages/" in file:
        return False
    return not file.startswith(folders)
