"""Every command notices that a file of a trace in parts is cut, damaged, missing, empty or
unreadable: it names the file and exits with code 6."""

import json
import os
import re
import shutil
import subprocess

import pytest

from conftest import COMMAND, gpumemtrace, sentences
from durability_case import wait_until
from rotation_runs import parts, run, start

HOLE = 4 << 40
FILE_HEADER_BYTES, BLOCK_HEADER_BYTES = 16, 24


def stacks_file(folder):
    (path,) = folder.glob("run.*.stacks.trace")
    return path


# The companion files, and whether the recorder can have left them without an end.
FILES = {"stacks": stacks_file, "part": lambda folder: parts(folder)[0]}


def cut_half(path):
    os.truncate(path, path.stat().st_size // 2)


def cut_last_block(path):
    """At the end of a block: the file has no damage inside."""
    os.truncate(path, path.stat().st_size - 40)


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def flip_first_block(path):
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)


def empty(path):
    os.truncate(path, 0)


def overwrite(path):
    path.write_bytes(b"no trace " * 1000)


def replace_with_folder(path):
    path.unlink()
    path.mkdir()


def replace_with_loop(path):
    """`open` fails, for root too."""
    path.unlink()
    path.symlink_to(path.name)


def replace_with_pipe(path):
    path.unlink()
    os.mkfifo(path)


def add_hole(path):
    os.truncate(path, HOLE)


# How to damage a file, and whether `info` without --verify can notice: it reads no blocks.
DAMAGES = {
    "cut_half": (cut_half, True),
    "cut_last_block": (cut_last_block, True),
    "flip_bit": (flip_bit, False),
    "flip_first_block": (flip_first_block, True),
    "missing": (os.unlink, True),
    "empty": (empty, True),
    "overwritten": (overwrite, True),
    "folder": (replace_with_folder, True),
    "loop": (replace_with_loop, True),
    "pipe": (replace_with_pipe, True),
    "hole": (add_hole, True),
}

COMMANDS = {
    "info": ["info", "TRACE"],
    "verify": ["info", "--verify", "TRACE"],
    "dump": ["dump", "TRACE"],
    "dump_stacks": ["dump", "--stacks", "TRACE"],
    "replay": ["replay", "TRACE"],
    "replay_json": ["replay", "--json", "TRACE"],
    "replay_follow": ["replay", "--follow", "TRACE"],
    "compare": ["compare", "TRACE", "TRACE"],
    "check": ["check", "TRACE", "--budget", "BUDGET"],
    "html": ["html", "TRACE", "-o", "PAGE"],
    "symbolize": ["symbolize", "TRACE", "-o", "COPY"],
    "leak_candidates": ["leak-candidates", "TRACE"],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A complete trace in parts, with a budget that it keeps."""
    folder = tmp_path_factory.mktemp("recorded")
    run(folder, GPUMEMTRACE_ROTATE="16KiB")
    assert len(parts(folder)) >= 2
    for name, arguments in COMMANDS.items():
        if name != "check":
            gpumemtrace(*fill(arguments, folder))
    (folder / "budget.toml").write_text('[peak]\ndevice = "1TiB"\n')
    gpumemtrace(*fill(COMMANDS["check"], folder))
    return folder


def fill(arguments, folder):
    paths = {"TRACE": "run.trace", "BUDGET": "budget.toml", "PAGE": "page.html", "COPY": "copy.trace"}
    return [folder / paths[word] if word in paths else word for word in arguments]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_every_command_notices_a_damaged_companion(tmp_path, recorded, file, damage):
    folder = tmp_path / "run"
    shutil.copytree(recorded, folder, ignore=shutil.ignore_patterns("copy*", "*.html", "driver.log"))
    path = FILES[file](folder)
    change, shows_in_index = DAMAGES[damage]
    change(path)
    for name, arguments in COMMANDS.items():
        if name == "info" and not shows_in_index:
            continue
        if name == "symbolize" and damage == "hole":
            continue  # It copies the hole, which needs a file system with such large files.
        done = subprocess.run([COMMAND, *fill(arguments, folder)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 6, f"{name}: exit code {done.returncode}\n{done.stdout[-500:]}{done.stderr[-500:]}"
        shown = (folder / "page.html").read_text() if name == "html" else done.stdout
        if damage == "missing":
            named = "stacks file" if file == "stacks" else "not found beside this trace"
        else:
            named = path.name
        assert named in shown, f"{name}: {shown[:1500]}"


@pytest.mark.parametrize("command", ["info", "verify", "dump", "replay", "leak_candidates"])
def test_hole_in_a_trace_of_one_file_is_passed_over(tmp_path, command):
    run(tmp_path, count=1000)
    trace = tmp_path / "run.trace"
    end = trace.stat().st_size
    before = json.loads(gpumemtrace("replay", trace, "--json"))["traces"][0]["events"]
    os.truncate(trace, HOLE)
    shown = sentences(gpumemtrace(*fill(COMMANDS[command], tmp_path), code=6))
    assert f"damage at byte {end}, 4.00 TiB unreadable" in shown
    passed = int(re.search(r"(\d+) of these bytes are a hole in the file", shown)[1])
    assert HOLE - (1 << 20) < passed < HOLE
    after = json.loads(gpumemtrace("replay", trace, "--json", code=6))["traces"][0]["events"]
    assert after == before


@pytest.mark.parametrize("command", ["verify", "dump", "replay", "symbolize"])
def test_frames_without_definitions_count_after_a_kill(tmp_path, command):
    """Nothing else tells that the file was cut: a killed program leaves it without an end."""
    with start(tmp_path, 0, GPUMEMTRACE_ROTATE="16KiB") as process:
        wait_until(lambda: parts(tmp_path), "a part")
        process.kill()
    path = stacks_file(tmp_path)
    header = path.read_bytes()[FILE_HEADER_BYTES:FILE_HEADER_BYTES + BLOCK_HEADER_BYTES]
    os.truncate(path, FILE_HEADER_BYTES + BLOCK_HEADER_BYTES + int.from_bytes(header[8:12], "little"))
    shown = sentences(gpumemtrace(*fill(COMMANDS[command], tmp_path), code=6))
    assert re.search(r"stack frames? (is|are) not defined in the file", shown), shown[:2000]


def test_ring_with_a_hole_is_read_to_its_own_length(tmp_path):
    run(tmp_path, count=1000)
    with open(tmp_path / "run.trace.ring", "wb") as ring:
        ring.truncate(HOLE)
    shown = gpumemtrace("replay", tmp_path / "run.trace", code=6)
    assert "is not a gpumemtrace ring file" in shown
    empty_trace = tmp_path / "empty.trace"
    with open(empty_trace, "wb") as file:
        file.truncate(HOLE)
    done = subprocess.run([COMMAND, "replay", empty_trace], capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and "is not a gpumemtrace trace" in done.stderr
