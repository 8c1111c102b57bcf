"""The programs: their headers, and the lines that a report must name.

The docstring of a program ends with a paragraph of `key: value` lines:

kind      leak      memory is kept at the end of each step, and more of it in later ones
          healthy   nothing is kept in the long run
          growing   the number of blocks does not grow, but their sizes do
          filling   more is kept at each step, up to a bound that the run does not reach
steps     the lengths to run, the usual one first
unit      what a step is: `optimizer` (each step calls one), or `request` (nothing marks it)
every     leaks only: the number of steps from one leak event to the next; default 1
from      leaks only: the share of the run after which the leak begins; default: at once
rate      leaks only: bytes per step, if known, else it is measured; `varies`: no rate is compared
measure   `allocated` (default), or `reserved` for memory that is free but cannot be used
collect   `no`: measure without a garbage collection, because the program turned it off
check     `no`: live bytes at step ends do not show the kind; the docstring says why
memory    memory of the simulated GPU, for programs that must run out of it
without   allocators that the program cannot run with
needs     libraries besides PyTorch
limit     why a report cannot be right in every run; printed with each result that is not the best

Marked lines end in `# leak`, or in `# leak-or` if a report may name them instead. A line of a
notebook cell is marked in the string that holds the cell. It counts by its number in the cell, so
no other cell of the program may allocate at that number.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "programs"
KINDS = ["leak", "healthy", "growing", "filling"]
KEYS = {"kind", "steps", "unit", "every", "from", "rate", "measure", "collect", "check", "memory", "without", "needs", "limit"}
# File names that IPython, ipykernel and Colab give to cells.
CELL = re.compile(r"^<ipython-input-|/ipykernel_\d+/\d+\.py$|/ipython-input-[\d-]+\.py$")


class Program:
    """One program, with its header's values and defaults."""

    def __init__(self, path):
        self.path = path.resolve()
        self.family, self.name = path.parent.name, path.stem
        self.full_name = f"{self.family}/{self.name}"
        text = path.read_text(encoding="utf-8")
        header = read_header(text, path)
        self.kind = header["kind"]
        self.lengths = [int(value) for value in header["steps"].split()]
        self.unit = header.get("unit", "optimizer")
        self.every = float(header.get("every", 1))
        self.begins = float(header["from"]) if "from" in header else None
        self.rate_varies = header.get("rate") == "varies"
        self.rate = float(header["rate"]) if "rate" in header and not self.rate_varies else None
        self.measure = header.get("measure", "allocated")
        self.collect = header.get("collect", "yes") == "yes"
        self.check = header.get("check", "yes") == "yes"
        self.memory = header.get("memory")
        self.without = header.get("without", "").split()
        self.needs = header.get("needs", "").split()
        self.limit = header.get("limit")
        self.lines = marked_lines(text, "# leak")
        self.other_lines = marked_lines(text, "# leak-or")
        self.cell_lines = marked_cell_lines(text)
        if self.kind == "leak" and not self.lines:
            raise ValueError(f"{path}: a leak without a line that ends in `# leak`")

    @property
    def allowed_lines(self):
        """Lines that may be named first."""
        return self.lines | self.other_lines

    def allows(self, file, line):
        """Whether a report may name this line first."""
        if CELL.search(file):
            return line in self.cell_lines
        return Path(file).resolve() == self.path and line in self.allowed_lines

    def events(self, steps, done):
        """Number of leak events in the first `done` of `steps` steps, as planned by the header."""
        return max(0, int((done - (self.begins or 0) * steps) / self.every))


def read_header(text, path):
    paragraphs = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")
    header = {}
    for line in paragraphs[-1].splitlines():
        key, colon, value = line.partition(":")
        if not colon or key not in KEYS:
            raise ValueError(f"{path}: `{line}` is not a line of the header")
        header[key] = value.strip()
    if header.get("kind") not in KINDS or "steps" not in header:
        raise ValueError(f"{path}: the header needs `kind` ({', '.join(KINDS)}) and `steps`")
    return header


def marked_lines(text, mark):
    return {number for number, line in enumerate(text.splitlines(), 1) if line.endswith(mark)}


def marked_cell_lines(text):
    """Returns the numbers of marked lines within the strings that have them."""
    strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {number for string in strings for mark in ("# leak", "# leak-or") for number in marked_lines(string, mark)}


def all_programs():
    return [Program(path) for path in sorted(ROOT.glob("*/*.py"))]


def sample_of(programs, count):
    """Returns a fixed sample: evenly spaced within each kind, with at least one of each kind."""
    chosen = []
    for kind in KINDS:
        of_kind = [program for program in programs if program.kind == kind]
        wanted = min(len(of_kind), max(1, round(count * len(of_kind) / max(1, len(programs)))))
        chosen += [of_kind[index * len(of_kind) // wanted] for index in range(wanted)] if wanted else []
    return chosen
