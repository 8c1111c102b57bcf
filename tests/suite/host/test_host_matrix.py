"""Programs of all kinds behave under the preload as they do without it, and their traces are exact.

Each file of tests/host/programs is run untraced and traced, and support/host_matrix compares the
runs. A new program is one new file there. CONTRIBUTING.md explains its header.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from conftest import LIBRARY, PYTHONS
from durability_case import skip_or_fail
from host_matrix.compare import check_trace, differences
from host_matrix.places import PLACES
from host_matrix.programs import HOST, Builds, System, all_programs
from host_matrix.runs import observe_run

#: folder with an old C library=our library built for it; scripts/setup/old-glibc fetches one.
OLD_LIBC = os.environ.get("GPUMEMTRACE_OLD_LIBC", "")
SYSTEMS = {"here": System("here", LIBRARY)}
if OLD_LIBC:
    root, library = map(Path, OLD_LIBC.split("="))
    SYSTEMS[root.name] = System(root.name, library, root / "sysroot")
#: Free-threaded interpreters are few; the others share what these programs use of CPython.
INTERPRETERS = [sys.executable] + [python for python in PYTHONS if python.endswith("t")]
#: python=folder with greenlet and gevent.
GREENLETS = os.environ.get("GPUMEMTRACE_GREENLETS", "=").split("=", 1)
PROGRAMS = all_programs()


def cases():
    for program in PROGRAMS:
        systems = ["here"] if program.is_python or program.value("libc") == "here" else list(SYSTEMS)
        for place in program.words("place") or ["plain"]:
            for interpreter in interpreters(program):
                for system in systems:
                    words = [program.name, place * (place != "plain"), system * (system != "here"),
                             Path(interpreter).name if interpreter.endswith("t") else ""]
                    yield pytest.param(program, place, system, interpreter, id="-".join(word for word in words if word))


def interpreters(program):
    if not program.is_python:
        return [""]
    # Compiled modules fit one interpreter.
    needs_module = any(word.startswith("module ") for word in program.words("needs"))
    return [GREENLETS[0] or sys.executable] if needs_module else INTERPRETERS


@pytest.fixture(scope="session")
def builds():
    made = {}
    with tempfile.TemporaryDirectory(prefix="gpumemtrace-host-") as above:
        Path(above).chmod(0o755)
        yield lambda name: builds_for(Path(above), name, made)


def builds_for(above, name, made):
    if name not in made:
        (above / name).mkdir()
        made[name] = Builds(SYSTEMS[name], above / name)
    return made[name]


@pytest.fixture
def folder():
    """A folder that every user can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="gpumemtrace-host-") as above:
        Path(above).chmod(0o755)
        yield Path(above)


def missing_need(program):
    """Returns what the machine lacks for the program, or None."""
    for word in program.words("needs"):
        if word == "root":
            if os.geteuid():
                return "root"
        elif word.startswith("module "):
            name = word.removeprefix("module ")
            if not (Path(GREENLETS[1] or "/nonexistent") / name).is_dir():
                return f"Python's {name}"
        elif not shutil.which(word):
            return word
    return None


def observe_pair(program, place, builds, interpreter, above, preload):
    """Runs a program untraced and with a preloaded library; returns both observations and folders."""
    variables = dict(pair.split("=", 1) for pair in program.value("env").split())
    output = builds.build(program)
    command = [output]
    if program.is_python:
        variables |= {"HOST_OBSERVER": str(builds.folder / "libobserve.so"), "PYTHONDONTWRITEBYTECODE": "1",
                      "PYTHONPATH": f"{HOST}:{GREENLETS[1]}"}
        command = [interpreter, program.source]
    runs, folders = [], []
    # Names of the same length: the stack's layout depends on them.
    for name, library in (("alone", None), ("trace", preload)):
        folder = above / name
        folder.mkdir()
        (folder / "place").mkdir()
        try:
            with PLACES[place](folder / "place") as inside:
                named = {key: value.replace("$PLACE", str(inside)) for key, value in variables.items()}
                run = observe_run(command, inside, folder, library, **named)
                run.findings = check_trace(runs[0], run, program) if library and library.name == LIBRARY.name else []
                runs.append(run)
                folders.append(folder)
        except LookupError as reason:
            skip_or_fail(f"{place}: {reason}")
    return runs, folders


@pytest.mark.parametrize("program,place,system,interpreter", cases())
def test_program_behaves_as_untraced(program, place, system, interpreter, builds, folder, record_property):
    record_property("program", program.name)
    record_property("system", system)
    lacks = missing_need(program)
    if lacks:
        skip_or_fail(f"{lacks} is not available")
    try:
        made = builds(system)
    except LookupError as reason:
        skip_or_fail(str(reason))
    runs, folders = observe_pair(program, place, made, interpreter, folder, SYSTEMS[system].library)
    found = differences(*runs, folders, program) + runs[1].findings
    # scripts/nightly reads the properties.
    record_property("differences", len(found))
    assert not found, "\n".join(found)
