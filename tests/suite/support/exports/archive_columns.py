"""Sets columns of the table `runs` of an archive, and writes the table `categories`.

usage: archive_columns.py ARCHIVE < VALUES

VALUES is JSON: {RUN/RANK: {"runs": {column: value}, "categories": [row, ...]}}. The second one
may be left out.
"""

import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet

TYPES = {bool: pyarrow.bool_(), int: pyarrow.int64(), str: pyarrow.string(), type(None): pyarrow.string()}
#: Columns of numbers, which may be null.
NUMBERS = {"card_bytes", "peak_live_bytes", "peak_reserved_bytes", "peak_device_bytes", "leaks", "ooms"}


def main():
    archive = Path(sys.argv[1])
    for place, values in json.load(sys.stdin).items():
        file = archive / "runs" / place / "part-0.parquet"
        # Without the columns of the folders' names.
        table = pyarrow.parquet.ParquetFile(file).read()
        for name, value in values["runs"].items():
            column = pyarrow.array([value], pyarrow.int64() if name in NUMBERS else TYPES[type(value)])
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, column)
            else:
                table = table.append_column(name, column)
        pyarrow.parquet.write_table(table, file)
        if "categories" not in values:
            continue
        folder = archive / "categories" / place
        folder.mkdir(parents=True, exist_ok=True)
        schema = pyarrow.schema([("device", pyarrow.int64()), ("category", pyarrow.string()), ("bytes", pyarrow.int64()),
                                 ("blocks", pyarrow.int64())])
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(values["categories"], schema), folder / "part-0.parquet")


if __name__ == "__main__":
    main()
