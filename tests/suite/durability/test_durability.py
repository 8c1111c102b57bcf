"""A program ends as it does untraced, whatever happens to it, its machine or our files; the trace
is whole.

Each program runs twice on the simulated driver, traced and untraced. The driver's log is the oracle
for the trace, and an incomplete trace says so. No PyTorch is needed: the program is
tests/workloads/driver/process_ends.c.

Not covered: quotas, and file systems that really refuse to map (the refusal is injected).
"""

import contextlib
import ctypes
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from conftest import COMMAND, gpumemtrace
from durability_case import Case, build_programs, disk, lease_break_seconds, skip_or_fail, wait_for_lease, wait_for_naps, wait_until

#: Rounds of SIGKILL at a random time, and at an instruction.
KILLS = int(os.environ.get("GPUMEMTRACE_KILLS", "10"))
STEPS = max(25, KILLS)


@pytest.fixture(scope="module")
def bin(tmp_path_factory):
    programs = ["process_ends", "deny_syscalls", "deny_shared_maps.so", "deny_writer_memory.so", "clock_offset.so"]
    if platform.machine() == "x86_64":
        programs.append("kill_at_step")
    return build_programs(tmp_path_factory.mktemp("bin"), programs)


@pytest.fixture
def case(tmp_path, bin):
    return lambda name="traced": Case(tmp_path / name, bin)


# Ways to end.

ENDS = {
    "works": "exit", "segv": "killed", "abort": "killed", "term": "killed", "int": "killed", "kill": "killed", "handled_segv": "exit",
    "own_bus": "killed", "exit": "exit", "_exit": "exit", "quick_exit": "exit", "at_exit": "exit", "exit_in_thread": "exit",
    "main_thread_ends": "exit", "main_thread_ends_without_proc": "exit", "fork_storm": "exit", "vfork": "exit", "spawn": "exit", "exec": "killed",
    "no_more_files": "exit", "no_more_memory": "exit", "signals": "exit",
}


@pytest.mark.parametrize("ending", ENDS)
def test_program_ends_as_untraced(case, bin, ending):
    arguments = (bin / "process_ends", ending, 200, "/bin/echo", "another program")
    alone, traced = case("alone").run(*arguments, traced=False), case().run(*arguments)
    assert (traced.code, traced.output, traced.printed) == (alone.code, alone.output, alone.printed)
    assert "worked" in traced.output
    # A forked child may call the driver, which logs it; only the parent has a trace.
    pid = traced.facts()["pid"]
    facts = traced.check_all_there(ENDS[ending], pid=pid)
    assert facts["events"]["device_alloc"] >= 800
    assert sorted(path.name for path in traced.folder.iterdir() if path.name.startswith("run")) == (
        ["run.trace"] if ENDS[ending] == "exit" else ["run.trace", "run.trace.ring"])


def test_program_closes_all_descriptors(case, bin):
    """The program closes the driver's log too, so its own count is the oracle."""
    alone, traced = (case(kind).run(bin / "process_ends", "closes_all", traced=kind == "traced") for kind in ("alone", "traced"))
    assert (traced.code, traced.output, traced.printed) == (alone.code, alone.output, alone.printed)
    facts = traced.facts()
    assert facts["complete"] and facts["events"]["device_alloc"] == facts["events"]["device_free"] == 4 * 200 + 5000


@pytest.mark.parametrize("ending", ["exit_in_storm", "exec_in_storm"])
def test_program_ends_while_threads_allocate(case, bin, ending):
    arguments = (bin / "process_ends", ending, 200, "/bin/echo", "another program")
    alone, traced = case("alone").run(*arguments, traced=False), case().run(*arguments)
    assert (traced.code, traced.output, traced.printed) == (alone.code, alone.output, alone.printed)
    pid = traced.facts()["pid"]
    if ending == "exec_in_storm":
        traced.check_all_there("killed", pid=pid)
    else:
        # Other threads go on while the end is written; their later calls are not recorded.
        assert traced.facts()["complete"]
        assert sum(traced.facts()["events"].values()) >= 1600


