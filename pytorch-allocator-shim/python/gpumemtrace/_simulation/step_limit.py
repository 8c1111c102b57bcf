"""Ends the program after a number of optimizer steps (`--steps N`)."""

import os
import sys
from typing import Any, Dict

from .value_reads import report_reads


class StepLimit:
    """Counts the steps of each optimizer. A program with several ends with the first that has made
    all its steps."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._steps: Dict[int, int] = {}

    def install(self) -> None:
        from torch.optim import optimizer  # type: ignore[import-not-found]

        optimizer.register_optimizer_step_post_hook(self._on_step)

    def _on_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        steps = self._steps.get(id(optimizer), 0) + 1
        self._steps[id(optimizer)] = steps
        if steps >= self._limit:
            self._leave()

    def _leave(self) -> None:
        """Leaves without the program's own cleanup: it could train on, or save a checkpoint."""
        import torch  # type: ignore[import-not-found]

        torch.cuda.synchronize()
        sys.stdout.flush()
        report_reads()
        sys.stderr.flush()
        os._exit(0)
