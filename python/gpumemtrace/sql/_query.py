"""Asks a question of an archive, with one of the engines."""

from __future__ import annotations

import importlib
import os
from typing import Any, Dict, List, Union

from ._archive import open_archive
from ._commits import complete_commits
from ._errors import QueryError
from ._questions import Question, Value, find_question

#: A row of an answer, by column.
Row = Dict[str, Any]

#: The mark before the name of a parameter, by engine.
_MARKS = {"duckdb": "$", "spark": ":"}
_NAMES = {"duckdb": "DuckDB", "spark": "Spark"}


def query(path: Union[str, "os.PathLike[str]"], name: str, engine: str = "duckdb", **parameters: Value) -> List[Row]:
    """The answer to a question of `questions()`, as a list of rows in a fixed order.

    `path` is an archive: a folder that `gpumemtrace export parquet` wrote. `engine` is `duckdb`
    or `spark`; both give the same rows. With Spark, the session of the program is used, or else one
    on this machine is started. Parameters are bound, never put into the SQL. For a commit, the
    beginning of its hash is enough.

    Raises `QueryError` for an unknown question or parameter, a commit that is unknown, ambiguous or
    without runs to compare, an engine that is not installed, and an archive that lacks a table or
    cannot be read.
    """
    question = find_question(name)
    translated = _translated(question, engine)
    values = question.values(parameters)
    archive = open_archive(path, question)
    backend = importlib.import_module(f"._{engine}", __package__)
    try:
        values = complete_commits(question, values, archive, _MARKS[engine], backend.run)
        rows: List[Row] = backend.run(archive, translated, values)
    except QueryError:
        raise
    except Exception as error:  # Engines raise many kinds, also for damaged files.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise QueryError(f"{_NAMES[engine]} cannot answer {name} from {archive.path}: {lines[0]}", 5) from error
    return rows


def text(name: str, engine: str = "duckdb") -> str:
    """The SQL of a question, with parameters in the form of an engine.

    Bind all parameters; `questions()` has their defaults. Commits must be full hashes. The tables
    are those of the export, as views with the columns `run` and `rank`.

    Raises `QueryError` for an unknown question or engine.
    """
    return _translated(find_question(name), engine)


def _translated(question: Question, engine: str) -> str:
    if engine not in _MARKS:
        raise QueryError(f"unknown engine {engine!r}; the engines are {', '.join(_MARKS)}")
    return question.translate(_MARKS[engine])


def load_package(name: str) -> Any:
    """A package of an engine. Raises `QueryError` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != name.split(".")[0]:
            raise
        package = name.split(".")[0]
        raise QueryError(f"the Python package {package} is not installed; run: pip install {package}") from None
