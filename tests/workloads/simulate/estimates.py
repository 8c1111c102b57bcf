"""What tools that estimate memory say of the runs in the last table of simulate-proof.md.

usage: python estimates.py TOOL CHECKOUTS       TOOL: accelerate, deepspeed or torch-preflight

Prints JSON: the bytes for each run, or why there are none. CHECKOUTS has the repositories with the
models, as OWNER+NAME. scripts/checks/estimators runs this under `gpumemtrace simulate`, because
PyTorch for CUDA is not imported without NVIDIA's libraries.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import sys
import types
from pathlib import Path

import torch

IMAGES, TOKENS = {"image-size": 224}, {"seq-len": 256}
GIB, GB = 1 << 30, 10**9
TWO = {"ranks": 2, **IMAGES}
#: Run, model, memory on the author's card, batch; what differs from float32 with Adam on one GPU.
#: `reserved`: the author printed reserved memory, else allocated.
RUNS = [
    ("ResNet-50, batch 8", "resnet50", 1.016 * GIB, 8, IMAGES),
    ("ResNet-50, batch 32", "resnet50", 2.919 * GIB, 32, IMAGES),
    ("ResNet-50, batch 256", "resnet50", 20.993 * GIB, 256, IMAGES),
    ("ViT-B, batch 8", "vit_b", 1.962 * GIB, 8, IMAGES),
    ("ViT-B, batch 32", "vit_b", 4.844 * GIB, 32, IMAGES),
    ("ViT-B, batch 256", "vit_b", 31.491 * GIB, 256, IMAGES),
    ("ViT-L, batch 64", "vit_l", 21.304 * GIB, 64, IMAGES),
    ("ResNet-50, DDP", "resnet50", 3.018 * GIB, 32, TWO),
    ("ViT-B, DDP", "vit_b", 5.164 * GIB, 32, TWO),
    ("ViT-B, FSDP", "vit_b", 4.391 * GIB, 32, {"zero": 3, **TWO}),
    ("ViT-B, FSDP, `shard_grad_op`", "vit_b", 4.681 * GIB, 32, {"zero": 2, **TWO}),
    ("ViT-B, FSDP, checkpoints", "vit_b", 1.151 * GIB, 32, {"zero": 3, "checkpointing": True, **TWO}),
    ("ViT-B, FSDP, fp16", "vit_b", 2.377 * GIB, 32, {"zero": 3, "dtype": "pure-fp16", **TWO}),
    ("GAOYUEtianc, small, backward", "gao_small", 26.18 * GB, 64, {"optimizer": "sgd", "reserved": True, **TOKENS}),
    ("GAOYUEtianc, small, backward, bf16", "gao_small", 19.46 * GB, 64, {"dtype": "amp", "optimizer": "sgd", "reserved": True, **TOKENS}),
    ("GAOYUEtianc, large, backward", "gao_large", 58.26 * GB, 32, {"optimizer": "sgd", "reserved": True, **TOKENS}),
    ("kbjiang, XL", "xl", 50.0278 * GIB, 4, {"optimizer": "adamw", "seq-len": 512}),
    ("rasbt, ViT-L, batch 64", "vit_l10", 26.79 * GB, 64, {"reserved": True, **IMAGES}),
    ("rasbt, ViT-L, batch 64, 16-mixed", "vit_l10", 18.21 * GB, 64, {"dtype": "amp", "reserved": True, **IMAGES}),
    ("rasbt, ViT-L, batch 64, bf16-true", "vit_l10", 13.82 * GB, 64, {"dtype": "pure-bf16", "reserved": True, **IMAGES}),
    ("rasbt, ViT-L, batch 16, bf16-true", "vit_l10", 5.69 * GB, 16, {"dtype": "pure-bf16", "reserved": True, **IMAGES}),
    ("rasbt, GPT-2", "gpt2", 26.2617 * GIB, 8, {"optimizer": "adamw", "reserved": True, "seq-len": 1024}),
    ("pytorch/ao, ViT-H, AdamW", "vit_h", 12.23 * GB, 8, {"dtype": "amp", "optimizer": "adamw", **IMAGES}),
]


def of_repository(path):
    """A module of a checked-out repository."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torchvision(name, **how):
    return getattr(__import__("torchvision").models, name)(weights=None, **how)


