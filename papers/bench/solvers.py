"""One solve of the whole batch without gradients, to a relative residual of 1e-4, or of 1e-2 with
bfloat16 inside f.

float32; medians of at most 15 rounds, all solvers interleaved. No solver of ours gives up on slow
samples (patience=None).
"""

import functools
from typing import Any

import torch

from equilibria.run.bench.contestants import contestants, require_peers
from equilibria.run.bench.problems import MODES, BenchProblem, build, in_mode, usual
from equilibria.run.bench.solvers import Row, measure
from equilibria.run.studies.study import Context, Point, Scale, Study, grid
from equilibria.run.studies.views import Derived, Pivot, Table, median, of
from equilibria.solve import Solver
from papers.bench import common
from papers.bench.cells import LAYERS, layer
from papers.bench.choices import MOST

RTOL = {"float32": 1e-4, "bfloat16": 1e-2}  # bfloat16 leaves a floor near 2.5e-3
COLORS = {"Picard": 0, "Anderson": 2, "Broyden": 3, "NewtonKrylov": 4, "Auto": 5, "default": 1}
MARKS: tuple[dict[str, Any], ...] = (
    {"where": {"family": "equilibria"}},
    {"where": {"family": "torchdeq"}, "style": "rings", "label": "torchdeq {}".format},
)


def solve(context: Context, rounds: int, own: str | None = None) -> list[Row]:
    """A row for each solver, and for one of the user's own; see `run.bench.solvers.measure`."""
    if own is None:
        require_peers(*common.PEERS)
    precision = str(context.factors.get("precision", "float32"))
    inside = None if precision == "float32" else getattr(torch, precision)
    name, device = str(context.factors["problem"]), torch.device(context.device)
    if name in LAYERS:
        case = layer(name).to(device)
        problem = BenchProblem(
            name=name, f=case.cell, z0=case.z0, operands=(case.x,), max_evals=MOST
        )
    else:
        problem = build(name, device=device, dtype=torch.float32)
    problem = in_mode(problem, str(context.factors.get("mode", "eager")), inside)
    return measure(problem, contestants(context.device, own), rtol=RTOL[precision], rounds=rounds)


def points(scale: Scale) -> list[Point]:
    every: list[dict[str, Any]] = grid(problem=[*usual("cpu"), *LAYERS])
    if scale == "gpu":
        every = grid(problem=usual("cuda"), precision=RTOL, mode=MODES)
    once = [functools.partial(solve, rounds=15)]
    return [Point(f, once, settings={"rtol": RTOL}, minutes=0.35) for f in every]


pivot = functools.partial(Pivot, each="solver")
VIEWS = [
    Table(
        title="Solvers: summary",
        columns=["what", "problems", "geometric mean", "median", "worst", "where"],
        rows=common.summary,
        note="Over the problems in which all samples of both reached the tolerance. Overhead: "
        "time / (evaluations x time of f alone). Layers: 18 tanh layers, a convolution, a "
        "transformer and a graph network, by the time of f.",
    ),
    pivot(
        title="Solvers: times as fast as torchdeq",
        index={"problem": "problem"},
        values={
            "f, ms": "f_ms",
            **{name: of("same", solver=name) for name in common.SAME},
            "torchdeq's best": "fastest",
            "default against it": of("best", solver="default"),
            "if only f took time": of("bound", solver="default"),
            "overhead of the default": of("overhead", solver="default"),
        },
        note="The method's name: against the same method of torchdeq. A dash: one of the two "
        "did not reach the tolerance with every sample, or was not timed.",
    ),
    Derived(
        common.with_total,
        pivot(
            title="Solvers: who converges",
            index={"problem": "problem", "samples": "samples"},
            across="solver",
            values={"{level}": "reached"},
            note="Samples whose residual, measured anew on the answer, is within the tolerance. "
            "All have the same number of evaluations, except Broyden's method, ours and "
            "torchdeq's: at most 400, as it keeps every step.",
        ),
    ),
    pivot(
        title="Solvers: what they cost beside f",
        index={"solver": "solver"},
        where={"solved": True},
        values={
            "solved": len,
            "overhead": common.geometric("overhead"),
            "ops/eval": median("ops_mean"),
            "reads/eval": median("reads_each"),
            "bytes/state": median("states"),
        },
        note="Over the problems that it solved: the geometric mean of the overhead, the medians of "
        "the operations (all of a solve, for each evaluation), of the host reads and of the peak "
        "allocated, in states.",
    ),
    pivot(
        title="Solvers: all figures",
        index={"problem": "problem", "solver": "solver"},
        values={
            "evals, mean": "evals",
            "max": "evals_max",
            "f-samples": "f_samples",
            "residual, max": common.scientific("residual"),
            "ms": "ms",
            "x same method": "same",
            "x torchdeq's best": "best",
            "overhead": "overhead",
            "ops/eval": "ops",
            "mean": "ops_mean",
            "reads": "reads",
            "bytes/state": "states",
            "": "said",
        },
        note="x same method, x torchdeq's best: how many times as fast. ops/eval: ATen "
        "operations that compute or copy between two calls of f, the median; and all of the "
        "solve's for each evaluation, products among them, the mean. reads: values that the "
        "host waited for in a solve. bytes/state: peak allocated in a solve, in states.",
    ),
    common.dots(
        *({"x": "best", "y": "place", "by": ["method"], "colors": COLORS, **m} for m in MARKS),
        title="speed, problem by problem",
        x="times as fast as torchdeq's fastest method",
        names="problem",
        levels=[("", 1)],
        log_x=True,
    ),
]

STUDY = Study(
    title="Solvers beside torchdeq and SciPy",
    points=points,
    peers=common.PEERS,
    views=[Derived(common.solves, view) for view in VIEWS],
    own=lambda path: common.with_own(
        *(STUDY, path, (Solver,), {"solver": "default"}, common.solves),
        figures={name: functools.partial(of, name) for name in ("reached", "evals", "ms")},
    ),
)
