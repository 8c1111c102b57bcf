"""Programs that act on values: data-dependent sizes, masks, linear algebra, distributions."""

import torch
from torch import nn
from torch.nn import functional as F


def padded_batch(device):
    lengths = torch.tensor([3, 9, 5], device=device)
    longest = int(lengths.max())
    mask = torch.arange(longest, device=device)[None] < lengths[:, None]
    x = torch.randn(3, longest, 8, device=device).masked_fill(~mask[..., None], 0.0)
    return longest, mask, x[mask], x.sum(1) / lengths[:, None]


def packed_sequences(device):
    lengths = torch.tensor([4, 2, 7])
    x = torch.randn(3, 7, 8, device=device)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, _ = nn.GRU(8, 16, batch_first=True).to(device)(packed)
    padded, sizes = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    return packed.batch_sizes, padded.detach(), sizes


def slices_by_index(device):
    x, ends = torch.arange(40, device=device).view(10, 4), torch.tensor([2, 7], device=device)
    return x[: ends.max()], x[ends[0] : ends[1]], x.narrow(0, int(ends[0]), 3), x[-ends[0] :]


def boolean_indexing(device):
    x = torch.arange(-6, 6, device=device)
    y = x.clone()
    y[x < 0] = 7
    return x[x > 0], (x % 3 == 0).nonzero(), torch.where(x > 3)[0], x.masked_select(x % 2 == 1), y


def unique_values(device):
    x = torch.tensor([5, 2, 5, 9, 2, 2], device=device)
    values, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    runs, lengths = torch.unique_consecutive(x, return_counts=True)
    rows = torch.unique(torch.tensor([[1, 2], [1, 2], [0, 5]], device=device), dim=0)
    return values, inverse, counts, runs, lengths, rows


def histograms(device):
    labels = torch.tensor([2, 0, 4, 4], device=device)
    x = torch.tensor([0.5, 1.5, 1.7, 3.0], device=device)
    confusion = torch.zeros(5, 5, dtype=torch.long, device=device).index_put_((labels, labels.flip(0)), torch.ones(4, dtype=torch.long, device=device), accumulate=True)
    return F.one_hot(labels), torch.bincount(labels), confusion, torch.bucketize(x, torch.tensor([1.0, 2.0], device=device)), x.histc(3, 0, 3).shape


def sorts_and_searches(device):
    x = torch.tensor([[5, 2, 9, 1], [4, 4, 0, 8]], device=device)
    values, order = x.sort(stable=True)
    top = x.topk(2)
    return values, order, top.values, x.argsort(descending=True, stable=True), x.kthvalue(2).values, x.median(-1).values, x.mode().values, torch.searchsorted(values[0], torch.tensor([3, 7], device=device))


def cumulative_values(device):
    x = torch.tensor([3, 1, 4, 1, 5], device=device)
    values, places = x.cummax(0)
    return x.cumsum(0), x.cumprod(0), values, places, x.diff(), x.flip(0), x.roll(2), torch.logcumsumexp(x.float(), 0)


def scatter_and_gather(device):
    index = torch.tensor([0, 2, 2, 1], device=device)
    x = torch.tensor([10, 20, 30, 40], device=device)
    out = torch.zeros(3, dtype=torch.long, device=device)
    return (
        out.scatter_add(0, index, x),
        out.scatter_reduce(0, index, x, "amax"),
        out.index_add(0, index, x),
        x.gather(0, index),
        x.take(index),
        torch.take_along_dim(x, index),
        out.index_reduce(0, index, x, "prod").shape,
        x.index_copy(0, index[:2], x[2:]),
        out.masked_scatter(out == 0, x).shape,
    )


def repeated_rows(device):
    counts = torch.tensor([2, 0, 3], device=device)
    x = torch.arange(6, device=device).view(3, 2)
    rows = torch.repeat_interleave(x, counts, dim=0)
    segments = torch.repeat_interleave(torch.arange(3, device=device), counts)
    parts = x.flatten().split([int(count) + 1 for count in counts.tolist()][:1] + [3])
    return rows, segments, parts, torch.segment_reduce(torch.ones(5, device=device), "sum", lengths=counts).shape


