"""Heap profiles, as `go tool pprof` reads them."""

import gzip
import re
import shutil
from collections import Counter

import pytest

from readers import run_reader, skip_or_fail
from stack_exports import Recount, deepest_user_lines, peak_lines
from stack_exports import stack_run  # noqa: F401 (fixture)

TYPES = ["alloc_objects/count", "alloc_space/bytes", "inuse_objects/count", "inuse_space/bytes[dflt]", "peak_space/bytes"]


def pprof(*arguments):
    """Runs `go tool pprof` and returns its output."""
    go = shutil.which("go") or skip_or_fail("go is not installed (Debian's package golang-go)")
    return run_reader([go, "tool", "pprof", *arguments]).stdout


class RawProfile:
    """What `pprof -raw` prints."""

    def __init__(self, path):
        lines = pprof("-raw", path).splitlines()
        begin = lines.index("Samples:")
        assert lines[begin + 1].split() == TYPES
        locations = lines.index("Locations")
        self.samples = []
        for line in lines[begin + 2 : locations]:
            if sample := re.fullmatch(r"\s*([\d ]+): ([\d ]+)", line):
                values = dict(zip([name.split("/")[0] for name in TYPES], map(int, sample[1].split())))
                self.samples.append((values, list(map(int, sample[2].split())), {}))
            else:
                self.samples[-1][2].update(re.findall(r"(\w+):\[(.*?)\]", line))
        #: File and line by number of the location; a line is the last number before `s=`.
        self.places = {}
        for line in lines[locations + 1 : lines.index("Mappings")]:
            if place := re.fullmatch(r"\s*(\d+): 0x0 M=\d+ (.*?) (\S*):(\d+):?\d* s=\d+.*", line):
                self.places[int(place[1])] = (place[3], int(place[4]))

    def sums(self, **labels):
        """Returns the sums of the samples with these labels."""
        sums = Counter()
        for values, _, found in self.samples:
            if labels.items() <= found.items():
                sums.update(values)
        return sums


@pytest.mark.parametrize("name", ["leak", "oom", "hostile", "ranks"])
def test_values_are_those_of_the_report(stack_run, name):
    run = stack_run(name)
    profile = RawProfile(run.export("pprof"))
    for rank, totals in enumerate(run.totals):
        labels = {"rank": f"rank{rank}"} if name == "ranks" else {}
        sums = profile.sums(device="gpu0", **labels)
        assert sums["peak_space"] == totals["peak"][0]
        assert sums["inuse_space"] == totals["end"][0]
        assert (sums["alloc_space"], sums["alloc_objects"]) == totals["allocated"]


def test_lines_hold_at_the_peak_what_the_report_says(stack_run):
    run = stack_run("leak")
    profile = RawProfile(run.export("pprof"))
    stacks = [([profile.places.get(location, (None, None)) for location in reversed(locations)], values["peak_space"])
              for values, locations, _ in profile.samples]
    assert +deepest_user_lines(stacks) == peak_lines(run.report)


def test_categories_are_those_of_the_peak(stack_run):
    run = stack_run("leak")
    profile = RawProfile(run.export("pprof"))
    categories = {row["category"]: row["bytes"] for row in run.report["peak"][0]["categories"] if row["bytes"]}
    assert {name: profile.sums(category=name)["peak_space"] for name in categories} == categories
    labelled = sum(categories.values())
    assert labelled == profile.sums()["peak_space"], "a block of the peak has no category"


def test_windows_hold_what_a_recount_of_the_dump_holds(stack_run):
    run = stack_run("leak")
    events = Recount(run.traces[0], run.report)
    begin_ns, end_ns = events.time_at(0.4), events.time_at(0.8)
    expected = events.window(begin_ns, end_ns)
    sums = RawProfile(run.export("pprof", "--since", f"{begin_ns}ns", "--until", f"{end_ns}ns")).sums()
    assert {"peak": sums["peak_space"], "end": sums["inuse_space"], "allocated": sums["alloc_space"]} == expected


def test_pprof_summarizes_filters_and_compares(stack_run, tmp_path):
    run = stack_run("leak")
    whole = tmp_path / "whole.pb.gz"
    shutil.copy(run.export("pprof"), whole)
    top = pprof("-top", "-unit=B", whole)
    assert "Type: inuse_space" in top and f"{run.total('end')}B total" in top
    assert re.search(r"^\s*[\d.]+B?.* keep_features$", top, re.MULTILINE), top
    assert re.search(r" <module>$", top, re.MULTILINE), "a name was demangled"
    categories = {row["category"]: row["bytes"] for row in run.report["peak"][0]["categories"]}
    for category in ["parameters", "optimizer_state"]:
        found = pprof("-top", "-unit=B", "-sample_index=peak_space", f"-tagfocus=category={category}", whole)
        shown = re.search(r"accounting for (\d+)B", found)[1]
        assert int(shown) == categories[category], found
    none = pprof("-top", "-unit=B", f"-diff_base={whole}", whole)
    assert "Showing nodes accounting for 0," in none, none
    half = run.export("pprof", "--until", "step:15")
    more = pprof("-top", "-unit=B", f"-diff_base={half}", whole)
    assert re.search(r"accounting for (\d+)B", more), more
    grown = RawProfile(whole).sums()["inuse_space"] - RawProfile(half).sums()["inuse_space"]
    assert int(re.search(r"accounting for (-?\d+)B", more)[1]) == grown > 0


def test_value_is_the_type_that_is_shown_first(stack_run):
    run = stack_run("leak")
    for value, name in [("peak", "peak_space"), ("end", "inuse_space"), ("allocated", "alloc_space")]:
        assert f"Type: {name}\n" in pprof("-top", run.export("pprof", "--weight", value))


def test_hostile_names_arrive(stack_run):
    raw = pprof("-raw", stack_run("hostile").export("pprof"))
    for name in ["</script><script>window.hostile=1</script>", "__proto__", "&lt;b&gt;&amp; ${window.hostile=1}"]:
        assert name in raw


def test_equal_traces_give_equal_files(stack_run):
    run = stack_run("hostile")
    first = run.export("pprof").read_bytes()
    assert run.export("pprof").read_bytes() == first
    # Time in the header of gzip.
    assert first[4:8] == bytes(4) and gzip.decompress(first)
