"""Runs several hosts at once for a long time and watches what the recorder costs them.

At the end each trace is compared with what the program counted itself: calls of the driver, or
PyTorch's blocks.
"""

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field

from .hosts import C, COMMAND, LIBRARY, PYTORCH, SMALL, TARGET, Host
from .kills import Reader, end_group
from .oracle import COMPLETE, INCOMPLETE

ROTATED_BYTES = 8 << 20
#: Pauses keep the load below what the disk can take.
PAUSE = {"SOAK_PAUSE_US": "4000"}
HOSTS = [
    Host("storm", "C, 4 threads", C, (4,), PAUSE),
    Host("rotated", "C, 4 threads, at most 8 MiB in all", C, (4,), PAUSE | SMALL | {"GPUMEMTRACE_MAX_TOTAL_SIZE": "8MiB"}, drops_oldest=True),
    Host("forks", "C, 2 threads beside forks", C, (2,), PAUSE),
    Host("train", "PyTorch training", PYTORCH, ("train", "--pause-ms", 10)),
    Host("threads", "PyTorch, 16 Python threads", PYTORCH, ("threads", "--pause-ms", 20)),
    Host("pluggable", "PyTorch, pluggable allocator", PYTORCH, ("train", "--pause-ms", 10, "--pluggable", LIBRARY)),
]
#: Growth from the second quarter of a run to the last one that is accepted. The simulated driver
#: splits mappings, and PyTorch's own memory grows a little.
LIMITS = {"rss_mib": 8, "mappings": 32, "descriptors": 0, "threads": 0}


