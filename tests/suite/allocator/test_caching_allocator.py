"""gpumemtrace's caching allocator under real PyTorch, compared with PyTorch's own.

checked_allocator.c sits between PyTorch and our allocator. It ends the process at the first block
that overlaps another, lies outside the simulated driver's memory, changes streams, or is reused
before its event completes. `torch.cuda.memory_stats()` of both allocators is compared key by key.
"""

import json
import os
import shutil
import subprocess

import pytest

from conftest import BUILD, LIBRARY, REPOSITORY, WORKLOADS, gpumemtrace, sentences
from ground_truth import assert_calls_equal_driver

MODELS = [model + amp for model in ("mlp", "resnet18", "transformer") for amp in ("", "-amp")]
#: Statistics of named pools, which our allocator lacks.
NOT_KEPT = ("reserved_bytes_by_private_pools",)
#: Settings that change where blocks go, in all tested releases.
SETTINGS = ["max_split_size_mb:21", "roundup_power2_divisions:8",
            "garbage_collection_threshold:0.5,max_split_size_mb:64", "roundup_power2_divisions:[1:4,4:16,>:2]"]
#: The number of splits depends on which of two equal blocks is taken, and on the address order in
#: which the tables of autocast and autograd are emptied. Two runs of PyTorch's own allocator differ
#: here too. The model in cache/tests.rs checks these figures exactly.
BY_ORDER = ("inactive_split",)
PACKAGE = REPOSITORY / "python"


