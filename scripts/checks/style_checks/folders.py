"""A folder holds at most 20 entries (files and folders) of the tree."""

from collections import defaultdict

from .result import Result, Violation

LIMIT = 20


def check(tree, exemptions):
    entries = defaultdict(set)
    for path in tree.paths:
        parts = path.split("/")
        for depth in range(len(parts)):
            entries["/".join(parts[:depth])].add(parts[depth])
    violations = []
    for folder, names in sorted(entries.items()):
        limit = exemptions.folder_limit(folder, LIMIT)
        if limit is not None and len(names) > limit:
            problem = f"the folder has {len(names)} entries"
            advice = f"group them into folders of at most {limit}"
            violations.append(Violation(folder or ".", 1, problem, advice))
    return Result(len(entries), violations)
