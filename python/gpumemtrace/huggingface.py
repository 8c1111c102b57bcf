"""A callback for Hugging Face's Trainer.

    from gpumemtrace.huggingface import MemoryTrace

    Trainer(..., callbacks=[MemoryTrace()])

The package does not depend on `transformers`; the class is created on first access. The trainer
has an event for the end of an evaluation, but none for its beginning. So an evaluation during
training begins when the trainer has decided on it, and one that the program starts itself begins
with its first batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ._recording.markers import phase, step


class _TrainerEvents:
    """Marks a step per optimizer step, and the phases `train`, `evaluate` and `prediction`."""

    def __init__(self) -> None:
        super().__init__()
        self._name: Optional[str] = None
        self._phase: Optional[phase] = None
        self._is_training = False

    def _enter_phase(self, name: Optional[str]) -> None:
        """Ends the current phase and begins this one, unless it is the current one."""
        if name == self._name:
            return
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._name, self._phase = name, None if name is None else phase(name)
        if self._phase is not None:
            self._phase.__enter__()

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._is_training = True
        self._enter_phase("train")

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._enter_phase("train")
        step()

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        # The trainer's own callback, which runs before all others, has set the flag.
        if control.should_evaluate:
            self._enter_phase("evaluate")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.on_step_end(args, state, control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if self._name != "evaluate":
            self._enter_phase("prediction")

    def on_evaluate(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._enter_phase("train" if self._is_training else None)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **named: Any) -> None:
        self._enter_phase("train" if self._is_training else None)

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._is_training = False
        self._enter_phase(None)


if TYPE_CHECKING:

    class MemoryTrace(_TrainerEvents):
        """Marks steps and phases of a training with Hugging Face's Trainer."""

else:

    def __getattr__(name: str) -> Any:
        global _callback_class
        if name != "MemoryTrace":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if _callback_class is None:
            try:
                from transformers import TrainerCallback
            except ImportError as error:
                raise ImportError("gpumemtrace.huggingface needs the package `transformers`") from error
            documented = {"__doc__": "Marks steps and phases of a training with Hugging Face's Trainer.", "__module__": __name__}
            _callback_class = type("MemoryTrace", (_TrainerEvents, TrainerCallback), documented)
        return _callback_class

    _callback_class = None