@dataclass
class Watched:
    """A running host, and samples of its process."""

    host: Host
    folder: object
    process: subprocess.Popen
    reader: Reader
    samples: list = field(default_factory=list)
    most_trace_bytes: int = 0

    def sample(self):
        """Notes the size of the process; nothing if it has ended."""
        proc = f"/proc/{self.process.pid}"
        try:
            with open(f"{proc}/status") as file:
                status = dict(line.split(":", 1) for line in file)
            with open(f"{proc}/maps") as file:
                mappings = sum(1 for _ in file)
            descriptors = len(os.listdir(f"{proc}/fd"))
            self.samples.append({"rss_mib": int(status["VmRSS"].split()[0]) / 1024, "threads": int(status["Threads"]),
                                 "mappings": mappings, "descriptors": descriptors})
        except (OSError, KeyError):
            return
        self.most_trace_bytes = max(self.most_trace_bytes, trace_bytes(self.folder))

    def growth(self):
        """The highest value of each quarter that counts, as (second, last)."""
        # The last samples may be of the exit.
        samples = self.samples[: len(self.samples) * 97 // 100]
        quarter = max(1, len(samples) // 4)
        most = lambda part, name: max(sample[name] for sample in part)
        return {name: (most(samples[quarter: 2 * quarter], name), most(samples[-quarter:], name)) for name in LIMITS}


def trace_bytes(folder):
    total = 0
    for path in folder.glob("run*.trace"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # deleted by the rotation
            pass
    return total


def start(programs, host, folder, seconds):
    folder.mkdir(parents=True)
    if host.language == C:
        arguments = [seconds * 1000] + ([2] if host.name == "forks" else [])
    else:
        arguments = ["--seconds", seconds] + ([] if "--pluggable" in host.arguments else ["--stats", folder / "stats.json"])
    process = subprocess.Popen(programs.command(host, arguments), cwd=folder, env=programs.environment(host, folder, log=False), text=True,
                               stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=open(folder / "stderr", "w"),
                               start_new_session=True, preexec_fn=lambda: os.nice(5))
    return Watched(host, folder, process, Reader(process.stdout))


def problems_of(watched, facts, kept, dropped):
    """Compares the trace with the program's own counts."""
    problems = []
    if watched.host.language == C:
        [pairs] = [int(word.split()[1]) for word in watched.reader.words if word.startswith("pairs ")]
        counted = facts["events"]["device_alloc"], facts["events"]["device_free"]
        if watched.host.drops_oldest:
            if kept + dropped < 2 * pairs + 1:
                problems.append(f"{2 * pairs + 1:,} calls, but {kept:,} kept and {dropped:,} deleted events")
        elif counted != (pairs, pairs):
            problems.append(f"{pairs:,} pairs, but {counted} in the trace")
    elif (watched.folder / "stats.json").exists():
        stats = json.loads((watched.folder / "stats.json").read_text())
        expected = stats["allocation.all.allocated"], stats["allocation.all.freed"]
        counted = facts["events"]["block_alloc"], facts["events"]["block_free"]
        if counted != expected:
            problems.append(f"PyTorch counted {expected} blocks, the trace has {counted}")
    return problems


def result_of(watched, seconds):
    """One row of the result; `problems` is empty if the host passed."""
    trace = watched.folder / "run.trace"
    info = subprocess.run([COMMAND, "info", "--verify", trace], capture_output=True, text=True)
    replay = subprocess.run([COMMAND, "replay", "--json", trace], capture_output=True, text=True)
    row = {"name": watched.host.name, "title": watched.host.title, "seconds": seconds, "problems": []}
    problems = row["problems"]
    if watched.process.returncode not in (0, -6):
        problems.append(f"the program exited with {watched.process.returncode}")
    if replay.returncode not in (COMPLETE, INCOMPLETE):
        return row | {"problems": problems + [f"replay exited with {replay.returncode}: {replay.stderr[-300:]}"]}
    facts = json.loads(replay.stdout)["traces"][0]
    kept = sum(facts["events"].values())
    said = " ".join(loss["message"] for loss in facts["incomplete"])
    dropped = sum(loss["events"] for loss in facts["incomplete"] if loss["kind"] == "dropped_parts")
    lost = facts["losses"]["dropped_events"] + facts["losses"]["corrupt_blocks"]
    if lost or (not facts["complete"] and not dropped) or info.returncode != replay.returncode:
        problems.append(f"{lost} events lost; info exited with {info.returncode}: {said}")
    problems += problems_of(watched, facts, kept, dropped)
    growth = watched.growth()
    for name, (before, after) in growth.items():
        if after - before > LIMITS[name]:
            problems.append(f"{name} grew from {before:.0f} to {after:.0f}")
    if watched.host.drops_oldest and watched.most_trace_bytes > 1.25 * ROTATED_BYTES:
        problems.append(f"the parts had {watched.most_trace_bytes:,} bytes")
    waits = re.search(r"ring_waits: ([\d,]+)", info.stdout)
    return row | {
        "events": kept + dropped, "events_per_second": round((kept + dropped) / seconds), "deleted_with_old_parts": dropped, "lost": lost,
        "ring_waits": int(waits[1].replace(",", "")) if waits else 0, "most_trace_bytes": watched.most_trace_bytes,
        "growth": {name: [round(before, 1), round(after, 1)] for name, (before, after) in growth.items()},
    }


def run(programs, options):
    """Returns the exit code and the result."""
    seconds = round(options.minutes * 60)
    folder = TARGET / "soak" / f"load-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    all_watched = [start(programs, host, folder / host.name, seconds) for host in HOSTS]
    try:
        pause = max(0.2, seconds / 300)
        # A host that does not end is a failure.
        deadline = time.monotonic() + seconds * 1.5 + 120
        while any(watched.process.poll() is None for watched in all_watched) and time.monotonic() < deadline:
            for watched in all_watched:
                watched.sample()
            time.sleep(pause)
    finally:
        for watched in all_watched:
            end_group(watched.process)
            watched.reader.join(10)
    rows = [result_of(watched, seconds) for watched in all_watched]
    failed = [row for row in rows if row["problems"]]
    for row in failed:
        print(f"FAILED {row['title']}: {'; '.join(row['problems'])}")
    for line in table(rows):
        print(line)
    if failed:
        kept = TARGET / "soak" / "failures" / "load"
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, kept)
    else:
        shutil.rmtree(folder)
    return (1 if failed else 0), {"seconds": seconds, "hosts": rows, "failed": len(failed), "lost": sum(row.get("lost", 0) for row in rows)}


def table(rows):
    """The rows of the result, as Markdown."""
    lines = ["| host | events | events/s | resident memory | mappings | descriptors | threads | largest trace | waits for ring space | lost |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        if "growth" not in row:
            continue
        grew = lambda name, unit="": "{0:,.0f} to {1:,.0f}{2}".format(*row["growth"][name], unit)
        cells = [row["title"], f"{row['events']:,}", f"{row['events_per_second']:,}", grew("rss_mib", " MiB"), grew("mappings"),
                 grew("descriptors"), grew("threads"), f"{row['most_trace_bytes'] / (1 << 20):,.1f} MiB", f"{row['ring_waits']:,}", f"{row['lost']:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
