"""What the simulated GPU computes, compared with PyTorch's CPU kernels; programs that act on it."""

import re

import pytest
from conftest import WORKLOADS, environment, python_of, run_program
from support.simulated import make_stock_environment, simulate_program

#: Each program runs on its own, and prints True if it went the way it goes on a GPU.
PROGRAMS = {
    "a stop at the last token": """
        lengths, done, steps = torch.tensor([3, 5, 2]).cuda(), torch.zeros(3, dtype=torch.bool).cuda(), 0
        while not done.all():
            steps += 1
            done |= lengths <= steps
        print(steps == 5)
    """,
    "unfinished sequences, as in generate()": """
        unfinished, tokens = torch.ones(2, dtype=torch.long, device="cuda"), torch.ones(2, 1, dtype=torch.long, device="cuda")
        while unfinished.max() != 0:
            token = torch.randn(2, 100, device="cuda").softmax(-1).argmax(-1)
            token = token * unfinished + 7 * (1 - unfinished)
            tokens = torch.cat([tokens, token[:, None]], -1)
            unfinished = unfinished & ~(torch.isin(token, torch.tensor([0, 99], device="cuda")) | (tokens.shape[1] >= 9))
        print(tuple(tokens.shape) == (2, 9))
    """,
    "validation of a distribution": """
        loc = torch.randn(4, device="cuda")
        print(torch.distributions.Normal(loc, loc.exp(), validate_args=True).log_prob(loc).shape == (4,))
    """,
    "checks of finite values": """
        x = torch.randn(8, 8, device="cuda")
        assert torch.isfinite(x).all() and not torch.isnan(x).any() and not (x.sum() == 0)
        assert torch.isfinite(x.sum()) and not (~torch.isfinite(x)).any() and x[torch.isfinite(x)].shape == (64,)
        torch.testing.assert_close(x, x * 2)
        torch.linalg.eig(x)
        print(True)
    """,
    "a scripted function": """
        @torch.jit.script
        def f(x):
            return torch.where(x > 1, x, -x)
        print(f(torch.arange(3, device="cuda")).tolist() == [0, -1, 2])
    """,
    "forward-mode derivatives": """
        x = torch.ones(3, device="cuda")
        f = lambda x: torch.where(x > 0, x * x, -x).sum()
        assert torch.func.jvp(f, (x,), (x,))[0].shape == () and torch.func.jacfwd(f)(x).shape == (3,)
        print(torch.func.hessian(f)(x).shape == (3, 3))
    """,
    "forward-mode derivatives on the CPU": """
        x = torch.tensor([2.0, -3.0])
        print(torch.func.jvp(lambda x: torch.where(x > 0, x * x, -x), (x,), (torch.ones(2),))[1].tolist() == [4.0, -1.0])
    """,
    "a slice by an index on the GPU": """
        x, end = torch.randn(10, 4, device="cuda"), torch.tensor([3, 7]).cuda()
        print(x[: end.max()].shape == (7, 4) and x[end[0] : end[1]].shape == (4, 4))
    """,
    "the longest of a batch": """
        lengths = torch.tensor([3, 9, 5]).cuda()
        mask = torch.arange(int(lengths.max()), device="cuda")[None] < lengths[:, None]
        print(mask.shape == (3, 9) and int(mask.sum()) == 17)
    """,
    "experts of a mixture": """
        scores = torch.randn(32, 8, device="cuda").softmax(-1)
        chosen = scores.topk(2).indices
        seen = [torch.where(chosen == expert)[0].numel() for expert in range(8)]
        hit = torch.nn.functional.one_hot(chosen, 8).sum((0, 1)).nonzero()
        print(seen == [8] * 8 and hit.shape == (8, 1))
    """,
    "a loss scale": """
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler.scale(model(torch.randn(2, 4, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        print(scaler.get_scale() == 1024.0)
    """,
    "classes of labels": """
        labels = torch.tensor([2, 0, 4]).cuda()
        print(torch.nn.functional.one_hot(labels).shape == (3, 5) and torch.bincount(labels).tolist() == [1, 0, 1, 0, 1])
    """,
    "distinct values": """
        values, inverse, counts = torch.tensor([5, 2, 5, 9]).cuda().unique(return_inverse=True, return_counts=True)
        print((values.tolist(), inverse.tolist(), counts.tolist()) == ([2, 5, 9], [1, 0, 1, 2], [1, 2, 1]))
    """,
    "memory that is used again": """
        ones = torch.full((100,), -1, device="cuda")
        del ones
        print(torch.empty(50, device="cuda").isnan().any().item() is False)
    """,
    "memory of which some elements were set": """
        some = torch.empty(1024, dtype=torch.long, device="cuda")
        some[torch.tensor([0, 600]).cuda()] = torch.tensor([-1, -1]).cuda()
        other = torch.full((2048,), -1.0, device="cuda").uniform_()
        del some, other
        again = [torch.empty(2048, device="cuda") for _ in range(2)]
        print(all(part.tolist() == [0.0] * 2048 for part in again))
    """,
    "memory that a library uses again": """
        full = [torch.full((size,), -1, device="cuda") for size in (1, 64, 512, 4096) for _ in range(8)]
        del full
        index = torch.zeros(2, 50, dtype=torch.long, device="cuda")
        print(torch.sparse_coo_tensor(index, torch.ones(50, device="cuda"), (3, 3)).coalesce()._nnz() <= 1)
    """,
    "numbers in half precision": """
        x, factor = torch.ones(3, dtype=torch.bfloat16, device="cuda"), torch.full((), 0.5, dtype=torch.bfloat16, device="cuda")
        print((x * factor / (x[0] / factor)).tolist() == [0.25] * 3)
    """,
    "deterministic algorithms": """
        torch.use_deterministic_algorithms(True, warn_only=True)
        norm = torch.nn.LayerNorm(4).cuda()(torch.randn(2, 4, device="cuda"))
        torch.use_deterministic_algorithms(False)
        print(norm.isnan().sum().item() == 0 and torch.empty(2, dtype=torch.long, device="cuda").tolist() == [0, 0])
    """,
    "an index that is not known": """
        table, index = torch.arange(5, device="cuda"), torch.randint(0, 5, (3,), device="cuda")
        print(table[index].shape == (3,) and table[torch.randn(3, 9, device="cuda").argmax(-1)].shape == (3,))
    """,
    "a division by what is not known": """
        steps = torch.randn(3, device="cuda").long()
        print((torch.arange(3, device="cuda") // steps).shape == (3,))
    """,
    "a captured graph": """
        import ctypes
        from ctypes import byref, c_uint32, c_uint64

        def is_known(x):
            known = c_uint32()
            ctypes.CDLL("libcuda.so.1").simgpuAreKnown(c_uint64(x.data_ptr()), c_uint64(x.nbytes), byref(known))
            return bool(known.value)

        x, graph = torch.arange(4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        x.fill_(7)
        graph.replay()
        print(is_known(x) and not is_known(y))
    """,
    "the mean of what a placeholder selects": """
        x = torch.randn(8, device="cuda")
        print(not x[x > 0].mean().isnan() and bool(torch.full((2,), float("nan"), device="cuda").isnan().all()))
    """,
    "a sampled token": """
        print(torch.multinomial(torch.randn(2, 9, device="cuda").softmax(-1), 3).shape == (2, 3))
    """,
}


