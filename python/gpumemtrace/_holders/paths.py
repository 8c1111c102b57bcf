"""Turns a path of objects, as the search found it, into names that a user knows.

The name of each step is looked up by identity in the dict, slots, closure or frame that has the
object. A step without a name is described by its type; so is a dict key that is not a plain string,
number or `None`.
"""

import re
from types import CellType, CoroutineType, FrameType, FunctionType, GeneratorType, MethodType, TracebackType
from typing import Any, Dict, List, Optional, Tuple

from .frames import function_locals, function_name
from .names import ANY_ITEM, LINK, PathStep, ReferencePath, attribute_step
from .safe_access import container_type, instance_dict, is_function_cache, is_subclass, slot_name, type_name
from .search import ReferenceSearch
from .torch_objects import TorchObjects

#: Larger dicts are not searched for the key of an item.
_MAX_SEARCHED_ITEMS = 200_000
_MAX_KEY_LENGTH = 60
_MAX_TAIL_LINKS = 4
#: Where `torch.nn.Module` keeps what the user sees as attributes.
_MODULE_DICTS = ("_modules", "_parameters", "_buffers")


class PathNamer:
    """Names the paths of a finished search."""

    def __init__(self, torch: TorchObjects, search: ReferenceSearch) -> None:
        self._torch, self._search = torch, search
        self._keys: Dict[int, Dict[int, str]] = {}

    def path_to(self, tensor: int, parent: int) -> ReferencePath:
        """The path to a tensor through one of its parents; both are indices of the search."""
        search = self._search
        indices = [tensor, parent]
        while search.parents[indices[-1]] >= 0:
            indices.append(search.parents[indices[-1]])
        indices.reverse()
        root = search.roots[indices[0]]
        things = [search.objects[at] for at in indices]
        end = next((at for at, thing in enumerate(things) if self._is_tensor(thing)), len(things) - 1)
        key = _unquoted(self._key_of(things[0], things[1]))
        steps = [attribute_step(f" local {key}" if root.endswith("()") else f".{key}", things[1])]
        at = 2
        while at <= end:
            at += self._add_step(steps, things, at)
        return ReferencePath(root, tuple(steps), self._tail(things, end))

    def _is_tensor(self, thing: Any) -> bool:
        return self._torch.is_tensor_type(type(thing))

    def _tail(self, things: List[Any], end: int) -> "Tuple[str, ...]":
        """The links between the first tensor of a path and the last."""
        tail: List[str] = []
        is_node_type = self._torch.is_node_type
        for before, thing in zip(things[end:], things[end + 1 :]):
            link = ""
            if is_node_type(type(thing)):
                link = "grad_fn chain"
            elif is_node_type(type(before)):
                link = "" if self._is_tensor(thing) else f"saved {type_name(thing)}"
            elif self._is_tensor(thing):
                link = "grad" if self._is_tensor(before) else "tensor"
            if link and tail[-1:] != [link]:
                tail.append(link)
        return tuple(tail[:_MAX_TAIL_LINKS])

    def _add_step(self, steps: List[PathStep], things: List[Any], at: int) -> int:
        """Adds the step that leads to `things[at]`. Returns how many objects it covers."""
        holder, thing = things[at - 1], things[at]
        kind = type(holder)
        if kind is FunctionType:
            return self._add_function_step(steps, holder, things, at)
        if kind is CellType or kind is MethodType or (kind is TracebackType and type(thing) is FrameType):
            return 1
        frame = holder if kind is FrameType else _suspended_frame(holder)
        if frame is not None:
            names = [name for name, value in function_locals(frame).items() if value is thing]
            steps.append(attribute_step(f"{LINK}{function_name(frame)} local {(names or ['?'])[0]}", thing))
            return 1
        container = container_type(holder)
        if container is not None:
            key = f"[{self._key_of(holder, thing)}]" if container is dict else ANY_ITEM
            # Keys with counters, such as "epoch 1" and "epoch 2", are one name.
            steps.append(PathStep(re.sub(r"\d+", "#", key), True, key, holder, thing))
            return 1
        if is_function_cache(holder) and type(thing) is not dict:
            steps.append(PathStep(ANY_ITEM, True, ANY_ITEM, holder, thing))
            return 1
        return self._add_attribute_step(steps, holder, things, at)

    def _add_function_step(self, steps: List[PathStep], function: FunctionType, things: List[Any], at: int) -> int:
        thing = things[at]
        if thing is function.__closure__ and at + 2 < len(things):
            cell, value = things[at + 1], things[at + 2]
            cells = function.__closure__ or ()
            names = [name for name, one in zip(function.__code__.co_freevars, cells) if one is cell]
            steps.append(attribute_step(f" closure {(names or ['?'])[0]}", value))
            return 3
        if thing is function.__defaults__ or thing is function.__kwdefaults__:
            steps.append(attribute_step(" defaults", thing))
            return 1
        # A dict is the function's `__dict__`; reading that attribute would create one.
        if type(thing) is dict and at + 1 < len(things):
            steps.append(attribute_step("." + _unquoted(self._key_of(thing, things[at + 1])), things[at + 1]))
            return 2
        steps.append(attribute_step(f"{LINK}{type_name(thing)}", thing))
        return 1

    def _add_attribute_step(self, steps: List[PathStep], holder: Any, things: List[Any], at: int) -> int:
        """For an object that is no container: an instance, a class, or a module that is no root."""
        thing = things[at]
        slot = slot_name(holder, thing)
        if slot is not None:
            steps.append(attribute_step(f".{slot}", thing))
            return 1
        attributes = instance_dict(holder)
        is_attributes = attributes is thing or (is_subclass(type(holder), type) and type(thing) is dict)
        if not is_attributes or at + 1 >= len(things):
            names = [key for key, value in list((attributes or {}).items()) if value is thing and type(key) is str]
            steps.append(attribute_step(f".{names[0]}" if names else f"{LINK}{type_name(thing)}", thing))
            return 1
        value = things[at + 1]
        key = _unquoted(self._key_of(thing, value))
        is_module_dict = key in _MODULE_DICTS and container_type(value) is dict and self._torch.is_module(holder)
        if is_module_dict and at + 2 < len(things):
            # `model._modules['layer']` is `model.layer` to the user.
            inner = things[at + 2]
            part = _unquoted(self._key_of(value, inner))
            # Layers of a `ModuleList` or a `Sequential` are items of it.
            is_item = part.isdigit()
            text = f"[{part}]" if is_item else f".{part}"
            steps.append(PathStep(ANY_ITEM if is_item else text, is_item, text, holder if is_item else None, inner))
            return 3
        steps.append(attribute_step(f".{key}", value))
        return 2

    def _key_of(self, names: Any, thing: Any) -> str:
        """The key of a value in a dict, as text; `*` if it is not found."""
        found = self._keys.get(id(names))
        if found is None:
            found = self._keys[id(names)] = {}
            if dict.__len__(names) <= _MAX_SEARCHED_ITEMS:
                for key, value in list(dict.items(names)):
                    found.setdefault(id(value), _key_text(key))
        return found.get(id(thing), "*")


def _suspended_frame(thing: Any) -> Optional[FrameType]:
    """The frame of a suspended generator or coroutine."""
    if type(thing) is GeneratorType:
        return thing.gi_frame
    return thing.cr_frame if type(thing) is CoroutineType else None


def _key_text(key: Any) -> str:
    if type(key) is str:
        most = _MAX_KEY_LENGTH
        return repr(key if len(key) <= most else key[:most] + "...")
    return repr(key) if type(key) in (int, bool, float, type(None)) else type_name(key)


def _unquoted(key: str) -> str:
    """The key without the quotes of a string."""
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] and key[0] in "'\"" else key
