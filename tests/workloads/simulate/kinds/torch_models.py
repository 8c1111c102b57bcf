"""Models and algorithms of machine learning, with PyTorch alone."""

import math

import torch
from torch import nn
from torch.nn import functional as F


def step(model, loss):
    optimizer = torch.optim.AdamW(model.parameters())
    loss.backward()
    optimizer.step()
    return {name: parameter.grad is not None for name, parameter in model.named_parameters()}


def convolutional_network(device):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1), nn.Flatten(), nn.Linear(392, 10)).to(device)
    logits = model(torch.randn(2, 3, 16, 16, device=device))
    made = step(model, F.cross_entropy(logits, torch.tensor([3, 7], device=device)))
    return made, model[1].num_batches_tracked, logits.topk(3).indices.shape


def recurrent_networks(device):
    x = torch.randn(2, 5, 8, device=device)
    lstm, gru, rnn = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True).to(device), nn.GRUCell(8, 16).to(device), nn.RNN(8, 16).to(device)
    out, (hidden, cell) = lstm(x)
    state = torch.zeros(2, 16, device=device)
    for at in range(5):
        state = gru(x[:, at], state)
    made = step(lstm, out.sum() + hidden.sum())
    return made, out.shape, cell.shape, state.detach(), rnn(x)[0].detach()


def encoder_and_decoder(device):
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).to(device)
    source, target = torch.randn(2, 6, 16, device=device), torch.randn(2, 4, 16, device=device)
    padding = torch.arange(6, device=device)[None] >= torch.tensor([6, 4], device=device)[:, None]
    causal = nn.Transformer.generate_square_subsequent_mask(4, device=device)
    out = model(source, target, tgt_mask=causal, src_key_padding_mask=padding, memory_key_padding_mask=padding)
    made = step(model, out.square().mean())
    model.eval()
    with torch.no_grad():
        fast = model.encoder(source, src_key_padding_mask=padding)
    return made, fast, padding


def attention_kinds(device):
    query, key, value = torch.randn(3, 2, 4, 16, 32, device=device).unbind(0)
    made = []
    for backend in (torch.nn.attention.SDPBackend.MATH, None):
        kinds = [backend] if backend else [torch.nn.attention.SDPBackend.FLASH_ATTENTION, torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION, torch.nn.attention.SDPBackend.MATH]
        with torch.nn.attention.sdpa_kernel(kinds):
            made.append(F.scaled_dot_product_attention(query, key, value, is_causal=True))
            made.append(F.scaled_dot_product_attention(query.bfloat16(), key[:, :2].bfloat16(), value[:, :2].bfloat16(), enable_gqa=True))
    mixed, weights = nn.MultiheadAttention(32, 2, batch_first=True).to(device)(query[0], key[0], value[0])
    return made, mixed.detach(), weights.detach()