def test_exec_into_gpu_program_leaves_two_traces(case, bin):
    traced = case().run(bin / "process_ends", "exec", 200, bin / "process_ends", "works", 100)
    assert (traced.code, traced.printed) == (0, "")
    assert traced.facts(trace=traced.folder / "run.1.trace")["end"] == "killed"
    first = traced.facts(trace=traced.folder / "run.1.trace")["events"]["device_alloc"]
    assert (first, traced.facts()["events"]["device_alloc"]) == (800, 400), "each program has its own complete trace"


PYTHON = """
import atexit, ctypes, os, signal, sys, threading
driver = ctypes.CDLL("libcuda.so.1")
def use(count=100):
    for number in range(count):
        pointer = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(512 + number)) == 0
        assert driver.cuMemFree_v2(pointer) == 0
context = ctypes.c_void_p()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
use()
print("worked", flush=True)
"""
PYTHON_ENDS = {
    "interrupt": ("os.kill(os.getpid(), signal.SIGINT)", "killed", 1),
    "os._exit": ("os._exit(4)", "exit", 0),
    "exit hook fails": ("atexit.register(lambda: 1 / 0); atexit.register(use)", "exit", 1),
    "sys.exit in a thread": ("t = threading.Thread(target=lambda: (driver.cuCtxSetCurrent(context), use(), sys.exit(3))); t.start(); t.join(); use()", "exit", 0),
    "os._exit in a thread": ("t = threading.Thread(target=lambda: os._exit(3)); t.start(); t.join()", "exit", 0),
    "fork whose child uses the GPU": ("child = os.fork()\nif child == 0:\n    try:\n        use(3)\n    finally:\n        os._exit(8)\nprint(os.waitpid(child, 0)[1]); use()", "exit", 0),
    "fault handler": ("import faulthandler; faulthandler.enable(); ctypes.string_at(8)", "killed", 1),
    "handlers": ("print([signal.getsignal(number) for number in range(1, 65)])", "exit", 0),
}


@pytest.mark.parametrize("name", PYTHON_ENDS)
def test_python_ends_as_untraced(case, bin, name):
    ending, end, has_words = PYTHON_ENDS[name]
    script = case("script").folder / "program.py"
    script.write_text(PYTHON + ending + "\n")
    alone, traced = (case(kind).run(sys.executable, script, traced=kind == "traced") for kind in ("alone", "traced"))
    without_addresses = lambda text: [line for line in text.splitlines() if "0x" not in line]
    assert (traced.code, traced.output) == (alone.code, alone.output)
    assert without_addresses(traced.printed) == without_addresses(alone.printed) and bool(traced.printed) == bool(has_words)
    traced.check_all_there(end, pid=traced.facts()["pid"])


# SIGKILL.

def check_killed(traced):
    """Checks that the trace has each call, whenever the kill came."""
    facts = traced.facts(code=None)
    # The kernel may cut a write in which it kills the process. The ring files have all calls.
    assert facts["complete"] or {loss["kind"] for loss in facts["incomplete"]} == {"cut_block"}, facts["incomplete"]
    assert traced.missing(code=None) == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="steps are those of x86-64")
