"""scripts/checks/budgets: each path has a budget, each budget a path, and 5% over one is found."""

import contextlib
import importlib.util
import io
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "checks" / "budgets"


def load():
    loader = SourceFileLoader("budgets", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("budgets", loader))
    loader.exec_module(module)
    return module


@unittest.skipIf(sys.version_info < (3, 11), "the script needs Python 3.11")
class BudgetNames(unittest.TestCase):
    def setUp(self):
        sys.dont_write_bytecode = True
        self.budgets = load()

    def error_with(self, names):
        """Returns why the check refuses a file with these budgets."""
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("\n".join(["[instructions]", *(f'"{name}" = 1.0' for name in names)]))
            file.flush()
            self.budgets.BUDGETS = Path(file.name)
            with self.assertRaises(SystemExit) as refused:
                self.budgets.check_names(self.budgets.PROFILES)
        return str(refused.exception)

    def test_present_budgets_are_those_of_the_paths(self):
        self.budgets.check_names(self.budgets.PROFILES)

    def test_budget_without_path_is_an_error(self):
        self.assertIn("not counted: old path;", self.error_with([*self.budgets.PROFILES, "old path"]))

    def test_path_without_budget_is_an_error(self):
        self.assertIn("no budget for driver free:", self.error_with(set(self.budgets.PROFILES) - {"driver free"}))

    def test_count_outside_its_budget_is_found(self):
        name = "event, known Python stack"
        budget = self.budgets.tomllib.loads(self.budgets.BUDGETS.read_text())["instructions"][name]
        with contextlib.redirect_stdout(io.StringIO()):
            more, less, near = (self.budgets.print_and_judge({name: budget * factor}) for factor in (1.05, 0.95, 1.01))
        self.assertIn("5.0% more than the budget", more[0])
        self.assertIn("5.0% less than the budget", less[0])
        self.assertEqual(near, [])


if __name__ == "__main__":
    unittest.main()
