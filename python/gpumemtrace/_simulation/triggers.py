"""Installs the parts in each Python process of the command, before any code of the program."""

import os
import sys

from . import value_reads
from .collectives import HostCollectives
from .compilation import CompileErrors
from .import_hook import ImportHook

STEPS_VARIABLE = "GPUMEMTRACE_SIMULATE_STEPS"


def install() -> None:
    """Waits for PyTorch. Nothing of it is imported here."""
    # The functions of `torch` exist once it is complete.
    collectives = HostCollectives()
    on_import = {
        "torch": lambda: _after_torch(collectives),
        "torch.distributed.distributed_c10d": collectives.install_objects,
        "torch._inductor.exc": CompileErrors().install,
    }
    if os.environ.get(STEPS_VARIABLE):
        on_import["torch.optim"] = lambda: _count_steps(collectives)
    sys.meta_path.insert(0, ImportHook(on_import))


def _after_torch(collectives: HostCollectives) -> None:
    value_reads.install()
    collectives.install_bookkeeping()


def _count_steps(collectives: HostCollectives) -> None:
    from .step_limit import StepLimit

    StepLimit(int(os.environ[STEPS_VARIABLE]), collectives).install()
