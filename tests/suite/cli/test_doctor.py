"""`gpumemtrace doctor` says what is so: it finds everything where everything works, and names what does not."""

import json
import shutil
import subprocess
from pathlib import Path

from conftest import COMMAND, LIBRARY, VENVS, environment


def doctor(folder, torch_version, *arguments, driver=True, python=None, **extra):
    """Its checks by name, and its exit code."""
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


def test_where_everything_works_everything_is_seen(torch_version, tmp_path):
    checks, code = doctor(tmp_path, torch_version)
    assert code == 0, checks
    assert all(check["verdict"] == "ok" for check in checks.values()), checks
    assert sum(name.startswith("route ") for name in checks) == 5
    assert torch_version in checks["PyTorch"]["says"] and "3 of 3" in checks["PyTorch"]["says"]
    assert [path.name for path in tmp_path.iterdir()] == ["driver.log"], "it leaves nothing behind"


def test_a_function_that_is_called_and_not_recorded_is_named(torch_version, tmp_path):
    """The 32-bit functions of CUDA 2 are other functions than those of the same name today, and only counted."""
    (tmp_path / "sitecustomize.py").write_text("import ctypes; ctypes.CDLL('libcuda.so.1').cuMemAlloc(None, 0)")
    checks, code = doctor(tmp_path, torch_version, PYTHONPATH=tmp_path)
    assert code == 3
    bad = [check for check in checks.values() if check["verdict"] == "bad"]
    assert [check["name"] for check in bad] == ["coverage"]
    assert "cuMemAlloc x1" in bad[0]["says"]


def test_a_missing_driver_is_no_fault_and_torchs_own_is_tried_all_the_same(torch_version, tmp_path):
    checks, code = doctor(tmp_path, torch_version, driver=False)
    assert code == 0, checks
    assert checks["driver"]["verdict"] == "absent"
    assert checks["Python"]["verdict"] == checks["PyTorch"]["verdict"] == "ok"


def test_a_library_that_sees_nothing_is_found_out(torch_version, tmp_path):
    """Any library can be preloaded; what counts is whether the allocations are in the trace."""
    impostor = tmp_path / "libgpumemtrace.so"
    other = next(path for path in map(Path, ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"])
                if path.exists())
    shutil.copy(other, impostor)
    checks, code = doctor(tmp_path, torch_version, GPUMEMTRACE_LIB=impostor)
    assert code == 3
    bad = {name for name, check in checks.items() if check["verdict"] == "bad"}
    # Nobody exports the driver's names then, so nothing can be linked to them.
    assert checks["route linked symbol"]["verdict"] == "absent"
    routes = {name for name in checks if name.startswith("route ")}
    assert bad == {"Python", "PyTorch"} | routes - {"route linked symbol"}


def test_a_folder_that_cannot_be_written_is_named(torch_version, tmp_path):
    checks, code = doctor(tmp_path, torch_version, "--output", tmp_path / "missing" / "run.trace")
    assert code == 3
    assert checks["output folder"]["verdict"] == "bad"
    assert "GPUMEMTRACE_OUTPUT" in checks["output folder"]["says"]


def test_an_interpreter_that_does_not_exist_is_named(torch_version, tmp_path):
    checks, code = doctor(tmp_path, torch_version, python="/no/such/python")
    assert code == 3
    assert checks["Python"]["verdict"] == "bad" and "/no/such/python" in checks["Python"]["says"]


def test_the_library_is_the_one_beside_the_command(torch_version, tmp_path):
    checks, _ = doctor(tmp_path, torch_version)
    assert str(LIBRARY) in checks["library"]["says"]
