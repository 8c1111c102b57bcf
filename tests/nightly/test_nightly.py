"""scripts/nightly --minutes: which checks run, in which order, and at which length."""

import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

REPOSITORY = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(REPOSITORY / "scripts" / "checks"))

from reliability import checks, results, schedule  # noqa: E402

HERE, ELSEWHERE = "2 cores", "64 cores"


@dataclass(frozen=True)
class Fake:
    name: str
    minutes: float = 10
    least: float = 0.1


def passed(date, minutes=10, scale=1, machine=HERE):
    return {"date": date, "status": "passed", "seconds": 60 * minutes, "scale": scale, "machine": machine}


class Schedule(unittest.TestCase):
    def night(self, minutes, *rows, wanted=1, speed=1):
        """Runs `rows` of (check, last result). Returns (name, share) of each run, and other names.

        A check takes `speed` times its minutes in the table of checks.
        """
        now, ran, last = [1000.0], [], {check.name: result for check, result in rows}

        def run(check, share):
            ran.append((check.name, round(share, 4)))
            now[0] += 60 * share * check.minutes * speed

        shares = {check: wanted for check, _ in rows}
        left = schedule.run_oldest(shares, minutes, last.get, HERE, run, clock=lambda: now[0])
        return ran, [check.name for check, _ in left]

    def test_oldest_runs_first_and_time_ends_the_night(self):
        rows = [(Fake("new"), passed("2026-03-03")), (Fake("old"), passed("2026-01-31")), (Fake("older"), passed("2025-12-01 23:00")),
                (Fake("oldest"), passed("2025-12-01"))]
        self.assertEqual(self.night(30, *rows), ([("oldest", 1), ("older", 1), ("old", 1)], ["new"]))

    def test_check_without_a_passed_run_is_oldest_in_the_order_of_the_table(self):
        failed = passed("2026-03-03") | {"status": "failed"}
        absent = {"date": "2026-03-03", "status": "not possible", "machine": HERE}
        rows = [(Fake("old"), passed("2020-01-01")), (Fake("failed"), failed), (Fake("never"), None), (Fake("absent"), absent)]
        self.assertEqual([name for name, _ in self.night(100, *rows)[0]], ["failed", "never", "absent", "old"])

    def test_last_check_is_cut_to_what_is_left(self):
        self.assertEqual(self.night(14, (Fake("a"), None), (Fake("b"), None)), ([("a", 1), ("b", 0.4)], []))

    def test_check_that_cannot_run_usefully_is_not_started_and_a_shorter_one_is(self):
        rows = [(Fake("first"), None), (Fake("fixed", least=1), None), (Fake("coarse", least=0.5), None), (Fake("short", minutes=2, least=1), None)]
        self.assertEqual(self.night(14, *rows), ([("first", 1), ("short", 1)], ["fixed", "coarse"]))

    def test_not_started_checks_say_what_they_need(self):
        left = schedule.run_oldest({Fake("a", least=0.5): 1}, 4, lambda name: None, HERE, self.fail, clock=lambda: 0)
        self.assertEqual([minutes for _, minutes in left], [5])

    def test_time_is_measured_not_estimated(self):
        rows = [(Fake("slow"), None), (Fake("next", least=1), None)]
        self.assertEqual(self.night(25, *rows, speed=2), ([("slow", 1)], ["next"]))

    def test_wanted_share_is_an_upper_limit(self):
        rows = [(Fake("a"), None), (Fake("fixed", least=1), None)]
        self.assertEqual(self.night(60, *rows, wanted=0.25), ([("a", 0.25), ("fixed", 1)], []))

    def test_full_length_is_known_from_a_passed_run_on_such_a_machine(self):
        check = Fake("a", minutes=10)
        self.assertEqual(schedule.full_minutes(check, passed("2026-01-01", minutes=6, scale=0.2), HERE), 30)
        for other in (None, passed("2026-01-01", minutes=6, scale=0.19), passed("2026-01-01", minutes=3, machine=ELSEWHERE), passed("2026-01-01", minutes=3) | {"status": "failed"}):
            self.assertEqual(schedule.full_minutes(check, other, HERE), 10)


class Checks(unittest.TestCase):
    def test_each_suite_has_one_check(self):
        folders = {path.parent.name for path in (REPOSITORY / "tests" / "suite").glob("*/test_*.py")}
        self.assertEqual({*checks.SUITES, "host"}, folders)

    def test_names_are_unique_and_shares_are_shares(self):
        self.assertEqual(len({check.name for check in checks.CHECKS}), len(checks.CHECKS))
        self.assertTrue(all(0 < check.least <= 1 and check.minutes > 0 for check in checks.CHECKS))

    def part(self, code, output, **how):
        with mock.patch.object(checks, "call", return_value=(code, output)):
            return checks.long_part("mac", **how)(1, None)

    def test_part_of_the_tests_counts_tests_and_what_was_skipped(self):
        output = "3 passed in 1s\n== skipped checks\n   zig: not installed\n== all checks passed\n4 passed\n"
        self.assertEqual(self.part(0, output), {"inputs": 7, "losses": 0, "skipped": ["zig: not installed"]})
        self.assertEqual(self.part(1, "2 passed, 1 failed")["losses"], 1)

    def test_part_that_runs_nothing_has_not_passed(self):
        with self.assertRaisesRegex(checks.NotPossible, "zig: not installed"):
            self.part(0, "== skipped checks\n   zig: not installed\n")
        self.assertEqual(self.part(1, "error: no space left")["losses"], 1)

    def test_cargo_that_runs_no_test_has_not_passed(self):
        with mock.patch.object(checks, "call", return_value=(0, "test result: ok. 0 passed; 0 failed; 9 filtered out")):
            self.assertRaises(RuntimeError, checks.cargo_test, "test")

    def test_crashed_readers_are_losses(self):
        output = ("trace              12 inputs tried,  5 edges,  4 in the corpus, 30 MiB\n"
                  "ring                ? inputs tried,  ? edges,  ? in the corpus, ? MiB\nfuzz: crashed: ring\n")
        with mock.patch.object(checks, "call", side_effect=[(0, ""), (1, output)]):
            found = checks.fuzz(0.0834, mock.Mock(jobs=2, keep=True))
        self.assertEqual((found["seconds_each"], found["losses"], found["inputs"]), (300, 1, 12))
        self.assertEqual([(one["target"], one["crashed"]) for one in found["targets"]], [("trace", False), ("ring", True)])


class Stored(unittest.TestCase):
    def test_a_machine_that_lacks_a_tool_replaces_no_run(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(results, "FOLDER", Path(folder)):
            absent, failed = {"status": "not possible"}, {"status": "failed"}
            for result, expected in [(absent, absent), (failed, failed), (absent, failed)]:
                results.store("miri", result)
                self.assertEqual(results.stored("miri"), expected)


if __name__ == "__main__":
    unittest.main()
