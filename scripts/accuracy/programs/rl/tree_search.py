"""Monte Carlo tree search: the tree of a game grows from move to move and dies with the game.

kind: healthy
steps: 120 360
unit: request
"""

import random

import probe
import torch
from torch import nn


class Node:
    __slots__ = ("state", "prior", "children", "visits")

    def __init__(self, state, prior):
        self.state, self.prior, self.children, self.visits = state, prior, {}, 0


@torch.no_grad()
def search(network, root, rng, simulations=12):
    for _ in range(simulations):
        node, path = root, [root]
        while len(node.children) == 3:
            node = node.children[rng.randrange(3)]
            path.append(node)
        action = len(node.children)
        state = torch.roll(node.state, action) + 1
        node.children[action] = Node(state, network(state.flatten()[None]))
        for one in path:
            one.visits += 1


def main(moves):
    rng, network, root = random.Random(9), nn.Linear(9 * 9 * 8, 82).cuda(), None
    left = 0
    for _ in range(moves):
        if left == 0:
            root, left = Node(torch.zeros(8, 9, 9, device="cuda"), None), rng.randint(12, 24)
        search(network, root, rng)
        left -= 1
        if left == 0:
            root = None
        probe.step_end()


main(probe.steps(120))
