"""Checks with other libraries: cuBLAS, cuDNN, NCCL, CuPy, JAX and Triton."""

from collections import Counter

from .registry import check
from .trace import assert_equals_stats
from .verdicts import EQUAL, MEASURED, Different, assert_equal, mib, table

#: Memory of the simulated libraries, so that they allocate; real drivers ignore these variables.
LIBRARY_BYTES = {"SIMGPU_COPY": "small", "SIMGPU_CUBLAS_BYTES": "4M", "SIMGPU_NCCL_BYTES": "8M", "SIMGPU_CUDNN_WS": "1M"}


@check("libraries", blind="simulated libraries allocate configured sizes")
def libraries(harness):
    reported, trace = harness.run_traced("libraries", complete=False, extra=LIBRARY_BYTES)
    phases = [facts for facts in reported if "phase" in facts]
    assert_equals_stats(trace, reported[-1]["stats"], "PyTorch's blocks")
    report = trace.report()
    uncovered = report["traces"][0]["losses"].get("uncovered_calls")
    rows, seen = [], []
    for facts in phases:
        inside = [event for event in trace.events if facts["begin"] <= event["time_ns"] <= facts["end"] and event["rc"] == 0 and
                  event["kind"] in ("device_alloc", "phys_create", "async_alloc", "managed_alloc")]
        owners = Counter()
        for event in inside:
            owners[trace.owner(event)] += event["size"]
        first, last = trace.driver_bytes_at([facts["begin"], facts["end"]])
        rows.append([facts["phase"], facts["failed"] or "; ".join("%s %s" % (owner, mib(size)) for owner, size in owners.most_common()),
                     mib(last - first), mib(facts["reserved"]), mib(facts["grown"]), mib(facts["grown"] - (last - first))])
        seen += [owner for owner in owners if not owner.startswith(("libc10", "libtorch"))]
    numbers = table(["library", "driver allocations by module", "traced growth", "of that PyTorch's cache", "cudaMemGetInfo growth",
                     "not traced"], rows)
    numbers += "\n\nAllocating calls that are not recorded: %s." % uncovered
    ledger = report["devices"][0].get("ledger") or []
    if ledger:
        numbers += "\n\nDevice usage in the report: %s." % "; ".join("%s %s" % (one["owner"], mib(one["bytes"])) for one in ledger)
    failed = [facts["phase"] for facts in phases if facts["failed"]]
    yield (MEASURED, "modules beside PyTorch: %s; calls not recorded: %s%s" %
           (", ".join(sorted(set(seen))) or "none", uncovered, "; failed: " + ", ".join(failed) if failed else ""), numbers)


@check("libraries", "NCCL, 2 processes", blind="simulated ranks do not communicate")
def two_ranks(harness):
    how = dict(extra=LIBRARY_BYTES, patience=100)
    ran = harness.run("two_ranks", traced=True, **how)
    if harness.failure_of(ran):
        raise harness.blame_for(ran, "two_ranks", how)
    for facts in ran.facts:
        trace = harness.trace(ran.folder, "run.rank%d.trace" % facts["rank"])
        assert_equals_stats(trace, facts["stats"], "rank %d" % facts["rank"])
    yield EQUAL, "each rank's blocks equal its memory_stats", ""


@check("cupy")
def cupy(harness):
    reported, trace = harness.run_traced("cupy_pool")
    for facts, ours in zip(reported, trace.driver_bytes_at([facts["at"] for facts in reported])):
        assert_equal("total_bytes after " + facts["label"], ours, facts["pool"])
    yield EQUAL, "driver bytes equal the pool's total_bytes at %d points, up to %s" % (len(reported), mib(max(f["pool"] for f in reported))), ""


@check("jax")
def jax(harness):
    reported, trace = harness.run_traced("jax_pool", extra={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, complete=False)
    for facts, ours in zip(reported, trace.driver_bytes_at([facts["at"] for facts in reported])):
        pool = (facts["stats"] or {}).get("pool_bytes")
        asynchronous = sum(event["size"] for event in trace.events if event["kind"] == "async_alloc" and event["rc"] == 0)
        if pool is None:
            yield MEASURED, "after %s: traced %s; JAX has no pool_bytes" % (facts["label"], mib(ours)), ""
        elif ours + asynchronous < pool:
            raise Different("after %s JAX's pool has %s, the trace %s" % (facts["label"], mib(pool), mib(ours + asynchronous)))
        elif ours == pool:
            yield facts["label"], EQUAL, "driver bytes equal pool_bytes: " + mib(pool), ""
        else:
            yield facts["label"], MEASURED, "pool_bytes %s, traced %s (libraries in it)" % (mib(pool), mib(ours + asynchronous)), ""


@check("triton")
def triton(harness):
    reported, trace = harness.run_traced("triton_kernel", extra={"TRITON_CACHE_DIR": harness.folder / "triton"})
    assert_equal("correct result of the kernel", True, reported[-1]["right"])
    assert_equals_stats(trace, reported[-1]["stats"], "with a Triton kernel")
    yield EQUAL, "a kernel compiles, loads and computes; blocks equal memory_stats", ""
