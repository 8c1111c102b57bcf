"""Inspects objects without running code of the program.

Attribute access, `__class__`, `len()`, comparisons and hashes of the program's objects may run any
code or raise, and so may their metaclasses. So types come from `type()`; bases, names and
attributes come from the descriptors of `type` itself; and objects are compared by identity.
"""

from collections import deque
from functools import _lru_cache_wrapper
from queue import Queue
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Dict, Optional, Tuple

_get_mro = type.__dict__["__mro__"].__get__
_get_name = type.__dict__["__name__"].__get__
_get_dict = type.__dict__["__dict__"].__get__

_get_maxlen = deque.maxlen.__get__
#: Where the classes of the package cachetools keep the limit of their items.
_CACHETOOLS_LIMIT = "_Cache__maxsize"

_CONTAINER_TYPES = (dict, list, tuple, set, frozenset, deque)


def mro(kind: type) -> "Tuple[type, ...]":
    """The method resolution order of a type: itself and all bases."""
    found: Tuple[type, ...] = _get_mro(kind)
    return found


def is_subclass(kind: type, base: type) -> bool:
    """Like `issubclass`, but without calling `__subclasscheck__`."""
    return any(one is base for one in mro(kind))


def type_name(thing: Any) -> str:
    """The unqualified name of an object's type."""
    return str(_get_name(type(thing)))


def container_type(thing: Any) -> Optional[type]:
    """The built-in container type that an object is an instance of, if any."""
    kinds = mro(type(thing))
    return next((one for one in _CONTAINER_TYPES if any(kind is one for kind in kinds)), None)


def is_function_cache(thing: Any) -> bool:
    """Whether an object is a function with `functools.lru_cache`."""
    return type(thing) is _lru_cache_wrapper


def item_count(thing: Any) -> Optional[int]:
    """The number of items; `None` if the object is neither a built-in container nor a cache."""
    if is_function_cache(thing):
        return int(_lru_cache_wrapper.cache_info(thing).currsize)
    kind = container_type(thing)
    return None if kind is None else int(kind.__len__(thing))  # type: ignore[attr-defined]


def item_limit(thing: Any, owner: Any) -> Optional[int]:
    """The largest number of items that a container can have; `None` if it is unlimited.

    `owner` is the object that has the container as an attribute, if any. It may set the limit.
    """
    if is_function_cache(thing):
        found = _lru_cache_wrapper.cache_info(thing).maxsize
    elif container_type(thing) is deque and _get_maxlen(thing) is not None:
        found = _get_maxlen(thing)
    else:
        attributes = instance_dict(owner) or {}
        found = attributes.get("maxsize" if is_subclass(type(owner), Queue) else _CACHETOOLS_LIMIT)
    return found if type(found) is int and found > 0 else None


def class_dict(kind: type) -> Dict[str, Any]:
    """The `__dict__` of a class."""
    found: Dict[str, Any] = _get_dict(kind)
    return found


def instance_dict(thing: Any) -> Optional[Dict[str, Any]]:
    """The `__dict__` of an object; `None` if it has none or its class overrides the attribute."""
    for kind in mro(type(thing)):
        descriptor = class_dict(kind).get("__dict__")
        if descriptor is not None:
            if type(descriptor) is not GetSetDescriptorType:
                return None
            try:
                found = descriptor.__get__(thing)
            except Exception:
                return None
            return found if type(found) is dict else None
    return None


def slot_name(thing: Any, value: Any) -> Optional[str]:
    """The name of the slot of `thing` that has this value."""
    for kind in mro(type(thing)):
        for name, descriptor in list(class_dict(kind).items()):
            if type(descriptor) is MemberDescriptorType:
                try:
                    if descriptor.__get__(thing) is value:
                        return name
                except Exception:
                    continue
    return None
