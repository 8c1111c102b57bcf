"""Commit subjects: `area: imperative`, at most 72 characters.

Commits count from the one that added `scripts/style` on. In a shallow clone that may be the
oldest commit there is, so the check needs no stored base. Merges and reverts are exempt.
"""

import re

from .result import Result, Violation
from .tree import git

LIMIT = 72
BASE_FILE = "scripts/style"
_AREA = r"[a-z][a-z0-9_./+-]*"
_SUBJECT = re.compile(rf"^{_AREA}(, ?{_AREA})*: (?P<verb>\S+)")
# First words that show another mood: gerunds, past tenses, third persons, articles.
_NOT_IMPERATIVE = re.compile(
    r"^(\w{3,}ing|\w{2,}[^e]ed|(add|remov|fix|mov|renam|updat|us|mak|chang|improv|delet|split|writ|allow|return)e?s"
    r"|the|a|an|what|who|nobody|everything|some|no|it|there)$",
    re.I,
)
_IMPERATIVE_ANYWAY = {"bring", "string", "ping", "embed", "shed", "bed"}


def check(tree, _exemptions):
    added = git(tree.root, "log", "--diff-filter=A", "--format=%H", "--", BASE_FILE)
    if not added or not added.split():
        reason = "no git history here" if added is None else f"no commit adds {BASE_FILE} yet"
        return Result(1, notes=[f"commit subjects not checked: {reason}"])
    base = added.split()[-1]
    log = git(tree.root, "log", "--no-merges", "--format=%h%x00%s", f"{base}..HEAD") or ""
    violations = []
    for entry in log.splitlines():
        commit, subject = entry.split("\0", 1)
        place = f"commit {commit}"
        if len(subject) > LIMIT:
            problem = f"subject has {len(subject)} characters: {subject!r}"
            violations.append(Violation(place, 1, problem, f"shorten it to {LIMIT}"))
        if not is_area_and_imperative(subject) and not subject.startswith('Revert "'):
            problem = f"subject is not `area: imperative`: {subject!r}"
            violations.append(Violation(place, 1, problem, "write `recorder: move hot path into hot/`"))
    return Result(1, violations)


def is_area_and_imperative(subject):
    match = _SUBJECT.match(subject)
    if not match:
        return False
    verb = match.group("verb").strip("`'\",;")
    return verb.lower() in _IMPERATIVE_ANYWAY or not _NOT_IMPERATIVE.match(verb)