def index_grids(device):
    x, y = torch.meshgrid(torch.arange(2, device=device), torch.arange(3, device=device), indexing="ij")
    lower = torch.tril_indices(3, 3, device=device)
    pairs = torch.combinations(torch.arange(4, device=device))
    return x, y, lower, pairs, torch.cartesian_prod(x[:, 0], y[0]), torch.triu(torch.ones(3, 3, dtype=torch.long, device=device)), torch.block_diag(x, y)


def bits_and_types(device):
    x = torch.tensor([1, 250, 7], device=device)
    byte = x.to(torch.uint8)
    return x & 3, x << 2, byte + 10, x.to(torch.int8), byte.view(torch.int8), (x > 3).sum(), x.bool().logical_not(), x.float().to(torch.int32)


def stops_when_all_are_done(device):
    lengths, done, steps = torch.tensor([3, 5, 2], device=device), torch.zeros(3, dtype=torch.bool, device=device), 0
    while not done.all():
        steps += 1
        done |= lengths <= steps
    return steps, done


def converges(device):
    x, last, steps = torch.full((4,), 100.0, device=device), None, 0
    while last is None or bool((x - last).abs().max() > 1e-3):
        last, x, steps = x, (x + 2 / x) / 2, steps + 1
    return steps, x


def connected_components(device):
    edges = torch.tensor([[0, 1, 3, 5], [1, 2, 4, 5]], device=device)
    labels = torch.arange(6, device=device)
    while True:
        least = labels.scatter_reduce(0, edges[1], labels[edges[0]], "amin").scatter_reduce(0, edges[0], labels[edges[1]], "amin")
        if torch.equal(least, labels):
            return labels, labels.unique().numel()
        labels = least


def breadth_first_search(device):
    adjacent = torch.zeros(6, 6, dtype=torch.bool, device=device)
    adjacent[[0, 1, 2, 4], [1, 2, 3, 5]] = True
    seen = torch.zeros(6, dtype=torch.bool, device=device)
    seen[0] = True
    frontier, depth = seen.clone(), 0
    while frontier.any():
        frontier = adjacent[frontier].any(0) & ~seen
        seen |= frontier
        depth += 1
    return seen, depth


def greedy_nms(device):
    boxes = torch.tensor([[0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30]], device=device)
    order, kept = torch.tensor([2, 0, 1], device=device), []
    while order.numel():
        kept.append(order[0])
        low, high = torch.maximum(boxes[order, :2], boxes[order[0], :2]), torch.minimum(boxes[order, 2:], boxes[order[0], 2:])
        overlap = (high - low).clamp(min=0).prod(-1)
        order = order[1:][overlap[1:] < 50]
    return torch.stack(kept)


def token_packing(device):
    documents = torch.tensor([1, 1, 2, 2, 2, 3], device=device)
    starts = torch.cat([torch.zeros(1, dtype=torch.long, device=device), documents.bincount()[1:].cumsum(0)])
    positions = torch.arange(6, device=device) - starts[documents - 1]
    mask = (documents[:, None] == documents[None]).tril()
    return starts, positions, mask, F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 6, 8, device=device), attn_mask=mask)


def masked_language_labels(device):
    tokens = torch.arange(20, device=device).view(2, 10)
    chosen = torch.arange(20, device=device).view(2, 10) % 7 == 3
    labels = tokens.masked_fill(~chosen, -100)
    logits = torch.randn(2, 10, 30, device=device)
    return labels, logits[chosen], F.cross_entropy(logits.flatten(0, 1), labels.flatten()), int((labels != -100).sum())


def quantized_weights(device):
    weights = torch.tensor([-1.0, -0.5, 0.25, 1.0], device=device)
    scale = weights.abs().max() / 127
    codes = (weights / scale).round().clamp(-128, 127).to(torch.int8)
    packed = (codes[::2] & 15) | (codes[1::2] << 4)
    return codes, packed, torch.fake_quantize_per_tensor_affine(weights, 0.1, 0, -8, 7)


