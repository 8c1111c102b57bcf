"""Ways to train and to compute derivatives, with PyTorch alone."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint


def made(device, *sizes):
    layers = [part for inputs, outputs in zip(sizes, sizes[1:]) for part in (nn.Linear(inputs, outputs), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).to(device)


def classifier(device):
    model = made(device, 16, 32, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    x, labels = torch.randn(8, 16, device=device), torch.arange(8, device=device) % 4
    right = 0
    for _ in range(3):
        logits = model(x)
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        right += (logits.argmax(-1) == labels).sum().item()
    return model, optimizer.state_dict()["state"], right <= 24


def all_optimizers(device):
    kept = []
    for make in (
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.AdamW(p, foreach=False),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.Adam(p, capturable=p[0].is_cuda),
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
        torch.optim.Rprop,
        torch.optim.ASGD,
        torch.optim.Adafactor,
    ):
        model = made(device, 8, 4)
        optimizer = make(list(model.parameters()))
        for _ in range(2):
            model(torch.ones(2, 8, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        kept.append((model, [{name: torch.as_tensor(value).numel() for name, value in state.items()} for state in optimizer.state.values()]))
    return kept


def lbfgs(device):
    model, calls = made(device, 4, 1), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4, device=device)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return model, 1 <= len(calls) <= 50


def gradient_scaler(device):
    model = made(device, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
    for _ in range(3):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(torch.ones(2, 8, device=device)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model, int(scaler.get_scale()), norm.shape


def skipped_steps(device):
    """A step with an infinite gradient lowers the scale."""
    weight = torch.ones(2, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    weight.grad = torch.full((2,), float("inf"), device=device)
    scaler.scale(torch.ones((), device=device))
    scaler.step(optimizer)
    scaler.update()
    return int(scaler.get_scale()), weight.detach()


def accumulated_gradients(device):
    model, steps = made(device, 8, 4), 0
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    for number in range(6):
        (model(torch.ones(2, 8, device=device)).sum() / 3).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            scheduler.step()
            steps += 1
    return model, [parameter.grad for parameter in model.parameters()], steps


def early_stopping(device):
    model, best, bad, epochs = made(device, 8, 1), float("inf"), 0, 0
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    while bad < 3 and epochs < 50:
        loss = model(torch.ones(4, 8, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(loss.item())
        bad, best, epochs = (0, loss.item(), epochs + 1) if loss.item() < best else (bad + 1, best, epochs + 1)
    return model, epochs <= 50


def gradient_checkpoints(device):
    model = made(device, 16, 32, 16)
    x = torch.ones(4, 16, device=device, requires_grad=True)
    for reentrant in (False, True):
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    torch.utils.checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()
    return model, x.grad


def offloaded_activations(device):
    model = made(device, 16, 32, 16)
    with torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda"):
        loss = model(torch.ones(4, 16, device=device)).sum()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def custom_functions(device):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    x = torch.tensor([1.0, 2.0], dtype=torch.double, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(Square.apply, x)
    Square.apply(x).sum().backward()
    return x.grad.long()


def hooks_and_anomalies(device):
    model, seen = made(device, 8, 8, 4), []
    handle = model[0].register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    model[0].register_full_backward_hook(lambda module, inputs, outputs: seen.append(len(outputs)))
    with torch.autograd.detect_anomaly(check_nan=True):
        model(torch.ones(2, 8, device=device, requires_grad=True)).sum().backward()
    handle.remove()
    return model, seen


def double_backward(device):
    critic = made(device, 8, 1)
    x = torch.randn(4, 8, device=device, requires_grad=True)
    [gradient] = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    (gradient.norm(2, dim=1) - 1).square().mean().backward()
    return critic, [parameter.grad is not None for parameter in critic.parameters()]


def derivatives_by_functions(device):
    def f(x):
        return torch.where(x > 0, x * x, -x).sin().sum()

    x = torch.ones(3, device=device)
    value, tangent = torch.func.jvp(f, (x,), (x,))
    _, pull = torch.func.vjp(f, x)
    return value, tangent, pull(torch.ones((), device=device))[0], torch.func.jacfwd(f)(x), torch.func.jacrev(f)(x), torch.func.hessian(f)(x), torch.func.grad_and_value(f)(x)


def derivatives_of_samples(device):
    model = made(device, 8, 4)
    parameters = dict(model.named_parameters())

    def loss(parameters, x, label):
        return F.cross_entropy(torch.func.functional_call(model, parameters, x[None]), label[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, torch.ones(5, 8, device=device), torch.arange(5, device=device) % 4)
    return {name: gradient.detach() for name, gradient in each.items()}


def ensembles_by_vmap(device):
    models = [made(device, 8, 4) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    out = torch.func.vmap(lambda p, b, x: torch.func.functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(parameters, buffers, torch.ones(2, 8, device=device))
    chosen = torch.func.vmap(lambda x, i: x.gather(0, i[None]))(torch.arange(6, device=device).view(3, 2), torch.tensor([1, 0, 1], device=device))
    return out.detach(), chosen


def forward_mode(device):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3, device=device), torch.full((3,), 2.0, device=device))
        tangent = torch.autograd.forward_ad.unpack_dual(dual * dual).tangent
    linear, push = torch.func.linearize(lambda x: x.exp(), torch.ones(3, device=device))
    return tangent.long(), push(torch.ones(3, device=device)), torch.autograd.functional.hvp(lambda x: x.pow(3).sum(), torch.ones(3, device=device), torch.ones(3, device=device))[1]


def scripted(device):
    @torch.jit.script
    def f(x, limit: int):
        steps = 0
        while bool((x < limit).any()):
            x = x + 1
            steps += 1
        return torch.where(x > 2, x, -x), steps

    traced = torch.jit.trace(made(device, 8, 4), torch.ones(2, 8, device=device))
    return f(torch.tensor([0, 2, 4], device=device), 3), traced(torch.ones(2, 8, device=device)).detach()


def compiled_without_kernels(device):
    model = torch.compile(made(device, 8, 16, 4), backend="aot_eager")
    model(torch.ones(2, 8, device=device)).sum().backward()

    @torch.compile(backend="eager")
    def branch(x):
        return x + 1 if x.sum() > 3 else x - 1

    return branch(torch.tensor([1, 1], device=device)), branch(torch.tensor([3, 1], device=device)), [parameter.grad for parameter in model.parameters()]


def exported(device):
    program = torch.export.export(made(device, 8, 4), (torch.ones(2, 8, device=device),), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    return program.module()(torch.ones(5, 8, device=device)).detach(), len(list(program.graph.nodes))


def streams_and_events(device):
    if device == "cpu":
        return [6, True]
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    x = torch.arange(4, device=device)
    with torch.cuda.stream(stream):
        y = x.sum()
        event.record()
    event.synchronize()
    return [int(y), event.query()]


def captured_graph(device):
    """Capture and replay with static tensors."""
    x = torch.arange(4, device=device)
    if device == "cpu":
        return x + 1, True
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    torch.cuda.synchronize()
    result = y.shape == (4,)
    del graph, y
    return x + 1, result


def averaged_weights(device):
    model = made(device, 8, 4)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for _ in range(2):
        average.update_parameters(model)
    swa = torch.optim.swa_utils.AveragedModel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).to(device))
    torch.optim.swa_utils.update_bn([torch.ones(4, 8)], swa, device=device)
    return average, swa.n_averaged, swa.module[1].num_batches_tracked


def normalized_weights(device):
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)).to(device)
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)).to(device)
    orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)).to(device)
    x = torch.ones(2, 8, device=device)
    return model(x).detach(), weighted(x).detach(), orthogonal(x).detach()


def pruned_weights(device):
    model = nn.Linear(8, 4).to(device)
    prune.l1_unstructured(model, "weight", amount=8)
    prune.random_unstructured(model, "bias", amount=1)
    return model.weight_mask.sum().long(), model(torch.ones(2, 8, device=device)).detach()


def saved_and_loaded(device):
    import io

    model, file = made(device, 8, 4), io.BytesIO()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 8, device=device)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": torch.tensor(3, device=device)}, file)
    file.seek(0)
    state = torch.load(file, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"], model, [int(entry["step"]) for entry in optimizer.state.values()]


def loaded_batches(device):
    data = torch.utils.data.TensorDataset(torch.arange(20), torch.arange(20) % 3)
    loader = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=device == "cuda")
    total, classes = torch.zeros((), dtype=torch.long, device=device), torch.zeros(3, dtype=torch.long, device=device)
    for numbers, labels in loader:
        numbers, labels = numbers.to(device, non_blocking=True), labels.to(device)
        total += numbers.sum()
        classes += torch.bincount(labels, minlength=3)
    return total, classes


def dispatch_modes(device):
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **kwargs or {})

    with Count() as count, FlopCounterMode(display=False) as flops:
        made(device, 8, 4)(torch.ones(2, 8, device=device))
    return count.calls > 2, flops.get_total_flops()


def losses(device):
    x, y = torch.randn(4, 5, device=device), torch.randn(4, 5, device=device)
    labels = torch.tensor([1, 0, 4, 2], device=device)
    sequences = torch.randn(12, 2, 5, device=device).log_softmax(-1)
    return (
        F.cross_entropy(x, labels, label_smoothing=0.1),
        F.nll_loss(x, labels),
        F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
        F.binary_cross_entropy_with_logits(x, y),
        F.kl_div(x, y.softmax(-1)),
        F.huber_loss(x, y),
        F.triplet_margin_loss(x, y, x),
        F.cosine_embedding_loss(x, y, torch.ones(4, device=device)),
        F.multi_margin_loss(x, labels),
        F.multilabel_margin_loss(x, labels[:, None].expand(4, 5).contiguous()),
        F.gaussian_nll_loss(x, y, y.abs() + 1),
        F.poisson_nll_loss(x, y),
        F.ctc_loss(sequences, torch.tensor([[1, 2, 3], [4, 1, 0]], device=device), torch.tensor([12, 10], device=device), torch.tensor([3, 2], device=device)),
    )
