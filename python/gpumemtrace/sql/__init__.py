"""Questions about the runs of an archive, in SQL.

    from gpumemtrace import sql

    for row in sql.query("memory", "peak_lines", max_rows=10):
        print(row["file"], row["line"], row["bytes"])

An archive is a folder that `gpumemtrace export parquet` wrote, with the tables of many runs.
`questions()` lists what can be asked. Each question is one SQL text, which DuckDB and Spark
run unchanged; neither is a dependency of this package. docs/exports/sql.md has the list of
questions and says how to install an engine.
"""

from ._errors import QueryError
from ._query import Row, query, text
from ._questions import Column, Parameter, Question, Value, questions

__all__ = ["Column", "Parameter", "QueryError", "Question", "Row", "Value", "query", "questions", "text"]
