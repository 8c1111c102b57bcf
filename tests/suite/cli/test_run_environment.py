"""`gpumemtrace run` in unusual environments. The programs call the simulated driver."""

import os
import resource
import shlex
import shutil
import subprocess

import pytest

from conftest import COMMAND, LIBRARY, environment
from durability_case import skip_or_fail
from route_programs import RouteFolder


@pytest.fixture
def place(tmp_path):
    folder = RouteFolder(tmp_path)
    folder.program("linked_program", "-l:libcuda.so.1")
    return folder


def run(place, *options, program="linked_program", arguments=(), prepare=None, **variables):
    env = environment(place.folder, traced=False, LD_LIBRARY_PATH=place.folder, GPUMEMTRACE_LIB=LIBRARY) | variables
    env.pop("GPUMEMTRACE_OUTPUT", None)
    command = [COMMAND, "run", *options, "--", f"./{program}", *arguments]
    return subprocess.run(command, cwd=place.folder, env=env, capture_output=True, timeout=120, preexec_fn=prepare)


def next_command(errors):
    """The words that a shell makes of the command that `run` names."""
    [line] = [line for line in errors.splitlines() if b"; next: " in line]
    printed = subprocess.run(["bash", "-c", b"printf '%s\\0' " + line.partition(b"; next: ")[2]], capture_output=True, check=True)
    return printed.stdout.split(b"\0")[:-1]


@pytest.mark.parametrize("name", [b"caf\xe9.trace", b"my $(touch evil) run.trace", b"it's.trace"])
def test_output_of_any_name(place, name):
    done = run(place, "-o", name)
    assert done.returncode == 0
    assert name in os.listdir(os.fsencode(place.folder)), done.stderr
    assert next_command(done.stderr) == [b"gpumemtrace", b"replay", name]
    assert not (place.folder / "evil").exists()


def test_variable_that_is_no_text_is_named(place):
    done = run(place, GPUMEMTRACE_DEPTH=b"\xff7")
    assert done.returncode == 0
    assert b"gpumemtrace: GPUMEMTRACE_DEPTH=\xef\xbf\xbd7 is not UTF-8 text; ignoring it." in done.stderr


def test_long_job_id(place):
    done = run(place, SLURM_JOB_ID="7" * 300, SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2")
    assert done.returncode == 0 and b"cannot record" not in done.stderr
    [trace] = place.folder.glob("run.7777*.rank1.trace")
    assert len(trace.name) < 200


def test_low_limit_on_file_sizes_is_named(place):
    limit = 1 << 20
    done = run(place, prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert done.returncode == 0
    recorder, command = done.stderr.decode().splitlines()
    assert "raise the limit on file sizes (ulimit -f)" in recorder
    assert command == f"gpumemtrace: no trace: the limit on file sizes (ulimit -f) of {limit} bytes is too low to record"


def test_program_with_address_sanitizer(place):
    """Its runtime ends the program if another library comes first."""
    compiler = os.environ.get("CC", "cc")
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if "/" not in runtime:
        skip_or_fail("the compiler has no AddressSanitizer")
    place.program("linked_program", "-l:libcuda.so.1", "-fsanitize=address")
    # The driver's memory is not AddressSanitizer's matter.
    options = {"ASAN_OPTIONS": "detect_leaks=0"}
    done = run(place, **options)
    assert done.returncode == 0, done.stderr
    place.check_all_recorded([2, 4, 6])
    (place.folder / "driver.log").unlink()
    (place.folder / "run.trace").unlink()
    place.program("linked_program", "-l:libcuda.so.1")
    done = run(place, LD_PRELOAD=runtime, **options)
    assert done.returncode == 0, done.stderr
    place.check_all_recorded([2, 4, 6])