def small_gpt(device):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, x):
            q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
            return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    model = nn.Sequential(nn.Embedding(50, 32), Block(), Block(), nn.Linear(32, 50)).to(device)
    tokens = torch.arange(18, device=device).view(2, 9)
    made = step(model, F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
    generated = tokens[:, :1]
    for _ in range(5):
        logits = model(generated)[:, -1]
        kept = logits.topk(10).values[:, -1:]
        generated = torch.cat([generated, torch.multinomial(logits.masked_fill(logits < kept, -torch.inf).softmax(-1), 1)], 1)
    return made, generated.shape, bool((generated < 50).all())


def nucleus_sampling(device):
    logits = torch.randn(2, 20, device=device)
    values, order = logits.sort(descending=True)
    removed = values.softmax(-1).cumsum(-1) > 0.9
    removed[:, 0] = False
    logits = logits.masked_fill(removed.scatter(1, order, removed), -torch.inf)
    token = torch.multinomial(logits.softmax(-1), 1)
    return token.shape, bool((token >= 0).all())


def beam_search(device):
    beams, scores = torch.zeros(3, 1, dtype=torch.long, device=device), torch.zeros(3, device=device)
    for _ in range(4):
        total = scores[:, None] + torch.randn(3, 11, device=device).log_softmax(-1)
        scores, flat = total.flatten().topk(3)
        beams = torch.cat([beams[flat // 11], (flat % 11)[:, None]], 1)
    return beams.shape, scores, bool((beams < 11).all())


def speculative_decoding(device):
    draft, accepted = torch.tensor([4, 8, 1, 2], device=device), torch.tensor([4, 8, 3, 2], device=device)
    matching = int((draft == accepted).cumprod(0).sum())
    return matching, torch.cat([draft[:matching], accepted[matching : matching + 1]])


def key_value_cache(device):
    cache, lengths = torch.zeros(2, 8, 4, device=device), torch.tensor([3, 5], device=device)
    for _ in range(2):
        cache[torch.arange(2, device=device), lengths] = torch.ones(2, 4, device=device)
        lengths += 1
    pages = torch.arange(8, device=device).view(4, 2)[torch.tensor([[2, 0], [1, 3]], device=device)]
    return cache, lengths, pages


def mixture_of_experts(device):
    experts, router = nn.ModuleList(nn.Linear(16, 16) for _ in range(4)).to(device), nn.Linear(16, 4).to(device)
    x = torch.randn(32, 16, device=device)
    weights, chosen = router(x).softmax(-1).topk(2)
    out, seen = torch.zeros_like(x), 0
    for number, expert in enumerate(experts):
        tokens, place = torch.where(chosen == number)
        if tokens.numel():
            out = out.index_add(0, tokens, expert(x[tokens]) * weights[tokens, place, None])
        seen += tokens.numel()
    made = step(experts, out.square().mean())
    return made, seen


def sorted_experts(device):
    """Tokens in the order of their experts, and one product for each group."""
    chosen = torch.tensor([2, 0, 1, 0, 2, 2], device=device)
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=4)
    x, weights = torch.randn(6, 16, device=device), torch.randn(4, 16, 16, device=device)
    parts = [part @ weights[number] for number, part in enumerate(x[order].split(counts.tolist()))]
    back = torch.empty_like(order).scatter_(0, order, torch.arange(6, device=device))
    return order, counts, torch.cat(parts)[back], counts.cumsum(0)


def capacity_of_experts(device):
    chosen = F.one_hot(torch.tensor([0, 1, 0, 0, 1], device=device), 3)
    places = chosen.cumsum(0) * chosen - 1
    kept = (places >= 0) & (places < 2)
    return places, kept.nonzero(), kept.any(1).sum().item()


def variational_autoencoder(device):
    encoder, decoder = nn.Linear(20, 8).to(device), nn.Linear(4, 20).to(device)
    mean, log_variance = encoder(torch.rand(6, 20, device=device)).chunk(2, -1)
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    out = decoder(posterior.rsample())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    loss = torch.distributions.kl_divergence(posterior, prior).sum() - torch.distributions.Bernoulli(logits=out).log_prob(torch.ones_like(out)).sum()
    return step(nn.ModuleList([encoder, decoder]), loss)


def vector_quantization(device):
    codes = nn.Embedding(16, 8).to(device)
    x = torch.randn(2, 10, 8, device=device)
    chosen = torch.cdist(x.flatten(0, 1), codes.weight).argmin(-1)
    quantized = codes(chosen).view_as(x)
    usage = torch.bincount(chosen, minlength=16)
    perplexity = (-(usage / usage.sum() * (usage / usage.sum() + 1e-10).log()).sum()).exp()
    made = step(codes, F.mse_loss(quantized, x))
    return made, usage.sum(), perplexity.shape


def adversarial_networks(device):
    generator, critic = nn.Sequential(nn.ConvTranspose2d(8, 3, 4)).to(device), nn.Sequential(nn.Conv2d(3, 1, 4), nn.Flatten()).to(device)
    fake = generator(torch.randn(2, 8, 1, 1, device=device))
    made = step(critic, F.relu(1 + critic(fake.detach())).mean() + F.relu(1 - critic(torch.randn_like(fake))).mean())
    return made, step(generator, -critic(fake).mean())


def diffusion(device):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1)).to(device)
    kept = (1 - torch.linspace(1e-4, 0.02, 50, device=device)).cumprod(0)
    image, times = torch.randn(2, 3, 8, 8, device=device), torch.tensor([3, 40], device=device)
    noise = torch.randn_like(image)
    noisy = kept[times].sqrt()[:, None, None, None] * image + (1 - kept[times]).sqrt()[:, None, None, None] * noise
    made = step(model, F.mse_loss(model(noisy), noise))
    with torch.no_grad():
        for time in torch.arange(49, -1, -10, device=device):
            image = image - model(image) * (1 - kept[time]).sqrt()
    return made, image


def unet_with_attention(device):
    down, up = nn.Conv2d(3, 8, 3, stride=2, padding=1).to(device), nn.Conv2d(11, 3, 3, padding=1).to(device)
    x = torch.randn(1, 3, 16, 16, device=device)
    hidden = F.scaled_dot_product_attention(*[down(x).flatten(2).transpose(1, 2)] * 3).transpose(1, 2).view(1, 8, 8, 8)
    out = up(torch.cat([F.interpolate(hidden, scale_factor=2), x], 1))
    return step(nn.ModuleList([down, up]), out.square().mean()), out.shape


def contrastive_pairs(device):
    images, texts = nn.Linear(16, 8).to(device), nn.Linear(12, 8).to(device)
    scale = nn.Parameter(torch.tensor(math.log(10.0), device=device))
    first, second = F.normalize(images(torch.randn(6, 16, device=device)), dim=-1), F.normalize(texts(torch.randn(6, 12, device=device)), dim=-1)
    logits, labels = scale.exp() * first @ second.T, torch.arange(6, device=device)
    made = step(nn.ModuleList([images, texts]), (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2)
    return made, (logits.topk(2).indices == labels[:, None]).any(-1).shape


def policy_gradient(device):
    policy = nn.Linear(4, 2).to(device)
    rewards, logs, state, done = [], [], torch.zeros(4, device=device), False
    while not done:
        distribution = torch.distributions.Categorical(logits=policy(state))
        action = distribution.sample()
        logs.append(distribution.log_prob(action))
        state, done = state + action * 0.1, len(logs) >= 5
        rewards.append(1.0)
        assert action.item() in (0, 1)
    returns = torch.tensor(rewards, device=device).flip(0).cumsum(0).flip(0)
    return step(policy, -(torch.stack(logs) * returns).sum()), returns.long()


def proximal_policy(device):
    actor, critic = nn.Linear(4, 3).to(device), nn.Linear(4, 1).to(device)
    states, actions = torch.randn(16, 4, device=device), torch.arange(16, device=device) % 3
    with torch.no_grad():
        before, values = torch.distributions.Categorical(logits=actor(states)).log_prob(actions), critic(states).squeeze(-1)
    advantages, last, done = torch.zeros(16, device=device), 0.0, torch.arange(16, device=device) == 7
    for at in reversed(range(15)):
        alive = 1.0 - done[at + 1].float()
        last = 1.0 + 0.99 * values[at + 1] * alive - values[at] + 0.99 * 0.95 * alive * last
        advantages[at] = last
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for epoch in range(4):
        for chosen in torch.randperm(16, device=device).split(8):
            distribution = torch.distributions.Categorical(logits=actor(states[chosen]))
            ratio = (distribution.log_prob(actions[chosen]) - before[chosen]).exp()
            loss = -torch.min(ratio * advantages[chosen], ratio.clamp(0.8, 1.2) * advantages[chosen]).mean() - 0.01 * distribution.entropy().mean()
            loss = loss + F.mse_loss(critic(states[chosen]).squeeze(-1), values[chosen])
            made = step(nn.ModuleList([actor, critic]), loss)
            if (ratio - 1 - ratio.log()).mean() > 0.5:
                break
    return made


def soft_actor_critic(device):
    actor = nn.Linear(3, 4).to(device)
    mean, log_std = actor(torch.randn(5, 3, device=device)).chunk(2, -1)
    normal = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp()), 1)
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.transforms.TanhTransform(cache_size=1)])
    action = squashed.rsample()
    return step(actor, squashed.log_prob(action).mean()), action.shape


