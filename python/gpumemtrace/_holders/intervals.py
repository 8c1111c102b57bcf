"""Scans during the run, when variables of functions still exist.

A thread of its own asks `gpumemtrace run` at growing intervals whether anything leaks. That costs
the program nothing. Once there is a leak, it stops the main thread between two bytecodes and
scans. All scans together may take 1% of the run so far, plus one time limit. Later scans replace
earlier ones, so a program that is killed has holders, too.

The thread is no `threading.Thread`, so `threading.enumerate()` is unchanged. It calls no code of
the program and raises nothing: after three failures in a row it prints one line and ends.
"""

import _thread
import os
import time
from typing import Any, Callable, Dict, Optional

from . import library
from .candidates import CandidateReader
from .safe_point import Pause, SafePoint
from .scan import REPORT_LIMIT_S, scan_holders
from .text import printable

#: Share of the run that scans may take.
SHARE = 0.01
_FIRST_S = 0.25
#: The next look at the trace, or the next scan, is after this share of the run so far.
_LOOK_INTERVAL, _SCAN_INTERVAL = 0.1, 0.5
_MAX_FAILURES = 3
#: A main thread that does not stop in this time waits in a C function, which is as safe.
_STOP_WAIT_S = 1.0
#: Of the time that is left, so much is planned: releasing the objects comes on top.
_PLANNED_SHARE = 0.8


class TimeBudget:
    """What scans may take: a share of the time since the start, plus one time limit."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._started, self.spent_s = limit_s, time.monotonic(), 0.0

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def left_s(self) -> float:
        return SHARE * self.elapsed_s() + self._limit_s - self.spent_s


class IntervalScans:
    """The scans of one process. `on_tick` is called before each look at the trace."""

    def __init__(self, reader: CandidateReader, limit_s: float, on_tick: Callable[[], None]) -> None:
        self._reader, self._limit_s, self._on_tick = reader, limit_s, on_tick
        self._budget, self._reading = TimeBudget(limit_s), TimeBudget(limit_s)
        self._safe_point = SafePoint()
        self._wake, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._wake.acquire()
        self._ended.acquire()
        self._is_stopped = False
        self._requested: Optional[Pause] = None
        self._last_scan_s = 0.0
        #: The number of scans that have ended.
        self.count = 0
        _thread.start_new_thread(self._run, ())

    def scan_now(self) -> None:
        """Scans while the calling thread waits. For the return of the program's main function."""
        pause = self._requested = Pause(REPORT_LIMIT_S + self._limit_s)
        self._wake_up()
        if not self._is_stopped:
            pause.wait()

    def stop(self) -> None:
        """Ends the thread, and waits for a scan that is running."""
        self._is_stopped = True
        self._safe_point.cancel()
        self._wake_up()
        self._reader.close()
        self._ended.acquire(True, self._limit_s + 1)

    def _wake_up(self) -> None:
        try:
            self._wake.release()
        except RuntimeError:
            # Already awake.
            return

    def _run(self) -> None:
        failures, interval_s = 0, _FIRST_S
        try:
            while failures < _MAX_FAILURES and not self._is_stopped:
                self._wake.acquire(True, interval_s)
                try:
                    self._tick()
                    failures = 0
                except library.ScanFailed as failed:
                    failures += 1
                    if failures == _MAX_FAILURES:
                        print_line(f"--holders: no more scans during the run: {failed}")
                share = _SCAN_INTERVAL if self.count else _LOOK_INTERVAL
                interval_s = max(self._budget.elapsed_s() * share, _FIRST_S)
        except BaseException as error:
            print_line(f"--holders: no more scans during the run: {error!r}")
        finally:
            self._is_stopped = True
            self._end_request()
            self._ended.release()

    def _tick(self) -> None:
        trace = library.trace_path()
        if self._is_stopped or trace is None:
            return
        if self._requested is not None:
            self._scan("return", REPORT_LIMIT_S + self._limit_s)
            self._end_request()
            return
        self._on_tick()
        if self._reading.left_s() <= 0:
            return
        begun = time.monotonic()
        has_growth = self._reader.has_growth(trace, REPORT_LIMIT_S)
        reading_s = time.monotonic() - begun
        self._reading.spent_s += reading_s
        left_s = self._budget.left_s() * _PLANNED_SHARE
        if has_growth and max(reading_s, self._last_scan_s) < left_s and self._requested is None:
            self._scan_at_safe_point(left_s)

    def _end_request(self) -> None:
        pause, self._requested = self._requested, None
        if pause is not None:
            pause.end()

    def _scan_at_safe_point(self, limit_s: float) -> None:
        pause = self._safe_point.request(limit_s)
        if pause is None:
            return
        has_arrived = pause.has_arrived(_STOP_WAIT_S)
        if not has_arrived:
            self._safe_point.cancel()
        try:
            if not pause.is_refused and not self._is_stopped:
                self._scan("interval", limit_s)
        finally:
            pause.end()

    def _scan(self, when: str, limit_s: float) -> None:
        begun = time.monotonic()

        def add_counters(result: Dict[str, Any]) -> None:
            result["spent_ns"] = int((self._budget.spent_s + time.monotonic() - begun) * 1e9)
            result["elapsed_ns"] = int(self._budget.elapsed_s() * 1e9)

        try:
            scan_holders(when, self._reader.read, self._limit_s, REPORT_LIMIT_S, limit_s, add_counters)
        finally:
            self._last_scan_s = time.monotonic() - begun
            self._budget.spent_s += self._last_scan_s
            self.count += 1


def print_line(text: str) -> None:
    """One line on standard error. The program may have replaced `sys.stderr`."""
    try:
        os.write(2, f"gpumemtrace: {printable(text)}\n".encode("utf-8", "replace"))
    except OSError:
        return