def test_sigkill_at_any_instruction_of_a_call_loses_no_call(case, bin):
    steps = int(case("whole").run(bin / "kill_at_step", 0).output)
    for number in range(STEPS):
        traced = case(f"kill{number}").run(bin / "kill_at_step", 1 + number * steps // STEPS)
        assert (traced.code, traced.printed) == (-signal.SIGKILL, "")
        check_killed(traced)


def test_sigkill_at_random_time_loses_no_call(case, bin):
    moment = random.Random(7)
    for number in range(KILLS):
        traced = case(f"kill{number}")
        process = traced.start(bin / "process_ends", "forever")
        with process:
            if number % 4:
                process.stdout.readline()
            time.sleep(moment.uniform(0, 0.06 if number % 3 else 0.01))
            process.kill()
        if not traced.trace.exists() or traced.trace.stat().st_size == 0:
            # The kill came before the first driver call.
            assert not (traced.folder / "driver.log").exists() or not traced.log()
            continue
        check_killed(traced)
        shutil.rmtree(traced.folder)


def test_two_killed_runs_in_one_folder_both_remain(case, bin):
    traced = case()
    pids = []
    for _ in range(3):
        with traced.start(bin / "process_ends", "forever", SIMGPU_LOG=traced.folder / f"{len(pids)}.log") as process:
            process.stdout.readline()
            wait_until(lambda: (traced.folder / f"{len(pids)}.log").stat().st_size > 10_000, "calls")
            pids.append(process.pid)
            process.kill()
    (traced.folder / "driver.log").write_text("".join(
        text[:text.rfind("\n") + 1] for text in ((traced.folder / f"{number}.log").read_text() for number in range(3))))
    for name, pid in zip(("run.1.trace", "run.2.trace", "run.trace"), pids):
        facts = traced.check_all_there("killed", trace=traced.folder / name, pid=pid)
        assert facts["pid"] == pid and (traced.folder / f"{name}.ring").exists()


def test_block_cut_by_kill_is_recovered_from_ring(case, bin):
    """Truncates the block by hand at every kind of offset: a kill there is too rare to wait for.
    The ring file still has the block's records."""
    traced = case()
    with traced.start(bin / "process_ends", "forever") as process:
        process.stdout.readline()
        before = traced.trace.stat().st_size
        wait_until(lambda: traced.trace.stat().st_size != before, "a block")
        process.kill()
    whole = traced.trace.read_bytes()
    check_killed(traced)
    for cut in sorted({len(whole) - n for n in (1, 3, 20, 500)}):
        traced.trace.write_bytes(whole[:cut])
        report = subprocess.run([COMMAND, "replay", traced.trace, "--json"], capture_output=True, text=True)
        facts = json.loads(report.stdout)["traces"][0]
        assert facts["complete"] == (report.returncode == 0) and report.returncode in (0, 6), "an incomplete trace is reported"
        assert facts["complete"] or facts["incomplete"]


def test_kernel_oom_kill(case, bin):
    """The kernel's OOM kill, in a memory cgroup of 40 MB below our own."""
    own = next((line.split(":")[2].strip() for line in open("/proc/self/cgroup") if ":memory:" in line), None)
    base = f"/sys/fs/cgroup/memory{own}" if own is not None else None
    if base is None or not os.access(base, os.W_OK):
        skip_or_fail("a memory cgroup cannot be made")
    group = f"{base}/gpumemtrace-test-{os.getpid()}"
    os.mkdir(group)
    try:
        with open(f"{group}/memory.limit_in_bytes", "w") as file:
            file.write(str(40 << 20))

        def enter():
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write(str(os.getpid()))

        alone, traced = (case(kind).run(bin / "process_ends", "out_of_memory", 200, traced=kind == "traced", before=enter)
                         for kind in ("alone", "traced"))
        killed = dict(line.split() for line in open(f"{group}/memory.oom_control"))["oom_kill"]
    finally:
        os.rmdir(group)
    assert int(killed) == 2, "the kernel killed both"
    assert (traced.code, traced.output, traced.printed) == (alone.code, alone.output, alone.printed) == (-signal.SIGKILL, "worked\n", "")
    traced.check_all_there("killed")


# Disk space, permissions and resource limits.

def test_full_disk(case, bin):
    """The disk has space for the ring of one thread only."""
    with disk(case("disk").folder, "512k") as folder:
        traced = case().run(bin / "process_ends", "works", 5000, GPUMEMTRACE_OUTPUT=folder / "run.trace")
        assert (traced.code, traced.output) == (0, "worked\ndone\n")
        assert len(traced.lines()) == 1, traced.printed
        traced.check_loss_is_reported(trace=folder / "run.trace")
        facts = traced.facts(code=6, trace=folder / "run.trace")
        assert facts["losses"]["dropped_events"] == traced.missing(trace=folder / "run.trace", code=6) > 0


def test_disk_fills_up_while_recording(case, bin):
    """The trace cannot grow; records that fit into the rings survive."""
    with disk(case("disk").folder, "8m") as folder:
        def fill(traced):
            with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        traced = in_parts(case, bin, fill, says="No space left on device", GPUMEMTRACE_OUTPUT=folder / "run.trace")
        facts = traced.check_loss_is_reported(trace=folder / "run.trace")
        assert facts["events"]["device_alloc"] >= 4 * 500
        # Only calls after the end of the recording are missing.
        assert 0 <= traced.missing(trace=folder / "run.trace", code=6) <= 2 * 4 * 1000


def test_no_space_at_start(case, bin):
    with disk(case("disk").folder, "4k") as folder:
        traced = case().run(bin / "process_ends", "works", GPUMEMTRACE_OUTPUT=folder / "run.trace")
        assert (traced.code, traced.output, len(traced.lines())) == (0, "worked\ndone\n", 1), traced.printed
        assert "No space left on device" in traced.printed and list(folder.iterdir()) == []


def test_small_shared_memory_as_in_containers(case, bin):
    with disk(case("disk").folder, "64m") as folder:
        traced = case().run(bin / "process_ends", "works", 2000, GPUMEMTRACE_OUTPUT=folder / "run.trace")
        assert (traced.code, traced.printed) == (0, "")
        traced.check_all_there("exit", trace=folder / "run.trace")


def not_above_modes():
    """Root ignores file modes, so the program drops that capability."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


@pytest.mark.parametrize("how", ["mode", "file system"])
def test_unwritable_output_folder(case, bin, how):
    with disk(case("disk").folder, "1m", "mode=0555", *(["ro"] if how == "file system" else [])) as folder:
        before = not_above_modes if how == "mode" else None
        traced = case().run(bin / "process_ends", "works", GPUMEMTRACE_OUTPUT=folder / "run.trace", before=before, SIMGPU_LOG="")
        assert (traced.code, traced.output, len(traced.lines())) == (0, "worked\ndone\n", 1), traced.printed
        assert ("Permission denied" if how == "mode" else "Read-only file system") in traced.printed


def limits(which, value):
    return lambda: resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


def test_descriptor_limit(case, bin):
    """Whatever the limit at start, the program's own calls succeed or fail as they do untraced."""
    for most in (3, 4, 5, 6, 8, 16, 600):
        alone, traced = (case(f"{most} {kind}").run(bin / "process_ends", "works", traced=kind == "traced",
                                                    before=limits(resource.RLIMIT_NOFILE, most), SIMGPU_LOG="")
                         for kind in ("alone", "traced"))
        assert (traced.code, traced.output) == (alone.code, alone.output), most
        if "worked" in alone.output:
            assert len(traced.lines()) == (0 if traced.trace.exists() else 1), traced.printed


def test_file_size_limit(case, bin):
    """The limit is set midway. The driver keeps no log then; the oracle is the program's count."""
    alone, traced = (case(kind).run(bin / "process_ends", "no_larger_files", 200, traced=kind == "traced", SIMGPU_LOG="")
                     for kind in ("alone", "traced"))
    assert (traced.code, traced.output) == (alone.code, alone.output) == (0, "worked\ndone\n")
    assert len(traced.lines()) == 1, traced.printed
    facts = traced.check_loss_is_reported()
    assert facts["events"]["device_alloc"] >= 800


def test_address_space_limit(case, bin):
    """Covers limits from too little for anything to enough for all. While recording we use address
    space that the program may miss, but never end it; without a recording it has all of it. (Each
    thread's arena takes 128 MiB briefly, so another thread may fail by chance, also untraced.)"""
    outcomes = set()
    for megabytes in (1, 8, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 128, 160, 256, 512):
        alone, traced = (case(f"{megabytes} {kind}").run(bin / "process_ends", "works", traced=kind == "traced", SIMGPU_LOG="",
                                                         ADDRESS_SPACE_MARGIN_MIB=megabytes, MALLOC_ARENA_MAX=1)
                         for kind in ("alone", "traced"))
        assert traced.code in (0, 1), (megabytes, traced.printed)
        assert len(traced.lines()) <= 1, traced.printed
        records = traced.trace.exists()
        if not records:
            assert (traced.code, traced.output) == (alone.code, alone.output), (megabytes, traced.printed)
        elif traced.output == alone.output and not traced.lines():
            assert traced.facts()["complete"]
        outcomes.add((records, traced.code))
    assert {(False, 0), (True, 0)} <= outcomes, outcomes


def test_no_memory_for_writer_thread(case, bin):
    traced = in_parts(case, bin, lambda traced: (traced.folder / "refuse").touch(), says="out of host memory", preload=[bin / "deny_writer_memory.so"])
    facts = traced.check_loss_is_reported()
    assert facts["events"]["device_alloc"] >= 4 * 500


def test_small_stack_limit(case, bin):
    traced = case().run(bin / "process_ends", "works", before=limits(resource.RLIMIT_STACK, 128 << 10))
    assert (traced.code, traced.output, traced.printed) == (0, "worked\ndone\n", "")
    traced.check_all_there("exit")


@pytest.mark.parametrize("calls", ["membarrier", "process_vm_readv", "getrandom", "madvise", "renameat2", "fallocate", "setpriority",
                                   "prctl", "membarrier,process_vm_readv,getrandom,madvise,fallocate,setpriority"])
def test_sandbox_denies_system_calls(case, bin, calls):
    alone, traced = (case(kind).run(bin / "deny_syscalls", calls, bin / "process_ends", "works", 2000, traced=kind == "traced")
                     for kind in ("alone", "traced"))
    assert (traced.code, traced.output) == (alone.code, alone.output)
    if traced.trace.exists():
        assert traced.printed == ""
        traced.check_all_there("exit", pid=traced.facts()["pid"])
    else:
        assert len(traced.lines()) == 1, traced.printed


def test_rings_in_memory_if_files_cannot_be_mapped(case, bin):
    """Rings then live in memory; the report of a killed run says what that costs."""
    how = {"preload": [bin / "deny_shared_maps.so"]}
    traced = case().run(bin / "process_ends", "in_two_parts", 200, **how)
    assert (traced.code, len(traced.lines())) == (0, 1), traced.printed
    assert "cannot map" in traced.printed
    facts = traced.check_all_there("exit")
    assert any("in memory" in note["message"] for note in facts["notes"])
    assert [path.name for path in traced.folder.iterdir() if path.name.startswith("run")] == ["run.trace"]
    killed = case("killed")
    with killed.start(bin / "process_ends", "forever", **how) as process:
        process.stdout.readline()
        wait_until_written(killed)
        process.kill()
    facts = killed.check_loss_is_reported()
    assert any("in memory" in note["message"] for note in facts["notes"])
    assert sum(facts["events"].values()) > 1000, "events written until shortly before the kill"


def wait_until_written(traced):
    """Waits until the trace has more than 1,000 events."""
    def has_events():
        report = gpumemtrace("replay", traced.trace, "--json", code=None)
        return report and sum(json.loads(report)["traces"][0]["events"].values()) > 1000
    wait_until(has_events, "events in the trace")


# Other processes change our files.

def in_parts(case, bin, between, says=None, **how):
    """Runs a program of three parts. `between` changes its files after the first part; the recorder
    notices before the third, and writes one line with `says`, if that is given."""
    traced = case()
    errors = traced.folder.with_suffix(".stderr")
    with open(errors, "w") as file, traced.start(bin / "process_ends", "in_two_parts", errors=file, own_clock=True, **how) as process:
        assert process.stdout.readline() == "first part\n"
        wait_for_lease(process.pid)
        with lease_break_seconds() as patience:
            began = time.monotonic()
            between(traced)
            assert time.monotonic() - began < patience / 2, "no change waits for the kernel to take the lease away"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "second part\n"
        if says:
            # Events may rest in the rings for seconds.
            traced.clock.pass_an_hour()
            wait_until(lambda: says in errors.read_text(), f"a line with {says!r}")
        else:
            wait_for_naps(process.pid, 3)
        process.stdin.write("\n")
        process.stdin.flush()
        traced.output, _ = process.communicate(timeout=60)
        traced.code, traced.printed = process.returncode, errors.read_text()
    assert (traced.code, traced.output) == (0, "done\n")
    assert len(traced.lines()) == bool(says) and (says or "") in traced.printed, traced.printed
    return traced


def others_ring(traced):
    return os.open(traced.ring, os.O_WRONLY | os.O_TRUNC)


CUTS = {
    "truncate": lambda traced: os.truncate(traced.ring, 0),
    "open": lambda traced: os.close(others_ring(traced)),
    "overwrite": lambda traced: traced.ring.write_text("something else"),
    "copy": lambda traced: shutil.copy(sys.executable, traced.ring),
    "shrink": lambda traced: os.truncate(traced.ring, 4096),
}


@pytest.mark.parametrize("cut", CUTS)
def test_ring_truncated_by_other_process(case, bin, cut):
    """The kernel's lease delays the truncation until the rings are in memory: no SIGBUS or loss."""
    traced = in_parts(case, bin, CUTS[cut], says="open for writing")
    facts = traced.check_all_there("exit")
    assert any("in memory" in note["message"] for note in facts["notes"])


def test_ring_truncated_and_program_killed(case, bin):
    traced = case()
    with traced.start(bin / "process_ends", "forever") as process:
        process.stdout.readline()
        wait_for_lease(process.pid)
        with lease_break_seconds():
            os.truncate(traced.ring, 0)
        wait_until_written(traced)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    facts = traced.check_loss_is_reported()
    assert sum(facts["events"].values()) > 1000


def test_ring_read_while_written(case, bin):
    """The recorder lets a reader in for 5 ms at a time. Every one of many readers gets in."""
    def read(traced):
        for _ in range(20):
            assert gpumemtrace("replay", traced.trace)
            assert len(traced.ring.read_bytes()) > 4096
    traced = in_parts(case, bin, read)
    traced.check_all_there("exit")


def test_ring_removed(case, bin):
    traced = in_parts(case, bin, lambda traced: traced.ring.unlink(), says="removed")
    traced.check_all_there("exit")


def test_ring_name_taken_by_other_file(case, bin):
    def replace(traced):
        (traced.folder / "other").write_text("mine")
        os.replace(traced.folder / "other", traced.ring)
    traced = in_parts(case, bin, replace, says="removed")
    traced.check_all_there("exit")
    assert traced.ring.read_text() == "mine", "the other file is unchanged"


def test_trace_and_ring_renamed(case, bin):
    def rename(traced):
        traced.ring.rename(traced.folder / "other.trace.ring")
        traced.trace.rename(traced.folder / "other.trace")
    traced = in_parts(case, bin, rename)
    traced.check_all_there("exit", trace=traced.folder / "other.trace")


def test_trace_removed(case, bin):
    traced = in_parts(case, bin, lambda traced: traced.trace.unlink(), says="was removed")
    assert not traced.trace.exists() and not traced.ring.exists()


def test_output_folder_removed(case, bin):
    in_parts(case, bin, lambda traced: shutil.rmtree(traced.folder), says="was removed")


@pytest.mark.parametrize("size", [0, 10, 100, 2000])
def test_trace_truncated(case, bin, size):
    cut = lambda traced: os.truncate(traced.trace, min(size, traced.trace.stat().st_size - 1))
    traced = in_parts(case, bin, cut, says="was truncated by another program")
    report = subprocess.run([COMMAND, "replay", traced.trace, "--json"], capture_output=True, text=True)
    assert report.returncode == 6, report.stderr
    facts = json.loads(report.stdout)["traces"][0]
    assert any("truncated" in str(note) for note in facts["notes"]), facts["notes"]


# Creation of the files.

def test_files_are_private_and_not_created_through_symlink(case, bin):
    for name in ("run.trace", "run.trace.ring"):
        traced = case(name)
        precious = traced.folder / "precious"
        precious.write_text("mine")
        (traced.folder / name).symlink_to(precious)
        with traced.start(bin / "process_ends", "forever") as process:
            process.stdout.readline()
            for path in traced.folder.glob("run*"):
                assert path.is_symlink() or path.stat().st_mode & 0o7777 == 0o600
            process.kill()
        assert precious.read_text() == "mine"
        assert (traced.folder / name).is_symlink(), "it is neither followed nor replaced"


def test_file_mode_ignores_umask(case, bin):
    traced = case()
    with traced.start(bin / "process_ends", "forever", before=lambda: os.umask(0)) as process:
        process.stdout.readline()
        assert {path.name: path.stat().st_mode & 0o7777 for path in traced.folder.glob("run*")} == {"run.trace": 0o600, "run.trace.ring": 0o600}
        process.kill()
