"""Each check of `scripts/style` reports a planted example at its line and passes a clean tree.

Run it with `python3 -m unittest tests/style/test_style.py` or pytest; it needs git and no package.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(REPOSITORY, "scripts", "checks"))

import style_checks  # noqa: E402
from style_checks import commits, exemptions, lexer, words  # noqa: E402

MANIFEST = '[package]\nname = "gpumemtrace-{}"\n'


class StyleCase(unittest.TestCase):
    """A case with an empty folder to plant files in."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def plant(self, path, text):
        full_path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full_path), exist_ok=True)
        with open(full_path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text))

    def plant_crate(self, folder, **modules):
        self.plant(f"{folder}/Cargo.toml", MANIFEST.format(os.path.basename(folder)))
        for name, text in modules.items():
            self.plant(f"{folder}/src/{name.replace('__', '/')}.rs", text)

    def violations(self, check, exempt=exemptions.NO_EXEMPTIONS):
        found, _ = style_checks.run(style_checks.Tree(self.root), [check], exempt)
        return found

    def assert_found(self, check, *places):
        """`check` reports exactly `places`, each a `path:line`."""
        found = self.violations(check)
        self.assertEqual([f"{v.path}:{v.line}" for v in found], list(places), "\n".join(map(str, found)))
        return found

    def assert_clean(self, check, exempt=exemptions.NO_EXEMPTIONS):
        self.assertEqual([str(v) for v in self.violations(check, exempt)], [])

    def git(self, *arguments):
        who = ["-c", "user.name=style", "-c", "user.email=style@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", self.root, *who, *arguments], check=True, stdout=subprocess.DEVNULL)


class Columns(StyleCase):
    LONG = "word " * 19 + "end_in_column_101"

    def test_long_comment_lines_are_found_in_every_language(self):
        self.plant("a.rs", f"fn f() {{}}\n/// {self.LONG}\nfn g() {{}}\n")
        self.plant("b.py", f'"""A module.\n\n{self.LONG}\n"""\n# {self.LONG}\n')
        self.plant("c.c", f"/* short\n * {self.LONG}\n */\n")
        self.plant("d.md", f"{self.LONG}\n")
        self.plant("e", f"#!/bin/sh\n# {self.LONG}\n")
        self.assert_found("columns", "a.rs:2", "b.py:3", "b.py:5", "c.c:2", "d.md:1", "e:2")

    def test_code_tables_fences_and_links_may_be_long(self):
        self.plant("a.rs", f'const A: &str = "{self.LONG} // no comment";\n// https://example.org/{"x" * 100}\n')
        self.plant("b.rs", f"//! Short.\n//! ```text\n//! {self.LONG}\n//! ```\n")
        self.plant("d.md", f"| {self.LONG} |\n```\n{self.LONG}\n```\n[a]: https://example.org/{'x' * 100}\nshort\n")
        self.assert_clean("columns")


class Commits(StyleCase):
    def commit(self, subject):
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)

    def test_subjects_count_from_the_commit_that_added_the_script(self):
        self.git("init", "--quiet")
        self.commit("What was before does not count, however long its subject is and whatever it says")
        self.plant("scripts/style", "")
        self.git("add", ".")
        self.commit("The commit that adds the script is the base")
        self.commit("recorder: move hot path into hot/")
        self.commit("Minutes are minutes")
        self.commit("replay: " + "x" * 65)
        problems = [v.problem for v in self.violations("commits")]
        self.assertEqual(len(problems), 2, problems)
        self.assertIn("73 characters", problems[0])
        self.assertIn("Minutes are minutes", problems[1])

    def test_merges_are_exempt(self):
        self.git("init", "--quiet", "--initial-branch=main")
        self.plant("scripts/style", "")
        self.git("add", ".")
        self.commit("style: add the script")
        self.git("checkout", "--quiet", "-b", "side")
        self.commit("cli: split replay")
        self.git("checkout", "--quiet", "main")
        self.git("merge", "--quiet", "--no-ff", "-m", "Merge: the side", "side")
        self.assert_clean("commits")

    def test_tree_without_history_passes_with_a_note(self):
        self.plant("scripts/style", "")
        found, notes = style_checks.run(style_checks.Tree(self.root), ["commits"], exemptions.NO_EXEMPTIONS)
        self.assertEqual(found, [])
        self.assertIn("no git history", notes[0])

    def test_subject_form(self):
        for subject in ("shim: stop using it", "tests/suite, docs: bring back", "trace-format: embed x"):
            self.assertTrue(commits.is_area_and_imperative(subject), subject)
        for subject in ("Shim: stop", "shim stop", "shim: stopped it", "shim: the cache", "shim: moves x", "a b: c"):
            self.assertFalse(commits.is_area_and_imperative(subject), subject)


