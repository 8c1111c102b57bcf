"""Trains three models in two precisions and reports memory_stats() around each."""

from witness import *  # noqa: F403
import torch
for name in ("mlp", "resnet18", "transformer"):
    for amp in (False, True):
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = stats()
        train(name, amp)
        emit(where="%s %s" % (name, "amp" if amp else "fp32"), before=before, after=stats())
exit_now()
