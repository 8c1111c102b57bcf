"""Stops the main thread between two bytecodes, for as long as another thread scans.

`Py_AddPendingCall` runs a C function on the main thread between bytecodes, and the C function is
`PyObject_IsTrue`, which calls `__bool__` of our object. It only waits, so the program's trace and
profile functions see one short call. An exception there comes from one of the program's own signal
handlers, and CPython raises it in the program, where it belongs.
"""

import _thread
import ctypes
import os
import signal
import sys
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Optional, Set


class Pause:
    """One stop of a thread: it arrives, waits and goes on. Locks are held until released."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        #: The thread is inside one of the program's signal handlers, and does not wait.
        self.is_refused = False
        self._arrived, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._arrived.acquire()
        self._done.acquire()

    def wait(self) -> None:
        """Called by the stopped thread: returns when the scan has ended or the limit is reached."""
        self._arrived.release()
        self._done.acquire(True, self.limit_s)

    def refuse(self) -> None:
        """Called by the thread instead of `wait()`."""
        self.is_refused = True
        self._arrived.release()

    def has_arrived(self, wait_s: float) -> bool:
        """Waits until the thread has stopped; false if it has not after this time."""
        return self._arrived.acquire(True, wait_s)

    def end(self) -> None:
        """Lets the stopped thread go on."""
        self._done.release()


class SafePoint:
    """Stops the main thread on request. There is one per process, and it is never freed."""

    def __init__(self) -> None:
        self._pause: Optional[Pause] = None
        self._process = os.getpid()
        # Argument types of `ctypes.pythonapi` would be those of all its users in the program.
        python = ctypes.PyDLL(None)
        self._call = python.Py_AddPendingCall
        self._call.argtypes = (ctypes.c_void_p, ctypes.py_object)
        self._call.restype = ctypes.c_int
        self._is_true = ctypes.cast(python.PyObject_IsTrue, ctypes.c_void_p)
        # A pending call holds no reference to its argument.
        python.Py_IncRef(ctypes.py_object(self))

    def request(self, limit_s: float) -> Optional[Pause]:
        """Asks the main thread to stop; `None` if CPython's queue of calls is full."""
        self._pause = pause = Pause(limit_s)
        return pause if self._call(self._is_true, self) == 0 else None

    def cancel(self) -> None:
        """The main thread no longer stops for the last request."""
        self._pause = None

    def __bool__(self) -> bool:
        pause, self._pause = self._pause, None
        # A forked child inherits the queue, but not the thread that would end the pause.
        if pause is not None and os.getpid() == self._process and not sys.is_finalizing():
            if _is_in_signal_handler(sys._getframe()):
                pause.refuse()
            else:
                pause.wait()
        # CPython takes any other result for an error.
        return False


def _is_in_signal_handler(frame: Optional[FrameType]) -> bool:
    """Whether a function of this stack is a signal handler of the program."""
    codes = _handler_codes()
    while codes and frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _handler_codes() -> Set[CodeType]:
    found: Set[CodeType] = set()
    for number in range(1, signal.NSIG):
        try:
            handler: Any = signal.getsignal(number)
        except ValueError:
            continue
        if type(handler) is MethodType:
            handler = handler.__func__
        if type(handler) is FunctionType:
            found.add(handler.__code__)
    return found
