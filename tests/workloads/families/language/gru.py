"""Speech to letters: convolutions, a bidirectional GRU of cuDNN, and the CTC loss."""

import torch
from torch import nn
from training import options, train


class Model(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(80, width, 5, 2, 2), nn.ReLU(), nn.Conv1d(width, width, 5, 2, 2), nn.ReLU())
        self.gru, self.head = nn.GRU(width, width, num_layers=3, bidirectional=True), nn.Linear(2 * width, 30)

    def forward(self, frames):
        return self.head(self.gru(self.front(frames).permute(2, 0, 1))[0]).log_softmax(-1)


args = options(batch_size=16, length=400)
model = Model().cuda()


def loss_of(model):
    frames = torch.randn(args.batch_size, 80, args.length).cuda()
    letters = torch.randint(1, 30, (args.batch_size, 40)).cuda()
    scores = model(frames)
    lengths = torch.full((args.batch_size,), scores.shape[0]), torch.full((args.batch_size,), 40)
    return nn.functional.ctc_loss(scores, letters, *lengths)


train(model, loss_of, args.steps)
