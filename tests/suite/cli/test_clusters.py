"""Processes of several nodes, pods, jobs and restarts that share a folder: each has its own trace.

A node is a host name and a PID namespace, so that both nodes have process 1, as containers do. The
file system's locks are real, or those of a network file system (flock_of.c). Slurm and Kubernetes
are their documented variables.
"""

import json
import subprocess
from pathlib import Path

import pytest

from conftest import COMMAND, LIBRARY, VENVS, environment, gpumemtrace
from durability_case import build_programs, skip_or_fail

#: Three storms of four threads with 500 allocations each.
ALLOCATIONS = 6000
JOB = {"SLURM_JOB_ID": "41", "SLURM_STEP_NUM_TASKS": "2"}
TASKS = [JOB | {"SLURM_PROCID": rank, "SLURM_LOCALID": "0"} for rank in "01"]
ARRAY = [{"SLURM_JOB_ID": job, "SLURM_ARRAY_JOB_ID": "41", "SLURM_ARRAY_TASK_ID": task, "RANK": "0"} for job, task in (("41", "0"), ("42", "1"))]
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
#: What each of two nodes sets, and the names of the two traces; None if they depend on the locks.
PLACES = {
    "slurm ranks": (TASKS, {"run.41.rank0.trace", "run.41.rank1.trace"}),
    "slurm without ranks": ([JOB, JOB], {"run.41.node-a.trace", "run.41.node-b.trace"}),
    "slurm array": (ARRAY, {"run.41_0.rank0.trace", "run.41_1.rank0.trace"}),
    "kubernetes": ([POD, POD], {"run.node-a.trace", "run.node-b.trace"}),
    "kubernetes jobs of equal ranks": ([POD | {"RANK": "0"}] * 2, {"run.node-a.rank0.trace", "run.node-b.rank0.trace"}),
    "jobs of equal ranks": ([{"RANK": "0"}] * 2, None),
}


@pytest.fixture(scope="module")
def bin(tmp_path_factory):
    return build_programs(tmp_path_factory.mktemp("bin"), ["process_ends", "flock_of.so"])


