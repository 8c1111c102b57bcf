"""A full disk does not end a program that writes its trace on btrfs.

A store to a mapped file needs new space there whenever the kernel has written the page back, also
if the block was allocated before; without space, the store raises SIGBUS. So the rings of such a
trace are in memory. The program is tests/workloads/driver/process_ends.c.
"""

import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from conftest import DRIVER, WORKLOADS
from durability_case import Case, skip_or_fail, wait_until


@contextlib.contextmanager
def btrfs(folder):
    """Mounts a small disk of btrfs."""
    image, inside = folder / "image", folder / "disk"
    inside.mkdir()
    with open(image, "wb") as file:
        os.truncate(file.fileno(), 256 << 20)
    shutil.which("mkfs.btrfs") or skip_or_fail("mkfs.btrfs is not installed")
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    if subprocess.run(["mount", "-o", "loop", image, inside], capture_output=True).returncode:
        skip_or_fail("a disk of btrfs cannot be mounted")
    try:
        yield inside
    finally:
        subprocess.run(["umount", "-l", inside], check=True)


@pytest.fixture
def case(tmp_path):
    """A case on its own disk, and the program."""
    shutil.copy(DRIVER, tmp_path / "libcuda.so.1")
    compiler = shutil.which(os.environ.get("CC", "cc")) or skip_or_fail("there is no C compiler")
    subprocess.run([compiler, "-O1", "-o", tmp_path / "process_ends", WORKLOADS / "driver" / "process_ends.c", f"-L{tmp_path}",
                    f"-Wl,-rpath,{tmp_path}", "-l:libcuda.so.1", "-lpthread", "-ldl"], check=True)
    with btrfs(tmp_path) as inside:
        yield Case(inside / "run", tmp_path)


def fill(case):
    """Fills the disk and has the kernel write back all pages."""
    for size in (1 << 20, 4096, 1):
        with contextlib.suppress(OSError), open(case.folder.parent / f"filler{size}", "wb", buffering=0) as file:
            while True:
                file.write(bytes(size))
    os.sync()


def test_full_disk_does_not_end_the_program(case):
    with case.start(case.bin / "process_ends", "in_two_parts", SIMGPU_LOG="") as process:
        assert process.stdout.readline() == "first part\n"
        os.sync()
        fill(case)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "second part\n"
        os.sync()
        output, case.printed = process.communicate("\n", timeout=60)
    assert (process.returncode, output) == (0, "done\n")
    first, second = case.lines()
    assert "its file system copies on write" in first
    assert "recording stopped" in second and "No space left on device" in second
    assert case.check_loss_is_reported()["events"]["device_alloc"] >= 4 * 500


def test_killed_program_reports_what_its_file_system_costs(case):
    with case.start(case.bin / "process_ends", "forever", SIMGPU_LOG="") as process:
        assert process.stdout.readline() == "begun\n"
        wait_until(lambda: case.trace.stat().st_size > 4096, "events in the trace")
        process.kill()
    assert process.returncode == -signal.SIGKILL and not case.ring.exists()
    facts = case.check_loss_is_reported()
    assert any("copies on write" in note["message"] for note in facts["notes"])
