"""The Python package as users get it: a wheel in an environment of its own, and nothing set in the environment."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from conftest import DRIVER, RELEASE, REPOSITORY, VENVS, WORKLOADS, dump, environment, gpumemtrace, run_program
from test_frames import PYTHONS

VERSION = re.search(r'^version = "(.+)"', (REPOSITORY / "Cargo.toml").read_text(), re.M)[1]


def version_of(python):
    code = "import sys; print(*sys.version_info[:2])"
    return tuple(map(int, subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()))


def build(kind, folder, source=REPOSITORY, prebuilt=RELEASE):
    """What pip has hatchling build (a wheel, an editable one, an sdist), of the library and the command that are tested here, or of others."""
    code = f"import sys, hatchling.build; hatchling.build.build_{kind}(sys.argv[1])"
    env = os.environ | {"GPUMEMTRACE_PREBUILT": str(prebuilt)}
    done = subprocess.run([sys.executable, "-c", code, folder], cwd=source, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = folder.iterdir()
    return path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return build("wheel", tmp_path_factory.mktemp("wheel"))


class Installed:
    """An environment of its own."""

    def __init__(self, python, folder, own_pip=False):
        self.python = folder / "bin" / "python"
        self.command = folder / "bin" / "gpumemtrace"
        # To unpack pip takes seconds; but the pip of these tests need not know the oldest Python.
        self.pip_command = [self.python, "-m", "pip"] if own_pip else [sys.executable, "-m", "pip", "--python", self.python]
        self.folder = folder
        subprocess.run([python, "-m", "venv", *([] if own_pip else ["--without-pip"]), folder], check=True, timeout=300)

    def pip(self, command, *arguments):
        options = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([*self.pip_command, command, *options, *arguments], check=True, timeout=300)

    def install(self, wheel):
        self.pip("install", "--no-index", "--no-deps", wheel)

    def files(self):
        return {path for path in self.folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """By version of CPython: an environment each of the oldest and the newest that is here."""
    assert PYTHONS, "GPUMEMTRACE_PYTHONS is not set: run scripts/test"
    by_version = {version_of(python): python for python in reversed(PYTHONS)}
    made = {}
    for version in {min(by_version), max(by_version)}:
        is_old = version != max(by_version)
        made[version] = Installed(by_version[version], tmp_path_factory.mktemp("installed") / "venv", own_pip=is_old)
        made[version].install(wheel)
    return made


@pytest.fixture(params=["oldest", "newest"])
def package(request, installed):
    return installed[min(installed) if request.param == "oldest" else max(installed)]


def bare(folder):
    """An environment in which nothing says where anything is: neither library nor command."""
    env = environment(folder, traced=False)
    return {key: value for key, value in env.items() if not key.startswith(("PYTHON", "CARGO_"))} | {"PATH": "/usr/bin:/bin"}


def run(command, folder, code=0):
    driver = folder / "libcuda.so.1"
    if not driver.exists():
        driver.symlink_to(DRIVER)
    done = subprocess.run(list(map(str, command)), cwd=folder, env=bare(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_one_wheel_holds_what_belongs_to_it(wheel):
    glibc = re.fullmatch(rf"gpumemtrace-{re.escape(VERSION)}-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name)[1]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        data, info = f"gpumemtrace-{VERSION}.data", f"gpumemtrace-{VERSION}.dist-info"
        binaries = {"gpumemtrace/lib/libgpumemtrace.so": "libgpumemtrace.so", f"{data}/scripts/gpumemtrace": "gpumemtrace"}
        for inside, built in binaries.items():
            assert archive.read(inside) == (RELEASE / built).read_bytes()
        sources = REPOSITORY / "pytorch-allocator-shim" / "python"
        expected = {str(path.relative_to(sources)) for path in sources.rglob("*.py")} | {"gpumemtrace/py.typed"}
        assert {name for name in names if not name.startswith(info)} == expected | set(binaries)
        assert b"\nRequires-Python: >=3.8\n" in archive.read(f"{info}/METADATA")
    # What the linker wrote down, as another reader sees it: the tag promises neither more nor less.
    needs = subprocess.run(["readelf", "-VW", RELEASE / "libgpumemtrace.so", RELEASE / "gpumemtrace"],
                           capture_output=True, text=True, check=True).stdout
    assert int(glibc) == max(int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", needs))


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: Path(python).resolve().name)
def test_every_cpython_runs_it_and_keeps_nothing_of_it(python, wheel, tmp_path):
    """The wheel that is published, if scripts/wheel has made it; else the one of this machine."""
    fresh = Installed(python, tmp_path / "venv", own_pip=version_of(python) < (3, 9))
    before = fresh.files()
    fresh.install(os.environ.get("GPUMEMTRACE_WHEEL") or wheel)
    done = run([fresh.command, "run", "--", fresh.python, WORKLOADS / "says.py", "libcuda.so.1", "5"], tmp_path)
    said = json.loads(done.stdout)
    assert said["recording"]["is_recording"] and said["report"]["steps"]["count"] == 3
    assert run([fresh.python, "-m", "gpumemtrace", "--version"], tmp_path).stdout == f"gpumemtrace {VERSION}\n"
    fresh.pip("uninstall", "--yes", "gpumemtrace")
    assert fresh.files() == before


def test_run_needs_nothing_set(package, tmp_path):
    done = run([package.command, "run", "--", package.python, WORKLOADS / "says.py", "libcuda.so.1", "5"], tmp_path)
    said = json.loads(done.stdout)
    trace = tmp_path / "run.trace"
    assert said["before"] == {"is_recording": False, "refused": "NotRecording"}
    assert said["recording"] == {"is_recording": True, "path": str(trace)}
    events = dump(trace)
    said_and_done = ("mark", "phase_begin", "phase_end", "device_alloc", "device_free")
    marks = [event["kind"] for event in events if event["kind"] in said_and_done]
    turn = ["mark", "phase_begin", "device_alloc", "phase_begin", "phase_end", "phase_end",
            "phase_begin", "device_alloc", "device_free", "phase_end"]
    assert marks == turn * 5
    # What it saw of itself half way is what there was by then, and the whole is what there was in the end.
    half, whole = said["report"], json.loads(gpumemtrace("replay", trace, "--json"))
    assert (half["traces"][0]["end"], whole["traces"][0]["end"]) == ("running", "exit")
    assert (half["steps"]["source"], half["steps"]["count"]) == ("marks", 3)
    assert (whole["steps"]["source"], whole["steps"]["count"]) == ("marks", 5)
    turns = lambda report: {phase["name"]: phase["turns"] for phase in report["phases"]}
    assert turns(half) == {"turn #": 2, "inner": 2, "decorated": 2}
    assert turns(whole) == {"turn #": 5, "inner": 5, "decorated": 5}
    assert half["traces"][0]["events"]["device_alloc"] == said["allocated"]
    # By the line of the program, and none of the package's.
    assert all("gpumemtrace/_" not in site["site"].get("file", "") for peak in whole["peak"] for site in peak["sites"])
    # A report of a trace that is not our own, from a program that nobody traces.
    code = f"import gpumemtrace, json; print(json.dumps(gpumemtrace.report({str(trace)!r}, '--peak')))"
    asked = json.loads(run([package.python, "-c", code], tmp_path).stdout)
    assert asked == json.loads(gpumemtrace("replay", trace, "--peak", "--json"))


def test_a_leak_is_found_from_inside(package, tmp_path):
    run([package.command, "run", "--", package.python, WORKLOADS / "says.py", "libcuda.so.1", "60"], tmp_path)
    code = "import gpumemtrace; print([leak['site']['function'] for leak in gpumemtrace.leaks('run.trace')['leaks']])"
    assert run([package.python, "-c", code], tmp_path).stdout == "['keep']\n"


def test_untraced_it_does_nothing(package, tmp_path):
    done = run([package.python, WORKLOADS / "says.py", "libcuda.so.1", "5"], tmp_path)
    assert json.loads(done.stdout)["recording"] == {"is_recording": False, "refused": "NotRecording"}
    assert not list(tmp_path.glob("*.trace*")) and done.stderr == ""


def test_the_module_is_the_command(package, tmp_path):
    done = run([package.python, "-m", "gpumemtrace", "run", "--output", "here.trace", "--", package.python, WORKLOADS / "says.py",
                "libcuda.so.1", "5"], tmp_path)
    assert json.loads(done.stdout)["recording"]["path"] == str(tmp_path / "here.trace")
    assert run([package.python, "-m", "gpumemtrace", "--version"], tmp_path).stdout.split()[-1] == VERSION
    assert run([package.python, "-m", "gpumemtrace", "replay"], tmp_path, code=2).stderr


def test_a_file_or_a_module_is_run_with_the_python_of_the_package(package, tmp_path):
    (tmp_path / "asked.py").write_text("import runpy, sys; print(sys.prefix); runpy.run_path(sys.argv.pop(1), run_name='__main__')")
    arguments = [WORKLOADS / "says.py", "libcuda.so.1", "5"]
    for command in [package.command, "run"], [package.python, "-m", "gpumemtrace", "run"]:
        for program in ["asked.py"], ["-m", "asked"]:
            done = run([*command, *program, *arguments], tmp_path)
            prefix, said = done.stdout.splitlines()
            assert prefix == str(package.folder) and json.loads(said)["recording"]["is_recording"]
            (tmp_path / "run.trace").unlink()


def test_a_program_starts_and_ends_its_recording(package, tmp_path):
    (tmp_path / "starts.py").write_text("""
