"""Stores the result of each long check, and writes the tables of docs/reliability.md from them."""

import datetime
import json
import os
import platform
import re
import subprocess

from . import campaign, host_runs, load
from .hosts import REPOSITORY

PAGE = REPOSITORY / "docs" / "reliability.md"
FOLDER = REPOSITORY / "tests" / "reliability"
FUZZ_PROGRAM = REPOSITORY / "fuzz" / "fuzz_targets" / "readers.rs"


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def machine():
    """The machine in general words."""
    kernel = re.match(r"\d+\.\d+", platform.release())
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {kernel[0] if kernel else ''}".strip()


def about_this_run():
    # Files that the long checks write do not change what they test.
    written = [f":!{path}" for path in ("tests/reliability", "fuzz/corpus", "docs/reliability.md", "docs/coverage-matrix.md")]
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"), "commit": git("rev-parse", "--short=10", "HEAD"),
            "has_changes": bool(git("status", "--porcelain", "--untracked-files=no", "--", ".", *written)), "machine": machine()}


def store(name, result):
    """Keeps a result; that a check cannot run here replaces no run elsewhere."""
    known = stored(name)
    if result["status"] == "not possible" and known and known["status"] != "not possible":
        return
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def stored(name):
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def summary_table(checks):
    lines = ["| check | last run | commit | machine | duration | share of full length | tried | losses |", "|---|---|---|---|---|---|---|---|"]
    for check in checks:
        result = stored(check.name)
        if result is None:
            lines.append(f"| {check.name}: {check.title} | not yet run | | | | | | |")
        elif result["status"] == "not possible":
            lines.append(f"| {check.name}: {check.title} | {result['date'][:10]}: not possible there: {result['reason']} | {result.get('commit', '')} | {result['machine']} | | | | |")
        else:
            commit = result.get("commit", "") + (" with changes" if result["has_changes"] else "")
            tried = f"{result['inputs']:,} {check.unit}" + (f", {result['preemptions']} preemptions" if "preemptions" in result else "")
            tried += f", {len(result['skipped'])} parts skipped" if result.get("skipped") else ""
            cells = [f"{check.name}: {check.title}", result["date"][:10], commit, result["machine"], duration(result["seconds"]),
                     f"{100 * result['scale']:.3g}%", tried, f"{result['losses']:,}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def kills_table():
    result = stored("kills")
    if not result or "hosts" not in result:
        return ["Not yet run."]
    return campaign.table(result["hosts"])


def load_table():
    result = stored("load")
    if not result or "hosts" not in result:
        return ["Not yet run."]
    return [f"{duration(result['seconds'])}, all at once:", "", *load.table(result["hosts"])]


def host_table():
    result = stored("host")
    if not result or "systems" not in result:
        return ["Not yet run."]
    return host_runs.table(result)


def fuzz_targets():
    """All targets, by the table of their program."""
    table = re.search(r"^const TARGETS.*?^\];", FUZZ_PROGRAM.read_text(), re.M | re.S)
    return re.findall(r'^    \("(\w+)",', table[0], re.M)


def fuzz_table():
    result = stored("fuzz")
    if not result or "targets" not in result:
        return ["Not yet run."]
    lines = ["| reader | time | inputs tried | edges covered | inputs in the corpus | crashes |", "|---|---|---|---|---|---|"]
    tried = {one["target"]: one for one in result["targets"]}
    for target in fuzz_targets():
        if target not in tried:
            lines.append(f"| {target} | not yet run | | | | |")
            continue
        one = tried[target]
        lines.append(f"| {one['target']} | {duration(one['seconds'])} | {one['inputs']:,} | {one['edges']:,} | {one['corpus']:,} | {int(one['crashed'])} |")
    return lines


def write_page(checks):
    """Replaces what the page has between the markers of each part."""
    text = PAGE.read_text()
    for name, lines in {"checks": summary_table(checks), "kills": kills_table(), "host": host_table(), "load": load_table(), "fuzz": fuzz_table()}.items():
        pattern = rf"(<!-- begin: {name} -->\n).*?(<!-- end: {name} -->)"
        body = "\n" + "\n".join(lines) + "\n\n"
        text, count = re.subn(pattern, lambda found: found[1] + body + found[2], text, flags=re.DOTALL)
        assert count == 1, f"{PAGE.name} has no markers of {name}"
    PAGE.write_text(text)