def language_model(checkouts, layers, width, heads, inner):
    model = of_repository(checkouts / "GAOYUEtianc+Stanford-CS336-assignments" / "assignment1" / "transformer.py")
    return model.TransformerLM(vocab_size=10000, context_length=256, d_model=width, num_layers=layers, num_heads=heads,
                               d_ff=inner, rope_theta=10000.0, device=None, dtype=None)


def xl(checkouts):
    sys.path.insert(0, str(checkouts / "damek+cs336-assignment2-systems" / "cs336-basics"))
    # The package asks for its own version, and is not installed.
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "1" if name.startswith("cs336") else version(name)
    from cs336_basics.model import BasicsTransformerLM

    return BasicsTransformerLM(vocab_size=10000, context_length=512, d_model=1600, num_layers=48, num_heads=25, d_ff=6400, rope_theta=10000)


def gpt2(checkouts):
    sys.modules.setdefault("tiktoken", types.ModuleType("tiktoken"))
    program = of_repository(checkouts / "rasbt+LLMs-from-scratch" / "ch05" / "10_llm-training-speed" / "00_orig.py")
    return program.GPTModel({"vocab_size": 50257, "context_length": 1024, "emb_dim": 768, "n_heads": 12, "n_layers": 12,
                             "drop_rate": 0.1, "qkv_bias": False})


def entry_points(checkouts):
    """The models by name, in a module that torch-preflight imports."""
    models = sys.modules["models"] = types.ModuleType("models")
    models.resnet50 = lambda: torchvision("resnet50")
    models.vit_b = lambda: torchvision("vit_b_16")
    models.vit_l = lambda: torchvision("vit_l_16")
    models.vit_l10 = lambda: torchvision("vit_l_16", num_classes=10)
    models.vit_h = lambda: __import__("timm").create_model("vit_huge_patch14_224", num_classes=45)
    models.gao_small = lambda: language_model(checkouts, 12, 768, 12, 3072)
    models.gao_large = lambda: language_model(checkouts, 36, 1280, 20, 5120)
    models.xl, models.gpt2 = lambda: xl(checkouts), lambda: gpt2(checkouts)
    return models


def by_accelerate(model, batch, dtype="float32", **_):
    from accelerate import init_empty_weights
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with init_empty_weights():
        size, _ = calculate_maximum_sizes(getattr(sys.modules["models"], model)())
    return max(estimate_training_usage(size, "bfloat16" if dtype == "amp" else "float32").values())


def by_deepspeed(model, batch, ranks=1, zero=None, **_):
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs, model_to_params
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    total, largest = model_to_params(getattr(sys.modules["models"], model)())
    if zero == 3:
        return estimate_zero3_model_states_mem_needs(total, largest, ranks, 1, cpu_offload=False, cpu_offload_params=False, zero_init=True)[1]
    return estimate_zero2_model_states_mem_needs(total, ranks if zero else 1, 1, cpu_offload=False)[1]


def by_torch_preflight(model, batch, dtype="fp32", optimizer="adam", ranks=1, zero=None, checkpointing=False, reserved=False, **sizes):
    from torch_preflight.cli import main

    options = ["estimate", "-f", "json", "--model", f"models:{model}", "--batch-size", batch, "--optimizer", optimizer, "--dtype", dtype,
               "--gpu-memory", "80GiB", *(word for name, size in sizes.items() for word in (f"--{name}", size))]
    if ranks > 1:
        options += ["--world-size", ranks, "--sharding", f"zero-{zero}" if zero else "ddp"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([str(word) for word in options + ["--checkpointing"] * checkpointing])
    answer = json.loads(printed.getvalue())
    if not answer.get("total_bytes"):
        return f"no answer: {answer['model']['reason']}"
    parts = answer["breakdown"]
    return answer["total_bytes"] - parts["CUDA_context"] - (0 if reserved else parts["fragmentation"])


def main():
    tool, checkouts = sys.argv[1], Path(sys.argv[2])
    estimate = {"accelerate": by_accelerate, "deepspeed": by_deepspeed, "torch-preflight": by_torch_preflight}[tool]
    entry_points(checkouts)
    answers = {}
    for name, model, real_bytes, batch, how in RUNS:
        try:
            answer = estimate(model, batch, **how)
        except Exception as error:  # an estimator that cannot answer is a result
            answer = f"{type(error).__name__}: {error}"
        answers[name] = {"real": real_bytes, "answer": answer}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
