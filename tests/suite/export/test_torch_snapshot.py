"""PyTorch snapshots that we write, read by PyTorch's own code and compared with its own snapshot of
the same run."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from conftest import DRIVER, REPOSITORY, VENVS, WORKLOADS, Run, environment, gpumemtrace, run_program
from readers import readers_folder, run_reader
from snapshot_files import VIEWER_OPCODES, load_snapshot, opcodes, readers_of_pytorch, rewind, viewed_heights

CONFS = {"segments": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}


@pytest.fixture(scope="session")
def own_run(tmp_path_factory):
    """Returns a run and PyTorch's own snapshot of it. Each is recorded once."""
    runs = {}

    def record(torch_version, conf, *flags, **extra):
        key = (torch_version, conf, flags, tuple(extra.items()))
        if key not in runs:
            folder = tmp_path_factory.mktemp("own")
            command = [Path(VENVS[torch_version]) / "bin" / "python", WORKLOADS / "memory/own_snapshot.py", folder / "own.pickle"]
            env = environment(folder, SIMGPU_DEVICES=2, SIMGPU_EVENT_DELAY_US=3000, **CONFS[conf], **extra)
            done = run_program([*command, *flags], folder, env=env)
            assert done.returncode == 0, done.stderr[-4000:]
            runs[key] = Run(done, folder)
        return runs[key], load_snapshot(runs[key].folder / "own.pickle")

    return record


@pytest.fixture
def export(tmp_path):
    def write(trace, *flags, format="torch-snapshot", name="exported.pickle"):
        gpumemtrace("export", format, trace, "-o", tmp_path / name, *flags)
        return tmp_path / name

    return write


def layout(snapshot):
    """Returns the segments with everything that both snapshots know of them."""
    rows = []
    for segment in snapshot["segments"]:
        row = {key: segment[key] for key in ("device", "address", "total_size", "allocated_size", "active_size",
                                             "requested_size", "stream", "segment_type", "is_expandable")}
        row["pool"] = tuple(segment["segment_pool_id"])
        address, row["blocks"] = segment["address"], []
        for block in segment["blocks"]:
            requested = block["requested_size"] if block["state"] != "inactive" else 0
            # Free blocks may be split at places that only PyTorch knows.
            if block["state"] == "inactive" and row["blocks"] and row["blocks"][-1][2] == "inactive":
                begin, size, *_ = row["blocks"].pop()
                row["blocks"].append((begin, size + block["size"], "inactive", 0))
            else:
                row["blocks"].append((address, block["size"], block["state"], requested))
            address += block["size"]
        rows.append(row)
    return sorted(rows, key=lambda row: (row["device"], row["address"]))


