"""The programs that `scripts/soak` kills, and how each is recorded.

To add one: a row in HOSTS. The program prints "begun" after its first GPU calls, and "leaving"
before it ends.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
BUILD = Path(os.environ.get("GPUMEMTRACE_BUILD", TARGET / "release"))
COMMAND, LIBRARY = BUILD / "gpumemtrace", BUILD / "libgpumemtrace.so"
WORKLOADS = REPOSITORY / "tests" / "workloads"
TORCH = "2.15.0"

C, PYTORCH = "C", "PyTorch"


@dataclass(frozen=True)
class Host:
    """One program and its settings."""

    name: str
    title: str
    #: C or PYTORCH.
    language: str
    #: Arguments of the storm or of torch_host.py.
    arguments: tuple
    environment: dict = field(default_factory=dict, hash=False)
    #: Moments beside those that every host has: "fork", "rotation", "file call".
    moments: tuple = ()
    #: The disk of the trace fills up while the program runs.
    disk_fills: bool = False
    #: Old parts are deleted.
    drops_oldest: bool = False
    #: All blocks are in one device's running total.
    has_totals: bool = False


#: Small ring buffers fill parts sooner.
SMALL = {"GPUMEMTRACE_MEMORY": "32MiB"}
SLOW = SMALL | {"SOAK_WRITE_US": "20000"}
HOSTS = [
    Host("storm-1", "C, 1 thread", C, (1, 150)),
    Host("storm-4", "C, 4 threads", C, (4, 150), moments=("file call",)),
    Host("storm-16", "C, 16 threads", C, (16, 150)),
    Host("forks", "C, 4 threads beside forks", C, (4, 200, 2), moments=("fork",)),
    Host("rotate", "C, 4 threads, parts of 64 KiB", C, (4, 500), SMALL | {"GPUMEMTRACE_ROTATE": "64KiB"}, ("rotation", "file call")),
    Host("rotate-limit", "C, 2 threads, at most 256 KiB in all", C, (2, 600), SMALL | {"GPUMEMTRACE_MAX_TOTAL_SIZE": "256KiB"},
         ("rotation", "file call"), drops_oldest=True),
    Host("slow-disk", "C, 4 threads, each write takes 20 ms", C, (4, 300), SLOW, ("file call",)),
    Host("full-disk", "C, 4 threads, the disk fills up", C, (4, 200), disk_fills=True),
    Host("train", "PyTorch training", PYTORCH, ("train", "--seconds", 1), has_totals=True),
    Host("resnet", "PyTorch training, expandable segments", PYTORCH, ("train", "--model", "resnet18", "--seconds", 1),
         {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, has_totals=True),
    Host("threads", "PyTorch, 16 Python threads", PYTORCH, ("threads", "--seconds", 0.4), has_totals=True),
    Host("pluggable", "PyTorch, pluggable allocator", PYTORCH, ("train", "--seconds", 1, "--pluggable", LIBRARY)),
]
#: The order of rounds. PyTorch takes seconds to start, so its hosts come less often.
ORDER = [host.name for host in HOSTS] + 2 * [host.name for host in HOSTS if host.language == C]
BY_NAME = {host.name: host for host in HOSTS}


class Programs:
    """The built programs, and the Python that has PyTorch on the simulated GPU."""

    def __init__(self, python=None):
        # Tests that run at the same time build their own: a library in use must not change.
        self.folder = TARGET / "soak" / f"programs{os.environ.get('PYTEST_XDIST_WORKER', '')}"
        self.python = Path(python) if python else TARGET / "venvs" / f"torch-{TORCH}" / "bin" / "python"

    def build(self, cargo=True):
        """Builds what is missing; needs cargo and a C compiler."""
        if cargo:
            subprocess.run(["cargo", "build", "--release", "--workspace", "--quiet"], cwd=REPOSITORY, check=True)
        if not self.python.exists():
            subprocess.run([REPOSITORY / "scripts" / "simgpu-venv", "--torch", TORCH, self.python.parents[1]], check=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(BUILD / "libsimgpu_driver.so", self.folder / "libcuda.so.1")
        compiler = os.environ.get("CC", "cc")
        flags = ["-O1", "-g", "-Wall", "-Werror"]
        storm = ["-L", self.folder, "-l:libcuda.so.1", f"-Wl,-rpath,{self.folder}", "-lpthread", "-ldl"]
        soak = WORKLOADS / "soak"
        subprocess.run([compiler, *flags, "-o", self.folder / "storm", soak / "storm.c", *storm], check=True)
        subprocess.run([compiler, *flags, "-shared", "-fPIC", "-o", self.folder / "file_faults.so", soak / "file_faults.c", "-ldl"], check=True)

    def command(self, host, arguments=()):
        arguments = [*host.arguments, *arguments]
        start = [self.folder / "storm"] if host.language == C else [self.python, WORKLOADS / "soak" / "torch_host.py"]
        return [*map(str, start), *map(str, arguments)]

    def environment(self, host, folder, log=True, **extra):
        """Returns the variables of a recorded run, without those of the caller that change it."""
        env = {key: value for key, value in os.environ.items()
               if not key.startswith(("GPUMEMTRACE_", "SIMGPU_", "PYTORCH_", "LD_", "SOAK_"))}
        env |= host.environment | extra
        faulty = any(name.startswith("SOAK_") for name in env)
        env["LD_PRELOAD"] = f"{self.folder / 'file_faults.so'}:{LIBRARY}" if faulty else str(LIBRARY)
        env["SIMGPU_LOG"] = str(folder / "driver.log") if log else ""
        env["OMP_NUM_THREADS"] = "1"
        return env


@contextlib.contextmanager
def small_disk(folder):
    """Mounts a tmpfs of 8 MiB; raises `OSError` if that is not allowed."""
    folder.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"cannot mount a small disk: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder):
    """Writes until the disk is full."""
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def can_mount():
    folder = TARGET / "soak" / f"mount-{os.getpid()}"
    try:
        with small_disk(folder):
            return True
    except OSError as error:
        print(f"not run: full-disk: {error}", file=sys.stderr)
        return False
    finally:
        folder.rmdir()
