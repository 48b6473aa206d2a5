"""A training step of an implicit graph layer, beside the loop of its authors.

IGNN of 32 features, W = 0.9 I, on graphs of forty nodes: chains with rings. Each way has the
loosest tolerance by which the gradient's relative error, against the exact one in float64, is at
most 1e-3; float32, medians of interleaved rounds. Ours are the default, and plain iteration as the
loop's; on all nodes as one sample (coupled=True), or with a sample for each graph (coupled=index).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.run.bench import gradients, methods
from equilibria.run.bench.cells import Case, case_of
from equilibria.run.bench.methods import MAX_EVALS, BackwardReport, Method
from equilibria.run.bench.solvers import Row
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Pivot, of, ratio
from equilibria.zoo.graph.model.edges import Edges
from equilibria.zoo.graph.model.ignn import IGNNCell
from papers.bench import common
from papers.bench.training import BOUND

NODES, GRAPH, WIDTH, ROUNDS = (309, 1955, 9986), 40, 32, 31
THEIRS = "authors' loop"
OURS = {"default": methods.default, "plain": methods.plain}


class Layer(nn.Module):
    """The cell of IGNN on one graph."""

    def __init__(self, edges: Edges) -> None:
        super().__init__()
        self.cell, self.edges = IGNNCell(WIDTH, "relu"), edges
        with torch.no_grad():
            nn.init.eye_(self.cell.linear.weight).mul_(0.9)

    @override
    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        """z, u `(nodes, width)` -> z `(nodes, width)`."""
        return self.cell(z, u, self.edges)


def chains(nodes: int) -> Edges:
    """Edges, both ways, between neighbours in each graph; every sixth node closes a ring of six."""
    i = torch.arange(nodes)
    kept = {
        step: (i % GRAPH >= step) & (i % every == every - 1) for step, every in ((1, 1), (5, 6))
    }
    pairs = torch.cat([torch.stack([i[each], i[each] - step]) for step, each in kept.items()], 1)
    sender, receiver = torch.cat([pairs, pairs.flip(0)], 1)
    edges, weight = Edges(sender, receiver, torch.ones(len(sender)), nodes).add_loops(
        torch.ones(len(sender))
    )
    return Edges(edges.sender, edges.receiver, edges.normalize("sym", weight), nodes)


class Loop(torch.autograd.Function):
    """X = relu(W X A + U) and its gradient by plain iteration, until no entry moves by more than
    `tol` times the largest entry of U, or of the incoming gradient.

    papers: Gu et al. 2020; features as rows, as in the authors' code.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, a: Tensor, u: Tensor, tol: float) -> Tensor:
        """weight `(width, width)`, sparse a `(nodes, nodes)`, u `(width, nodes)` -> X as u."""
        at = a.t().coalesce()
        x = _iterate(lambda x: torch.relu((at @ (weight @ x).T).T + u), u, tol)
        with torch.enable_grad():
            inner = ((at @ (weight @ x).T).T + u).requires_grad_()
            (slope,) = torch.autograd.grad(torch.relu(inner).sum(), inner)
        ctx.save_for_backward(weight, a, x, slope)
        ctx.tol = tol
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weight, a, x, slope = ctx.saved_tensors
        (g,) = grads
        v = _iterate(lambda v: slope * ((a @ (weight.T @ v).T).T + g), g, ctx.tol)
        return v @ (a.t() @ x.T), None, v, None


def _iterate(f: Callable[[Tensor], Tensor], like: Tensor, tol: float) -> Tensor:
    x, limit = torch.zeros_like(like), tol * float(like.abs().max())
    for _ in range(MAX_EVALS):
        x, before = f(x), x
        if torch.norm(x - before, float("inf")) < limit:
            break
    return x


def case(nodes: int) -> Case:
    torch.manual_seed(nodes)
    u, target = torch.randn(nodes, WIDTH), torch.randn(nodes, WIDTH) / nodes
    return case_of(f"{nodes} nodes", Layer(chains(nodes)), u, target)


def ways(nodes: int) -> list[Method]:
    edges = chains(nodes)
    indices = torch.stack([edges.sender, edges.receiver])
    a = torch.sparse_coo_tensor(indices, edges.weight, (nodes, nodes)).coalesce()

    def loop(case: Case, tol: float) -> tuple[Tensor, Callable[[], BackwardReport]]:
        function: Any = Loop
        layer: Any = case.cell
        return function.apply(layer.cell.linear.weight, a, case.x.T, tol).T, BackwardReport

    index = torch.arange(nodes) // GRAPH
    return [
        Method(THEIRS, "authors", True, loop),
        *(
            make(coupled, f"{name}, coupled={word}")
            for name, make in OURS.items()
            for word, coupled in (("True", True), ("index", index))
        ),
    ]


def step(context: Context, rounds: int = ROUNDS) -> list[Row]:
    """A row for each way; see `run.bench.gradients.measure`."""
    nodes = int(context.factors["nodes"])
    options: dict[str, Any] = {"rtol": BOUND, "bound": BOUND, "rounds": rounds, "memory": False}
    return gradients.measure(case(nodes), ways(nodes), **options)


STUDY = Study(
    title="A graph layer beside its authors' loop",
    points=lambda scale: [
        Point({"nodes": nodes}, [step], settings={"bound": BOUND, "rounds": ROUNDS})
        for nodes in NODES
    ],
    views=[
        Pivot(
            title="Graph layer: times as fast as the authors' loop",
            index={"nodes": "nodes"},
            each="method",
            values={
                way: ratio(of("ms", method=THEIRS), of("ms", method=way))
                for way in (
                    f"{name}, coupled={word}" for name in OURS for word in ("True", "index")
                )
            },
        ),
        Pivot(
            title="Graph layer: all figures",
            index={"nodes": "nodes", "method": "step"},
            each="method",
            values={
                "ms": "ms",
                "forward": "forward_ms",
                "backward": "backward_ms",
                "tolerance": common.scientific("rtol"),
                "gradient's error": common.scientific("error"),
            },
            note="The tolerance of the loop is on the largest entry of a step, relative to "
            "that of the injection or of the incoming gradient.",
        ),
    ],
)
