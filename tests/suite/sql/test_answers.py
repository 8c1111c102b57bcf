"""Answers of gpumemtrace.sql about real runs equal `replay --json`, or a plain recount."""

import shutil
from collections import defaultdict

import pytest

from sql_archives import engines, exported, synthesized  # noqa: F401 (fixtures)
from sql_archives import read_table, set_columns

LINE = ("file", "line", "function", "is_backward")
GOLDEN, RANKS, OOM = range(3)


def line_of(site):
    """Returns the line of a site of a report."""
    return site["file"] or site["module"], site["line"], site["function"], site.get("is_backward", False)


def by_line(rows, *columns):
    """Returns columns of rows by line, and checks that no line has two rows."""
    found = {tuple(row[name] for name in LINE): tuple(row[name] for name in columns) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
def ask(engines, exported):
    return lambda name, **parameters: engines.rows(exported.folder, name, **parameters)


@pytest.fixture(scope="session")
def blocks(exported):
    """The blocks of PyTorch, each with its line."""
    lines = {(site["run"], site["rank"], site["site"]): (site["file"] or site["module"], site["line"], site["function"], site["is_backward"])
             for site in read_table(exported.folder, "sites")}
    blocks = [block for block in read_table(exported.folder, "allocations") if block["layer"] == "torch"]
    for block in blocks:
        block["at"] = lines[block["run"], block["rank"], block["site"]]
    return blocks


def is_kept(block, steps):
    """Returns true if the block is live when the last step begins."""
    return block["start_step"] < steps and (block["state"] == "live" or (block["end_step"] or 0) >= steps)


def live_blocks(blocks, moment):
    """Returns the blocks that were live on a GPU at a moment of table `segments`."""
    return [block for block in blocks
            if (block["run"], block["rank"], block["device"]) == (moment["run"], moment["rank"], moment["device"])
            and block["start_seq"] <= moment["seq"] and (block["state"] == "live" or block["end_seq"] and block["end_seq"] > moment["seq"])]


def torch_peaks(run):
    return [peak for peak in run.report["peak"] if peak["layer"] == "torch"]


def largest_by_line(run):
    """Returns the most bytes of each line at the peak of a GPU."""
    most = defaultdict(int)
    for peak in torch_peaks(run):
        on_gpu = defaultdict(int)
        for site in peak["sites"]:
            on_gpu[line_of(site["site"])] += site["bytes"]
        for line, size in on_gpu.items():
            most[line] = max(most[line], size)
    return most


def test_tables_of_runs_and_categories_are_those_of_the_report(exported):
    rows = {(row["run"], row["rank"]): row for row in read_table(exported.folder, "runs")}
    categories = defaultdict(set)
    for row in read_table(exported.folder, "categories"):
        categories[row["run"], row["rank"]].add((row["device"], row["category"], row["bytes"], row["blocks"]))
    assert len(rows) == sum(len(run.traces) for run in exported.runs)
    for run in exported.runs:
        for rank, expected in run.expected().items():
            row = rows[run.name, rank]
            assert {name: row[name] for name in expected["runs"]} == expected["runs"]
            assert categories[run.name, rank] == expected["categories"]
    assert any(row["leaks"] for row in rows.values()) and any(row["ooms"] for row in rows.values())


def test_runs_have_peaks_of_the_report(ask, exported):
    expected = {}
    for run in exported.runs:
        most = lambda name: max(device["peak"][name] for device in run.devices())
        expected[run.name] = (run.commit, len(run.traces), most("live_bytes"), most("reserved_bytes"), most("device_bytes"))
    rows = ask("peak_over_time")
    assert {row["run"]: (row["git_commit"], row["ranks"], row["peak_live_bytes"], row["peak_reserved_bytes"], row["peak_device_bytes"])
            for row in rows} == expected
    assert [row["run"] for row in rows] == [run.name for run in reversed(exported.runs)]
    steps = {run.name: run.report["steps"]["count"] for run in exported.runs}
    assert {row["run"]: row["steps"] for row in rows} == steps


def test_peaks_by_version_of_torch(ask, exported):
    by_torch = defaultdict(list)
    for run in exported.runs:
        info = run.report["traces"][0]
        by_torch[info["torch"], info["allocator_conf"]].append(max(device["peak"]["live_bytes"] for device in run.devices()))
    assert {(row["torch"], row["allocator_conf"]): (row["runs"], row["median_live_bytes"], row["most_live_bytes"])
            for row in ask("peak_by_torch")} == {
        key: (len(peaks), sorted(peaks)[(len(peaks) - 1) // 2], max(peaks)) for key, peaks in by_torch.items()}


def test_headroom_of_cards(ask, exported):
    by_card, unmeasured = defaultdict(list), defaultdict(int)
    for run in exported.runs:
        device = run.report["devices"][0]
        card = device["name"], device["total_bytes"]
        by_card[card].append(max(device["peak"]["device_bytes"] + (device["residual_bytes"] or 0) for device in run.devices()))
        unmeasured[card] += any(device["residual_bytes"] is None for device in run.devices())
    rows = {(row["card"], row["card_bytes"]): row for row in ask("headroom_by_card")}
    assert {key: (row["runs"], row["least_free_bytes"], row["unmeasured_runs"], row["is_upper_bound"]) for key, row in rows.items()} == {
        (name, total): (len(peaks), total - max(peaks), unmeasured[name, total], unmeasured[name, total] > 0)
        for (name, total), peaks in by_card.items()}
    # Contexts of the simulated GPU are part of what is used.
    assert any(row["most_bytes"] > max(device["peak"]["device_bytes"] for run in exported.runs for device in run.devices()
                                       if (device["name"], device["total_bytes"]) == card)
               for card, row in rows.items() if not row["is_upper_bound"])
    [full] = [row for row in rows.values() if row["full_runs"]]
    assert (full["card_bytes"], full["runs_with_ooms"]) == (2 << 30, 1)


def test_lines_at_peaks_equal_report(ask, exported):
    sums, runs = defaultdict(int), defaultdict(set)
    for run in exported.runs:
        for peak in torch_peaks(run):
            for site in peak["sites"]:
                sums[line_of(site["site"])] += site["bytes"]
                runs[line_of(site["site"])].add(run.name)
    rows = ask("peak_lines", max_rows=1000)
    assert by_line(rows, "bytes", "runs") == {line: (size, len(runs[line])) for line, size in sums.items()}
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert rows[0]["share"] == rows[0]["bytes"] / sum(sums.values())
    assert ask("peak_lines", max_rows=3) == rows[:3]


def test_categories_equal_report(ask, exported):
    sums = defaultdict(int)
    for run in exported.runs:
        for peak in torch_peaks(run):
            for share in peak["categories"]:
                sums[f"{run.name[:4]}-{run.name[4:6]}", share["category"]] += share["bytes"]
    rows = ask("category_by_month")
    assert {(row["month"], row["category"]): row["bytes"] for row in rows} == sums
    months = {row["month"] for row in rows}
    assert sum(row["share"] for row in rows) == pytest.approx(len(months))


def test_rounding_equals_report(ask, exported):
    expected = defaultdict(int)
    for run in exported.runs:
        for gap in run.report["fragmentation"]:
            if gap["at"]["why"] == "peak_reserved":
                for cause in gap["causes"]:
                    if cause["cause"] == "rounding":
                        assert sum(culprit["bytes"] for culprit in cause["culprits"]) == cause["bytes"], "the report leaves lines out"
                        for culprit in cause["culprits"]:
                            expected[line_of(culprit["site"])] += culprit["bytes"]
    rows = ask("rounding_by_line", max_rows=1000)
    assert {line: size for line, (size,) in by_line(rows, "rounding_bytes").items() if size} == expected
    newest = ask("rounding_by_line", max_rows=1000, newest_runs=1)
    assert 0 < sum(row["blocks"] for row in newest) < sum(row["blocks"] for row in rows)


def test_pinned_segments_are_recounted(ask, exported, blocks):
    expected = defaultdict(lambda: [0, 0, 0, 0])
    for segment in read_table(exported.folder, "segments"):
        if segment["moment"] == "peak_reserved" and 0 < segment["allocated_bytes"] <= 0.5 * segment["size_bytes"]:
            inside = [block for block in live_blocks(blocks, segment)
                      if segment["address"] <= block["address"] < segment["address"] + segment["size_bytes"]]
            assert len(inside) == segment["blocks"]
            for line in {block["at"] for block in inside}:
                own = [block["size_bytes"] for block in inside if block["at"] == line]
                free = segment["size_bytes"] - segment["allocated_bytes"]
                expected[line] = [a + b for a, b in zip(expected[line], [1, len(own), sum(own), free])]
    assert expected
    rows = ask("pinning_lines", max_share=0.5, max_rows=1000)
    assert by_line(rows, "segments", "blocks", "block_bytes", "free_bytes") == {line: tuple(sums) for line, sums in expected.items()}


def test_leak_equals_report(ask, exported):
    run = exported.runs[RANKS]
    [leak] = run.report["leaks"]
    [row] = ask("leaking_lines")
    assert tuple(row[name] for name in LINE) == line_of(leak["site"])
    assert (row["runs"], row["ranks"], row["most_bytes"]) == (1, 1, leak["bytes"])
    assert row["bytes_per_step"] == int(leak["bytes_per_step"])
    assert (row["first_commit"], row["first_run"], row["last_run"]) == (run.commit, run.name, run.name)
    [first] = ask("first_rank_to_leak")
    assert (first["run"], first["git_commit"], first["ranks"], first["leaking_ranks"]) == (run.name, run.commit, 2, 1)
    assert (first["first_rank"], first["first_step"]) == (1, leak["first_step"])
    assert (first["file"], first["line"], first["blocks"], first["bytes"]) == (
        leak["site"]["file"], leak["site"]["line"], leak["blocks"], leak["bytes"])


def test_slow_leaks_are_recounted(ask, exported, blocks):
    steps = exported.runs[RANKS].report["steps"]["count"]
    kept = defaultdict(list)
    for block in blocks:
        if block["run"] == exported.runs[RANKS].name and block["start_step"] > 0 and is_kept(block, steps):
            kept[block["rank"], block["at"]].append(block)
    quarter = lambda block: -(-4 * block["start_step"] // steps)
    steady = {key: found for key, found in kept.items()
              if len(found) >= 8 and {quarter(block) for block in found} == {1, 2, 3, 4}}
    [(rank, line)] = steady
    [row] = ask("slow_leaks")
    assert (rank, row["reported_ranks"]) == (1, 1) and tuple(row[name] for name in LINE) == line
    assert row["bytes_per_step"] == sum(block["size_bytes"] for block in steady[rank, line]) / (steps - 1)
    assert ask("slow_leaks", min_steps=steps + 1) == []


def test_lines_without_frees_are_recounted(ask, exported, blocks):
    assert {trace["end"] for run in exported.runs for trace in run.report["traces"]} == {"exit"}
    steps = {run.name: run.report["steps"]["count"] for run in exported.runs if run.report["steps"]["count"]}
    assert len(steps) < len(exported.runs), "no run is without steps"
    kept, freed = defaultdict(int), set()
    for block in blocks:
        if block["run"] in steps and block["start_step"] < steps[block["run"]]:
            if is_kept(block, steps[block["run"]]):
                kept[block["at"]] += block["size_bytes"]
            else:
                freed.add(block["at"])
    expected = {line: (size,) for line, size in kept.items() if line not in freed}
    assert expected and by_line(ask("never_freed", max_rows=1000), "bytes") == expected
    assert all(size for (size,) in expected.values())


def test_churn_is_recounted(ask, exported, blocks):
    steps = {run.name: run.report["steps"]["count"] for run in exported.runs}
    sums, gpus = defaultdict(lambda: [0, 0]), defaultdict(set)
    for block in blocks:
        if steps[block["run"]]:
            sums[block["at"]] = [sums[block["at"]][0] + 1, sums[block["at"]][1] + block["size_bytes"]]
            gpus[block["at"]].add((block["run"], block["rank"], block["device"]))
    expected = {line: tuple(total / sum(steps[run] for run, *_ in gpus[line]) for total in totals) for line, totals in sums.items()}
    assert by_line(ask("churn_per_step", max_rows=10_000), "blocks_per_step", "bytes_per_step") == expected


def test_findings_equal_report(ask, exported):
    found, runs = defaultdict(int), defaultdict(set)
    for run in exported.runs:
        for verdict in run.report["verdicts"]:
            # The report of several ranks also compares them; each trace's findings are its own.
            found[verdict["kind"], verdict["severity"]] += 1
            runs[verdict["kind"], verdict["severity"]].add(run.name)
    rows = ask("findings_by_kind")
    assert {(row["kind"], row["severity"]): (row["findings"], row["runs"]) for row in rows} == {
        key: (number, len(runs[key])) for key, number in found.items()}
    [oom] = [row for row in rows if row["kind"] == "oom"]
    assert oom["last_finding"] in {verdict["summary"] for verdict in exported.runs[OOM].report["verdicts"]}


def test_gaps_equal_report(ask, exported):
    expected = defaultdict(int)
    for run in exported.runs:
        setting = run.report["traces"][0]["allocator_conf"]
        for course in run.report["fragmentation_over_time"]:
            largest = max(course["points"], key=lambda point: point["gap_bytes"])
            for cause, size in largest["causes"].items():
                expected[setting, cause] += size
    rows = ask("gap_by_setting")
    assert {(row["allocator_conf"], row["cause"]): row["bytes"] for row in rows} == {key: size for key, size in expected.items() if size}
    assert sum(row["share"] for row in rows) == pytest.approx(len({row["allocator_conf"] for row in rows}))


def test_first_rank_out_of_memory_equals_report(ask, exported):
    first = min(exported.runs[OOM].report["oom"], key=lambda oom: oom["time_ns"])
    [row] = ask("first_rank_out_of_memory")
    assert (row["run"], row["failed_ranks"], row["ranks"], row["first_rank"]) == (exported.runs[OOM].name, 1, 1, 0)
    assert (row["step"], row["time_ns"], row["allocated_bytes"]) == (first["step"], first["time_ns"], first["live_bytes"])


def test_skew_of_ranks_equals_report(ask, exported):
    ranks = exported.runs[RANKS].report["ranks"]
    peaks = [row["peak_live_bytes"] for row in ranks["rows"]]
    rows = ask("rank_skew", min_excess=0)
    assert len(rows) == ranks["differs"] and (max(peaks) >= 1.05 * min(peaks)) == ranks["differs"]
    for row in rows:
        assert (row["largest_rank"], row["most_bytes"], row["least_bytes"]) == (ranks["worst"], max(peaks), min(peaks))
        assert (row["median_bytes"], row["excess"]) == (ranks["median_peak_live_bytes"], ranks["excess"])


def test_failed_and_incomplete_runs(engines, exported, tmp_path):
    archive = shutil.copytree(exported.folder, tmp_path / "archive")
    set_columns(archive, {f"run={exported.runs[OOM].name}/rank=0": {"runs": {"exit_code": 0}}})
    [caught] = engines.rows(archive, "failed_runs")
    assert (caught["cause"], caught["runs"], caught["share"], caught["last_run"]) == (
        "out_of_memory_caught", 1, 1 / 3, exported.runs[OOM].name)
    assert caught["last_finding"] == exported.runs[OOM].report["verdicts"][0]["summary"]
    assert engines.rows(archive, "incomplete_runs") == []
    golden, ranks, oom = (run.name for run in exported.runs)
    set_columns(archive, {
        f"run={golden}/rank=0": {"runs": {"ending": "running", "is_whole": False}},
        f"run={ranks}/rank=0": {"runs": {"ending": "killed", "world_size": 5}},
        f"run={ranks}/rank=1": {"runs": {"ending": "crashed", "is_complete": False, "incomplete_json": '["lost"]'}},
        f"run={oom}/rank=0": {"runs": {"ending": "killed"}},
    })
    assert {row["cause"]: (row["runs"], row["last_run"]) for row in engines.rows(archive, "failed_runs")} == {
        "out_of_memory": (1, oom), "crashed": (1, ranks), "unfinished": (1, golden)}
    found = {(row["run"], row["rank"], row["reason"], row["missing_ranks"], row["details"]) for row in engines.rows(archive, "incomplete_runs")}
    assert found == {(golden, 0, "unfinished", None, None), (golden, 0, "window", None, None), (ranks, 1, "events_missing", None, '["lost"]'),
                     (ranks, None, "ranks_missing", 3, None)}


def test_synthesized_regressions_are_those_of_its_commits(engines, synthesized):
    # scripts/benchmarks/history raises one line by 2 MiB with each fourth commit.
    [row] = engines.rows(synthesized.folder, "regressions")
    assert (row["file"], row["line"], row["function"]) == ("/work/model.py", 30, "layer2")
    assert row["function_grown_bytes"] == row["bytes"] - row["before_bytes"] == 2 << 20
