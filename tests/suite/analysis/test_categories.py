"""Categories of blocks at the peak, compared with parameters(), .grad and optimizer.state."""

import bisect
import json
from collections import defaultdict

import pytest

from conftest import REPOSITORY, gpumemtrace

MODELS = ["mlp", "resnet18", "transformer", "lstm", "gpt"]
OPTIMIZERS = ["sgd", "adamw", "rmsprop"]
KINDS = ["parameters", "gradients", "optimizer_state", "activations", "inputs"]
LEAST_F1 = 0.95


class Lives:
    """Lifetimes of blocks, in allocator events per device, computed from the events alone."""

    def __init__(self, events):
        self.lives = defaultdict(list)
        counts, open_at = defaultdict(int), {}
        for event in events:
            if event["kind"] not in ("block_alloc", "block_free"):
                continue
            device, addr = int(event["dev"]), event["addr"]
            counts[device] += 1
            if event["kind"] == "block_alloc":
                open_at[device, addr] = len(self.lives[device, addr])
                self.lives[device, addr].append([counts[device], float("inf"), event["size"]])
            else:
                self.lives[device, addr][open_at.pop((device, addr))][1] = counts[device]

    def block_at(self, device, addr, at):
        """Returns when the block that was live at `addr` after `at` events was allocated."""
        lives = self.lives[device, addr]
        index = bisect.bisect_right(lives, at, key=lambda life: life[0]) - 1
        assert index >= 0 and lives[index][1] > at, f"nothing at {addr:#x} after {at} events of device {device}"
        return lives[index][0]


def truth_of(run, lives):
    """Returns the category of each known block, by device, address and allocation."""
    reported = json.loads((run.folder / "truth.json").read_text())
    kinds = {}
    for device, addr, at, kind in reported["truth"]:
        kinds.setdefault((device, addr, lives.block_at(device, addr, at)), kind)
    # Activations: left by a forward pass, in no other category, and no lasting workspace.
    for device, begin, end in reported["passes"]:
        for (of, addr), all_lives in lives.lives.items():
            for allocated, freed, _ in all_lives if of == device else ():
                if begin < allocated <= end < freed < float("inf"):
                    kinds.setdefault((device, addr, allocated), "activations")
    return kinds


def scores(peak, kinds):
    """Returns each category's F1, weighted by bytes, and the share of bytes with equal category."""
    hits, reported, true, agree = defaultdict(int), defaultdict(int), defaultdict(int), 0
    for block in peak["blocks"]:
        kind = kinds.get((peak["device"], block["addr"], block["allocated_at_event"]), "other")
        category = block["category"] if block["category"] in KINDS else "other"
        reported[category] += block["bytes"]
        true[kind] += block["bytes"]
        if kind == category:
            hits[kind] += block["bytes"]
            agree += block["bytes"]
    f1 = {kind: 2 * hits[kind] / (reported[kind] + true[kind]) if reported[kind] + true[kind] else None for kind in KINDS}
    return f1, agree / peak["live_bytes"], true


def check_sums(peak):
    blocks = peak["blocks"]
    assert sum(block["bytes"] for block in blocks) == peak["live_bytes"]
    by_category, by_pass, by_site = defaultdict(int), defaultdict(int), defaultdict(lambda: defaultdict(int))
    for block in blocks:
        by_pass[block["pass"]] += block["bytes"]
        by_category[block["category"]] += block["bytes"]
        by_site[block["site"]][block["category"]] += block["bytes"]
    assert {share["category"]: share["bytes"] for share in peak["categories"]} == by_category
    assert {share["pass"]: share["bytes"] for share in peak["passes"]} == by_pass
    for share in peak["categories"]:
        assert sum(rule["bytes"] for rule in share["rules"]) == share["bytes"]
        assert (share["confidence"] is None) == (share["category"] == "unknown")
    sites = {site["site"]["id"]: {part["category"]: part["bytes"] for part in site["categories"]} for site in peak["sites"]}
    assert sites == by_site


