"""`gpumemtrace simulate` with a stock PyTorch: an environment without simulated libraries."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import COMMAND, dump, gpumemtrace
from support.simulated import clean_environment, make_stock_environment, site_packages, simulate_program

TRAIN = """
import torch

properties = torch.cuda.get_device_properties(0)
print(properties.name, properties.total_memory, properties.major, properties.minor, properties.multi_processor_count, torch.cuda.device_count())
model = torch.nn.Linear(1024, 4096).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    loss = model(torch.randn(64, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    if loss > 1:
        print("large")
"""


@pytest.fixture
def stock(torch_version, tmp_path):
    return make_stock_environment(torch_version, tmp_path / "stock")


def simulate(folder, stock, *arguments, program=TRAIN, **settings):
    return simulate_program(folder, stock, program, *arguments, **settings)


def state_of(folder):
    """Each file with its size and the time of its last change."""
    facts = ((path.relative_to(folder), path.lstat()) for path in sorted(folder.rglob("*")))
    return [(path, fact.st_size, fact.st_mtime_ns, fact.st_mode) for path, fact in facts]


def test_stock_environment_runs_and_stays_as_it_was(stock, tmp_path):
    before = state_of(stock)
    printed, said = simulate(tmp_path, stock, "--card", "A100", "--gpu-count", 2, "--steps", 6)
    assert state_of(stock) == before
    assert printed.startswith("NVIDIA A100 (80 GB), simulated 84974239744 8 0 108 2\n"), printed
    assert "simulating 2 x NVIDIA A100 (80 GB), 79.14 GiB" in said and "only small tensors are computed" in said
    # The report of the trace follows, and says that the card was simulated.
    assert "GPU 0 (NVIDIA A100 (80 GB), simulated, 79.14 GiB)" in printed and "6 steps" in printed
    assert any(event["kind"] == "block_alloc" for event in dump(tmp_path / "run.trace"))


@pytest.mark.slow("starts PyTorch for each limit")
def test_limits_of_a_multiprocessor_size_the_workspaces(stock, tmp_path):
    program = """
import torch

x = torch.empty(40_000, 1000, device="cuda")
x.sum(0)
print(torch.cuda.get_device_properties(0).multi_processor_count, torch.cuda.max_memory_allocated() - x.nbytes)
"""

    def workspace(*card):
        printed, _ = simulate(tmp_path, stock, "--no-report", *card, program=program)
        return tuple(map(int, printed.split()))

    # A multiprocessor of an RTX 3090 holds 1536 threads, one of the others 2048.
    bytes_of = {name: workspace("--card", name) for name in ("A100", "H100", "RTX 3090")}
    per_thread = {name: size / count for name, (count, size) in bytes_of.items()}
    assert per_thread["A100"] == pytest.approx(per_thread["H100"], rel=0.01)
    assert per_thread["RTX 3090"] == pytest.approx(per_thread["H100"] * 0.75, rel=0.01)
    like_a_3090 = workspace("--card", "24GiB", "--capability", "8.6")
    assert like_a_3090 == bytes_of["RTX 3090"]


@pytest.mark.every_torch
def test_sort_runs_the_code_of_an_older_card(stock, tmp_path):
    """PyTorch has no code for compute capability 8.9. CUB refuses any other than PyTorch's own."""
    program = """
import torch

embedding = torch.nn.Embedding(1000, 8).cuda()
embedding(torch.randint(0, 1000, (8, 1024)).cuda()).sum().backward()
print("sorted")
"""
    printed, _ = simulate(tmp_path, stock, "--no-report", "--card", "RTX 4090", program=program)
    assert printed == "sorted\n"


def test_range_over_addresses_is_printed(stock, tmp_path, torch_version):
    """Two segments of three blocks. Which of two free blocks is taken decides where a larger one
    fits."""
    program = """
import torch

blocks = [torch.empty(6 << 20, dtype=torch.uint8, device="cuda") for _ in range(6)]
blocks[0] = blocks[3] = None
one = torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
blocks[1] = None
other = torch.empty(9 << 20, dtype=torch.uint8, device="cuda")
"""
    _, said = simulate(tmp_path, stock, program=program)
    line = "gpumemtrace: run.trace: peak reserved on a real GPU: 40.00 MiB to 60.00 MiB over 17 orders of segment addresses"
    decides = tuple(map(int, torch_version.split(".")[:2])) < (2, 12)
    assert (line in said, "on a real GPU: " in said) == (decides, decides), said


def test_nvidias_packages_are_not_used(stock, tmp_path):
    """PyTorch opens NVIDIA's libraries by path. Here, others stand for them."""
    packages = site_packages(stock)
    cuda = re.search(r"^cuda.*'(\d+)", (packages / "torch" / "version.py").read_text(), re.MULTILINE)[1]
    for folder in (f"nvidia/cu{cuda}/lib", "nvidia/cublas/lib", "nvidia/cuda_runtime/lib"):
        (packages / folder).mkdir(parents=True)
        for name in (f"libcublasLt.so.{cuda}", f"libcudart.so.{cuda}"):
            build_library(packages / folder / name, "int cudaGetDeviceCount(int *n) { *n = 0; return 100; }", f"-Wl,-soname,{name}")
    program = TRAIN + 'print(*sorted(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line))\n'
    printed, _ = simulate(tmp_path, stock, "--no-report", program=program.replace("range(1000)", "range(2)"))
    assert str(tmp_path / "cache") in printed
    assert sum(event["kind"] == "block_alloc" for event in dump(tmp_path / "run.trace")) > 10


def test_library_with_its_own_cuda_runtime_is_named(stock, tmp_path):
    """NVIDIA's runtime asks for tables that verify the driver. This library does just that."""
    source = """
#include <dlfcn.h>
int ask(void) {
    const void *table;
    int (*get)(const void **, const void *) = (int (*)(const void **, const void *))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetExportTable");
    return get(&table, "0123456789abcdef");
}
"""
    build_library(tmp_path / "extension.so", source)
    program = 'import ctypes, torch\ntorch.zeros(1, device="cuda")\next = ctypes.CDLL("./extension.so")\nprint(ext.ask(), ext.ask())\n'
    printed, said = simulate(tmp_path, stock, "--no-report", program=program)
    assert printed == "801 801\n"
    assert said.count("the CUDA runtime in ./extension.so runs only on NVIDIA's driver; all its calls fail") == 1, said


def test_lines_that_read_values_are_named(stock, tmp_path):
    _, said = simulate(tmp_path, stock, "--steps", 4, "--no-report")
    # The fourth step ends the program before it compares.
    assert re.search(r"read results that are not computed.*\n  train\.py:12, 3 times\n", said), said


def test_missing_workspaces_are_named(stock, tmp_path):
    # Without a backward pass, whose threads may abort PyTorch at its end (conftest.py).
    program = "import torch\nlayer = torch.nn.{}.cuda()\nlayer(torch.rand(2, 8, 16, 16, device='cuda'))\n"
    line = "workspaces of convolutions are unknown here"
    _, said = simulate(tmp_path, stock, "--no-report", program=program.format("Conv2d(8, 8, 3)"))
    assert said.count(line) == 1, said
    _, said = simulate(tmp_path, stock, "--no-report", program=program.format("Linear(16, 8)"))
    assert line not in said


@pytest.mark.slow("starts PyTorch for each card")
def test_card_that_is_too_small_runs_out_of_memory(stock, tmp_path):
    program = TRAIN.replace("range(1000)", "range(2)") + 'torch.empty(700 << 20, dtype=torch.uint8, device="cuda")\n'
    simulate(tmp_path, stock, "--card", "2GiB", program=program)
    printed, said = simulate(tmp_path, stock, "--card", "1GiB", program=program, code=1)
    assert "OutOfMemoryError" in said and "Out of memory in step 2 on GPU 0 at train.py:14" in printed, said
    # The context took more than half of this card.
    assert "although recorded calls had left" in printed and "contexts or other processes used it" in printed


def test_library_without_memory_is_told_apart(stock, tmp_path):
    """cuBLAS asks the driver for 64 MiB. PyTorch's own requests all succeed."""
    program = """
import torch

filled = torch.empty(torch.cuda.mem_get_info()[0] - (48 << 20), dtype=torch.uint8, device="cuda")
matrix = torch.ones(8, 8, device="cuda")
matrix @ matrix
"""
    _, said = simulate(tmp_path, stock, "--no-report", "--card", "2GiB", program=program, code=1)
    assert "CUBLAS_STATUS" in said
    told = gpumemtrace("replay", tmp_path / "run.trace", "--oom")
    assert "PyTorch had no out-of-memory error.\n  1 driver call failed, 1 for lack of memory" in told, told


def test_two_commands_with_an_empty_cache(stock, tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    env = clean_environment() | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    running = []
    for folder in folders:
        folder.mkdir()
        (folder / "train.py").write_text(TRAIN)
        command = [COMMAND, "simulate", "--steps", "2", "--no-report", "--", stock / "bin" / "python", "train.py"]
        running.append(subprocess.Popen(command, cwd=folder, env=env))
    assert [process.wait(300) for process in running] == [0, 0]
    [made] = (tmp_path / "cache" / "gpumemtrace" / "simulated").iterdir()
    assert (made / "libcuda.so.1").is_file() and all((folder / "run.trace").is_file() for folder in folders)


def test_cache_that_others_can_change_is_not_used(stock, tmp_path):
    """The libraries in it are preloaded."""
    cache = tmp_path / "cache" / "gpumemtrace"
    (cache / "simulated").mkdir(parents=True)
    cache.chmod(0o777)
    (tmp_path / "train.py").write_text("print('done')")
    done = subprocess.run([COMMAND, "simulate", "--no-report", "--", stock / "bin" / "python", "train.py"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=300, env=clean_environment() | {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert f"not using the cache of simulated libraries: {cache} can be written by other users" in done.stderr
    assert list((cache / "simulated").iterdir()) == []


def test_what_cannot_be_simulated_is_one_sentence(tmp_path):
    def refusal(*command):
        done = subprocess.run([COMMAND, "simulate", "--", *command], cwd=tmp_path, capture_output=True, text=True, timeout=60,
                              env=os.environ | {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    assert "is neither Python nor a Python script" in refusal("/bin/true")
    for missing in ("torchrun-of-no-environment", "./torchrun"):
        said = refusal(missing, "--nproc-per-node", "2", "train.py")
        assert f"{missing} was not found" in said and "neither" not in said
    assert "has no PyTorch" in refusal(sys.executable, "-c", "") or "torch" in sys.modules
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "lib").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1+cpu'\ncuda: str = None\n")
    assert "this torch is not a CUDA build" in refusal(sys.executable, "-c", "")


def test_card_without_a_name_is_said_to_be_assumed(stock, tmp_path):
    """The H100 decides what fits, and its compute capability how large workspaces are."""
    program = "import torch; print(torch.cuda.get_device_properties(0).total_memory)"
    line = "gpumemtrace: NVIDIA H100 (SXM) is assumed; name your card with --card, such as --card A100 or --card 24GiB"
    printed, said = simulate(tmp_path, stock, "--no-report", program=program)
    assert printed == "84929347584\n" and said.splitlines()[1] == line, said
    for card, total in (("94.97GiB", 101973261025), ("700MiB", 700 << 20), ("RTX PRO 6000", 101974081536)):
        printed, said = simulate(tmp_path, stock, "--card", card, "--no-report", program=program)
        assert printed == f"{total}\n" and line not in said, said


def test_card_without_room_for_a_context_is_refused(tmp_path):
    done = subprocess.run([COMMAND, "simulate", "--card", "512MiB", "--", "python", "train.py"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 2 and "a CUDA context alone takes 526.81 MiB, so a card needs more" in done.stderr, done.stderr


def test_wheel_without_requirements_gets_the_cudnn_that_it_was_compiled_against(stock, tmp_path):
    """PyTorch refuses an older cuDNN than this one."""
    [metadata] = site_packages(stock).glob("torch-*.dist-info/METADATA")
    kept = [line for line in metadata.read_text().splitlines() if not line.startswith("Requires-Dist: nvidia")]
    metadata.unlink()  # it is a hard link
    metadata.write_text("\n".join(kept))
    program = """
import torch

major, minor, patch = torch._C._cudnn.getCompileVersion()
print(torch.backends.cudnn.version() - (10000 * major + 100 * minor + patch))
"""
    printed, said = simulate(tmp_path, stock, "--no-report", program=program)
    assert printed == "0\n" and "cuDNN" not in said, said


def test_cudnn_of_an_unknown_version_is_said_to_be_unknown(stock, tmp_path):
    """A wheel without requirements, in an environment that cannot import it when asked."""
    [metadata] = site_packages(stock).glob("torch-*.dist-info/METADATA")
    metadata.unlink()
    start = tmp_path / "start" / "sitecustomize.py"
    start.parent.mkdir()
    start.write_text("import os, sys\nif 'getCompileVersion' in ' '.join(sys.orig_argv):\n    os._exit(1)\n")
    for _ in range(2):  # with an empty cache, and with a filled one
        _, said = simulate(tmp_path, stock, "--no-report", program="import torch", PYTHONPATH=str(start.parent))
        assert "gpumemtrace: the cuDNN that this PyTorch was compiled against is unknown; it sees 9.10.2\n" in said, said


FAILS_EARLY = {
    "built": """
with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)])
""",
    "moved": """
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)])
for parameter in model.parameters():
    parameter.data = parameter.data.cuda().half()
""",
    "initialised": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512)
        nn.init.orthogonal_(self.linear.weight)

with torch.device("cuda"):
    model = nn.ModuleList([Block() for _ in range(16)])
""",
    "keeps": """
model = nn.Linear(1024, 1024).cuda()
kept = []
for _ in range(40):
    kept.append(model(torch.randn(8, 1024, device="cuda")))
""",
}


@pytest.mark.parametrize("kind", FAILS_EARLY)
def test_weights_of_a_program_that_failed_are_no_likely_leak(stock, tmp_path, kind):
    program = "import torch\nfrom torch import nn\n" + FAILS_EARLY[kind] + "raise ValueError('wrong configuration')\n"
    printed, said = simulate(tmp_path, stock, program=program, code=1)
    assert "ValueError: wrong configuration" in said and "exited with code 1" in printed
    assert ("Likely leak" in printed) == (kind == "keeps"), printed


def test_capability_needs_a_card_of_a_size(tmp_path):
    command = [COMMAND, "simulate", "--card", "A100", "--capability", "8.6", "--", "python", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--capability: it needs a --card given as a size" in done.stderr


def build_library(path, source, *options):
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, "-x", "c", "-", *options, "-ldl"], input=source, text=True, check=True)
