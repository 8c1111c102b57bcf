"""The package writes sizes as the command does: one table of both, that of the command's own test (replay/src/units.rs)."""

import ast
import importlib.util
import re

from conftest import REPOSITORY

CASES = re.search(r"fn sizes_read_well_at_every_border.*?let cases = \[(.*?)\];", (REPOSITORY / "replay/src/units.rs").read_text(), re.S)[1]


def number(text):
    return eval(compile(ast.parse(text, mode="eval"), "units.rs", "eval"), {"__builtins__": {}})


def test_sizes_are_the_commands():
    path = REPOSITORY / "pytorch-allocator-shim/python/gpumemtrace/_reports/sizes.py"
    spec = importlib.util.spec_from_file_location("sizes", path)
    spec.loader.exec_module(sizes := importlib.util.module_from_spec(spec))
    cases = [(number(size), text) for size, text in re.findall(r"\((.+), \"(.+)\"\),", CASES)]
    assert len(cases) == CASES.count('"') // 2 >= 6 and (1023, "1023 B") in cases
    assert [(size, sizes.format_size(size)) for size, _ in cases] == cases
