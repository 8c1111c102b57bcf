"""The three calls that a program of the corpus makes for its measurement.

    probe.steps(40)            number of steps: `--steps N`, else the default
    probe.step_end()           a step of the program ended
    probe.hold(bytes)          memory that PyTorch does not count was kept

In a recorded run `step_end()` does nothing, so the trace is the same as without it. Two variables
change this:

PROBE_TRUTH=FILE     measure: write live bytes and blocks at each step end to FILE, as JSON, and the
                     step that ran out of memory. Garbage is collected before each measurement,
                     unless PROBE_COLLECT=0
PROBE_KILL_STEP=N    end the process with SIGKILL at the end of step N
"""

import argparse
import atexit
import gc
import json
import os
import signal
import sys
import threading

_truth = os.environ.get("PROBE_TRUTH")
_kill_step = int(os.environ.get("PROBE_KILL_STEP", 0))
_collect = os.environ.get("PROBE_COLLECT") != "0"
_lock = threading.Lock()
_series = {"bytes": [], "requested": [], "blocks": [], "reserved": [], "peak": 0, "full_at": None}
_ended = 0
_held = 0


def steps(default):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=default)
    return parser.parse_args().steps


def hold(size):
    global _held
    _held += size


def step_end():
    global _ended
    if not (_truth or _kill_step):
        return
    with _lock:
        _ended += 1
        if _truth:
            _measure()
        if _ended == _kill_step:
            os.kill(os.getpid(), signal.SIGKILL)


def _measure():
    import torch

    if _collect:
        gc.collect()
        if _ended == 1:
            # Makes later collections fast: what exists now is not traversed again.
            gc.freeze()
    stats = torch.cuda.memory_stats()
    _series["bytes"].append(stats.get("allocated_bytes.all.current", 0) + _held)
    _series["requested"].append(stats.get("requested_bytes.all.current", 0) + _held)
    _series["blocks"].append(stats.get("allocation.all.current", 0))
    _series["reserved"].append(stats.get("reserved_bytes.all.current", 0) + _held)
    _series["peak"] = stats.get("reserved_bytes.all.peak", 0) + _held


def _write():
    with open(_truth, "w", encoding="utf-8") as file:
        json.dump(_series, file)


def _note_out_of_memory(error):
    if type(error).__name__ == "OutOfMemoryError":
        _series["full_at"] = _ended


def _excepthook(kind, error, traceback):
    _note_out_of_memory(error)
    sys.__excepthook__(kind, error, traceback)


if _truth:
    atexit.register(_write)
    sys.excepthook = _excepthook
