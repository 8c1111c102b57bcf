"""Runs every command that docs/ shows and compares its output with the page; omissions hide no
number.

support/docs_pages.py says how a page is read, CONTRIBUTING.md how one is written.
"""

import ast
import gzip
import os
import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from random import Random

import docs_pages
import pytest
from conftest import BUILD, COMMAND, REPOSITORY, TARGET, VENVS
from docs_pages import ANY_LINES, ANY_TEXT, PAGES, TORCH, blocks, difference, updated

README = REPOSITORY / "README.md"
ALL = sorted(PAGES.rglob("*.md"))
NAMES = [str(page.relative_to(PAGES)) for page in ALL]
RUN = [page for page in ALL if any(block.language == "console" and not block.not_run for block in blocks(page.read_text()))]
#: Sessions that are shown only. Each needs a line here, so that skipping one is a decision.
NOT_RUN = [
    ("commands/check.md", "many ranks; replay-cli/tests/many_traces.rs runs these commands"),
    ("commands/clusters.md", "four ranks; test_ranks_command.py and test_clusters.py run torchrun"),
    ("commands/clusters.md", "it needs Slurm; test_clusters.py runs tasks with the variables of Slurm"),
    ("commands/clusters.md", "it needs a Kubernetes cluster"),
    ("commands/clusters.md", "it needs Ray; test_ray.py runs such a driver"),
    ("commands/clusters.md", "several nodes; test_ray.py merges the summaries of its workers"),
    ("commands/compare.md", "many ranks; replay-cli/tests/many_traces.rs runs this command"),
    ("commands/history.md", "two commits; test_archive.py does the same"),
    ("commands/ranks.md", "four ranks; test_ranks_command.py runs the same program"),
    ("commands/ranks.md", "several nodes; test_ranks_command.py merges summaries in each order"),
    ("commands/replay.md", "many ranks; replay-cli/tests/many_traces.rs runs these commands"),
    ("commands/serve-metrics.md", "it runs until it is stopped; test_serve_metrics.py does the same with Prometheus"),
    ("commands/simulate.md", "ten runs; test_vary.py compares such searches with real runs"),
    ("commands/simulate.md", "eight processes; test_distributed.py runs it in the nightly list"),
    ("exports/sql.md", "it needs DuckDB; tests/suite/sql asks each question"),
    ("index.md", "it installs into your environment"),
    ("limits.md", "it needs a real GPU"),
    ("mps.md", "output of a Mac"),
    ("mps.md", "needs GCC's Objective-C; tests/suite/apple/test_metal.py runs the same commands"),
    ("python/index.md", "train.py is a placeholder; index.md and case-study.md run this with theirs"),
]
LANGUAGES = {"console", "python", "toml", "yaml", "text", "sql", ""}
SUBCOMMANDS = ("run", "replay", "html", "export", "compare", "ranks", "history", "whatif", "fit", "simulate", "check", "info", "dump", "symbolize", "serve-metrics",
               "doctor")


class Reader:
    """Compares each output with its page and collects the differences."""

    def __init__(self):
        self.wrong, self.failed = [], None

    def __call__(self, block, command, printed, code):
        if self.failed and not command.text.startswith("echo $?"):
            self.wrong.append(f"{self.failed}\nand the page does not say so: $ echo $?")
        self.failed = f"$ {command.text}\nended with {code}" if code else None
        if found := difference(command.shown, printed):
            everything = "\n".join(printed)
            self.wrong.append(f"line {block.first}: $ {command.text}\n{found}\nall of it:\n{everything}")

    def end(self):
        return self.wrong + ([f"{self.failed}\nand the page does not say so: $ echo $?"] if self.failed else [])


def page_differences(text):
    return docs_pages.read_again(text, Reader).end()


@pytest.fixture(scope="module", autouse=True)
def versions():
    if TORCH not in VENVS:
        raise pytest.UsageError(f"GPUMEMTRACE_VENVS has no torch {TORCH}: run scripts/test, which makes the environments")


