"""The Python API of gpumemtrace, a GPU memory profiler for PyTorch and CUDA.

    import gpumemtrace

    for batch in loader:
        gpumemtrace.step()
        ...
    with gpumemtrace.phase("evaluation"):
        ...

Run the program as `gpumemtrace run -- python train.py`. Outside a recording, `step()`, `phase()`
and `mark()` do nothing. Where you cannot use `gpumemtrace run`, call `start()` or, in a notebook,
`%load_ext gpumemtrace`. docs/python/index.md describes each function and its cost.
"""

from ._allocator import SegmentAllocator, memory_stats, reset_peak_memory_stats, use_pluggable_allocator
from ._notebook import load_ipython_extension
from ._recording.lifecycle import start, stop
from ._recording.markers import NotRecording, is_recording, mark, phase, step, steps, trace_path
from ._reports.holders import holders
from ._reports.oom import capture_oom
from ._reports.page import Page, html
from ._reports.profile import profile
from ._reports.report import CommandFailed, leaks, report
from ._version import __version__

__all__ = [
    "CommandFailed",
    "NotRecording",
    "Page",
    "SegmentAllocator",
    "__version__",
    "capture_oom",
    "holders",
    "html",
    "is_recording",
    "leaks",
    "load_ipython_extension",
    "mark",
    "memory_stats",
    "phase",
    "profile",
    "report",
    "reset_peak_memory_stats",
    "start",
    "step",
    "steps",
    "stop",
    "trace_path",
    "use_pluggable_allocator",
]
