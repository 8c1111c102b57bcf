"""`python -m gpumemtrace.sql ARCHIVE QUESTION`: asks a question and prints the answer."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import Any, Dict, List, Optional

from .._text import print_line, printable
from ._errors import QueryError
from ._query import Row, query
from ._questions import Question, Value, find_question, questions


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs the command line and returns its exit code."""
    asked = _parser().parse_args(arguments)
    if asked.question is None:
        print(_listed_questions())
        return 0
    try:
        question = find_question(asked.question)
        rows = query(asked.archive, question.name, asked.engine, **_parameters(question, asked.set))
    except QueryError as error:
        print_line(f"error: {error}")
        return error.code
    if asked.json:
        print(json.dumps(rows))
    elif asked.csv:
        writer = csv.DictWriter(sys.stdout, [column.name for column in question.columns])
        writer.writeheader()
        writer.writerows(rows)
    else:
        print(_table(question, rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpumemtrace.sql",
        description="Asks a question of a folder that `gpumemtrace export parquet` wrote.",
    )
    parser.add_argument("archive", metavar="ARCHIVE", nargs="?", help="the folder")
    parser.add_argument("question", metavar="QUESTION", nargs="?", help="without a question, all are listed")
    parser.add_argument("--engine", default="duckdb", metavar="E", help="duckdb (the default) or spark")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the question")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print a list of objects in JSON")
    forms.add_argument("--csv", action="store_true", help="print comma-separated values")
    return parser


def _parameters(question: Question, settings: List[str]) -> Dict[str, Value]:
    known = {parameter.name: parameter for parameter in question.parameters}
    given: Dict[str, Value] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise QueryError(f"--set takes NAME=VALUE, not {setting!r}")
        given[name] = known[name].parse(text) if name in known else text
    return given


def _listed_questions() -> str:
    width = max(len(question.name) for question in questions())
    return "\n".join(f"{question.name:{width}}  {question.meaning}" for question in questions())


def _table(question: Question, rows: List[Row]) -> str:
    """The rows in columns as wide as their widest value; numbers are on the right."""
    lines = [[column.name for column in question.columns]]
    lines += [[_cell(row[column.name], column.unit) for column in question.columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines)]
    is_number = [column.type in ("BIGINT", "DOUBLE") for column in question.columns]
    shown = [
        "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, is_number))
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in shown)


def _cell(value: Any, unit: str) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1 else f"{value:,.2f}"
    if isinstance(value, int):
        # Separators help with amounts, not with line numbers and times.
        return f"{value:,}" if unit.startswith("bytes") else str(value)
    return printable(value)


if __name__ == "__main__":
    sys.exit(main())
