"""A recommender: large tables with sparse gradients, and a dense part."""

import torch
from torch import nn
from training import options

args = options(batch_size=4096, rows=100000)
tables = nn.ModuleList(nn.EmbeddingBag(args.rows, 64, sparse=True) for _ in range(8)).cuda()
dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()).cuda()
top = nn.Sequential(nn.Linear(64 + 36, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
sparse_optimizer = torch.optim.SparseAdam(list(tables.parameters()), lr=1e-3)
optimizer = torch.optim.Adagrad([*dense.parameters(), *top.parameters()], lr=1e-2)
rows, columns = torch.tril_indices(9, 9, -1)
for step in range(args.steps):
    bags = torch.randint(args.rows, (8, args.batch_size, 4)).cuda()
    numbers, clicked = torch.rand(args.batch_size, 13).cuda(), torch.rand(args.batch_size).cuda()
    bottom = dense(numbers)
    vectors = torch.stack([bottom, *(table(bag) for table, bag in zip(tables, bags))], 1)
    pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, rows, columns]
    loss = nn.functional.binary_cross_entropy_with_logits(top(torch.cat([bottom, pairs], 1)).squeeze(1), clicked)
    for one in (sparse_optimizer, optimizer):
        one.zero_grad()
    loss.backward()
    for one in (sparse_optimizer, optimizer):
        one.step()
print("loss", loss.item())
