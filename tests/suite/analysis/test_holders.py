"""References that keep leaked tensors alive, in real PyTorch; the scan changes nothing."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from conftest import COMMAND, PYTHONS, REPOSITORY, VENVS, WORKLOADS, Run, environment, gpumemtrace, run_program, sentences

LAB = REPOSITORY / "scripts" / "leaklab"
sys.path.insert(0, str(LAB))
import lab  # noqa: E402

PACKAGE = REPOSITORY / "python"
HELD = WORKLOADS / "package/holders.py"
STEPS = 12


@pytest.fixture
def run_with_holders(torch_version, tmp_path):
    """Runs a program with `gpumemtrace run --holders`, and time enough on a busy machine."""

    def run(script, *arguments, code=0, options=(), python=(), **extra):
        extra.setdefault("GPUMEMTRACE_HOLDERS_LIMIT", 60)
        interpreter = Path(VENVS[torch_version]) / "bin" / "python"
        command = [COMMAND, "run", "--holders", *options, "--", interpreter, *python, script, *map(str, arguments)]
        process = run_program(list(map(str, command)), tmp_path, env=environment(tmp_path, traced=False, **extra))
        assert process.returncode == code, process.stdout[-2000:] + process.stderr[-4000:]
        return Run(process, tmp_path)

    return run


def held(run):
    """Returns each leak's names with the number of blocks per name."""
    report = run.report("--leaks")
    jsonschema.validate(report, json.loads(gpumemtrace("schema", "report")))
    for leak in report["leaks"]:
        if leak["holders"] is not None:
            assert_leak_is_consistent(leak)
    return report


def assert_leak_is_consistent(leak):
    seen = leak["holder_coverage"]
    for what in ("blocks", "bytes"):
        assert sum(one[what] for one in leak["holders"] + seen["unresolved"]) == seen[what]
    assert sum(one["blocks"] for one in leak["holders"]) == seen["named_blocks"]


def line_of(mark):
    lines = HELD.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# line: {mark}"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fixed", [False, True], ids=["leaky", "mended"])
@pytest.mark.parametrize("pattern", lab.PATTERNS)
def test_leak_lab_holders(run_with_holders, pattern, fixed):
    """A list in the script holds all blocks of each mistake; fixed forms have none."""
    run = run_with_holders(LAB / "train.py", pattern, *["--fixed"] * fixed, "--steps", 30, "--batch", 16, **lab.CONF)
    report = held(run)
    look = report["holders"][-1]
    assert (look["trigger"], look["failed"], look["leaks"]) == ("exit", None, len(report["leaks"]))
    assert bool(report["leaks"]) != fixed
    for leak in report["leaks"]:
        names = {(holder["name"], holder["type_name"]) for holder in leak["holders"]}
        assert names == {("train.kept", "list")} and leak["holder_coverage"]["unresolved"] == []
        assert leak["holder_coverage"]["blocks"] == leak["blocks"] and leak["holder_coverage"]["bytes"] == leak["bytes"]
    assert not lab.unheld_findings(report)
    if pattern == "retained_validation" and not fixed:
        assert "train.kept (list, 60 items) -> tensor -> grad_fn chain" in " ".join(gpumemtrace("replay", run.trace, "--leaks").split())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("holder,name,kind,chain", [
    ("list", "holders.kept", "list", ["tensor"]),
    ("attribute", "holders.trainer.seen['loss']", "list", ["tensor"]),
    ("keyed", "holders.by_step", "dict", ["tensor"]),
    ("closure", "holders.remember closure memory", "list", ["tensor"]),
    ("class", "holders.Trainer.history", "list", ["tensor"]),
    ("slots", "holders.slotted.found", "list", ["tuple[*]", "tensor"]),
    ("both", "holders.kept", "list", ["tensor"]),
    ("graph", "holders.total", "Tensor", ["grad_fn chain"]),
])
def test_each_kind_of_reference_has_its_user_visible_name(run_with_holders, holder, name, kind, chain):
    run = run_with_holders(HELD, holder, "--steps", STEPS, code=7)
    [leak] = held(run)["leaks"]
    assert leak["site"]["line"] == line_of("factor" if holder == "graph" else "new")
    [found] = leak["holders"]
    assert (found["name"], found["type_name"], found["chain"], found["blocks"]) == (name, kind, chain, STEPS)
    assert found["items"] == (None if kind == "Tensor" else STEPS)
    assert "done []" in run.process.stdout


def test_unreachable_blocks_are_reported(run_with_holders):
    run = run_with_holders(HELD, "unnamed", code=7)
    [leak] = held(run)["leaks"]
    assert leak["holders"] == []
    assert leak["holder_coverage"]["unresolved"] == [{"why": "no_name", "blocks": STEPS, "bytes": STEPS << 20}]
    assert "no variable leads to their tensors" in " ".join(gpumemtrace("replay", run.trace, "--leaks").split())


