"""Whatever has the name of an output file, the program runs as untraced and no file of a user is
touched. If another name makes recording possible, the trace is complete there; else one line says
why there is none, and no file is left.

Root can open everything, nobody cannot: each obstacle meets each name, and each user some name.
GPUMEMTRACE_FULL=1 runs all three together. The program is tests/workloads/driver/process_ends.c on
the simulated driver.
"""

import functools
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import COMMAND, DRIVER, FULL, LIBRARY, WORKLOADS, environment
from durability_case import Case, skip_or_fail, wait_for_lease, wait_until

NOBODY = 65534
USERS = ["root", "nobody"]
#: The trace ID that the preload fixed_random.so gives.
ID = "abababab"
TRACE_MAGIC, RING_MAGIC = b"gpumtrc\n", b"gpumtrr\n"


@pytest.fixture(scope="module")
def bin():
    """Builds the programs in a folder that every user can read."""
    folder = Path(tempfile.mkdtemp(prefix="gpumemtrace-bin-"))
    for source, name in [(DRIVER, "libcuda.so.1"), (LIBRARY, LIBRARY.name), (COMMAND, COMMAND.name)]:
        shutil.copy(source, folder / name)
    compiler = shutil.which(os.environ.get("CC", "cc")) or skip_or_fail("there is no C compiler")
    for name, options in [("process_ends", ["-l:libcuda.so.1", "-lpthread"]), ("fixed_random.so", ["-shared", "-fPIC"])]:
        source = WORKLOADS / "driver" / f"{name.removesuffix('.so')}.c"
        subprocess.run([compiler, "-O1", "-g", "-Wall", "-Werror", "-o", folder / name, source, f"-L{folder}",
                        f"-Wl,-rpath,{folder}", *options, "-ldl"], check=True)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


