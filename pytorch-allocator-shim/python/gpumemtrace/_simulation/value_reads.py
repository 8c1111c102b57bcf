"""Notes each line that reads values from the GPU. In a simulation they are zeros, so a program that
acts on them may not do what it does on a real GPU.

Reads that happen inside PyTorch's C++ code, without one of these methods, are not noted.
"""

import atexit
import functools
import os
import sys
from typing import Any, Callable, Dict, Tuple

#: Methods of tensors that bring values to the host, or make a tensor whose size depends on them.
METHODS = (
    "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy", "__array__",
    "nonzero", "masked_select", "unique", "equal", "allclose",
)
#: The same as functions of `torch`.
FUNCTIONS = ("nonzero", "masked_select", "unique", "unique_consecutive", "equal", "allclose", "bincount")
SHOWN = 8

#: How often each (file, line, name) was reached.
_reads: Dict[Tuple[str, int, str], int] = {}
_is_reported = False


class ValueReads:
    """Wraps the methods; the first use of one by the program is looked up in its stack."""

    def install(self) -> None:
        import torch  # type: ignore[import-not-found]

        self._library = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
        for name in METHODS:
            self._wrap(torch.Tensor, name, name.strip("_"))
        self._wrap(torch.Tensor, "__getitem__", "index by a mask", _has_mask)
        for name in FUNCTIONS:
            self._wrap(torch, name, name)
        atexit.register(report_reads)

    def _wrap(self, owner: Any, name: str, shown: str, applies: Callable[..., bool] = lambda *_: True) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if args and getattr(args[0], "is_cuda", False) and applies(*args):
                self._note(shown)
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)

    def _note(self, name: str) -> None:
        """The line is the innermost one outside PyTorch."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(self._library):
            frame = frame.f_back
        key = (frame.f_code.co_filename, frame.f_lineno, name)
        _reads[key] = _reads.get(key, 0) + 1


def _has_mask(_tensor: Any, index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    # Of a tensor alone `dtype` is a torch.dtype, whose text does not depend on the release.
    return any(str(getattr(part, "dtype", "")) in ("torch.bool", "torch.uint8") for part in parts)


def report_reads() -> None:
    """Prints the lines, those that were reached most often first."""
    global _is_reported
    if _is_reported or not _reads:
        return
    _is_reported = True
    ordered = sorted(_reads.items(), key=lambda entry: -entry[1])
    lines = ["gpumemtrace: the program read values from the GPU, where all are 0; on a real GPU it may do something else:"]
    for (file, line, name), count in ordered[:SHOWN]:
        times = "once" if count == 1 else f"{count} times"
        lines.append(f"  {os.path.relpath(file) if not file.startswith('<') else file}:{line}: {name}, {times}")
    if len(ordered) > SHOWN:
        lines.append(f"  and {len(ordered) - SHOWN} more lines")
    sys.stderr.write("\n".join(lines) + "\n")
