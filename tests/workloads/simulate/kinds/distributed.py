"""Parallel training on two ranks: torchrun --nproc-per-node 2 run_kinds.py distributed.

Ranks of simulated GPUs receive what they would if all ranks had the same data, so these have. Sums
over ranks stay unchanged, so no program prints one.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("cpu:gloo,cuda:nccl")
# The group makes its tensor for barriers.
dist.barrier()


def layers(device, inner=32):
    return nn.Sequential(nn.Linear(16, inner), nn.ReLU(), nn.Linear(inner, 16)).to(device)


def step(model, x):
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return [(name, tuple(parameter.shape), parameter.grad is not None) for name, parameter in model.named_parameters()]


def collectives(device):
    x = torch.tensor([4, 10], device=device)
    largest = x.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    parts = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(parts, x)
    flat = torch.empty(2 * ranks, dtype=torch.long, device=device)
    dist.all_gather_into_tensor(flat, x)
    sent = torch.full((2,), 5, device=device)
    dist.broadcast(sent, 1)
    dist.barrier()
    return largest, parts, flat, sent


def sent_and_received(device):
    x, got = torch.tensor([7, 3], device=device), torch.zeros(2, dtype=torch.long, device=device)
    other = (rank + 1) % ranks
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, got, other)]):
        work.wait()
    return got


def objects(device):
    gathered = [None] * ranks
    dist.all_gather_object(gathered, {"rank": rank})
    sent = [f"from {rank}"]
    dist.broadcast_object_list(sent, src=1)
    return [one["rank"] for one in gathered], sent


def data_parallel(device):
    model = nn.parallel.DistributedDataParallel(layers(device))
    return step(model, torch.ones(4, 16, device=device))


def uneven_inputs(device):
    if device == "cpu":
        return 2 + rank
    model, steps = nn.parallel.DistributedDataParallel(layers(device)), 0
    with model.join():
        for _ in range(2 + rank):
            model(torch.ones(4, 16, device=device)).sum().backward()
            steps += 1
    return steps


def synchronized_norms(device):
    if device == "cpu":
        return [4, 4], 1
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    out = model(torch.randn(2, 3, 8, 8, device=device))
    out.sum().backward()
    return [out.shape[1], 4], model.module[1].num_batches_tracked


def fully_sharded(device):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = layers(device)
    mesh = init_device_mesh(device, (ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    made = step(model, torch.ones(4, 16, device=device))
    return made, [tuple(parameter.to_local().shape) for parameter in model.parameters()]


def fully_sharded_by_wrapper(device):
    from torch.distributed.fsdp import FullyShardedDataParallel

    if device == "cpu":
        return (sum(parameter.numel() for parameter in layers("cpu").parameters()) + ranks - 1) // ranks
    model = FullyShardedDataParallel(layers(device), use_orig_params=True)
    step(model, torch.ones(4, 16, device=device))
    return sum(parameter.numel() for parameter in model.parameters())


def tensor_parallel(device):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = parallelize_module(layers(device), init_device_mesh(device, (ranks,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    made = step(model, torch.ones(4, 16, device=device))
    return made, [tuple(parameter.to_local().shape) for parameter in model.parameters()]


def sequence_parallel(device):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)).to(device)
    plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)), "2": RowwiseParallel(output_layouts=Shard(1))}
    model = parallelize_module(model, init_device_mesh(device, (ranks,)), plan)
    out = model(torch.ones(2, 8 // ranks, 16, device=device))
    out.sum().backward()
    return out.shape, PrepareModuleInput is not None


def distributed_tensors(device):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(device, (ranks,))
    x = distribute_tensor(torch.arange(8, device=device).view(4, 2), mesh, [Shard(0)])
    turned = x.redistribute(mesh, [Shard(1)])
    return x.to_local().shape, turned.to_local().shape, x.full_tensor().shape, x.sum().full_tensor().shape, (x.float() @ x.float().T).redistribute(mesh, [Replicate()]).to_local()


def pipeline_parallel(device):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    seen = []
    for schedule in (ScheduleGPipe, Schedule1F1B):
        stage = PipelineStage(nn.Linear(16, 16).to(device), rank, ranks, torch.device(device, rank) if device == "cuda" else torch.device("cpu"))
        runner = schedule(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
        losses, x = [], torch.ones(8, 16, device=device)
        runner.step(*([x] if rank == 0 else []), **({"target": x, "losses": losses} if rank == ranks - 1 else {}))
        seen.append((len(losses), tuple(stage.submod.weight.grad.shape)))
    return seen


def expert_parallel(device):
    """Each rank has two experts; the counts of tokens travel first, then the tokens."""
    chosen = torch.tensor([0, 3, 1, 3, 2, 3], device=device)
    x = torch.arange(6, device=device)[:, None]
    order = chosen.argsort(stable=True)
    sent = torch.bincount(chosen, minlength=2 * ranks).view(ranks, 2).sum(1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    tokens = torch.empty(int(received.sum()), 1, dtype=torch.long, device=device)
    dist.all_to_all_single(tokens, x[order].contiguous(), received.tolist(), sent.tolist())
    back = torch.empty_like(x)
    dist.all_to_all_single(back, tokens * 2, sent.tolist(), received.tolist())
    return received, tokens.shape, torch.empty_like(back).index_copy_(0, order, back).shape


def ring_attention(device):
    """Keys travel around the ranks."""
    query = torch.randn(1, 2, 8, 16, device=device)
    key, out = query.clone(), torch.zeros_like(query)
    for _ in range(ranks):
        out += nn.functional.scaled_dot_product_attention(query, key, key)
        got = torch.empty_like(key)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, key, (rank + 1) % ranks), dist.P2POp(dist.irecv, got, (rank - 1) % ranks)]):
            work.wait()
        key = got
    return out


def sharded_optimizer(device):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(layers(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    model(torch.ones(4, 16, device=device)).sum().backward()
    optimizer.step()
    return len(optimizer.optim.state)


def distributed_checkpoints(device):
    import tempfile

    import torch.distributed.checkpoint as checkpoint

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    state = {"steps": torch.tensor(5, device=device), "weight": torch.arange(4, device=device)}
    checkpoint.save(state, checkpoint_id=folder[0])
    loaded = {name: torch.zeros_like(value) for name, value in state.items()}
    checkpoint.load(loaded, checkpoint_id=folder[0])
    return loaded


def averaged_metrics(device):
    counts = torch.tensor([3.0, 4.0], device=device)
    dist.all_reduce(counts)
    longest = torch.tensor([5], device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    padded = torch.zeros(int(longest), dtype=torch.long, device=device)
    padded[:4] = 1
    gathered = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(gathered, padded)
    return (counts[0] / counts[1]).shape, gathered
