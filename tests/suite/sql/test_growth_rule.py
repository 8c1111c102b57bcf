"""What grew between versions: `history`, gpumemtrace.sql and a plain computation agree.

The archives are generated: programs, commits that alternate, runs that vary, ranks that are missing
or failed, functions that move, grow, and get other names. The computation below follows
docs/commands/history.md and shares no code with either.
"""

import json
import random
from collections import defaultdict

import pytest

from conftest import FULL, gpumemtrace
from readers import reader_program, run_reader
from sql_archives import ENGINES, engines  # noqa: F401 (fixture)

MIB = 1 << 20
FILES = ("train.py", "model.py")


class Program:
    """A program whose functions change from commit to commit."""

    def __init__(self, random, name):
        self.random, self.command = random, ["python", name]
        self.shift, self.functions = 0, {}
        for number in range(random.randint(2, 4)):
            lines = [(f"x{line} = f{number}()", random.choice([1, 4, 16, 64])) for line in range(random.randint(1, 2))]
            self.functions[f"f{number}"] = (random.choice(FILES), lines)

    def change(self):
        """One commit: some functions grow, some get another name or file."""
        self.shift, changed = self.random.randint(0, 50), {}
        for name, (file, lines) in self.functions.items():
            kind = self.random.random()
            if kind < 0.3:
                at = self.random.randrange(len(lines))
                by = self.random.choice([1, 2, 8, 40])
                lines = [(text, size + by * (index == at)) for index, (text, size) in enumerate(lines)]
            elif kind < 0.45:
                name, file = f"{name}_moved", self.random.choice(FILES)
                lines = [(text, size + self.random.choice([0, 8])) for text, size in lines]
            elif kind < 0.5:
                continue
            changed[name] = (file, lines)
        self.functions = changed or self.functions

    def sites(self, has_texts):
        """The lines of one run, each with its MiB. They move with each commit."""
        sites = []
        for number, (name, (file, lines)) in enumerate(self.functions.items()):
            for index, (text, size) in enumerate(lines):
                sites.append({"file": file, "line": 100 * number + 10 * index + self.shift, "function": name,
                              "source_id": text if has_texts and self.random.random() < 0.9 else None, "bytes": size * MIB})
        return sites


def generate(seed):
    """Returns the processes of an archive: dictionaries with what tables and summaries say."""
    chance = random.Random(seed)
    processes, start = [], 1
    for name in ("train.py", "serve.py")[:chance.randint(1, 2)]:
        program = Program(chance, name)
        has_texts, ranks, runs = chance.random() < 0.7, chance.randint(1, 4), []
        for commit in range(chance.randint(2, 3)):
            runs += [(f"{commit:040x}" if chance.random() < 0.9 else None, program.sites(has_texts)) for _ in range(chance.randint(1, 4))]
            program.change()
        if chance.random() < 0.3:
            chance.shuffle(runs)
        for commit, sites in runs:
            start += 10
            run = f"run-{start}"
            for rank in range(ranks):
                if ranks > 1 and chance.random() < 0.1:
                    continue
                ended = chance.choices(["good", "failed", "cut"], [0.85, 0.1, 0.05])[0]
                noise = chance.choice([0, 0, 0, 1, 3])
                own = [site | {"bytes": site["bytes"] + noise * MIB} for site in sites if chance.random() < 0.95]
                if own:
                    processes.append({"run": run, "rank": rank, "start": start, "commit": commit, "command": program.command,
                                      "ended": ended, "sites": own})
    return processes


def summary(process):
    sites = sorted(process["sites"], key=lambda site: -site["bytes"])
    text = lambda site: f"{site['file']}:{site['line']} in {site['function']}()"
    peaks = [{"site": {"id": text(site), "text": text(site), "source_id": site["source_id"]}, "bytes": site["bytes"]} for site in sites]
    device = {"device": 0, "name": None, "total_bytes": None, "peak_live_bytes": sum(site["bytes"] for site in sites),
              "peak_reserved_bytes": None, "end_live_bytes": None, "live_bytes_over_time": [], "peak_sites": peaks, "more_peak_sites": 0}
    code = 1 if process["ended"] == "failed" else 0
    trace = {"host": "a", "pid": process["rank"], "started_unix_ns": process["start"], "path": f"{process['run']}.{process['rank']}.trace",
             "rank": process["rank"], "world_size": None, "command": process["command"], "torch": None, "allocator_conf": None,
             "git_commit": process["commit"], "labels": {}, "events": 1, "duration_ns": 1, "end": "exit", "exit_code": code, "end_detail": f"exit {code}",
             "missing": ["cut"] if process["ended"] == "cut" else [], "steps": None, "step_source": None, "leak_assessment": "assessed",
             "worst_finding": None, "devices": [device], "leaks": [], "more_leaks": 0, "ooms": [], "more_ooms": 0}
    return {"schema": "gpumemtrace.summary", "version": 1, "traces": [trace], "unreadable": []}


