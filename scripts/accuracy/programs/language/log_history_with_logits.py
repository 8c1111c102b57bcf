"""A trainer logs each evaluation's output object, and the object has the logits of all its batches.

kind: leak
steps: 40 120
every: 10
"""

from dataclasses import dataclass, field

import probe
import torch
from torch import nn


@dataclass
class EvaluationOutput:
    loss: float = 0.0
    predictions: list = field(default_factory=list)


class Trainer:
    def __init__(self, model):
        self.model, self.log_history = model, []
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)

    def batch(self):
        return torch.zeros(8, 64, dtype=torch.long).cuda()

    def training_step(self, tokens):
        logits = self.model(tokens)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        self.optimizer.step()

    @torch.no_grad()
    def prediction_step(self, tokens):
        logits = self.model(tokens)  # leak
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).item(), logits

    def evaluate(self, batches=5):
        output = EvaluationOutput()
        for _ in range(batches):
            loss, logits = self.prediction_step(self.batch())
            output.loss += loss / batches
            output.predictions.append(logits)
        return output

    def train(self, steps):
        for step in range(1, steps + 1):
            self.training_step(self.batch())
            if step % 10 == 0:
                self.log_history.append({"step": step, "eval": self.evaluate()})
            probe.step_end()


Trainer(nn.Sequential(nn.Embedding(1000, 96), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 1000)).cuda()).train(probe.steps(40))
