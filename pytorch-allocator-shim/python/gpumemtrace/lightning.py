"""A callback for PyTorch Lightning: `Trainer(callbacks=[gpumemtrace.lightning.MemoryTrace()])`.

Constraint: Lightning is no dependency of this package, and there are two of it, `lightning` and `pytorch_lightning`, whose trainers know
only callbacks of their own. Consequence: the class is made when it is asked for, of whichever is there; of both, where the program has
imported both.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, List, Tuple

from ._recording import markers

_NAMES = ("lightning.pytorch", "pytorch_lightning")


class _Hooks:
    """Says a step for each batch of the training, and which part of the run is what."""

    def __init__(self) -> None:
        super().__init__()
        self._open: List[markers.phase] = []

    def _begin(self, name: str) -> None:
        phase = markers.phase(name)
        self._open.append(phase)
        phase.__enter__()

    def _end(self) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin("train")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        markers.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        # In the middle of a training, which goes on after it.
        if self._open:
            self._end()
        self._begin("sanity check" if trainer.sanity_checking else "validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._begin("train")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin("predict")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        while self._open:
            self._end()


def _bases() -> Tuple[type, ...]:
    imported = [name for name in _NAMES if name in sys.modules]
    for name in imported or _NAMES:
        try:
            found = importlib.import_module(name)
        except ImportError:
            continue
        others = [sys.modules[other] for other in imported if other != name]
        return tuple(dict.fromkeys(module.Callback for module in [found, *others]))
    raise ImportError("gpumemtrace.lightning needs PyTorch Lightning: the package `lightning` or `pytorch_lightning`")


if TYPE_CHECKING:

    class MemoryTrace(_Hooks):
        """Steps and phases of a training with PyTorch Lightning."""

else:

    def __getattr__(name: str) -> Any:
        if name != "MemoryTrace":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        bases = _bases()
        made = _made.get(bases)
        if made is None:
            documented = {"__doc__": "Steps and phases of a training with PyTorch Lightning.", "__module__": __name__}
            made = _made[bases] = type("MemoryTrace", (_Hooks, *bases), documented)
        return made

    _made: dict = {}
