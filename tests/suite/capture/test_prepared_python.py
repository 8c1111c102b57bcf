"""Programs in forks of a prepared Python leave the trace of a fresh start."""

import json

import pytest

from conftest import dump
from stack_dump import native_stacks, stacks

PROGRAMS = {
    "resnet18": ("training/train.py", ["--model", "resnet18", "--amp"], {}),
    "both stacks": ("training/train.py", ["--model", "transformer"], {"GPUMEMTRACE_STACKS": "both"}),
    "expandable segments": ("memory/gap_moments.py", ["witness.json"], {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "out of memory": ("memory/oom_growth.py", ["validation"], {"SIMGPU_MEM": "2G"}),
    "driver's pool": ("memory/async_allocator.py", [], {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    "without tracker": ("training/train.py", [], {"GPUMEMTRACE_TORCH_DETAILS": "off", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
}
#: Differs between any two runs of a program, beside addresses of the host.
OF_ONE_RUN = ("seq", "time_ns", "tid", "native", "python")
#: The simulated device's memory.
DEVICE = range(0x3000_0000_0000, 0x5000_0000_0000)


def events_with_stacks(trace):
    """Returns each event with its stacks, without what differs between any two runs."""
    python, native, events = stacks(trace), native_stacks(trace), []
    for event in dump(trace):
        if event["kind"] == "memory_sample":
            continue  # taken at intervals of time
        frames = python(event["python"]), native(event["native"])
        fields = {name: value for name, value in event.items() if name not in OF_ONE_RUN and not is_host_address(name, value)}
        events.append((fields, frames))
    return events


def is_host_address(name, value):
    return name in ("addr", "aux0", "aux1") and value > 1 << 44 and value not in DEVICE


def start_and_fork(run_python, torch_version, name):
    """Returns exit code, output and events of a program that starts and of one in a fork."""
    script, arguments, variables = PROGRAMS[name]
    runs = [run_python(torch_version, script, *arguments, check=False, name=str(real), real_start=real, **variables) for real in (True, False)]
    started, forked = ([run.process.returncode, run.process.stdout, events_with_stacks(run.trace)] for run in runs)
    assert len(started[2]) > 100
    return started, forked


@pytest.mark.whole_teardown
@pytest.mark.parametrize("name", PROGRAMS)
def test_trace_is_that_of_a_fresh_start(run_python, torch_version, name):
    started, forked = start_and_fork(run_python, torch_version, name)
    assert forked == started


def test_trace_without_whole_teardown_is_that_of_a_fresh_start_up_to_there(run_python, torch_version):
    (*started, events), (*forked, forked_events) = start_and_fork(run_python, torch_version, "resnet18")
    assert forked == started
    # The teardown allocates nothing.
    last = max(at for at, (event, _) in enumerate(events) if event["kind"].endswith("_alloc"))
    assert forked_events[:last + 1] == events[:last + 1]


def test_program_sees_a_fresh_start(run_python, torch_version, tmp_path):
    script = tmp_path / "sees.py"
    script.write_text("""
import atexit, json, os, sys, threading, traceback
atexit.register(print, "last")
variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
print(json.dumps([sys.argv, sys.orig_argv, sys.path, __name__, __file__, os.getcwd(), variables, threading.active_count(),
                  len(traceback.extract_stack()), sys._getframe().f_code.co_filename, sys.stdin.read(), sys.stdout.isatty()]))
sys.exit(5)
""")
    runs = [run_python(torch_version, script, "argument", check=False, name="same", real_start=real) for real in (True, False)]
    started, forked = ((run.process.returncode, run.process.stdout, run.process.stderr) for run in runs)
    assert forked == started
    assert started[0] == 5 and json.loads(started[1].splitlines()[0])[0] == [str(script), "argument"]


def test_killed_program_has_its_signal(run_python, torch_version, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text("import os, sys\nprint('before', flush=True)\nprint('error', file=sys.stderr)\nos.kill(os.getpid(), 9)\n")
    done = run_python(torch_version, script, check=False).process
    assert (done.returncode, done.stdout, done.stderr) == (-9, "before\n", "error\n")
