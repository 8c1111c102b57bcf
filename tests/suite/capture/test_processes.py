"""Many devices, threads, ranks and children: each process has its own exact trace."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from conftest import COMMAND, FULL, VENVS, WORKLOADS, environment, gpumemtrace, run_program

#: Events per rank thread, and children of the fork storm. scripts/checks/processes raises both.
SCALE = int(os.environ.get("GPUMEMTRACE_SCALE", "1"))
FORKS = int(os.environ.get("GPUMEMTRACE_FORKS", "60"))
#: Each rank imports PyTorch.
RANKS = 8 if FULL or SCALE > 1 else 3


def start(torch_version, folder, *command, **extra):
    python = Path(VENVS[torch_version]) / "bin" / "python"
    done = run_program([python, *map(str, command)], folder, env=environment(folder, SIMGPU_LOG="", **extra))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def traces(folder):
    return sorted(path.name for path in folder.iterdir() if ".trace" in path.name)


def totals(trace):
    """Returns per device: allocations, frees and allocated bytes, as the report counts them."""
    report = json.loads(gpumemtrace("replay", trace, "--json"))
    facts = report["traces"][0]
    assert all(count == 0 for count in facts["losses"].values()), facts["losses"]
    return report, facts


def blocks_by_device(trace):
    counts = Counter()
    with subprocess.Popen([COMMAND, "dump", trace], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            for kind in ("block_alloc", "block_free"):
                if f"kind={kind} " in line:
                    device = line.split(" dev=", 1)[1].split(" ", 1)[0]
                    counts[device, kind] += 1
                    counts[device, kind + "_bytes"] += int(line.split(" size=", 1)[1].split(" ", 1)[0])
    assert process.returncode == 0
    return counts


def assert_equal_to_torch(trace, stats):
    counts = blocks_by_device(trace)
    for device, values in stats.items():
        if not values:
            continue
        assert counts[device, "block_alloc"] == values["allocation.all.allocated"]
        assert counts[device, "block_free"] == values["allocation.all.freed"]
        assert counts[device, "block_alloc_bytes"] == values["allocated_bytes.all.allocated"]
        assert counts[device, "block_free_bytes"] == values["allocated_bytes.all.freed"]
    return sum(count for (_, kind), count in counts.items() if not kind.endswith("_bytes"))


def test_each_rank_has_its_own_trace(torch_version, tmp_path):
    ranks, threads, pairs = RANKS, 8, 400 * SCALE
    start(torch_version, tmp_path, "-m", "torch.distributed.run", "--nproc-per-node", ranks, WORKLOADS / "memory/alloc_storm.py",
          "--gloo", "--threads", threads, "--pairs", pairs, "--stats", tmp_path, SIMGPU_DEVICES=ranks, OMP_NUM_THREADS=1)
    assert traces(tmp_path) == [f"run.rank{rank}.trace" for rank in range(ranks)], "the launcher has no trace"
    events = 0
    for rank in range(ranks):
        trace = tmp_path / f"run.rank{rank}.trace"
        report, facts = totals(trace)
        assert (facts["rank"], facts["world_size"], facts["end"]) == (rank, ranks, "exit")
        assert facts["host"] == os.uname().nodename
        info = gpumemtrace("info", trace)
        assert f"local rank: {rank}\n" in info
        stats = json.loads((tmp_path / f"stats.{rank}.json").read_text())
        events += assert_equal_to_torch(trace, stats)
    assert events >= ranks * threads * pairs * 2 - 1000


def test_64_threads_on_4_devices(torch_version, tmp_path):
    start(torch_version, tmp_path, WORKLOADS / "memory/alloc_storm.py", "--threads", 64, "--devices", 4, "--pairs", 200 * SCALE,
          "--stats", tmp_path, SIMGPU_DEVICES=4)
    stats = json.loads((tmp_path / "stats.0.json").read_text())
    assert_equal_to_torch(tmp_path / "run.trace", stats)
    report, _ = totals(tmp_path / "run.trace")
    assert [device["device"] for device in report["devices"]] == [0, 1, 2, 3]
    for device in report["devices"]:
        own = stats[str(device["device"])]
        assert device["peak"]["live_bytes"] == own["allocated_bytes.all.peak"]
        assert device["peak"]["reserved_bytes"] == own["reserved_bytes.all.peak"]


def test_fork_storm_leaves_one_trace(torch_version, tmp_path):
    start(torch_version, tmp_path, WORKLOADS / "memory/alloc_storm.py", "--threads", 3, "--pairs", max(20_000, 200 * FORKS),
          "--forks", FORKS, "--stats", tmp_path)
    assert traces(tmp_path) == ["run.trace"], "a child left a trace"
    assert_equal_to_torch(tmp_path / "run.trace", json.loads((tmp_path / "stats.0.json").read_text()))


STARTERS = {
    "spawn": "import multiprocessing as m; m.set_start_method('spawn'); p = m.Process(target=work); p.start(); p.join(); code = p.exitcode",
    "subprocess": "import subprocess, sys; code = subprocess.call([sys.executable, __file__, 'child'])",
    "fork before the GPU is used": "import os; pid = os.fork(); pid or (work(), os._exit(0)); code = os.waitpid(pid, 0)[1]",
}


@pytest.mark.parametrize("way", STARTERS, ids=str)
def test_gpu_child_has_its_own_trace(torch_version, tmp_path, way):
    script = tmp_path / "parent.py"
    script.write_text(f"""
import sys, torch
def work():
    torch.ones(1000, device="cuda")
if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        work()
        sys.exit(0)
    {STARTERS[way]}
    assert code == 0, code
    work()
""")
    start(torch_version, tmp_path, script)
    names = traces(tmp_path)
    assert len(names) == 2 and "run.trace" in names, names
    pids = set()
    for name in names:
        report, facts = totals(tmp_path / name)
        assert facts["events"]["block_alloc"] == 1
        pids.add(facts["pid"])
    assert len(pids) == 2, "two processes, two traces"


def test_exec_leaves_two_traces(torch_version, tmp_path):
    script = tmp_path / "again.py"
    script.write_text("""
import os, sys, torch
torch.ones(1000, device="cuda")
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
""")
    start(torch_version, tmp_path, script)
    names = traces(tmp_path)
    assert [name for name in names if name.endswith(".trace")] == ["run.1.trace", "run.trace"], names
    for name in ("run.1.trace", "run.trace"):
        report = json.loads(gpumemtrace("replay", tmp_path / name, "--json"))
        assert report["traces"][0]["events"]["block_alloc"] == 1
