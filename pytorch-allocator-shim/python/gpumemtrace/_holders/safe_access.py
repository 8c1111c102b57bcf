"""Looking at an object without asking it.

Constraint: objects of the program may answer anything with code of their own, or raise: attributes, `__class__`, `len()`,
comparisons, hashes, and so may their classes. Consequence: types come from `type()`, their bases, names and attributes from the
descriptors of `type` itself, and things are told apart by identity alone.
"""

from collections import deque
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Dict, Optional, Tuple

_mro_of = type.__dict__["__mro__"].__get__
_name_of = type.__dict__["__name__"].__get__
_dict_of = type.__dict__["__dict__"].__get__

#: What has items that are its own, and how many there are is asked of the type that we know.
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def bases(kind: type) -> "Tuple[type, ...]":
    """The type, and all that it is made of."""
    found: Tuple[type, ...] = _mro_of(kind)
    return found


def is_a(kind: type, base: type) -> bool:
    """As `issubclass`, which may be answered by the base's own class."""
    return any(one is base for one in bases(kind))


def type_name(thing: Any) -> str:
    """What it is called that something is."""
    return str(_name_of(type(thing)))


def container(thing: Any) -> Optional[type]:
    """Which of the containers that we know it is."""
    kinds = bases(type(thing))
    return next((one for one in _CONTAINERS if any(kind is one for kind in kinds)), None)


def items(thing: Any) -> Optional[int]:
    """How many items are in it, if it is a container that we know."""
    kind = container(thing)
    return None if kind is None else int(kind.__len__(thing))  # type: ignore[attr-defined]


def own_attributes(kind: type) -> Dict[str, Any]:
    """What stands in the body of a class."""
    found: Dict[str, Any] = _dict_of(kind)
    return found


def attribute_dict(thing: Any) -> Optional[Dict[str, Any]]:
    """Its `__dict__`, if Python itself says what that is."""
    for kind in bases(type(thing)):
        described = own_attributes(kind).get("__dict__")
        if described is not None:
            if type(described) is not GetSetDescriptorType:
                return None
            try:
                found = described.__get__(thing)
            except Exception:
                return None
            return found if type(found) is dict else None
    return None


def slot_of(thing: Any, value: Any) -> Optional[str]:
    """The name of the slot that has this value."""
    for kind in bases(type(thing)):
        for name, described in list(own_attributes(kind).items()):
            if type(described) is MemberDescriptorType:
                try:
                    if described.__get__(thing) is value:
                        return name
                except Exception:
                    continue
    return None
