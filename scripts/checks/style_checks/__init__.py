"""The checks behind `scripts/style`: one module per check, one table of exemptions.

Each check is a function `check(tree, exemptions) -> Result`. CHECKS gives their names and order.
"""

from . import commits, cycles, docs, folders, lengths, needless, paths, public_items, type_names, width, words
from .exemptions import NO_EXEMPTIONS, OF_THIS_REPOSITORY
from .result import Result, Violation
from .tree import Tree

CHECKS = {
    "columns": width.check,
    "commits": commits.check,
    "words": words.check_rates,
    "phrases": words.check_phrases,
    "short-docs": docs.check,
    "paths": paths.check,
    "folders": folders.check,
    "cycles": cycles.check_files,
    "folder-cycles": cycles.check_folders,
    "type-names": type_names.check,
    "lengths": lengths.check,
    "public-items": public_items.check_count,
    "public-modules": public_items.check_modules,
    "exemptions": needless.check,
}

__all__ = ["CHECKS", "NO_EXEMPTIONS", "OF_THIS_REPOSITORY", "Result", "Tree", "Violation", "run"]


def run(tree, names, exemptions):
    """Runs the named checks and returns (violations, notes)."""
    violations, notes = [], []
    for name in names:
        result = CHECKS[name](tree, exemptions)
        notes += result.notes
        violations += [violation._replace(check=name) for violation in result.violations]
        if not result.scanned:
            violations.append(
                Violation("scripts/style", 1, f"check `{name}` found nothing to scan", "mend its file patterns", name)
            )
    return violations, notes
