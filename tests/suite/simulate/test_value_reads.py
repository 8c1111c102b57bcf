"""The lines that `gpumemtrace simulate` names, compared with those of PyTorch's sync debug mode."""

import json

import pytest
from support.simulated import make_stock_environment, simulate_program

#: Each is run on its own line; after `#`, why only one of the two names it.
STATEMENTS = """
x.sum().item()
x.tolist()
bool(x.sum() > 0)
int(x.sum())
float(x.sum())
complex(x.sum())
x.sum().is_nonzero()
torch.is_nonzero(x.sum())
x.cpu()
x.to("cpu")
x.to(host)
x.type("torch.FloatTensor")
torch.as_tensor(x, device="cpu")
torch.as_tensor(data=x, device="cpu")
host.copy_(x)
x.nonzero()
torch.nonzero(mask, as_tuple=True)
torch.where(mask)
mask.argwhere()
torch.argwhere(mask)
x[mask]
x[mask, None]
x[mask] = torch.ones(64, device="cuda")
x.index_put_((mask,), torch.zeros((), device="cuda"))
x.index_put_(indices=(mask,), values=torch.zeros((), device="cuda"))
x.masked_select(mask)
torch.masked_select(x, mask)
x.unique()
torch.unique(x, return_counts=True)
torch.unique_consecutive(x)
x.allclose(x)
x.histc(4)
x.to_sparse()
repr(x)
f"{x.sum():.2f}"
3 in x
max(x.sum(0))
sum(value.item() for value in x.sum(0))
torch.linalg.inv(x)
x + 1
x.to("cuda", torch.half)
x.to(torch.half)
x[0], x[index], x[:, None]
x[mask] = 1.0
torch.where(mask, x, x)
torch.repeat_interleave(x, 2)
x.repeat_interleave(index, dim=0, output_size=0)
torch.nn.utils.clip_grad_norm_([x], 1.0)
host.item() if host.numel() == 1 else host.sum().item()
torch.equal(x, x)
x.to("cpu", non_blocking=True)  # we: it does not wait for a copy that is read later
x.copy_(host)  # they: it waits, but reads nothing
index.bincount()  # they: the values are computed
torch.bincount(input=index)  # they: the values are computed
torch.repeat_interleave(x, index, dim=0)  # they: the values are computed
index.repeat_interleave(index)  # they: the values are computed
list(range(index[0]))  # they: the values are computed
"""
PROGRAM = """
import importlib.util, json, sys, warnings

# A library may look for PyTorch before it is imported.
assert importlib.util.find_spec("torch")
import torch

statements = json.loads(STATEMENTS)
x = torch.randn(8, 8, device="cuda")
mask, index, host = x > 0, torch.ones(8, dtype=torch.long, device="cuda"), torch.empty(8, 8)
theirs = set()


def note(message, *_):
    frame = sys._getframe()
    while frame and frame.f_code.co_filename != "statements":
        frame = frame.f_back
    if "called a synchronizing CUDA operation" in str(message) and frame:
        theirs.add(frame.f_lineno)


warnings.simplefilter("always")
warnings.showwarning = note
torch.cuda.set_sync_debug_mode("warn")
for line, statement in enumerate(statements):
    try:
        exec(compile("\\n" * line + statement, "statements", "exec"))
    except RuntimeError as error:
        assert any(word in str(error) for word in ("repeats can not", "shape mismatch")), statement
reads = sys.modules["_gpumemtrace_simulation.value_reads"]._reads
ours = {line for file, line in reads if file == "statements"}
repeated = [statements[line - 1] for (file, line), count in reads.items() if file == "statements" and count > 1]
for name, lines in (("ours", ours - theirs), ("theirs", theirs - ours), ("both", ours & theirs)):
    print(name, json.dumps([statements[line - 1] for line in sorted(lines)]))
print("repeated", json.dumps(repeated))
"""


@pytest.fixture
def stock(torch_version, tmp_path):
    return make_stock_environment(torch_version, tmp_path / "stock")


def test_lines_are_those_of_pytorchs_sync_debug_mode(stock, tmp_path):
    statements = STATEMENTS.strip().splitlines()
    program = PROGRAM.replace("STATEMENTS", repr(json.dumps(statements)))
    printed, said = simulate_program(tmp_path, stock, program, "--no-report")
    lines = dict(line.split(" ", 1) for line in printed.splitlines())
    found = {name: json.loads(text) for name, text in lines.items()}
    assert found["ours"] == [statement for statement in statements if "# we:" in statement]
    assert found["theirs"] == [statement for statement in statements if "# they:" in statement]
    assert len(found["both"]) == statements.index("x + 1")
    # `histc` reads two limits.
    assert found["repeated"] == ["x.histc(4)", "repr(x)", "max(x.sum(0))", "sum(value.item() for value in x.sum(0))"]
    # 8 of the lines are printed.
    assert said.count("\n  statements:") == 8 and "\n  and " in said, said
