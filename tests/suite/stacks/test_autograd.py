"""Attributes allocations of backward threads to forward lines: these threads have no Python frames.

The oracle is PyTorch's anomaly mode, which keeps the traceback that created each node
(workloads/training/anomaly_mode.py).
"""

import ast

import pytest

from conftest import WORKLOADS, gpumemtrace
from stack_dump import stacks

#: Marker allocations are at least this large; no tensor of the workload is.
MARKERS = 100_000_000
NO_FRAME = ("?", 0, "?")
VARIANTS = [("mlp",), ("resnet18", "--amp"), ("transformer",), ("transformer", "--custom"), ("mlp", "--double"),
            ("transformer", "--checkpoint")]


def line_of(script, text):
    lines = (WORKLOADS / script).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line]


def allocated_for_nodes(run, expected):
    """Yields (event, node, traceback) for each allocation that a thread makes after a marker."""
    markers = {size: (node, frames) for size, node, frames in expected}
    current = {}
    for event in run.events():
        if event["kind"] != "block_alloc":
            continue
        requested = int(event.get("requested", event["size"]))
        if requested > MARKERS and markers[requested][0] is None:
            current.clear()
        elif requested > MARKERS:
            current[event["tid"]] = markers[requested]
        elif event["tid"] in current:
            yield event, *current[event["tid"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_backward_allocations_match_anomaly_mode(run_python, torch_version, variant):
    run = run_python(torch_version, "training/anomaly_mode.py", "lines.txt", *variant)
    expected = [ast.literal_eval(line) for line in (run.folder / "lines.txt").read_text().splitlines()]
    stack = stacks(run.trace)
    told = untold = own = inside = 0
    nodes = set()
    for event, node, frames in allocated_for_nodes(run, expected):
        found = stack(event["python"])
        if not found:
            # Nodes that only accumulate gradients have no sequence number.
            assert node == "torch::autograd::AccumulateGrad", node
            untold += event["size"]
        elif found[0] == NO_FRAME:
            assert [(file, line, name.rsplit(".")[-1]) for file, line, name in found[1:]] == list(map(tuple, frames)), node
            told += event["size"]
            nodes.add(node)
        else:
            # Python code run by the engine: a custom backward, or a recomputed forward pass.
            own += event["size"]
            if NO_FRAME in found:
                forward = found[found.index(NO_FRAME) + 1 :]
                assert [(file, line, name.rsplit(".")[-1]) for file, line, name in forward] == list(map(tuple, frames)), node
                inside += event["size"]
    assert len(nodes) >= 3 and told > 0
    assert own == 0 or "--custom" in variant or "--checkpoint" in variant
    assert inside >= 0.95 * own
    assert told + own >= 0.95 * (told + untold + own)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", ["mlp", "resnet18", "transformer"])
def test_gradients_are_attributed_to_forward_lines(run_python, torch_version, model):
    run = run_python(torch_version, "training/train.py", "--model", model)
    stack = stacks(run.trace)
    allocs = [event for event in run.events() if event["kind"] == "block_alloc"]
    forward = sum(event["size"] for event in allocs if stack(event["python"])[:1] == [NO_FRAME])
    nowhere = sum(event["size"] for event in allocs if not event["python"])
    assert forward >= 0.95 * (forward + nowhere) > 0, "share of the backward pass's bytes"
    line = line_of("training/train.py", "criterion(model(")
    report = run.report()
    sites = next(peak for peak in report["peak"] if peak["layer"] == "torch")["sites"]
    gradients = [share["site"] for share in sites if share["site"].get("is_backward")]
    assert gradients
    for site in gradients:
        assert site["stack"][0]["function"] == "<backward>"
        own = next(frame for frame in site["stack"] if frame.get("is_own"))
        assert (own["file"], own["line"]) == (site["file"], site["line"])
        assert [frame["line"] for frame in site["stack"] if frame["file"] and frame["file"].endswith("train.py")] == line
    assert all(entry["site"]["file"] for entry in sites), "every byte has a line"
    assert any(note["kind"] == "backward_at_forward_line" for note in report["traces"][0]["notes"])
    text = gpumemtrace("replay", run.trace, "--peak")
    assert " (backward)\n" in text


@pytest.mark.slow("torch.compile imports for seconds")
@pytest.mark.parametrize("how", ["checkpoint", "reentrant", "compiled"])
def test_python_code_of_the_backward_pass_is_at_the_forward_line(run_python, torch_version, how):
    """Only libraries are on the stacks of these threads, so their lines would not help a user."""
    run = run_python(torch_version, "stacks/recomputed.py", how)
    stack = stacks(run.trace)
    [line] = line_of("stacks/recomputed.py", "# compiled" if how == "compiled" else "# recomputed")
    inside = 0
    for event in run.events():
        frames = stack(event["python"]) if event["kind"] == "block_alloc" else []
        if NO_FRAME in frames[1:]:
            forward = next(frame for frame in frames[frames.index(NO_FRAME) :] if frame[0].endswith("recomputed.py"))
            assert forward[1] == line
            inside += 1
    assert inside > 20
    [torch] = [peak for peak in run.report("--peak")["peak"] if peak["layer"] == "torch"]
    assert {site["site"]["file"].rsplit("/")[-1] for site in torch["sites"]} == {"recomputed.py"}


def test_exception_in_backward_propagates(run_python, torch_version):
    with_us, without = (
        run_python(torch_version, "training/anomaly_mode.py", "lines.txt", "mlp", "--fail", traced=traced, name=str(traced))
        for traced in (True, False)
    )
    assert with_us.process.stdout == without.process.stdout
    assert "one of the variables needed for gradient computation has been modified" in with_us.process.stdout
    # After the exception the thread is idle, then serves other backward passes.
    stack = stacks(with_us.trace)
    last = [event for event in with_us.events() if event["kind"] == "block_alloc" and stack(event["python"])[:1] == [NO_FRAME]][-1]
    [line] = line_of("training/anomaly_mode.py", "torch.ones(4, device=device, requires_grad=True).exp().sum().backward()")
    assert stack(last["python"])[1][1] == line


def test_no_lines_without_python_stacks(run_python, torch_version):
    run = run_python(torch_version, "training/train.py", GPUMEMTRACE_STACKS="none")
    assert all(event["python"] == 0 for event in run.events())
