"""What a way that a walk has found is called, step by step.

Constraint: a walk knows objects, a user knows names. Consequence: the name of each step is looked up in the dict, the slots, the closure
or the frame that has the object, by identity; what has no name there is told by its type, and a key that is no plain string or
number by the type of that.
"""

import re
from types import CellType, CoroutineType, FrameType, FunctionType, GeneratorType, MethodType, TracebackType
from typing import Any, Dict, List, Optional, Tuple

from .frames import called, variables
from .names import ANY_ITEM, LINK, Step, Way, attribute
from .safe_access import attribute_dict, container, is_a, slot_of, type_name
from .torch_objects import Torch
from .search import Walk

#: Larger dicts are not searched for the key of an item.
_MOST_SEARCHED = 200_000
_MOST_CHARACTERS_OF_A_KEY = 60
_MOST_LINKS = 4
_MODULE_PARTS = ("_modules", "_parameters", "_buffers")


class Ways:
    """Names of what a walk has reached."""

    def __init__(self, torch: Torch, walk: Walk) -> None:
        self._torch, self._walk = torch, walk
        self._keys: Dict[int, Dict[int, str]] = {}

    def to(self, place: int, through: int) -> Way:
        """To the tensor at a place, by one of those that lead there."""
        walk = self._walk
        places = [place, through]
        while walk.parents[places[-1]] >= 0:
            places.append(walk.parents[places[-1]])
        places.reverse()
        root = walk.roots[places[0]]
        things = [walk.objects[at] for at in places]
        end = next((at for at, thing in enumerate(things) if self._is_tensor(thing)), len(things) - 1)
        key = _bare(self._key(things[0], things[1]))
        steps = [attribute(f" local {key}" if root.endswith("()") else f".{key}", things[1])]
        at = 2
        while at <= end:
            at += self._step(steps, things, at)
        return Way(root, tuple(steps), self._tail(things, end))

    def _is_tensor(self, thing: Any) -> bool:
        return self._torch.is_tensor(type(thing))

    def _tail(self, things: List[Any], end: int) -> "Tuple[str, ...]":
        """What lies between the first tensor and the last."""
        tail: List[str] = []
        is_node = self._torch.is_node
        for before, thing in zip(things[end:], things[end + 1 :]):
            told = ""
            if is_node(type(thing)):
                told = "grad_fn chain"
            elif is_node(type(before)):
                told = "" if self._is_tensor(thing) else f"saved {type_name(thing)}"
            elif self._is_tensor(thing):
                told = "grad" if self._is_tensor(before) else "tensor"
            if told and tail[-1:] != [told]:
                tail.append(told)
        return tuple(tail[:_MOST_LINKS])

    def _step(self, steps: List[Step], things: List[Any], at: int) -> int:
        """Adds what leads to the thing at a place; how many places on the next is."""
        holder, thing = things[at - 1], things[at]
        kind = type(holder)
        if kind is FunctionType:
            return self._in_function(steps, holder, things, at)
        if kind is CellType or kind is MethodType or (kind is TracebackType and type(thing) is FrameType):
            return 1
        frame = holder if kind is FrameType else _suspended(holder)
        if frame is not None:
            names = [name for name, value in variables(frame).items() if value is thing]
            steps.append(attribute(f"{LINK}{called(frame)} local {(names or ['?'])[0]}", thing))
            return 1
        of = container(holder)
        if of is not None:
            key = f"[{self._key(holder, thing)}]" if of is dict else ANY_ITEM
            # A key that counts up is another each time.
            steps.append(Step(re.sub(r"\d+", "#", key), True, key, holder, thing))
            return 1
        return self._in_attributes(steps, holder, things, at)

    def _in_function(self, steps: List[Step], function: FunctionType, things: List[Any], at: int) -> int:
        thing = things[at]
        if thing is function.__closure__ and at + 2 < len(things):
            cell, value = things[at + 1], things[at + 2]
            cells = function.__closure__ or ()
            names = [name for name, one in zip(function.__code__.co_freevars, cells) if one is cell]
            steps.append(attribute(f" closure {(names or ['?'])[0]}", value))
            return 3
        if thing is function.__defaults__ or thing is function.__kwdefaults__:
            steps.append(attribute(" defaults", thing))
            return 1
        # Its attributes are in a dict of its own; to ask for it would make one.
        if type(thing) is dict and at + 1 < len(things):
            steps.append(attribute("." + _bare(self._key(thing, things[at + 1])), things[at + 1]))
            return 2
        steps.append(attribute(f"{LINK}{type_name(thing)}", thing))
        return 1

    def _in_attributes(self, steps: List[Step], holder: Any, things: List[Any], at: int) -> int:
        """In what is no container: an object, a class, a module that is not imported."""
        thing = things[at]
        slot = slot_of(holder, thing)
        if slot is not None:
            steps.append(attribute(f".{slot}", thing))
            return 1
        own = attribute_dict(holder)
        is_own = own is thing or (is_a(type(holder), type) and type(thing) is dict)
        if not is_own or at + 1 >= len(things):
            names = [key for key, value in list((own or {}).items()) if value is thing and type(key) is str]
            steps.append(attribute(f".{names[0]}" if names else f"{LINK}{type_name(thing)}", thing))
            return 1
        value = things[at + 1]
        key = _bare(self._key(thing, value))
        is_part = key in _MODULE_PARTS and container(value) is dict and self._torch.is_module(holder)
        if is_part and at + 2 < len(things):
            # What PyTorch keeps apart, its user writes as an attribute.
            inner = things[at + 2]
            part = _bare(self._key(value, inner))
            steps.append(attribute(f"[{part}]" if part.isdigit() else f".{part}", inner))
            return 3
        steps.append(attribute(f".{key}", value))
        return 2

    def _key(self, of: Any, thing: Any) -> str:
        """What a thing in a dict is called there; a string in quotes."""
        found = self._keys.get(id(of))
        if found is None:
            found = self._keys[id(of)] = {}
            if dict.__len__(of) <= _MOST_SEARCHED:
                for key, value in list(dict.items(of)):
                    found.setdefault(id(value), _written(key))
        return found.get(id(thing), "*")


def _suspended(thing: Any) -> Optional[FrameType]:
    """The frame of a generator or a coroutine that waits."""
    if type(thing) is GeneratorType:
        return thing.gi_frame
    return thing.cr_frame if type(thing) is CoroutineType else None


def _written(key: Any) -> str:
    if type(key) is str:
        most = _MOST_CHARACTERS_OF_A_KEY
        return repr(key if len(key) <= most else key[:most] + "...")
    return repr(key) if type(key) in (int, bool, float, type(None)) else type_name(key)


def _bare(key: str) -> str:
    """The name that a string in quotes is."""
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] and key[0] in "'\"" else key
