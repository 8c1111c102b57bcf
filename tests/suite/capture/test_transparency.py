"""A traced program behaves as untraced, and a program without GPU calls leaves no file."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import COMMAND, DRIVER, LIBRARY, VENVS, dump, environment, gpumemtrace, run_program


def traced(command, folder, **extra):
    return run_program(command, folder, env=environment(folder, **extra))


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_shell_leaves_no_file(tmp_path):
    done = traced(["bash", "-c", "ls / >/dev/null; echo hello | cat; exit 7"], tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "", 7)
    assert files(tmp_path) == []


REPORTS_WITHOUT_PYTORCH = """
import ctypes, sys
cuda, context, pointer = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), ctypes.c_ulonglong()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(512)) == 0
report = ctypes.CDLL(None)._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
number = ctypes.c_ulonglong
for _ in range(3):
    report(number(4096), ctypes.c_longlong(512), number(512), number(1024), ctypes.c_ushort(1))
"""


def test_own_functions_are_not_taken_for_pytorch(tmp_path):
    """Under its own name the library is searched like any other for symbols that PyTorch lacks."""
    ours = tmp_path / "renamed.so"
    shutil.copy(LIBRARY, ours)
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(DRIVER)
    # A recursion is killed before it fills the disk.
    subprocess.run(["timeout", "-s", "KILL", "20", sys.executable, "-c", REPORTS_WITHOUT_PYTORCH, driver], cwd=tmp_path, check=True,
                   env=environment(tmp_path, LD_PRELOAD=ours, GPUMEMTRACE_TORCH_DETAILS="off"))
    assert [event["kind"] for event in dump(tmp_path / "run.trace")].count("block_alloc") == 3


def test_script_without_gpu_leaves_no_file(tmp_path, torch_version):
    python = Path(VENVS[torch_version]) / "bin" / "python"
    code = "import torch; print(torch.ones(3).sum().item(), torch.cuda.is_available())"
    done = traced([python, "-c", code], tmp_path)
    assert (done.stdout, done.returncode) == ("3.0 True\n", 0), done.stderr
    assert not [name for name in files(tmp_path) if "trace" in name]


def test_data_loader_workers_leave_no_file(tmp_path, torch_version):
    python = Path(VENVS[torch_version]) / "bin" / "python"
    code = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(64.0))
keep = torch.ones(1000, device="cuda")
for start in ("fork", "spawn"):
    total = sum(batch.sum().item() for (batch,) in DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context=start))
    print(total)
"""
    script = tmp_path / "workers.py"
    script.write_text("if __name__ == '__main__':" + code.replace("\n", "\n    "))
    done = traced([python, script], tmp_path)
    assert (done.stdout, done.returncode) == ("2016.0\n2016.0\n", 0), done.stderr
    assert [name for name in files(tmp_path) if "trace" in name] == ["run.trace"]


ENDINGS = {
    "normal": "",
    "exit code": "raise SystemExit(3)",
    "exception": "raise ValueError('boom')",
    "quick": "import os; os._exit(5)",
    "quick_exit": "import ctypes; ctypes.CDLL(None).quick_exit(6)",
    "abort": "import os; os.abort()",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "out of memory": "torch.empty(1 << 50, dtype=torch.uint8, device='cuda')",
    "handler": "import atexit; atexit.register(lambda: torch.ones(9, device='cuda'))",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ENDINGS)
def test_output_and_exit_code_are_unchanged(tmp_path, torch_version, name):
    python = Path(VENVS[torch_version]) / "bin" / "python"
    code = f"import torch\nx = torch.ones(1000, device='cuda')\nprint('computed', x.shape, flush=True)\n{ENDINGS[name]}\n"
    results = []
    for with_us in (False, True):
        folder = tmp_path / str(with_us)
        folder.mkdir()
        done = run_program([python, "-c", code], folder, env=environment(folder, with_us))
        results.append((done.returncode, done.stdout, done.stderr))
    assert results[0] == results[1]
    report = json.loads(gpumemtrace("replay", folder / "run.trace", "--json"))
    assert report["traces"][0]["end"] == ("killed" if name in ("abort", "killed") else "exit")


def test_run_returns_exit_code_of_program(tmp_path, torch_version):
    python = Path(VENVS[torch_version]) / "bin" / "python"
    env = environment(tmp_path, traced=False)
    for code, expected in [("raise SystemExit(9)", 9), ("import os; os.kill(os.getpid(), 11)", 139)]:
        done = subprocess.run(
            [COMMAND, "run", "--output", "mine.trace", "--", python, "-c", f"import torch; torch.ones(9, device='cuda'); {code}"],
            cwd=tmp_path, env=env, capture_output=True, text=True,
        )
        assert (done.returncode, done.stdout) == (expected, ""), done.stderr
        assert (tmp_path / "mine.trace").exists()
    assert (tmp_path / "mine.1.trace").exists(), "the first trace is kept"
    end = subprocess.run([COMMAND, "replay", "mine.trace"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert "crashed (signal 11)" in end, "the parent saw the signal"


def test_exec_leaves_one_trace_per_program(tmp_path, torch_version):
    python = Path(VENVS[torch_version]) / "bin" / "python"
    second = "import torch; torch.ones(1 << 20, device='cuda')"
    first = f"import os, sys, torch; torch.ones(1000, device='cuda'); os.execv(sys.executable, [sys.executable, '-c', {second!r}])"
    done = traced([python, "-c", first], tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = dump(tmp_path / "run.1.trace"), dump(tmp_path / "run.trace")
    assert [event["size"] for event in before if event["kind"] == "device_alloc"] == [2 << 20]
    assert [event["size"] for event in after if event["kind"] == "block_alloc"] == [4 << 20]


def test_native_stacks_name_their_modules(tmp_path, torch_version):
    python = Path(VENVS[torch_version]) / "bin" / "python"
    done = traced([python, "-c", "import torch; torch.ones(1000, device='cuda')"], tmp_path, GPUMEMTRACE_STACKS="both")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(gpumemtrace("replay", tmp_path / "run.trace", "--peak", "--json"))
    assert report["traces"][0]["losses"]["truncated_stacks"] == 0
    events = dump(tmp_path / "run.trace")
    assert all(event["native"] and event["python"] for event in events if event["kind"] == "block_alloc")
    text = gpumemtrace("dump", tmp_path / "run.trace", "--stacks")
    assert "libc10_cuda.so" in text and "libtorch_python.so" in text


def test_library_exports_no_runtime_function():
    names = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout.split("\n")
    exported = {line.split()[-1] for line in names if line}
    assert not [name for name in exported if name.startswith("cuda")]
    assert "dlsym" in exported and "cuMemAlloc_v2" in exported


def test_library_stays_loaded():
    flags = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert "NODELETE" in flags