@pytest.fixture
def stock(torch_version, tmp_path):
    return make_stock_environment(torch_version, tmp_path / "stock")


@pytest.mark.slow("runs hundreds of PyTorch's operators")
@pytest.mark.parametrize("kind, least", [("int64", 2700), ("bool", 2000), ("float32", 2900), ("bfloat16", 2500)])
def test_known_results_of_pytorchs_operators_are_those_of_the_cpu(torch_version, tmp_path, kind, least):
    command = [python_of(torch_version), WORKLOADS / "simulate" / "operators.py", kind]
    done = run_program(list(map(str, command)), tmp_path, 300, env=environment(tmp_path, traced=False, SIMGPU_VALUES="64K"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert not re.search("DIFFERENT|ERROR", done.stdout), done.stdout
    assert int(re.search(r"equal=(\d+)", done.stdout)[1]) >= least, done.stdout


def test_programs_that_look_at_values_go_as_on_a_gpu(stock, tmp_path):
    parts = ["import torch, warnings", 'warnings.simplefilter("ignore")']
    for name, program in PROGRAMS.items():
        lines = [line[8:] for line in program.strip("\n").splitlines()]
        parts += ["def run():", *(f"    {line}" for line in lines), f'print("{name}: ", end=""); run()']
    printed, said = simulate_program(tmp_path, stock, "\n".join(parts) + "\n", "--no-report")
    assert printed.splitlines() == [f"{name}: True" for name in PROGRAMS], said


@pytest.mark.parametrize("model", ["mlp", "resnet18", "transformer"])
def test_computing_changes_no_allocation(run_python, torch_version, model):
    """These models act on no value."""
    computed, not_computed = (
        run_python(torch_version, "training/train.py", "--model", model, SIMGPU_VALUES=size, name=size) for size in ("64K", "0")
    )
    sizes = [
        [(event["kind"], event.get("size")) for event in run.events() if event["kind"].startswith(("block_", "driver_"))]
        for run in (computed, not_computed)
    ]
    assert sizes[0] == sizes[1] and len(sizes[0]) > 500


#: A loop, and the number of its line if the program must be ended.
LOOPS = {
    "a condition": ("while loss() > -1: rounds += 1 if rounds < 0 else 0\nelse: print('left')", None),
    "a condition that never holds": ("while not loss() < 0:\n    rounds += 1", 1),
    "a break": ("while True:\n    rounds += 1\n    if loss() < 0:\n        break", 1),
    "a call in the condition": ("while not is_done():\n    rounds += 1", 1),
    "a bound": ("while rounds < 12_000:\n    rounds += 1\n    if loss() < 0:\n        break\nprint('left')", None),
    "a bound of its own": (
        "while True:\n    rounds += 1\n    if loss() < 0:\n        raise ValueError\n    if rounds > 12_000:\n        break\nprint('left')",
        None,
    ),
    "a for loop": ("for _ in range(12_000):\n    if loss() < 0: break\nprint('left')", None),
    "a function that returns": ("for _ in range(3000):\n    generate(5)\nprint('left')", None),
}
LOOP = """
import torch

x, rounds = torch.randn(4, device="cuda"), 0
loss = lambda: x.sum()
is_done = lambda: bool(loss() < 0)


def generate(tokens):
    while not is_done():
        tokens -= 1
        if tokens == 0:
            return


"""


@pytest.mark.parametrize("kind", LOOPS)
def test_loop_that_waits_for_a_result_ends_with_its_line(stock, tmp_path, kind):
    loop, line = LOOPS[kind]
    line = line and line + LOOP.count("\n")
    printed, said = simulate_program(tmp_path, stock, LOOP + loop + "\n", "--no-report", code=1 if line else 0)
    sentence = f"gpumemtrace: train.py:{line}: this loop waits for a result that is not computed here, and did 10,000 rounds"
    assert (sentence in said, "left" in printed) == (bool(line), not line), said
    assert "wrote run.trace" in said


LARGE_MODEL = """
import numpy, torch
from torch import nn

layers = nn.ModuleList(nn.Linear(2048, 4096) for _ in range(8))
for layer in layers:
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.normal_(layer.bias)
data = torch.from_numpy(numpy.full(1 << 20, 7, dtype=numpy.float32)).mul_(2)
empty = sum(not layer.weight[-1].any() for layer in layers)
layers.cuda()
print(empty, torch.cuda.max_memory_allocated(), bool((data == 14).all()), all(bool(layer.bias.any()) for layer in layers))
"""


def test_initializers_of_large_weights_can_be_left_out(stock, tmp_path):
    """Eight weights have 32 MiB each. Biases and data that were read are always written."""
    how = {"none": ((), {"SIMGPU_HOST_MEMORY": "1T"}), "all": (("--skip-init",), {}), "some": ((), {"SIMGPU_HOST_MEMORY": "256M"})}
    empty, allocated, lines = [], set(), []
    for options, variables in how.values():
        printed, said = simulate_program(tmp_path, stock, LARGE_MODEL, "--no-report", *options, **variables)
        count, size, *are_written = printed.split()
        empty.append(int(count))
        allocated.add(size)
        lines.append(len(re.findall("initializers of large tensors on the CPU write nothing", said)))
        assert are_written == ["True", "True"]
        for trace in tmp_path.glob("run*.trace"):
            trace.unlink()
    assert empty[:2] == [0, 8] and 0 < empty[2] < 8 and len(allocated) == 1
    assert lines == [0, 0, 1]


STRIDED = """
import torch

x = torch.arange(24).reshape(4, 6).cuda()
index, column = torch.tensor([2, 0, 3, 1]).cuda()[::2], x.t()
limits = torch.arange(40).cuda()[::2]
OPERATIONS = [
    lambda: x.index_select(0, index), lambda: column.index_select(1, index), lambda: x.index_add(0, index, x[:2]),
    lambda: torch.searchsorted(limits, x), lambda: torch.searchsorted(torch.arange(9).cuda(), column), lambda: column.tril(),
    lambda: column.triu(1), lambda: column.cummax(0), lambda: column.cumsum(1), lambda: column.sort(0), lambda: column.topk(2),
    lambda: torch.cat([column, column]), lambda: column.take(index), lambda: column.gather(0, column % 4), lambda: column.aminmax(dim=0),
    lambda: column.flip(0), lambda: column.roll(1, 0), lambda: column.median(), lambda: column.float().mean(1),
    lambda: torch.ones(2, 40_000, dtype=torch.bool, device="cuda").all(), lambda: column.masked_fill(column > 3, 0),
]
for operation in OPERATIONS:
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    operation()
    print(torch.cuda.memory_stats()["allocation.all.allocated"] - before)
"""


def test_operations_on_strided_tensors_allocate_what_they_do_without_values(torch_version, tmp_path):
    (tmp_path / "strided.py").write_text(STRIDED)
    command = [str(python_of(torch_version)), "strided.py"]
    with_values, without = (
        run_program(command, tmp_path, env=environment(tmp_path, traced=False, SIMGPU_VALUES=size)) for size in ("64K", "0")
    )
    assert with_values.returncode == without.returncode == 0, with_values.stderr[-2000:]
    assert len(with_values.stdout.split()) == 21
    assert with_values.stdout == without.stdout
