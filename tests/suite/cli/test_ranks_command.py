"""`gpumemtrace ranks`: four ranks of a real torchrun, of which one leaks and dies."""

import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import COMMAND, VENVS, environment, gpumemtrace

RANKS = 4
LEAKING = 2
TRAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for step in range(100):
    model(torch.ones(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 2:
        kept.append(torch.empty(4 << 20, dtype=torch.uint8, device="cuda"))  # line: leak
    dist.barrier()
"""
LINE = next(number for number, line in enumerate(TRAIN.splitlines(), 1) if line.endswith("# line: leak"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = {}

    def run(torch_version):
        if torch_version not in made:
            folder = tmp_path_factory.mktemp("ranks")
            (folder / "train.py").write_text(TRAIN)
            env = environment(folder, SIMGPU_DEVICES=RANKS, SIMGPU_MEM="160M", SIMGPU_LOG="", OMP_NUM_THREADS=1)
            command = [Path(VENVS[torch_version]) / "bin" / "python", "-m", "torch.distributed.run", "--nproc-per-node", RANKS,
                       "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "train.py"]
            done = subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True, timeout=300)
            assert done.returncode != 0 and "OutOfMemoryError" in done.stderr, done.stderr[-4000:]
            made[torch_version] = folder
        return made[torch_version]

    return run


@pytest.fixture
def traces(runs, torch_version, tmp_path):
    """A copy of the folder of traces, for tests that damage one."""
    return Path(shutil.copytree(runs(torch_version), tmp_path / "traces"))


def rank_report(*paths, code=0):
    return json.loads(gpumemtrace("ranks", *paths, "--json", code=code))


def trace_of(folder, rank):
    return folder / f"run.rank{rank}.trace"


def test_the_rank_that_leaks_and_dies_is_the_first_cause(traces):
    job = rank_report(traces)
    assert [trace["rank"] for trace in job["traces"]] == list(range(RANKS))
    first, oom = job["first_growth"], job["ooms"][0]
    assert job["traces"][first["trace"]]["rank"] == LEAKING and first["lead_steps"] is None
    assert f"train.py:{LINE}" in first["site"]["text"] and first["bytes_per_step"] == 4 << 20
    # The request that found no memory may be that of another line.
    assert job["traces"][oom["trace"]]["rank"] == LEAKING and "train.py:" in oom["site"]["text"]
    assert [job["traces"][outlier["trace"]]["rank"] for outlier in job["outliers"]] == [LEAKING]
    assert job["missing_ranks"] == [] and job["world_size"] == RANKS
    text = gpumemtrace("ranks", traces)
    assert f"Growth began in rank {LEAKING} in step " in text and "(no other grows)" in text


def test_numbers_are_those_of_replay(traces):
    for trace in rank_report(traces)["traces"]:
        report = json.loads(gpumemtrace("replay", trace_of(traces, trace["rank"]), "--json"))
        [device], [summary] = report["devices"], trace["devices"]
        assert summary["peak_live_bytes"] == device["peak"]["live_bytes"]
        assert summary["peak_reserved_bytes"] == device["peak"]["reserved_bytes"]
        assert trace["events"] == sum(report["traces"][0]["events"].values())
        assert [leak["bytes"] for leak in trace["leaks"]] == [leak["bytes"] for leak in report["leaks"]]


def test_a_damaged_an_unreadable_and_a_missing_rank_are_told(traces):
    whole = rank_report(traces)
    # If torchrun killed this rank when the other died, its last events are in the ring file. Else
    # it has exited, and its trace has an end.
    (traces / "run.rank0.trace.ring").unlink(missing_ok=True)
    os.truncate(trace_of(traces, 0), trace_of(traces, 0).stat().st_size - 1)
    trace_of(traces, 1).write_bytes(b"no trace")
    trace_of(traces, 3).unlink()
    job = rank_report(traces, code=6)
    assert [trace["rank"] for trace in job["traces"]] == [0, LEAKING]
    assert job["traces"][1] == whole["traces"][LEAKING]
    assert [row["trace"] for row in job["incomplete"]] == [0]
    assert [Path(trace["path"]).name for trace in job["unreadable"]] == ["run.rank1.trace"]
    assert job["missing_ranks"] == [1, 3]
    assert job["traces"][job["first_growth"]["trace"]]["rank"] == LEAKING


def test_summaries_merge_in_any_order_to_the_same_bytes(runs, traces, torch_version, tmp_path):
    whole = tmp_path / "whole.summary"
    gpumemtrace("ranks", traces, "-o", whole)
    parts = [tmp_path / f"rank{rank}.summary" for rank in range(RANKS)]
    for rank, part in enumerate(parts):
        gpumemtrace("ranks", trace_of(traces, rank), "-o", part)
    for order in itertools.permutations(parts):
        half, merged = tmp_path / "half.summary", tmp_path / "merged.summary"
        gpumemtrace("ranks", *order[:2], "-o", half)
        gpumemtrace("ranks", order[3], half, order[2], order[0], "-o", merged)
        assert merged.read_bytes() == whole.read_bytes()
    assert rank_report(whole) == rank_report(traces)
    # The current folder shortens paths in the text only.
    elsewhere = tmp_path / "elsewhere.summary"
    subprocess.run([COMMAND, "ranks", traces, "-o", elsewhere], cwd=Path(traces).parent, check=True, capture_output=True)
    inside = tmp_path / "inside.summary"
    subprocess.run([COMMAND, "ranks", traces, "-o", inside], cwd=runs(torch_version), check=True, capture_output=True)
    assert elsewhere.read_bytes() == inside.read_bytes() == whole.read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs setpriv")
def test_a_folder_that_cannot_be_listed_is_named_and_left_out(traces):
    closed = traces / "lost+found"
    closed.mkdir()
    trace_of(traces, 1).rename(closed / "run.rank1.trace")
    closed.chmod(0)
    capable = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", COMMAND]
    for path, code in ((".", 6), ("**/run.*.trace", 6), ("run.*.trace", 6), ("[l]*/run.*.trace", 5), ("lost+found", 5)):
        done = subprocess.run([*capable, "ranks", path, "--json"], cwd=traces, capture_output=True, text=True)
        assert done.returncode == code, (path, done.stderr)
        says_why = "Permission denied" in done.stderr or "only its owner has access" in done.stderr
        assert ("lost+found" in done.stderr and says_why) == (path != "run.*.trace"), (path, done.stderr)
        if code != 5:
            assert [trace["rank"] for trace in json.loads(done.stdout)["traces"]] == [0, 2, 3]


def test_the_file_of_a_summary_has_a_limit(tmp_path):
    path = tmp_path / "large.summary"
    path.write_text('{"schema":"gpumemtrace.summary"')
    os.truncate(path, 6 << 30)
    done = subprocess.run([COMMAND, "ranks", str(path)], capture_output=True, text=True)
    assert done.returncode == 5 and "large.summary is larger than 256 MiB, so it is not a summary; it is left out" in done.stderr


def test_paths_without_traces_are_one_sentence(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    wrong = tmp_path / "wrong.summary"
    wrong.write_text('{"schema":"gpumemtrace.summary","version":2,"traces":[],"unreadable":[]}')
    for path, why in ((empty, "has no file named *.trace or *.summary"), (tmp_path / "none.trace", "does not exist"),
                      (wrong, "is not a summary of version 1")):
        done = subprocess.run([COMMAND, "ranks", str(path)], capture_output=True, text=True)
        assert done.returncode == 5 and why in done.stderr and done.stdout == "", done.stderr
