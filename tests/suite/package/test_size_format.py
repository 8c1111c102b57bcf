"""The package formats sizes as the command does, by the command's own table
(replay-cli/src/terminal/units.rs)."""

import ast
import importlib.util
import re

from conftest import REPOSITORY

UNITS_RS = (REPOSITORY / "replay-cli/src/terminal/units.rs").read_text()
CASES = re.search(r"fn sizes_at_unit_boundaries.*?let cases = \[(.*?)\];", UNITS_RS, re.S)[1]


def number(text):
    return eval(compile(ast.parse(text, mode="eval"), "units.rs", "eval"), {"__builtins__": {}})


def test_package_formats_sizes_as_command():
    path = REPOSITORY / "python/gpumemtrace/_reports/sizes.py"
    spec = importlib.util.spec_from_file_location("sizes", path)
    spec.loader.exec_module(sizes := importlib.util.module_from_spec(spec))
    cases = [(number(size), text) for size, text in re.findall(r"\((.+), \"(.+)\"\),", CASES)]
    assert len(cases) == CASES.count('"') // 2 >= 6 and (1023, "1023 B") in cases
    assert [(size, sizes.format_size(size)) for size, _ in cases] == cases
