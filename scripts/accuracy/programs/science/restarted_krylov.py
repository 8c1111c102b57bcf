"""GMRES(m): the Krylov basis grows for up to 30 iterations, then the method restarts.

kind: healthy
steps: 150 450
unit: request
"""

import probe
import torch


class GMRES:
    def __init__(self, matrix, restart=30):
        self.matrix, self.restart = matrix, restart
        self.basis, self.hessenberg = [], []

    def begin(self, residual):
        self.basis, self.hessenberg = [residual / (residual.norm() + 1)], []

    def iterate(self):
        w = self.matrix @ self.basis[-1]
        column = []
        for vector in self.basis:
            projection = vector @ w
            column.append(projection)
            w = w - projection * vector
        self.hessenberg.append(torch.stack(column))
        self.basis.append(w / (w.norm() + 1))


solver = GMRES(torch.randn(1500, 1500, device="cuda"))
for iteration in range(probe.steps(150)):
    if iteration % solver.restart == 0:
        solver.begin(torch.randn(1500, device="cuda"))
    solver.iterate()
    probe.step_end()
