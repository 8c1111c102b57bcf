"""A callback for PyTorch Lightning.

    from gpumemtrace.lightning import MemoryTrace

    Trainer(callbacks=[MemoryTrace()])

The package does not depend on Lightning, which comes as `lightning` and as `pytorch_lightning`. A
trainer accepts only callbacks of its own package. So the class is created on first access, as a
subclass of whichever package is present, or of both if the program has imported both.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, List, Tuple

from ._recording.markers import phase, step

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class _TrainerEvents:
    """Marks a step per training batch, and the parts of the run as phases."""

    def __init__(self) -> None:
        super().__init__()
        self._open: List[phase] = []

    def _begin_phase(self, name: str) -> None:
        begun = phase(name)
        self._open.append(begun)
        begun.__enter__()

    def _end_phase(self) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin_phase("train")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_phase()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        # During training: `train` is interrupted and resumes afterwards.
        if self._open:
            self._end_phase()
        self._begin_phase("sanity check" if trainer.sanity_checking else "validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_phase()
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._begin_phase("train")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin_phase("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_phase()

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin_phase("predict")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_phase()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        while self._open:
            self._end_phase()


def _callback_bases() -> Tuple[type, ...]:
    imported = [name for name in _PACKAGES if name in sys.modules]
    for name in imported or _PACKAGES:
        try:
            found = importlib.import_module(name)
        except ImportError:
            continue
        others = [sys.modules[other] for other in imported if other != name]
        return tuple(dict.fromkeys(module.Callback for module in [found, *others]))
    raise ImportError("gpumemtrace.lightning needs PyTorch Lightning: the package `lightning` or `pytorch_lightning`")


if TYPE_CHECKING:

    class MemoryTrace(_TrainerEvents):
        """Marks steps and phases of a training with PyTorch Lightning."""

else:

    def __getattr__(name: str) -> Any:
        if name != "MemoryTrace":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        bases = _callback_bases()
        created = _callback_classes.get(bases)
        if created is None:
            documented = {"__doc__": "Marks steps and phases of a training with PyTorch Lightning.", "__module__": __name__}
            created = _callback_classes[bases] = type("MemoryTrace", (_TrainerEvents, *bases), documented)
        return created

    _callback_classes: dict = {}