class Words(StyleCase):
    def test_words_over_budget_are_found_at_their_lines(self):
        self.plant("a.rs", "// Fine.\n// A block whose stream is gone.\n/// It is Told so.\nfn f() {}\n")
        self.assert_found("words", "a.rs:2", "a.rs:3")

    def test_budget_grows_with_comment_lines(self):
        lines = words.SAMPLY_COMMENT_LINES
        self.plant("a.rs", "// nobody\n" * 2 + "// line\n" * (lines - 2))
        self.assert_clean("words")
        self.plant("a.rs", "// nobody\n" * 3 + "// line\n" * (lines - 3))
        self.assert_found("words", "a.rs:1", "a.rs:2", "a.rs:3")

    def test_strings_for_users_have_no_budget(self):
        text = 'fn f() { print("\n\nnobody holds it"); }\n' + "// line\n" * 7000
        self.plant("src/a.rs", text)
        self.plant("tests/b.rs", text)
        self.assert_found("words", "src/a.rs:3")

    def test_rates_table_shows_count_and_rate_beside_samply(self):
        self.plant("a.rs", "// told\n" + "// line\n" * 999)
        table = words.rates_table(style_checks.Tree(self.root))
        self.assertIn("1 (1.00)", table)
        self.assertIn("22 (3.48)", table)


class Phrases(StyleCase):
    def test_percent_sign_after_a_space(self):
        self.plant("docs/a.md", "It takes 7 % more.\n\nIt takes 7% more.\n")
        self.plant("src/a.rs", 'fn f() { println!("{:.1} % of {}", 1.0, 2 % 3); }\n')
        self.assert_found("phrases", "docs/a.md:1", "src/a.rs:1")

    def test_every_phrase_is_found(self):
        samples = (
            "7 %", "lets nobody in", "for whom", "nobody's", "ended by itself", "would find room", "In short",
            "segments that live blocks keep", "keeps more and more", "nobody knows", "hold a trace against",
            "the trace does not tell", "It never happened", "is told by",
        )  # fmt: skip
        for pattern in words.PHRASES:
            self.assertTrue(any(pattern.search(f"a {sample} b") for sample in samples), pattern.pattern)
        for sample in samples:
            self.plant("docs/a.md", f"Line.\na {sample} b\n")
            self.assert_found("phrases", "docs/a.md:2")


class ShortDocs(StyleCase):
    def test_doc_comments_of_three_words_are_found(self):
        self.plant("a.rs", "//! When.\n\n/// Does it now.\nfn f() {}\n/// Returns `None` past the end.\nfn g() {}\n")
        self.plant("b.py", '"""Does it."""\n\n\ndef f():\n    """The size."""\n')
        self.assert_found("short-docs", "a.rs:1", "a.rs:3", "b.py:1", "b.py:5")

    def test_longer_docs_plain_comments_and_strings_pass(self):
        self.plant("a.rs", "// When.\n/// Two lines\n/// here.\nfn f() {}\n//// Rule.\n")
        self.plant("b.py", '"""What the module does."""\nA = "Short."\n# Short.\n')
        self.assert_clean("short-docs")


class Folders(StyleCase):
    def test_missing_path_is_found(self):
        self.plant("docs/page.md", "See `crate/src/gone.rs`.\nSee `crate/src/lib.rs` and `other/gone.rs`.\n")
        self.plant_crate("crate", lib="//! Tested by `tests/real.rs`, built from `src/lib.rs`.\n")
        self.plant("crate/tests/real.rs", "// See `docs/page.md`.\n")
        self.assert_found("paths", "docs/page.md:1")

    def test_folder_with_21_entries_is_found(self):
        for number in range(21):
            self.plant(f"full/{number}.txt", "")
        for number in range(20):
            self.plant(f"good/{number}.txt", "")
        self.assert_found("folders", "full:1")
        self.assert_clean("folders", exemptions.Exemptions(folders={"full": (None, "a reason")}))
        self.assert_clean("folders", exemptions.Exemptions(folders={"full": (21, "a reason")}))
        self.assertTrue(self.violations("folders", exemptions.Exemptions(folders={"full/*": (None, "below it")})))


