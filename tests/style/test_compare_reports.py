"""`scripts/checks/compare-reports` finds every number that differs and follows its key map."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OLD = {"steps": {"count": 3}, "phases": [{"turns": 2, "left_bytes": 8}], "verdicts": [{"kind": "creep", "summary": "It grows"}]}
NEW = {"steps": {"count": 3}, "phases": [{"count": 2, "net_bytes": 8}], "verdicts": [{"kind": "creep", "summary": "Growth"}]}
MAP = "rename turns count\nrename left_bytes net_bytes\ntext verdicts.summary\n"


class CompareReports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def command(self, name, report, code=0):
        """A program that prints `report` whatever it is asked."""
        text = f"#!/bin/sh\ncat <<'END'\n{json.dumps(report)}\nEND\nexit {code}\n"
        return self.write(name, text, stat.S_IRWXU)

    def compare(self, old, new, rows=MAP, old_code=0):
        tool = os.path.join(REPOSITORY, "scripts", "checks", "compare-reports")
        arguments = [self.command("old", old, old_code), self.command("new", new), self.write("run.trace", "")]
        command = [sys.executable, tool, "--map", self.write("rows.map", rows), "--texts", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True, check=False)
        return done.returncode, done.stdout

    def test_renamed_keys_and_changed_sentences_are_equal(self):
        code, output = self.compare(OLD, NEW)
        self.assertEqual(code, 0, output)
        self.assertIn(": 0 differences", output)
        self.assertIn('text .verdicts[0].summary: "It grows"', output)

    def test_row_for_a_rename_that_has_not_happened_passes(self):
        self.assertEqual(self.compare(OLD, OLD)[0], 0)

    def test_number_list_length_missing_key_and_exit_code_are_differences(self):
        changed = json.loads(json.dumps(NEW))
        changed["phases"][0]["net_bytes"] = 9
        code, output = self.compare(OLD, changed)
        self.assertEqual(code, 1)
        self.assertIn(".phases[0].net_bytes: 8, now 9", output)
        self.assertIn(".phases: 1 items, now 0", self.compare(OLD, {**NEW, "phases": []})[1])
        self.assertIn(".steps: gone", self.compare(OLD, {key: NEW[key] for key in ("phases", "verdicts")})[1])
        self.assertIn(".exit_code: 3, now 0", self.compare(OLD, NEW, old_code=3)[1])

    def test_enumeration_needs_a_value_row(self):
        changed = {**NEW, "verdicts": [{"kind": "growth", "summary": "Growth"}]}
        self.assertEqual(self.compare(OLD, changed)[0], 1)
        self.assertEqual(self.compare(OLD, changed, MAP + "value verdicts.kind creep growth\n")[0], 0)

    def test_added_keys_are_listed_and_do_not_count(self):
        code, output = self.compare(OLD, {**NEW, "extra": 1})
        self.assertEqual(code, 0, output)
        self.assertIn("added: .extra (", output)


if __name__ == "__main__":
    unittest.main()
