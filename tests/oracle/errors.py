"""How well `stats.error` tells how wrong a solution is.

    python tests/oracle/errors.py --maps 300 --cells 20 --seed 0

Maps of ten kinds whose fixed points are known in float64, and small cells after training, are
solved by every solver at three tolerances in float32 and float64. Of what CONVERGED it prints how
often the estimate is within a factor of 5 of the true relative error; how often an error of more
than 50 rtol goes without a warning, and how often one below 5 rtol has one (a warning is an
estimate above 15 rtol). Then the same maps are solved with `error=1e-3`: how often the true error
is within 1e-3 and 3e-3, and by how many evaluations more than by the residual, where that sufficed.
Last, backward solves: the error of the adjoint, by every linear solver. Exits with 1 where a share
misses its bar.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import equilibria as eq
from solves import parser

SAMPLES = 3
RTOLS = (1e-2, 1e-3, 1e-4)
WANTED = 1e-3
SOLVERS: tuple[eq.Solver, ...] = (
    eq.Picard(max_evals=5000),
    eq.Anderson(max_evals=300),
    eq.Anderson(period=3, max_evals=300),
    eq.Broyden(max_evals=300),
    eq.NewtonKrylov(max_evals=3000),
    eq.Auto(max_evals=300),
    eq.Auto(max_evals=300, newton=eq.GMRES()),
)
LINEAR: tuple[Any, ...] = (
    eq.GMRES(max_evals=300),
    eq.BiCGSTAB(max_evals=300),
    eq.Neumann(max_evals=3000),
    eq.Fallback(max_evals=300),
    eq.Anderson(max_evals=300),
)


@dataclass(frozen=True)
class Case:
    """z = f(z, x) for each sample, its Jacobian being that of `f`, and the solution in float64."""

    kind: str
    f: Callable[[Tensor, Tensor], Tensor]
    x: Tensor
    solution: Tensor


class Draw:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.generator))

    def matrix(self, n: int, radius: float) -> Tensor:
        """A dense matrix of a spectral radius."""
        found = self.normal(n, n)
        return found * (radius / torch.linalg.eigvals(found).abs().max())

    def orthogonal(self, n: int) -> Tensor:
        return torch.linalg.qr(self.normal(n, n))[0]


def affine(draw: Draw, kind: str, n: int) -> Case:
    """z = J z + x."""
    if kind == "dense":
        jacobian = draw.matrix(n, draw.uniform(0.3, 0.98))
    elif kind == "rotation":
        radius = draw.uniform(0.5, 0.99)
        angles = [draw.uniform(-3, 3) for _ in range(n // 2)]
        turns = [[[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]] for t in angles]
        basis = draw.orthogonal(2 * len(turns))
        blocks = torch.block_diag(*(torch.tensor(t, dtype=torch.float64) for t in turns))
        jacobian = radius * basis @ blocks @ basis.T
    elif kind == "symmetric":
        top = 1 - 10 ** draw.uniform(-3, -0.3)
        basis, values = draw.orthogonal(n), torch.linspace(-0.9 * top, top, n, dtype=torch.float64)
        jacobian = basis * values @ basis.T
    elif kind == "non-normal":
        jacobian = torch.triu(draw.normal(n, n), 1) * draw.uniform(0.1, 0.5)
        jacobian = jacobian + draw.uniform(0.3, 0.8) * torch.eye(n, dtype=torch.float64)
        norm = float(torch.linalg.matrix_norm(jacobian, 2))
        jacobian = jacobian / max(1.0, norm / draw.uniform(2, 4))
    else:  # damped inside f
        share = 10 ** draw.uniform(-2, -0.2)
        inner = draw.matrix(n, draw.uniform(0.3, 0.9))
        jacobian = (1 - share) * torch.eye(n, dtype=torch.float64) + share * inner
    x = draw.normal(SAMPLES, len(jacobian))
    system = torch.eye(len(jacobian), dtype=torch.float64) - jacobian
    solution = torch.linalg.solve(system, x.T).T
    return Case(kind, lambda z, x: z @ jacobian.T.to(z.dtype) + x, x, solution)


def gradient_steps(draw: Draw, n: int) -> Case:
    """Steps of gradient descent on a least-squares problem, from long to tiny."""
    design = draw.normal(2 * n, n)
    hessian = design.T @ design / (2 * n) + 0.1 * torch.eye(n, dtype=torch.float64)
    step = 2 * 10 ** draw.uniform(-4, -0.3) / float(torch.linalg.matrix_norm(hessian, 2))
    x = draw.normal(SAMPLES, n)
    solution = torch.linalg.solve(hessian, x.T).T
    return Case("gradient", lambda z, x: z - step * (z @ hessian.to(z.dtype) - x), x, solution)


def curved(draw: Draw, kind: str, n: int) -> Case:
    """Layers, solved in float64 by Newton's method."""
    norm = draw.normal(n, n)
    norm = norm / torch.linalg.matrix_norm(norm, 2)
    x = draw.normal(SAMPLES, n)
    if kind == "tanh":
        weight = draw.matrix(n, draw.uniform(0.5, 1.3))
        return solved(kind, lambda z, x: torch.tanh(z @ weight.to(z.dtype) + x), x)
    if kind == "normalised":
        weight = draw.normal(n, n) * draw.uniform(0.3, 1.0) / math.sqrt(n)
        return solved(kind, lambda z, x: functional.layer_norm(z @ weight.to(z.dtype) + x, (n,)), x)
    if kind == "relu":
        weight = norm * draw.uniform(0.4, 1.2)
        return solved(kind, lambda z, x: torch.relu(z @ weight.to(z.dtype) + x), x)
    weight, step = norm * draw.uniform(0.3, 0.9), draw.uniform(0.05, 1.0)
    return solved(kind, lambda z, x: z + step * (torch.tanh(z @ weight.to(z.dtype) + x) - z), x)


