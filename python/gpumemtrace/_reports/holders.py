"""`holders()`: a holder scan that the program requests itself.

The search is the package `_holders`, which must also run where this package is not installed
(`gpumemtrace run --holders`). So it imports nothing from here.
"""

from typing import Any, Dict

from .._command import find_command
from .._holders import DEFAULT_LIMIT_S, read_with_command, scan_holders
from .._recording.markers import NotRecording, trace_path


def holders(limit_s: float = DEFAULT_LIMIT_S) -> Dict[str, Any]:
    """Finds which of the program's names hold the leaked blocks so far, by the shortest path.

    The result also goes into the trace, and `replay --leaks` shows it. Each of its `leaks` has
    `holders` (name, type, items, chain, blocks, bytes) and `unresolved` (why, blocks, bytes), which
    add up to the leak's blocks. The search through the program's objects takes at most `limit_s`
    seconds; `cut` says whether it was cut short.

    Raises `NotRecording` if this process is not being recorded or another thread is scanning.
    """
    # Raises NotRecording with the reason.
    trace_path()
    found = scan_holders("call", read_with_command(find_command()), limit_s)
    if found is None:
        raise NotRecording("the recording has ended, or another thread is scanning for holders now")
    return found
