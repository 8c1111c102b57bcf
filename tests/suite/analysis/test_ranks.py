"""Processes under torchrun, one device each: which rank grew first, and which needs more."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from conftest import VENVS, WORKLOADS, environment, gpumemtrace

RANKS = 3


def line_of(mark):
    lines = (WORKLOADS / "training/ranks.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# line: {mark}"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run per PyTorch version: rank 1 leaks, rank 2 holds more from the start."""
    made = {}

    def run(torch_version):
        if torch_version not in made:
            folder = tmp_path_factory.mktemp("ranks")
            env = environment(folder, SIMGPU_DEVICES=RANKS, SIMGPU_COPY="small", SIMGPU_MEM="320M", SIMGPU_LOG="", OMP_NUM_THREADS=1)
            command = [Path(VENVS[torch_version]) / "bin" / "python", "-m", "torch.distributed.run", "--nproc-per-node", RANKS,
                       "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
                       WORKLOADS / "training/ranks.py", "--leaking-rank", 1, "--larger-rank", 2]
            done = subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr[-4000:]
            made[torch_version] = folder
        return made[torch_version]

    return run


def traces(folder):
    return [folder / f"run.rank{rank}.trace" for rank in range(RANKS)]


def test_each_rank_has_a_row_with_pytorch_numbers(runs, torch_version):
    folder = runs(torch_version)
    # Traces in any order: the files name their ranks.
    report = json.loads(gpumemtrace("replay", *reversed(traces(folder)), "--json"))
    rows = report["ranks"]["rows"]
    assert [row["rank"] for row in rows] == list(range(RANKS))
    for row in rows:
        printed = json.loads((folder / f"stats.{row['rank']}.json").read_text())
        assert (row["peak_live_bytes"], row["end_live_bytes"]) == (printed["peak"], printed["end"])
        assert row["steps"] == 20
    assert report["ranks"]["missing_ranks"] == 0


def test_first_growing_rank_is_named_with_its_line(runs, torch_version):
    report = json.loads(gpumemtrace("replay", *traces(runs(torch_version)), "--json"))
    first = report["ranks"]["first_cause"]
    assert report["ranks"]["rows"][first["row"]]["rank"] == 1
    assert (Path(first["site"]["file"]).name, first["site"]["line"]) == ("ranks.py", line_of("leaking"))
    assert first["bytes_per_step"] == 1 << 20 and first["step"] in (6, 7)
    assert [leak["trace"] for leak in report["leaks"]] == [1]


def test_largest_rank_is_named_with_the_differing_line(runs, torch_version):
    report = json.loads(gpumemtrace("replay", *traces(runs(torch_version)), "--json"))
    ranks = report["ranks"]
    assert ranks["rows"][ranks["worst"]]["rank"] == 2
    most = ranks["more_by_site"][0]
    assert (Path(most["site"]["file"]).name, most["site"]["line"]) == ("ranks.py", line_of("larger"))
    assert most["bytes"] == 128 << 20
    [verdict] = [verdict for verdict in report["verdicts"] if verdict["kind"] == "imbalance"]
    assert "Imbalance: rank 2 peaked at" in verdict["summary"]


def test_missing_rank_is_reported(runs, torch_version):
    some = traces(runs(torch_version))[1:]
    report = json.loads(gpumemtrace("replay", *some, "--json"))
    assert report["ranks"]["missing_ranks"] == 1
    assert report["ranks"]["first_cause"]["confidence"] == "low"
    assert re.search(r"rank 1 +\d", gpumemtrace("replay", *some))