# Optimizers with state made at construction, and with state smaller than the parameters.
OTHERS = [("mlp", "adagrad"), ("gpt", "adafactor")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model,optimizer", [(model, optimizer) for model in MODELS for optimizer in OPTIMIZERS] + OTHERS)
def test_categories_match_the_program(run_python, torch_version, model, optimizer):
    run = run_python(torch_version, "training/block_categories.py", model, optimizer, "--truth", "truth.json", SIMGPU_DEVICES=2, SIMGPU_CC="8.0")
    report = run.report("--peak", "--blocks")
    kinds = truth_of(run, Lives(run.events()))
    assert len(report["peak"]) == 2
    for peak in report["peak"]:
        check_sums(peak)
        f1, agreement, true = scores(peak, kinds)
        print(peak["device"], {kind: score and round(score, 4) for kind, score in f1.items()}, round(agreement, 4), dict(true))
        # Categories at this peak: lasting memory beside optimizer.step(), else memory of passes.
        there = ["parameters", "gradients", "optimizer_state"] if peak["device"] == 1 else ["parameters", "activations", "inputs"]
        assert all(true[kind] > 0 for kind in there)
        assert all(score is None or score >= LEAST_F1 for score in f1.values()), (peak["device"], f1)
        assert agreement >= LEAST_F1


def said_of(run):
    """Returns the first device's peak, its categories, and those of tensors in the truth file."""
    peak = run.report("--peak", "--blocks")["peak"][0]
    check_sums(peak)
    by_addr = {block["addr"]: block for block in peak["blocks"]}
    reported = defaultdict(lambda: defaultdict(int))
    for kind, addr, size in json.loads((run.folder / "truth.json").read_text()):
        block = by_addr[addr]
        assert (block["requested_bytes"], block["bytes"] % 512) == (size, 0)
        reported[kind][block["category"], block["confidence"]] += 1
    return peak, {share["category"]: share for share in peak["categories"]}, {kind: dict(told) for kind, told in reported.items()}


def test_inference_has_no_activations(run_python, torch_version):
    run = run_python(torch_version, "training/atypical_peaks.py", "serve", "--truth", "truth.json", SIMGPU_CC="8.0")
    _, categories, reported = said_of(run)
    assert reported == {"parameters": {("parameters", "high"): 14}}
    assert not {"activations", "gradients", "optimizer_state"} & set(categories)
    assert categories["temporaries"]["bytes"] > 0


def test_parameters_without_module_match_gradient_sizes(run_python, torch_version):
    run = run_python(torch_version, "training/atypical_peaks.py", "functional", "--truth", "truth.json", SIMGPU_CC="8.0")
    _, categories, reported = said_of(run)
    assert reported == {"parameters": {("parameters", "medium"): 2}, "dataset": {("unknown", None): 1}}
    assert [categories[name]["bytes"] for name in ("gradients", "optimizer_state")] == [(256 + 300) * 512 * 4, (256 + 300) * 512 * 8]


def test_model_copy_is_parameters_and_value_copy_is_unknown(run_python, torch_version):
    run = run_python(torch_version, "training/atypical_peaks.py", "average", "--truth", "truth.json", SIMGPU_CC="8.0")
    _, _, reported = said_of(run)
    assert reported == {"parameters": {("parameters", "high"): 14}, "copies": {("parameters", "high"): 14}, "values": {("unknown", None): 14}}


def test_killed_forward_pass_lowers_confidence(run_python, torch_version):
    run = run_python(torch_version, "training/atypical_peaks.py", "stopped", "--truth", "truth.json", SIMGPU_CC="8.0", check=False)
    assert run.process.returncode == -9
    peak, categories, reported = said_of(run)
    assert reported == {"parameters": {("parameters", "high"): 14}}
    assert peak["step"] == 6 and peak["since_previous_step"]["step"] == 5
    # Each pair of layers keeps 2,048 rows of 256 floats; five pairs had begun.
    assert categories["activations"]["bytes"] >= 5 * 2048 * 256 * 4
    assert categories["activations"]["confidence"] == "medium"
    risen = peak["since_previous_step"]["changes"][0]
    assert risen["category"] == "activations" and risen["rise_bytes"] > 4 * 2048 * 256 * 4


def test_recomputed_activations_are_activations(run_python, torch_version):
    run = run_python(torch_version, "training/atypical_peaks.py", "checkpoint", "--truth", "truth.json", SIMGPU_CC="8.0")
    _, categories, reported = said_of(run)
    assert reported == {"parameters": {("parameters", "high"): 14}}
    # At the peak one of three parts is recomputed: four layers; each pair keeps one output.
    assert categories["activations"]["bytes"] >= 2 * 2048 * 256 * 4
    assert categories["activations"]["confidence"] == "high"


def test_no_categories_without_python_stacks(run_python, torch_version):
    run = run_python(torch_version, "training/train.py", "--steps", 4, GPUMEMTRACE_STACKS="native", SIMGPU_CC="8.0")
    peak = run.report("--peak", "--blocks")["peak"][0]
    check_sums(peak)
    assert {share["category"] for share in peak["categories"]} <= {"unknown", "workspaces"}
    assert all(block["bytes"] == 8519680 for block in peak["blocks"] if block["category"] == "workspaces")


def test_peak_by_phase(run_python, torch_version):
    run = run_python(torch_version, "training/steps.py", "phases", "--phases", "phases.json")
    peak = run.report("--peak")["peak"][0]
    parts = {part["phase"]: part["bytes"] for part in peak["phases"]}
    assert sum(parts.values()) == peak["live_bytes"]
    assert parts["train"] > 0 and parts[None] >= sum(share["bytes"] for share in peak["categories"] if share["category"] == "parameters")
    for site in peak["sites"]:
        assert sum(part["bytes"] for part in site["phases"]) == site["bytes"]


def test_text_shows_categories(run_python, torch_version):
    run = run_python(torch_version, "training/train.py", "--steps", 4)
    text = gpumemtrace("replay", run.trace, "--peak", "--blocks")
    for words in ("By category:", "parameters and buffers, confidence high", "Change since the previous step: ", "All blocks"):
        assert words in text
    gpumemtrace("replay", run.trace, "--blocks", code=2)


def test_leaked_activations_of_workspace_size_are_not_workspaces(run_python, torch_version):
    """Each is as large as PyTorch's cuBLAS workspace on Hopper; a thread has one workspace only."""
    train = REPOSITORY / "scripts" / "leaklab" / "train.py"
    run = run_python(torch_version, train, "retained_validation", "--steps", "6", "--batch", "128")
    [peak] = run.report("--peak")["peak"]
    of = {share["category"]: share["bytes"] for share in peak["categories"]}
    assert of["retained"] > 0.5 * peak["live_bytes"]
    assert of.get("workspaces", 0) <= 64 << 20
