"""Finds the commits that parameters name by their hashes, or by the beginning of these."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping

from ._errors import QueryError
from ._archive import Archive
from ._questions import Question, Value

#: All commits of an archive: 2 if other commits can be compared with it, 1 if it can be compared,
#: as in _growth.sql.
_COMMITS = """
SELECT git_commit, max(CASE WHEN peak_live_bytes IS NULL OR started_unix_ns IS NULL
    OR COALESCE(command_json, '') NOT LIKE {mark}command OR command_json IS NULL THEN 0
  WHEN is_whole AND is_complete AND COALESCE(ending, '') = 'exit'
    AND COALESCE(exit_code, CASE WHEN ooms > 0 THEN 1 ELSE 0 END) = 0 THEN 2
  ELSE 1 END) AS use
FROM runs
WHERE git_commit IS NOT NULL
GROUP BY git_commit
ORDER BY git_commit
"""

#: Rows of an archive for a SQL text and its parameters.
Ask = Callable[[Archive, str, Mapping[str, Value]], List[Dict[str, Any]]]


def complete_commits(question: Question, values: Dict[str, Value], archive: Archive, mark: str, ask: Ask) -> Dict[str, Value]:
    """The values of parameters, with the full hash of each commit. Empty ones stay empty.

    Raises `QueryError` for a commit that is unknown, ambiguous, or has no run to compare.
    """
    given = [parameter.name for parameter in question.parameters if parameter.is_commit and values[parameter.name]]
    if not given:
        return values
    only_runs = replace(archive, tables=("runs",), empty=())
    command = values["command"]
    rows = ask(only_runs, _COMMITS.format(mark=mark), {"command": command})
    uses = {str(row["git_commit"]): row["use"] for row in rows}
    found = dict(values)
    for name in given:
        commit = _find_commit(str(values[name]), list(uses), archive)
        if uses[commit] < (2 if name == "before" else 1):
            raise QueryError(
                f"commit {commit} has no run to compare: {question.name} needs complete runs that exited normally, "
                f"with a known peak and a command like {command!r}"
            )
        found[name] = commit
    return found


def _find_commit(beginning: str, commits: List[str], archive: Archive) -> str:
    if beginning in commits:
        return beginning
    matching = [commit for commit in commits if commit.startswith(beginning)]
    if not matching:
        raise QueryError(f"no run in {archive.path} has a commit that begins with {beginning!r}")
    if len(matching) > 1:
        more = f" and {len(matching) - 2} more" if len(matching) > 2 else ""
        raise QueryError(f"commit {beginning!r} is ambiguous: it may be {', '.join(matching[:2])}{more}")
    return matching[0]