class Cycles(StyleCase):
    def test_siblings_that_import_each_other_are_found(self):
        self.plant_crate("c", lib="mod a;\nmod b;\n", a="use crate::b::B;\n", b="\nfn f() { super::a::g(); }\n")
        found = self.assert_found("cycles", "c/src/a.rs:1")
        self.assertIn("a -> b -> a", found[0].problem)
        self.assertIn("c/src/b.rs:2", found[0].problem)
        self.assert_clean("cycles", exemptions.Exemptions(cycles=[("c", {"a", "b"})]))

    def test_cycle_of_three_and_cycle_in_a_folder(self):
        self.plant_crate("c", lib="", a="use crate::b::B;", b="use crate::d::D;", d="use crate::{a::A, b};")
        found = self.assert_found("cycles", "c/src/b.rs:1")
        self.plant_crate("c", d="use crate::a::A;")
        found = self.assert_found("cycles", "c/src/a.rs:1")
        self.assertIn("a -> b -> d -> a", found[0].problem)
        self.plant_crate("c", d="", x__mod="", x__p="use super::q::Q;", x__q="use crate::x::p;")
        self.assert_found("cycles", "c/src/x/p.rs:1")
        self.assert_clean("folder-cycles")

    def test_folders_that_import_each_other_through_different_files_are_found(self):
        self.plant_crate("c", lib="", a__mod="", a__p="use crate::b::q::Q;", b__mod="", b__q="", b__r="use crate::a::s::S;", a__s="")
        self.assert_clean("cycles")
        found = self.assert_found("folder-cycles", "c/src/a/p.rs:1")
        self.assertIn("b imports a at c/src/b/r.rs:1", found[0].problem)

    def test_reexports_count_for_the_module_that_defines_the_item(self):
        library = "pub use a::A;\npub use b::*;\nmod a;\nmod b;\n"
        self.plant_crate("c", lib=library, a="use crate::B;\npub struct A;", b="use crate::A;\npub struct B;")
        self.assert_found("cycles", "c/src/a.rs:1")

    def test_parents_tests_and_one_way_imports_are_no_cycles(self):
        tests = "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n"
        self.plant_crate("c", lib="pub use a::A;\npub struct L;", a="use crate::L;\npub struct A;\n" + tests, b="use crate::a::A;")
        self.plant_crate("c", x__mod="pub use p::P;\npub struct X;", x__p="use super::X;\npub struct P;\n// crate::b")
        self.plant_crate("c", x__tests="use crate::b::B;")
        self.assert_clean("cycles")
        self.assert_clean("folder-cycles")

    def test_python_packages(self):
        self.plant("p/__init__.py", "from .a import f\n")
        self.plant("p/a.py", "def f():\n    from . import b\n")
        self.plant("p/b.py", "from p.a import f\n")
        self.assert_found("cycles", "p/a.py:2")
        self.plant("p/b.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import f\n")
        self.assert_clean("cycles")
        self.assert_clean("folder-cycles")


class TypeNames(StyleCase):
    def test_second_meaning_is_found_in_both_crates(self):
        self.plant_crate("c", lib="//! Docs.\npub struct Slot;\n")
        self.plant_crate("d", lib="pub(crate) enum Slot { A }\n")
        self.assert_found("type-names", "c/src/lib.rs:2", "d/src/lib.rs:1")
        self.assert_clean("type-names", exemptions.Exemptions(type_names={"Slot": "a reason"}))

    def test_platforms_tests_and_associated_types_pass(self):
        trait_impl = "impl Iterator for A {\n    type Item = u8;\n}\n"
        self.plant_crate("c", lib=trait_impl, linux="struct Lease;", macos="struct Lease;", sys__tests="struct Fake;")
        self.plant_crate("d", lib=trait_impl.replace("A", "B") + "#[cfg(test)]\nmod tests {\n    struct Fake;\n}\n")
        self.plant_crate("d", x='#[cfg(unix)]\nstruct P;\n#[cfg(not(unix))]\n#[derive(Clone)]\nstruct P;\n// struct P\n')
        self.assert_clean("type-names")


