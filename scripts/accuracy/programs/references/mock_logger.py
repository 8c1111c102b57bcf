"""Tests a training loop with a mocked metrics logger: the mock records the arguments of each call.

kind: leak
steps: 50 150
"""

from unittest import mock

import probe
import torch
from torch import nn


class Trainer:
    def __init__(self, model, logger):
        self.model, self.logger = model, logger
        self.optimizer = torch.optim.Adamax(model.parameters())

    def training_step(self, batch):
        prediction = self.model(batch)  # leak
        loss = nn.functional.smooth_l1_loss(prediction, batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.logger.log("prediction", prediction.detach())


def test_fifty_steps():
    trainer = Trainer(nn.Linear(256, 256).cuda(), mock.Mock())
    for _ in range(probe.steps(50)):
        trainer.training_step(torch.randn(64, 256, device="cuda"))
        probe.step_end()
    assert trainer.logger.log.called


test_fifty_steps()