def checks_of_finite_values(device):
    x = torch.randn(8, 8, device=device)
    assert torch.isfinite(x).all() and not torch.isnan(x).any() and not torch.isinf(x).any()
    assert not torch.equal(x.sum(), torch.tensor(float("nan"), device=device))
    torch.testing.assert_close(x, x.clone())
    torch._assert_async((x == x).all())
    return torch.nan_to_num(x), bool(torch.allclose(x, x))


def validated_distributions(device):
    loc = torch.randn(4, device=device)
    made = []
    for make in (
        lambda: torch.distributions.Normal(loc, loc.exp()),
        lambda: torch.distributions.Categorical(logits=loc),
        lambda: torch.distributions.Bernoulli(logits=loc),
        lambda: torch.distributions.Beta(loc.exp(), loc.exp()),
        lambda: torch.distributions.Gamma(loc.exp(), loc.exp()),
        lambda: torch.distributions.Dirichlet(loc.exp()),
        lambda: torch.distributions.Laplace(loc, loc.exp()),
        lambda: torch.distributions.StudentT(loc.exp(), loc),
        lambda: torch.distributions.Poisson(loc.exp()),
        lambda: torch.distributions.Uniform(torch.zeros_like(loc), torch.ones_like(loc)),
        lambda: torch.distributions.Independent(torch.distributions.Normal(loc, loc.exp()), 1),
        lambda: torch.distributions.LogNormal(loc, loc.exp()),
        lambda: torch.distributions.OneHotCategorical(logits=loc),
        lambda: torch.distributions.Multinomial(5, logits=loc),
    ):
        distribution = make()
        made.append((distribution.sample(), distribution.log_prob(distribution.sample()).shape))
    return [(sample.shape, shape) for sample, shape in made]


def multivariate_normals(device):
    covariance = torch.eye(3, device=device) * 2
    normal = torch.distributions.MultivariateNormal(torch.zeros(3, device=device), covariance)
    low_rank = torch.distributions.LowRankMultivariateNormal(torch.zeros(3, device=device), torch.ones(3, 1, device=device), torch.ones(3, device=device))
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(2, device=device)), torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2, 3, device=device), 1.0), 1)
    )
    return [(d.rsample() if d.has_rsample else d.sample(), d.log_prob(torch.zeros(3, device=device))) for d in (normal, low_rank, mixture)]


def transformed_distributions(device):
    base = torch.distributions.Normal(torch.zeros(3, device=device), torch.ones(3, device=device))
    flow = torch.distributions.TransformedDistribution(base, [torch.distributions.transforms.TanhTransform(cache_size=1), torch.distributions.transforms.AffineTransform(0, 2)])
    sample = flow.rsample()
    divergence = torch.distributions.kl_divergence(base, torch.distributions.Normal(torch.ones(3, device=device), 2.0))
    return sample, flow.log_prob(sample), divergence, base.entropy()


def factorizations(device):
    x = torch.randn(5, 5, device=device) + 5 * torch.eye(5, device=device)
    positive = x @ x.T
    u, s, v = torch.linalg.svd(x)
    q, r = torch.linalg.qr(x)
    factors, pivots = torch.linalg.lu_factor(x)
    return u, s, v, q, r, torch.linalg.cholesky(positive), factors, pivots.shape, torch.linalg.eigh(positive)[0], torch.linalg.eig(x)[0], torch.linalg.eigvals(x)


def solvers(device):
    x, y = torch.randn(5, 5, device=device) + 5 * torch.eye(5, device=device), torch.randn(5, 2, device=device)
    lower = torch.linalg.cholesky(x @ x.T)
    return (
        torch.linalg.solve(x, y),
        torch.linalg.inv(x),
        torch.linalg.pinv(x),
        torch.linalg.lstsq(x, y).solution,
        torch.linalg.det(x),
        torch.linalg.slogdet(x)[1],
        torch.cholesky_solve(y, lower),
        torch.cholesky_inverse(lower),
        torch.linalg.solve_triangular(lower, y, upper=False),
        torch.linalg.matrix_norm(x, 2),
        torch.linalg.matrix_exp(x),
        torch.linalg.matrix_power(x, 3),
        torch.linalg.cond(x),
    )


