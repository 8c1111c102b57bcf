"""Runs a program, and writes PyTorch's statistics of the first GPU at its end.

usage: final_stats.py FILE PROGRAM [ARGUMENT...]

Two runs make the same requests: seeds are fixed, and backward passes run on the thread that calls
them. The process ends without freeing what the program still holds, so the statistics are final.
"""

import json
import os
import random
import runpy
import sys
import traceback
import warnings

file, program, *arguments = sys.argv[1:]
sys.argv = [program, *arguments]
sys.path[0] = os.path.dirname(os.path.abspath(program))
import torch  # noqa: E402

warnings.simplefilter("ignore")
random.seed(0)
torch.manual_seed(0)
torch.autograd.set_multithreading_enabled(False)
# The simulated cuDNN has no plans for attention, and that of PyTorch 2.1 no recurrent layers.
if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
    torch.backends.cuda.enable_cudnn_sdp(False)
code, leave = 0, os._exit
# A program that leaves by it has statistics, too.
os._exit = sys.exit
try:
    # Bound to a name, so that the tensors of the program live on.
    finished = runpy.run_path(program, run_name="__main__")
except SystemExit as end:
    code = end.code or 0
except torch.cuda.OutOfMemoryError:
    traceback.print_exc()
except BaseException:
    traceback.print_exc()
    code = 1
torch.cuda.synchronize()
with open(file, "w", encoding="utf-8") as out:
    json.dump(torch.cuda.memory_stats(0), out)
sys.stdout.flush()
sys.stderr.flush()
leave(code if isinstance(code, int) else 1)
