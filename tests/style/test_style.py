"""`scripts/style` reports each planted violation at its line, and passes the same tree without it.

Run it with `python3 -m unittest tests/style/test_style.py` or pytest; it needs git and no package.
"""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "style")
FULL = "word " * 19 + "x" * 5
LONG = FULL + "x"
LINK = "https://example.org/" + "x" * 100

# File, its text, and the lines with an error of which the message contains the last item.
ERRORS = [
    ("a.rs", f"fn f() {{}}\n/// {LONG}\nfn g() {{}} // {LONG}\n", (2, 3), "ends in column"),
    ("b.py", f'"""A module of two lines.\n\n{LONG}\n"""\n# {LONG}\n', (3, 5), "ends in column"),
    ("c.c", f"/* short\n * {LONG}\n */\n", (2,), "ends in column"),
    ("d.md", f"{LONG}\n", (1,), "ends in column 101"),
    ("e", f'#!/bin/sh\necho "# {LONG}" # {LONG}\n', (2,), "ends in column"),
    ("words.rs", "// Fine.\n// A block whose stream is gone.\n/// It is Told so.\nfn f() {}\n", (2, 3), ", 0 are allowed"),
    ("words.py", '"""Prints a line for users."""\nprint("""\n\nnobody holds it""")\n', (4,), "in text for users"),
    ("percent.md", "It takes 7 % more.\n\nIt takes 7% more.\n", (1,), "write `100%`"),
    ("percent.rs", 'fn f() { println!("{:.1} % of {}", 1.0, 2 % 3); }\n', (1,), "write `100%`"),
    ("docs.rs", "//! When.\n\n/// Does it now.\nfn f() {}\n/// `None` past the end.\n", (1, 3), "doc comment"),
    ("docs.py", '"""Does it."""\n\n\ndef f():\n    """The size."""\n', (1, 5), "doc comment"),
    ("page.md", "| `src/gone.rs` |\n`src/lib.rs` and `other/gone.rs`.\n", (1,), "no file or folder `src/gone.rs`"),
    ("home.json", '{"a": 1,\n"path": "/home/runner/run.trace", "sample": "/home/me/x"}\n', (2,), "of one machine"),
    ("run.txt", "wrote /tmp/tmpab12cd_3/run.trace\nwrote /tmp/run.trace\nwrote /root/run.trace\n", (1, 3), "of one machine"),
    ("pip.toml", 'index-url = "https://pypi.org/simple"\nindex-url = "https://mirror.example.org/simple"\n', (2,), "registry"),
    ("Cargo.lock", 'source = "registry+https://github.com/rust-lang/crates.io-index"\n'
                   'source = "registry+https://example.org/index"\n', (2,), "public registry"),
    ("host.yml", "a: https://nexus.example.org/x\nb: http://10.1.2.3:80\nc: https://github.com\n", (1, 2), "public host"),
    ("crates/replay/src/low.rs", "#[cfg(test)]\nmod tests;\nuse crate::{\n    low::{a, b},\n    top::c,\n};\n", (5,), "later layer"),
    ("crates/replay/src/new/mod.rs", "use crate::last::a;\n", (1,), "no layer"),
]  # fmt: skip

PHRASES = (
    "lets nobody in", "for whom", "nobody's", "ended by itself", "would find room", "In short", "nobody knows",
    "segments that live blocks keep", "keeps more and more", "hold a trace against", "the trace does not tell",
    "It never happened", "is told by",
)  # fmt: skip

