"""Runs notebook cells, in a kernel or in a shell of this process. The last line is JSON: the output
of each cell, and whether it succeeded.

usage: notebook.py kernel|shell
"""

import contextlib
import io
import json
import os
import sys

CELLS = [
    "%load_ext gpumemtrace",
    "import torch\nkept = []",
    "%%gpumemtrace named.trace\nx = 1",
    "%%gpumemtrace other.trace\n"
    "kept.append(torch.ones(1 << 20, device='cuda'))\n"
    "y = torch.ones(3 << 20, device='cuda')\n"
    "del y",
    "def make():\n    return torch.ones(1 << 18, device='cuda')",
    "%%gpumemtrace\nkept += [make() for _ in range(4)]\nraise KeyError('of the cell')",
    "torch.ones(1 << 24, device='cuda')[0].item()",
    "%%gpumemtrace\nkept.clear()",
    "print(torch.cuda.memory_allocated())",
    "%%gpumemtrace\nif",
]


def by_shell():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance(colors="nocolor")
    for cell in CELLS:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = shell.run_cell(cell, store_history=True)
        yield printed.getvalue(), result.success


def by_kernel():
    from jupyter_client.manager import KernelManager

    # This Python's own kernel, without searching for installed ones.
    manager = KernelManager()
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.kernel_spec.argv[:] = manager.kernel_cmd
    manager.start_kernel(env=dict(os.environ))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    for cell in CELLS:
        printed = []

        def hook(message, printed=printed):
            results = message["content"]
            printed.append(results["text"] if "text" in results else results["ename"] + "\n" if "ename" in results else "")

        reply = client.execute_interactive(cell, output_hook=hook, timeout=60)
        yield "".join(printed), reply["content"]["status"] == "ok"
    client.stop_channels()
    manager.shutdown_kernel()


print(json.dumps(list(by_shell() if sys.argv[1] == "shell" else by_kernel())))
