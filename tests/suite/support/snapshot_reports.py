"""The snapshots that tests read, and what gpumemtrace and the oracle say of each, once."""

import json
import os
import subprocess
from functools import lru_cache
from pathlib import Path

import snapshot_oracle
from conftest import COMMAND, REPOSITORY

GOLDEN = REPOSITORY / "tests" / "golden" / "snapshots"
#: A folder with more snapshots, searched with its subfolders.
CORPUS = os.environ.get("GPUMEMTRACE_CORPUS")
SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".json.gz", "form.json", "snapshot.json")


def snapshot_files():
    files = [path for path in sorted(GOLDEN.iterdir()) if path.name.endswith(SUFFIXES)]
    if CORPUS:
        files += [path for path in sorted(Path(CORPUS).rglob("*")) if path.name.endswith(SUFFIXES) and path.is_file()]
    return files


def stats_at_the_dump(path):
    """What record.py wrote of PyTorch's statistics beside a snapshot; None if nothing."""
    if path.parent == GOLDEN:
        return json.loads((GOLDEN / "stats.json").read_text())[path.name.rsplit(".pickle", 1)[0].rsplit(".json", 1)[0]]
    beside = path.parent / "stats.json"
    return json.loads(beside.read_text()) if beside.exists() else None


def name_of(path):
    return "-".join(path.parts[-2:])


@lru_cache(None)
def contents(path):
    return snapshot_oracle.load(path)


@lru_cache(None)
def oracle(path):
    return snapshot_oracle.devices(contents(path))


@lru_cache(None)
def run_command(*arguments):
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300)


@lru_cache(None)
def report_of(path):
    """The exit code and the report. The gap is taken at the end, whatever else it is taken at."""
    done = run_command("replay", path, "--json", "--at", "end")
    assert done.returncode in (0, 6), f"exit code {done.returncode}: {done.stderr[-2000:]}"
    return done.returncode, json.loads(done.stdout)


def rows_by_device(rows):
    return {row["device"]: row for row in rows}


def gap_at_end(report, device):
    """The last gap of a device, and the bytes of its causes."""
    gaps = [gap for gap in report["fragmentation"] if gap["device"] == device and gap["at"]["why"] in ("at", "end")]
    if not gaps:
        return None, {}
    return gaps[-1], {cause["cause"]: cause["bytes"] for cause in gaps[-1]["causes"]}


def blocks_of_dump(path):
    """What the printed events leave allocated: (device, address) to size, requested size, pending."""
    blocks = {}
    for line in run_command("dump", path).stdout.splitlines():
        if not line.startswith("seq="):
            continue
        event = dict(part.split("=", 1) for part in line.split() if "=" in part)
        place = (event["dev"], event["addr"])
        if event["kind"] == "block_alloc":
            blocks[place] = [int(event["size"]), int(event["requested"]), False]
        elif event["kind"] == "block_free":
            if event.get("completed") == "1":
                del blocks[place]
            else:
                blocks[place][2] = True
        elif event["kind"] == "block_free_completed":
            del blocks[place]
    return blocks
