"""Compares runs of real PyTorch: equal programs do not differ; an extra tensor is found."""

import json
import subprocess
from pathlib import Path

import pytest

import rotation_runs
from conftest import DRIVER, REPOSITORY, VENVS, WORKLOADS, Run, environment, gpumemtrace, run_program, sentences

DEMO = REPOSITORY / "scripts" / "demo_train.py"
KEPT = WORKLOADS / "training/reproducible.py"
MIB = 1 << 20


def line_of(script, comment):
    return next(number for number, line in enumerate(script.read_text().splitlines(), 1) if line.endswith(comment))


def compare(before, after, *flags, code=0):
    return json.loads(gpumemtrace("compare", before.trace, after.trace, "--json", *flags, code=code))


def assert_same(before, after):
    """Checks that JSON and text report no difference."""
    text = gpumemtrace("compare", before.trace, after.trace, "--fail-on", "any")
    assert "No difference" in text, text
    comparison = compare(before, after)
    assert not comparison["differs"]
    assert [comparison[name] for name in ("totals", "lines", "leaks", "ooms")] == [[], [], [], []]


@pytest.mark.parametrize("arguments", [
    [DEMO, "--steps", 12, "--batch", 8],
    ["training/train.py", "--model", "transformer", "--steps", 10, "--amp"],
    ["training/train.py", "--model", "resnet18", "--steps", 6, "--optimizer", "sgd", "--leak", "hook"],
], ids=["demo", "transformer", "resnet18"])
def test_same_program_twice_does_not_differ(run_python, torch_version, arguments):
    runs = [run_python(torch_version, *arguments, name=name) for name in ("one", "two")]
    assert_same(*runs)
    assert_same(runs[0], runs[0])


def test_extra_tensor_is_found_at_its_line_to_the_byte(run_python, torch_version):
    runs = [run_python(torch_version, "training/reproducible.py", "--keep", keep, "--stats", "stats.json", name=name)
            for name, keep in (("without", 0), ("with", MIB))]
    printed = [json.loads((run.folder / "stats.json").read_text()) for run in runs]
    more = [after - before for before, after in zip(*printed)]
    assert more[1] == MIB
    comparison = compare(*runs, "--fail-on", "growth", code=3)
    [line] = comparison["lines"]
    site = line["after"]
    assert (line["status"], line["before"]) == ("appeared", None)
    assert (site["file"], site["line"], site["function"]) == (str(KEPT), line_of(KEPT, "# the one more"), "train")
    assert (line["at_peak_bytes"]["change"], line["at_peak_blocks"]["change"]) == (more[0], 1)
    assert line["retained_bytes"]["change"] == more[1]
    assert line["steps_that_differ"] == 1
    totals = {total["name"]: total for total in comparison["totals"]}
    peak = totals["peak_live_bytes"]
    assert (peak["before"], peak["after"]) == (printed[0][0], printed[1][0])
    retained = totals["retained_bytes"]
    assert retained["change"] == MIB
    assert comparison["leaks"] == []
    # In the other direction the tensor disappears.
    back = compare(runs[1], runs[0], "--fail-on", "growth")
    assert [(line["status"], line["retained_bytes"]["change"]) for line in back["lines"]] == [("disappeared", -MIB)]


def test_moved_lines_in_other_checkout_do_not_differ(run_python, torch_version, tmp_path):
    here = run_python(torch_version, "training/reproducible.py", "--keep", MIB)
    copy = tmp_path / "another" / "checkout"
    copy.mkdir(parents=True)
    lines = KEPT.read_text().splitlines()
    # Insert lines at the top, above a function, and between lines that allocate.
    for at in sorted((lines.index("kept = []"), lines.index("def train():"), lines.index("    loss.backward()"), 0), reverse=True):
        indent = " " * (len(lines[at]) - len(lines[at].lstrip()))
        lines[at:at] = [f"{indent}# A comment."] * 3
    (copy / "reproducible.py").write_text("\n".join(lines) + "\n")
    there = run_python(torch_version, copy / "reproducible.py", "--keep", MIB, name="there")
    assert_same(here, there)
    # An inserted line that allocates is the only new one.
    text = (copy / "reproducible.py").read_text().replace("    optimizer.zero_grad()\n",
                                                  "    noise = torch.randn(300, 256, device=device)\n    optimizer.zero_grad()\n")
    (copy / "reproducible.py").write_text(text)
    more = run_python(torch_version, copy / "reproducible.py", "--keep", MIB, name="more")
    # It may move others in and out of the peak, but bytes per step are its own.
    changed = [line for line in compare(here, more)["lines"] if line["bytes_per_step"]["change"] or line["retained_bytes"]["change"]]
    [line] = changed
    assert (line["status"], line["after"]["function"]) == ("appeared", "step")
    assert line["after"]["line"] == text.splitlines().index("    noise = torch.randn(300, 256, device=device)") + 1
    assert line["bytes_per_step"]["change"] == 300 * 256 * 4