def replayed_transitions(device):
    network, target = nn.Linear(4, 3).to(device), nn.Linear(4, 3).to(device)
    memory, rewards = torch.randn(100, 4, device=device), torch.arange(100, device=device) % 2
    chosen = torch.randint(0, 99, (16,), device=device)
    values = network(memory[chosen]).gather(1, (chosen % 3)[:, None]).squeeze(1)
    with torch.no_grad():
        wanted = rewards[chosen] + 0.99 * target(memory[chosen + 1]).max(1).values
    made = step(network, F.smooth_l1_loss(values, wanted))
    for ours, theirs in zip(target.parameters(), network.parameters()):
        ours.data.lerp_(theirs.data, 0.01)
    return made, chosen.shape


def preference_optimization(device):
    model, reference = nn.Linear(8, 20).to(device), nn.Linear(8, 20).to(device)
    labels = torch.tensor([[3, 5, -100], [2, -100, -100]], device=device)

    def log_probability(model):
        logs = model(torch.ones(2, 3, 8, device=device)).log_softmax(-1)
        return (logs.gather(2, labels.clamp(min=0)[..., None]).squeeze(2) * (labels != -100)).sum(1)

    with torch.no_grad():
        wanted = log_probability(reference)
    margin = log_probability(model) - wanted
    made = step(model, -F.logsigmoid(0.1 * (margin[0] - margin[1])))
    return made, (labels != -100).sum(1)


