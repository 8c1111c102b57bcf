"""What a check returns."""

from collections import namedtuple


class Violation(namedtuple("Violation", "path line problem advice check")):
    """One place that breaks a rule; `run` fills in `check`."""

    __slots__ = ()

    def __new__(cls, path, line, problem, advice, check=""):
        return super().__new__(cls, path, line, problem, advice, check)

    def __str__(self):
        return f"{self.path}:{self.line}: {self.problem}: {self.advice}"


class Result:
    """The violations of one check, how much it scanned (0 is a failure) and notes for the user."""

    def __init__(self, scanned, violations=(), notes=()):
        self.scanned = scanned
        self.violations = list(violations)
        self.notes = list(notes)