def test_runs_of_unequal_length_are_compared_per_step(run_python, torch_version):
    short, long = (run_python(torch_version, "training/reproducible.py", "--steps", steps, name=f"steps{steps}") for steps in (10, 25))
    comparison = compare(short, long)
    assert [total["name"] for total in comparison["totals"]] == ["steps"]
    assert comparison["lines"] == [] and comparison["leaks"] == []
    gpumemtrace("compare", short.trace, long.trace, "--fail-on", "growth")


def test_appeared_and_disappeared_leaks_are_reported(run_python, torch_version):
    leaky, mended = (run_python(torch_version, DEMO, "--steps", 12, "--batch", 8, *options, name=name)
                     for name, options in (("leaky", []), ("mended", ["--fixed"])))
    comparison = compare(mended, leaky, "--fail-on", "leaks", code=3)
    [leak] = comparison["leaks"]
    line = next(number for number, text in enumerate(DEMO.read_text().splitlines(), 1) if "features.append(" in text)
    assert (leak["status"], leak["after"]["site"]["line"]) == ("appeared", line)
    assert leak["after"]["bytes_per_step"] == 8 * 512 * 4 * 4 * 4
    [gone] = compare(leaky, mended, "--fail-on", "growth")["leaks"]
    assert gone["status"] == "disappeared"


def test_rotated_trace_equals_single_file(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, more in ((whole, {}), (parts, {"GPUMEMTRACE_ROTATE": "16KiB"})):
        folder.mkdir()
        rotation_runs.run(folder, **more)
    assert len(rotation_runs.parts(parts)) >= 2
    # The program has driver memory only; its loop gives the steps.
    text = sentences(gpumemtrace("compare", whole / "run.trace", parts / "run.trace", "--fail-on", "any"))
    assert "No difference" in text and "detected from repeating allocations" in text


NATIVE = """
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
static int (*allocate)(uint64_t *, size_t);
static uint64_t kept[8];
%(above)s
__attribute__((noinline)) void weights(void) {
    allocate(&kept[0], 3 << 20);
%(between)s
    allocate(&kept[1], 1 << 20);
}
__attribute__((noinline)) void cache(void) { allocate(&kept[2], 2 << 20); }
int main(int count, char **arguments) {
    void *driver = dlopen(arguments[1], RTLD_NOW);
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(driver, "cuCtxSetCurrent");
    void *context;
    ((int (*)(unsigned))dlsym(driver, "cuInit"))(0);
    retain(&context, 0);
    set(context);
    allocate = dlsym(driver, "cuMemAlloc_v2");
    weights();
    cache();
    return 0;
}
"""


@pytest.mark.parametrize("symbols", ["-g", "-s"], ids=["named", "stripped"])
def test_native_program_is_compared_by_function(tmp_path, symbols):
    above = "__attribute__((used)) int more(int n) { int sum = 0; for (int i = 0; i < n; i++) sum += i * i; return sum; }"
    extra = "    allocate(&kept[3], 1 << 19);"
    runs = []
    for name, parts in (("before", ("", "")), ("moved", (above, "")), ("more", (above, extra))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "program.c").write_text(NATIVE % dict(zip(("above", "between"), parts)))
        subprocess.run(["cc", "-O1", "-Wl,--build-id", symbols, "-o", "program", "program.c", "-ldl"], cwd=folder, check=True)
        driver = folder / "libcuda.so.1"
        driver.symlink_to(DRIVER)
        subprocess.run([folder / "program", driver], cwd=folder, env=environment(folder), check=True)
        runs.append(Run(None, folder))
    before, moved, more = runs
    assert_same(before, moved)
    [line] = compare(before, more)["lines"]
    assert (line["status"], line["at_peak_bytes"]["change"]) == ("appeared", 1 << 19)
    if symbols == "-g":
        text = (more.folder / "program.c").read_text().splitlines()
        assert (line["after"]["function"], line["after"]["line"]) == ("weights", text.index(extra) + 1)


def test_a_gpu_that_one_run_did_not_use_has_no_bytes_there(tmp_path, torch_version):
    script = tmp_path / "train.py"
    script.write_text("import sys\nimport torch\nkept = torch.ones(1 << 20, device=f'cuda:{sys.argv[1]}')\n")
    traces = []
    for device in ("0", "1"):
        folder = tmp_path / device
        folder.mkdir()
        done = run_program([Path(VENVS[torch_version]) / "bin" / "python", script, device], folder,
                           env=environment(folder, SIMGPU_DEVICES=2))
        assert done.returncode == 0, done.stderr
        traces.append(folder / "run.trace")
    totals = json.loads(gpumemtrace("compare", *traces, "--json"))["totals"]
    peaks = {row["device"]: (row["before"], row["after"]) for row in totals if row["name"] == "peak_live_bytes"}
    assert peaks == {0: (4 << 20, 0), 1: (0, 4 << 20)}
    assert all(None not in (row["before"], row["after"]) for row in totals), totals
