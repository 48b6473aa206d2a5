"""Gradients through time, stability and convergence of cells, as Kag et al. 2019 prove them."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from equilibria.nn.recurrent.cell import Cell, State
from equilibria.zoo.recurrent.model.ernn import ERNNCell


def transition_jacobians(cell: Cell, x: Tensor) -> Tensor:
    """Return dh_k/dh_(k-1) at all steps of one sequence, from the zero state.

    Args:
        cell: any cell; the state of an LSTM counts as one vector (h, c).
        x: the sequence, (time, channels).

    Returns:
        (time, size, size), size the entries of the whole state.
    """
    with torch.no_grad():
        weights, injected = cell.weights(), cell.inject(x)
        before = [torch.cat(cell.begin(1, injected), -1)]
        for k, u in enumerate(injected[:-1]):
            before.append(_step(cell, u[None], before[-1], weights, k))
    found: list[Tensor] = []
    for k, (u, state) in enumerate(zip(injected, before, strict=True)):
        each = torch.autograd.functional.jacobian(
            lambda h, u=u, k=k: _step(cell, u[None], h, weights, k)[0], state, vectorize=True
        )
        assert isinstance(each, Tensor)
        found.append(each[:, 0])
    return torch.stack(found)


def _step(cell: Cell, u: Tensor, state: Tensor, weights: State, time: int) -> Tensor:
    parts = state.split(cell.hidden, -1)
    return torch.cat(cell.step(u, parts, weights, time), -1)


def gradient_norms(cell: Cell, x: Tensor) -> Tensor:
    """Return |dh_T/dh_k| in the spectral norm, for k = 0 to T - 1: (time,).

    h is the output, without the second half of an LSTM's state. At equilibrium every one is 1
    (Kag et al. 2019, Theorem 1).

    Args:
        cell: any cell.
        x: one sequence, (time, channels).
    """
    product, norms = None, []
    for each in transition_jacobians(cell, x).double().flip(0):
        product = each if product is None else product @ each
        norms.append(torch.linalg.matrix_norm(product[: cell.hidden, : cell.hidden], 2))
    return torch.stack(norms[::-1])


def field(cell: ERNNCell, h: Tensor, x: Tensor, before: Tensor) -> Tensor:
    """Return F(h) = f(h - tau h_(k-1); x_k) - gamma (h - tau h_(k-1)), (batch, hidden).

    papers: Kag et al. 2019, eq. 6.

    Args:
        cell: its f, gamma and tau.
        h: (batch, hidden).
        x: inputs of the step, (batch, channels).
        before: h_(k-1), (batch, hidden).
    """
    s = h - cell.tau * before
    return cell.f(s, cell.inject(x), *cell.f.matrices()) - cell.gamma * s


def field_jacobian(cell: ERNNCell, h: Tensor, x: Tensor, before: Tensor) -> Tensor:
    """Return dF/dh, (batch, hidden, hidden): the matrix diag(phi') U - gamma I of a dense cell.

    An equilibrium is asymptotically stable where all its eigenvalues have negative real parts
    (Kag et al. 2019, Lemma 2 and Figure 5).

    Args:
        cell: its f, gamma and tau.
        h: (batch, hidden).
        x: inputs of the step, (batch, channels).
        before: h_(k-1), (batch, hidden).
    """
    found = torch.autograd.functional.jacobian(
        lambda h: field(cell, h, x, before).sum(0), h, vectorize=True
    )
    assert isinstance(found, Tensor)
    return found.transpose(0, 1)


def input_jacobian(cell: ERNNCell, h: Tensor, x: Tensor, before: Tensor) -> Tensor:
    """Return dh_eq/dx = -(dF/dh)^-1 dF/dx, (batch, hidden, channels), at an equilibrium h.

    For a dense cell that is (gamma I - diag(phi') U)^-1 diag(phi') W.

    papers: Kag et al. 2019, sec. 2, "Variation of Equilibrium w.r.t. Input".

    Args:
        cell: its f, gamma and tau.
        h: equilibria, (batch, hidden).
        x: inputs of the step, (batch, channels).
        before: h_(k-1), (batch, hidden).

    Raises:
        torch.linalg.LinAlgError: dF/dh is singular.
    """
    slope = torch.autograd.functional.jacobian(
        lambda x: field(cell, h, x, before).sum(0), x, vectorize=True
    )
    assert isinstance(slope, Tensor)
    return -torch.linalg.solve(field_jacobian(cell, h, x, before), slope.transpose(0, 1))


class EulerSteps(NamedTuple):
    """What the Euler steps of one step in time do; each (steps, batch)."""

    condition: Tensor
    """eta^2 |dF F|^2 + 2 eta F^T dF F, negative where Theorem 2 holds (eq. 12)."""
    norm: Tensor
    """|I + eta dF|, below 1 where Corollary 1 holds: a bound on the rate."""
    rate: Tensor
    """|F| after the Euler step over |F| before: the measured rate of linear convergence."""
    distance: Tensor
    """|h - h_eq| / |h_0 - h_eq| after the step."""


@torch.no_grad()
def euler_steps(
    cell: ERNNCell, x: Tensor, before: Tensor, *, size: float, steps: int, limit: int = 2_000
) -> EulerSteps:
    """Take Euler steps of one size towards the equilibrium, and measure them.

    papers: Kag et al. 2019, Theorem 2, Corollary 1 and Figure 6.

    Args:
        cell: its f, gamma and tau; its own step sizes are not used.
        x: inputs of the step, (batch, channels).
        before: h_(k-1), (batch, hidden).
        size: eta.
        steps: how many are measured.
        limit: small steps, of 1 / (2 gamma), after which the equilibrium is taken to be reached.
    """
    equilibrium = torch.zeros_like(before)
    for _ in range(limit):
        equilibrium = equilibrium + 0.5 / cell.gamma * field(cell, equilibrium, x, before)
    path = [torch.zeros_like(before)]
    for _ in range(steps):
        path.append(path[-1] + size * field(cell, path[-1], x, before))
    columns: list[list[Tensor]] = [[], [], [], []]
    first = (path[0] - equilibrium).norm(dim=1)
    identity = torch.eye(cell.hidden, dtype=before.dtype, device=before.device)
    for h, after in itertools.pairwise(path):
        value = field(cell, h, x, before)
        with torch.enable_grad():
            jacobian = field_jacobian(cell, h, x, before)
        moved = (jacobian @ value[..., None])[..., 0]
        columns[0].append(size**2 * moved.square().sum(1) + 2 * size * (value * moved).sum(1))
        columns[1].append(torch.linalg.matrix_norm(identity + size * jacobian, 2))
        columns[2].append(field(cell, after, x, before).norm(dim=1) / value.norm(dim=1))
        columns[3].append((after - equilibrium).norm(dim=1) / first)
    return EulerSteps(*(torch.stack(each) for each in columns))