class UserCase(Case):
    """A run as another user, in a folder that the user owns."""

    def __init__(self, folder, bin, user):
        is_new = not folder.exists()
        super().__init__(folder, bin)
        self.user = user
        if is_new:
            os.chown(folder, user, user)

    def become_user(self):
        os.setgroups([])
        os.setgid(self.user)
        os.setuid(self.user)

    def start(self, *command, traced=True, preload=(), before=None, **extra):
        def prepare():
            if before:
                before()
            self.become_user()

        env = environment(self.folder, traced, LD_LIBRARY_PATH=self.bin, **extra)
        libraries = [*preload, *([self.bin / LIBRARY.name] if traced else [])]
        if libraries:
            env["LD_PRELOAD"] = ":".join(map(str, libraries))
        return subprocess.Popen([*map(str, command)], cwd=self.folder, env=env, text=True, preexec_fn=prepare,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def facts(self, code=0, trace=None):
        """Reads the trace as the user who recorded it."""
        done = subprocess.run([self.bin / COMMAND.name, "replay", trace or self.trace, "--json"], capture_output=True, text=True,
                              preexec_fn=self.become_user, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)["traces"][0]

    def files(self):
        return {path.name for path in self.folder.iterdir()} - {"driver.log", "target", "elsewhere"}


@pytest.fixture(params=USERS)
def case(request, bin):
    if os.getuid() != 0:
        skip_or_fail("only root can run as another user")
    folder = Path(tempfile.mkdtemp(prefix="gpumemtrace-names-"))
    folder.chmod(0o755)
    yield lambda name="traced": UserCase(folder / name, bin, 0 if request.param == "root" else NOBODY)
    shutil.rmtree(folder)


# What may have a name. Each function makes it and returns what the message says.

def folder(case, path):
    path.mkdir()
    return "is a folder"


def named_pipe(case, path):
    os.mkfifo(path)
    return "is a named pipe"


def unix_socket(case, path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return "is a socket"


def device(case, path):
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return "is a device"


def dangling_link(case, path):
    path.symlink_to("nowhere")
    return "is a symbolic link"


def link_to_file(case, path):
    (case.folder / "target").write_text("precious")
    path.symlink_to("target")
    return "is a symbolic link"


def link_to_folder(case, path):
    (case.folder / "elsewhere").mkdir()
    path.symlink_to("elsewhere")
    return "is a symbolic link"


def other_file(case, path):
    path.write_text("precious")
    return "is not a"


def file_without_permission(case, path):
    path.write_text("precious")
    path.chmod(0)
    return "is not a" if case.user == 0 else "cannot be opened: Permission denied"


def private_file_of_other_user(case, path):
    path.write_text("precious")
    os.chown(path, NOBODY - 1, NOBODY - 1)
    path.chmod(0o600)
    case.folder.chmod(0o1777)
    return "is not a" if case.user == 0 else "cannot be opened: Permission denied"


def public_file_of_other_user(case, path):
    """Looks like a file of ours; only its owner may rename it in a sticky folder."""
    path.write_bytes((RING_MAGIC if path.name.endswith(".ring") else TRACE_MAGIC) + b"precious")
    path.chmod(0o644)
    os.chown(path, NOBODY - 1, NOBODY - 1)
    case.folder.chmod(0o1777)
    os.chown(case.folder, NOBODY - 1, NOBODY - 1)
    return "cannot be re"


OBSTACLES = [folder, named_pipe, unix_socket, device, dangling_link, link_to_file, link_to_folder, other_file,
             file_without_permission, private_file_of_other_user]


def met(names):
    """Gives each obstacle each name, as the users in turn."""
    chosen = lambda number, user: FULL or USERS[number % 2] == user
    triples = [(make, name, user) for first, make in enumerate(OBSTACLES) for second, name in enumerate(names)
               for user in USERS if chosen(first + second, user)]
    return pytest.mark.parametrize("make, name, case", triples, indirect=["case"], ids=lambda value: getattr(value, "__name__", None))


def identity(path):
    """Everything about a file that a run must not change."""
    facts = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(facts.st_mode) else None
    return facts.st_ino, facts.st_mode, facts.st_uid, facts.st_mtime_ns, content


def place(case, make, name):
    """Puts an obstacle at a name. Returns its path, its identity and what the message says."""
    path = case.folder / name
    says = make(case, path)
    if make not in (private_file_of_other_user, public_file_of_other_user):
        os.chown(path, case.user, case.user, follow_symlinks=False)
    return path, identity(path), says


@functools.cache
def run_untraced(bin, user, arguments):
    folder = Path(tempfile.mkdtemp(prefix="alone-", dir=bin))
    os.chown(folder, user, user)
    return UserCase(folder, bin, user).run(bin / "process_ends", *arguments, traced=False)


def run(case, bin, *arguments, **how):
    """Runs the program traced, and compares what is visible from outside with an untraced run."""
    arguments, traced = arguments or ("works", 200), case()
    alone = run_untraced(bin, traced.user, arguments)
    traced.run(bin / "process_ends", *arguments, **how)
    assert (traced.code, traced.output) == (alone.code, alone.output)
    assert alone.printed == "" and traced.lines() == traced.printed.splitlines()
    return traced


def check_name_with_pid(case, bin, make, name):
    path, before, says = place(case(), make, name)
    traced = run(case, bin)
    assert identity(path) == before
    expected = f"run.{traced.pid}.trace"
    assert traced.files() == {name, expected}
    [line] = traced.lines()
    assert line.startswith(f"gpumemtrace: {path} {says}") and line.endswith(f"; recording to {traced.folder / expected}.")
    facts = traced.facts(trace=traced.folder / expected)
    assert facts["complete"] and facts["events"]["device_alloc"] == 800


@met(["run.trace", "run.trace.ring"])
def test_obstacle_at_trace_or_ring_gives_a_name_with_the_pid(case, bin, make, name):
    check_name_with_pid(case, bin, make, name)


@pytest.mark.parametrize("case", ["nobody"], indirect=True)
@pytest.mark.parametrize("name", ["run.trace", "run.trace.ring"])
def test_file_of_other_user_that_looks_like_ours_is_not_touched(case, bin, name):
    """Root may rename it."""
    check_name_with_pid(case, bin, public_file_of_other_user, name)


@met([f"run.{ID}.stacks.trace"])
def test_obstacle_at_file_of_stacks_leaves_no_file(case, bin, make, name):
    """Its name has a random ID, so that only a preload can make this happen."""
    path, before, _ = place(case(), make, name)
    traced = run(case, bin, preload=[bin / "fixed_random.so"], GPUMEMTRACE_ROTATE="1GiB")
    assert identity(path) == before and traced.files() == {name}
    [line] = traced.lines()
    assert f"{path} cannot be created: File exists" in line


@met([f"run.{ID}.part1.trace", f"run.{ID}.part2.trace"])
def test_obstacle_at_part_keeps_the_trace_in_one_file(case, bin, make, name):
    path, before, _ = place(case(), make, name)
    traced = run(case, bin, "works", 5000, preload=[bin / "fixed_random.so"], GPUMEMTRACE_ROTATE="2KiB")
    assert identity(path) == before
    assert traced.files() == {name, "run.trace", f"run.{ID}.stacks.trace"}
    [line] = traced.lines()
    assert "no new part of" in line and f"{path}: " in line
    # The reader would take the obstacle for a part, so it reads copies in another folder.
    for file in ("run.trace", f"run.{ID}.stacks.trace"):
        shutil.copy2(traced.folder / file, traced.bin / file)
        os.chown(traced.bin / file, traced.user, traced.user)
    facts = traced.facts(trace=traced.bin / "run.trace")
    assert facts["complete"] and facts["events"]["device_alloc"] == 20000


def test_finished_trace_beside_folder_at_its_ring_stays(case, bin):
    run(case, bin)
    first = case().trace.read_bytes()
    path, before, says = place(case(), folder, "run.trace.ring")
    traced = run(case, bin)
    assert identity(path) == before and traced.trace.read_bytes() == first
    assert [f"{path} {says}" in line for line in traced.lines()] == [True]
    assert traced.facts(trace=traced.folder / f"run.{traced.pid}.trace")["complete"]


def test_live_recording_at_trace_is_not_touched(case, bin):
    with case().start(bin / "process_ends", "forever", SIMGPU_LOG="") as live:
        assert live.stdout.readline() == "begun\n"
        traced = run(case, bin)
        assert traced.printed == ""
        assert traced.facts(trace=traced.folder / f"run.{traced.pid}.trace")["complete"]
        _, printed = live.communicate("\n")
    assert (live.returncode, printed) == (0, "") and traced.facts()["complete"]


def test_live_recording_at_ring_is_not_touched(case, bin):
    """Its trace was renamed, so that only the ring file has the old name."""
    with case().start(bin / "process_ends", "forever", SIMGPU_LOG="") as live:
        assert live.stdout.readline() == "begun\n"
        wait_for_lease(live.pid)
        kept = case().trace.rename(case().folder / "kept.trace")
        traced = run(case, bin)
        [line] = traced.lines()
        assert f"{traced.ring} is in use by another process; recording to " in line
        assert traced.facts(trace=traced.folder / f"run.{traced.pid}.trace")["complete"]
        _, printed = live.communicate("\n")
    assert (live.returncode, printed) == (0, "")
    assert traced.facts(trace=kept)["complete"] and traced.files() == {"kept.trace", f"run.{traced.pid}.trace"}


def test_umask_does_not_lock_out_the_owner(case, bin):
    traced = case()
    with traced.start(bin / "process_ends", "forever", before=lambda: os.umask(0o777), SIMGPU_LOG="", GPUMEMTRACE_ROTATE="2KiB") as process:
        assert process.stdout.readline() == "begun\n"
        wait_until(lambda: list(traced.folder.glob("run.*.part1.trace")), "a part")

        def stop_and_look():
            """A new part has no permissions for a moment."""
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in traced.folder.glob("run*")}
            if set(found.values()) == {0o600}:
                return found
            process.send_signal(signal.SIGCONT)

        modes = wait_until(stop_and_look, "files with permissions")
        process.kill()
    assert len(modes) >= 4, modes
    assert traced.facts()["complete"]
    assert process.stderr is None or process.returncode == -9


def test_output_folder_gets_default_name(case, bin):
    """The variable may name a folder, also through a link, as `run -o` does."""
    outputs = case("outputs")
    (outputs.folder / "link").symlink_to(outputs.folder)
    for output in (outputs.folder, f"{outputs.folder}/", outputs.folder / "link"):
        traced = run(case, bin, GPUMEMTRACE_OUTPUT=output)
        assert traced.printed == "" and traced.facts(trace=outputs.trace)["complete"]


def test_name_of_device_or_stream_is_refused(case, bin):
    before = sorted(os.listdir("/dev"))
    for name in ("/dev/null", "/dev/stdout", "/proc/self/fd/1"):
        traced = run(case, bin, GPUMEMTRACE_OUTPUT=name)
        [line] = traced.lines()
        assert line.startswith(f"gpumemtrace: cannot record to {name}: it names a device or a stream, not a file.")
        assert traced.files() == set()
    assert sorted(os.listdir("/dev")) == before
    refused = subprocess.run([COMMAND, "run", "-o", "/dev/null", "--", "true"], capture_output=True, text=True)
    assert refused.returncode == 2 and "/dev/null is a device" in refused.stderr


@pytest.mark.parametrize("limit, case", [
    (limit, user) for number, limit in enumerate((0, 4096, 1 << 20)) for user in USERS if FULL or USERS[number % 2] == user], indirect=["case"])
def test_low_file_size_limit_at_start_leaves_no_file(case, bin, limit):
    """SIGXFSZ ends a program by default."""
    def before():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    traced = run(case, bin, before=before, SIMGPU_LOG="")
    [line] = traced.lines()
    assert "cannot record to" in line and "File too large" in line and traced.files() == set()
