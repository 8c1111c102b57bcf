"""Access to the trace: the functions of the preloaded library, and the command that reads it.

The command runs as a process while the program waits. So it gets a time limit, and its failure is
reported as the reason why there is no result. It inherits neither the preload nor the standard
input of the program.
"""

import ctypes
import json
import os
import subprocess
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional

#: The path of the command, set by `gpumemtrace run`.
COMMAND_VARIABLE = "GPUMEMTRACE_COMMAND"


class ScanFailed(Exception):
    """The scan cannot run; the text is the reason."""


def _find_function(name: str, result: Any, *arguments: Any) -> Optional[Callable[..., Any]]:
    function: Optional[Callable[..., Any]] = getattr(ctypes.PyDLL(None), name, None)
    if function is not None:
        function.restype = result  # type: ignore[attr-defined]
        function.argtypes = arguments  # type: ignore[attr-defined]
    return function


_trace = _find_function("gpumemtrace_trace", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
_holders = _find_function("gpumemtrace_holders", None, ctypes.c_char_p)
_holder = _find_function(
    "gpumemtrace_holder", None, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64
)


def trace_path() -> Optional[str]:
    """The path of this process's trace; `None` if it is not being recorded."""
    length = _trace(None, 0) if _trace is not None else 0
    if _trace is None or not length:
        return None
    buffer = ctypes.create_string_buffer(length + 1)
    _trace(buffer, length + 1)
    return os.fsdecode(buffer.value)


def write_scan(summary: Dict[str, Any]) -> None:
    """Writes the summary of a scan into the trace."""
    if _holders is not None:
        _holders(_encode_json(summary))


def write_holder(holder: Dict[str, Any], device: int, address: int, blocks: int, size_bytes: int) -> None:
    """Writes a holder into the trace, with the number and bytes of its blocks.

    `address` is that of one of the blocks, which identifies their call site.
    """
    if _holder is not None:
        _holder(_encode_json(holder), device, address, size_bytes, blocks)


def _encode_json(value: Dict[str, Any]) -> bytes:
    # File names may contain lone surrogates. A NUL would end the C string.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("\0", " ")
    return text.encode("utf-8", "replace")


def read_with_command(command: str) -> Callable[[str, float], List[Dict[str, Any]]]:
    """A function that reads the leak candidates of a trace, within a time limit in seconds."""
    return lambda trace, limit_s: _read_leak_candidates(trace, command, limit_s)


def _read_leak_candidates(trace: str, command: str, limit_s: float) -> List[Dict[str, Any]]:
    """The leaks so far, with the addresses of their blocks. Raises `ScanFailed`."""
    try:
        done = subprocess.run(
            [command, "leak-candidates", trace],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_untraced(os.environ),
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise ScanFailed(f"reading the trace took longer than {limit_s:g} s") from None
    except OSError as error:
        raise ScanFailed(f"cannot start the command {command}: {error}") from None
    message = done.stderr.decode("utf-8", "replace").strip()[:200]
    return parse_candidates(done.stdout, message or f"the command failed with exit code {done.returncode}")


def parse_candidates(reply: bytes, otherwise: str) -> List[Dict[str, Any]]:
    """The leaks in a reply of `leak-candidates`. Raises `ScanFailed` if they are unknown.

    `otherwise` is the reason if the reply is not JSON.
    """
    try:
        found = json.loads(reply)
        leaks: List[Dict[str, Any]] = found["leaks"]
        failed = found.get("failed")
    except (ValueError, KeyError, TypeError):
        raise ScanFailed(otherwise) from None
    if failed is not None:
        raise ScanFailed(str(failed))
    return leaks


def _untraced(environment: Mapping[str, str], platform: str = sys.platform) -> Dict[str, str]:
    # A copy of `untraced` in the package's _platform.py, which may not be installed here.
    is_mac = platform == "darwin"
    variable, name = ("DYLD_INSERT_LIBRARIES", "dylib") if is_mac else ("LD_PRELOAD", "so")
    rest = dict(environment)
    value = rest.pop(variable, "")
    entries = value.split(":") if is_mac else value.replace(":", " ").split()
    others = [entry for entry in entries if entry and os.path.basename(entry) != "libgpumemtrace." + name]
    if others:
        rest[variable] = ":".join(others)
    return rest
