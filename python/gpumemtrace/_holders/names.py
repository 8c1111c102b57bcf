"""Names the common holder of several blocks.

A list of 390 tensors is one holder, not 390. So the index of an item is not part of a holder's
name. If a container has several of the blocks as its items, the path up to it names the holder,
and the rest of the path is the chain. With nested containers, the outermost one counts.
"""

from typing import Any, Dict, List, NamedTuple, Set, Tuple

from .safe_access import item_count, item_limit, type_name

#: Dicts with up to this many keys on paths are named by key; with more, keys count as items.
_MAX_NAMED_KEYS = 3
_MAX_TEXT_LENGTH = 300
_MAX_CHAIN_LINKS = 6
ANY_ITEM = "[*]"
#: Separates the links of a chain in the text of a step.
LINK = " <- "


class PathStep(NamedTuple):
    """One reference of a path. For an item, `exact_text` names this item of `container` alone."""

    text: str
    is_item: bool
    exact_text: str
    container: Any
    target: Any


class ReferencePath(NamedTuple):
    """The references that lead from a root to a block."""

    root: str
    steps: "Tuple[PathStep, ...]"
    #: From the tensor on: `grad`, `grad_fn chain`.
    tail: "Tuple[str, ...]"

    def key(self) -> "Tuple[Any, ...]":
        """Equal for all items of a container."""
        return (self.root, tuple((step.text, step.is_item) for step in self.steps), self.tail)

    def is_in_optimizer(self) -> bool:
        """Whether it leads through the list of an optimizer's parameters."""
        return any(step.text == ".param_groups" for step in self.steps)


def attribute_step(text: str, target: Any) -> PathStep:
    """A step that is part of the name."""
    return PathStep(text, False, text, None, target)


def merge_keys(paths: "List[List[ReferencePath]]") -> "List[List[ReferencePath]]":
    """The same paths, with the keys of dicts that have many of them replaced by `[*]`."""
    keys: Dict[int, Set[str]] = {}
    for alternatives in paths:
        for path in alternatives:
            for step in path.steps:
                if step.is_item:
                    keys.setdefault(id(step.container), set()).add(step.text)

    def merged(path: ReferencePath) -> ReferencePath:
        if not any(step.is_item and len(keys[id(step.container)]) > _MAX_NAMED_KEYS for step in path.steps):
            return path
        steps = (
            step._replace(text=ANY_ITEM) if step.is_item and len(keys[id(step.container)]) > _MAX_NAMED_KEYS else step
            for step in path.steps
        )
        return path._replace(steps=tuple(steps))

    return [[merged(path) for path in alternatives] for alternatives in paths]


def describe_holder(paths: "List[ReferencePath]") -> Dict[str, Any]:
    """The common holder of paths with one key: name, type, items, and the chain behind it."""
    first = paths[0]
    shared = len(first.steps)
    for at, step in enumerate(first.steps):
        if step.is_item and len({id(path.steps[at].target) for path in paths}) > 1:
            shared = at
            break
    name = first.root + "".join(_exact_text(step) for step in first.steps[:shared])
    found: Dict[str, Any] = {"name": name[:_MAX_TEXT_LENGTH]}
    chain: List[str] = []
    if shared < len(first.steps):
        container = first.steps[shared].container
        count = item_count(container)
        found["type"] = type_name(container)
        if count is not None:
            found["items"] = count
            most = item_limit(container, first.steps[shared - 2].target if shared > 1 else None)
            if most is not None:
                found["limit_items"] = most
        chain = _chain_links(first.steps[shared:])
    elif first.steps:
        found["type"] = type_name(first.steps[-1].target)
    found["chain"] = [link[:_MAX_TEXT_LENGTH] for link in [*chain, *first.tail]][:_MAX_CHAIN_LINKS]
    return found


def _chain_links(steps: "Tuple[PathStep, ...]") -> List[str]:
    """From the item of a container on: `Adam.state[*]['exp_avg']`, `tensor`."""
    if len(steps) == 1:
        return ["tensor"]
    text = type_name(steps[0].target) + "".join(step.text for step in steps[1:])
    return [*(part for part in text.split(LINK) if part), "tensor"]


def _exact_text(step: PathStep) -> str:
    """The text of a step with the index, if it is an item of a list or tuple."""
    if step.exact_text != ANY_ITEM or type(step.container) not in (list, tuple):
        return step.exact_text
    at = next((at for at, item in enumerate(tuple(step.container)) if item is step.target), None)
    return ANY_ITEM if at is None else f"[{at}]"
