"""Verdicts of checks, and the exceptions and comparisons that produce them."""

from collections import namedtuple

EQUAL, DIFFERENT, IMPOSSIBLE, MEASURED = "equal", "DIFFERENT", "not possible here", "measured"
MIB = 1 << 20

#: One line of the result; `numbers` is Markdown that follows the table.
Row = namedtuple("Row", "name verdict detail numbers")


class Different(Exception):
    """The trace and its oracle disagree."""


class Impossible(Exception):
    """A requirement of the check is missing."""


def assert_equal(what, ours, theirs):
    if ours != theirs:
        raise Different("%s: the trace has %s, the oracle %s" % (what, ours, theirs))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows])


def mib(count):
    return "?" if count is None else "%.2f MiB" % (count / MIB)