def rewarded_groups(device):
    """Group-relative advantages, with answers of different lengths."""
    rewards, ends = torch.tensor([1.0, 0.0, 1.0, 1.0], device=device).view(2, 2), torch.tensor([2, 4, 1, 3], device=device)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    mask = torch.arange(5, device=device)[None] <= ends[:, None]
    groups = mask.sum(1).sort(descending=True).indices
    return (advantages > 0), mask.sum(), groups, (mask * advantages.flatten()[:, None]).shape


def graph_network(device):
    edges = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 1]], device=device)
    layer, x = nn.Linear(8, 8).to(device), torch.randn(3, 8, device=device)
    degree = torch.zeros(3, device=device).index_add(0, edges[1], torch.ones(4, device=device))
    out = torch.zeros(3, 8, device=device).index_add(0, edges[1], layer(x)[edges[0]]) / degree.clamp(min=1)[:, None]
    largest = torch.full((3, 8), -torch.inf, device=device).scatter_reduce(0, edges[1][:, None].expand(4, 8), x[edges[0]], "amax")
    return step(layer, out.sum()), degree.long(), largest


def graph_attention(device):
    edges = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 1]], device=device)
    scores = torch.randn(4, device=device)
    largest = torch.full((3,), -torch.inf, device=device).scatter_reduce(0, edges[1], scores, "amax")
    weights = (scores - largest[edges[1]]).exp()
    weights = weights / torch.zeros(3, device=device).index_add(0, edges[1], weights)[edges[1]]
    loops = torch.cat([edges, torch.arange(int(edges.max()) + 1, device=device).expand(2, -1)], 1)
    return weights, loops, (loops[0] == loops[1]).sum()


