"""`gpumemtrace doctor` passes on a working setup and names each fault."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import COMMAND, LIBRARY, VENVS, environment


def doctor(folder, torch_version, *arguments, driver=True, python=None, **extra):
    """Returns its checks by name, and its exit code."""
    venv = Path(VENVS[torch_version])
    env = environment(folder, traced=False, **extra)
    if driver:
        env["LD_LIBRARY_PATH"] = str(next(venv.rglob("libcuda.so.1")).parent)
    done = subprocess.run([COMMAND, "doctor", "--json", "--python", python or venv / "bin" / "python", *arguments],
                          cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["well"] == (done.returncode == 0)
    return {check["name"]: check for check in report["checks"]}, done.returncode


def test_working_setup_passes(torch_version, tmp_path):
    checks, code = doctor(tmp_path, torch_version)
    assert code == 0, checks
    assert all(check["verdict"] == "ok" for check in checks.values()), checks
    assert sum(name.startswith("route ") for name in checks) == 5
    assert torch_version in checks["PyTorch"]["says"] and "3 of 3" in checks["PyTorch"]["says"]
    assert [path.name for path in tmp_path.iterdir()] == ["driver.log"], "doctor leaves no file"


def test_unrecorded_function_is_named(torch_version, tmp_path):
    """The 32-bit functions of CUDA 2 share names with today's; they are counted, not recorded."""
    (tmp_path / "sitecustomize.py").write_text("import ctypes; ctypes.CDLL('libcuda.so.1').cuMemAlloc(None, 0)")
    checks, code = doctor(tmp_path, torch_version, PYTHONPATH=tmp_path)
    assert code == 3
    bad = [check for check in checks.values() if check["verdict"] == "bad"]
    assert [check["name"] for check in bad] == ["coverage"]
    assert "cuMemAlloc x1" in bad[0]["says"]


def test_missing_system_driver_is_no_fault(torch_version, tmp_path):
    checks, code = doctor(tmp_path, torch_version, driver=False)
    assert code == 0, checks
    assert checks["driver"]["verdict"] == "absent"
    assert checks["Python"]["verdict"] == checks["PyTorch"]["verdict"] == "ok"


def test_inert_library_is_detected(torch_version, tmp_path):
    """Any library can be preloaded; the check looks for allocations in the trace."""
    impostor = tmp_path / "libgpumemtrace.so"
    other = next(path for path in map(Path, ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"])
                if path.exists())
    shutil.copy(other, impostor)
    checks, code = doctor(tmp_path, torch_version, GPUMEMTRACE_LIB=impostor)
    assert code == 3
    bad = {name for name, check in checks.items() if check["verdict"] == "bad"}
    # Without the driver's exports nothing can link to them.
    assert checks["route linked symbol"]["verdict"] == "absent"
    routes = {name for name in checks if name.startswith("route ")}
    assert bad == {"Python", "PyTorch"} | routes - {"route linked symbol"}


def test_unwritable_folder_is_named(torch_version, tmp_path):
    checks, code = doctor(tmp_path, torch_version, "--output", tmp_path / "missing" / "run.trace")
    assert code == 3
    assert checks["output folder"]["verdict"] == "bad"
    assert "GPUMEMTRACE_OUTPUT" in checks["output folder"]["says"]


def test_sanitizer_stays_before_the_recorder(torch_version, tmp_path):
    runtime = os.path.realpath(subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip())
    settings = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    checks, code = doctor(tmp_path, torch_version, python=sys.executable, **settings)
    assert code == 0, checks
    assert checks["sanitizer"]["says"].startswith(f"{runtime} comes before the recorder")
    assert checks["Python"]["verdict"] == "ok"


def test_missing_interpreter_is_named(torch_version, tmp_path):
    checks, code = doctor(tmp_path, torch_version, python="/no/such/python")
    assert code == 3
    assert checks["Python"]["verdict"] == "bad" and "/no/such/python" in checks["Python"]["says"]


def test_library_beside_command_is_used(torch_version, tmp_path):
    checks, _ = doctor(tmp_path, torch_version)
    assert str(LIBRARY) in checks["library"]["says"]
