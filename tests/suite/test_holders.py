"""Who holds what leaks, with real PyTorch: the names are the program's own, nothing of the program is changed, and what is not known is said."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from conftest import COMMAND, REPOSITORY, VENVS, WORKLOADS, Run, environment, gpumemtrace, run_program
from test_frames import PYTHONS

LAB = REPOSITORY / "scripts" / "leaklab"
sys.path.insert(0, str(LAB))
import lab  # noqa: E402

PACKAGE = REPOSITORY / "pytorch-allocator-shim" / "python"
HELD = WORKLOADS / "held.py"
STEPS = 12


@pytest.fixture
def run_asked(torch_version, tmp_path):
    """Runs a program with `gpumemtrace run --holders`."""

    def run(script, *arguments, code=0, options=(), python=(), **extra):
        interpreter = Path(VENVS[torch_version]) / "bin" / "python"
        command = [COMMAND, "run", "--holders", *options, "--", interpreter, *python, script, *map(str, arguments)]
        process = run_program(list(map(str, command)), tmp_path, env=environment(tmp_path, traced=False, **extra))
        assert process.returncode == code, process.stdout[-2000:] + process.stderr[-4000:]
        return Run(process, tmp_path)

    return run


def held(run):
    """Each leak's names, with its number of blocks by name."""
    report = run.report("--leaks")
    jsonschema.validate(report, json.loads((REPOSITORY / "docs" / "report.schema.json").read_text()))
    for leak in report["leaks"]:
        if leak["holders"] is not None:
            assert_it_adds_up(leak)
    return report


def assert_it_adds_up(leak):
    seen = leak["holders_seen"]
    for what in ("blocks", "bytes"):
        assert sum(one[what] for one in leak["holders"] + seen["unresolved"]) == seen[what]
    assert sum(one["blocks"] for one in leak["holders"]) == seen["named_blocks"]


def line_of(mark):
    lines = HELD.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# line: {mark}"))


@pytest.mark.parametrize("fixed", [False, True], ids=["leaky", "mended"])
@pytest.mark.parametrize("pattern", lab.PATTERNS)
def test_the_leak_lab(run_asked, pattern, fixed):
    """Each of the eight mistakes is a list of the script's: that is named for every block of every finding, and nothing where it is mended."""
    run = run_asked(LAB / "train.py", pattern, *["--fixed"] * fixed, "--steps", 30, "--batch", 16, **lab.CONF)
    report = held(run)
    [look] = report["holders"]
    assert (look["when"], look["failed"], look["leaks"]) == ("exit", None, len(report["leaks"]))
    assert bool(report["leaks"]) != fixed
    for leak in report["leaks"]:
        names = {(holder["name"], holder["type"]) for holder in leak["holders"]}
        assert names == {("train.kept", "list")} and leak["holders_seen"]["unresolved"] == []
        assert leak["holders_seen"]["blocks"] == leak["blocks"] and leak["holders_seen"]["bytes"] == leak["bytes"]
    assert not lab.not_held(report)
    if pattern == "retained_validation" and not fixed:
        assert "train.kept (list, 60 items) <- tensor <- grad_fn chain" in " ".join(gpumemtrace("replay", run.trace, "--leaks").split())


@pytest.mark.parametrize("holder,name,kind,chain", [
    ("list", "held.kept", "list", ["tensor"]),
    ("attribute", "held.trainer.seen['loss']", "list", ["tensor"]),
    ("keyed", "held.by_step", "dict", ["tensor"]),
    ("closure", "held.remember closure memory", "list", ["tensor"]),
    ("class", "held.Trainer.history", "list", ["tensor"]),
    ("slots", "held.slotted.found", "list", ["tuple[*]", "tensor"]),
    ("both", "held.kept", "list", ["tensor"]),
    ("graph", "held.total", "Tensor", ["grad_fn chain"]),
])
def test_every_way_to_keep_a_tensor_has_the_name_that_its_user_knows(run_asked, holder, name, kind, chain):
    run = run_asked(HELD, holder, "--steps", STEPS, code=7)
    [leak] = held(run)["leaks"]
    assert leak["site"]["line"] == line_of("factor" if holder == "graph" else "new")
    [found] = leak["holders"]
    assert (found["name"], found["type"], found["chain"], found["blocks"]) == (name, kind, chain, STEPS)
    assert found["items"] == (None if kind == "Tensor" else STEPS)
    assert "done []" in run.process.stdout


def test_what_no_name_leads_to_is_said_to_be_so(run_asked):
    run = run_asked(HELD, "unnamed", code=7)
    [leak] = held(run)["leaks"]
    assert leak["holders"] == []
    assert leak["holders_seen"]["unresolved"] == [{"why": "no_name", "blocks": STEPS, "bytes": STEPS << 20}]
    assert "are in tensors that no name leads to" in " ".join(gpumemtrace("replay", run.trace, "--leaks").split())