WRITE = """
import json, sys, pathlib, pyarrow, pyarrow.parquet
processes = json.load(sys.stdin)
numbers = {"reported_rank", "started_unix_ns", "duration_ns", "exit_code", "ooms", "peak_live_bytes", "line", "device", "peak_bytes"}
flags = {"is_whole", "is_complete", "is_backward"}
def write(table, process, rows):
    folder = pathlib.Path(sys.argv[1], table, f"run={process['run']}", f"rank={process['rank']}")
    folder.mkdir(parents=True)
    kind = lambda name: pyarrow.int64() if name in numbers else pyarrow.bool_() if name in flags else pyarrow.string()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema([(name, kind(name)) for name in rows[0]])), folder / "part-0.parquet")
for process in processes:
    write("runs", process, [{"reported_rank": process["rank"], "started_unix_ns": process["start"], "duration_ns": 1,
        "command_json": json.dumps(process["command"], separators=(",", ":")), "git_commit": process["commit"], "is_whole": True,
        "is_complete": process["ended"] != "cut", "ending": "exit", "exit_code": int(process["ended"] == "failed"), "ooms": 0,
        "peak_live_bytes": sum(site["bytes"] for site in process["sites"])}])
    write("sites", process, [{"layer": "torch", "device": 0, "is_backward": False, "module": None, "peak_bytes": site["bytes"],
        **{name: site[name] for name in ("file", "line", "function", "source_id")}} for site in process["sites"]])
"""


def write_archive(folder, processes):
    run_reader([reader_program("python"), "-c", WRITE, folder], input=json.dumps(processes))
    for process in processes:
        place = folder / "_summaries" / f"run={process['run']}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"rank={process['rank']}.summary").write_text(json.dumps(summary(process), separators=(",", ":")))


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


def expected(processes):
    """The rows of the rule, computed without tables."""
    versions = defaultdict(dict)
    for process in sorted(processes, key=lambda process: (process["start"], process["rank"])):
        version = process["commit"] or process["run"]
        versions[" ".join(process["command"])].setdefault(version, []).append(process)
    rows = []
    for program, of_program in versions.items():
        pairs = list(of_program.items())
        for place, (_, after) in enumerate(pairs):
            whole = [before for _, before in pairs[:place] if any(process["ended"] == "good" for process in before)]
            if not whole:
                continue
            before = whole[-1]
            rows += [{"program": program, "before": before[0]["commit"], "after": after[0]["commit"], **row} for row in compare(before, after)]
    return sorted(rows, key=json_key)


def compare(before, after):
    good = lambda process: process["ended"] == "good"
    old = [process for process in before if good(process)]
    good_ranks = {process["rank"] for process in after if good(process)}
    new = [process for process in after if good(process) or process["rank"] not in good_ranks]
    common = {process["rank"] for process in old} & {process["rank"] for process in new}
    old, new = ([process for process in side if process["rank"] in common] for side in (old, new))
    if not common:
        return
    name = lambda site: (site["file"], site["function"])
    lines = []
    for side in (old, new):
        most = defaultdict(dict)
        for site in (site for process in side for site in process["sites"]):
            size, text = most[name(site)].get(site["line"], (0, None))
            most[name(site)][site["line"]] = (max(size, site["bytes"]), max(text or "", site["source_id"] or "") or None)
        lines.append(most)
    old_lines, new_lines = lines

    def statistic(side, names, of_gpus, of_runs):
        runs = defaultdict(list)
        for process in side:
            runs[process["run"]].append(sum(site["bytes"] for site in process["sites"] if name(site) in names))
        return of_runs(usual([of_gpus(sizes) for sizes in runs.values()]))

    for function, of_function in new_lines.items():
        moved = [] if function in old_lines else [other for other in old_lines if other not in new_lines and is_move(old_lines[other], of_function)]
        names = moved or [function]
        for gpus, of_gpus in (("median", lower_median), ("most", max)):
            was, now = statistic(old, names, of_gpus, max), statistic(new, [function], of_gpus, min)
            if now - was >= MIB and now - was >= 0.05 * was:
                known = [line for other in names for line in old_lines.get(other, {}).values()]
                yield {"file": function[0], "function": function[1], "moved_from": sorted(other[1] for other in moved), "gpus": gpus,
                       "bytes": [was, now], "lines": largest_growth(of_function, known)}
                break


