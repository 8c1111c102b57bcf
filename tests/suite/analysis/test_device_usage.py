"""Device memory by owner, compared with the simulator's bytes."""

import json

import pytest

from conftest import DRIVER, gpumemtrace, parse_fields, sentences
from ground_truth import assert_calls_equal_driver, assert_held_equals_driver

CONTEXT_BYTES = 450 << 20
#: A multiple of the driver's page size: bytes added by rounding are in no call either.
CUBLAS_BYTES = 8 << 20


@pytest.mark.parametrize("segments", ["native", "expandable"])
@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_usage_by_owner_sums_to_simulator_bytes(run_python, torch_version, model, segments):
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if segments == "expandable" else {}
    run = run_python(torch_version, "training/train.py", "--model", model, SIMGPU_CONTEXT_BYTES=CONTEXT_BYTES,
                     SIMGPU_CUBLAS_BYTES=CUBLAS_BYTES, **conf)
    device = run.report()["devices"][0]
    used = max(int(call["used"]) for call in run.calls())
    ledger = {entry["owner"]: entry["bytes"] for entry in device["ledger"]}
    assert sum(ledger.values()) == device["peak"]["device_bytes"]
    assert device["residual_bytes"] == CONTEXT_BYTES
    assert sum(ledger.values()) + device["residual_bytes"] == used

    cublas = [owner for owner in ledger if owner.startswith("libcublas.so")]
    handles = [call for call in run.calls() if call["api"] == "cuMemAlloc_v2" and call["size"] == CUBLAS_BYTES]
    assert len(cublas) == 1 and ledger[cublas[0]] == len(handles) * CUBLAS_BYTES > 0
    assert set(ledger) <= {"torch blocks", "torch cache", cublas[0]}, "no other owner, and none unknown"
    assert ledger["torch blocks"] + ledger["torch cache"] == device["peak"]["reserved_bytes"]


@pytest.mark.parametrize("segments", ["native", "expandable"])
def test_sample_equals_allocations_plus_context(run_python, torch_version, segments):
    """Samples are taken while the process allocates; each must match its own time."""
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if segments == "expandable" else {}
    run = run_python(torch_version, "memory/meminfo_samples.py", SIMGPU_CONTEXT_BYTES=CONTEXT_BYTES, **conf)
    samples = [parse_fields(line) for line in gpumemtrace("dump", "--totals", run.trace).splitlines()
               if "kind=memory_sample " in line]
    by_program = [sample for sample in samples if sample["api"] == "cuMemGetInfo_v2"]
    by_recorder = [sample for sample in samples if sample["api"] == "-" and sample["aux1"] == "1"]
    assert len(by_program) >= 40 and len(by_recorder) >= 2
    for sample in by_program + by_recorder:
        held = dict(part.split(":") for part in sample["held"].split(",") if part)
        assert int(sample["size"]) == int(held.get("0", 0)) + CONTEXT_BYTES, sample
    used = {int(call["used"]) for call in run.calls()}
    assert {int(sample["size"]) for sample in by_program + by_recorder} <= used, "each sample is a number of the simulator"


def test_nvml_reports_bytes_of_process(run_python, torch_version):
    run = run_python(torch_version, "memory/meminfo_samples.py", "--seconds", 2.5, SIMGPU_CONTEXT_BYTES=CONTEXT_BYTES, own_libraries=True)
    residual = run.report()["devices"][0]["residual"]
    assert (residual["source"], residual["bytes"]) == ("nvml", CONTEXT_BYTES)


def test_text_shows_memory_outside_calls(run_python, torch_version):
    run = run_python(torch_version, "training/train.py", SIMGPU_CONTEXT_BYTES=CONTEXT_BYTES, SIMGPU_CUBLAS_BYTES=CUBLAS_BYTES)
    text = gpumemtrace("replay", run.trace)
    assert "450.00 MiB  more, not in any recorded call" in text
    assert "libcublas.so" in text


def test_memory_kept_by_a_pool_is_counted_once(run_python, torch_version, tmp_path):
    """Three quarters of the device are allocated and freed once, so that the pool keeps them."""
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(DRIVER)
    run = run_python(torch_version, "driver/pool_framework.py", driver, 60 << 10, 200, SIMGPU_CONTEXT_BYTES=CONTEXT_BYTES)
    report = run.report()
    residual = report["devices"][0]["residual"]
    assert (residual["bytes"], residual["most_bytes"]) == (CONTEXT_BYTES, CONTEXT_BYTES)
    assert residual["in_use_bytes"] == max(int(call["used"]) for call in run.calls())
    # The pool kept everything but the blocks that were live at the sample.
    assert residual["in_use_bytes"] - CONTEXT_BYTES - residual["pool_free_bytes"] in range(1 << 20, 8 << 20)
    assert [verdict["kind"] for verdict in report["verdicts"]] == ["leak"], "60.4 of 80 GiB is no pressure"
    forecast = report["leaks"][0]["oom_step"]
    truth = ((80 << 30) - CONTEXT_BYTES) >> 20
    assert forecast["earliest"] < truth < forecast["latest"]
    assert "driver pools then kept about 60.00 GiB free" in sentences(gpumemtrace("replay", run.trace))


