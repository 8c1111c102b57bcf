"""The questions' heads, the page about them, and what gpumemtrace.sql says if something is wrong."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from conftest import REPOSITORY
from sql_archives import engines, synthesized  # noqa: F401 (fixtures)
from sql_archives import ENGINES, PACKAGE
from readers import reader_program

sys.path.insert(0, str(PACKAGE))

from gpumemtrace import sql  # noqa: E402
from gpumemtrace.sql._archive import TABLES  # noqa: E402

QUESTIONS = sql.questions()
PAGE = REPOSITORY / "docs" / "exports" / "sql.md"
COLUMNS = REPOSITORY / "docs" / "exports" / "parquet-columns.md"


def listed_questions():
    """Returns the table of questions for the page."""
    lines = ["| question | answers | parameters |", "|---|---|---|"]
    for question in QUESTIONS:
        parameters = ", ".join(f"`{parameter.name}={parameter.default}`" for parameter in question.parameters)
        lines.append(f"| `{question.name}` | {question.meaning} | {parameters} |")
    return "\n".join(lines) + "\n"


def test_page_lists_all_questions():
    assert listed_questions() in PAGE.read_text(), f"the list in {PAGE.name} must be:\n{listed_questions()}"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_head_describes_the_question(question):
    assert question.meaning.endswith("?") and question.columns
    for column in question.columns:
        assert column.unit or column.type in ("VARCHAR", "BOOLEAN"), f"{column.name} has no unit"
    used = set(re.findall(r"(?<!:):(\w+)", re.sub(r"--[^\n]*|'[^']*'", "", question.sql)))
    assert used == {parameter.name for parameter in question.parameters}
    assert ("Reads allocations." in question.details) == ("allocations" in re.findall(r"(?:FROM|JOIN) (\w+)", question.sql))
    # Engines place nulls differently.
    assert not re.search(r"DESC(?! NULLS)", re.sub(r"--[^\n]*", "", question.sql))


def test_at_least_four_questions_read_allocations():
    assert sum("Reads allocations." in question.details for question in QUESTIONS) >= 4


@pytest.mark.parametrize("engine, mark", [("duckdb", "$"), ("spark", ":")])
def test_sql_has_the_parameters_of_the_engine(engine, mark):
    text = sql.text("peak_lines", engine)
    assert f"LIKE {mark}command" in text and f"LIMIT {mark}max_rows" in text
    assert text.startswith("-- Which lines hold most memory")
    # Neither a time in a comment nor a text is a parameter.
    changed = sql.Question("q", "", "", (), (), "-- at 12:30\nSELECT ':text', :value")
    assert changed.translate("$") == "-- at 12:30\nSELECT ':text', $value"


def test_tables_are_those_of_exports():
    documented = {}
    for name, text in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", COLUMNS.read_text(), re.M | re.S):
        documented[name] = dict(re.findall(r"^\| `(\w+)` \| (\w+)", text, re.M))
    for table, columns in TABLES.items():
        missing = {name: type for name, type in columns.items() if documented[table].get(name) != type}
        assert not missing, f"{table}: {missing} is not what {COLUMNS.name} says"


def error_of(engines, archive, name, engine="duckdb", **parameters):
    answer = engines.ask(archive, name, engine, **parameters)
    assert "error" in answer, answer
    assert "\n" not in answer["error"]
    return answer["error"], answer["code"]


def test_errors_say_what_is_wrong(engines, synthesized, tmp_path):
    archive = synthesized.folder
    assert error_of(engines, archive, "peak_line") == (
        "unknown question 'peak_line'; the nearest are peak_lines, leaking_lines, pinning_lines", 2)
    assert error_of(engines, archive, "rank_skew", min_exces=0.1) == (
        "rank_skew has no parameter min_exces; it has min_excess, max_rows", 2)
    assert error_of(engines, archive, "rank_skew", max_rows="many") == ("parameter max_rows is 'many', and must be a BIGINT", 2)
    assert error_of(engines, archive, "rank_skew", "sqlite") == (
        "unknown engine 'sqlite'; the engines are duckdb, spark", 2)
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert error_of(engines, folder, "rank_skew") == (
            f"{folder} has no table runs; write a run to it with `gpumemtrace export parquet`", 5)
    part = shutil.copytree(archive, tmp_path / "part", ignore=lambda folder, names: {"allocations"} & set(names))
    assert error_of(engines, part, "slow_leaks") == (
        f"{part} has no table allocations, which slow_leaks reads; export its runs again", 5)


@pytest.mark.parametrize("engine", ENGINES)
def test_damaged_file_is_named_with_its_archive(engines, synthesized, tmp_path, engine):
    archive = shutil.copytree(synthesized.folder, tmp_path / "archive")
    [file, *_] = sorted(archive.glob("runs/*/*/*.parquet"))
    file.write_bytes(b"PAR1 no table PAR1")
    message, code = error_of(engines, archive, "rank_skew", engine)
    assert code == 5 and re.match(rf"\w+ cannot answer rank_skew from {archive}: \S", message)


def run_sql(*arguments, python=None, code=0, **variables):
    """Runs `python -m gpumemtrace.sql`."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GPUMEMTRACE_", "LD_", "PYTHON"))}
    env |= {"PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    command = [python or reader_program("python"), "-m", "gpumemtrace.sql", *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_command_line_prints_tables(engines, synthesized):
    archive = synthesized.folder
    expected = engines.rows(archive, "peak_by_torch")
    assert json.loads(run_sql(archive, "peak_by_torch", "--json").stdout) == expected
    assert json.loads(run_sql(archive, "peak_by_torch", "--json", "--engine", ENGINES[-1]).stdout) == expected
    rows = list(csv.DictReader(io.StringIO(run_sql(archive, "peak_by_torch", "--csv").stdout)))
    assert rows == [{name: "" if value is None else str(value) for name, value in row.items()} for row in expected]
    head, *lines = run_sql(archive, "peak_by_torch").stdout.splitlines()
    assert head.split() == list(expected[0]) and len(lines) == len(expected)
    first = list(expected[0].values())
    assert lines[0].split() == [first[0], "null", str(first[2]), *(f"{size:,}" for size in first[3:])]
    # Numbers end in one column.
    assert {len(line) for line in lines} == {len(head)}
    shown = run_sql(archive, "peak_over_time", "--set", "max_rows=2", "--set", "command=%train%").stdout.splitlines()
    assert len(shown) == 3


def test_command_line_lists_questions():
    for arguments in ([], ["memory"]):
        listed = run_sql(*arguments, python=sys.executable).stdout.splitlines()
        assert [line.split()[0] for line in listed] == [question.name for question in QUESTIONS]


def test_command_line_errors(synthesized):
    archive = synthesized.folder
    done = run_sql(archive, "rank_skew", "--set", "max_rows=many", code=2)
    assert done.stderr == "gpumemtrace: error: parameter max_rows is 'many', and must be a BIGINT\n"
    done = run_sql(archive, "grown_lines", "--set", "before=nowhere", code=2)
    assert done.stderr == f"gpumemtrace: error: no run in {archive} has a commit that begins with 'nowhere'\n"
    done = run_sql(archive, "rank_skew", "--set", "max_rows", code=2)
    assert done.stderr == "gpumemtrace: error: --set takes NAME=VALUE, not 'max_rows'\n"
    assert run_sql(archive / "runs", "rank_skew", code=5).stderr.startswith(f"gpumemtrace: error: {archive / 'runs'} has no table runs")


@pytest.mark.parametrize("engine, package", [("duckdb", "duckdb"), ("spark", "pyspark")])
def test_missing_package_says_how_to_install_it(synthesized, tmp_path, engine, package):
    # A package of this name that cannot be imported, as if it were not there.
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")
    done = run_sql(synthesized.folder, "rank_skew", "--engine", engine, code=2, PYTHONPATH=f"{PACKAGE}:{tmp_path}")
    assert done.stderr == (
        f"gpumemtrace: error: the Python package {package} is not installed; run: pip install {package}\n")


@pytest.mark.long  # needs PySpark
def test_missing_java_says_how_to_install_it(synthesized, tmp_path):
    done = run_sql(synthesized.folder, "rank_skew", "--engine", "spark", code=2, PATH=str(tmp_path), JAVA_HOME="")
    assert done.stderr == ("gpumemtrace: error: Spark needs Java 17, which is not installed; "
                           "run: apt install openjdk-17-jre-headless\n")
