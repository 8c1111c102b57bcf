"""The way to the trace: the functions of the library that was preloaded, and the command that reads what it has written.

Constraint: the command is a process, and the program waits for it. Consequence: it gets a limit of its own, and says why it has
nothing to say where that is over; it inherits neither the preload nor the program's input.
"""

import ctypes
import json
import os
import subprocess
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional

#: The command of `gpumemtrace run`, which knows where it is.
COMMAND_VARIABLE = "GPUMEMTRACE_COMMAND"


class Failed(Exception):
    """Nothing can be looked for; the text says why."""


def _find(name: str, result: Any, *arguments: Any) -> Optional[Callable[..., Any]]:
    function: Optional[Callable[..., Any]] = getattr(ctypes.PyDLL(None), name, None)
    if function is not None:
        function.restype = result  # type: ignore[attr-defined]
        function.argtypes = arguments  # type: ignore[attr-defined]
    return function


_trace = _find("gpumemtrace_trace", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
_holders = _find("gpumemtrace_holders", None, ctypes.c_char_p)
_holder = _find(
    "gpumemtrace_holder", None, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64
)


def trace_path() -> Optional[str]:
    """The file that this process is recorded into, if it is."""
    length = _trace(None, 0) if _trace is not None else 0
    if _trace is None or not length:
        return None
    buffer = ctypes.create_string_buffer(length + 1)
    _trace(buffer, length + 1)
    return os.fsdecode(buffer.value)


def write_look(text: Dict[str, Any]) -> None:
    """Tells the trace of a look."""
    if _holders is not None:
        _holders(_bytes(text))


def write_holder(text: Dict[str, Any], device: int, address: int, amount: "List[int]") -> None:
    """Tells the trace who holds some blocks: so many, of so many bytes; one of them has this address."""
    if _holder is not None:
        blocks, in_bytes = amount
        _holder(_bytes(text), device, address, in_bytes, blocks)


def _bytes(text: Dict[str, Any]) -> bytes:
    # A character that is no character may be in the name of a file; a NUL would end the text.
    return json.dumps(text, ensure_ascii=False, separators=(",", ":")).replace("\0", " ").encode("utf-8", "replace")


def suspects(trace: str, command: str, limit_s: float) -> List[Dict[str, Any]]:
    """The leaks so far, with the addresses of their blocks. Raises `Failed`."""
    try:
        done = subprocess.run(
            [command, "suspects", trace],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_untraced(os.environ),
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"the trace was not read within {limit_s:g} s") from None
    except OSError as error:
        raise Failed(f"the command {command} cannot be started: {error}") from None
    try:
        leaks: List[Dict[str, Any]] = json.loads(done.stdout)["leaks"]
        return leaks
    except (ValueError, KeyError, TypeError):
        said = done.stderr.decode("utf-8", "replace").strip()
        raise Failed(said[:200] or f"the command ended with {done.returncode}") from None


def _untraced(environment: Mapping[str, str], platform: str = sys.platform) -> Dict[str, str]:
    # As in the package's _system.py, which need not be where this runs.
    is_mac = platform == "darwin"
    variable, name = ("DYLD_INSERT_LIBRARIES", "dylib") if is_mac else ("LD_PRELOAD", "so")
    rest = dict(environment)
    value = rest.pop(variable, "")
    entries = value.split(":") if is_mac else value.replace(":", " ").split()
    others = [entry for entry in entries if entry and os.path.basename(entry) != "libgpumemtrace." + name]
    if others:
        rest[variable] = ":".join(others)
    return rest
