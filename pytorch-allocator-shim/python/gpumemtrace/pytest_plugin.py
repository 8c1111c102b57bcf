"""Budgets for tests: `@pytest.mark.gpu_memory_budget(peak="2 GiB")` and `@pytest.mark.gpu_no_leaks`. docs/python.md describes them.

Constraint: what a test held is known from the trace alone, so only where pytest itself is recorded; and a test that was not judged has not kept
its budget. Consequence: the body of a marked test is a phase, its report is asked for when it has passed, and where nothing is recorded, or
what was recorded does not tell, the test is skipped or fails with the reason. It never just passes.
"""

from __future__ import annotations

import gc
import re
import sys
from typing import Any, Callable, Dict, Generator, List, Optional, Union

import pytest

from ._recording import markers
from ._reports import sizes
from ._reports.report import CommandFailed, report

#: As the command reads sizes: KB is KiB, and so is K.
_POWERS = {"": 0, "b": 0}
_POWERS.update({letter + more: power for power, letter in enumerate("kmgt", 1) for more in ("", "b", "ib")})

#: How many phases this process has begun.
_count = 0
_ATTRIBUTE = "_gpumemtrace_turn"


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("gpumemtrace")
    group.addoption(
        "--gpumemtrace-required",
        action="store_true",
        help="fail the tests that have a budget of GPU memory where nothing is recorded, instead of skipping them",
    )


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers",
        'gpu_memory_budget(peak, device=None): the most that tensors hold during the test, such as peak="2 GiB"; '
        "run as `gpumemtrace run -- python -m pytest`",
    )
    config.addinivalue_line(
        "markers",
        "gpu_no_leaks(allowed=0, device=None, warmup=0): the test leaves no more bytes of tensors behind than allowed; its body "
        "is run `warmup` times before it counts",
    )


class _Rule:
    """What a mark asks for."""

    def __init__(self, what: str, bytes_allowed: int, device: Optional[int], warmup: int = 0) -> None:
        self.what = what
        self.bytes_allowed = bytes_allowed
        self.device = device
        self.warmup = warmup

    def judge(self, bytes_by_device: Dict[int, Optional[int]]) -> List[str]:
        """What is wrong, a line each."""
        asked = {device: held for device, held in sorted(bytes_by_device.items()) if self.device in (None, device)}
        if None in asked.values():
            raise _Unknown("memory was used that PyTorch's own allocator did not hand out, and of tensors nothing was seen")
        said = "the test left {} of tensors behind on device {}; it may leave {}"
        if self.what == "peak":
            said = "tensors held {} on device {} at the peak of the test; its budget is {}"
        return [
            said.format(_shown(held), device, _shown(self.bytes_allowed))
            for device, held in asked.items()
            if held is not None and held > self.bytes_allowed
        ]


def _budget(peak: Union[int, str], device: Optional[int] = None) -> _Rule:
    return _Rule("peak", _size(peak), device)


def _no_leaks(allowed: Union[int, str] = 0, device: Optional[int] = None, warmup: int = 0) -> _Rule:
    return _Rule("left", _size(allowed), device, warmup)


_MARKS: Dict[str, Callable[..., _Rule]] = {"gpu_memory_budget": _budget, "gpu_no_leaks": _no_leaks}


def _rules(item: Any) -> List[_Rule]:
    rules = []
    for name, make in _MARKS.items():
        mark = item.get_closest_marker(name)
        if mark is not None:
            try:
                rules.append(make(*mark.args, **mark.kwargs))
            except (TypeError, ValueError) as error:
                raise pytest.UsageError(f"{item.nodeid}: {name}: {error}") from None
    return rules


