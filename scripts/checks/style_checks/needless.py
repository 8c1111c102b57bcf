"""Every exemption is still needed: without it, its check would report something."""

from . import cycles, folders, lengths, paths, public_items, type_names
from .exemptions import NO_EXEMPTIONS
from .result import Result, Violation

TABLES = "scripts/checks/style_checks/exemptions.py"


def check(tree, exemptions):
    rows = [("folder", row) for row in _unused(exemptions.folders, _folders_over_limit(tree, exemptions))]
    rows += [("long file", row) for row in _unused(exemptions.long_files, _paths(lengths.check, tree))]
    rows += [("generated text", row) for row in exemptions.generated_text if row not in tree.paths]
    problems = [violation.problem for violation in type_names.check(tree, NO_EXEMPTIONS).violations]
    rows += [("type name", row) for row in exemptions.type_names if not _mentions(problems, f"type name {row} ")]
    problems = [violation.problem for violation in public_items.check_modules(tree, NO_EXEMPTIONS).violations]
    rows += [("public module", "::".join(row)) for row in exemptions.public_modules if not _mentions(problems, "::".join(row))]
    problems = [violation.problem for violation in paths.check(tree, NO_EXEMPTIONS).violations]
    rows += [("absent path", row) for row in exemptions.absent_paths if not _mentions(problems, f"`{row}`")]
    found = [check(tree, NO_EXEMPTIONS) for check in (cycles.check_files, cycles.check_folders)]
    problems = [violation.problem for result in found for violation in result.violations]
    rows += [("cycle", row) for row, _ in exemptions.cycles if not _mentions(problems, f"import cycle in {row}: ")]
    violations = [Violation(TABLES, 1, f"the {kind} exemption `{row}` is not needed", "remove the row") for kind, row in rows]
    return Result(1, violations)


def _folders_over_limit(tree, exemptions):
    return {exemptions.folder_row("" if path == "." else path) for path in _paths(folders.check, tree)}


def _paths(check_function, tree):
    return {violation.path for violation in check_function(tree, NO_EXEMPTIONS).violations}


def _unused(rows, needed):
    return [row for row in rows if row not in needed]


def _mentions(problems, text):
    return any(text in problem for problem in problems)