@pytest.fixture(scope="session")
def watch(tmp_path_factory):
    """Builds the checking library."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        reason = "not checked: there is no C compiler here"
        (pytest.fail if os.environ.get("GPUMEMTRACE_REQUIRE_ALL") else pytest.skip)(reason)
    library = tmp_path_factory.mktemp("watch") / "checked.so"
    subprocess.run([compiler, "-O1", "-g", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library,
                    WORKLOADS / "driver/checked_allocator.c", "-ldl", "-lpthread"], check=True)
    return library


@pytest.fixture
def plugged(run_python, torch_version):
    """Runs a scenario of allocator_scenarios.py; returns its output and the run."""

    def run(scenario, mode, *arguments, traced=False, check=True, **env):
        done = run_python(torch_version, "training/allocator_scenarios.py", scenario, mode, *arguments, traced=traced, check=check,
                          name=f"{scenario}-{mode}", PYTHONPATH=PACKAGE, GPUMEMTRACE_LIB=LIBRARY, **env)
        return (json.loads(done.process.stdout.splitlines()[-1]) if check else None), done

    return run


def assert_statistics_equal(own, native, exactly):
    """Compares every statistic of every device."""
    assert len(own["stats"]) == len(native["stats"])
    for own_stats, native_stats in zip(own["stats"], native["stats"]):
        kept = {name: value for name, value in native_stats.items() if not name.startswith((*NOT_KEPT, *BY_ORDER))}
        assert len(kept) > 80
        if exactly:
            assert {name: own_stats[name] for name in kept} == kept
        else:
            assert {name: own_stats[name] for name in kept} == {name: pytest.approx(value, rel=0.01) for name, value in kept.items()}
        # Older releases do not count driver calls.
        more = {name for name in own_stats if not name.startswith(BY_ORDER)} - set(kept)
        assert more <= {"num_sync_all_streams", "num_device_alloc", "num_device_free", "num_oom_rejections"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scenario, memory", [*((model, "80G") for model in MODELS), ("graphs", "80G"), ("streams", "80G"),
                                              ("out_of_memory", "256M")])
def test_statistics_equal_native_allocator(plugged, watch, torch_version, scenario, memory):
    native, native_run = plugged(scenario, "native", "--one-thread", SIMGPU_MEM=memory)
    own, own_run = plugged(scenario, "global", "--one-thread", "--checked", watch, SIMGPU_MEM=memory)
    assert own["handed_out"] >= 18, "the checker saw the allocations"
    # This includes peak reserved. 2.12 alone picks another of two free blocks of equal size, which
    # sometimes has a larger remainder than is worth splitting.
    assert_statistics_equal(own, native, exactly=not torch_version.startswith("2.12."))
    # Refusals, and the retries that succeeded.
    assert own_run.process.stdout.splitlines()[:-1] == native_run.process.stdout.splitlines()[:-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scenario, memory, settings", [
    *((scenario, "80G", settings) for scenario in ("transformer", "streams") for settings in SETTINGS),
    ("out_of_memory", "256M", "max_split_size_mb:21"),
])
def test_settings_change_memory_as_in_native_allocator(plugged, watch, torch_version, scenario, memory, settings):
    conf = {"PYTORCH_CUDA_ALLOC_CONF": settings, "SIMGPU_MEM": memory}
    native, native_run = plugged(scenario, "native", "--one-thread", **conf)
    own, own_run = plugged(scenario, "global", "--one-thread", "--checked", watch, **conf)
    assert_statistics_equal(own, native, exactly=not torch_version.startswith("2.12."))
    assert own_run.process.stdout.splitlines()[:-1] == native_run.process.stdout.splitlines()[:-1]
    assert "gpumemtrace" not in own_run.process.stderr


def test_ignored_setting_is_named_once(plugged, watch):
    conf = "expandable_segments:True,max_split_size_mb:64"
    own, done = plugged("mlp", "global", "--one-thread", "--checked", watch, PYTORCH_CUDA_ALLOC_CONF=conf)
    assert own["stats"][0]["max_split_size"] == 64 << 20
    line = "PYTORCH_ALLOC_CONF: gpumemtrace's allocator ignores expandable_segments"
    assert done.process.stderr.count(line) == done.process.stderr.count("gpumemtrace:") == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scenario", [*MODELS, "data_parallel"])
def test_backward_threads_reserve_no_more_than_native(plugged, watch, scenario):
    """The threads run in another order each time, and on a busy machine one may fall far behind. An
    allocator that reserves more does so in each run."""
    def is_near_native():
        native, _ = plugged(scenario, "native", SIMGPU_DEVICES=2)
        own, _ = plugged(scenario, "global", "--checked", watch, SIMGPU_DEVICES=2)
        assert own["handed_out"] == sum(stats["allocation.all.allocated"] for stats in own["stats"])
        peaks = [[stats["reserved_bytes.all.peak"] for stats in run["stats"]] for run in (own, native)]
        return all(abs(ours - theirs) <= 0.05 * theirs for ours, theirs in zip(*peaks))
    assert any(is_near_native() for _ in range(3))


@pytest.mark.parametrize("scenario, delay_us", [("streams", 20_000), ("threads", 3_000)])
def test_no_block_is_reused_before_its_event(plugged, watch, scenario, delay_us):
    own, _ = plugged(scenario, "global", "--checked", watch, SIMGPU_EVENT_DELAY_US=delay_us)
    assert own["waited"] >= 600 and own["reused"] > 0, "blocks waited for events and were reused"


def test_checker_detects_missing_event_wait(plugged, watch):
    _, done = plugged("streams", "global", "--checked", watch, check=False, SIMGPU_EVENT_DELAY_US=20_000, CHECKED_FORGETS=1)
    assert done.process.returncode == -6 and "is still used by stream" in done.process.stderr


@pytest.mark.parametrize("preloaded", [False, True], ids=["alone", "preloaded"])
def test_trace_names_the_allocator_that_owns_memory(plugged, preloaded):
    own, done = plugged("transformer", "global", traced=preloaded)
    report = done.report("--fragmentation", "--peak")
    info = report["traces"][0]
    assert info["mode"] == (["preload"] if preloaded else []) + ["pluggable"]
    assert (info["pluggable"], info["torch_tracker"], info["complete"]) == ("caching", "own_allocator", True)
    stats = own["stats"][0]
    events = done.events()
    count = {kind: sum(event["kind"] == kind for event in events) for kind in ("block_alloc", "segment_alloc")}
    assert count["block_alloc"] == stats["allocation.all.allocated"]
    assert count["segment_alloc"] == stats["segment.all.allocated"]
    peak = report["devices"][0]["peak"]
    assert peak["live_bytes"] == stats["allocated_bytes.all.peak"]
    assert peak["reserved_bytes"] == stats["reserved_bytes.all.peak"]
    # Each segment is one driver allocation.
    given = {(event["addr"], event["size"]) for event in events if event["kind"] == "device_alloc"}
    assert {(event["addr"], event["size"]) for event in events if event["kind"] == "segment_alloc"} <= given
    if preloaded:
        assert_calls_equal_driver(events, done.calls())
    text = sentences(gpumemtrace("replay", done.trace, "--fragmentation", "--timeline", "--at", "step:2"))
    assert "gpumemtrace's caching allocator served the tensors" in text
    assert "reserved memory and fragmentation are its own, not PyTorch's" in text
    assert "Fragmentation of gpumemtrace's allocator" in text
    assert "reserved by PyTorch" not in text and "Reserved by PyTorch" not in text


def test_oom_report_names_this_allocator(plugged):
    _, done = plugged("out_of_memory", "global", SIMGPU_MEM="256M")
    report = done.report("--oom")
    assert [oom["requested_bytes"] for oom in report["oom"]] == [30 << 20, 30 << 20, 100 << 20]
    first = report["oom"][0]
    assert first["device_free_bytes"] < 30 << 20 and first["live_bytes"] == 8 * (30 << 20)
    actions = " ".join(remedy["action"] for remedy in first["remedies"])
    assert "use PyTorch's own allocator with" in actions and "PyTorch does so itself" not in actions


def test_segments_under_native_allocator(plugged, torch_version):
    if tuple(map(int, torch_version.split(".")[:2])) < (2, 5):
        _, done = plugged("mlp", "segment", check=False)
        assert "has no torch.cuda.use_mem_pool, which mode 'segment' needs: use torch 2.5 or later" in done.process.stderr
        return
    native, _ = plugged("mlp", "native")
    own, done = plugged("mlp", "segment", traced=True)
    # The statistics are PyTorch's own and include blocks of other pools.
    for figure in ("allocated_bytes.all.peak", "allocation.all.allocated", "num_ooms"):
        assert own["stats"][0][figure] == native["stats"][0][figure]
    report = done.report("--fragmentation")
    info = report["traces"][0]
    assert (info["mode"], info["pluggable"], info["torch_tracker"]) == (["preload", "pluggable"], "segments", "attached")
    assert report["devices"][0]["peak"]["live_bytes"] == own["stats"][0]["allocated_bytes.all.peak"]
    events = done.events()
    assert_calls_equal_driver(events, done.calls())
    pools = {event["aux1"] for event in events if event["kind"] == "segment_alloc"}
    assert pools - {0}, "segments of the pool (before 2.9, of an unknown one)"
    text = sentences(gpumemtrace("replay", done.trace, "--fragmentation"))
    assert "gpumemtrace allocated the segments of a torch.cuda.MemPool" in text


def test_unsupported_setups_raise_one_sentence(run_python, torch_version, tmp_path):
    script = tmp_path / "program.py"
    script.write_text("""
