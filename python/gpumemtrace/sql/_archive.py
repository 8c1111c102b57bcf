"""An archive: the folder with the tables that questions read.

An export has all tables that its version knows, also empty ones. So a table that is not there was
removed, and an answer without it would be wrong, except for those in `_OPTIONAL`. Columns that a
file lacks, because an older version wrote it, are null.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Tuple, Union

from ._errors import QueryError
from ._questions import Question

#: The columns of the folders' names.
PARTITIONS = {"run": "VARCHAR", "rank": "BIGINT"}

#: Columns by table, with their SQL types. docs/exports/parquet-columns.md says what they mean.
TABLES: Dict[str, Dict[str, str]] = {
    table: {name: type for name, type in (column.split() for column in columns.split(","))}
    for table, columns in {
        "runs": """trace VARCHAR, trace_id VARCHAR, host VARCHAR, pid BIGINT, reported_rank BIGINT,
            world_size BIGINT, command_json VARCHAR, started_unix_ns BIGINT, duration_ns BIGINT,
            since_ns BIGINT, until_ns BIGINT, is_whole BOOLEAN, events BIGINT, step_source VARCHAR,
            steps BIGINT, torch VARCHAR, python VARCHAR, cuda_driver VARCHAR, cuda_runtime VARCHAR,
            allocator_conf VARCHAR, ending VARCHAR, exit_code BIGINT, is_complete BOOLEAN,
            incomplete_json VARCHAR, devices_json VARCHAR, gpumemtrace VARCHAR, git_commit VARCHAR, labels_json VARCHAR,
            card VARCHAR, card_bytes BIGINT, peak_live_bytes BIGINT, peak_reserved_bytes BIGINT,
            peak_device_bytes BIGINT, peak_used_bytes BIGINT, peak_unaccounted_bytes BIGINT,
            unaccounted_source VARCHAR, leaks BIGINT, ooms BIGINT, worst_severity VARCHAR,
            worst_finding VARCHAR""",
        "allocations": """layer VARCHAR, device BIGINT, address BIGINT, size_bytes BIGINT,
            requested_bytes BIGINT, stream BIGINT, pool BIGINT, stack BIGINT, site BIGINT,
            thread BIGINT, start_seq BIGINT, start_ns BIGINT, start_step BIGINT, state VARCHAR,
            end_seq BIGINT, end_ns BIGINT, end_step BIGINT, end_stack BIGINT""",
        "sites": """site BIGINT, site_id VARCHAR, file VARCHAR, line BIGINT, function VARCHAR, source_id VARCHAR,
            module VARCHAR, is_backward BOOLEAN, layer VARCHAR, device BIGINT, allocations BIGINT,
            allocated_bytes BIGINT, frees BIGINT, freed_bytes BIGINT, peak_blocks BIGINT,
            peak_bytes BIGINT, end_blocks BIGINT, end_bytes BIGINT""",
        "series": """device BIGINT, series VARCHAR, start_ns BIGINT, end_ns BIGINT,
            min_bytes BIGINT, max_bytes BIGINT""",
        "segments": """moment VARCHAR, time_ns BIGINT, seq BIGINT, step BIGINT, device BIGINT,
            address BIGINT, size_bytes BIGINT, allocated_bytes BIGINT, blocks BIGINT, stream BIGINT,
            pool BIGINT, is_expandable BOOLEAN""",
        "findings": """rank_in_report BIGINT, severity VARCHAR, kind VARCHAR, device BIGINT,
            summary VARCHAR, site_id VARCHAR, evidence_json VARCHAR""",
        "categories": "device BIGINT, category VARCHAR, bytes BIGINT, blocks BIGINT",
    }.items()
}

#: Tables without which there is simply nothing to list.
_OPTIONAL = ("categories", "findings")
_FILES = "run=*/rank=*/*.parquet"


@dataclass(frozen=True)
class Archive:
    """The tables that one question reads: for each, its folder and whether it has files."""

    path: str
    tables: Tuple[str, ...]
    empty: Tuple[str, ...]

    def folder(self, table: str) -> str:
        return os.path.join(self.path, table)

    def pattern(self, table: str) -> str:
        """The files of a table, as a pattern of DuckDB.

        Raises `QueryError` if the path has a backslash, which DuckDB takes for a separator.
        """
        folder = Path(self.folder(table)).as_posix()
        if "\\" in folder:
            raise QueryError(f"DuckDB cannot read {self.path}: its path has a backslash; rename it or use another engine", 5)
        return re.sub(r"[\[*?]", r"[\g<0>]", folder) + "/" + _FILES

    def url(self, table: str) -> str:
        """The folder of a table as a URL, in which no character stands for others."""
        return Path(self.folder(table)).as_uri() + "/"

    def escaped_folder(self, table: str) -> str:
        """The folder of a table as a pattern of Hadoop that only this folder matches."""
        return re.sub(r"[\[\]{}*?\\]", r"\\\g<0>", Path(self.folder(table)).as_posix())


def columns_of(table: str) -> Dict[str, str]:
    """The columns of a table and their SQL types, with those of its folders' names."""
    return {**TABLES[table], **PARTITIONS}


def no_rows(table: str, text: str = "VARCHAR") -> str:
    """A query with the columns of a table and no rows. `text` is the engine's type for texts."""
    typed = (f"CAST(NULL AS {text if type == 'VARCHAR' else type}) AS {name}" for name, type in columns_of(table).items())
    return f"SELECT {', '.join(typed)} WHERE false"


def open_archive(path: Union[str, "os.PathLike[str]"], question: Question) -> Archive:
    """The tables of `question` in an archive. Raises `QueryError` if it lacks one."""
    archive = os.path.abspath(os.fspath(path))
    words = set(question.words())
    tables = tuple(table for table in TABLES if table in words)
    if not _has_files(archive, "runs"):
        raise QueryError(f"{archive} has no table runs; write a run to it with `gpumemtrace export parquet`", 5)
    empty: List[str] = []
    for table in tables:
        if not _has_files(archive, table):
            if table not in _OPTIONAL:
                raise QueryError(f"{archive} has no table {table}, which {question.name} reads; export its runs again", 5)
            empty.append(table)
    return Archive(archive, tables, tuple(empty))


def _has_files(archive: str, table: str) -> bool:
    return next(Path(archive, table).glob(_FILES), None) is not None
