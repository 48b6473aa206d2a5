"""Random maps on states of several shapes, and their dense solutions in float64.

Used by `fuzz.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draws import matrix
from witness import leaves


@dataclass
class Problem:
    """z = f(z, row, x, a) on a state in one of several shapes, and the same on (rows, entries).

    Attributes:
        rate: Lipschitz constant of f in the 2-norm of z / scale; above 1 it need not contract.
        scale: the size of each entry, (rows, entries).
        shape: "tensor", "image", "pair" or "tree": how a state lies in its leaves.
        sample: of each row; those of a sample are mixed if there are several.
    """

    kind: str
    rate: float
    x: Tensor
    a: Tensor
    scale: Tensor
    shape: str
    sample: Tensor

    @property
    def spread(self) -> float:
        """The largest entry of a sample over its smallest, at most."""
        of_samples = [self.scale[self.sample == i] for i in self.sample.unique()]
        return max(float(each.max() / each.min()) for each in of_samples)

    @property
    def margin(self) -> float:
        """A bound on the error is the residual over this; 0 if f need not contract."""
        return max(1 - self.rate, 0.0) / self.spread

    def on_rows(self, z: Tensor, x: Tensor, a: Tensor, row: Tensor | None = None) -> Tensor:
        scale = (self.scale if row is None else self.scale[row]).to(z)
        z = z / scale
        if self.kind == "mixed":
            same = (self.sample[:, None] == self.sample).to(z)
            z = 0.5 * z + 0.5 * (same / same.sum(1, keepdim=True)) @ z
        if self.kind == "elementwise":
            return scale * (torch.diagonal(a) * torch.sin(z) + x)
        out = z @ a + x
        return scale * (out if self.kind == "affine" else torch.tanh(out))

    def state(self, z: Tensor) -> Any:
        """Rows (rows, entries) as a state."""
        if self.shape == "tensor":
            return z
        if self.shape == "image":
            return z.reshape(len(z), 1, 2, -1)
        half = z.shape[1] // 2
        if self.shape == "pair":
            return z[:, :half], z[:, half:]
        return {"one": z[:, :1], "rest": (z[:, 1:half], [z[:, half:].reshape(len(z), -1, 1)])}

    def rows(self, state: Any) -> Tensor:
        return torch.cat([leaf.flatten(1) for leaf in leaves(state)], 1)

    def __call__(self, state: Any, row: Tensor, x: Tensor, a: Tensor) -> Any:
        return self.state(self.on_rows(self.rows(state), x, a, row))


def draw_problem(rng: np.random.Generator, dtype: torch.dtype) -> tuple[Problem, dict[str, Any]]:
    """A problem, and the options of `eq.fixed_point` that it needs."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    kind = str(rng.choice(["affine", "tanh", "tanh", "elementwise", "mixed"]))
    rows, entries = int(rng.integers(1, 6)), 2 * int(rng.integers(2, 7))
    rate = float(rng.choice([0.1, 0.4, 0.7, 0.9, 1.1, 1.4]))
    sample, options = torch.arange(rows), {}
    how = rng.random()
    if kind == "mixed" and how < 0.5:
        options["coupled"], sample = True, 0 * sample
    elif kind == "mixed":
        some = torch.randint(0, 3, (rows,), generator=generator)
        options["coupled"] = sample = torch.unique(some, return_inverse=True)[1]
    elif how < 0.4:
        options["drop_finished"] = True
    a = matrix(generator, entries, str(rng.choice(["any", "symmetric", "rotation"])), rate)
    if kind == "elementwise":
        a = rate * torch.diag(2 * torch.rand(entries, generator=generator, dtype=torch.float64) - 1)
    scale = torch.ones(rows, entries, dtype=torch.float64)
    if rng.random() < 0.3:  # samples of very different size
        scale = scale * 10.0 ** torch.as_tensor(rng.integers(-6, 7, (rows, 1)))
    if rng.random() < 0.2 and kind != "mixed":  # and entries
        scale = scale * 2.0 ** torch.as_tensor(rng.integers(-4, 5, entries))
    x = torch.randn(rows, entries, generator=generator, dtype=torch.float64)
    if rng.random() < 0.2:  # a sample whose solution is zero, and whose residual may be 0 / 0
        x[0] = 0
    shape = str(rng.choice(["tensor", "image", "pair", "tree"]))
    return Problem(kind, rate, x.to(dtype), a.to(dtype), scale, shape, sample), options


def dense(problem: Problem, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The solution in float64 and the gradients of sum(weights * z) with respect to x, and to a by
    each sample (samples, n, n): by Newton's method and dense matrices."""
    x, a = problem.x.double(), problem.a.double()
    z = torch.zeros_like(x)
    eye = torch.eye(z.numel(), dtype=torch.float64)

    def jacobian(z: Tensor) -> Tensor:
        found: Any = torch.func.jacrev(problem.on_rows)(z, x, a)
        return found.reshape(z.numel(), -1)

    for _ in range(3000):  # f contracts: plain iteration, then two steps of Newton's method
        z, before = problem.on_rows(z, x, a), z
        if torch.equal(z, before):
            break
    for _ in range(2):
        gap = (problem.on_rows(z, x, a) - z).flatten()
        # Rows of very different size: solved in units of each entry.
        unit = problem.scale.flatten()
        system = (eye - jacobian(z)) * unit / unit[:, None]
        z = z + (unit * torch.linalg.solve(system, gap / unit)).reshape(z.shape)
    unit = problem.scale.flatten()
    system = ((eye - jacobian(z)) * unit / unit[:, None]).T
    u = (torch.linalg.solve(system, weights.flatten() * unit) / unit).reshape(z.shape)
    one, two = x.clone().requires_grad_(), a.clone().requires_grad_()
    out = (problem.on_rows(z, one, two) * u).sum(1)
    by_x = torch.autograd.grad(out.sum(), one, retain_graph=True)[0]
    by_a = torch.stack([torch.autograd.grad(each, two, retain_graph=True)[0] for each in out])
    count = int(problem.sample.max()) + 1
    return z, by_x, torch.zeros(count, *a.shape).double().index_add(0, problem.sample, by_a)