class Lengths(StyleCase):
    def test_file_of_401_lines_is_found(self):
        self.plant("src/long.rs", "\n" * 401)
        self.plant("src/good.rs", "\n" * 400)
        self.plant("tests/long.rs", "\n" * 401)
        self.assert_found("lengths", "src/long.rs:400")
        self.assert_clean("lengths", exemptions.Exemptions(long_files={"src/long.rs": "a table"}))


class PublicItems(StyleCase):
    def test_130_public_items_beside_report_rows_are_too_many(self):
        self.plant("replay/src/lib.rs", "pub fn f() {}\npub const fn g() {}\n" * 65)
        self.assert_found("public-items", "replay/src/:1")
        self.plant("replay/src/lib.rs", "pub fn f() {}\n" * 129 + "pub(crate) fn g() {}\n" * 50)
        self.plant("replay/src/report/rows.rs", "pub struct R;\n" * 50)
        self.assert_clean("public-items")

    def test_public_module_without_users_is_found(self):
        library = "//! Docs.\npub mod used;\npub mod idle;\n#[doc(hidden)]\npub mod fuzzed;\nmod own;\npub mod nested;\n"
        self.plant_crate("c", lib=library)
        self.plant_crate("d", lib="use gpumemtrace_c::{used::A, x::{idle}};\nfn f() { gpumemtrace_c::nested::g(); }\n")
        self.plant("d/tests/t.rs", "use gpumemtrace_c::idle;\n")
        self.assert_found("public-modules", "c/src/lib.rs:3")


class Needless(StyleCase):
    def test_row_that_nothing_needs_is_reported(self):
        self.plant_crate("c", lib="struct A;")
        self.plant("src/long.rs", "\n" * 401)
        needed = exemptions.Exemptions(long_files={"src/long.rs": "a table"})
        self.assert_clean("exemptions", needed)
        needless = exemptions.Exemptions(
            folders={"c": (None, "")}, long_files={"src/gone.rs": ""}, generated_text={"x.md": ""},
            cycles=[("c", {"a", "b"})], type_names={"A": ""}, public_modules={("gpumemtrace_c", "m"): ""},
        )  # fmt: skip
        self.assertEqual(len(self.violations("exemptions", needless)), 6)


class Tool(StyleCase):
    def run_tool(self, *arguments):
        command = [sys.executable, os.path.join(REPOSITORY, "scripts", "style"), *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)

    def test_exit_code_and_output(self):
        self.plant("a.rs", "/// When.\nfn f() {}\n")
        bad = self.run_tool("--root", self.root, "--only", "short-docs")
        self.assertEqual(bad.returncode, 1)
        self.assertIn('a.rs:1: doc comment "When." has 1 word: ', bad.stdout)
        self.plant("a.rs", "/// Returns the time in nanoseconds.\nfn f() {}\n")
        good = self.run_tool("--root", self.root, "--only", "short-docs")
        self.assertEqual((good.returncode, good.stdout), (0, "style: 1 files checked, no violations\n"))

    def test_check_that_scans_nothing_fails(self):
        for check in style_checks.CHECKS:
            if check not in ("commits", "exemptions", "folders"):
                self.assertIn("found nothing to scan", "\n".join(map(str, self.violations(check))), check)

    def test_every_check_is_listed(self):
        listed = self.run_tool("--list").stdout
        for check in style_checks.CHECKS:
            self.assertIn(check, listed)


class Lexer(unittest.TestCase):
    def test_strings_and_chars_hide_comment_markers(self):
        lexed = lexer.lex('let a = "// no"; let b = r#"/* "no" */"#; let c = \'"\'; // yes\n', "rust")
        self.assertEqual([line.text.strip() for line in lexed.comments], ["yes"])
        self.assertEqual(len(lexed.code), len('let a = "// no"; let b = r#"/* "no" */"#; let c = \'"\'; // yes\n'))

    def test_shell_hash_inside_words_and_quotes_is_no_comment(self):
        lexed = lexer.lex('#!/bin/sh\necho ${#a} "# no" a#b  # yes\n', "shell")
        self.assertEqual([(line.number, line.text) for line in lexed.comments], [(2, "yes")])


if __name__ == "__main__":
    unittest.main()
