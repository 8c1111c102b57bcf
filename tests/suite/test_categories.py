"""What replay says each block of a peak is for, against what the program says: parameters(), .grad, optimizer.state."""

import bisect
import json
from collections import defaultdict

import pytest

MODELS = ["mlp", "resnet18", "transformer", "lstm", "gpt"]
OPTIMIZERS = ["sgd", "adamw", "rmsprop"]
KINDS = ["parameters", "gradients", "optimizer_state", "activations", "inputs"]
LEAST_F1 = 0.95


class Lives:
    """When each block came and went, in events of the allocator on its device: from the events, not from the report."""

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
        """The birth of the block that was there after so many events."""
        lives = self.lives[device, addr]
        index = bisect.bisect_right(lives, at, key=lambda life: life[0]) - 1
        assert index >= 0 and lives[index][1] > at, f"nothing at {addr:#x} after {at} events of device {device}"
        return lives[index][0]


def truth_of(run, lives):
    """The kind of each block that has one, by device, address and birth."""
    said = json.loads((run.folder / "truth.json").read_text())
    kinds = {}
    for device, addr, at, kind in said["truth"]:
        kinds.setdefault((device, addr, lives.block_at(device, addr, at)), kind)
    # What a forward pass leaves behind it and is nothing else; what never goes (workspaces) is no part of it.
    for device, begin, end in said["passes"]:
        for (of, addr), all_lives in lives.lives.items():
            for born, died, _ in all_lives if of == device else ():
                if begin < born <= end < died < float("inf"):
                    kinds.setdefault((device, addr, born), "activations")
    return kinds


def scores(peak, kinds):
    """Byte-weighted F1 of each kind, and the share of bytes about which both say the same."""
    hits, said, true, agree = defaultdict(int), defaultdict(int), defaultdict(int), 0
    for block in peak["blocks"]:
        kind = kinds.get((peak["device"], block["addr"], block["born"]), "other")
        category = block["category"] if block["category"] in KINDS else "other"
        said[category] += block["bytes"]
        true[kind] += block["bytes"]
        if kind == category:
            hits[kind] += block["bytes"]
            agree += block["bytes"]
    f1 = {kind: 2 * hits[kind] / (said[kind] + true[kind]) if said[kind] + true[kind] else None for kind in KINDS}
    return f1, agree / peak["live_bytes"], true


def check_sums(peak):
    blocks = peak["blocks"]
    assert sum(block["bytes"] for block in blocks) == peak["live_bytes"]
    by_category, by_site = defaultdict(int), defaultdict(lambda: defaultdict(int))
    for block in blocks:
        by_category[block["category"]] += block["bytes"]
        by_site[block["site"]][block["category"]] += block["bytes"]
    assert {share["category"]: share["bytes"] for share in peak["categories"]} == by_category
    for share in peak["categories"]:
        assert sum(rule["bytes"] for rule in share["rules"]) == share["bytes"]
        assert (share["confidence"] is None) == (share["category"] == "unknown")
    sites = {site["site"]["id"]: {part["category"]: part["bytes"] for part in site["categories"]} for site in peak["sites"]}
    assert sites == by_site


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_blocks_are_what_the_program_says(run_python, torch_version, model, optimizer):
    run = run_python(torch_version, "categories.py", model, optimizer, "--truth", "truth.json", SIMGPU_DEVICES=2, SIMGPU_CC="8.0")
    report = run.report("--peak", "--blocks")
    kinds = truth_of(run, Lives(run.events()))
    assert len(report["peak"]) == 2
    for peak in report["peak"]:
        check_sums(peak)
        f1, agreement, true = scores(peak, kinds)
        print(peak["device"], {kind: score and round(score, 4) for kind, score in f1.items()}, round(agreement, 4), dict(true))
        # Of what is there at all. The peak beside the optimizer's step has all that lasts, the other one what the passes need.
        there = ["parameters", "gradients", "optimizer_state"] if peak["device"] == 1 else ["parameters", "activations", "inputs"]
        assert all(true[kind] > 0 for kind in there)
        assert all(score is None or score >= LEAST_F1 for score in f1.values()), (peak["device"], f1)
        assert agreement >= LEAST_F1
