"""Text of a program or a trace cannot steer the terminal through the package's messages."""

import importlib.util
import re
import subprocess
import sys

import pytest

from conftest import REPOSITORY

PACKAGE = REPOSITORY / "python"
HOLDERS = PACKAGE / "gpumemtrace" / "_holders"
#: Text, and how it is written out.
HOSTILE = [
    ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
    ("\x9b31m", r"\x9b31m"),
    ("a\rb\nc\td", r"a\rb\nc\td"),
    ("x\u202egnp.exe\u2066", r"x\u202egnp.exe\u2066"),
    ("\u2028\u2029\x85", r"\u2028\u2029\x85"),
    ("\ud800", r"\ud800"),
    ("\U000e0041", r"\U000e0041"),
    ("train.py: 3 Größen, 中文 😀", "train.py: 3 Größen, 中文 😀"),
]


def load(name):
    """Loads a module of the scanner alone, as it lies in the folder of `gpumemtrace run`."""
    spec = importlib.util.spec_from_file_location(name, HOLDERS / f"{name}.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


@pytest.mark.parametrize("text, written", HOSTILE)
def test_hostile_text_is_written_out(text, written):
    assert load("text").printable(text) == written
    assert written.isprintable()


def test_all_messages_use_the_same_function(tmp_path):
    """The scanner's message, through its own module and through the package's."""
    (tmp_path / "scanner").symlink_to(HOLDERS)
    program = (
        "import sys; from scanner.intervals import print_line; print_line(sys.argv[1])\n"
        "from gpumemtrace import _text; _text.print_line(sys.argv[1])")
    hostile = "".join(text for text, _ in HOSTILE[:-3])
    done = subprocess.run([sys.executable, "-c", program, hostile], capture_output=True, text=True,
                          env={"PYTHONPATH": f"{tmp_path}:{PACKAGE}", "PYTHONDONTWRITEBYTECODE": "1"})
    written = "".join(written for _, written in HOSTILE[:-3])
    assert (done.returncode, done.stderr) == (0, 2 * f"gpumemtrace: {written}\n")
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    assert sum(len(re.findall(r"unicode_escape", source)) for source in sources) == 1, "there is a copy of printable"