def solved(
    kind: str, f: Callable[[Tensor, Tensor], Tensor], x: Tensor, start: Tensor | None = None
) -> Case:
    start = torch.zeros_like(x) if start is None else start.detach()
    sol = eq.fixed_point(f, start, x, solver=eq.NewtonKrylov(rtol=1e-12, max_evals=5000))
    unsolved = (sol.status != eq.Status.CONVERGED).unsqueeze(1)
    return Case(kind, f, x, sol.value.detach().masked_fill(unsolved, torch.nan))


LINEAR_KINDS = ("dense", "rotation", "symmetric", "non-normal", "damped")
CURVED_KINDS = ("tanh", "normalised", "relu", "residual")
CURVED = (*CURVED_KINDS, "trained")
KINDS = (*LINEAR_KINDS, "gradient", *CURVED_KINDS)


def draw_cases(count: int, seed: int) -> Iterator[Case]:
    draw = Draw(seed)
    for number in range(count):
        kind, n = KINDS[number % len(KINDS)], int(draw.uniform(8, 64))
        if kind in LINEAR_KINDS:
            yield affine(draw, kind, n)
        elif kind == "gradient":
            yield gradient_steps(draw, n)
        else:
            yield curved(draw, kind, n)


class Cell(nn.Module):
    """tanh(W z + x) or its layer normalisation."""

    def __init__(self, width: int, normalized: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.normalized = normalized

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        y = self.inner(z) + x
        return functional.layer_norm(y, (y.shape[1],)) if self.normalized else torch.tanh(y)


def train_cells(count: int, seed: int) -> Iterator[Case]:
    """Cells after 100 steps towards random targets."""
    for number in range(count):
        torch.manual_seed(seed + number)
        width = 16 + 4 * (number % 8)
        cell, inputs, out = Cell(width, number % 2 == 1), nn.Linear(8, width), nn.Linear(width, 4)
        layer = eq.DEQ(cell, solver=eq.Auto(rtol=1e-4, max_evals=200))
        parameters = [*layer.parameters(), *inputs.parameters(), *out.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=1e-2)
        data, target = torch.randn(64, 8), torch.randn(64, 4)
        for _ in range(100):
            optimizer.zero_grad()
            loss = functional.mse_loss(out(layer(inputs(data)).value), target)
            loss.backward()
            optimizer.step()
        cell = cell.double().requires_grad_(False)
        single = copy.deepcopy(cell).float()
        cells = {torch.float64: cell, torch.float32: single}
        x = inputs(data[:SAMPLES]).detach().double()
        yield solved("trained", lambda z, x, cells=cells: cells[z.dtype](z, x), x)


@dataclass(frozen=True)
class Row:
    kind: str
    method: str
    true: float
    estimate: float
    rtol: float


def is_near(row: Row) -> bool:
    """Within a factor of 5, or both below the rounding of float32."""
    true, estimate = (max(each, 1e-7) for each in (row.true, row.estimate))
    return true / 5 <= estimate <= 5 * true


def name_of(method: Any) -> str:
    name, extras = type(method).__name__, []
    for field in ("period", "newton"):
        if getattr(method, field, None) not in (None, 1):
            extras.append(field)
    return " ".join([name, *extras])


def error_of(value: Tensor, solution: Tensor) -> Tensor:
    return (value.double() - solution).norm(dim=1) / solution.norm(dim=1)


def true_error(case: Case, value: Tensor) -> Tensor:
    """Measured from the fixed point nearby, of which a trained cell may have several."""
    error = error_of(value, case.solution)
    if case.kind not in CURVED or not bool((error > 0.1).any()):
        return error
    nearby = solved(case.kind, case.f, case.x, value.double()).solution
    return torch.where(error > 0.1, error_of(value, nearby), error)


def measure_forward(case: Case) -> Iterator[Row]:
    for dtype in (torch.float32, torch.float64):
        x = case.x.to(dtype)
        for rtol in RTOLS:
            for solver in SOLVERS:
                method = replace(solver, rtol=rtol)
                sol = eq.fixed_point(case.f, torch.zeros_like(x), x, solver=method)
                true = true_error(case, sol.value)
                for i in range(len(x)):
                    if sol.status[i] == eq.Status.CONVERGED and true[i] == true[i]:
                        estimate = float(sol.stats.error[i])
                        yield Row(case.kind, name_of(solver), float(true[i]), estimate, rtol)


def measure_limited(case: Case) -> Iterator[tuple[float, float]]:
    """True errors under `error=WANTED`, and the evaluations over those by the residual alone where
    these sufficed, NaN where not."""
    for dtype in (torch.float32, torch.float64):
        x = case.x.to(dtype)
        for solver in SOLVERS:
            start = torch.zeros_like(x)
            by_residual = replace(solver, rtol=WANTED)
            plain = eq.fixed_point(case.f, start, x, solver=by_residual)
            sol = eq.fixed_point(case.f, start, x, solver=replace(by_residual, error=WANTED))
            before, true = (true_error(case, each.value) for each in (plain, sol))
            more = sol.stats.evals / plain.stats.evals
            sufficed = (plain.status == eq.Status.CONVERGED) & (before <= WANTED)
            for i in range(len(x)):
                if sol.status[i] == eq.Status.CONVERGED and true[i] == true[i]:
                    yield float(true[i]), float(more[i]) if sufficed[i] else math.nan


def measure_backward(case: Case) -> Iterator[Row]:
    """Errors of u = J^T u + g at the solution."""
    x = case.x
    if not bool(torch.isfinite(case.solution).all()):
        return
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    jacobians = [
        torch.func.jacrev(lambda z, i=i: case.f(z[None], x[i : i + 1])[0])(case.solution[i])
        for i in range(len(x))
    ]
    eye = torch.eye(x.shape[1], dtype=x.dtype)
    truth = torch.stack(
        [torch.linalg.solve(eye - j.T, each) for j, each in zip(jacobians, g, strict=True)]
    )
    for rtol in RTOLS:
        for linear in LINEAR:
            operand = x.clone().requires_grad_()
            adjoint = eq.Implicit(linear=replace(linear, rtol=rtol))
            sol = eq.attach(case.f, case.solution, operand, adjoint=adjoint)
            sol.value.backward(g)
            found = sol.adjoint
            assert found is not None
            true = error_of(found.value[0], truth)
            for i in range(len(x)):
                if found.status[i] == eq.Status.CONVERGED:
                    estimate = float(found.stats.error[i])
                    yield Row(case.kind, name_of(linear), float(true[i]), estimate, rtol)


def share(rows: list[Any], holds: Callable[[Any], bool]) -> float:
    return sum(map(holds, rows)) / max(1, len(rows))


def is_silent(row: Row) -> bool:
    return row.true > 50 * row.rtol and not row.estimate > 15 * row.rtol


def is_alarm(row: Row) -> bool:
    return row.true < 5 * row.rtol and row.estimate > 15 * row.rtol


def print_table(title: str, rows: list[Row]) -> None:
    print(f"{title}: {len(rows)} solutions\n")
    print("| | solutions | no estimate | within x 5 | silent | false alarms |")
    print("|---|---|---|---|---|---|")
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups["all"].append(row)
        groups[row.kind].append(row)
        groups[row.method].append(row)
    for name, several in groups.items():
        known = [row for row in several if not math.isnan(row.estimate)]
        print(
            f"| {name} | {len(several)} | {len(several) - len(known)} "
            f"| {share(known, is_near):.1%} | {share(several, is_silent):.2%} "
            f"| {share(several, is_alarm):.2%} |"
        )
    print()


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--maps", type=int, default=300)
    arguments.add_argument("--cells", type=int, default=20)
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    cases = [*draw_cases(given.maps, given.seed), *train_cells(given.cells, given.seed)]
    forward = [row for case in cases for row in measure_forward(case)]
    print_table("Forward", forward)
    backward = [row for case in cases for row in measure_backward(case)]
    print_table("Backward", backward)
    limited = [pair for case in cases for pair in measure_limited(case)]
    errors = [true for true, _ in limited]
    ratios = [more for _, more in limited if not math.isnan(more)]
    within, near = (share(errors, lambda x, k=k: x <= k * WANTED) for k in (1, 3))
    more = math.exp(sum(map(math.log, ratios)) / max(1, len(ratios))) - 1
    print(
        f"error={WANTED:g}: {len(errors)} solutions CONVERGED, error at most {WANTED:g} in "
        f"{within:.1%}, at most {3 * WANTED:g} in {near:.1%}; {more:+.1%} evaluations where the "
        f"residual sufficed ({len(ratios)})"
    )
    met = (
        share(forward, is_near) >= 0.95,
        share(forward, is_silent) <= 0.01,
        share(forward, is_alarm) <= 0.01,
        within >= 0.9,
        near >= 0.97,
        more <= 0.2,
    )
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