def test_what_was_gone_by_then_is_said_to_be_so(run_asked):
    """A variable of a function that has returned."""
    run = run_asked(HELD, "local", code=7)
    [leak] = held(run)["leaks"]
    assert leak["holders"] is None and leak["holders_seen"] is None
    assert "Who holds it is not known" in gpumemtrace("replay", run.trace, "--leaks")


def test_objects_that_raise_whatever_they_are_asked_are_not_asked(run_asked):
    run = run_asked(HELD, "rude", code=7)
    [leak] = held(run)["leaks"]
    assert {holder["name"] for holder in leak["holders"]} == {"held.rude['of']"}
    assert leak["holders_seen"]["unresolved"] == []
    assert "done []" in run.process.stdout, "somebody asked them"


def test_functions_for_what_a_graph_saves_are_not_called(run_asked, torch_version):
    """Those of activation checkpoints would compute it anew."""
    run = run_asked(HELD, "hooked", code=7)
    [leak] = held(run)["leaks"]
    assert "done []" in run.process.stdout
    python = Path(VENVS[torch_version]) / "bin" / "python"
    asks = "import torch, sys; sys.exit(not hasattr(torch._C._autograd.SavedTensor, 'unpack_hook'))"
    if subprocess.run([python, "-c", asks]).returncode == 0:
        assert [holder["name"] for holder in leak["holders"]] == ["held.total"]
    else:
        assert [(one["why"], one["blocks"]) for one in leak["holders_seen"]["unresolved"]] == [("saved_unread", STEPS)]


def test_a_walk_ends_at_its_limit_and_says_so(run_asked):
    """A tenth of a second is too little for two million objects by any computer, so what no name leads to is not found to be so."""
    run = run_asked(HELD, "unnamed", "--objects", 2_000_000, options=["--holders-limit", "0.1"], code=7)
    report = held(run)
    [look], [leak] = report["holders"], report["leaks"]
    assert look["is_cut"] is True and look["limit_ns"] == 100_000_000 and look["objects"] > 0
    assert [(one["why"], one["blocks"]) for one in leak["holders_seen"]["unresolved"]] == [("out_of_time", STEPS)]
    assert "ended at its limit of 100" in " ".join(gpumemtrace("replay", run.trace, "--leaks").split())


def test_what_comes_near_is_found_in_a_large_heap(run_asked):
    run = run_asked(HELD, "list", "--objects", 2_000_000, options=["--holders-limit", "60"], code=7)
    report = held(run)
    assert report["holders"][0]["is_cut"] is False
    assert [holder["name"] for holder in report["leaks"][0]["holders"]] == ["held.kept"]