def usual(amounts):
    """The amounts of runs without those that differ from the others."""
    if len(amounts) < 3:
        return amounts
    middle = lower_median(amounts)
    distances = sorted(abs(amount - middle) for amount in amounts)
    limit = 3.5 * 1.4826 * distances[len(distances) // 2]
    return [amount for amount in amounts if not (abs(amount - middle) > limit and abs(amount - middle) >= 0.05 * middle)]


def is_move(old, new):
    texts = {text for _, text in old.values() if text}
    if not texts or not any(text for _, text in new.values()):
        return (len(old), sum(size for size, _ in old.values())) == (len(new), sum(size for size, _ in new.values()))
    return 2 * sum(size for size, text in new.values() if text in texts) >= sum(size for size, _ in new.values())


def largest_growth(lines, known):
    by_text = any(text for _, text in known)
    growth = {}
    for line, (size, text) in lines.items():
        same = [other for other, other_text in known if (other_text == text if text and by_text else other == size)]
        growth[line] = size - max(same, default=0)
    most = max(growth.values())
    named = [line for line in lines if growth[line] == most] if most > 0 else \
        [line for line in lines if lines[line][0] == max(size for size, _ in lines.values())]
    return sorted({min(named), max(named)})


def json_key(row):
    return json.dumps(row, sort_keys=True)


def of_history(report):
    rows = []
    for row in report["growth"]:
        places = [line.removesuffix("()").replace(" in ", ":").split(":") for line in row["lines"]]
        numbers = [int(line) for _, line, _ in places]
        rows.append({"program": row["program"], "before": row["before_commit"], "after": row["after_commit"], "file": places[0][0],
                     "function": places[0][2], "moved_from": sorted(name.removesuffix("()").split(" in ")[1] for name in row["moved_from"]),
                     "gpus": row["gpus"], "bytes": [row["before_bytes"], row["after_bytes"]], "lines": sorted({min(numbers), max(numbers)})})
    return sorted(rows, key=json_key)


def of_sql(answer):
    rows = []
    for row in answer:
        rows.append({"program": " ".join(json.loads(row["program"])), "before": row["before_commit"], "after": row["after_commit"],
                     "file": row["file"], "function": row["function"], "moved_from": row["moved_from"].split(", ") if row["moved_from"] else [],
                     "gpus": row["gpus"], "bytes": [row["before_bytes"], row["after_bytes"]],
                     "lines": sorted({line for line in (row["line"], row["other_line"]) if line is not None})})
    return sorted(rows, key=json_key)


@pytest.mark.parametrize("engine", ENGINES)
def test_history_and_sql_follow_one_rule(tmp_path, engines, engine):
    seen = defaultdict(int)
    for seed in range(60 if FULL else 12):
        folder = tmp_path / str(seed)
        processes = generate(seed)
        write_archive(folder, processes)
        wanted = expected(processes)
        report = json.loads(gpumemtrace("history", folder, "--json", code=None))
        assert of_history(report) == wanted, seed
        assert of_sql(engines.rows(folder, "grown_lines", engine)) == wanted, seed
        for row in wanted:
            seen[row["gpus"]] += 1
            seen["moved"] += bool(row["moved_from"])
            seen["two lines"] += len(row["lines"]) > 1
    # The archives hold each case of the rule.
    assert min(seen[case] for case in ("median", "most", "moved", "two lines")) > 0, dict(seen)


def test_programs_are_compared_with_themselves_only(tmp_path, engines):
    """A large program between two commits of a small one hid 6 MiB, and was growth itself."""
    process = lambda start, command, commit, size: {
        "run": f"run-{start}", "rank": 0, "start": start, "commit": commit, "command": ["python", command], "ended": "good",
        "sites": [{"file": command, "line": 7, "function": "step", "source_id": "x = f()", "bytes": size * MIB}]}
    processes = [process(1, "small.py", "a" * 40, 20), process(2, "large.py", "b" * 40, 160), process(3, "small.py", "c" * 40, 26)]
    write_archive(tmp_path / "archive", processes)
    [row] = engines.rows(tmp_path / "archive", "regressions")
    assert (json.loads(row["program"]), row["before_commit"], row["git_commit"]) == (["python", "small.py"], "a" * 40, "c" * 40)
    assert (row["before_bytes"], row["bytes"], row["function_grown_bytes"]) == (20 * MIB, 26 * MIB, 6 * MIB)
    [row] = engines.rows(tmp_path / "archive", "grown_lines", before="a" * 40, after="c" * 40)
    assert row["grown_bytes"] == 6 * MIB
