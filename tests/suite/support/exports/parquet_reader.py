"""Opens exported Parquet tables with third-party readers, in the environment that has them.

usage: parquet_reader.py FOLDER < QUERIES

QUERIES is JSON: {"views": SQL, "queries": {name: SQL}, "opens_tables": bool}. Prints JSON: the
rows of each query in DuckDB; with `opens_tables` what all readers find in each table.
"""

import json
import sys
from pathlib import Path

import duckdb
import polars
import pyarrow.dataset
import pyarrow.parquet

ENOUGH_ROWS = 2_000


def open_table(folder):
    """Returns columns and rows of a table, which all readers must agree on."""
    dataset = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive")
    table = dataset.to_table()
    frame = polars.read_parquet(f"{folder}/**/*.parquet", hive_partitioning=True)
    rows = duckdb.sql(f"FROM read_parquet('{folder}/*/*/*.parquet', hive_partitioning = true)")
    assert table.num_rows == frame.height == len(rows.fetchall()), folder
    # Readers order the columns of the folders differently.
    assert sorted(table.column_names) == sorted(frame.columns) == sorted(rows.columns), folder
    if table.num_rows <= ENOUGH_ROWS:
        assert table.to_pylist() == frame.to_dicts(), folder
    [file, *_] = sorted(folder.rglob("*.parquet"))
    parquet = pyarrow.parquet.ParquetFile(file)
    metadata = {key.decode(): value.decode() for key, value in parquet.metadata.metadata.items()}
    columns = range(parquet.metadata.num_columns if parquet.metadata.num_row_groups else 0)
    codecs = {parquet.metadata.row_group(0).column(column).compression for column in columns}
    return {
        "rows": table.num_rows,
        "types": {field.name: str(field.type) for field in table.schema},
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
        "metadata": metadata,
        "codecs": sorted(codecs),
    }


def main():
    folder = Path(sys.argv[1])
    wanted = json.load(sys.stdin)
    connection = duckdb.connect()
    connection.execute(wanted["views"])
    answers = {}
    for name, sql in wanted["queries"].items():
        result = connection.execute(sql)
        names = [column[0] for column in result.description]
        answers[name] = [dict(zip(names, row)) for row in result.fetchall()]
    tables = {path.name: open_table(path) for path in sorted(folder.glob("[!._]*"))} if wanted["opens_tables"] else {}
    json.dump({"tables": tables, "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
