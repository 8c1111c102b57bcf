"""GPU memory budgets for tests: the marks `gpu_memory_budget` and `gpu_no_leaks`.

    @pytest.mark.gpu_memory_budget(peak="2 GiB")
    @pytest.mark.gpu_no_leaks

What a test allocates is known from the trace alone, so pytest itself must be recorded, on a
GPU or on a simulated one. A marked test never passes unchecked: its body is a phase, and once it
has passed, its budget is checked against the report on that phase. If there is no recording, the
test is skipped; if the trace cannot answer, it fails. Both give the reason. docs/python/index.md
describes the marks.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import sys
from typing import Any, Callable, Dict, Generator, List, Optional, Tuple, Union

import pytest

from ._recording.markers import NotRecording, has_library, is_recording, mark, phase
from ._reports.report import CommandFailed, report
from ._reports.sites import format_site, grown_sites
from ._reports.sizes import format_size
from ._text import printable

#: Bytes by unit, as in the command: MiB and M are 2^20 bytes, MB is 1,000,000.
_UNIT_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNIT_BYTES.update({_letter: 1024**_power, _letter + "ib": 1024**_power, _letter + "b": 1000**_power})

#: Call sites named in a failure.
_MAX_SITES = 3

#: Number of phases this process has begun.
_phase_count = 0
_RUN_ATTRIBUTE = "_gpumemtrace_run"


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("gpumemtrace")
    group.addoption(
        "--gpumemtrace-required",
        action="store_true",
        help="without a recording, fail the tests that have a GPU memory budget instead of skipping them",
    )


def pytest_configure(config: Any) -> None:
    config.addinivalue_line(
        "markers",
        'gpu_memory_budget(peak, device=None): limit the memory allocated by tensors during the test, for example peak="2 GiB"; '
        "run as `gpumemtrace run -- python -m pytest`, or without a GPU as `gpumemtrace simulate -- python -m pytest`",
    )
    config.addinivalue_line(
        "markers",
        "gpu_no_leaks(allowed=0, device=None, warmup=0): limit the bytes of tensors that the test retains; its body runs `warmup` "
        "times before it is measured",
    )


class _Budget:
    """A limit that a mark sets on a quantity: "peak" or "net" bytes."""

    def __init__(self, quantity: str, limit_bytes: int, device: Optional[int], warmup: int = 0) -> None:
        self.quantity = quantity
        self.limit_bytes = limit_bytes
        self.device = device
        self.warmup = warmup

    def check(self, bytes_by_device: Dict[int, Optional[int]]) -> List[Tuple[int, str]]:
        """Each device above the limit, with a sentence. Raises `_Unknown` if one is not measured."""
        measured = {device: used for device, used in sorted(bytes_by_device.items()) if self.device in (None, device)}
        if None in measured.values():
            raise _Unknown("the GPU was used without PyTorch's own allocator, so allocated bytes are unknown")
        text = "the test retained {} on GPU {}, above the allowed {}"
        if self.quantity == "peak":
            text = "the test's peak of allocated memory was {} on GPU {}, above its budget of {}"
        return [
            (device, text.format(_size_with_bytes(used), device, _size_with_bytes(self.limit_bytes)))
            for device, used in measured.items()
            if used is not None and used > self.limit_bytes
        ]


def _memory_budget(peak: Union[int, str], device: Optional[int] = None) -> _Budget:
    return _Budget("peak", _parse_size(peak), _parse_device(device))


def _no_leaks(allowed: Union[int, str] = 0, device: Optional[int] = None, warmup: int = 0) -> _Budget:
    return _Budget("net", _parse_size(allowed), _parse_device(device), _parse_count("warmup", warmup))


_MARKS: Dict[str, Callable[..., _Budget]] = {"gpu_memory_budget": _memory_budget, "gpu_no_leaks": _no_leaks}


def _budgets_of(item: Any) -> List[_Budget]:
    budgets = []
    for name, make in _MARKS.items():
        found = item.get_closest_marker(name)
        if found is not None:
            signature = inspect.signature(make)
            try:
                signature.bind(*found.args, **found.kwargs)
            except TypeError as error:
                arguments = ", ".join(signature.parameters)
                raise pytest.UsageError(f"{item.nodeid}: {name}: {error}; its arguments are {arguments}") from None
            try:
                budgets.append(make(*found.args, **found.kwargs))
            except ValueError as error:
                raise pytest.UsageError(f"{item.nodeid}: {name}: {error}") from None
    return budgets


def _parse_device(device: Optional[int]) -> Optional[int]:
    return None if device is None else _parse_count("device", device)


def _parse_count(name: str, value: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"{name}={value!r} is not a number; give 0, 1, 2, ...")


def _parse_size(size: Union[int, str]) -> int:
    """The bytes of a number, or of a number with a unit such as "2 GiB" or "500MB"."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    if parts is None or parts[2].lower() not in _UNIT_BYTES:
        raise ValueError(f"{size!r} is not a size; give bytes, or a size such as '2 GiB'")
    return int(float(parts[1]) * _UNIT_BYTES[parts[2].lower()])


def _size_with_bytes(size: int) -> str:
    return format_size(size) + (f" ({size:,} bytes)" if size >= 1024 else "")


