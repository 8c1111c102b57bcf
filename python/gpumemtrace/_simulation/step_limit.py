"""Ends the program after a number of optimizer steps (`--steps N`)."""

import os
import sys
from datetime import timedelta
from typing import Any, Dict

from .collectives import HostCollectives
from .value_reads import report_reads


#: How long a rank waits for others, which may still use the store of rank 0.
RANKS_TIMEOUT = timedelta(seconds=60)


class StepLimit:
    """Counts the steps of each optimizer. A program with several ends with the first that has made
    all its steps."""

    def __init__(self, limit: int, collectives: HostCollectives) -> None:
        self._limit, self._collectives = limit, collectives
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
        self._wait_for_ranks()
        sys.stdout.flush()
        report_reads()
        sys.stderr.flush()
        os._exit(0)

    def _wait_for_ranks(self) -> None:
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return
        try:
            self._collectives.wait_for_all(RANKS_TIMEOUT)
        except Exception:
            # Another rank makes fewer steps, or has failed.
            return
