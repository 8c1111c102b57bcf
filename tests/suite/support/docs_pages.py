"""Runs the sessions of the pages in docs/ and compares their output with what the page shows.

A page is executed from top to bottom, in a folder of its own:
  * a fence ```LANGUAGE title="FILE"``` writes a file (a later one of the same name replaces it);
  * a fence ```console``` is a session: lines that begin with "$ " are bash commands (a trailing
    backslash continues in the next line, which begins with "> "); the other lines are their output
    on both streams;
  * <!-- not run: REASON --> before a session marks it as shown only;
  * <!-- file: FILE of PAGE --> writes the first file of that name from another page.
Each command runs in its own shell. "$ echo $?" shows the exit code of the command before; it must
follow each command that fails.

Output that differs between two runs may be left out, narrowly:
  * … stands for up to 160 characters of a line that has another word;
  * a line ... stands for any number of lines, between two shown lines or at an end.
Run as a program, this file rewrites the outputs of the given pages (scripts/docs --update).
"""

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from conftest import ABORTED, BUILD, REPOSITORY, VENVS, environment

PAGES = REPOSITORY / "docs"
#: The package, and a `sitecustomize` that prevents an abort of PyTorch.
PYTHON_PATH = [REPOSITORY / "tests/suite/support/settled_end", REPOSITORY / "python"]
#: Outputs contain lines and sizes of PyTorch itself, so all pages use this version.
TORCH = "2.15.0"
ANY_TEXT, ANY_LINES = "…", "..."
#: --update replaces what differs between any two runs. Page authors leave out everything else.
VARIES = [
    (r"/tmp/page-\w+", "…"),
    (r"(?<=process )\d+ on [^\s,]+", "… on …"),
    (r"(?<=steps in )[\d.,]+ (us|ms|s|min)\b|(?<=step in )[\d.,]+ (us|ms|s|min)\b|(?<=, )[\d.,]+ (us|ms|s|min)\b", "…"),
    (r"(?<=^  )[\d.,]+ (us|ms|s|min)(?=, (exited|killed|crashed))", "…"),
    (r"[\d.]+ [KMGT]iB free$", "… free"),
    (r"\b[\d.,]+ (us|ms|s|min) in\b", "… in"),
    (r"[\d,]+(?= events recorded)", "…"),
    (r"(?<=^  events: )\d+|(?<=^  definitions: ).*|(?<=^    memory_sample: )\d+", "…"),
    (r"(?<=time_ns=)\d+|(?<=tid=)\d+", "…"),
    (r"(?<=Python )3\.\d+(\.\d+)?", "…"),
    (r"\bin [\d.,]+ (us|ms|s|min)(?=, )", "in …"),
    (r"(?<=^  )((trace ID|process ID|host|started|clock at start|Python): ).*", r"\1…"),
]
FENCE = re.compile(r"^```(?P<language>[\w-]*)(?P<rest>.*)$")
BORROWED = re.compile(r"^<!-- file: (?P<title>\S+) of (?P<page>\S+) -->$")
NOT_RUN = re.compile(r"^<!-- not run: (?P<why>.+) -->$")


@dataclass
class Command:
    text: str
    shown: list = field(default_factory=list)


@dataclass
class Block:
    """A fence: language, file name if any, reason not to run it, and position in the page."""

    language: str
    title: str
    not_run: str
    first: int
    last: int
    lines: list

    def commands(self):
        commands, goes_on = [], False
        for line in self.lines:
            if line.startswith("$ "):
                commands.append(Command(line[2:]))
            elif goes_on:
                assert line.startswith("> "), f"line {line!r}: the command before goes on, so it begins with '> '"
                commands[-1].text += "\n" + line[2:]
            else:
                assert commands, f"line {line!r} of a session comes before any command ('$ ...')"
                commands[-1].shown.append(line)
                continue
            goes_on = line.endswith("\\")
        return commands


def blocks(text):
    """Returns the fences of a page."""
    lines, found, opened = text.splitlines(), [], None
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        borrowed = BORROWED.match(line)
        if opened is None and borrowed:
            other = blocks((PAGES / borrowed["page"]).read_text())
            found.append(next(block for block in other if block.title == borrowed["title"]))
        if opened is None and fence:
            title = re.search(r'title="([^"]+)"', fence["rest"])
            marker = NOT_RUN.match(lines[number - 1]) if number else None
            opened = Block(fence["language"], title and title[1], marker and marker["why"], number + 1, number + 1, [])
        elif opened and line == "```":
            opened.last, opened.lines = number, lines[opened.first:number]
            found.append(opened)
            opened = None
    assert opened is None, f"the fence of line {opened.first} is not closed"
    return found


def pattern(shown):
    """Returns the regular expression for one line of a page."""
    return re.compile("".join(".{1,160}?" if part == ANY_TEXT else re.escape(part) for part in re.split(f"({ANY_TEXT})", shown)))


def line_matches(shown, line):
    return shown == line or (ANY_TEXT in shown and pattern(shown).fullmatch(line) is not None)


def aligned(shown, printed):
    """Returns the longest in-order matching of page lines to printed lines, as index pairs."""
    best = [[0] * (len(printed) + 1) for _ in range(len(shown) + 1)]
    same = [[part != ANY_LINES and line_matches(part, line) for line in printed] for part in shown]
    for i in reversed(range(len(shown))):
        for j in reversed(range(len(printed))):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], best[i + 1][j + 1] + 1 if same[i][j] else 0)
    i = j = 0
    while i < len(shown) and j < len(printed):
        if same[i][j] and best[i][j] == best[i + 1][j + 1] + 1:
            yield i, j
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1


