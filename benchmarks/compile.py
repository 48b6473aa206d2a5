"""Count graph breaks of compiled models, and time a cell compiled in different ways.

``python benchmarks/compile.py`` writes results/compile.json, two minutes on two cores.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # before torch is imported

import time
import warnings
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import equilibria as eq
from equilibria.bench.record import Cell as Entry
from equilibria.bench.record import Table, write
from equilibria.solve import Adjoint, Solver

RESULTS = Path(__file__).parents[1] / "results"
COMMAND = "python benchmarks/compile.py"
SOLVERS = (
    eq.Picard(),
    eq.Anderson(),
    eq.AlternatingAnderson(),
    eq.Broyden(),
    eq.NewtonKrylov(),
    eq.Auto(),
)
ADJOINTS = (
    eq.Implicit(),
    eq.Phantom(),
    eq.NeumannPhantom(),
    eq.JacobianFree(),
    eq.Shine(),
    eq.Unrolled(),
)
SIZES = ((32, 64), (128, 512))  # batch, width
EVALS = 50
ROUNDS = 15


class Cell(nn.Module):
    """Two matrix products with elementwise work between them, which a compiler fuses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        with torch.no_grad():
            for p in self.parameters():
                p.mul_(0.5)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        h = self.up(z)
        h = nn.functional.gelu(h) * torch.sigmoid(h) + 0.1 * torch.sin(h)
        h = self.down(h) + x
        return 0.9 * torch.tanh(nn.functional.layer_norm(h, h.shape[-1:]))


class Model(nn.Module):
    def __init__(self, layer: eq.DEQ, width: int) -> None:
        super().__init__()
        self.before = nn.Linear(width, width)
        self.layer = layer
        self.after = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(torch.relu(self.before(x))).value)


def breaks(solver: Solver, adjoint: Adjoint) -> list[Entry]:
    """Graph breaks of a training step, graphs compiled, and the gradient's distance from eager."""
    shared = isinstance(adjoint, eq.Shine)
    stepwise = isinstance(adjoint, eq.Unrolled)
    names: list[Entry] = [type(solver).__name__, type(adjoint).__name__]
    if (shared and not isinstance(solver, eq.Broyden)) or (
        stepwise and isinstance(solver, eq.NewtonKrylov)
    ):
        return []  # no pair
    torch.manual_seed(0)
    model = Model(eq.DEQ(Cell(16), solver=solver, adjoint=adjoint), 16)
    x = torch.randn(8, 16)

    def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
        found = torch.autograd.grad(function(x).sum(), list(model.parameters()))
        return torch.cat([g.flatten() for g in found])

    torch.compiler.reset()
    counters.clear()
    wanted = gradient(model)
    found = gradient(torch.compile(model, backend="aot_eager"))
    error = float((found - wanted).norm() / wanted.norm())
    broken = sum(counters["graph_break"].values())
    return [*names, broken, counters["stats"]["unique_graphs"], error]


def ways(width: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Models with the same weights, by how they are compiled."""
    solver = eq.Picard(rtol=0.0, max_evals=EVALS, patience=EVALS)

    def model(compiled: bool) -> Model:
        torch.manual_seed(0)
        cell = Cell(width)
        layer = eq.DEQ(torch.compile(cell) if compiled else cell, solver=solver)
        return Model(layer, width)

    return {
        "nothing compiled": model(False),
        "DEQ(torch.compile(cell))": model(True),
        "torch.compile(model)": torch.compile(model(False)),
        "torch.compile(model), DEQ(torch.compile(cell))": torch.compile(model(True)),
    }


def times(batch: int, width: int) -> list[list[Entry]]:
    """Microseconds an evaluation, of a forward alone and of a training step: the best of many."""
    torch.compiler.reset()
    x = torch.randn(batch, width)

    def forward(function: Callable[[Tensor], Tensor]) -> None:
        with torch.no_grad():
            function(x)

    def step(function: Callable[[Tensor], Tensor]) -> None:
        function(x).sum().backward()

    functions = ways(width)
    best: dict[tuple[str, str], float] = {}
    for round in range(ROUNDS + 2):
        for name, function in functions.items():
            for work in (forward, step):
                begin = time.perf_counter()
                work(function)
                taken = time.perf_counter() - begin
                if round >= 2:  # compiled by now
                    key = name, work.__name__
                    best[key] = min(taken, best.get(key, taken))
    return [
        [name, batch, width, *(round_to(best[name, work] / EVALS) for work in ("forward", "step"))]
        for name in functions
    ]


def round_to(seconds: float) -> float:
    return float(f"{1e6 * seconds:.3g}")


def main() -> None:
    ArgumentParser(description=__doc__).parse_args()  # no options, but --help
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", eq.SolveWarning)  # all take as many evaluations, and stop
    rows = [row for s in SOLVERS for a in ADJOINTS if (row := breaks(s, a))]
    graph_breaks = Table(
        title="Graph breaks of a training step",
        columns=("solver", "adjoint", "graph breaks", "graphs", "gradient's relative error"),
        rows=rows,
        note="torch.compile(model, backend='aot_eager') of a linear layer, a DEQ and a linear "
        "layer. The graphs are what stands before and after the solve, and the cell, once without "
        "and once with gradients where both are evaluated; the error is against the same model "
        "uncompiled.",
    )
    speed = Table(
        title="Microseconds an evaluation, by what is compiled",
        columns=("compiled", "batch", "width", "forward", "training step"),
        rows=[row for batch, width in SIZES for row in times(batch, width)],
        note=f"{EVALS} evaluations by Picard, on one thread, inductor; a training step's time is "
        f"divided by its forward evaluations too. The best of {ROUNDS}, interleaved.",
    )
    write(RESULTS, "compile", command=COMMAND, tables=[graph_breaks, speed])
    for table in (graph_breaks, speed):
        print(table.title, *table.columns, sep="  ")
        for row in table.rows:
            print(*row, sep="  ")


if __name__ == "__main__":
    main()
