"""A scan when the program's main function returns, while its variables still exist.

`sys.monitoring` (CPython 3.12) reports the return of one chosen function and costs nothing until
then. The function is the outermost of the program on the main thread's stack: `main()`, or the
coroutine of `asyncio.run(main())`. Without `sys.monitoring` there are only the interval scans.
"""

import sys
import threading
from types import CodeType, FrameType
from typing import Any, Callable, Optional

from .frames import is_own_frame
from .search import is_program_module, library_folders

#: Coverage tools, debuggers and profilers have numbers of their own; 3 and 4 are free.
_TOOL = 4
_CO_OPTIMIZED = 0x1

_monitoring: Any = getattr(sys, "monitoring", None)


class ReturnTrigger:
    """Calls a function at the first return of the program's outermost function."""

    def __init__(self, on_return: Callable[[], None]) -> None:
        self._on_return = on_return
        self._code: Optional[CodeType] = None
        self._is_done = _monitoring is None
        self._folders = library_folders()

    def watch(self) -> None:
        """Chooses the function, unless that is done. Call it again while there is none."""
        if self._is_done or self._code is not None:
            return
        frame = self._outermost(sys._current_frames().get(threading.main_thread().ident or 0))
        if frame is None:
            return
        try:
            _monitoring.use_tool_id(_TOOL, "gpumemtrace")
        except ValueError:
            # Another tool has the number.
            self._is_done = True
            return
        self._code = frame.f_code
        event = _monitoring.events.PY_RETURN
        _monitoring.register_callback(_TOOL, event, self._returned)
        _monitoring.set_local_events(_TOOL, self._code, event)

    def stop(self) -> None:
        """Gives the number back."""
        self._is_done = True
        code, self._code = self._code, None
        if code is not None:
            _monitoring.set_local_events(_TOOL, code, 0)
            _monitoring.register_callback(_TOOL, _monitoring.events.PY_RETURN, None)
            _monitoring.free_tool_id(_TOOL)

    def _returned(self, code: CodeType, offset: int, value: object) -> None:
        if self._is_done or threading.get_ident() != threading.main_thread().ident:
            return
        frame = sys._getframe(1)
        if self._outermost(frame) is frame:
            self._is_done = True
            self._on_return()

    def _outermost(self, frame: Optional[FrameType]) -> Optional[FrameType]:
        """The outermost function of the program on this stack."""
        found = None
        while frame is not None:
            names = frame.f_globals
            is_program = names.get("__name__") == "__main__" or is_program_module(names, self._folders)
            if frame.f_code.co_flags & _CO_OPTIMIZED and is_program and not is_own_frame(frame):
                found = frame
            frame = frame.f_back
        return found
