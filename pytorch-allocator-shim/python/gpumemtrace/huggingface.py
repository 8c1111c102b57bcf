"""A callback for Hugging Face's Trainer: `Trainer(..., callbacks=[gpumemtrace.huggingface.MemoryTrace()])`.

Constraint: `transformers` is no dependency of this package, and its trainer tells when an evaluation has ended, not when it begins.
Consequence: the class is made when it is asked for; an evaluation in a training begins when the trainer has decided on it, one that the
program asks for itself with its first batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ._recording import markers


class _Hooks:
    """Says a step for each step of the optimizer, and which part of the run is what."""

    def __init__(self) -> None:
        super().__init__()
        self._name: Optional[str] = None
        self._phase: Optional[markers.phase] = None
        self._is_training = False

    def _change(self, name: Optional[str]) -> None:
        """Ends what lasts and begins this, unless it is the same."""
        if name == self._name:
            return
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._name, self._phase = name, None if name is None else markers.phase(name)
        if self._phase is not None:
            self._phase.__enter__()

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._is_training = True
        self._change("train")

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._change("train")
        markers.step()

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        # Decided by a callback of the trainer's own, which comes before all others.
        if control.should_evaluate:
            self._change("evaluate")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.on_step_end(args, state, control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if self._name != "evaluate":
            self._change("prediction")

    def on_evaluate(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._change("train" if self._is_training else None)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **named: Any) -> None:
        self._change("train" if self._is_training else None)

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._is_training = False
        self._change(None)


if TYPE_CHECKING:

    class MemoryTrace(_Hooks):
        """Steps and phases of a training with Hugging Face's Trainer."""

else:

    def __getattr__(name: str) -> Any:
        global _made
        if name != "MemoryTrace":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if _made is None:
            try:
                from transformers import TrainerCallback
            except ImportError as error:
                raise ImportError("gpumemtrace.huggingface needs the package `transformers`") from error
            documented = {"__doc__": "Steps and phases of a training with Hugging Face's Trainer.", "__module__": __name__}
            _made = type("MemoryTrace", (_Hooks, TrainerCallback), documented)
        return _made

    _made = None
