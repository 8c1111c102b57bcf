"""Snapshots of Windows, AMD and Intel GPUs and Ascend NPUs: the report of the same run elsewhere."""

import copy
import json
import pickle
import re

import pytest

from conftest import gpumemtrace, sentences
from snapshot_reports import GOLDEN, contents, run_command

MIB = 1 << 20
SNAPSHOTS = ["torch-2.7.1-oom.pickle.gz", "torch-2.3.1-training.pickle.gz", "torch-2.12.0-training-late.pickle.gz"]


def every_frame(snapshot):
    """Each dictionary of a frame once: a pickle shares them."""
    frames = {}
    for segment in snapshot["segments"]:
        for holder in [segment, *segment["blocks"]]:
            frames |= {id(frame): frame for frame in holder.get("frames", [])}
    for trace in snapshot["device_traces"]:
        for event in trace:
            frames |= {id(frame): frame for frame in event.get("frames", [])}
    return list(frames.values())


def moved(snapshot, change):
    snapshot = copy.deepcopy(snapshot)
    for frame in every_frame(snapshot):
        frame["filename"] = change(frame["filename"])
    return snapshot


def on_windows(file):
    """The path of the same file on Windows; code without a file stays the same."""
    if not file.startswith("/"):
        return file
    packages = re.sub(r"^.*/(?=site-packages/)", "C:/Users/me/env/Lib/", file)
    return (packages if packages != file else f"D:{file}").replace("/", "\\")


def as_on_linux(text):
    """A text about the files of `on_windows`, with the paths of the others."""
    return text.replace("\\\\", "/").replace("\\", "/").replace("D:/", "/").replace("C:/Users/me/env/Lib/", "/venv/")


def write(path, snapshot):
    path.write_bytes(pickle.dumps(snapshot))
    return path


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_reports_of_windows_are_those_of_linux(tmp_path, name):
    snapshot = contents(GOLDEN / name)
    frames = every_frame(snapshot)
    assert any("/site-packages/torch/" in frame["filename"] for frame in frames)
    linux = write(tmp_path / "linux.pickle", snapshot)
    windows = write(tmp_path / "windows.pickle", moved(snapshot, on_windows))
    sections = ["--leaks", "--peak", "--timeline", "--fragmentation", "--oom"]
    for flags in ([], sections, [*sections, "--stacks"]):
        ours = run_command("replay", linux, *flags).stdout
        theirs = run_command("replay", windows, *flags).stdout
        assert len(ours.splitlines()) > 10
        assert as_on_linux(theirs).replace("windows.pickle", "linux.pickle") == ours, flags
    ours, theirs = (json.loads(gpumemtrace("replay", path, "--json", code=None)) for path in (linux, windows))
    assert [verdict["kind"] for verdict in theirs["verdicts"]] == [verdict["kind"] for verdict in ours["verdicts"]]
    assert theirs["steps"]["count"] == ours["steps"]["count"]
    own = {site["site"]["file"] for peak in theirs["peak"] for site in peak["sites"] if site["site"]["file"]}
    assert own <= {on_windows(frame["filename"]) for frame in frames}, "paths are shown as they were recorded"


def test_two_systems_are_compared_line_by_line(tmp_path):
    snapshot = contents(GOLDEN / SNAPSHOTS[0])
    linux = write(tmp_path / "linux.pickle", snapshot)
    windows = write(tmp_path / "windows.pickle", moved(snapshot, on_windows))
    same = gpumemtrace("compare", linux, windows, code=None)
    assert same.replace("windows.pickle", "linux.pickle") == gpumemtrace("compare", linux, linux, code=None)


def npu_snapshot(frames):
    """Blocks of whole units, each one unit larger than the request, and one that was freed."""
    base, events, blocks = 0x12_0000_0000, [], []
    event = {"stream": 0, "pool_id": (0, 0)}
    events.append(event | {"action": "workspace_snapshot", "addr": 0, "size": 0} if frames is None else event | {
        "action": "snapshot", "addr": 0, "size": 0})
    events.append(event | {"action": "segment_alloc", "addr": base, "size": 2 * MIB, "frames": frames or []})
    for number in range(6):
        events.append(event | {"action": "alloc", "addr": base + number * 1536, "size": 1024, "frames": frames or []})
        block = {"address": base + number * 1536, "size": 1536, "requested_size": 1024, "state": "active_allocated"}
        blocks.append(block | {"frames": frames or []})
    freed = base + 5 * 1536
    for action in ("free_requested", "free_completed"):
        events.append(event | {"action": action, "addr": freed, "size": 1024, "frames": []})
    blocks[-1] = {"address": freed, "size": 2 * MIB - 5 * 1536, "requested_size": 0, "state": "inactive", "frames": []}
    segment = {"device": 0, "address": base, "total_size": 2 * MIB, "allocated_size": 5 * 1536, "active_size": 5 * 1536,
               "requested_size": 5 * 1024, "stream": 0, "segment_pool_id": (0, 0), "segment_type": "small",
               "is_expandable": False, "frames": [], "blocks": blocks}
    return {"segments": [segment], "device_traces": [events]}


