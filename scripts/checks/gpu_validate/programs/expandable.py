"""Allocates in expandable segments and reports reserved and used bytes."""

from witness import *  # noqa: F403
import torch
def sample(label):
    torch.cuda.synchronize()
    emit(label=label, at=now(), reserved=torch.cuda.memory_reserved(), used=used())
kept = []
sample("nothing")
for count in (1, 30 << 20, 200 << 20, 7 << 20):
    kept.append(torch.empty(count, dtype=torch.uint8, device="cuda"))
    sample("torch.empty of %d" % count)
kept.pop(1)
torch.cuda.empty_cache()
sample("one freed, cache emptied")
train("mlp")
sample("training")
kept.clear()
torch.cuda.empty_cache()
sample("all freed, cache emptied")
exit_now()