import gpumemtrace, torch
def raised(what, *arguments):
    try:
        what(*arguments)
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
raised(gpumemtrace.use_pluggable_allocator, "none")
kept = torch.ones(5, device="cuda")
print(gpumemtrace.memory_stats() == torch.cuda.memory_stats())
print(gpumemtrace.memory_stats()["allocation.all.current"])
gpumemtrace.reset_peak_memory_stats()
raised(gpumemtrace.use_pluggable_allocator)
print(torch.ones(5, device="cuda").sum().item())
""")
    done = run_python(torch_version, script, traced=False, PYTHONPATH=PACKAGE, GPUMEMTRACE_LIB=LIBRARY)
    assert done.process.stdout.splitlines() == [
        "ValueError mode must be \"global\" or \"segment\", not 'none'",
        "True",
        "1",
        "RuntimeError PyTorch has already initialized its allocator: call use_pluggable_allocator() before the first CUDA tensor",
        "0.0",
    ]


@pytest.mark.parametrize("started", [False, True], ids=["alone", "started"])
def test_markers_are_recorded_without_preload(run_python, torch_version, tmp_path, started):
    script = tmp_path / "program.py"
    script.write_text(f"""
import gpumemtrace, torch
if {started}:
    gpumemtrace.start()
gpumemtrace.use_pluggable_allocator()
gpumemtrace.mark("ready")
kept = []
for _ in range(30):
    gpumemtrace.step()
    with gpumemtrace.phase("go"):
        kept.append(torch.zeros(1000, device="cuda"))
print(len(gpumemtrace.leaks()["leaks"]), gpumemtrace.is_recording())
""")
    done = run_python(torch_version, script, traced=False, PYTHONPATH=PACKAGE, GPUMEMTRACE_LIB=LIBRARY,
                      PATH=f"{BUILD}:{os.environ['PATH']}")
    assert done.process.stdout == "1 True\n"
    report = done.report("--timeline")
    assert report["traces"][0]["mode"] == ["pluggable"] + ["started"] * started
    assert (report["steps"]["source"], report["steps"]["count"]) == ("marks", 30)
    assert [(phase["name"], phase["count"]) for phase in report["phases"]] == [("go", 30)]
    assert [mark["name"] for mark in report["marks"]] == ["ready"]


def test_reset_peak_memory_stats(run_python, torch_version, tmp_path):
    script = tmp_path / "program.py"
    script.write_text("""
import gpumemtrace, torch
gpumemtrace.use_pluggable_allocator()
large, small = torch.empty(1 << 20, device="cuda"), torch.empty(1000, device="cuda")
del large
print(gpumemtrace.memory_stats("cuda:0")["allocated_bytes.all.peak"])
gpumemtrace.reset_peak_memory_stats(0)
print(gpumemtrace.memory_stats()["allocated_bytes.all.peak"])
try:
    torch.cuda.MemPool()
except (RuntimeError, AttributeError) as error:
    print("no pool")
print(torch.ones(5, device="cuda").numel())
""")
    done = run_python(torch_version, script, traced=False, PYTHONPATH=PACKAGE, GPUMEMTRACE_LIB=LIBRARY)
    assert done.process.stdout.split("\n") == [str((4 << 20) + 4096), "4096", "no pool", "5", ""]