import gpumemtrace, json, runpy, sys
gpumemtrace.start()
gpumemtrace.mark("started")
runpy.run_path(sys.argv.pop(1), run_name="__main__")
path = gpumemtrace.stop()
print(json.dumps([path, [mark["name"] for mark in gpumemtrace.report(path)["marks"]]]))
""")
    done = run([package.python, "starts.py", WORKLOADS / "says.py", "libcuda.so.1", "5"], tmp_path)
    said, ended = map(json.loads, done.stdout.splitlines())
    assert said["recording"]["path"] == ended[0] == str(tmp_path / "run.trace") and ended[1] == ["started"]
    whole = json.loads(gpumemtrace("replay", ended[0], "--json"))
    assert (whole["steps"]["source"], whole["steps"]["count"]) == ("marks", 5) and whole["traces"][0]["mode"] == ["started"]
    # 5 turns of two allocations, of which one is given back.
    events = [event["kind"] for event in dump(tmp_path / "run.trace")]
    assert (events.count("device_alloc"), events.count("device_free")) == (10, 5)


def test_what_cannot_be_done_is_said(package, tmp_path):
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


def test_nothing_is_left_when_it_is_uninstalled(wheel, tmp_path):
    fresh = Installed(sys.executable, tmp_path / "venv")
    before = fresh.files()
    fresh.install(wheel)
    assert fresh.command.exists()
    run([fresh.python, "-c", "import gpumemtrace"], tmp_path)
    fresh.pip("uninstall", "--yes", "gpumemtrace")
    assert fresh.files() == before and not list(fresh.folder.rglob("*gpumemtrace*"))


def test_an_editable_installation_works_the_same(tmp_path):
    fresh = Installed(sys.executable, tmp_path / "venv")
    (tmp_path / "wheel").mkdir()
    fresh.install(build("editable", tmp_path / "wheel"))
    done = run([fresh.command, "run", "--", fresh.python, WORKLOADS / "says.py", "libcuda.so.1", "5"], tmp_path)
    said = json.loads(done.stdout)
    assert said["recording"]["is_recording"] and said["report"]["steps"]["count"] == 3
    assert said["file"] == str(REPOSITORY / "pytorch-allocator-shim" / "python" / "gpumemtrace" / "__init__.py")


def test_an_sdist_has_all_that_a_build_needs(wheel, tmp_path):
    for name in ("sdist", "wheel"):
        (tmp_path / name).mkdir()
    with tarfile.open(build("sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [source] = (tmp_path / "source").iterdir()
    again = build("wheel", tmp_path / "wheel", source)
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())
    # Cargo finds every member of the workspace, every file that is compiled in, and the versions that were tested.
    cargo = ["cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]
    here, there = (json.loads(subprocess.run(cargo, cwd=folder, capture_output=True, check=True).stdout)
                   for folder in (REPOSITORY, source))
    files = lambda metadata: sorted(
        str(Path(target["src_path"]).relative_to(metadata["workspace_root"]))
        for package in metadata["packages"] for target in package["targets"])
    assert files(there) == files(here)


def test_phases_and_steps_of_a_training(torch_version, installed, tmp_path):
    there = installed[max(installed)]
    packages = next(there.folder.glob("lib/python3.*/site-packages"))
    python = Path(VENVS[torch_version]) / "bin" / "python"
    # Only what it says of itself is set: PyTorch's environment is not ours to install into.
    env = environment(tmp_path, traced=False, PYTHONPATH=packages)
    done = run_program([there.command, "run", "--", python, WORKLOADS / "says_train.py"], tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    report = said["report"]
    assert report["traces"][0]["torch_tracker"] == "attached" and report["traces"][0]["complete"]
    assert (report["steps"]["source"], report["steps"]["count"]) == ("marks", said["steps"])
    assert {phase["name"]: phase["devices"] for phase in report["phases"]} == {
        name: [{"device": 0} | of_phase] for name, of_phase in said["phases"].items()
    }
    assert said["phases"]["train"]["peak_live_bytes"] > said["phases"]["evaluate"]["peak_live_bytes"] > 0