def point_clouds(device):
    points = torch.arange(24, device=device).view(8, 3).float()
    chosen, distances = [0], torch.full((8,), 1e10, device=device)
    for _ in range(2):
        distances = torch.minimum(distances, (points - points[chosen[-1]]).square().sum(-1))
        chosen.append(int(distances.argmax()))
    neighbours = torch.cdist(points, points).topk(3, largest=False).indices
    voxels, inverse = torch.unique((points // 10).long()[:, 0], return_inverse=True)
    return chosen, neighbours.shape, voxels, inverse


def object_detection(device):
    anchors = torch.tensor([[0, 0, 10, 10], [5, 5, 15, 15], [20, 20, 30, 30]], device=device).float()
    truth = torch.tensor([[0, 0, 10, 10], [21, 21, 30, 30]], device=device).float()
    low, high = torch.maximum(anchors[:, None, :2], truth[None, :, :2]), torch.minimum(anchors[:, None, 2:], truth[None, :, 2:])
    overlap = (high - low).clamp(min=0).prod(-1)
    area = lambda boxes: (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    ratio = overlap / (area(anchors)[:, None] + area(truth)[None] - overlap)
    values, matched = ratio.max(1)
    matched[values < 0.5] = -1
    return matched, (matched >= 0).nonzero(), truth[matched.clamp(min=0)]


def matched_sets(device):
    """Costs go to the host, as for scipy's assignment, and the result comes back."""
    costs = torch.cdist(torch.randn(5, 4, device=device), torch.randn(2, 4, device=device), p=1)
    rows = torch.as_tensor(costs.cpu().argmin(0), device=device)
    labels = torch.full((5,), 9, device=device)
    labels[torch.arange(2, device=device)] = torch.tensor([3, 4], device=device)
    return rows.shape, labels, F.cross_entropy(torch.randn(5, 10, device=device), labels)


def segmentation_scores(device):
    predicted, labels = torch.tensor([[0, 1], [2, 2]], device=device), torch.tensor([[0, 1], [1, 255]], device=device)
    valid = labels != 255
    matrix = torch.bincount(3 * labels[valid] + predicted[valid], minlength=9).view(3, 3)
    return matrix, matrix.diag().sum(), matrix.sum(0) + matrix.sum(1) - matrix.diag()


def clustering(device):
    points = torch.tensor([[0.0], [1.0], [10.0], [11.0]], device=device)
    centers = points[[0, 3]].clone()
    for steps in range(20):
        labels = (points[:, None] - centers[None]).square().sum(-1).argmin(1)
        moved = torch.zeros_like(centers).index_add(0, labels, points) / torch.bincount(labels, minlength=2)[:, None]
        if torch.equal(moved, centers):
            break
        centers = moved
    return steps <= 20, labels.shape, centers


def gaussian_process(device):
    x = torch.linspace(0, 1, 8, device=device)[:, None]
    kernel = (-torch.cdist(x, x).square()).exp() + 1e-2 * torch.eye(8, device=device)
    lower = torch.linalg.cholesky(kernel)
    weights = torch.cholesky_solve(torch.sin(x), lower)
    sample = torch.distributions.MultivariateNormal(torch.zeros(8, device=device), scale_tril=lower).rsample()
    return weights, lower.diag().log().sum(), sample


def differential_equations(device):
    network, state, time, steps = nn.Linear(2, 2).to(device), torch.ones(3, 2, device=device), 0.0, 0
    size = 0.1
    while time < 1.0 and steps < 100:
        first = network(state)
        second = network(state + size * first)
        error = (second - first).abs().max().item() * size / 2
        state, time, steps = state + size * (first + second) / 2, time + size, steps + 1
        size = min(0.5, max(0.05, 0.9 * size * (1e-2 / max(error, 1e-6)) ** 0.5))
    return step(network, state.sum()), steps < 100


def state_space_scan(device):
    decay, x = torch.full((4, 6), 0.5, device=device), torch.ones(4, 6, device=device)
    states, state = [], torch.zeros(4, device=device)
    for at in range(6):
        state = state * decay[:, at] + x[:, at]
        states.append(state)
    lengths = torch.tensor([0, 2, 5], device=device)
    return torch.stack(states, 1), lengths.diff(), nn.Conv1d(4, 4, 3, groups=4, padding=2).to(device)(x[None]).detach()


def recommendation(device):
    bags = nn.EmbeddingBag(20, 8, mode="sum").to(device)
    out = bags(torch.tensor([1, 2, 4, 5], device=device), torch.tensor([0, 3], device=device))
    hashed = (torch.tensor([123456789, 987654321], device=device) * 2654435761) % 20
    return step(bags, out.sum()), hashed, out.shape


def text_classifier(device):
    table = nn.Embedding(30, 8, padding_idx=0).to(device)
    tokens = torch.tensor([[4, 5, 0, 0], [7, 8, 9, 0]], device=device)
    mask = tokens != 0
    pooled = (table(tokens) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    last = table(tokens)[torch.arange(2, device=device), mask.sum(1) - 1]
    return step(table, pooled.sum() + last.sum()), mask.sum(1), tokens[mask]


def speech_recognition(device):
    lengths = torch.tensor([50, 30], device=device)
    shorter = torch.div(lengths + 1, 2, rounding_mode="floor")
    model = nn.Conv1d(20, 8, 3, stride=2, padding=1).to(device)
    logs = model(torch.randn(2, 20, int(lengths.max()), device=device)).permute(2, 0, 1).log_softmax(-1)
    loss = F.ctc_loss(logs, torch.tensor([1, 2, 3, 4, 5], device=device), shorter, torch.tensor([3, 2], device=device))
    path = torch.unique_consecutive(torch.tensor([0, 1, 1, 0, 2], device=device))
    return step(model, loss), shorter, path[path != 0]


def image_augmentation(device):
    images = torch.arange(2 * 3 * 4 * 4, device=device).view(2, 3, 4, 4) % 255
    flipped = torch.where(torch.tensor([True, False], device=device)[:, None, None, None], images.flip(-1), images)
    weight = torch.distributions.Beta(torch.tensor(1.0, device=device), torch.tensor(1.0, device=device)).sample()
    mixed = weight * images.float() + (1 - weight) * images.float().roll(1, 0)
    top, left = torch.randint(0, 3, (2,)).tolist()
    return flipped, mixed, images[..., top : top + 2, left : left + 2].shape, images.to(torch.uint8).float() / 255


def low_rank_adapters(device):
    base = nn.Linear(16, 16).to(device).requires_grad_(False)
    down, up = nn.Linear(16, 2, bias=False).to(device), nn.Linear(2, 16, bias=False).to(device)
    nn.init.zeros_(up.weight)
    x = torch.randn(4, 16, device=device)
    return step(nn.ModuleList([down, up]), (base(x) + up(down(x))).sum()), base.weight.grad


def meta_learning(device):
    model = nn.Linear(4, 2).to(device)
    x, labels = torch.randn(6, 4, device=device), torch.arange(6, device=device) % 2
    gradients = torch.autograd.grad(F.cross_entropy(model(x), labels), model.parameters(), create_graph=True)
    fast = {name: value - 0.1 * gradient for (name, value), gradient in zip(model.named_parameters(), gradients)}
    return step(model, F.cross_entropy(torch.func.functional_call(model, fast, x), labels))


def distilled_student(device):
    teacher, student = nn.Linear(8, 5).to(device).eval(), nn.Linear(8, 5).to(device)
    x = torch.randn(4, 8, device=device)
    with torch.inference_mode():
        wanted = teacher(x).softmax(-1)
    return step(student, F.kl_div(student(x).log_softmax(-1), wanted.clone(), reduction="batchmean"))


def flexible_attention(device):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device=device)
    query = torch.randn(1, 1, 256, 16, device=device)
    return mask.kv_num_blocks.shape, flex_attention(query, query, query, block_mask=mask)
