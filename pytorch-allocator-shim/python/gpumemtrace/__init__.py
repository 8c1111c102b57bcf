"""What a program can say to gpumemtrace, and ask it. docs/python.md describes each function, with its cost.

    import gpumemtrace

    for batch in loader:
        gpumemtrace.step()
        ...
    with gpumemtrace.phase("evaluation"):
        ...

Run it as `gpumemtrace run -- python train.py`. Run without, the same program does the same: `step()` and `phase()` do nothing. What
cannot be run so, such as a notebook, calls `start()`, or loads the cell magic with `%load_ext gpumemtrace`.
"""

from ._allocator import SegmentMode, memory_stats, reset_peak_memory_stats, use_pluggable_allocator
from ._notebook import load_ipython_extension
from ._recording.lifecycle import start, stop
from ._recording.loops import steps
from ._recording.markers import NotRecording, is_recording, mark, phase, step, trace_path
from ._reports.holders import holders
from ._reports.oom import capture_oom
from ._reports.report import CommandFailed, leaks, report
from ._version import __version__

__all__ = [
    "CommandFailed",
    "NotRecording",
    "SegmentMode",
    "__version__",
    "capture_oom",
    "holders",
    "is_recording",
    "leaks",
    "load_ipython_extension",
    "mark",
    "memory_stats",
    "phase",
    "report",
    "reset_peak_memory_stats",
    "start",
    "step",
    "steps",
    "stop",
    "trace_path",
    "use_pluggable_allocator",
]
