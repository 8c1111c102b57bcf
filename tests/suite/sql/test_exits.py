"""Answers of gpumemtrace.sql about blocks that Python freed only when it exited."""

import pytest

from sql_archives import engines  # noqa: F401 (fixtures)
from sql_archives import ENGINES, Archive, read_table
from page_runs import record

LINE = ("file", "line", "function")


@pytest.fixture(scope="module")
def left(tmp_path_factory, engines):
    """An archive of two ranks that exit normally, of which the second leaks."""
    folder = tmp_path_factory.mktemp("exits")
    archive = Archive(folder / "archive")
    archive.add([record(folder, "training/train.py", "--steps", 30, "--leak", leak, trace=f"run.rank{rank}.trace", RANK=rank, WORLD_SIZE=2)
              for rank, leak in enumerate(["none", "hook"])], "aaaa")
    return archive


@pytest.fixture
def leak(left):
    """The leak of the report. All its blocks are freed in the end."""
    [leak] = left.runs[0].report["leaks"]
    ends = [site["end_bytes"] for site in read_table(left.folder, "sites") if site["site_id"] == leak["site"]["id"]]
    assert ends and not any(ends) and leak["bytes"] == 30 * leak["bytes_per_step"] > 0
    return leak


@pytest.mark.parametrize("engine", ENGINES)
def test_leak_is_that_of_the_report(engines, left, leak, engine):
    line = tuple(leak["site"][name] for name in LINE)
    [row] = engines.rows(left.folder, "leaking_lines", engine)
    assert tuple(row[name] for name in LINE) == line
    assert (row["runs"], row["ranks"], row["most_bytes"], row["bytes_per_step"]) == (1, 1, leak["bytes"], leak["bytes_per_step"])
    [row] = engines.rows(left.folder, "first_rank_to_leak", engine)
    assert tuple(row[name] for name in LINE) == line
    assert (row["leaking_ranks"], row["first_rank"], row["attempt"], row["first_step"], row["blocks"], row["bytes"]) == (
        1, 1, 1, leak["first_step"], leak["blocks"], leak["bytes"])
    [row] = engines.rows(left.folder, "slow_leaks", engine)
    assert tuple(row[name] for name in LINE) == line
    # The block from before the first step is none of a step.
    assert (row["reported_ranks"], row["blocks"], row["bytes_per_step"]) == (1, leak["blocks"] - 1, leak["bytes_per_step"])


@pytest.mark.parametrize("engine", ENGINES)
def test_lines_that_free_only_at_exit_are_never_freed(engines, left, leak, engine):
    rows = {tuple(row[name] for name in LINE): (row["runs"], row["blocks"], row["bytes"]) for row in engines.rows(left.folder, "never_freed", engine)}
    assert rows[tuple(leak["site"][name] for name in LINE)] == (1, leak["blocks"], leak["bytes"])
    # Parameters stay, and activations do not.
    assert {function for _, _, function in rows} & {"<module>"} and not {function for _, _, function in rows} & {"forward", "batch"}
