"""Runs questions in DuckDB."""

from __future__ import annotations

import tempfile
from typing import Any, List, Mapping

from ._archive import PARTITIONS, Archive, columns_of, no_rows
from ._query import Row, load_package
from ._questions import Value


def run(archive: Archive, text: str, parameters: Mapping[str, Value]) -> List[Row]:
    """The rows of a question. Intermediate results that do not fit in memory go to a folder."""
    duckdb = load_package("duckdb")
    with tempfile.TemporaryDirectory(prefix="gpumemtrace-") as folder, duckdb.connect() as connection:
        connection.execute(f"SET temp_directory = {_quoted(folder)}")
        for table in archive.tables:
            _create_view(connection, archive, table)
        result = connection.execute(text, dict(parameters))
        names = [column[0] for column in result.description]
        return [dict(zip(names, row)) for row in result.fetchall()]


def _create_view(connection: Any, archive: Archive, table: str) -> None:
    if table in archive.empty:
        connection.execute(f"CREATE VIEW {table} AS {no_rows(table)}")
        return
    types = ", ".join(f"'{name}': {type}" for name, type in PARTITIONS.items())
    rows = (
        f"read_parquet({_quoted(archive.pattern(table))}, union_by_name = true, hive_partitioning = true, "
        f"hive_types = {{{types}}})"
    )
    present = {row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {rows}").fetchall()}
    selected = ", ".join(
        name if name in present else f"CAST(NULL AS {type}) AS {name}" for name, type in columns_of(table).items()
    )
    connection.execute(f"CREATE VIEW {table} AS SELECT {selected} FROM {rows}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
