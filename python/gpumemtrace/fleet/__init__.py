"""Questions over the runs of a fleet, in SQL.

    from gpumemtrace import fleet

    for row in fleet.query("memory", "peak_lines", max_rows=10):
        print(row["file"], row["line"], row["bytes"])

A lake is a folder that `gpumemtrace export parquet` wrote, with the tables of any number of runs.
`questions()` lists what can be asked. Each question is one SQL text, which DuckDB and Spark
run unchanged; neither is a dependency of this package. docs/exports/sql.md has the list of
questions and says how to install an engine.
"""

from ._errors import FleetError
from ._query import Row, query, sql
from ._questions import Column, Parameter, Question, Value, questions

__all__ = ["Column", "FleetError", "Parameter", "Question", "Row", "Value", "query", "questions", "sql"]
