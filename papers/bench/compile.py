"""Graph breaks of compiled models, and how fast a cell is, by what is compiled."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

import equilibria as eq
from equilibria.run.bench.count import interleave
from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.views import Pivot
from papers.bench.model import Model

SOLVERS = ("Picard", "Anderson", "Broyden", "NewtonKrylov", "Auto")
ADJOINTS = ("Implicit", "Phantom", "NeumannPhantom", "JacobianFree", "Shine", "Unrolled")
NO_PAIR = {("Unrolled", "NewtonKrylov"), *(("Shine", s) for s in SOLVERS if s != "Broyden")}
SIZES = {32: 64, 128: 512}  # batch: width
EVALS, ROUNDS = 50, 15

Function = Callable[[Tensor], Tensor]


@contextmanager
def alone() -> Iterator[None]:
    """One thread, nothing compiled before, and no warnings: all take as many evaluations."""
    threads = torch.get_num_threads()
    torch.compiler.reset()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", eq.SolveWarning)
            yield
    finally:
        torch.set_num_threads(threads)


def graphs(context: Context) -> dict[str, float]:
    """Graph breaks of a training step, graphs compiled, and the gradient's distance from eager."""
    methods: dict[str, Any] = {k: getattr(eq, str(v))() for k, v in context.factors.items()}
    model, x = Model(16, **methods), torch.randn(8, 16)

    def gradient(function: Function) -> Tensor:
        found = torch.autograd.grad(function(x).sum(), list(model.parameters()))
        return torch.cat([g.flatten() for g in found])

    with alone():
        counters.clear()
        wanted, found = gradient(model), gradient(torch.compile(model, backend="aot_eager"))
        return {
            "breaks": sum(counters["graph_break"].values()),
            "graphs": counters["stats"]["unique_graphs"],
            "error": float((found - wanted).norm() / wanted.norm()),
        }


def speeds(context: Context) -> Iterable[dict[str, Any]]:
    """Microseconds an evaluation, of a forward alone and of a training step."""
    batch, width = (int(size) for size in context.factors.values())
    model = partial(Model, width, solver=eq.Picard(rtol=0.0, max_evals=EVALS, patience=EVALS))
    models: dict[str, Function] = {
        "nothing compiled": model(),
        "DEQ(torch.compile(cell))": model(compiled=True),
        "torch.compile(model)": torch.compile(model()),
        "torch.compile(model), DEQ(torch.compile(cell))": torch.compile(model(compiled=True)),
    }
    x = torch.randn(batch, width)
    calls: dict[str, Callable[[], object]] = {}
    for name, each in models.items():
        calls[f"forward {name}"] = partial(torch.no_grad()(each), x)
        calls[f"step {name}"] = lambda each=each: each(x).sum().backward()
    with alone():
        interleave(calls, x.device, rounds=2)  # compiles
        best = interleave(calls, x.device, rounds=ROUNDS, statistic=min)
    for name in models:
        took = {work: 1e6 * best[f"{work} {name}"] / EVALS for work in ("forward", "step")}
        yield {"compiled": name, **took}


STUDY = Study(
    title="Compiled models",
    points=lambda scale: [
        *(
            Point(pair, [graphs], minutes=0.04)
            for pair in grid(solver=SOLVERS, adjoint=ADJOINTS)
            if (pair["adjoint"], pair["solver"]) not in NO_PAIR
        ),
        *(
            Point(
                {"batch": batch, "width": width},
                [speeds],
                settings={"evals": EVALS, "rounds": ROUNDS},
                minutes=0.5,
            )
            for batch, width in SIZES.items()
        ),
    ],
    views=[
        Pivot(
            title="Graph breaks of a training step",
            index={"solver": "solver", "adjoint": "adjoint"},
            where={"adjoint": ADJOINTS},
            values={
                "graph breaks": "breaks",
                "graphs": "graphs",
                "gradient's relative error": "error",
            },
            note="torch.compile(model, backend='aot_eager') of a linear layer, a DEQ and a linear "
            "layer. The graphs are what stands before and after the solve, and the cell, once "
            "without and once with gradients where both are evaluated; the error is against the "
            "same model uncompiled.",
        ),
        Pivot(
            title="Microseconds an evaluation, by what is compiled",
            index={"batch": "batch", "width": "width", "compiled": "compiled"},
            each="compiled",
            where={"batch": list(SIZES)},
            values={"forward": "forward", "training step": "step"},
            note=f"{EVALS} evaluations by Picard, on one thread, inductor; a training step's time "
            f"is divided by its forward evaluations too. The minimum of {ROUNDS}, interleaved.",
        ),
    ],
)
