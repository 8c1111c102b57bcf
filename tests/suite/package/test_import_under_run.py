"""`import gpumemtrace` in programs under `gpumemtrace run`, whatever their environment has."""

import ast
import os
import subprocess

import pytest

from conftest import COMMAND, LIBRARY, PYTHONS, VENVS, environment, gpumemtrace, run_program

PYTHONS = PYTHONS or [os.environ.get("PYTHON", "python3")]
#: Prints the imported package, or why there is none.
IMPORT = """
try:
    import gpumemtrace
    print(gpumemtrace.__version__, getattr(gpumemtrace, "step", None) is not None)
except ImportError as error:
    print(error)
"""
MISSING = "No module named 'gpumemtrace'\n"
#: Prints what a program sees of its interpreter. The last finder and one variable are the
#: exceptions, and `sitecustomize`, if the program has none.
STATE = """
import os, sys
ours = ("GPUMEMTRACE_", "LD_PRELOAD", "NVTX_INJECTION64_PATH")
print({"path": sys.path, "argv": sys.argv, "flags": tuple(sys.flags), "importers": sorted(sys.path_importer_cache),
       "modules": sorted(set(sys.modules) - {"sitecustomize"}),
       "finders": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path if type(finder).__name__ != "_LastFinder"],
       "variables": sorted((name, value) for name, value in os.environ.items() if not name.startswith(ours))})
"""


def run(folder, *command, under_run=True, **variables):
    env = environment(folder, traced=False, GPUMEMTRACE_LIB=LIBRARY) | {key: str(value) for key, value in variables.items()}
    env.pop("GPUMEMTRACE_OUTPUT", None)
    done = subprocess.run([*([COMMAND, "run", "--"] if under_run else []), *command], cwd=folder, env=env, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def version():
    return gpumemtrace("--version").split()[1]


def other_version(folder):
    """Makes a package of another version in a folder."""
    (folder / "gpumemtrace").mkdir(parents=True)
    (folder / "gpumemtrace" / "__init__.py").write_text('__version__ = "other"\n')
    return folder


@pytest.mark.parametrize("python", PYTHONS)
def test_program_without_the_package_gets_that_of_the_command(tmp_path, python):
    assert run(tmp_path, python, "-c", IMPORT, under_run=False) == MISSING
    assert run(tmp_path, python, "-c", IMPORT) == f"{version()} True\n"
    (tmp_path / "program.py").write_text(IMPORT)
    assert run(tmp_path, python, "program.py") == f"{version()} True\n"


@pytest.mark.parametrize("place", ["site-packages", "PYTHONPATH", "beside the program"])
@pytest.mark.parametrize("python", PYTHONS)
def test_package_of_the_environment_is_preferred(tmp_path, python, place):
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python, variables = tmp_path / "venv/bin/python", {}
    (tmp_path / "program").mkdir()
    (tmp_path / "program/program.py").write_text(IMPORT)
    if place == "site-packages":
        [packages] = tmp_path.glob("venv/lib/python*/site-packages")
        other_version(packages)
    elif place == "PYTHONPATH":
        variables["PYTHONPATH"] = other_version(tmp_path / "other")
    else:
        other_version(tmp_path / "program")
    assert run(tmp_path, python, "program/program.py", **variables) == "other False\n"


@pytest.mark.parametrize("path", [None, "/somewhere:/else"])
@pytest.mark.parametrize("python", PYTHONS)
def test_nothing_else_changes(tmp_path, python, path):
    variables = {"PYTHONPATH": path} if path else {}
    for options in ([], ["-I"], ["-S"], ["-E"], ["-s", "-W", "error"]):
        command = [python, *options, "-c", STATE, "-I", "argument"]
        without, under = (ast.literal_eval(run(tmp_path, *command, under_run=under_run, **variables)) for under_run in (False, True))
        assert under == without, options


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_isolated_python_imports_what_it_has(tmp_path, option):
    assert run(tmp_path, PYTHONS[0], option, "-c", IMPORT) == MISSING


@pytest.mark.parametrize("python", PYTHONS)
def test_child_processes_import_it_and_see_the_same_path(tmp_path, python):
    (tmp_path / "child.py").write_text(IMPORT)
    (tmp_path / "program.py").write_text("""
import multiprocessing, os, subprocess, sys

def child():
    import gpumemtrace
    print(gpumemtrace.__version__, flush=True)

if __name__ == "__main__":
    for env in (None, dict(os.environ)):
        subprocess.run([sys.executable, "child.py"], env=env)
        subprocess.run(["sh", "-c", "echo path ${PYTHONPATH-unset}; exec \\"$0\\" child.py", sys.executable], env=env)
    worker = multiprocessing.get_context("spawn").Process(target=child)
    worker.start()
    worker.join()
""")
    for path in (None, "/somewhere"):
        printed = run(tmp_path, python, "program.py", **({"PYTHONPATH": path} if path else {}))
        imported = f"{version()} True"
        assert printed.splitlines() == [imported, f"path {path or 'unset'}", imported] * 2 + [version()]


def test_sitecustomize_of_the_program_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('own')\n")
    printed = run(tmp_path, PYTHONS[0], "-c", f"import sitecustomize; print(sitecustomize.__file__){IMPORT}", PYTHONPATH=tmp_path)
    assert printed == f"own\n{tmp_path}/sitecustomize.py\n{version()} True\n"


def test_scanner_of_holders_runs_too(tmp_path):
    command = [COMMAND, "run", "--holders", "--", PYTHONS[0], "-c", f"import sys; print('_gpumemtrace_holders' in sys.modules){IMPORT}"]
    env = environment(tmp_path, traced=False, GPUMEMTRACE_LIB=LIBRARY)
    assert subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True).stdout == f"True\n{version()} True\n"


def test_no_folder_is_left(tmp_path):
    (tmp_path / "temporary").mkdir()
    run(tmp_path, PYTHONS[0], "-c", IMPORT, TMPDIR=tmp_path / "temporary")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_marks_reach_the_trace_and_reports_find_the_command(torch_version, tmp_path):
    program = """
import gpumemtrace, torch
for _ in gpumemtrace.steps(range(4)):
    torch.empty(1 << 20, device="cuda")
print(gpumemtrace.report()["steps"]["count"])
"""
    env = environment(tmp_path, traced=False, GPUMEMTRACE_LIB=LIBRARY)
    env.pop("GPUMEMTRACE_OUTPUT", None)
    done = run_program([COMMAND, "run", "-o", "run.trace", "--", f"{VENVS[torch_version]}/bin/python", "-c", program], tmp_path, env=env)
    assert done.stdout == "4\n", done.stderr
