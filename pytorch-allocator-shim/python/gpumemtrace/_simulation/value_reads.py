"""Notes each line that reads values from the GPU. In a simulation they are zeros, so a program that
acts on them may not do what it does on a real GPU.

PyTorch's sync debug mode names more of them, but through Python warnings, which training scripts
silence or turn into errors. `tests/suite/simulate/test_value_reads.py` compares the two. Not noted:
reads inside PyTorch's C++ code, such as the error codes of `torch.linalg`, and `torch.save`.
"""

import atexit
import functools
import os
import sys
import threading
from typing import Any, Callable, Dict, Tuple

#: Methods of tensors that bring values to the host.
VALUE_METHODS = ("item", "tolist", "__bool__", "__int__", "__float__", "__complex__", "__index__", "is_nonzero")
#: Methods of tensors that may return a copy on the host.
COPY_METHODS = ("cpu", "to", "type")
#: Methods of tensors, and functions of `torch`, whose result or its size depends on values.
SHARED = (
    "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "equal", "allclose", "bincount", "histc",
    "to_sparse", "is_nonzero",
)
SHOWN = 8

Arguments = Tuple[Any, ...]
Named = Dict[str, Any]
#: Whether a call with this result and these arguments reads values from the GPU.
Condition = Callable[[Any, Arguments, Named], bool]

#: How often each (file, line, name) was reached.
_reads: Dict[Tuple[str, int, str], int] = {}
_is_reported = False


class ValueReads:
    """Wraps the methods; each use by the program is looked up in its stack."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def install(self) -> None:
        import torch  # type: ignore[import-not-found]

        self._library = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
        tensor = torch.Tensor
        for name in dict.fromkeys(VALUE_METHODS + SHARED):
            self._wrap(tensor, name, _is_on_gpu)
        for name in SHARED:
            self._wrap(torch, name, _is_on_gpu)
        for name in COPY_METHODS:
            self._wrap(tensor, name, _leaves_gpu)
        for owner in (tensor, torch):
            self._wrap(owner, "repeat_interleave", _repeats_are_on_gpu)
        self._wrap(torch, "where", _is_only_condition)
        self._wrap(torch, "as_tensor", _leaves_gpu)
        self._wrap(tensor, "copy_", _copies_from_gpu)
        self._wrap(tensor, "__getitem__", _has_mask, "index by a mask")
        self._wrap(tensor, "__setitem__", _writes_through_mask, "index by a mask")
        self._wrap(tensor, "index_put_", _has_mask, "index by a mask")
        atexit.register(report_reads)

    def _wrap(self, owner: Any, name: str, is_read: Condition, shown: str = "") -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        shown = shown or name.strip("_")
        thread = self._thread

        @functools.wraps(original)
        def wrapped(*args: Any, **named: Any) -> Any:
            # PyTorch implements some of the functions with others.
            if getattr(thread, "is_inside", False):
                return original(*args, **named)
            result = None
            thread.is_inside = True
            try:
                result = original(*args, **named)
                return result
            finally:
                thread.is_inside = False
                # Also after an error, which the zeros may have caused.
                if is_read(result, args, named):
                    self._note(shown)

        setattr(owner, name, wrapped)

    def _note(self, name: str) -> None:
        """The line is the innermost one outside PyTorch."""
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(self._library):
            frame = frame.f_back
        key = (frame.f_code.co_filename, frame.f_lineno, name)
        _reads[key] = _reads.get(key, 0) + 1


def _argument(args: Arguments, named: Named, position: int, name: str) -> Any:
    return args[position] if len(args) > position else named.get(name)


def _is_cuda(value: Any) -> bool:
    return getattr(value, "is_cuda", False) is True


def _is_on_gpu(_result: Any, args: Arguments, named: Named) -> bool:
    return _is_cuda(_argument(args, named, 0, "input"))


def _leaves_gpu(result: Any, args: Arguments, named: Named) -> bool:
    return _is_cuda(_argument(args, named, 0, "data")) and getattr(result, "is_cuda", None) is False


def _copies_from_gpu(_result: Any, args: Arguments, named: Named) -> bool:
    return not _is_cuda(args[0]) and _is_cuda(_argument(args, named, 1, "src"))


def _repeats_are_on_gpu(_result: Any, args: Arguments, named: Named) -> bool:
    # A single argument is the repeats.
    position = 1 if len(args) > 1 else 0
    return named.get("output_size") is None and _is_cuda(named.get("repeats", _argument(args, named, position, "")))


def _is_only_condition(_result: Any, args: Arguments, named: Named) -> bool:
    return len(args) + len(named) == 1 and _is_cuda(_argument(args, named, 0, "condition"))


def _has_mask(_result: Any, args: Arguments, named: Named) -> bool:
    index = _argument(args, named, 1, "indices")
    parts = index if isinstance(index, (tuple, list)) else (index,)
    # Of a tensor alone `dtype` is a torch.dtype, whose text does not depend on the release.
    return _is_cuda(args[0]) and any(str(getattr(part, "dtype", "")) in ("torch.bool", "torch.uint8") for part in parts)


def _writes_through_mask(result: Any, args: Arguments, named: Named) -> bool:
    """A single value is written without knowing how many places the mask has."""
    return len(args) > 2 and getattr(args[2], "ndim", 0) > 0 and _has_mask(result, args, named)


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