def test_blocks_freed_before_scan_are_reported(run_with_holders):
    """A local variable of a function that has returned."""
    run = run_with_holders(HELD, "local", code=7)
    [leak] = held(run)["leaks"]
    assert leak["holders"] is None and leak["holder_coverage"] is None
    advice = "No references found: the blocks were already freed at exit. Call `gpumemtrace.holders()` inside your loop."
    assert advice in sentences(gpumemtrace("replay", run.trace, "--leaks"))
    assert advice in sentences(gpumemtrace("replay", run.trace))


def test_scan_calls_no_python_code_of_objects(run_with_holders):
    run = run_with_holders(HELD, "rude", code=7)
    [leak] = held(run)["leaks"]
    assert {holder["name"] for holder in leak["holders"]} == {"holders.rude['of']"}
    assert leak["holder_coverage"]["unresolved"] == []
    assert "done []" in run.process.stdout, "the scan called an object"


def test_saved_tensor_hooks_are_not_called(run_with_holders, torch_version):
    """Unpack hooks of activation checkpoints would recompute the activation."""
    run = run_with_holders(HELD, "hooked", code=7)
    [leak] = held(run)["leaks"]
    assert "done []" in run.process.stdout
    python = Path(VENVS[torch_version]) / "bin" / "python"
    asks = "import torch, sys; sys.exit(not hasattr(torch._C._autograd.SavedTensor, 'unpack_hook'))"
    if subprocess.run([python, "-c", asks]).returncode == 0:
        assert [holder["name"] for holder in leak["holders"]] == ["holders.total"]
    else:
        assert [(one["why"], one["blocks"]) for one in leak["holder_coverage"]["unresolved"]] == [("saved_unread", STEPS)]


def test_scan_stops_at_time_limit_and_reports_it(run_with_holders):
    """No computer walks two million objects in 0.1 s, so missing references are not claimed."""
    run = run_with_holders(HELD, "unnamed", "--objects", 2_000_000, options=["--holders-limit", "0.1"], code=7)
    report = held(run)
    [look], [leak] = report["holders"], report["leaks"]
    assert look["is_cut"] is True and look["limit_ns"] == 100_000_000 and look["objects"] > 0
    assert [(one["why"], one["blocks"]) for one in leak["holder_coverage"]["unresolved"]] == [("out_of_time", STEPS)]
    assert "reached its time limit of 100" in " ".join(gpumemtrace("replay", run.trace, "--leaks").split())


def test_near_references_are_found_in_large_heap(run_with_holders):
    run = run_with_holders(HELD, "list", "--objects", 2_000_000, options=["--holders-limit", "60"], code=7)
    report = held(run)
    assert report["holders"][0]["is_cut"] is False
    assert [holder["name"] for holder in report["leaks"][0]["holders"]] == ["holders.kept"]