def entries(trace, with_pools):
    """Returns what both snapshots say of an entry."""
    keys = ("action", "addr", "device_free", "size", "stream") + (("pool_id",) if with_pools else ())
    return [{key: entry[key] for key in keys if key in entry} for entry in trace
            if entry["action"] not in ("user_defined", "snapshot")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flags", [(), ("--pending",), ("--devices", "2")], ids=["plain", "pending", "devices"])
@pytest.mark.parametrize("conf", CONFS)
def test_our_snapshot_equals_that_of_pytorch(own_run, export, torch_version, conf, flags):
    run, own = own_run(torch_version, conf, *flags)
    ours = load_snapshot(export(run.trace, "--until", "mark:dumped"))
    assert layout(ours) == layout(own)
    traced = [trace for trace in own["device_traces"] if any(entry["action"] == "alloc" for entry in trace)]
    assert len(traced) == (2 if "--devices" in flags else 1)
    for trace, own_trace in zip(ours["device_traces"], own["device_traces"]):
        with_pools = any("pool_id" in entry for entry in own_trace)
        assert entries(trace, with_pools) == entries(own_trace, with_pools)
        for entry, own_entry in zip([entry for entry in trace if entry["action"] == "alloc"],
                                    [entry for entry in own_trace if entry["action"] == "alloc"]):
            assert abs(entry["time_us"] - own_entry["time_us"]) < 500_000
            lines = [[(frame["filename"], frame["line"]) for frame in stack if frame["filename"].endswith(".py")]
                     for stack in (entry["frames"], own_entry["frames"])]
            assert lines[0] == lines[1] and lines[0]
    # PyTorch gives its trackers device 0 for the snapshots of all devices.
    sizes = [sorted(entry["size"] for trace in snapshot["device_traces"] for entry in trace if entry["action"] == "snapshot")
             for snapshot in (ours, own)]
    assert sizes[0] == sizes[1]
    actions = Counter(entry["action"] for trace in own["device_traces"] for entry in trace)
    assert {"alloc", "free_requested", "free_completed", "oom", "snapshot"} <= set(actions)
    mapped = "segment_map" if conf == "expandable" else "segment_alloc"
    assert actions[mapped] and (actions[mapped.replace("alloc", "free").replace("_map", "_unmap")] or "--pending" in flags)
    labels = [entry["user_metadata"] for entry in ours["device_traces"][0] if entry["action"] == "user_defined"]
    assert [label for label in labels if "churn" not in label][:6] == [
        "step 1 begins", "step 2 begins", "step 3 begins", "step 4 begins", "step 5 begins", "mark refused"]
    assert labels.count("phase churn begins") == 8 * len(traced)
    assert any(label["active_pending_free"] for label in [Counter(block["state"] for segment in own["segments"]
               for block in segment["blocks"])]) or "--pending" not in flags


@pytest.mark.parametrize("conf", CONFS)
def test_pytorchs_readers_read_it(own_run, export, torch_version, conf):
    """Checks totals of each version's `segsum`, `trace`, `compare`, `trace_plot`, `segment_plot`."""
    run, _ = own_run(torch_version, conf)
    before = load_snapshot(export(run.trace, "--until", "mark:refused"))
    path = export(run.trace, "--until", "mark:dumped")
    after = load_snapshot(path)
    (instant,) = run.report("--at", "mark:dumped", "--fragmentation")["snapshots"]
    (gap,) = [gap for gap in run.report("--at", "mark:dumped", "--fragmentation")["fragmentation"] if gap["at"]["why"] == "at"]
    assert len(readers_of_pytorch()) == 3
    for version, viz in readers_of_pytorch().items():
        total = viz.segsum(after)
        assert f"total_reserved: {viz.Bytes(instant['reserved_bytes'])}\n" in total, version
        assert f"total_allocated: {viz.Bytes(gap['requested_bytes'])}\n" in total, version
        text = viz.trace(after)
        assert f"{len(after['device_traces'][0])} entries" in text
        assert text.count(" = cudaMalloc(") == sum(entry["action"] == "segment_alloc" for entry in after["device_traces"][0])
        assert text.count("raise OutOfMemoryError") == 1
        lines = viz.compare(before["segments"], after["segments"], format_flamegraph=str)
        new = {segment["address"] for segment in after["segments"]} - {segment["address"] for segment in before["segments"]}
        assert {int(address) for address in re.findall(r"only_after;stream_\d+;seg_(\d+);", lines)} >= new
        flames = viz.memory(after, format_flamegraph=str).splitlines()
        assert sum(int(line.rsplit(" ", 1)[1]) for line in flames) == instant["reserved_bytes"]
        live = sum(int(line.rsplit(" ", 1)[1]) for line in flames if ";active_allocated;" in line)
        assert live == instant["live_bytes"]
        for page in (viz.trace_plot(after), viz.segment_plot(after)):
            assert "MemoryViz.js" in page and len(page) > path.stat().st_size


@pytest.mark.parametrize("conf", CONFS)
def test_viewer_reaches_our_peak_and_can_undo_every_entry(own_run, export, torch_version, conf):
    run, own = own_run(torch_version, conf)
    whole = load_snapshot(export(run.trace))
    peak = run.report("--peak")["peak"][0]
    names, largest_batch = opcodes(export(run.trace))
    assert names <= VIEWER_OPCODES and largest_batch <= 1000
    assert rewind(whole, 0) == rewind(own, 0) == (0, 0)
    at_peak = load_snapshot(export(run.trace, "--until", "peak"))
    sizes = [block for segment in at_peak["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"]
    assert sum(block["size"] for block in sizes) == peak["live_bytes"]
    # The viewer sums requested bytes.
    assert max(viewed_heights(own, 0)) == max(viewed_heights(whole, 0)) >= viewed_heights(at_peak, 0)[-1]
    assert viewed_heights(at_peak, 0)[-1] == sum(block["requested_size"] for block in sizes)


@pytest.mark.parametrize("flags", [(), ("--pending",)], ids=["plain", "pending"])
def test_memory_viz_decodes_it_and_reaches_our_peak(own_run, export, torch_version, flags):
    """Runs the script of PyTorch's page, which is in no package."""
    scripts = readers_folder() / "memory_viz"
    if not (scripts / "process_alloc_data.js").exists():
        pytest.skip("not checked: PyTorch's MemoryViz.js could not be downloaded")
    run, own = own_run(torch_version, "segments", *flags)
    for name, format in (("exported.pickle", "torch-snapshot"), ("exported.json", "torch-snapshot-json")):
        path = export(run.trace, "--until", "mark:dumped", format=format, name=name)
        ours = load_snapshot(path) if name.endswith("pickle") else json.loads(path.read_text())
        viewed = json.loads(run_reader(["node", REPOSITORY / "tests/suite/support/exports/memory_viz.mjs", scripts, path]).stdout)
        assert viewed["value"] == json.loads(json.dumps(ours))
        heights = viewed["heights"][0]
        # With --pending, blocks that wait for another stream count until they are available.
        assert heights["all"] == heights["few"] == max(viewed_heights(own, 0))
        assert heights["pools"] >= heights["all"]


def test_json_has_the_value_of_the_pickle(own_run, export, torch_version):
    run, _ = own_run(torch_version, "segments")
    pickled = load_snapshot(export(run.trace, name="exported.pickle"))
    text = export(run.trace, format="torch-snapshot-json", name="exported.json").read_text()
    assert json.loads(text) == json.loads(json.dumps(pickled)) and pickled["segments"]


def test_window_and_limit_keep_the_last_entries(own_run, export, torch_version):
    run, _ = own_run(torch_version, "segments")
    whole = load_snapshot(export(run.trace, "--until", "mark:dumped"))
    trace = whole["device_traces"][0]
    cut = load_snapshot(export(run.trace, "--until", "mark:dumped", "--max-events", 40))
    assert cut["device_traces"][0] == trace[-40:] and cut["segments"] == whole["segments"]
    assert cut["gpumemtrace"]["entries_left_out"] == len(trace) - 40
    assert any("--max-events" in note for note in cut["gpumemtrace"]["notes"])
    later = load_snapshot(export(run.trace, "--since", "mark:refused", "--until", "mark:dumped"))
    kept = later["device_traces"][0]
    assert later["segments"] == whole["segments"] and 0 < len(kept) < len(trace)
    assert [entry for entry in kept if entry["action"] != "user_defined"] == \
        [entry for entry in trace if entry["action"] != "user_defined"][-sum(entry["action"] != "user_defined" for entry in kept):]
    for part in (cut, later):
        rewind(part, 0)
        assert viewed_heights(part, 0)[-1] == viewed_heights(whole, 0)[-1]
        assert max(viewed_heights(part, 0)) <= max(viewed_heights(whole, 0))


def test_json_holds_the_same_and_bytes_do_not_change(own_run, export, torch_version):
    run, _ = own_run(torch_version, "expandable")
    pickled, text = export(run.trace), export(run.trace, format="torch-snapshot-json", name="exported.json")
    assert json.loads(text.read_text()) == json.loads(json.dumps(load_snapshot(pickled)))
    assert pickled.read_bytes() == export(run.trace, name="again.pickle").read_bytes()
    assert load_snapshot(pickled)["allocator_settings"]["expandable_segments"] is True


@pytest.mark.parametrize("conf", CONFS)
def test_trace_without_the_tracker_is_valid_too(own_run, export, torch_version, conf):
    """Segments are then the driver's allocations, and requested sizes are unknown."""
    run, own = own_run(torch_version, conf, GPUMEMTRACE_TORCH_DETAILS="off")
    ours = load_snapshot(export(run.trace, "--until", "mark:dumped"))
    assert rewind(ours, 0) == (0, 0)
    blocks = lambda snapshot: sorted((block[0], block[1]) for row in layout_without_pools(snapshot) for block in row
                                     if block[2] == "active_allocated")
    assert blocks(ours) == blocks(own)
    notes = " ".join(ours["gpumemtrace"]["notes"])
    assert "requested size" in notes and "allocations of the driver" in notes
    if conf == "segments":
        # A segment that never held a block is not known to be one.
        assert {segment["address"] for segment in ours["segments"]} <= {segment["address"] for segment in own["segments"]}


def layout_without_pools(snapshot):
    return [[(segment["address"] + sum(block["size"] for block in segment["blocks"][:index]), block["size"], block["state"])
             for index, block in enumerate(segment["blocks"])] for segment in snapshot["segments"]]


@pytest.mark.parametrize("name", ["metal-retained", "metal-reused"])
def test_metal_heaps_are_segments(export, name):
    trace = REPOSITORY / "tests" / "golden" / f"{name}.trace"
    ours = load_snapshot(export(trace))
    (device,) = json.loads(gpumemtrace("replay", trace, "--json"))["devices"]
    assert rewind(ours, 0) == (0, 0)
    assert sum(segment["allocated_size"] for segment in ours["segments"]) == device["end"]["live_bytes"]
    assert sum(segment["total_size"] for segment in ours["segments"]) == device["end"]["reserved_bytes"]
    assert max(viewed_heights(ours, 0)) == device["peak"]["live_bytes"]
    assert any("requested size" in note for note in ours["gpumemtrace"]["notes"])


def test_allocations_of_the_driver_are_segments_without_pytorch(export, tmp_path):
    (tmp_path / "libcuda.so.1").symlink_to(DRIVER)
    command = [sys.executable, WORKLOADS / "driver/driver_leak.py", tmp_path / "libcuda.so.1", "30"]
    run = Run(run_program(command, tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL), tmp_path)
    ours = load_snapshot(export(run.trace))
    (device,) = run.report()["devices"]
    assert rewind(ours, 0) == (0, 0)
    assert sum(segment["total_size"] for segment in ours["segments"]) == device["end"]["device_bytes"] > 0
    assert max(viewed_heights(ours, 0)) == device["peak"]["device_bytes"]
    assert any("segment with one block" in note for note in ours["gpumemtrace"]["notes"])


def test_hostile_names_stay_text(export, run_python):
    run = run_python(max(VENVS), "stacks/hostile_names.py", check=False)
    pickled = load_snapshot(export(run.trace))
    text = export(run.trace, format="torch-snapshot-json", name="exported.json").read_text()
    assert json.loads(text) == json.loads(json.dumps(pickled))
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)


def test_several_traces_are_refused(tmp_path):
    golden = REPOSITORY / "tests" / "golden" / "cuda-train.trace"
    other = shutil.copy(golden, tmp_path / "other.trace")
    gpumemtrace("export", "torch-snapshot", golden, other, "-o", tmp_path / "x", code=2)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("flags", [(), ("--pending",)], ids=["plain", "pending"])
def test_reading_it_back_gives_the_same_report(own_run, export, torch_version, conf, flags):
    """The round trip: trace, snapshot, report."""
    run, _ = own_run(torch_version, conf, *flags)
    path = export(run.trace, "--until", "mark:dumped")
    direct = run.report("--at", "mark:dumped", "--fragmentation", "--peak")
    (instant,) = direct["snapshots"]
    (gap,) = [gap for gap in direct["fragmentation"] if gap["at"]["why"] == "at"]
    back = json.loads(gpumemtrace("replay", path, "--fragmentation", "--peak", "--json", code=None))
    (device,) = back["devices"]
    assert device["end"]["live_bytes"] == instant["live_bytes"]
    assert device["end"]["reserved_bytes"] == instant["reserved_bytes"]
    (back_gap,) = [gap for gap in back["fragmentation"] if gap["at"]["why"] == "end"]
    for key in ("gap_bytes", "requested_bytes", "live_bytes", "reserved_bytes"):
        assert back_gap[key] == gap[key]
    assert back["peak"][0]["live_bytes"] == direct["peak"][0]["live_bytes"]
    sites = [{(row["site"]["file"], row["site"]["line"]): row["bytes"] for row in report["peak"][0]["sites"]}
             for report in (direct, back)]
    assert sites[0] == sites[1]
    causes = [{cause["cause"]: cause["bytes"] for cause in row["causes"]} for row in (gap, back_gap)]
    assert causes[0] == causes[1]
