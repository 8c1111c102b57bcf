"""Trains a model of Llama's 70B shape, sharded over all ranks with FSDP2.

usage: torchrun --nproc-per-node N llama_70b.py [--steps N] [--layers N] [--length N] ...

Each rank prints the bytes that its tensors take after the last step, its peak, and the most host
memory that it used.
"""

import argparse
import os
import resource

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

SHAPE = {"steps": 3, "batch_size": 1, "length": 4096, "layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocabulary": 128256}
parser = argparse.ArgumentParser()
for name, value in SHAPE.items():
    parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
parser.add_argument("--parameters", choices=["bfloat16", "float32"], default="bfloat16", help="type of the sharded parameters")
parser.add_argument("--optimizer", choices=["fused", "foreach"], default="fused")
args = parser.parse_args()


class Layer(nn.Module):
    """Attention with grouped queries, and a gated feed-forward part."""

    def __init__(self):
        super().__init__()
        head = args.width // args.heads
        self.norms = nn.ModuleList(nn.RMSNorm(args.width) for _ in range(2))
        self.q = nn.Linear(args.width, args.width, bias=False)
        self.k, self.v = (nn.Linear(args.width, args.kv_heads * head, bias=False) for _ in range(2))
        self.out = nn.Linear(args.width, args.width, bias=False)
        self.gate, self.up = (nn.Linear(args.width, args.ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(args.ffn, args.width, bias=False)

    def forward(self, x, angles):
        normed = self.norms[0](x)
        q, k, v = (part(normed).unflatten(-1, (-1, args.width // args.heads)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def rotate(x, angles):
    cos, sin = angles
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(args.vocabulary, args.width)
        self.layers = nn.ModuleList(Layer() for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.width)
        self.head = nn.Linear(args.width, args.vocabulary, bias=False)

    def forward(self, ids, angles):
        x = self.embedding(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, angles, use_reentrant=False)
        return self.head(self.norm(x))


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
with torch.device("meta"):
    model = Llama().to(getattr(torch, args.parameters))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
for part in (model.embedding, *model.layers, model.head):
    fully_shard(part, mp_policy=policy)
fully_shard(model, mp_policy=policy)
model.to_empty(device="cuda")
with torch.no_grad():
    for parameter in model.parameters():
        parameter.to_local().normal_(std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **{args.optimizer: True})

angle = torch.outer(torch.arange(args.length, device="cuda"), 500_000.0 ** -torch.linspace(0, 1, args.width // args.heads // 2, device="cuda"))
angles = angle.cos().bfloat16(), angle.sin().bfloat16()
for step in range(args.steps):
    optimizer.zero_grad()
    ids = torch.randint(args.vocabulary, (args.batch_size, args.length), device="cuda")
    loss = F.cross_entropy(model(ids, angles).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    del loss
# PyTorch counts the workspaces of cuBLAS as allocated.
torch._C._cuda_clearCublasWorkspaces()
requested = torch.cuda.memory_stats()["requested_bytes.all.current"]
host_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(f"rank {rank}: {requested} bytes after a step, at most {torch.cuda.max_memory_allocated()} allocated, {host_kib} KiB of host memory", flush=True)
dist.destroy_process_group()
