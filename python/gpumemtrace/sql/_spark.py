"""Runs questions in Spark."""

from __future__ import annotations

import os
import shutil
from typing import Any, List, Mapping

from ._errors import QueryError
from ._archive import Archive, columns_of, no_rows
from ._query import Row, load_package
from ._questions import Value

#: Spark's default of 200 partitions is for a cluster; on one machine, most would be empty.
_LOCAL_PARTITIONS = 2 * (os.cpu_count() or 1)
_TEXT = "STRING"


def run(archive: Archive, text: str, parameters: Mapping[str, Value]) -> List[Row]:
    """The rows of a question. The views are in a session of their own."""
    # A program's own views may have the names of our tables.
    session = _running_session().newSession()
    for table in archive.tables:
        if table in archive.empty:
            rows = session.sql(no_rows(table, _TEXT))
        else:
            columns = columns_of(table).items()
            schema = ", ".join(f"`{name}` {_TEXT if type == 'VARCHAR' else type}" for name, type in columns)
            reader = session.read.schema(schema).option("basePath", archive.folder(table))
            rows = reader.parquet(archive.escaped_folder(table))
        rows.createOrReplaceTempView(table)
    return [row.asDict() for row in session.sql(text, args=dict(parameters)).collect()]


def _running_session() -> Any:
    builder = load_package("pyspark.sql").SparkSession
    session = builder.getActiveSession()
    if session is not None:
        return session
    java = os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if not os.path.exists(java) and shutil.which("java") is None:
        raise QueryError("Spark needs Java 17, which is not installed; run: apt install openjdk-17-jre-headless")
    session = (
        builder.builder.master("local[*]")
        .appName("gpumemtrace")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(_LOCAL_PARTITIONS))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