def _size(size: Union[int, str]) -> int:
    """Bytes: a number, or one with a unit, `2 GiB` or `500MB`."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    if parts is None or parts[2].lower() not in _POWERS:
        raise ValueError(f"{size!r} is no size; give bytes, or such as '2 GiB'")
    return int(float(parts[1]) * (1 << 10 * _POWERS[parts[2].lower()]))


def _shown(size: int) -> str:
    return sizes.text(size) + (f" ({size:,} bytes)" if size >= 1024 else "")


class _Turn:
    """One run of the body of a marked test."""

    def __init__(self) -> None:
        global _count
        _count += 1
        # Digits in names of phases are one name: this one has none, and is no other's.
        self.name = "pytest " + "".join(chr(ord("a") + int(digit)) for digit in str(_count))
        self.was_recording = markers.is_recording()

    def measure(self) -> Dict[str, Dict[int, Optional[int]]]:
        """What tensors held at most, and what was left, by device. Raises `_Unknown`."""
        if not markers.is_recording():
            if self.was_recording or _is_gpu_used():
                raise _Unknown("nothing is being recorded any more; the recorder has said why on stderr")
            # Recording begins with the first call, and there has been none.
            return {"peak": {}, "left": {}}
        try:
            whole = report()
        except (CommandFailed, markers.NotRecording, FileNotFoundError) as error:
            raise _Unknown(f"the trace could not be read: {error}") from error
        if not all(trace["complete"] for trace in whole["traces"]):
            raise _Unknown(f"something is missing in the trace: `gpumemtrace info {whole['traces'][0]['path']}` says what")
        phases = [phase for phase in whole.get("phases", []) if phase["name"] == self.name]
        if len(phases) != 1 or phases[0]["turns"] != 1:
            raise _Unknown("the test is not in the trace")
        # Where PyTorch's own allocator was not seen, nobody knows what tensors held.
        devices = {device["device"] for device in whole["devices"]}
        seen = {device["device"] for device in whole["devices"] if device["peak"]["live_bytes"] is not None}
        of_phase = {device["device"]: device for device in phases[0]["devices"]}
        none: Dict[str, int] = {}
        return {
            what: {device: of_phase.get(device, none).get(key, 0) if device in seen else None for device in sorted(devices)}
            for what, key in (("peak", "peak_live_bytes"), ("left", "left_bytes"))
        }


class _Unknown(Exception):
    pass


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    if not _rules(item) or markers._trace is not None:
        return
    why = "pytest is not recorded, so GPU memory has no witness: start it as `gpumemtrace run -- python -m pytest`"
    if item.config.getoption("--gpumemtrace-required"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: Any) -> Generator[None, Any, None]:
    rules = _rules(item)
    if not rules:
        yield
        return
    for _ in range(max(rule.warmup for rule in rules)):
        item.runtest()
    # What nobody reaches any more is no leak of this test, nor what it gives back.
    gc.collect()
    turn = _Turn()
    with markers.phase(turn.name):
        yield
        gc.collect()
    setattr(item, _ATTRIBUTE, turn)


def _is_gpu_used() -> bool:
    if sys.platform == "darwin":
        # Nobody tells; a recording that cannot begin has said so on stderr.
        return False
    torch = sys.modules.get("torch")
    if torch is not None:
        # PyTorch loads the driver only to ask whether there is one.
        return bool(torch.cuda.is_initialized())
    with open("/proc/self/maps", "rb") as maps:
        return b"/libcuda.so" in maps.read()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, None]:
    outcome = yield
    turn = item.__dict__.pop(_ATTRIBUTE, None)
    result = outcome.get_result()
    # A test that failed by itself says why; expected failures are not ours to judge.
    if turn is None or call.when != "call" or not result.passed:
        return
    try:
        measured = turn.measure()
        failures = [line for rule in _rules(item) for line in rule.judge(measured[rule.what])]
        told = [(f"gpu{device}_peak_live_bytes", held) for device, held in measured["peak"].items()]
        told += [(f"gpu{device}_left_bytes", held) for device, held in measured["left"].items()]
        # JUnit's form takes them from the item, others from the report.
        item.user_properties.extend(told)
        result.user_properties.extend(told)
    except _Unknown as error:
        failures = [f"what the test held is not known: {error}"]
    if failures:
        result.outcome = "failed"
        result.longrepr = "\n".join(failures)