@pytest.mark.parametrize("holder", ["list", "keyed", "closure", "graph"])
def test_scan_changes_nothing(run_with_holders, tmp_path, holder):
    """Reference counts, number of objects and PyTorch's counters stay the same."""
    path = {"PYTHONPATH": str(PACKAGE), "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
    run_with_holders(HELD, holder, "--measure", tmp_path / "measured.json", code=7, **path)
    measured = json.loads((tmp_path / "measured.json").read_text())
    assert measured["before"] == measured["after"]
    assert len(measured["before"]["refcounts"]) > 10 and len(measured["before"]["stats"]) > 50
    for look in measured["looks"]:
        [leak] = look["leaks"]
        assert look["when"] == "call" and not look["cut"] and leak["unresolved"] == []
        assert sum(one["blocks"] for one in leak["holders"]) == leak["blocks"] == STEPS


def test_scan_at_oom_lets_program_continue(run_with_holders):
    run = run_with_holders(HELD, "oom", code=7)
    report = held(run)
    assert [look["trigger"] for look in report["holders"]] == ["oom", "oom", "oom", "exit"], "three of five errors are scanned"
    assert [holder["name"] for holder in report["leaks"][0]["holders"]] == ["holders.kept"]
    assert json.loads(run.process.stdout.split("done ")[1]) == ["oom"] * 5
    kinds = [event["kind"] for event in run.events() if event["kind"] in ("oom", "holders")]
    assert kinds[:2] == ["oom", "holders"]


def test_fatal_error_keeps_function_names(run_with_holders):
    """The traceback keeps the functions' variables, also at exit."""
    run = run_with_holders(HELD, "raises", code=1)
    report = held(run)
    [holder] = report["leaks"][0]["holders"]
    assert holder["name"].endswith("holders.run() local history") and holder["items"] == STEPS
    assert run.process.stderr.count("ValueError: the end") == 1


def test_scan_at_signal(run_with_holders):
    run = run_with_holders(HELD, "signal", options=["--holders-signal", "usr2"], code=7)
    assert [look["trigger"] for look in held(run)["holders"]] == ["signal", "exit"]
    assert "done []" in run.process.stdout and "Traceback" not in run.process.stderr


def test_local_variables_are_named_by_function(run_with_holders, tmp_path):
    path = {"PYTHONPATH": str(PACKAGE), "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}
    run_with_holders(HELD, "local", "--measure", tmp_path / "measured.json", code=7, **path)
    [holder] = json.loads((tmp_path / "measured.json").read_text())["looks"][0]["leaks"][0]["holders"]
    assert (holder["name"], holder["type"], holder["items"]) == ("holders.run() local history", "list", STEPS)


def test_reading_variables_keeps_none_alive():
    """Runs in this Python: values read from a frame are released; `locals()` is complete."""
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


def test_injection_is_invisible_to_the_program(torch_version, run_with_holders, tmp_path):
    """sys.path, import hooks and sitecustomize modules are unchanged, also in isolated mode.
    The last finder of `run` is tested in package/test_import_under_run.py."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.came_first = True\n")
    script = tmp_path / "sees.py"
    script.write_text(
        "import os, sys, torch, atexit\n"
        "atexit.register(print, 'last')\n"
        "finders = [finder for finder in sys.meta_path if type(finder).__name__ != '_LastFinder']\n"
        "print(sys.path, finders, getattr(sys, 'came_first', None), sys.modules['sitecustomize'].__file__)\n"
        "print(torch.cuda.__spec__.loader, torch.cuda.__loader__, torch.autograd.__spec__.loader, sys.exc_info())\n"
        "torch.zeros(5, device='cuda')\n"
        "sys.exit(5)\n"
    )
    # Other tests run at the same time, so this one has its own temporary folder.
    (tmp_path / "tmp").mkdir()
    path = {"PYTHONPATH": str(tmp_path / "site"), "TMPDIR": str(tmp_path / "tmp")}
    asked = run_with_holders(script, code=5, **path)
    python = Path(VENVS[torch_version]) / "bin" / "python"
    plain = run_program([python, script], tmp_path, env=environment(tmp_path, traced=False, **path))

    def hide(text):
        return " ".join(word for word in text.split() if not word.startswith("0x"))

    assert hide(asked.process.stdout) == hide(plain.stdout) and plain.returncode == 5
    assert [line for line in asked.process.stderr.splitlines() if not line.startswith("gpumemtrace: wrote")] == []
    assert list((tmp_path / "tmp").glob("gpumemtrace-*")) == [], "temporary files are removed"
    script.write_text("import torch\ntorch.zeros(5, device='cuda')\n")
    apart = run_with_holders(script, python=["-I"])
    assert "--holders: no scan ran" in apart.process.stderr


def test_failed_scan_reports_cause(run_with_holders, tmp_path):
    """GPUMEMTRACE_COMMAND names a missing program."""
    script = tmp_path / "other.py"
    script.write_text(f"import os, sys\nos.environ['GPUMEMTRACE_COMMAND'] = '/nonexistent'\nsys.argv = ['holders.py', 'list']\n"
                      f"exec(compile(open({str(HELD)!r}).read(), {str(HELD)!r}, 'exec'))\n")
    run = run_with_holders(script, code=7)
    [look] = run.report("--leaks")["holders"]
    assert "cannot start the command" in look["failed"] and look["walk_ns"] is None
    assert "it failed: " in " ".join(gpumemtrace("replay", run.trace, "--leaks").split())


def test_scan_without_ring_file_fails_instead_of_finding_no_leak(run_with_holders, tmp_path):
    """The command gets a trace without its last events, in which nothing leaks."""
    command = tmp_path / "command"
    golden = REPOSITORY / "tests" / "golden" / "cuda-train.trace"
    command.write_text(f"#!/bin/sh\nhead -c 8000 {golden} >cut.trace\nhead -c 5000 /dev/zero >cut.trace.ring\n"
                       f"exec {COMMAND} leak-candidates cut.trace\n")
    command.chmod(0o700)
    script = tmp_path / "other.py"
    script.write_text(f"import os, sys\nos.environ['GPUMEMTRACE_COMMAND'] = {str(command)!r}\nsys.argv = ['holders.py', 'list']\n"
                      f"exec(compile(open({str(HELD)!r}).read(), {str(HELD)!r}, 'exec'))\n")
    [look] = run_with_holders(script, code=7).report("--leaks")["holders"]
    assert look["failed"].startswith("the ring file is not a gpumemtrace ring file") and look["is_cut"] is None


def test_invalid_options_are_refused():
    for options in (["--holders", "--holders-signal", "KILL"], ["--holders-limit", "1"], ["--holders", "--holders-limit", "0"]):
        done = subprocess.run([COMMAND, "run", *options, "--", "true"], capture_output=True, text=True)
        assert done.returncode == 2, options


def test_parameters_are_named_after_their_model(run_python, torch_version):
    """The optimizer's groups lead to all of them, too. What `gc.freeze()` hides may be in use."""
    run = run_python(torch_version, "package/holder_names.py", REPOSITORY / "python")
    several, single = map(ast.literal_eval, (line.replace("] [", "], [") for line in run.process.stdout.splitlines()))
    assert several == ([("holder_names.net", "Sequential", f"Linear.{name}", "tensor") for name in ("bias", "weight")], [])
    assert single[0][0][0] == "holder_names.net[0].weight" and single[1] == ["frozen"]
