"""A source or Markdown file has at most 400 lines; tests and listed files are exempt."""

from .result import Result, Violation

LIMIT = 400


def check(tree, exemptions):
    violations, scanned = [], 0
    for file in tree.files:
        if file.is_test or file.path in exemptions.long_files:
            continue
        scanned += 1
        lines = file.text.count("\n")
        if lines > LIMIT:
            violations.append(Violation(file.path, LIMIT, f"the file has {lines} lines", f"split it into files of at most {LIMIT}"))
    return Result(scanned, violations)