def difference(shown, printed):
    """Returns the first difference between a page's lines and the printed ones, or None."""
    # For each page line: the printed lines that it can end at.
    places = {0}
    for number, part in enumerate(shown):
        if part == ANY_LINES:
            places = set(range(min(places), len(printed) + 1))
        else:
            after = {place + 1 for place in places if place < len(printed) and line_matches(part, printed[place])}
            if not after:
                place = min(places)
                was = printed[place] if place < len(printed) else "(nothing more)"
                return f"the page shows  {part!r}\nwas printed     {was!r}"
            places = after
    if len(printed) in places:
        return None
    return f"the page ends, and there was printed  {printed[max(places)]!r}"


def updated(shown, printed):
    """Returns the printed lines, with the page's omissions applied again."""
    new, pairs = [], [*aligned(shown, printed), (len(shown), len(printed))]
    i = j = 0
    for at, place in pairs:
        if ANY_LINES in shown[i:at] and (place > j or at > i + 1):
            kept_before = shown[i:at].index(ANY_LINES) == 0
            # Changed lines are shown again; unchanged omissions stay omitted.
            new += [ANY_LINES] if kept_before or place == j else [*map(masked, printed[j:j + 1]), ANY_LINES]
        else:
            new += map(masked, printed[j:place])
        if at < len(shown):
            new.append(masked(shown[at]))
        i, j = at + 1, place + 1
    return new


def masked(line):
    for varies, instead in VARIES:
        line = re.sub(varies, instead, line)
    return line


class Session:
    """A folder in which one page runs."""

    def __init__(self, folder):
        self.folder, self.code = folder, 0
        virtual = Path(VENVS[TORCH])
        # Reports name the recorder's files. Paths of fixed length break lines at the same words.
        programs = folder / ".bin"
        programs.mkdir()
        for name in ("gpumemtrace", "libgpumemtrace.so", "libsimgpu_driver.so", "libsimgpu_toolkit.so"):
            shutil.copy2(BUILD / name, programs)
        self.environment = environment(folder, traced=False)
        del self.environment["SIMGPU_LOG"]
        for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
            self.environment.pop(name, None)
        self.environment.update(
            PATH=os.pathsep.join([str(virtual / "bin"), str(programs), os.environ["PATH"]]), COLUMNS="100", PYTHONUNBUFFERED="1",
            PYTHONDONTWRITEBYTECODE="1", LC_ALL="C.UTF-8", TERM="dumb", XDG_CACHE_HOME=str(folder / ".cache"),
            PYTHONPATH=os.pathsep.join(map(str, PYTHON_PATH)), GPUMEMTRACE_LIB=str(programs / "libgpumemtrace.so"),
            GPUMEMTRACE_COMMAND=str(programs / "gpumemtrace"))
        # Pages call the project's programs as the README does, and the PyTorch environment VENV.
        shutil.copytree(REPOSITORY / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "VENV").symlink_to(virtual)
        # The snapshot that pages read, which PyTorch wrote.
        snapshots = REPOSITORY / "tests" / "golden" / "snapshots"
        shutil.copy2(snapshots / "torch-2.15.0-training-native.pickle.gz", folder / "snapshot.pickle.gz")

    def write(self, block):
        path = self.folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(block.lines) + "\n")

    def run(self, text):
        """Runs one command; returns its output lines."""
        done = subprocess.run(["bash", "-c", f"(exit {self.code})\n{text}"], cwd=self.folder, env=self.environment, timeout=300,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.code = done.returncode
        printed = [line.rstrip() for line in done.stdout.decode().splitlines()]
        # PyTorch 2.15.0 sometimes aborts after its work is done (conftest.py).
        if any(ABORTED in line for line in printed):
            raise Aborted
        return printed


class Aborted(Exception):
    pass


def read(text, folder, seen):
    """Runs a page: calls seen(block, command, printed, code) for each command."""
    session = Session(folder)
    for block in blocks(text):
        if block.title:
            session.write(block)
        if block.language != "console" or block.not_run:
            continue
        for command in block.commands():
            printed = session.run(command.text)
            seen(block, command, printed, session.code)


def read_again(text, new_seen):
    """Runs the page again in a fresh folder, with a fresh reader, while PyTorch aborts."""
    for attempt in range(5):
        seen = new_seen()
        with tempfile.TemporaryDirectory(prefix="page-", dir="/tmp") as folder:
            try:
                read(text, Path(folder), seen)
                return seen
            except Aborted:
                continue
    raise AssertionError("PyTorch aborted five times")


def update(page):
    """Rewrites the outputs of one page."""
    text = page.read_text()

    class Seen(list):
        def __call__(self, block, command, printed, code):
            self.append((block, command, [part.rstrip() for part in updated(command.shown, printed)]))

    seen = read_again(text, Seen)
    lines = text.splitlines()
    outputs = {}
    for block, command, shown in seen:
        session = outputs.setdefault(block.first, (block, []))[1]
        session += ["$ " + command.text.replace("\n", "\n> ")] + shown
    for block, session in sorted(outputs.values(), key=lambda pair: -pair[0].first):
        lines[block.first:block.last] = session
    new = "\n".join(lines) + "\n"
    if new != text:
        page.write_text(new)
    print(f"{page.relative_to(REPOSITORY)}: {'rewritten: read the difference' if new != text else 'as it was'}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Rewrites the outputs of pages from a real run.")
    arguments.add_argument("pages", nargs="*", type=Path)
    for path in arguments.parse_args().pages or sorted(PAGES.rglob("*.md")):
        if any(block.language == "console" and not block.not_run for block in blocks(path.read_text())):
            update(path.resolve())
