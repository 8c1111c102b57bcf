"""WGAN-GP: the penalty needs `create_graph=True`, and all graphs are freed by the backward pass.

kind: healthy
steps: 50 150
"""

import probe
import torch
from torch import nn


def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1, device="cuda")
    point = (mix * real + (1 - mix) * fake).requires_grad_()
    grad, = torch.autograd.grad(critic(point).sum(), point, create_graph=True)
    return (grad.norm(dim=1) - 1).square().mean()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width))

    def forward(self, x):
        return x + torch.sin(self.layer(x))


generator = nn.Sequential(nn.Linear(32, 128), Residual(128), nn.Linear(128, 64)).cuda()
critic = nn.Sequential(nn.Linear(64, 128), nn.Softplus(), nn.Linear(128, 1)).cuda()
optimizers = [torch.optim.Adam(model.parameters(), lr=1e-4) for model in (generator, critic)]
for step in range(probe.steps(50)):
    real, fake = torch.randn(128, 64, device="cuda"), generator(torch.randn(128, 32, device="cuda"))
    loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty(critic, real, fake.detach())
    optimizers[1].zero_grad()
    loss.backward()
    optimizers[1].step()
    if step % 3 == 0:
        optimizers[0].zero_grad()
        critic(fake).mean().neg().backward()
        optimizers[0].step()
    probe.step_end()