class Node:
    """A process with ID 1 on a host of its own, which records into a shared folder."""

    def __init__(self, host, shared, bin, locks, variables):
        private = shared.parent / host
        private.mkdir(exist_ok=True)
        preload = f"{bin / 'flock_of.so'}:{LIBRARY}" if locks != "coherent" else LIBRARY
        traced = f'hostname {host} && exec env LD_PRELOAD="{preload}" {bin / "process_ends"} in_two_parts'
        self.process = subprocess.Popen(
            ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", traced], cwd=private, text=True,
            env=environment(private, traced=False, LD_LIBRARY_PATH=bin, FLOCK_OF=locks, GPUMEMTRACE_OUTPUT=shared, SIMGPU_LOG="", **variables),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self.process.stdout.readline() != "first part\n":
            _, errors = self.process.communicate(timeout=60)
            if "Operation not permitted" in errors:
                skip_or_fail("namespaces are not permitted")
            pytest.fail(errors)

    def end(self):
        _, errors = self.process.communicate("\n\n", timeout=60)
        assert (self.process.returncode, errors) == (0, "")


def traces(folder):
    return {path.name for path in folder.iterdir() if path.suffix != ".ring"}


@pytest.mark.parametrize("locks", ["coherent", "nfs", "none", "local"])
@pytest.mark.parametrize("place", PLACES)
def test_two_nodes_with_one_folder_lose_nothing(bin, tmp_path, place, locks):
    variables, names = PLACES[place]
    shared = tmp_path / "shared"
    shared.mkdir()
    hosts = ["node-a", "node-b"]
    for run in range(2):
        nodes = [Node(host, shared, bin, locks, extra) for host, extra in zip(hosts, variables)]
        for node in nodes:
            node.end()
        if names and run == 0:
            assert traces(shared) == names
    # The second run is a restart with the same names, and the first one is kept.
    assert len(traces(shared)) == 4 and (names or set()) <= traces(shared)
    # A ring file remains only where another node has renamed a trace while it was written.
    assert place == "jobs of equal ranks" and locks == "local" or list(shared.glob("*.ring")) == []
    found = []
    for name in traces(shared):
        facts = json.loads(gpumemtrace("replay", shared / name, "--json"))["traces"][0]
        assert facts["complete"] and facts["events"]["device_alloc"] == ALLOCATIONS, name
        found.append((facts["host"], facts["pid"]))
    assert sorted(found) == [(host, 1) for host in hosts for _ in range(2)]
    summary = json.loads(gpumemtrace("ranks", shared, "--json"))
    assert len(summary["traces"]) == 4 and not summary["unreadable"] and not summary["incomplete"]
    ranks = [int(extra.get("RANK", extra.get("SLURM_PROCID", -1))) for extra in variables for _ in range(2)]
    assert sorted(-1 if trace["rank"] is None else trace["rank"] for trace in summary["traces"]) == sorted(ranks)
    assert summary["repeated_ranks"] == sorted({rank for rank in ranks if rank >= 0})
    assert summary["world_size"] == (2 if place == "slurm ranks" else None)


def test_labels_find_a_run(bin, tmp_path):
    labels = ["--label", "team=nlp", "--label", "experiment=lr 3e-4"]
    slurm = {"SLURM_JOB_ID": "41", "SLURM_JOB_USER": "ana", "SLURM_JOB_NAME": "nightly", "SLURM_JOB_ACCOUNT": "a,b"}
    env = environment(tmp_path, traced=False, LD_LIBRARY_PATH=bin, SIMGPU_LOG="", GPUMEMTRACE_LIB=LIBRARY, GPUMEMTRACE_LABELS="team=other,owner=ben", **slurm)
    run = [COMMAND, "run", "-o", "run.trace", *labels, "--", bin / "process_ends", "in_two_parts"]
    done = subprocess.run(run, cwd=tmp_path, env=env, input="\n\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    trace, archive = tmp_path / "run.trace", tmp_path / "archive"
    # An account with a comma is no label. What the command line says wins over the environment.
    expected = {"team": "nlp", "experiment": "lr 3e-4", "owner": "ben", "user": "ana", "job_name": "nightly", "job": "41"}
    assert json.loads(gpumemtrace("replay", trace, "--json"))["traces"][0]["labels"] == expected
    assert json.loads(gpumemtrace("ranks", trace, "--json"))["traces"][0]["labels"] == expected
    gpumemtrace("export", "parquet", trace, "--run-name", "one", "-o", archive)
    [found] = json.loads(gpumemtrace("history", archive, "--label", "team=nlp", "--label", "user=ana", "--json"))["runs"]
    assert found["labels"] == expected
    for wrong in ("team=other", "none=nlp", "team"):
        gpumemtrace("history", archive, "--label", wrong, code=2)
    refused = subprocess.run([COMMAND, "run", "--label", "9=a", "true"], env=env, capture_output=True, text=True)
    assert refused.returncode == 2 and "the key \"9\" must begin with a letter" in refused.stderr


RESTARTED = """
import os
import sys
import time

import torch

kept = [torch.ones(1 << 20, device="cuda") for _ in range(10)]
if os.environ["RANK"] == "0":
    open("rank0.begun", "w").close()
elif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists("rank0.begun"):
        time.sleep(0.01)
    sys.exit("fails once")
"""


def test_restart_by_torchrun_keeps_both_traces_of_a_rank(torch_version, tmp_path):
    (tmp_path / "train.py").write_text(RESTARTED)
    (tmp_path / "traces").mkdir()
    command = [COMMAND, "run", "-o", "traces/", "--", Path(VENVS[torch_version]) / "bin" / "python", "-m", "torch.distributed.run",
               "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "train.py"]
    env = environment(tmp_path, traced=False, SIMGPU_DEVICES=2, SIMGPU_LOG="", OMP_NUM_THREADS=1)
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "fails once" in done.stderr, done.stderr[-4000:]
    names = {f"run.rank{rank}{aside}.trace" for rank in range(2) for aside in ("", ".1")}
    assert traces(tmp_path / "traces") == names
    assert {name for name in names if f"wrote traces/{name};" in done.stderr} == names
    job = json.loads(gpumemtrace("ranks", tmp_path / "traces", "--json"))
    assert job["repeated_ranks"] == [0, 1] and job["missing_ranks"] == [] and len(job["traces"]) == 4
    assert "several traces of one rank, of restarts or of several jobs: 0, 1" in gpumemtrace("ranks", tmp_path / "traces")