def decompositions_of_data(device):
    x = torch.randn(20, 6, device=device)
    u, s, v = torch.pca_lowrank(x, 3)
    centered = x - x.mean(0)
    return u, s, v, torch.svd_lowrank(x, 2)[1], torch.cov(x.T), torch.corrcoef(x.T), torch.linalg.eigh(centered.T @ centered)[1]


def spectra(device):
    x = torch.randn(2, 400, device=device)
    spectrum = torch.stft(x, 64, window=torch.hann_window(64, device=device), return_complex=True)
    return torch.fft.rfft(x), torch.fft.fft2(x[None]), torch.fft.irfft(torch.fft.rfft(x)), spectrum, torch.istft(spectrum, 64, window=torch.hann_window(64, device=device)), torch.fft.fftshift(torch.fft.fftfreq(8, device=device))


def sparse_matrices(device):
    places = torch.tensor([[0, 1, 1], [2, 0, 2]], device=device)
    matrix = torch.sparse_coo_tensor(places, torch.tensor([3.0, 4.0, 5.0], device=device), (2, 3))
    rows = matrix.coalesce().to_sparse_csr()
    dense = torch.randn(3, 4, device=device)
    return matrix.coalesce().indices(), rows.crow_indices(), rows.col_indices(), matrix @ dense, rows @ dense, torch.sparse.mm(matrix, dense), matrix.to_dense(), torch.eye(3, device=device).to_sparse().indices().shape


def sparse_gradients(device):
    table = nn.Embedding(10, 4, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(table.parameters())
    table(torch.tensor([1, 3, 3], device=device)).sum().backward()
    optimizer.step()
    return table.weight.grad.coalesce().indices(), table.weight.grad.shape


def nested_tensors(device):
    parts = [torch.randn(length, 8, device=device) for length in (3, 5, 2)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    out = nn.Linear(8, 4).to(device)(nested)
    return nested.offsets(), out.detach().values(), torch.nested.to_padded_tensor(nested, 0.0), [part.shape for part in nested.unbind()]


def named_random_numbers(device):
    generator = torch.Generator(device).manual_seed(3)
    order = torch.randperm(10, device=device)
    return (
        order.sort().values,
        torch.randint(5, (3, 4), device=device, generator=generator).shape,
        torch.bernoulli(torch.full((4,), 0.5, device=device)).shape,
        torch.multinomial(torch.ones(6, device=device), 3).shape,
        torch.normal(0.0, torch.ones(3, device=device)),
        bool((torch.randint(5, (100,), device=device) < 5).all()),
        torch.cuda.get_rng_state().shape,
        F.gumbel_softmax(torch.randn(2, 5, device=device), hard=True),
    )


def data_and_printing(device):
    x = torch.tensor([[1, 2], [3, 4]], device=device)
    text = repr(x).replace(", device='cuda:0'", "")
    return text, x.tolist(), x.cpu().numpy().sum().item(), f"{x.sum().item()}", [int(row.sum()) for row in x], x.max().item(), len(x), hash(x.shape)


def interpolation_and_warps(device):
    image = torch.randn(1, 3, 8, 8, device=device)
    grid = F.affine_grid(torch.eye(2, 3, device=device)[None], image.shape, align_corners=False)
    return F.interpolate(image, scale_factor=2, mode="bilinear"), F.grid_sample(image, grid, align_corners=False), F.unfold(image, 3), F.pixel_shuffle(torch.randn(1, 8, 4, 4, device=device), 2), F.max_pool2d(image, 2, return_indices=True)[1].shape, F.adaptive_avg_pool2d(image, 3)
