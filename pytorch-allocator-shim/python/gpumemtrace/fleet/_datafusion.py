"""Runs questions in DataFusion."""

from __future__ import annotations

from typing import List, Mapping

from ._lake import PARTITIONS, TABLES, Lake, no_rows
from ._query import Row, load_package
from ._questions import Value


def run(lake: Lake, text: str, parameters: Mapping[str, Value]) -> List[Row]:
    """The rows of a question."""
    datafusion, pyarrow = load_package("datafusion"), load_package("pyarrow")
    types = {"VARCHAR": pyarrow.string(), "BIGINT": pyarrow.int64(), "BOOLEAN": pyarrow.bool_()}
    context = datafusion.SessionContext()
    for table in lake.tables:
        if table in lake.empty:
            context.sql(f"CREATE VIEW {table} AS {no_rows(table)}")
        else:
            fields = [pyarrow.field(name, types[type]) for name, type in TABLES[table].items()]
            partitions = [(name, types[type]) for name, type in PARTITIONS.items()]
            context.register_parquet(
                table, lake.url(table), table_partition_cols=partitions, schema=pyarrow.schema(fields)
            )
    try:
        rows: List[Row] = context.sql(text, param_values=dict(parameters)).to_pylist()
    except BaseException as error:
        # A damaged file can make its Rust code panic, and a panic is no `Exception`.
        if type(error).__name__ == "PanicException":
            raise RuntimeError(str(error)) from error
        raise
    return rows
