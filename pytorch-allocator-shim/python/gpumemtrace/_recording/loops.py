"""Steps of a plain loop: `for batch in gpumemtrace.steps(loader):`."""

from __future__ import annotations

from typing import Generic, Iterable, Iterator, TypeVar, cast

from . import markers

_Item = TypeVar("_Item")


class steps(Generic[_Item]):
    """Each turn of a loop over this is a step. It is as long as what it goes over, and can be gone over as often.

    A step begins when its item is there: what fetching it takes belongs to the step before it.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[_Item]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[_Item]:
        for item in self._items:
            markers.step()
            yield item

    def __len__(self) -> int:
        return len(cast("list[_Item]", self._items))