CLEAN = {
    "src/lib.rs": "//! Tested by `tests/real.rs`, built from `src/lib.rs`.\n// When.\n/// Two lines\n/// here.\nfn f() {}\n",
    "tests/real.rs": f'const A: &str = "{LONG} // none";\nconst B: char = \'"\'; // {LINK}\n//! ```\n//! {LONG}\n//! ```\n',
    "tests/test_words.py": f'"""{FULL[3:]}"""\n'
                           'A = "Short."\nassert A != "nobody"\n# See `src/lib.rs`.\n',
    "docs/page.md": f"{FULL}\n| {LONG} |\n```\n{LONG}\n```\n[a]: {LINK}\nIn the long run, in short.\n",
    "crates/replay/src/lib.rs": "//! 1. `low`: numbers.\n//! 2. `top`, then `last`: reports.\nmod low;\nmod top;\n",
    "crates/replay/src/top.rs": "use crate::{low::a, Type};\n#[cfg(test)]\nmod tests {\n    use crate::last::b;\n}\n",
}


class Style(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        self.git("init", "--quiet")
        for path, text in CLEAN.items():
            self.plant(path, text)

    def git(self, *arguments):
        who = ["-c", "user.name=style", "-c", "user.email=style@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", self.root, *who, *arguments], check=True, stdout=subprocess.DEVNULL)

    def plant(self, path, text):
        full_path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full_path), exist_ok=True)
        with open(full_path, "w", encoding="utf-8") as file:
            file.write(text)

    def check(self, exit_code):
        """The lines that the script prints, without the last one, which sums up."""
        command = [sys.executable, SCRIPT, "--root", self.root]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)
        self.assertEqual(done.returncode, exit_code, done.stdout)
        return done.stdout.splitlines()[:-1]

    def test_clean_tree_has_no_finding(self):
        self.assertEqual(self.check(0), [])

    def test_every_planted_error_is_found_at_its_line(self):
        for path, text, _, _ in ERRORS:
            self.plant(path, text)
        output = self.check(1)
        for path, _, lines, message in ERRORS:
            with self.subTest(path):
                found = [line for line in output if line.startswith(f"{path}:")]
                self.assertEqual({line.split(": ")[0] for line in found}, {f"{path}:{number}" for number in lines})
                self.assertTrue(all(message in line for line in found), found)
        self.assertEqual(len(output), sum(len(lines) for _, _, lines, _ in ERRORS), output)

    def test_every_phrase_is_found(self):
        self.plant("docs/phrases.md", "\n".join(PHRASES))
        found = {line.split(": ")[0] for line in self.check(1) if ": write " in line}
        self.assertEqual(found, {f"docs/phrases.md:{number}" for number in range(1, len(PHRASES) + 1)})

    def test_path_of_the_checkout_is_found(self):
        self.plant("docs/here.md", f"See {os.path.realpath(self.root)}/src.\n")
        self.root = os.path.realpath(self.root)
        self.assertIn("docs/here.md:1: ", self.check(1)[0])

    def test_a_word_may_be_as_frequent_as_in_samply(self):
        self.plant("tests/a.rs", "// nobody\n" * 2 + "// line\n" * 6324)
        self.assertEqual(self.check(0), [])
        self.plant("tests/a.rs", "// nobody\n" * 3 + "// line\n" * 6324)
        self.assertEqual(len(self.check(1)), 3)

    def test_large_folders_long_files_and_commits_only_warn(self):
        for number in range(26):
            self.plant(f"full/{number}.txt", "")
        self.plant("src/long.rs", "\n" * 501)
        self.plant("tests/long.rs", "\n" * 501)
        for subject in ("shim: stop using it", "tests/suite, docs: embed it", "Minutes are minutes", "shim: stopped it",
                        "replay: " + "x" * 65):
            self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        found = self.check(0)
        self.assertEqual(len(found), 5, found)
        for message in ("full: the folder has 26 ", "src/long.rs: the file has 501 ", "73 characters", ": Minutes are",
                        ": shim: stopped"):
            self.assertEqual(sum(message in line and line.startswith("warning: ") for line in found), 1, message)

    def test_folder_without_a_repository_is_refused(self):
        self.root = os.path.join(self.root, "src", "missing")
        self.assertEqual(self.check(1), [])


if __name__ == "__main__":
    unittest.main()
