"""Allocates from five threads with PyTorch's history on, and reports history and snapshot."""

from witness import *  # noqa: F403
import torch
torch.cuda.init()
try:
    torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
except TypeError as error:
    give_up("_record_memory_history has other arguments: %s" % error)

def churn(number):
    kept = []
    for i in range(200):
        kept.append(torch.empty(512 * (1 + (i * 7 + number) % 5000) + 3, dtype=torch.uint8, device="cuda"))
        if i % 3:
            kept.pop(0)

train("mlp")
threads = [threading.Thread(target=churn, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
side = torch.cuda.Stream()
x = torch.ones(5_000_000, device="cuda")
with torch.cuda.stream(side):
    y = x * 2
x.record_stream(side)
del x
torch.cuda.synchronize()
torch.cuda.empty_cache()
train("transformer", True)
kept = [torch.empty(size, device="cuda") for size in (1, 1000, 3_000_000)]
counted = stats()
snapshot = torch.cuda.memory._snapshot()
entries = [(entry["action"], entry.get("addr"), entry["size"], entry.get("stream")) for entry in snapshot["device_traces"][0]]
emit(stats=counted, segments=segments(snapshot), entries=entries)
exit_now()
