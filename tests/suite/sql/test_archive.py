"""The folder that many exports share: nothing is damaged, and growth between commits is named."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import BUILD, COMMAND, VENVS, environment, gpumemtrace, run_program
from page_runs import newest_torch, record

RANKS = 6
#: The program of two commits. In the second, lines have moved and one holds 32 MiB more.
BEFORE = """import torch

def load():
    return torch.ones(4 << 20, device="cuda")

def cache():
    return torch.ones(8 << 20, device="cuda")

kept = [load(), cache()]
torch.cuda.synchronize()
"""
AFTER = BEFORE.replace("import torch\n", "import torch\n\n# A comment moves the lines.\n").replace("8 <<", "16 <<")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The traces of a job of synthesized ranks."""
    folder = tmp_path_factory.mktemp("job")
    for rank in range(RANKS):
        synthesize = [BUILD / "examples" / "synthesize", "20000", folder / f"run.rank{rank}.trace", "0", str(rank), str(RANKS)]
        subprocess.run(synthesize, check=True)
    return folder


def files(archive):
    """The bytes of each file that readers see, by path: those in folders that are not hidden."""
    found = (path for path in archive.rglob("*") if path.is_file())
    names = {str(path.relative_to(archive)): path for path in found}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith(".gpumemtrace-")}


def export_all(traces, archive, name="job"):
    gpumemtrace("export", "parquet", traces, "--run-name", name, "-o", archive)
    return files(archive)


def test_ranks_exported_apart_and_at_once_are_the_run(traces, tmp_path):
    together = export_all(traces, tmp_path / "together")
    apart = tmp_path / "apart"
    started = [subprocess.Popen([COMMAND, "export", "parquet", traces / f"run.rank{rank}.trace", "--run-name", "job", "-o", apart],
                                stdout=subprocess.DEVNULL) for rank in range(RANKS)]
    assert [process.wait() for process in started] == [0] * RANKS
    alone = files(apart)
    assert alone.keys() == together.keys()
    # The path of a trace is as it was given. Findings may compare the ranks that are read together.
    same = [name for name in alone if not name.startswith(("runs/", "_summaries/", "findings/"))]
    assert len(same) > RANKS and all(alone[name] == together[name] for name in same)


def test_a_killed_export_damages_nothing(traces, tmp_path):
    archive = tmp_path / "archive"
    before = export_all(traces, archive, "before")
    for delay_s in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4):
        # The command runs this program, which would go on.
        export = subprocess.Popen([BUILD / "gpumemtrace-parquet", "parquet", traces, "--run-name", "killed", "-o", archive], stdout=subprocess.DEVNULL)
        time.sleep(delay_s)
        export.send_signal(signal.SIGKILL)
        export.wait()
        seen = files(archive)
        assert {name: data for name, data in seen.items() if "run=before" in name} == before
        # A run that the table of runs lists is complete.
        listed = [name for name in seen if name.startswith("runs/run=killed/")]
        for name in listed:
            assert name.replace("runs/", "events/", 1) in seen and name.replace("runs/", "sites/", 1) in seen
    after = export_all(traces, archive, "killed")
    assert {name.replace("killed", "before") for name in after if "run=killed" in name} == before.keys()


def test_a_rank_of_another_process_is_refused(tmp_path):
    traces = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        traces.append(record(tmp_path / name, "training/train.py", "--steps", 3, trace="run.rank0.trace", RANK=0, WORLD_SIZE=1))
    archive = tmp_path / "archive"
    gpumemtrace("export", "parquet", traces[0], "--run-name", "job", "-o", archive)
    before = files(archive)
    refused = subprocess.run([COMMAND, "export", "parquet", traces[1], "--run-name", "job", "-o", archive], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "has the rank of another process" in refused.stderr and "--run-name" in refused.stderr
    assert files(archive) == before


def test_unreadable_traces_are_named_and_left_out(traces, tmp_path):
    mixed = shutil.copytree(traces, tmp_path / "mixed")
    (mixed / "run.rank3.trace").write_bytes(b"no trace")
    archive = tmp_path / "archive"
    export = subprocess.run([COMMAND, "export", "parquet", mixed, "--run-name", "job", "-o", archive], capture_output=True, text=True)
    assert export.returncode == 6
    assert "run.rank3.trace" in export.stderr and "left out" in export.stderr
    whole = export_all(traces, tmp_path / "whole")
    expected = {name: data for name, data in whole.items() if "rank=3" not in name and not name.startswith(("runs/", "_summaries/", "findings/"))}
    assert {name: data for name, data in files(archive).items() if name in expected} == expected
    assert not any("rank=3" in name for name in files(archive))


def test_growth_between_commits_is_named_with_its_line(tmp_path):
    program, archive = tmp_path / "repository", tmp_path / "archive"
    program.mkdir()
    git = lambda *words: subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=program, check=True,
                                        capture_output=True, text=True).stdout.strip()
    git("init", "--quiet")
    commits = []
    for number, source in enumerate([BEFORE, AFTER]):
        (program / "train.py").write_text(source)
        git("add", "train.py")
        git("commit", "--quiet", "-m", "a version")
        commits.append(git("rev-parse", "HEAD"))
        python = Path(VENVS[newest_torch()]) / "bin" / "python"
        run_program([COMMAND, "run", "--", python, "train.py"], program, env=environment(program, traced=False))
        gpumemtrace("export", "parquet", program / "run.trace", "--run-name", f"v{number}", "-o", archive)
        (program / "run.trace").unlink()
    text = gpumemtrace("history", archive)
    [line] = [line for line in text.splitlines() if "cache()" in line]
    assert "32.00 MiB" in line and "train.py:9 in cache()" in line
    assert commits[0][:8] in line and commits[1][:8] in line
    assert "load()" not in text
    gpumemtrace("history", archive, "--html", tmp_path / "archive.html")
    assert (tmp_path / "archive.html").stat().st_size < 1 << 20
    summary = json.loads(next((archive / "_summaries" / "run=v1").iterdir()).read_text())
    assert summary["traces"][0]["git_commit"] == commits[1]
