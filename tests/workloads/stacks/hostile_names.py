"""Trains in code whose names try to leave their place in a page: files, functions, modules, marks,
phases, and the list that keeps a tensor per step.

A script that runs because of a name sets `window.hostile`. Prints the names as JSON, in the order
of the files and functions that they name.
"""

import ctypes
import json

import torch

NAMES = [
    "</script><script>window.hostile=1</script>",
    "<img src=x onerror=window.hostile=1>",
    "\"'><svg onload=window.hostile=1>",
    "javascript:window.hostile=1//",
    "--></style></title></textarea><iframe srcdoc='<script>parent.hostile=1</script>'>",
    "__proto__",
    "constructor",
    "\u202eevil\u2066 right to left\u2069",
    "\u0007bell \u001b[31mred\u001b[0m \u007f\u0085\u2028\u2029\ufeff",
    "&lt;b&gt;&amp; ${window.hostile=1} {{window.hostile=1}} %3Cscript%3E",
    "long " + "x" * 5000,
    "` | [x](https://example.com/`) @octocat #1 ``![i](http://example.com/i.png) **b** www.example.com",
]
recorder = ctypes.CDLL(None)
recorder.gpumemtrace_mark.argtypes = recorder.gpumemtrace_phase_begin.argtypes = [ctypes.c_char_p]
kept = globals()[NAMES[1]] = []


def function_named(name):
    """Returns a function of this name, in a file of this name, that allocates."""
    code = compile("def make(torch):\n    return torch.ones(1 << 18, device='cuda')\n", f"/work/{name}.py", "exec")
    there = {}
    exec(code, there)
    function = there["make"]
    function.__code__ = function.__code__.replace(co_name=name, **(
        {"co_qualname": name} if hasattr(function.__code__, "co_qualname") else {}))
    return function


class Wide(torch.nn.Linear):
    """A module; the trace has the name of its class."""


Wide.__name__ = Wide.__qualname__ = NAMES[1]
layer = Wide(64, 64, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
functions = [function_named(name) for name in NAMES]
for step in range(12):
    recorder.gpumemtrace_step()
    optimizer.zero_grad()
    layer(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    for name, function in zip(NAMES, functions):
        recorder.gpumemtrace_phase_begin(name.encode())
        temporary = function(torch)
        recorder.gpumemtrace_phase_end()
    kept.append(functions[0](torch))
    kept.append(torch.ones(1 << 16, device="cuda"))  # </script><script>window.hostile=1</script>
live = [function(torch) for function in functions]
for name in NAMES:
    recorder.gpumemtrace_mark(name.encode())
torch.ones(1, device="cuda")
print(json.dumps(NAMES))
