"""Programs with compilers, trainers and libraries, run by `gpumemtrace simulate`."""

import importlib.metadata
import re
import subprocess

import pytest
from installed_package import trainers_of
from support.simulated import make_stock_environment, simulate_program, site_packages

MODEL = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
"""
COMPILED = MODEL + """
run = torch.compile(model, OPTIONS)
for step in range(3):
    run(torch.randn(512, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("peak", torch.cuda.max_memory_allocated())
"""
MISSING = "torch.compile failed: the package triton is not installed"


@pytest.fixture
def stock(torch_version, tmp_path):
    return make_stock_environment(torch_version, tmp_path / "stock")


def peak_of(printed):
    return int(re.search(r"peak (\d+)", printed)[1])


@pytest.mark.slow("torch.compile imports for seconds")
def test_backends_without_code_generation_run(stock, tmp_path):
    peaks = {}
    for name, options in (("eager", "backend='eager'"), ("aot_eager", "backend='aot_eager'"), ("none", "disable=True")):
        printed, said = simulate_program(tmp_path, stock, COMPILED.replace("OPTIONS", options), "--no-report")
        assert MISSING not in said
        peaks[name] = peak_of(printed)
    assert peaks["eager"] == peaks["none"] and peaks["aot_eager"] > 100 << 20


@pytest.mark.long
def test_missing_triton_is_one_sentence(stock, tmp_path):
    if (site_packages(stock) / "triton").exists():
        pytest.skip("this environment has triton")
    program = COMPILED.replace("OPTIONS", "")
    _, said = simulate_program(tmp_path, stock, program, "--no-report", code=1)
    [line] = [line for line in said.splitlines() if line.startswith("gpumemtrace: torch.compile failed")]
    assert MISSING in line and "TORCHDYNAMO_DISABLE=1" in line
    # PyTorch's own error follows.
    assert said.index("Cannot find a working triton installation") > said.index(line)
    printed, said = simulate_program(tmp_path, stock, program, "--no-report", TORCHDYNAMO_DISABLE="1")
    assert peak_of(printed) > 100 << 20 and "torch.compile" not in said
    # Nothing fails if a compiled function is not called.
    _, said = simulate_program(tmp_path, stock, MODEL + "torch.compile(model)\n", "--no-report")
    assert "torch.compile" not in said


@pytest.mark.parametrize("option", ["-lcuda", "-l:libcuda.so.1"])
def test_triton_links_with_the_simulated_driver(stock, tmp_path, option):
    """Builds a library in Triton's way, which is `-lcuda` up to Triton 3.2. Kernels that are chosen
    by their speed stay out of the caches of other runs."""
    program = """
import ctypes, os, subprocess

folder = os.environ["TRITON_LIBCUDA_PATH"]
source = "int cuDeviceGetCount(int *); int count(void) { int n = -1; cuDeviceGetCount(&n); return n; }"
command = ["gcc", "-x", "c", "-", "-x", "none", "-shared", "-fPIC", "-o", "utils.so", "OPTION", f"-L{folder}", f"-Wl,-rpath,{folder}"]
subprocess.run(command, input=source, text=True, check=True, env=os.environ | {"LD_PRELOAD": ""})
import torch

torch.zeros(1, device="cuda")
print(ctypes.CDLL("./utils.so").count(), len({line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so" in line}))
print(os.environ["TRITON_CACHE_DIR"], os.environ["TORCHINDUCTOR_CACHE_DIR"])
"""
    program = program.replace("OPTION", option)
    printed, _ = simulate_program(tmp_path, stock, program, "--no-report", "--gpu-count", 3, TRITON_CACHE_DIR="/elsewhere")
    kernels = tmp_path / "cache" / "gpumemtrace" / "simulated-kernels"
    assert printed == f"3 1\n{kernels / 'triton'} {kernels / 'inductor'}\n"


@pytest.mark.long  # installs triton (300 MB)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor_compiles_and_needs_less(stock, tmp_path, mode):
    [metadata] = importlib.metadata.distributions(name="torch", path=[str(site_packages(stock))])
    required = next(line.split(";")[0] for line in metadata.requires if line.startswith("triton"))
    install = [stock / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "triton", required]
    subprocess.run(install, check=True)

    def peak(options):
        program = COMPILED.replace("OPTIONS", options).replace("nn.GELU()", "nn.GELU(), nn.Tanh(), nn.Sigmoid()")
        printed, said = simulate_program(tmp_path, stock, program, "--no-report", PYTHONPATH=str(tmp_path / "triton"))
        assert "torch.compile" not in said
        return peak_of(printed)

    assert peak(f"mode='{mode}'") < peak("disable=True")
    assert any((tmp_path / "cache" / "gpumemtrace" / "simulated-kernels" / "triton").rglob("*.cubin"))


def test_grad_scaler_steps_and_checkpoints_recompute(stock, tmp_path):
    program = MODEL + """
scaler = torch.amp.GradScaler("cuda")
made = {}
for recompute in (False, True):
    torch.cuda.reset_peak_memory_stats()
    for step in range(3):
        x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.float16):
            out = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
            made["out"] = out.dtype
            loss = out.float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        del out, loss, x
    made[recompute] = torch.cuda.max_memory_allocated()
states = [state["exp_avg"].numel() for state in optimizer.state.values()]
print(made["out"], len(states), made[False] > made[True], scaler.is_enabled())
"""
    printed, _ = simulate_program(tmp_path, stock, program, "--no-report")
    # The optimizer has made its states: the scaler did not skip its steps.
    assert printed == "torch.float16 4 True True\n"


@pytest.mark.long
def test_transformers_from_a_config_trains(torch_version, stock, tmp_path):
    program = """
import torch
from transformers import AutoModelForCausalLM, GPT2Config, Trainer, TrainingArguments

config = GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=1000, n_positions=128)
model = AutoModelForCausalLM.from_config(config)
rows = [{"input_ids": torch.arange(128), "labels": torch.arange(128)} for _ in range(64)]
settings = TrainingArguments("out", max_steps=6, per_device_train_batch_size=4, bf16=True, report_to=[], save_strategy="no",
                             disable_tqdm=True, gradient_checkpointing=True)
trainer = Trainer(model, settings, train_dataset=rows)
trainer.train()
print("steps", trainer.state.global_step, next(model.parameters()).device)
"""
    how = {"PYTHONPATH": str(trainers_of(torch_version)), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    printed, _ = simulate_program(tmp_path, stock, program, "--no-report", **how)
    assert "steps 6 cuda:0" in printed


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 2])
def test_lightning_trains(torch_version, stock, tmp_path, devices):
    program = f"""
import torch
import lightning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def training_step(self, batch, number):
        pixels, labels = batch
        loss = nn.functional.cross_entropy(self.net(pixels), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = DataLoader(TensorDataset(torch.randn(640, 256), torch.randint(10, (640,))), batch_size=16)
trainer = lightning.Trainer(accelerator="gpu", devices={devices}, strategy="ddp" if {devices} > 1 else "auto", max_steps=6,
                            precision="bf16-mixed", logger=False, enable_progress_bar=False)
trainer.fit(Model(), data)
print(f"rank {{trainer.global_rank}} made {{trainer.global_step}} steps", flush=True)
"""
    how = {"PYTHONPATH": str(trainers_of(torch_version)), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    printed, _ = simulate_program(tmp_path, stock, program, "--gpu-count", devices, "--no-report", **how)
    assert all(f"rank {rank} made 6 steps" in printed for rank in range(devices)), printed