@pytest.mark.sampled(3)
@pytest.mark.slow("runs every command of a page")
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(PAGES)))
def test_page_output_matches_command_output(page):
    wrong = page_differences(page.read_text())
    assert not wrong, "\n\n".join([*wrong, f"if the page is what is wrong: scripts/docs --update {page.relative_to(REPOSITORY)}"])


def test_each_session_is_run_or_gives_a_reason():
    not_run = []
    for page in ALL:
        for block in blocks(page.read_text()):
            place = f"{page.name}:{block.first}"
            assert block.language in LANGUAGES, f"{place}: sessions are ```console, files python; {block.language!r} is neither"
            if block.language == "console":
                assert block.commands(), f"{place}: a session without a command"
                if block.not_run:
                    not_run.append((str(page.relative_to(PAGES)), block.not_run))
            else:
                typed = [line for line in block.lines if re.match(rf"\$ |(sudo |[A-Z_]+=\S+ )*(gpumemtrace ({'|'.join(SUBCOMMANDS)})|pip|scripts/)\b", line)]
                assert not typed, f"{place}: {typed[0]!r} is a command that no test runs: make the block ```console"
    assert not_run == NOT_RUN


def test_python_fragments_compile():
    """Python fragments compile, and names that they import from the package exist."""
    known = set(re.findall(r'^    "(\w+)"', (REPOSITORY / "python/gpumemtrace/__init__.py").read_text(), re.M))
    for page in [*ALL, README]:
        for block in blocks(page.read_text()):
            if block.language == "python":
                tree = ast.parse("\n".join(block.lines), filename=str(page))
                ours = {node.attr for node in ast.walk(tree)
                        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gpumemtrace"}
                assert not known or ours <= known, f"{page.name}: the package has no {ours - known}"


def shown_outputs():
    for page in RUN:
        for block in blocks(page.read_text()):
            if block.language == "console" and not block.not_run:
                for command in block.commands():
                    yield f"{page.name}: $ {command.text}", command.shown


def test_omissions_are_narrow():
    for place, shown in shown_outputs():
        for number, line in enumerate(shown):
            if ANY_TEXT in line:
                assert re.search(r"\w\w", line.replace(ANY_TEXT, "")), f"{place}: {line!r} stands for any line"
            if line == ANY_LINES:
                assert shown[number - 1:number] != [ANY_LINES], f"{place}: {ANY_LINES} twice"


def test_pages_contain_no_machine_path():
    for page in [*ALL, README]:
        found = re.search(r"/tmp/|/home/\w|/root/|/work/|/Users/", page.read_text())
        assert not found, f"{page.name}: {found[0]}"


def test_any_changed_number_is_detected():
    """Changes each number of each output of each page: bytes, line numbers, steps, exit codes."""
    changed = 0
    for place, shown in shown_outputs():
        printed = [line.replace(ANY_TEXT, "something") for line in shown if line != ANY_LINES]
        assert difference(shown, printed) is None, place
        for at, line in enumerate(shown):
            for number in re.finditer(r"\d+", line):
                other = str(int(number[0]) + 1)
                wrong = [*shown[:at], line[:number.start()] + other + line[number.end():], *shown[at + 1:]]
                assert difference(wrong, printed) is not None, f"{place}: {line!r} with {other} for {number[0]} goes unnoticed"
                changed += 1
    assert changed > 1000


@pytest.mark.parametrize("shown, printed, is_right", [
    (["a", "b"], ["a", "b"], True),
    (["a"], ["a", "b"], False),
    (["a", "b"], ["a"], False),
    ([], ["a"], False),
    (["a", ANY_LINES, "c"], ["a", "c"], True),
    (["a", ANY_LINES, "c"], ["a", "b", "b", "c"], True),
    (["a", ANY_LINES, "c"], ["a", "b", "d"], False),
    (["a", ANY_LINES], ["a", "b", "c"], True),
    ([ANY_LINES, "c"], ["a", "b", "d"], False),
    ([f"after {ANY_TEXT} (exit 0)"], ["after 1.2 s (exit 0)"], True),
    ([f"after {ANY_TEXT} (exit 0)"], ["after 1.2 s (exit 1)"], False),
    ([f"after {ANY_TEXT} (exit 0)"], ["after  (exit 0)"], False),
    ([f"after{ANY_TEXT}(exit 0)"], ["after(exit 0)"], False),
    ([f"the library {ANY_TEXT}"], ["the library " + "x" * 161], False),
])
def test_comparison_of_shown_and_printed_lines(shown, printed, is_right):
    assert (difference(shown, printed) is None) == is_right


PAGE = """# A page

```python title="three.py"
import torch
kept = torch.empty(1000, device="cuda")
del kept
```

```console
$ gpumemtrace run -- python three.py
gpumemtrace: wrote run.trace; next: gpumemtrace replay run.trace
$ gpumemtrace replay run.trace --peak \\
>   --units bytes | grep -e "^Peak" -e "^     *4,096" -e "three.py:.* in"
Peak of GPU 0: 4,096 B allocated (4,096 bytes), … in
...
    > three.py:2 in <module>
```
"""


@pytest.mark.slow("runs a page three times")
def test_page_with_wrong_byte_or_line_fails():
    """Uses the real command: a page as printed passes, and with one wrong figure it fails."""
    assert page_differences(PAGE) == []
    for wrong in [PAGE.replace("(4,096 bytes)", "(4,095 bytes)"), PAGE.replace("three.py:2", "three.py:3"),
                  PAGE.replace("wrote run.trace", "wrote x.trace")]:
        assert len(page_differences(wrong)) == 1
    fails = PAGE.replace("$ gpumemtrace run --", "$ false\n$ gpumemtrace run --")
    assert len(page_differences(fails)) == 1
    assert page_differences(fails.replace("$ false\n", "$ false\n$ echo $?\n1\n")) == []


def test_update_keeps_omissions():
    printed = ["head", "3 steps in 1.5 s, exited", "one", "two", "three", "size 12 B"]
    assert updated([], printed) == ["head", "3 steps in …, exited", *printed[2:]]
    assert updated(["head", f"3 steps in {ANY_TEXT}, exited", ANY_LINES, "size 11 B"], printed)[:2] == ["head", f"3 steps in {ANY_TEXT}, exited"]
    kept = ["head", ANY_LINES, "three", "size 12 B"]
    assert updated(kept, printed) == kept
    assert updated(["head", ANY_LINES, "three", "size 11 B"], printed) == kept
    assert difference(updated(["nothing", "of", ANY_LINES, "this"], printed), printed) is None

    # For random pages and outputs, what --update writes matches the output.
    random = Random(7)
    for _ in range(20_000):
        printed = random.choices(["a", "b", "c", "3 steps in 1.5 s, exited"], k=random.randrange(7))
        shown = random.choices(["a", "b", "c", ANY_LINES, f"3 steps in {ANY_TEXT}, exited"], k=random.randrange(7))
        assert difference(updated(shown, printed), printed) is None, (shown, printed, updated(shown, printed))
        if difference(shown, printed) is None and (ANY_LINES, ANY_LINES) not in zip(shown, shown[1:]):
            assert len(updated(shown, printed)) <= len(printed) + shown.count(ANY_LINES)


@lru_cache(maxsize=None)
def options_of(*subcommand):
    """Returns each option of a subcommand, and whether it takes a value."""
    text = subprocess.run([COMMAND, *subcommand, "--help"], capture_output=True, text=True, check=True).stdout
    return {name: bool(value) for name, value in re.findall(r"^\s+(?:-\w, )?(--[\w-]+)( <)?", text, re.M)}


def test_options_named_in_pages_exist():
    named = 0
    for subcommand in SUBCOMMANDS:
        for page in [*ALL, README]:
            for words in re.findall(rf"gpumemtrace {subcommand}((?: [^`\n|>#;]+)?)", page.read_text()):
                # Each format of `export` has its own options.
                format = words.split()[:1] if subcommand == "export" and re.match(r" [a-z]", words) else []
                known = options_of(subcommand, *format) | {"-o": True}
                skip = False
                for word in words.split():
                    if skip or not word.startswith("-"):
                        # Words after the program belong to the program that `run` starts.
                        if not skip and subcommand == "run":
                            break
                        skip = False
                        continue
                    name = word.rstrip(".,:)\"'*").split("=")[0]
                    if name in ("--", "-m", "-"):
                        break
                    assert name in known, f"{page.name}: `gpumemtrace {subcommand}{words}`, but there is no {name}"
                    skip, named = known[name], named + 1
    assert named > 60


def test_each_command_has_a_page():
    text = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^(?:[A-Z].{12}| {13})([a-z-]+)  ", text[text.index("Usage:"):], re.M))
    assert commands == set(SUBCOMMANDS) == {page.stem for page in (PAGES / "commands").glob("*.md")} - {"index", "ci", "clusters"}


@pytest.mark.slow("runs every command of the README")
def test_readme_commands():
    """Runs the README's commands in order on the demo, and compares the finding it begins with."""
    text = README.read_text()
    fences = [block for block in blocks(text) if not block.language]
    commands = [re.split(r"\s+# |; or:", line)[0].rstrip() for block in fences for line in block.lines
                if re.match(r"gpumemtrace |LD_PRELOAD=", line)]
    named = {re.search(r"gpumemtrace (\w+)", command)[1] for command in commands if command.startswith("gpumemtrace")}
    assert {"run", "replay"} <= named <= set(SUBCOMMANDS)

    def attempt(folder):
        session = docs_pages.Session(folder)
        shutil.copy(REPOSITORY / "scripts" / "demo_train.py", folder / "train.py")
        (folder / "target").mkdir()
        (folder / "target" / "release").symlink_to(folder / ".bin")
        (folder / "snapshot.pickle").write_bytes(gzip.decompress((folder / "snapshot.pickle.gz").read_bytes()))
        session.run("gpumemtrace run -o before.trace -- python train.py --steps 12 --fixed")
        session.run("gpumemtrace run -o after.trace -- python train.py --steps 12")
        for command in commands:
            printed = session.run(command)
            assert session.code == 0, f"$ {command}\n" + "\n".join(printed)
        leaks = session.run("gpumemtrace replay run.trace --leaks") + session.run("COLUMNS=200 gpumemtrace replay run.trace --leaks")
        excerpt = fences[0].lines[fences[0].lines.index("") + 1:]
        assert len(excerpt) >= 3
        for line in excerpt:
            assert any(printed.startswith(line) for printed in leaks), f"{line!r} is not in\n" + "\n".join(leaks)

    for _ in range(5):
        with tempfile.TemporaryDirectory(prefix="page-", dir="/tmp") as folder:
            try:
                return attempt(Path(folder))
            except docs_pages.Aborted:
                continue
    raise AssertionError("PyTorch aborted five times")


@pytest.fixture
def mkdocs():
    """Returns the mkdocs that scripts/docs installed in target/."""
    target = TARGET
    done = subprocess.run([REPOSITORY / "scripts" / "docs", "--possible"], capture_output=True, text=True,
                          env={**os.environ, "CARGO_TARGET_DIR": str(target)})
    if done.returncode:
        pytest.fail(done.stderr) if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip(done.stderr)
    return target / "venvs" / "docs" / "bin" / "mkdocs"


def build(mkdocs, folder):
    return subprocess.run([mkdocs, "build", "--strict", "--site-dir", folder / "site"], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})


def test_site_builds_and_broken_link_fails(mkdocs, tmp_path):
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    shutil.copytree(PAGES, tmp_path / "docs")
    done = build(mkdocs, tmp_path)
    assert done.returncode == 0, done.stderr
    made = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*")}
    assert {name.replace(".md", ".html") for name in NAMES} <= made
    # Pages load nothing from other hosts.
    for page in (tmp_path / "site").rglob("*.html"):
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?://', page.read_text()), page
    for broken in ["[a page](nowhere.md)", "[a heading](concepts.md#nowhere)"]:
        page = tmp_path / "docs" / "faq.md"
        page.write_text((PAGES / "faq.md").read_text() + f"\n{broken}\n")
        assert build(mkdocs, tmp_path).returncode != 0, broken
    page.write_text((PAGES / "faq.md").read_text())
    (tmp_path / "docs" / "unlisted.md").write_text("# A page that the navigation does not have\n")
    assert build(mkdocs, tmp_path).returncode != 0
