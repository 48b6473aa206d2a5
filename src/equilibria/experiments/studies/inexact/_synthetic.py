"""Gradients of one random layer by every inexact adjoint, and Theorem 4 on random matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.experiments.study import Context
from equilibria.models import EquilibriumModel
from equilibria.solve import (
    GMRES,
    Adjoint,
    Anderson,
    Broyden,
    Implicit,
    NeumannPhantom,
    Phantom,
    Picard,
    Shine,
    Solver,
    Unrolled,
    fixed_point,
    shared,
)

__all__ = ["DAMPINGS", "DRAWS", "STEPS", "WIDTH", "cosines", "theorem", "trained"]

WIDTH, BATCH, LIPSCHITZ = 100, 16, 0.9
STEPS = (1, 2, 3, 4, 5, 6, 8, 10)
DAMPINGS = (1.0, 0.8, 0.5)
DRAWS = 1_000
TIGHT = {"rtol": 1e-13, "max_evals": 600}


def cosines(context: Context) -> Iterable[dict[str, Any]]:
    """Cosine of each estimator with the exact gradient of W and x, by `steps` and `damping`.

    z+ = tanh(W (z + x)), W Gaussian and scaled to a spectral norm or radius of 0.9, x standard
    normal, the loss a random linear function of z*. In float64, at a solution to 1e-13.
    `difference` is that of UPG and NPG, relative; `bptt` the cosine of backpropagation through
    1,000 plain iterations and the exact gradient.
    """
    generator = torch.Generator().manual_seed(int(context.factors["seed"]))
    draw = {"dtype": torch.float64, "generator": generator}
    weight = torch.randn(WIDTH, WIDTH, **draw)
    if context.factors["scaled"] == "norm":
        size = torch.linalg.matrix_norm(weight, 2)
    else:
        size = torch.linalg.eigvals(weight).abs().max()
    weight = (LIPSCHITZ * weight / size).requires_grad_()
    x = torch.randn(BATCH, WIDTH, **draw).requires_grad_()
    towards = torch.randn(BATCH, WIDTH, **draw)

    def gradient(adjoint: Adjoint, solver: Solver) -> Tensor:
        solution = fixed_point(
            lambda z, x, w: torch.tanh((z + x) @ w.T),
            torch.zeros_like(x),
            x,
            shared(weight),
            solver=solver,
            adjoint=adjoint,
        )
        found = torch.autograd.grad((solution.value * towards).sum(), [weight, x])
        return torch.cat([g.flatten() for g in found])

    solver = Anderson(**TIGHT)
    exact = gradient(Implicit(linear=GMRES(**TIGHT, restart=100)), solver)
    # Plain iteration, in full: its own tolerance is never met.
    path = gradient(Unrolled(), Picard(rtol=0.0, max_evals=1_000, patience=None))
    yield {"estimator": "BPTT", "bptt": _cosine(path, exact)}
    broyden = Broyden(rtol=1e-5, max_evals=100)
    for refine in (0, 2):
        cosine = _cosine(gradient(Shine(refine=refine), broyden), exact)
        yield {"estimator": "SHINE", "steps": refine, "damping": None, "cosine": cosine}
    for damping in DAMPINGS:
        for steps in STEPS:
            upg = gradient(Phantom(steps=steps, damping=damping), solver)
            npg = gradient(NeumannPhantom(steps=steps, damping=damping), solver)
            for name, found in (("UPG", upg), ("NPG", npg)):
                row: dict[str, Any] = {"estimator": name, "steps": steps, "damping": damping}
                row["cosine"] = _cosine(found, exact)
                row["difference"] = float((upg - npg).norm() / npg.norm())
                yield row


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def theorem(context: Context) -> dict[str, Any]:
    """`counter_examples` among `draws` that meet (5.4), over all gradients of the loss at once.

    With h = (I - J)^-T dl/dz*, the inner product of (5.5) is h^T (M + E) M^T h, M = df/dtheta and
    E = (I - J) A - M, so it is positive for every loss where the symmetric part of (M + E) M^T has
    no eigenvalue <= 0: `smallest`, over sigma_min(M)^2. A is drawn by E, half of the time in the
    worst direction, at `factor` times the bound sigma_min(M)^2 / sigma_max(M), and half at random
    shares of that.
    """
    factor = float(context.factors["factor"])
    generator = torch.Generator().manual_seed(0)
    draw = {"dtype": torch.float64, "generator": generator}
    failed, smallest = 0, float("inf")
    for number in range(DRAWS):
        rows = 2 + int(torch.randint(7, (), generator=generator))
        columns = rows + int(torch.randint(20, (), generator=generator))
        left = torch.linalg.qr(torch.randn(rows, rows, **draw))[0]
        right = torch.linalg.qr(torch.randn(columns, rows, **draw))[0]
        condition = 10 ** (3 * float(torch.rand((), **draw)))
        values = condition ** -torch.linspace(0, 1, rows, dtype=torch.float64)
        m = left @ torch.diag(values) @ right.T
        worst = torch.randn(rows, columns, **draw)
        if number % 2:  # it takes from the smallest direction alone
            worst = left[:, -1:] @ right[:, -1:].T
        worst = worst / torch.linalg.matrix_norm(worst, 2)
        share = 0.999 if number % 4 < 2 else float(torch.rand((), **draw))
        e = -factor * share * values[-1] ** 2 / values[0] * worst
        radius = float(torch.rand((), **draw))
        j = torch.randn(rows, rows, **draw)
        j = radius * j / torch.linalg.matrix_norm(j, 2)
        eye = torch.eye(rows, dtype=torch.float64)
        a = torch.linalg.solve(eye - j, m + e)
        product = ((eye - j) @ a) @ m.T  # as it is computed from J and A, and not from E
        least = float(torch.linalg.eigvalsh(product + product.T)[0] / 2 / values[-1] ** 2)
        smallest = min(smallest, least)
        failed += least <= 0
    return {"draws": DRAWS, "counter_examples": failed, "smallest": smallest}


SAMPLES = 8
NEUMANN = {"JFB": (1, 1.0), "NPG, k = 5, damping .5": (5, 0.5), "NPG, k = 5": (5, 1.0)}
NEUMANN |= {"NPG, k = 20": (20, 1.0)}


def trained(context: Context) -> Iterable[dict[str, Any]]:
    """How far trained layers are from the condition (5.8): by `estimator`, `met` the share of test
    samples with ||(I - J) D - I|| < 1 / kappa^2, and the medians of both sides."""
    model = cast(EquilibriumModel, context.run.load().model).double()
    batch = context.run.task.sample("test", SAMPLES)
    model.deq.eval_solver = Anderson(rtol=1e-10, max_evals=300)
    with torch.no_grad():
        operands = tuple(x.double() for x in model.inject(batch.inputs.double()))
        z = model.deq(*operands).value
    cell: Any = model.deq.cell
    eye = torch.eye(z.shape[1], dtype=torch.float64)
    sides: dict[str, list[tuple[float, float]]] = {name: [] for name in NEUMANN}
    for sample in range(len(z)):
        own = [x[sample : sample + 1] for x in operands]
        at = z[sample : sample + 1]

        def f(v: Tensor, own: list[Tensor] = own) -> Tensor:
            return cell(v, *own)[0]

        j = cast(Any, torch.autograd.functional.jacobian(f, at))[:, 0]
        m = _parameter_jacobian(cell, at, own)
        values = torch.linalg.eigvalsh(m @ m.T)  # squares of its singular values
        bound = float(values[0].clamp_min(0) / values[-1])
        for name, (steps, damping) in NEUMANN.items():
            b = damping * j + (1 - damping) * eye
            error = torch.linalg.matrix_norm(torch.linalg.matrix_power(b, steps), 2)
            sides[name].append((float(error), bound))
    for name, found in sides.items():
        error, bound = torch.tensor(found, dtype=torch.float64).median(0).values.tolist()
        met = sum(a < b for a, b in found) / len(found)
        yield {"estimator": name, "met": met, "error": error, "bound": bound}


def _parameter_jacobian(cell: Any, z: Tensor, operands: list[Tensor]) -> Tensor:
    """df/dtheta at one sample, `(entries, parameters)`, with the injection as a parameter too."""
    parameters = [p for p in cell.parameters() if p.requires_grad]
    inputs = [x.detach().requires_grad_() for x in operands]
    out = cell(z, *inputs)[0]
    rows: list[Tensor] = []
    for i in range(len(out)):
        grads = torch.autograd.grad(
            out[i], [*parameters, *inputs], retain_graph=True, allow_unused=True
        )
        rows.append(torch.cat([g.flatten() for g in grads if g is not None]))
    return torch.stack(rows)