def test_pools_of_host_and_managed_memory_are_no_gpu_memory(run_python, torch_version, tmp_path):
    """The program allocates by call, by graph and in captures from pools of every kind."""
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(DRIVER)
    run = run_python(torch_version, "driver/pool_kinds.py", driver, SIMGPU_CONTEXT_BYTES=CONTEXT_BYTES)
    calls = run.calls()
    assert_calls_equal_driver(run.events(), calls)
    held = assert_held_equals_driver(run.trace, calls)
    assert (held[-1]["0"], held[-1]["host"], held[-1]["managed"]) == (str(10 << 20), str(300 << 20), str(400 << 20))
    report = run.report()
    device = report["devices"][0]
    assert device["peak"]["device_bytes"] == sum(entry["bytes"] for entry in device["ledger"]) == 10 << 20
    assert device["residual"]["in_use_bytes"] in {int(call["used"]) for call in calls}
    assert device["residual_bytes"] >= CONTEXT_BYTES and device["contradictory_samples"] == 0
    pools = sorted((pool["memory"], pool["device"], pool["peak_allocated_bytes"] >> 20) for pool in report["async_pools"])
    assert pools == [("device", 0, 2), ("device", 0, 10), ("host", None, 50), ("host", None, 116), ("host", None, 200),
                     ("managed", None, 50), ("managed", None, 400)]
    peaks = {note["kind"]: note["peak_bytes"] >> 20 for note in report["traces"][0]["notes"] if "peak_bytes" in note}
    assert peaks == {"host_pools": 316, "managed_memory": 400}
    text = sentences(gpumemtrace("replay", run.trace))
    assert "1 call moved 100.00 MiB of it to GPUs ahead of use" in text
    assert "contexts, kernels' code, driver pools, managed memory that is on the GPU" in text
    assert "Host memory, pool 0x" in gpumemtrace("replay", run.trace, "--fragmentation")


def test_segments_in_managed_memory_are_reserved_but_not_driver_memory(run_python, torch_version, tmp_path):
    if tuple(map(int, torch_version.split(".")[:2])) < (2, 15):
        pytest.skip("torch.cuda._use_uvm() came with PyTorch 2.15")
    run = run_python(torch_version, "memory/unified_memory.py", tmp_path / "stats.json")
    stats = json.loads((tmp_path / "stats.json").read_text())
    held = assert_held_equals_driver(run.trace, run.calls())
    managed = max(int(places.get("managed", 0)) for places in held)
    report = run.report()
    device = report["devices"][0]
    assert device["peak"]["reserved_bytes"] == stats["reserved_bytes.all.peak"]
    assert device["peak"]["device_bytes"] == device["peak"]["reserved_bytes"] - managed > 0
    [note] = [note for note in report["traces"][0]["notes"] if note["kind"] == "managed_memory"]
    assert (note["peak_bytes"], note["reserved_bytes"]) == (managed, managed)
    assert "PyTorch counts up to 140.00 MiB of it as reserved" in sentences(gpumemtrace("replay", run.trace))


def test_block_that_another_framework_divides_is_an_opaque_pool(run_python, torch_version, tmp_path):
    """The program leaks inside its block, which no call shows."""
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(DRIVER)
    run = run_python(torch_version, "driver/block_framework.py", driver, 60 << 10, 2000)
    [pool] = run.report()["devices"][0]["opaque_pools"]
    assert (pool["bytes"], pool["framework"], pool["site"]["line"]) == (60 << 30, None, 23)
    assert pool["owner"].startswith("libffi")
    text = sentences(gpumemtrace("replay", run.trace))
    assert "Leaks were not judged" in text and "60.00 GiB on GPU 0 are a pool of libffi" in text


@pytest.mark.parametrize("segments", ["native", "expandable", "async"])
def test_memory_of_pytorch_is_no_opaque_pool(run_python, torch_version, segments):
    conf = {"native": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}}[segments]
    run = run_python(torch_version, "memory/large_tensors.py", SIMGPU_MEM="8G", **conf)
    assert run.report()["devices"][0]["peak"]["device_bytes"] >= 3 << 30
    assert run.report()["devices"][0]["opaque_pools"] == []
