"""Says what to do when `torch.compile` fails for what this machine lacks.

PyTorch's own error follows, below a long stack trace. A compiled function that is never called, as
in bitsandbytes, fails nothing.
"""

import functools
import os
import shutil
import sys
from typing import Any, Optional

#: Classes of `torch._inductor.exc`.
ERRORS = ("TritonMissing", "InductorError")


class CompileErrors:
    """Watches PyTorch's errors of compilation, and prints one line for the first."""

    def __init__(self) -> None:
        self._is_said = False

    def install(self) -> None:
        from torch._inductor import exc  # type: ignore[import-not-found]

        for name in ERRORS:
            error = getattr(exc, name, None)
            if error is not None:
                self._watch(error)

    def _watch(self, error: Any) -> None:
        original = error.__init__

        @functools.wraps(original)
        def wrapped(instance: Any, *args: Any, **named: Any) -> None:
            self._explain(error.__name__)
            original(instance, *args, **named)

        error.__init__ = wrapped

    def _explain(self, error: str) -> None:
        missing = _missing(error)
        if self._is_said or missing is None:
            return
        self._is_said = True
        sys.stderr.write(
            f"gpumemtrace: torch.compile failed: {missing}, or set TORCHDYNAMO_DISABLE=1; "
            "uncompiled code also allocates the results that compiled kernels fuse\n"
        )


def _missing(error: str) -> Optional[str]:
    if error == "TritonMissing":
        return "the package triton is not installed; install the version that this torch requires"
    if not any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), "gcc", "clang")):
        return "Triton found no C compiler; install gcc or set CC"
    return None
