"""The local variables of functions that are running.

Constraint: before 3.13, asking a frame for them leaves a copy of them behind, which would keep every tensor that a loop drops later.
Consequence: that copy is emptied again, unless the program itself has it (`locals()`), for whom it is as if it had asked once more.
"""

import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import FrameType
from typing import Any, Dict, Iterator, Tuple

#: `CO_OPTIMIZED`: a function, whose variables are not in a dict.
_IN_A_FUNCTION = 0x1
_COPIES = sys.version_info < (3, 13)
#: The frame, a variable of ours, and the argument of `getrefcount`.
_NOBODY_ELSE = 3
OUR_MODULES = ("_gpumemtrace_holders", "gpumemtrace")


def variables(frame: FrameType) -> Dict[str, Any]:
    """Those of a function; nothing of a module or a class, whose variables are in a dict that is found otherwise."""
    if not frame.f_code.co_flags & _IN_A_FUNCTION:
        return {}
    found = frame.f_locals
    copy = dict(found)
    if _COPIES and sys.getrefcount(found) <= _NOBODY_ELSE:
        code = frame.f_code
        # Nothing else of it: what `exec()` has put there is nowhere else.
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found.pop(name, None)
    return copy


def called(frame: FrameType) -> str:
    """The function that runs in it, with its module: `train.Trainer.fit`."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    return f"{module_of(frame)}.{name}()"


def module_of(frame: FrameType) -> str:
    """The module of the function, as its user knows it."""
    name = frame.f_globals.get("__name__")
    return main_name(frame.f_globals) if name == "__main__" else name if type(name) is str else "?"


def main_name(names: Dict[str, Any]) -> str:
    """`__main__` is the file that was started. At the end of the program only its loader still says which that was."""
    spec, file, loader = (names.get(name) for name in ("__spec__", "__file__", "__loader__"))
    if type(spec) is ModuleSpec and type(spec.name) is str:
        return spec.name[: -len(".__main__")] if spec.name.endswith(".__main__") else spec.name
    if type(file) is not str and type(loader) is SourceFileLoader:
        file = loader.path
    if type(file) is not str:
        return "__main__"
    file = file.rsplit("/", 1)[-1]
    return file[:-3] if file.endswith(".py") else file


def is_ours(frame: FrameType) -> bool:
    """True for frames of this package: what they hold, nobody holds in a moment."""
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.split(".", 1)[0] in OUR_MODULES


def running() -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Of each function that runs on any thread: what it is called, and its variables."""
    for frame in list(sys._current_frames().values()):
        at: Any = frame
        while at is not None:
            if not is_ours(at):
                found = variables(at)
                if found:
                    yield called(at), found
            at = at.f_back
