"""Labels, ranges and forward frames in PyTorch's snapshots, against the snapshot's own events."""

import json
import pickle
import re
from collections import Counter

import pytest
import snapshot_oracle
from conftest import REPOSITORY, gpumemtrace

#: What a label means, in words of PyTorch's profiler, of labels.py and of the report.
MEANINGS = {
    "parameter": "parameters", "parameters": "parameters", "gradient": "gradients", "optimizer_state": "optimizer_state",
    "activation": "activations", "temporary": "temporaries", "input": "inputs",
}


@pytest.fixture(params=[False, True], ids=["plain", "anomaly"])
def labelled(request, run_python, torch_version):
    """The files of a training that labels its blocks: of its history, and of PyTorch's profiler."""
    flags = ["--anomaly"] if request.param else []
    run = run_python(torch_version, "snapshots/labels.py", "own.pickle", "profiled.pickle", *flags, traced=False)
    return run.folder / "own.pickle", run.folder / "profiled.pickle"


def replay(path, *flags):
    return json.loads(gpumemtrace("replay", path, "--peak", "--blocks", *flags, "--json", code=None))


def expected_pairs(peak, history):
    """Bytes by the label in the snapshot and the category of the block in the report."""
    pairs = Counter()
    for block in peak["blocks"]:
        theirs = history.peak_blocks[block["addr"]]
        assert theirs.size == block["bytes"]
        # The command ends a text at 200 bytes.
        pairs[theirs.label and theirs.label[:200], block["category"]] += block["bytes"]
    assert len(peak["blocks"]) == len(history.peak_blocks)
    return pairs


def assert_labels_equal(peak, history):
    pairs, labels = expected_pairs(peak, history), peak["labels"]
    assert {(row["label"], row["category"]): row["bytes"] for row in labels["pairs"]} == pairs
    assert [row["bytes"] for row in labels["pairs"]] == sorted(pairs.values(), reverse=True)
    named = {(label, category): size for (label, category), size in pairs.items() if label in MEANINGS and category != "unknown"}
    agreeing = sum(size for (label, category), size in named.items() if MEANINGS[label] == category)
    assert labels["labelled_bytes"] == sum(size for (label, _), size in pairs.items() if label)
    assert (labels["compared_bytes"], labels["agreeing_bytes"]) == (sum(named.values()), agreeing)
    assert labels["agreeing_share"] == (pytest.approx(agreeing / sum(named.values())) if named else None)
    differing = Counter()
    for row in labels["differences"]:
        differing[row["label"], row["category"]] += row["bytes"]
    assert differing == {pair: size for pair, size in named.items() if MEANINGS[pair[0]] != pair[1]}
    for row in labels["pairs"]:
        assert row["label_category"] == MEANINGS.get(row["label"])
        known = (row["label"], row["category"]) in named
        assert row["agrees"] == (MEANINGS[row["label"]] == row["category"] if known else None)


def test_labels_of_blocks_at_the_peak(labelled, torch_version):
    path, _ = labelled
    [history] = snapshot_oracle.devices(snapshot_oracle.load(path)).values()
    assert not history.mismatches
    [peak] = replay(path)["peak"]
    text = gpumemtrace("replay", path, "--peak")
    if torch_version == "2.9.1":
        assert not any(block.label for block in history.peak_blocks.values()), "this version has no labels"
        assert "labels" not in peak and "label in the file" not in text
        return
    assert_labels_equal(peak, history)
    by_label = {row["label"]: row["bytes"] for row in peak["labels"]["pairs"]}
    assert by_label["temporary"] == 3 << 20, "the block that is labelled wrongly"
    assert peak["labels"]["agreeing_share"] > 0.5
    assert {"parameters", "optimizer_state", "input", None} <= set(by_label)
    assert "By label in the file" in text and "parameters: parameters and buffers" in text
    assert "\x1b" not in text and "cache \\u{1b}[31mof\\nkeys: unknown" in text
    [share] = re.findall(r"and >?<?(\d+)% of that agrees", text)
    assert abs(int(share) - 100 * peak["labels"]["agreeing_share"]) <= 1


def test_categories_of_pytorchs_profiler(labelled):
    """`category` is what PyTorch's own analysis of the run found."""
    _, path = labelled
    history = snapshot_oracle.devices(snapshot_oracle.load(path))[0]
    peak = next(peak for peak in replay(path)["peak"] if peak["device"] == 0)
    assert_labels_equal(peak, history)
    labels = {row["label"] for row in peak["labels"]["pairs"]}
    assert {"parameter", "optimizer_state"} <= labels
    assert all((row["site"]["file"] or "labels.py").endswith("labels.py") for row in peak["sites"]), "names of calls are frames"


def test_page_of_pytorchs_profiler_is_read_like_its_snapshot(labelled):
    _, path = labelled
    page = path.with_name(path.name + ".html")
    [theirs], [ours] = (replay(one)["traces"] for one in (page, path))
    assert theirs | {"path": None} == ours | {"path": None}
    assert replay(page)["peak"] == replay(path)["peak"]


def test_forward_lines_of_backward_allocations(labelled, torch_version, request):
    path, _ = labelled
    [history] = snapshot_oracle.devices(snapshot_oracle.load(path)).values()
    [peak] = replay(path)["peak"]
    reported, expected = Counter(), Counter()
    for row in peak["sites"]:
        if row["site"].get("is_backward", False):
            reported[row["site"]["file"], row["site"]["line"]] += row["bytes"]
    for block in history.peak_blocks.values():
        line = next((frame for frame in block.forward if "site-packages" not in frame[0]), None)
        if line and not any(frame[0].endswith(".py") for frame in block.frames or ()):
            expected[line[0], line[1]] += block.size
    assert reported == expected
    has_frames = torch_version == "2.15.0" and "anomaly" in request.node.callspec.id
    assert bool(expected) == has_frames


def test_annotations_are_phases(labelled):
    path, _ = labelled
    snapshot = pickle.loads(path.read_bytes())
    begun = Counter(row["name"] for row in snapshot["external_annotations"] if row["stage"] == "START")
    phases = {phase["name"]: phase["count"] for phase in replay(path, "--timeline")["phases"]}
    assert begun["training step"] == 5 and phases == begun


def test_snapshots_without_labels_say_nothing():
    path = REPOSITORY / "tests" / "golden" / "snapshots" / "torch-2.5.1-pools.pickle.gz"
    assert all("labels" not in peak for peak in replay(path)["peak"])
    assert "By label" not in gpumemtrace("replay", path, "--peak", code=None)


def test_backward_links_of_our_export_are_read_back(run_python, torch_version, tmp_path):
    run = run_python(torch_version, "training/train.py")
    exported = tmp_path / "exported.pickle"
    gpumemtrace("export", "torch-snapshot", run.trace, "-o", exported)
    direct, back = run.report("--peak"), replay(exported)
    sites = []
    for report in (direct, back):
        rows = [(row["site"], row["bytes"]) for row in report["peak"][0]["sites"]]
        sites.append({(site["file"], site["line"], site.get("is_backward", False)): size for site, size in rows})
    assert sites[0] == sites[1]
    assert any(is_backward for _, _, is_backward in sites[0]), "autograd allocated at the peak"
    assert back["steps"]["count"] == direct["steps"]["count"]
