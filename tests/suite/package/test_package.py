"""The Python package as installed: a wheel in its own environment, with no variables set."""

import html
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from conftest import BUILD, DRIVER, PYTHONS, REPOSITORY, VENVS, WORKLOADS, dump, environment, gpumemtrace, run_program
from installed_package import PackageEnvironment, build_distribution, version_of
from installed_package import installed, wheel  # noqa: F401 (fixtures)

VERSION = re.search(r'^version = "(.+)"', (REPOSITORY / "Cargo.toml").read_text(), re.M)[1]


@pytest.fixture(params=["oldest", "newest"])
def package(request, installed):
    return installed[min(installed) if request.param == "oldest" else max(installed)]


def bare(folder):
    """Returns an environment without the paths of library and command."""
    env = environment(folder, traced=False)
    return {key: value for key, value in env.items() if not key.startswith(("PYTHON", "CARGO_"))} | {"PATH": "/usr/bin:/bin"}


def run(command, folder, code=0):
    driver = folder / "libcuda.so.1"
    if not driver.exists():
        driver.symlink_to(DRIVER)
    done = subprocess.run(list(map(str, command)), cwd=folder, env=bare(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_wheel_contents_and_tag(wheel):
    glibc = re.fullmatch(rf"gpumemtrace-{re.escape(VERSION)}-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name)[1]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        data, info = f"gpumemtrace-{VERSION}.data", f"gpumemtrace-{VERSION}.dist-info"
        binaries = {"gpumemtrace/lib/libgpumemtrace.so": "libgpumemtrace.so", f"{data}/scripts/gpumemtrace": "gpumemtrace"}
        binaries |= {f"gpumemtrace/lib/simgpu/{name}": name for name in ("libsimgpu_driver.so", "libsimgpu_toolkit.so")}
        for inside, built in binaries.items():
            assert archive.read(inside) == (BUILD / built).read_bytes()
        sources = REPOSITORY / "python"
        expected = {str(path.relative_to(sources)) for path in sources.rglob("*.py")} | {"gpumemtrace/py.typed"}
        expected |= {str(path.relative_to(sources)) for path in sources.rglob("*.sql")}
        assert {name for name in names if not name.startswith(info)} == expected | set(binaries)
        assert b"\nRequires-Python: >=3.10\n" in archive.read(f"{info}/METADATA")
    # The linker's version needs, read by another tool, must equal the tag.
    needs = subprocess.run(["readelf", "-VW", *(BUILD / built for built in binaries.values())],
                           capture_output=True, text=True, check=True).stdout
    assert int(glibc) == max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", needs))


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: Path(python).resolve().name)
def test_every_cpython_installs_runs_and_uninstalls(python, wheel, tmp_path):
    """Tests the published wheel if scripts/wheel built it, else this machine's."""
    fresh = PackageEnvironment(python, tmp_path / "venv")
    before = fresh.files()
    fresh.install(os.environ.get("GPUMEMTRACE_WHEEL") or wheel)
    done = run([fresh.command, "run", "--", fresh.python, WORKLOADS / "package/markers.py", "libcuda.so.1", "5"], tmp_path)
    printed = json.loads(done.stdout)
    assert printed["recording"]["is_recording"] and printed["report"]["steps"]["count"] == 3
    assert run([fresh.python, "-m", "gpumemtrace", "--version"], tmp_path).stdout == f"gpumemtrace {VERSION}\n"
    fresh.pip("uninstall", "--yes", "gpumemtrace")
    assert fresh.files() == before


def test_run_needs_no_variables(package, tmp_path):
    done = run([package.command, "run", "--", package.python, WORKLOADS / "package/markers.py", "libcuda.so.1", "5"], tmp_path)
    printed = json.loads(done.stdout)
    trace = tmp_path / "run.trace"
    assert printed["before"] == {"is_recording": False, "refused": "NotRecording"}
    assert printed["recording"] == {"is_recording": True, "path": str(trace)}
    events = dump(trace)
    said_and_done = ("mark", "phase_begin", "phase_end", "device_alloc", "device_free")
    marks = [event["kind"] for event in events if event["kind"] in said_and_done]
    turn = ["mark", "phase_begin", "device_alloc", "phase_begin", "phase_end", "phase_end",
            "phase_begin", "device_alloc", "device_free", "phase_end"]
    assert marks == turn * 5
    # The report from inside covers the first half; the report at the end covers all.
    half, whole = printed["report"], json.loads(gpumemtrace("replay", trace, "--json"))
    assert (half["traces"][0]["end"], whole["traces"][0]["end"]) == ("running", "exit")
    assert (half["steps"]["source"], half["steps"]["count"]) == ("marks", 3)
    assert (whole["steps"]["source"], whole["steps"]["count"]) == ("marks", 5)
    turns = lambda report: {phase["name"]: phase["count"] for phase in report["phases"]}
    assert turns(half) == {"turn #": 2, "inner": 2, "decorated": 2}
    assert turns(whole) == {"turn #": 5, "inner": 5, "decorated": 5}
    assert half["traces"][0]["events"]["device_alloc"] == printed["allocated"]
    # Lines are the program's, never the package's.
    assert all("gpumemtrace/_" not in site["site"].get("file", "") for peak in whole["peak"] for site in peak["sites"])
    # An untraced program reports on another process's trace.
    code = f"import gpumemtrace, json; print(json.dumps(gpumemtrace.report({str(trace)!r}, '--peak')))"
    asked = json.loads(run([package.python, "-c", code], tmp_path).stdout)
    assert asked == json.loads(gpumemtrace("replay", trace, "--peak", "--json"))


def test_leaks_from_inside_the_program(package, tmp_path):
    run([package.command, "run", "--", package.python, WORKLOADS / "package/markers.py", "libcuda.so.1", "60"], tmp_path)
    code = "import gpumemtrace; print([leak['site']['function'] for leak in gpumemtrace.leaks('run.trace')['leaks']])"
    assert run([package.python, "-c", code], tmp_path).stdout == "['keep']\n"


def test_html_from_the_command_and_from_python(package, tmp_path):
    program = [package.python, WORKLOADS / "package/markers.py", "libcuda.so.1", "5"]
    done = run([package.command, "run", "--html", "--", *program], tmp_path)
    assert done.stderr.splitlines()[-1] == "gpumemtrace: wrote run.html; open it in a browser"
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    code = "import gpumemtrace; page = gpumemtrace.html('run.trace', 'page.html'); print(page.path, page); print(page._repr_html_())"
    first, shown = run([package.python, "-c", code], tmp_path).stdout.split("\n", 1)
    page = (tmp_path / "page.html").read_text()
    assert first == "page.html Page('page.html')"
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;') and page.strip() in html.unescape(shown)
    run([package.command, "html", "run.trace", "-o", "again.html"], tmp_path)
    assert (tmp_path / "again.html").read_text() == page
    code = """
import gpumemtrace
for arguments in (["run.trace", "nowhere/page.html"], []):
    try:
        gpumemtrace.html(*arguments)
    except (gpumemtrace.CommandFailed, gpumemtrace.NotRecording) as error:
        print(type(error).__name__)
"""
    assert run([package.python, "-c", code], tmp_path).stdout.split() == ["CommandFailed", "NotRecording"]


def test_untraced_calls_do_nothing(package, tmp_path):
    done = run([package.python, WORKLOADS / "package/markers.py", "libcuda.so.1", "5"], tmp_path)
    assert json.loads(done.stdout)["recording"] == {"is_recording": False, "refused": "NotRecording"}
    assert not list(tmp_path.glob("*.trace*")) and done.stderr == ""


def test_module_runs_the_command(package, tmp_path):
    done = run([package.python, "-m", "gpumemtrace", "run", "--output", "here.trace", "--", package.python, WORKLOADS / "package/markers.py",
                "libcuda.so.1", "5"], tmp_path)
    assert json.loads(done.stdout)["recording"]["path"] == str(tmp_path / "here.trace")
    assert run([package.python, "-m", "gpumemtrace", "--version"], tmp_path).stdout.split()[-1] == VERSION
    assert run([package.python, "-m", "gpumemtrace", "replay", "--leak"], tmp_path, code=2).stderr


def test_run_uses_python_of_the_package(package, tmp_path):
    (tmp_path / "asked.py").write_text("import runpy, sys; print(sys.prefix); runpy.run_path(sys.argv.pop(1), run_name='__main__')")
    arguments = [WORKLOADS / "package/markers.py", "libcuda.so.1", "5"]
    for command in [package.command, "run"], [package.python, "-m", "gpumemtrace", "run"]:
        for program in ["asked.py"], ["-m", "asked"]:
            done = run([*command, *program, *arguments], tmp_path)
            prefix, printed = done.stdout.splitlines()
            assert prefix == str(package.folder) and json.loads(printed)["recording"]["is_recording"]
            (tmp_path / "run.trace").unlink()


def test_start_and_stop_from_inside(package, tmp_path):
    (tmp_path / "starts.py").write_text("""
import gpumemtrace, json, runpy, sys
gpumemtrace.start()
gpumemtrace.mark("started")
runpy.run_path(sys.argv.pop(1), run_name="__main__")
path = gpumemtrace.stop()
print(json.dumps([path, [mark["name"] for mark in gpumemtrace.report(path)["marks"]]]))
""")
    done = run([package.python, "starts.py", WORKLOADS / "package/markers.py", "libcuda.so.1", "5"], tmp_path)
    printed, ended = map(json.loads, done.stdout.splitlines())
    assert printed["recording"]["path"] == ended[0] == str(tmp_path / "run.trace") and ended[1] == ["started"]
    whole = json.loads(gpumemtrace("replay", ended[0], "--json"))
    assert (whole["steps"]["source"], whole["steps"]["count"]) == ("marks", 5) and whole["traces"][0]["mode"] == ["started"]
    # 5 turns of two allocations, one of them freed.
    events = [event["kind"] for event in dump(tmp_path / "run.trace")]
    assert (events.count("device_alloc"), events.count("device_free")) == (10, 5)


def test_errors_name_the_cause(package, tmp_path):
    code = """
import gpumemtrace
try:
    gpumemtrace.report("no.trace")
except gpumemtrace.CommandFailed as error:
    print(error.code, error)
for function in gpumemtrace.phase, gpumemtrace.mark:
    try:
        function(3)
    except TypeError as error:
        print(error)
try:
    gpumemtrace.start("nowhere/run.trace")
except FileNotFoundError as error:
    print(error)
try:
    @gpumemtrace.phase("numbers")
    def numbers():
        yield 1
except TypeError as error:
    print(error)
"""
    lines = run([package.python, "-c", code], tmp_path).stdout.splitlines()
    assert lines[0].startswith("5 ") and "no.trace" in lines[0]
    assert lines[1:] == [
        "the name of a phase must be a str, not int",
        "the name of a mark must be a str, not int",
        f"the trace's folder {tmp_path / 'nowhere'} does not exist; create it first",
        "@phase cannot decorate a generator: put `with phase(...)` around the loop that consumes it",
    ]


def test_uninstall_leaves_no_file(wheel, tmp_path):
    fresh = PackageEnvironment(sys.executable, tmp_path / "venv")
    before = fresh.files()
    fresh.install(wheel)
    assert fresh.command.exists()
    run([fresh.python, "-c", "import gpumemtrace"], tmp_path)
    fresh.pip("uninstall", "--yes", "gpumemtrace")
    assert fresh.files() == before and not list(fresh.folder.rglob("*gpumemtrace*"))


def test_editable_install(tmp_path):
    fresh = PackageEnvironment(sys.executable, tmp_path / "venv")
    (tmp_path / "wheel").mkdir()
    fresh.install(build_distribution("editable", tmp_path / "wheel"))
    done = run([fresh.command, "run", "--", fresh.python, WORKLOADS / "package/markers.py", "libcuda.so.1", "5"], tmp_path)
    printed = json.loads(done.stdout)
    assert printed["recording"]["is_recording"] and printed["report"]["steps"]["count"] == 3
    assert printed["file"] == str(REPOSITORY / "python" / "gpumemtrace" / "__init__.py")


def test_sdist_builds_the_same_wheel(wheel, tmp_path):
    for name in ("sdist", "wheel"):
        (tmp_path / name).mkdir()
    with tarfile.open(build_distribution("sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [source] = (tmp_path / "source").iterdir()
    again = build_distribution("wheel", tmp_path / "wheel", source)
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())
    # Cargo finds each workspace member, each included file and the tested versions.
    cargo = ["cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]
    here, there = (json.loads(subprocess.run(cargo, cwd=folder, capture_output=True, check=True).stdout)
                   for folder in (REPOSITORY, source))
    files = lambda metadata: sorted(
        str(Path(target["src_path"]).relative_to(metadata["workspace_root"]))
        for package in metadata["packages"] for target in package["targets"])
    assert files(there) == files(here)


def test_phases_and_steps_of_training(torch_version, installed, tmp_path):
    there = installed[max(installed)]
    packages = next(there.folder.glob("lib/python3.*/site-packages"))
    python = Path(VENVS[torch_version]) / "bin" / "python"
    # PYTHONPATH only: PyTorch's environment is left as it is.
    env = environment(tmp_path, traced=False, PYTHONPATH=packages)
    done = run_program([there.command, "run", "--", python, WORKLOADS / "package/annotated_training.py"], tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    report = printed["report"]
    assert report["traces"][0]["torch_tracker"] == "attached" and report["traces"][0]["complete"]
    assert (report["steps"]["source"], report["steps"]["count"]) == ("marks", printed["steps"])
    assert {phase["name"]: phase["devices"] for phase in report["phases"]} == {
        name: [{"device": 0} | of_phase] for name, of_phase in printed["phases"].items()
    }
    assert printed["phases"]["train"]["peak_live_bytes"] > printed["phases"]["evaluate"]["peak_live_bytes"] > 0
