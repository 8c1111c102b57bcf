"""Who holds what leaks, asked by the program itself.

Constraint: what looks must also work where this package is not installed (`gpumemtrace run --holders`). Consequence: it is a part of its
own, `_holders`, which imports nothing from here; this is how a program that has the package comes to it.
"""

from typing import Any, Dict

from .._command import find_command
from .._holders import DEFAULT_LIMIT_S, look
from .._recording.markers import NotRecording, trace_path


def holders(limit_s: float = DEFAULT_LIMIT_S) -> Dict[str, Any]:
    """Looks who holds the blocks of the leaks there are so far: the names that lead to them, by the shortest way.

    The answer goes into the trace too, and is in `replay --leaks`. Its `leaks` have `holders` (name, type, items, chain, blocks, bytes)
    and `unresolved` (why, blocks, bytes), which sum to the leak's blocks. The walk through the program's objects takes `limit_s` at most;
    `cut` says whether that was too little. Raises `NotRecording`.
    """
    # Raises where nothing is recorded, and says why.
    trace_path()
    found = look("call", find_command(), limit_s)
    if found is None:
        raise NotRecording("the recording has ended, or another thread is looking at this moment")
    return found
