"""Installs the parts in each Python process of the command, before any code of the program."""

import os
import sys

from .import_hook import ImportHook
from .value_reads import ValueReads

STEPS_VARIABLE = "GPUMEMTRACE_SIMULATE_STEPS"


def install() -> None:
    """Waits for PyTorch. Nothing of it is imported here."""
    # The functions of `torch` exist once it is complete.
    on_import = {"torch": _watch_reads}
    if os.environ.get(STEPS_VARIABLE):
        on_import["torch.optim"] = _count_steps
    sys.meta_path.insert(0, ImportHook(on_import))


def _watch_reads() -> None:
    ValueReads().install()


def _count_steps() -> None:
    from .step_limit import StepLimit

    StepLimit(int(os.environ[STEPS_VARIABLE])).install()
