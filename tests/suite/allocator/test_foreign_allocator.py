"""Allocators of other libraries, such as RMM: an error for lack of memory has its size and line."""

import json
import os
import shutil
import subprocess

import pytest

from conftest import WORKLOADS, gpumemtrace

MIB = 1 << 20
LINE = next(
    number
    for number, line in enumerate((WORKLOADS / "memory/foreign_allocator.py").read_text().splitlines(), 1)
    if "the request" in line
)


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """An allocator that is not gpumemtrace's, as a library."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        reason = "not checked: there is no C++ compiler here"
        (pytest.fail if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip)(reason)
    library = tmp_path_factory.mktemp("foreign") / "libforeign.so"
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library,
                    WORKLOADS / "driver/foreign_allocator.cpp", "-ldl"], check=True)
    return library


def refused_calls(run):
    return [event for event in run.events() if event["kind"] == "device_alloc" and event["rc"] == 2]


def test_refused_block_is_an_error_with_size_and_line(run_python, torch_version, foreign):
    run = run_python(torch_version, "memory/foreign_allocator.py", foreign, "foreign", 50, SIMGPU_MEM="2G")
    kept = int(run.process.stdout.split()[1])
    assert run.process.stdout == f"refused {kept} RuntimeError\n"
    report = run.report()
    (oom,) = report["oom"]
    assert (oom["requested_bytes"], oom["site"]["line"], oom["live_bytes"]) == (100 * MIB, LINE, kept * 100 * MIB)
    # The driver's log says the same.
    assert [event["size"] for event in refused_calls(run)] == [100 * MIB]
    text = gpumemtrace("replay", run.trace, "--oom", "--fail-on", "oom", code=3)
    assert f"foreign_allocator.py:{LINE}" in text


def test_pool_that_asks_for_less_has_no_error_until_it_gets_nothing(run_python, torch_version, foreign):
    # The pool's pieces: 100, 100, 200, 400, 800 MiB; then 1600, refused, and halves of it.
    enough = run_python(torch_version, "memory/foreign_allocator.py", foreign, "pool", 18, SIMGPU_MEM="2G", name="enough")
    assert enough.process.stdout == "enough\n"
    assert refused_calls(enough)
    assert enough.report()["oom"] == []
    gpumemtrace("replay", enough.trace, "--fail-on", "oom")
    full = run_python(torch_version, "memory/foreign_allocator.py", foreign, "pool", 50, "--crash", SIMGPU_MEM="2G",
                      check=False, name="full")
    assert full.process.returncode == 1
    (oom,) = full.report()["oom"]
    assert (oom["requested_bytes"], oom["site"]["line"]) == (100 * MIB, LINE)
    assert refused_calls(full)[-1]["size"] == 100 * MIB
    gpumemtrace("replay", full.trace, "--fail-on", "oom", code=3)


def test_error_of_a_library_that_pytorch_only_calls_is_not_one_of_the_allocator(run_python, torch_version, foreign, tmp_path):
    # The allocator itself is called without PyTorch.
    program = tmp_path / "direct.py"
    program.write_text(f"""
import ctypes, sys
import torch
allocator = torch.cuda.memory.CUDAPluggableAllocator({str(foreign)!r}, "foreign_malloc", "foreign_free")
torch.cuda.memory.change_current_allocator(allocator)
torch.ones(1, device="cuda")
driver = ctypes.CDLL("libcuda.so.1")
address = ctypes.c_uint64()
print(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 40)))
""")
    run = run_python(torch_version, program, SIMGPU_MEM="2G")
    assert run.process.stdout == "2\n"
    assert run.report()["oom"] == []
