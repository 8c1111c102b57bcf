"""Runs a program with PyTorch's own memory history, and writes what history and statistics say.

usage: observed_run.py FILE PROGRAM [ARGUMENT...]

FILE gets compressed JSON: the card, `memory_stats()` of the first GPU at the end, the bytes that
the driver said were used then, and the history's events as [action, bytes, stream], with streams
numbered by appearance. The process ends without freeing what the program still holds.
"""

import gzip
import json
import os
import random
import runpy
import sys
import time
import traceback

file, program, *arguments = sys.argv[1:]
sys.argv = [program, *arguments]
sys.path[0] = os.path.dirname(os.path.abspath(program))
import torch  # noqa: E402

random.seed(0)
torch.manual_seed(0)
code, error = 0, None
leave, os._exit = os._exit, sys.exit
began = time.monotonic()
torch.cuda.init()
torch.cuda.memory._record_memory_history("all", context=None, max_entries=4_000_000)
try:
    # Bound to a name, so that the tensors of the program live on.
    finished = runpy.run_path(program, run_name="__main__")
except SystemExit as end:
    code = end.code or 0
except BaseException as exception:
    traceback.print_exc()
    code, error = 1, f"{type(exception).__name__}: {exception}"
torch.cuda.synchronize()
stats, snapshot = torch.cuda.memory_stats(0), torch.cuda.memory._snapshot()
free, total = torch.cuda.mem_get_info()
streams = {}
events = [(event["action"], event["size"], streams.setdefault(event["stream"], len(streams))) for event in snapshot["device_traces"][0]]
properties = torch.cuda.get_device_properties(0)
facts = {
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "cudnn": torch.backends.cudnn.version(),
    "card": properties.name,
    "capability": [properties.major, properties.minor],
    "multiprocessors": properties.multi_processor_count,
    "total_bytes": total,
    "used_bytes": total - free,
    "seconds": time.monotonic() - began,
    "error": error,
    "stats": {name: value for name, value in stats.items() if value},
    "events": events,
}
with gzip.open(file, "wt", encoding="utf-8", compresslevel=6) as out:
    json.dump(facts, out, separators=(",", ":"))
sys.stdout.flush()
sys.stderr.flush()
leave(code if isinstance(code, int) else 1)
