"""What the ways to a block are called, taken together.

Constraint: a list of 390 tensors is one holder and not 390. Consequence: the number of an item is no part of a name, and of a way the
part up to the outermost container whose items are several of the blocks is the holder; the rest is the chain.
"""

from typing import Any, Dict, List, NamedTuple, Set, Tuple

from .safe_access import items, type_name

#: Keys of a dict that are told apart; of one with more they are items like those of a list.
_MOST_KEYS = 3
_MOST_CHARACTERS = 300
_MOST_LINKS = 6
ANY_ITEM = "[*]"
#: Between the links of a chain, in the text of a step.
LINK = " <- "


class Step(NamedTuple):
    """A piece of a name. `text` is what is written; of an item, `exact` is what is written if nothing else of `inside` is meant."""

    text: str
    is_item: bool
    exact: str
    inside: Any
    to: Any


class Way(NamedTuple):
    """How a block is reached."""

    root: str
    steps: "Tuple[Step, ...]"
    #: From the tensor on: `grad`, `grad_fn chain`.
    tail: "Tuple[str, ...]"

    def key(self) -> "Tuple[Any, ...]":
        """The same for all items of a container."""
        return (self.root, tuple((step.text, step.is_item) for step in self.steps), self.tail)


def attribute(text: str, to: Any) -> Step:
    """A step that is a part of the name."""
    return Step(text, False, text, None, to)


def many_keys_are_items(ways: "List[List[Way]]") -> "List[List[Way]]":
    """The same, with the keys of dicts that have led to many things told like numbers of a list."""
    keys: Dict[int, Set[str]] = {}
    for some in ways:
        for way in some:
            for step in way.steps:
                if step.is_item:
                    keys.setdefault(id(step.inside), set()).add(step.text)

    def without(way: Way) -> Way:
        if not any(step.is_item and len(keys[id(step.inside)]) > _MOST_KEYS for step in way.steps):
            return way
        steps = (
            step._replace(text=ANY_ITEM) if step.is_item and len(keys[id(step.inside)]) > _MOST_KEYS else step
            for step in way.steps
        )
        return way._replace(steps=tuple(steps))

    return [[without(way) for way in some] for some in ways]


def told(ways: "List[Way]") -> Dict[str, Any]:
    """The holder that ways of one key have in common: its name, what it is, and what lies between it and the blocks."""
    first = ways[0]
    shared = len(first.steps)
    for at, step in enumerate(first.steps):
        if step.is_item and len({id(way.steps[at].to) for way in ways}) > 1:
            shared = at
            break
    name = first.root + "".join(_exact(step) for step in first.steps[:shared])
    found: Dict[str, Any] = {"name": name[:_MOST_CHARACTERS]}
    chain: List[str] = []
    if shared < len(first.steps):
        inside = first.steps[shared].inside
        number = items(inside)
        found["type"] = type_name(inside)
        if number is not None:
            found["items"] = number
        chain = _links(first.steps[shared:])
    elif first.steps:
        found["type"] = type_name(first.steps[-1].to)
    found["chain"] = [link[:_MOST_CHARACTERS] for link in [*chain, *first.tail]][:_MOST_LINKS]
    return found


def _links(steps: "Tuple[Step, ...]") -> List[str]:
    """From the item of a container on: `Adam.state[*]['exp_avg']`, `tensor`."""
    if len(steps) == 1:
        return ["tensor"]
    text = type_name(steps[0].to) + "".join(step.text for step in steps[1:])
    return [*(part for part in text.split(LINK) if part), "tensor"]


def _exact(step: Step) -> str:
    """Of an item that is the only one that is meant, which it is."""
    if step.exact != ANY_ITEM or type(step.inside) not in (list, tuple):
        return step.exact
    at = next((at for at, item in enumerate(tuple(step.inside)) if item is step.to), None)
    return ANY_ITEM if at is None else f"[{at}]"


