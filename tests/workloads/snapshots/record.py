"""Runs a scenario with PyTorch's memory history on, and dumps snapshots of its last moment.

usage: record.py SCENARIO FOLDER [--stacks python|all] [--max-entries N] [--enabled all|state|off]
                 [--late] [--skip ACTION] [--forms]

Writes FOLDER/snapshot.pickle (`_dump_snapshot`) and FOLDER/stats.json: per device, the statistics
of PyTorch's allocator at the dump, and its version. With --forms, the same snapshot also as JSON,
gzip, and in each pickle protocol. The program then ends at once, so the end of a trace of this run
is the moment of the dump. With --late, the history begins after the scenario's first half.
"""

import argparse
import gzip
import inspect
import json
import os
import pickle
import sys
from pathlib import Path

import torch

from scenarios import SCENARIOS

# cuDNN's functions in torch 2.1 are not simulated.
torch.backends.cudnn.enabled = False
parser = argparse.ArgumentParser()
parser.add_argument("scenario", choices=SCENARIOS)
parser.add_argument("folder", type=Path)
parser.add_argument("--stacks", default="python")
parser.add_argument("--max-entries", type=int, default=1_000_000)
parser.add_argument("--enabled", default="all")
parser.add_argument("--late", action="store_true")
parser.add_argument("--skip", action="append")
parser.add_argument("--forms", action="store_true")
args = parser.parse_args()


def begin_history():
    if args.enabled == "off":
        return
    wanted = {"stacks": args.stacks, "max_entries": args.max_entries, "skip_actions": args.skip,
              "compile_context": True, "global_record_annotations": True}
    if args.scenario == "pinned":
        wanted["record_pinned_host_memory"] = True
    known = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    options = {name: value for name, value in wanted.items() if name in known and value is not None}
    torch.cuda.memory._record_memory_history(args.enabled, **options)


def device_stats(device):
    stats = torch.cuda.memory_stats(device)
    names = [f"{kind}_bytes.all.{when}" for kind in ("allocated", "reserved", "active", "requested") for when in ("current", "peak")]
    return {name: stats[name] for name in names if name in stats}


args.folder.mkdir(parents=True, exist_ok=True)
torch.cuda.init()
torch.empty(1, device="cuda") if args.late else begin_history()
halves = SCENARIOS[args.scenario]()
next(halves)
if args.late:
    begin_history()
kept = next(halves)
torch.cuda.memory._dump_snapshot(str(args.folder / "snapshot.pickle"))
stats = {"torch": torch.__version__, "python": sys.version.split()[0], "scenario": args.scenario,
         "command": sys.argv[1:], "alloc_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
         "devices": [device_stats(device) for device in range(torch.cuda.device_count())]}
(args.folder / "stats.json").write_text(json.dumps(stats, indent=1))
if args.forms:
    snapshot = torch.cuda.memory._snapshot()
    (args.folder / "form.json").write_text(json.dumps(snapshot))
    (args.folder / "form.pickle.gz").write_bytes(gzip.compress((args.folder / "snapshot.pickle").read_bytes(), mtime=0))
    for protocol in (2, 3, 4, 5):
        (args.folder / f"form-{protocol}.pickle").write_bytes(pickle.dumps(snapshot, protocol))
