"""What a program can say to gpumemtrace, and ask it. docs/python.md describes each function, with its cost.

    import gpumemtrace

    for batch in loader:
        gpumemtrace.step()
        ...
    with gpumemtrace.phase("evaluation"):
        ...

Run it as `gpumemtrace run -- python train.py`. Run without, the same program does the same: `step()` and `phase()` do nothing.
"""

from ._allocator import SegmentMode, memory_stats, reset_peak_memory_stats, use_pluggable_allocator
from ._command import CommandFailed, leaks, report
from ._said import NotRecording, is_recording, phase, step, trace_path
from ._version import __version__
from ._who_holds import holders

__all__ = [
    "CommandFailed",
    "NotRecording",
    "__version__",
    "holders",
    "is_recording",
    "leaks",
    "phase",
    "report",
    "step",
    "trace_path",
]
