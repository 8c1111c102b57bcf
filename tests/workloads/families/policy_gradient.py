"""Proximal policy optimization: rollouts, advantages, then epochs over shuffled parts."""

import torch
from torch import nn
from training import options

args = options(environments=64, horizon=128)
policy = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()).cuda()
actor, critic = nn.Linear(256, 8).cuda(), nn.Linear(256, 1).cuda()
optimizer = torch.optim.Adam([*policy.parameters(), *actor.parameters(), *critic.parameters()], lr=3e-4)
for step in range(args.steps):
    seen, taken, chances, values = [], [], [], []
    state = torch.randn(args.environments, 32, device="cuda")
    for _ in range(args.horizon):
        with torch.no_grad():
            hidden = policy(state)
            logits = actor(hidden).log_softmax(-1)
            action = torch.distributions.Categorical(logits=logits, validate_args=False).sample()
        seen.append(state)
        taken.append(action)
        chances.append(logits.gather(1, action[:, None]).squeeze(1))
        values.append(critic(hidden).squeeze(1).detach())
        state = torch.randn(args.environments, 32, device="cuda")
    seen, taken, chances, values = torch.cat(seen), torch.cat(taken), torch.cat(chances), torch.cat(values)
    advantage = torch.randn_like(values)
    for epoch in range(4):
        for part in torch.randperm(len(seen)).cuda().split(1024):
            hidden = policy(seen[part])
            ratio = (actor(hidden).log_softmax(-1).gather(1, taken[part, None]).squeeze(1) - chances[part]).exp()
            gain = torch.minimum(ratio * advantage[part], ratio.clamp(0.8, 1.2) * advantage[part]).mean()
            loss = nn.functional.mse_loss(critic(hidden).squeeze(1), values[part] + advantage[part]) - gain
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
print("loss", loss.item())
