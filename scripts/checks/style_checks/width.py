"""Comment lines, docstrings and Markdown prose end at column 100; tables and fenced blocks may not."""

import re

from .result import Result, Violation

LIMIT = 100
# A line with nothing but a link, with or without a label before it, cannot be wrapped.
_LINK_LINE = re.compile(r"^(\S+\s+)?\S*https?://\S+$")


def check(tree, exemptions):
    violations, scanned = [], 0
    for file in tree.files:
        if file.path in exemptions.generated_text:
            continue
        in_fence = False
        for line in file.lexed.comments:
            scanned += 1
            if line.text.strip().startswith("```"):
                in_fence = not in_fence
            if in_fence or line.end_column <= LIMIT or _cannot_wrap(line.text):
                continue
            violations.append(
                Violation(file.path, line.number, f"comment ends in column {line.end_column}", f"wrap it at {LIMIT}")
            )
    return Result(scanned, violations)


def _cannot_wrap(text):
    """Whether the line is a link or a row of a table."""
    return bool(_LINK_LINE.match(text.strip())) or text.lstrip().startswith("|")
