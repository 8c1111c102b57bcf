"""Runs programs in forks of a Python that has already imported PyTorch.

`import torch` takes seconds of CPU, and most programs of the suites run for less. The recorder
starts nothing before the first GPU call, so a fork before it makes the trace of a fresh start;
capture/test_prepared_python.py compares them event for event. Tests about starting, command lines,
imports and threads of the interpreter start their programs for real. At their end, programs leave
PyTorch's modules as they are, unless `frees_everything` is true: that saves most of the time.
"""

import json
import os
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "prepared"
#: Variables that are read after the import of PyTorch. All others are set before it.
READ_LATER = ("GPUMEMTRACE_", "SIMGPU_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTEST_")
#: Their value is read later too, but for the choice of the allocator.
ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
#: Prepared interpreters that one process keeps; each holds all of PyTorch in memory.
KEPT = 5


class _Prepared:
    """One interpreter with PyTorch, for one set of variables that matter at its start."""

    def __init__(self, python, environment):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = ":".join([str(FOLDER), *filter(None, [environment.get("PYTHONPATH")])])
        variables = environment | {"PREPARED_PYTHON_SOCKET": str(theirs.fileno()), "PYTHONPATH": path}
        self._process = subprocess.Popen([python, "/the-program-of-a-prepared-python"], env=variables, pass_fds=[theirs.fileno()],
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        theirs.close()
        self._connection, self._answers, self._lock = ours, ours.makefile("r"), threading.Lock()

    def run(self, command, folder, environment, timeout, frees_everything):
        request = json.dumps({"command": command, "folder": str(folder), "environment": environment, "frees_everything": frees_everything}).encode()
        with self._lock, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            socket.send_fds(self._connection, [request], [output.fileno(), errors.fileno()])
            child = self._answers.readline()
            if not child:
                raise RuntimeError(f"PyTorch cannot be imported: {self._process.communicate()[1].decode()[-4000:]}")
            killer = threading.Timer(timeout, os.kill, (int(child), 9))
            killer.start()
            code = self._answers.readline()
            killer.cancel()
            output.seek(0), errors.seek(0)
            texts = [file.read().decode().replace("\r\n", "\n") for file in (output, errors)]
        if not code:
            raise RuntimeError(f"the prepared interpreter ended: {self._process.communicate()[1].decode()[-4000:]}")
        return subprocess.CompletedProcess(command, int(code), *texts)

    def close(self):
        self._connection.close()
        self._answers.close()
        self._process.communicate()


_prepared = {}


def can_run(command, environment, pythons):
    """Whether the command is one of the given interpreters, and the path of a program."""
    has_own_start = any((Path(folder) / "sitecustomize.py").exists() for folder in environment.get("PYTHONPATH", "").split(":") if folder)
    return len(command) > 1 and command[1].endswith(".py") and command[0] in pythons and not has_own_start


def is_read_later(name, value):
    return name.startswith(READ_LATER) or (name in ALLOCATOR_SETTINGS and "backend" not in value)


def run(command, folder, environment, timeout, frees_everything):
    """Runs a program to its end, as `subprocess.run` would with its output as text."""
    early = {name: value for name, value in environment.items() if not is_read_later(name, value)}
    key = (command[0], *sorted(early.items()))
    prepared = _prepared.pop(key, None) or _Prepared(command[0], early)
    # The last one used is the last one closed.
    _prepared[key] = prepared
    while len(_prepared) > KEPT:
        _prepared.pop(next(iter(_prepared))).close()
    return prepared.run(command, folder, environment, timeout, frees_everything)
