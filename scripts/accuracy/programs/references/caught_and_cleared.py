"""Many batches fail, and the handler keeps only the text: nothing stays.

kind: healthy
steps: 60 200
"""

import traceback

import probe
import torch
from torch import nn


def risky(model, batch, number):
    hidden = torch.relu(model(batch))
    workspace = hidden @ hidden.T
    if number % 3 == 1:
        raise FloatingPointError("loss is nan")
    return (hidden.sum() + workspace.trace()).abs()


def main():
    messages = []
    model = nn.Linear(100, 600).cuda()
    optimizer = torch.optim.Adagrad(model.parameters())
    for number in range(probe.steps(60)):
        optimizer.zero_grad()
        try:
            loss = risky(model, torch.randn(128, 100, device="cuda"), number)
            loss.backward()
        except FloatingPointError as error:
            messages.append("".join(traceback.format_exception(error)))
        optimizer.step()
        probe.step_end()
    print(len(messages))


if __name__ == "__main__":
    main()