@pytest.mark.parametrize("holder", ["list", "keyed", "closure", "graph"])
def test_a_look_changes_nothing(run_asked, tmp_path, holder):
    """Neither references, nor the number of objects, nor anything that PyTorch counts."""
    path = {"PYTHONPATH": str(PACKAGE), "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
    run_asked(HELD, holder, "--measure", tmp_path / "measured.json", code=7, **path)
    measured = json.loads((tmp_path / "measured.json").read_text())
    assert measured["before"] == measured["after"]
    assert len(measured["before"]["refcounts"]) > 10 and len(measured["before"]["stats"]) > 50
    for look in measured["looks"]:
        [leak] = look["leaks"]
        assert look["when"] == "call" and not look["cut"] and leak["unresolved"] == []
        assert sum(one["blocks"] for one in leak["holders"]) == leak["blocks"] == STEPS


def test_when_memory_runs_out_the_program_goes_on(run_asked):
    run = run_asked(HELD, "oom", code=7)
    report = held(run)
    assert [look["when"] for look in report["holders"]] == ["oom", "oom", "oom", "exit"], "of five, three are looked at"
    assert [holder["name"] for holder in report["leaks"][0]["holders"]] == ["held.kept"]
    assert json.loads(run.process.stdout.split("done ")[1]) == ["oom"] * 5
    kinds = [event["kind"] for event in run.events() if event["kind"] in ("oom", "holders")]
    assert kinds[:2] == ["oom", "holders"]


def test_an_error_that_ends_the_program_keeps_the_names_of_its_functions(run_asked):
    """Its traceback has their variables, at the end too."""
    run = run_asked(HELD, "raises", code=1)
    report = held(run)
    [holder] = report["leaks"][0]["holders"]
    assert holder["name"].endswith("held.run() local history") and holder["items"] == STEPS
    assert run.process.stderr.count("ValueError: the end") == 1


def test_at_a_signal_the_names_are_those_of_that_moment(run_asked):
    run = run_asked(HELD, "signal", options=["--holders-signal", "usr2"], code=7)
    assert [look["when"] for look in held(run)["holders"]] == ["signal", "exit"]
    assert "done []" in run.process.stdout and "Traceback" not in run.process.stderr


def test_local_variables_have_the_name_of_their_function(run_asked, tmp_path):
    path = {"PYTHONPATH": str(PACKAGE), "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
    run_asked(HELD, "local", "--measure", tmp_path / "measured.json", code=7, **path)
    [holder] = json.loads((tmp_path / "measured.json").read_text())["looks"][0]["leaks"][0]["holders"]
    assert (holder["name"], holder["type"], holder["items"]) == ("held.run() local history", "list", STEPS)


def test_looking_at_variables_keeps_none_of_them():
    """In this Python: what a frame was asked for goes when the function drops it, and what `locals()` gave is whole."""
    program = """
import sys, weakref
sys.path.insert(0, sys.argv[1])
from gpumemtrace._holders.frames import function_locals
class Thing: pass
def function():
    thing, other = Thing(), [1]
    seen = function_locals(sys._getframe())
    assert seen["thing"] is thing and seen["other"] is other
    alive = weakref.ref(thing)
    del thing, seen
    assert alive() is None, "it was kept"
    exec("added = 3")
    mine = locals()
    function_locals(sys._getframe())
    assert mine["other"] is other, "it was emptied"
    del mine
    function_locals(sys._getframe())
    return locals().get("added")
def plain():
    exec("added = 3")
    locals()
    return locals().get("added")
assert function() == plain()
"""
    for python in {sys.executable, *PYTHONS, *(Path(venv) / "bin" / "python" for venv in VENVS.values())}:
        subprocess.run([python, "-c", program, PACKAGE], check=True)


def test_the_program_sees_no_difference(torch_version, run_asked, tmp_path):
    """The path, the modules that hook into imports, and another sitecustomize are as without; a Python that is told to see nothing is left alone."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.came_first = True\n")
    script = tmp_path / "sees.py"
    script.write_text(
        "import os, sys, torch, atexit\n"
        "atexit.register(print, 'last')\n"
        "print(sys.path, sys.meta_path, getattr(sys, 'came_first', None), sys.modules['sitecustomize'].__file__)\n"
        "print(torch.cuda.__spec__.loader, torch.cuda.__loader__, torch.autograd.__spec__.loader, sys.exc_info())\n"
        "torch.zeros(5, device='cuda')\n"
        "sys.exit(5)\n"
    )
    # Others run at the same time: their folders are not this one's.
    (tmp_path / "tmp").mkdir()
    path = {"PYTHONPATH": str(tmp_path / "site"), "TMPDIR": str(tmp_path / "tmp")}
    asked = run_asked(script, code=5, **path)
    python = Path(VENVS[torch_version]) / "bin" / "python"
    plain = run_program([python, script], tmp_path, env=environment(tmp_path, traced=False, **path))
    hide = lambda text: " ".join(word for word in text.split() if not word.startswith("0x"))  # noqa: E731
    assert hide(asked.process.stdout) == hide(plain.stdout) and plain.returncode == 5
    assert [line for line in asked.process.stderr.splitlines() if not line.startswith("gpumemtrace: wrote")] == []
    assert list((tmp_path / "tmp").glob("gpumemtrace-*")) == [], "what was written for the command is gone"
    script.write_text("import torch\ntorch.zeros(5, device='cuda')\n")
    apart = run_asked(script, python=["-I"])
    assert "--holders: no scan ran" in apart.process.stderr


def test_a_look_that_cannot_be_made_says_why(run_asked, tmp_path):
    """The program's command is another one."""
    script = tmp_path / "other.py"
    script.write_text(f"import os, sys\nos.environ['GPUMEMTRACE_COMMAND'] = '/nonexistent'\nsys.argv = ['held.py', 'list']\n"
                      f"exec(compile(open({str(HELD)!r}).read(), {str(HELD)!r}, 'exec'))\n")
    run = run_asked(script, code=7)
    [look] = run.report("--leaks")["holders"]
    assert "cannot start the command" in look["failed"] and look["walk_ns"] is None
    assert "and could not" in " ".join(gpumemtrace("replay", run.trace, "--leaks").split())


def test_wrong_options_are_refused():
    for options in (["--holders", "--holders-signal", "KILL"], ["--holders-limit", "1"], ["--holders", "--holders-limit", "0"]):
        done = subprocess.run([COMMAND, "run", *options, "--", "true"], capture_output=True, text=True)
        assert done.returncode == 2, options