class _MeasuredRun:
    """One run of the body of a marked test, as a phase."""

    def __init__(self) -> None:
        global _phase_count
        _phase_count += 1
        # Digits in the names of phases are merged, so the number is written in letters.
        self.name = "pytest " + "".join(chr(ord("a") + int(digit)) for digit in str(_phase_count))
        self.was_recording = is_recording()
        # Few marks are kept from before the first GPU call, and then nothing was held.
        if self.was_recording:
            mark(f"{self.name} begins")

    def end(self) -> None:
        if is_recording():
            mark(f"{self.name} ends")

    def measure(self) -> Dict[str, Dict[int, Optional[int]]]:
        """Peak and net allocated bytes by device; `None` for a device without PyTorch's allocator.

        Raises `_Unknown` if the trace cannot answer.
        """
        if not is_recording():
            if self.was_recording or _is_gpu_used():
                raise _Unknown("there is no recording; the recorder printed the reason on stderr")
            # Recording begins with the first GPU call, and there was none.
            return {"peak": {}, "net": {}}
        try:
            whole = report()
        except (CommandFailed, NotRecording, FileNotFoundError) as error:
            raise _Unknown(f"the trace could not be read: {error}") from error
        if not all(trace["complete"] for trace in whole["traces"]):
            raise _Unknown(f"the trace is incomplete: see `gpumemtrace info {whole['traces'][0]['path']}`")
        phases = [found for found in whole.get("phases", []) if found["name"] == self.name]
        if len(phases) != 1 or phases[0]["count"] != 1:
            raise _Unknown("the test is not in the trace")
        devices = {device["device"] for device in whole["devices"]}
        seen = {device["device"] for device in whole["devices"] if device["peak"]["live_bytes"] is not None}
        in_phase = {device["device"]: device for device in phases[0]["devices"]}
        none: Dict[str, int] = {}
        return {
            quantity: {device: in_phase.get(device, none).get(key, 0) if device in seen else None for device in sorted(devices)}
            for quantity, key in (("peak", "peak_live_bytes"), ("net", "net_bytes"))
        }

    def sites(self, folder: str) -> Dict[Tuple[str, int], List[str]]:
        """A line for each of the largest call sites, by quantity and device; {} if unknown.

        Replays the trace. Paths below `folder` are shown relative to it.
        """
        begin, end = f"mark:{self.name} begins", f"mark:{self.name} ends"
        since = ["--since", begin, "--at", begin] if self.was_recording else []
        try:
            whole = report(None, "--peak", *since, "--at", end)
        except (CommandFailed, NotRecording, FileNotFoundError):
            return {}
        snapshots = {(snapshot["when"], snapshot["device"]): snapshot for snapshot in whole.get("snapshots", [])}
        lines = {}
        for peak in whole.get("peak", []):
            device = peak["device"]
            at_peak = [(row["bytes"], row["site"]) for row in peak["sites"]]
            lines["peak", device] = _site_lines(at_peak, folder)
            lines["net", device] = _site_lines(grown_sites(snapshots.get((begin, device)), snapshots.get((end, device))), folder)
        return lines


def _site_lines(rows: List[Tuple[int, Dict[str, Any]]], folder: str) -> List[str]:
    lines = [f"{format_size(size):>14}  {format_site(site, folder)}" for size, site in rows[:_MAX_SITES]]
    others = rows[_MAX_SITES:]
    if others:
        lines.append(f"{format_size(sum(size for size, _ in others)):>14}  {len(others)} other call site{'s' if len(others) > 1 else ''}")
    return [printable(line) for line in lines]


class _Unknown(Exception):
    """A budget cannot be checked; the text is the reason."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    if not _budgets_of(item) or has_library():
        return
    reason = (
        "GPU memory budgets need a recording: run pytest as `gpumemtrace run -- python -m pytest`, "
        "or without a GPU as `gpumemtrace simulate -- python -m pytest`"
    )
    if item.config.getoption("--gpumemtrace-required"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: Any) -> Generator[None, Any, None]:
    budgets = _budgets_of(item)
    if not budgets:
        yield
        return
    for _ in range(max(budget.warmup for budget in budgets)):
        item.runtest()
    # Garbage of earlier tests must not be freed during this one, nor this test's count as retained.
    gc.collect()
    run = _MeasuredRun()
    with phase(run.name):
        yield
        gc.collect()
    run.end()
    setattr(item, _RUN_ATTRIBUTE, run)


def _is_gpu_used() -> bool:
    if sys.platform == "darwin":
        # Unknown; a recording that could not begin has printed a line on stderr.
        return False
    torch = sys.modules.get("torch")
    if torch is not None:
        # PyTorch loads the driver library even to find out that there is no GPU.
        return bool(torch.cuda.is_initialized())
    with open("/proc/self/maps", "rb") as maps:
        return b"/libcuda.so" in maps.read()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, None]:
    outcome = yield
    run = item.__dict__.pop(_RUN_ATTRIBUTE, None)
    result = outcome.get_result()
    # A test that fails anyway, or is expected to fail, is not checked.
    if run is None or call.when != "call" or not result.passed:
        return
    try:
        measured = run.measure()
        exceeded = [
            (budget.quantity, device, text) for budget in _budgets_of(item) for device, text in budget.check(measured[budget.quantity])
        ]
        sites = run.sites(os.path.join(item.config.invocation_params.dir, "")) if exceeded else {}
        failures = [line for quantity, device, text in exceeded for line in (text, *sites.get((quantity, device), []))]
        properties = [(f"gpu{device}_peak_live_bytes", used) for device, used in measured["peak"].items()]
        properties += [(f"gpu{device}_net_bytes", used) for device, used in measured["net"].items()]
        # JUnit XML takes them from the item, other reporters from the report.
        item.user_properties.extend(properties)
        result.user_properties.extend(properties)
    except _Unknown as error:
        failures = [f"the test's GPU memory is unknown: {error}"]
    if failures:
        result.outcome = "failed"
        result.longrepr = "\n".join(failures)