NPU_FRAMES = [{"filename": "/v/site-packages/torch_npu/contrib/module.py", "line": 5, "name": "forward"},
              {"filename": "/work/train.py", "line": 7, "name": "<module>"}]
NPU_NOTE = (
    "the snapshot is from an Ascend NPU (torch_npu): sizes of freed blocks are computed by CUDA's rules, after adding 32 B "
    "to each request. whatif and fit cannot predict its allocator"
)


@pytest.mark.parametrize("frames", [NPU_FRAMES, None, []], ids=["frames", "workspace", "sizes"])
def test_npu_is_recognized_by_code_events_or_sizes(tmp_path, frames):
    path = write(tmp_path / "npu.pickle", npu_snapshot(frames))
    report = json.loads(gpumemtrace("replay", path, "--json"))
    [device] = report["devices"]
    assert device["peak"]["live_bytes"] == 6 * 1536, "the freed block was padded, too"
    notes = {note["kind"]: note for note in report["traces"][0]["notes"]}
    assert (notes["other_accelerator"]["accelerator"], notes["other_accelerator"]["padding_bytes"]) == ("npu", 32)
    assert "snapshot_sizes" not in notes and "snapshot_passed_over" not in notes
    assert NPU_NOTE in sentences(gpumemtrace("replay", path))
    for command in ("whatif", "fit"):
        done = run_command(command, path, "--torch", "2.9")
        assert done.returncode == 2 and "the snapshot is from an Ascend NPU (torch_npu)" in done.stderr, (command, done)


def test_npu_without_padding_is_read_by_cudas_rules(tmp_path):
    snapshot = npu_snapshot(NPU_FRAMES)
    for block in snapshot["segments"][0]["blocks"][:5]:
        block["requested_size"] = 1536
    for event in snapshot["device_traces"][0]:
        if event["size"] == 1024:
            event["size"] = 1536
    path = write(tmp_path / "npu.pickle", snapshot)
    report = json.loads(gpumemtrace("replay", path, "--json"))
    assert report["devices"][0]["peak"]["live_bytes"] == 6 * 1536
    note = next(note for note in report["traces"][0]["notes"] if note["kind"] == "other_accelerator")
    assert (note["accelerator"], note["padding_bytes"]) == ("npu", 0)


@pytest.mark.parametrize("accelerator, native", [
    ("xpu", {"filename": "/v/site-packages/torch/lib/libc10_xpu.so", "line": 0, "name": "c10::xpu::XPUCachingAllocator::malloc"}),
    ("rocm", {"filename": "/v/site-packages/torch/lib/libc10_hip.so", "line": 0, "name": "c10::hip::HIPCachingAllocator::malloc"}),
])
def test_snapshots_of_other_gpus_are_read(tmp_path, accelerator, native):
    """They have the form and the sizes of CUDA's. XPU's have neither settings nor annotations."""
    snapshot = copy.deepcopy(contents(GOLDEN / SNAPSHOTS[0]))
    expected = json.loads(gpumemtrace("replay", write(tmp_path / "cuda.pickle", snapshot), "--json", code=None))
    for trace in snapshot["device_traces"]:
        for event in trace:
            event["frames"] = [native, *event["frames"]]
    if accelerator == "xpu":
        snapshot = {key: snapshot[key] for key in ("segments", "device_traces")}
    path = write(tmp_path / "other.pickle", snapshot)
    report = json.loads(gpumemtrace("replay", path, "--json", code=None))
    for key in ("live_bytes", "reserved_bytes"):
        assert report["devices"][0]["peak"][key] == expected["devices"][0]["peak"][key]
    # The allocator's own frames are no call sites.
    sites = [[share["site"]["file"] for share in one["peak"][0]["sites"]] for one in (report, expected)]
    assert sites[0] == sites[1]
    kinds = {note["kind"] for note in report["traces"][0]["notes"]}
    assert ("other_accelerator" in kinds) == (accelerator == "xpu"), "ROCm has CUDA's allocator"
    assert f"accelerator: {accelerator}\n" in gpumemtrace("info", path, code=None)


def test_snapshot_without_segments_ends_as_its_events_leave_it(tmp_path):
    snapshot = npu_snapshot([])
    del snapshot["segments"]
    for event in snapshot["device_traces"][0]:
        event["time_us"] = 1_700_000_000_000_000
    report = json.loads(gpumemtrace("replay", write(tmp_path / "a.pickle", snapshot), "--json"))
    assert report["devices"][0]["end"]["live_bytes"] == 5 * 1024
    kinds = {note["kind"] for note in report["traces"][0]["notes"]}
    assert "snapshot_without_segments" in kinds and "snapshot_contradictions" not in kinds
