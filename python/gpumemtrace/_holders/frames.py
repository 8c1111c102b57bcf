"""The local variables of running functions.

Before CPython 3.13, `frame.f_locals` leaves a copy of the variables in the frame. That copy would
keep alive every tensor that the function drops later, so it is emptied after reading. If the
program itself holds the copy, from `locals()`, it is left as one more `locals()` call would.
"""

import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import FrameType
from typing import Any, Dict, Iterator, Tuple

#: Set for the code of functions: their variables are not in a dict.
_CO_OPTIMIZED = 0x1
_F_LOCALS_COPIES = sys.version_info < (3, 13)
#: References to a copy that only we use: the frame's, ours, and the argument of `getrefcount`.
_UNSHARED_REFERENCES = 3
OUR_MODULES = ("_gpumemtrace_holders", "gpumemtrace")


def function_locals(frame: FrameType) -> Dict[str, Any]:
    """The local variables of a function; empty for a module or class body.

    The variables of a module or class are in a dict that the search reaches otherwise.
    """
    if not frame.f_code.co_flags & _CO_OPTIMIZED:
        return {}
    found = frame.f_locals
    copy = dict(found)
    if _F_LOCALS_COPIES and sys.getrefcount(found) <= _UNSHARED_REFERENCES:
        code = frame.f_code
        # Only these: the dict is also the one place for names that `exec()` has added.
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found.pop(name, None)
    return copy


def function_name(frame: FrameType) -> str:
    """The qualified name of the running function: `train.Trainer.fit()`."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    return f"{_module_name(frame)}.{name}()"


def _module_name(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return main_module_name(frame.f_globals) if name == "__main__" else name if type(name) is str else "?"


def main_module_name(names: Dict[str, Any]) -> str:
    """The name of the file or module that was started, for the dict of `__main__`.

    At exit `__file__` is gone already, and only the loader still has the path.
    """
    spec, file, loader = (names.get(name) for name in ("__spec__", "__file__", "__loader__"))
    if type(spec) is ModuleSpec and type(spec.name) is str:
        return spec.name[: -len(".__main__")] if spec.name.endswith(".__main__") else spec.name
    if type(file) is not str and type(loader) is SourceFileLoader:
        file = loader.path
    if type(file) is not str:
        return "__main__"
    file = file.rsplit("/", 1)[-1]
    return file[:-3] if file.endswith(".py") else file


def is_own_frame(frame: FrameType) -> bool:
    """True for frames of this package: what they hold is released when the scan ends."""
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.split(".", 1)[0] in OUR_MODULES


def running_functions() -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Name and local variables of each function that is running on any thread."""
    for frame in list(sys._current_frames().values()):
        at: Any = frame
        while at is not None:
            if not is_own_frame(at):
                found = function_locals(at)
                if found:
                    yield function_name(at), found
            at = at.f_back
