"""All questions of gpumemtrace.sql give the same rows on DuckDB and Spark."""

import shutil
import sys

import pytest

from sql_archives import engines, exported, synthesized  # noqa: F401 (fixtures)
from sql_archives import ENGINES, PACKAGE, remove_rows, synthesize

from readers import reader_program, run_reader

sys.path.insert(0, str(PACKAGE))

from gpumemtrace import sql  # noqa: E402

QUESTIONS = {question.name: question for question in sql.questions()}
TYPES = {"BIGINT": int, "DOUBLE": float, "VARCHAR": str, "BOOLEAN": bool}
#: Questions that have no rows in an archive, which is why another archive is there.
WITHOUT_ROWS = {
    # Its runs are of different programs.
    "exported": {"incomplete_runs", "grown_lines", "rank_skew", "regressions"},
    "synthesized": set(),
}


def check_rows(rows, question):
    """Checks that rows have the columns and types that the question promises."""
    for row in rows:
        assert list(row) == [column.name for column in question.columns]
        for column in question.columns:
            assert row[column.name] is None or type(row[column.name]) is TYPES[column.type], (column, row)


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("archive", WITHOUT_ROWS)
def test_engines_agree(request, engines, archive, name):
    folder = request.getfixturevalue(archive).folder
    first, *others = [engines.rows(folder, name, engine) for engine in ENGINES]
    check_rows(first, QUESTIONS[name])
    assert bool(first) == (name not in WITHOUT_ROWS[archive])
    for rows in others:
        assert rows == first


@pytest.mark.long
def test_engines_agree_on_a_larger_archive(engines, tmp_path):
    # A file with two row groups, and hundreds of lines.
    archive = synthesize(tmp_path / "archive", 1_100_000, 1, 1)
    for name in QUESTIONS:
        assert engines.rows(archive.folder, name, "spark") == engines.rows(archive.folder, name), name


@pytest.mark.parametrize("engine", ENGINES)
def test_empty_tables_give_no_rows(engines, synthesized, tmp_path, engine):
    archive = tmp_path / "archive"
    for table in sorted(path.name for path in synthesized.folder.iterdir()):
        # Any run will do, and its ranks.
        source = min((synthesized.folder / table).iterdir())
        shutil.copytree(source, archive / table / source.name)
    remove_rows(archive)
    for name in QUESTIONS:
        assert engines.rows(archive, name, engine) == [], name


@pytest.mark.parametrize("engine", ENGINES)
def test_tables_without_findings_are_empty(engines, synthesized, tmp_path, engine):
    archive = shutil.copytree(synthesized.folder, tmp_path / "archive", ignore=lambda folder, names: {"findings", "categories"} & set(names))
    for name in ("findings_by_kind", "leaking_lines", "category_by_month"):
        assert engines.rows(archive, name, engine) == []
    [reported] = {row["reported_ranks"] for row in engines.rows(archive, "slow_leaks", engine)}
    assert reported == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_are_bound(engines, synthesized, engine):
    hostile = "x' OR '1' = '1'; DROP TABLE runs; --"
    assert engines.rows(synthesized.folder, "peak_over_time", engine, command=hostile) == []
    rows = engines.rows(synthesized.folder, "peak_over_time", engine, command='%"train.py"%', max_rows=3)
    assert rows == engines.rows(synthesized.folder, "peak_over_time")[:3]
    most = engines.rows(synthesized.folder, "rank_skew", engine, min_excess=0)
    assert len(most) == 2 and engines.rows(synthesized.folder, "rank_skew", engine, min_excess=most[0]["excess"]) == most[:1]


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_of_older_exports_are_null(engines, exported, tmp_path, engine):
    # The golden run alone, as an export wrote it before `runs` had the column.
    archive = shutil.copytree(exported.folder, tmp_path / "archive")
    [file, *_] = sorted(archive.glob("runs/*/*/*.parquet"))
    script = "import sys, pyarrow.parquet as p\nt = p.ParquetFile(sys.argv[1]).read()\np.write_table(t.drop_columns('git_commit'), sys.argv[1])"
    run_reader([reader_program("python"), "-c", script, file])
    rows = engines.rows(archive, "peak_over_time", engine)
    older = file.parent.parent.name.partition("=")[2]
    assert {row["run"]: row["git_commit"] for row in rows} == {
        run.name: None if run.name == older else run.commit for run in exported.runs}
