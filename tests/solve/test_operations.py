"""What a solve does beside f, counted on the dispatcher: operations, host reads, copies."""

import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from problems import normal
from references import every_solver, from_zero
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import equilibria as eq
from equilibria.run.bench.count import READS, computes
from equilibria.solve.layout import Layout

CONVERGED = eq.Status.CONVERGED
LIMITS = {"rtol": 1e-6, "max_evals": 200}
SOLVERS = every_solver(**LIMITS)
# Operations between two evaluations that compute or copy; views and room are free.
MOST = {
    "Picard": 10,
    "Picard, damped": 10,
    "Anderson": 24,
    "Anderson, period 3": 24,
    "Anderson, damped": 24,
    "Broyden": 26,
    "Broyden, memory 5": 26,
}


class Beside(TorchDispatchMode):
    """Operations and reads between each two calls of the watched f, and what they made.

    Attributes:
        ops: for each call of f, the operations since the one before, by name.
        reads: as many numbers of host reads.
        made: sizes of all floating-point results.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[list[str]] = [[]]
        self.reads = [0]
        self.made: set[tuple[int, ...]] = set()
        self.inside = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not self.inside:
            self.reads[-1] += func._schema.name in READS
            if computes(func):
                self.ops[-1].append(func._schema.name)
            for result in pytree.tree_leaves(out):
                if isinstance(result, Tensor) and result.is_floating_point():
                    self.made.add(tuple(result.shape))
        return out

    def watch(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            self.inside = True
            try:
                return f(*args)
            finally:
                self.inside = False
                self.ops.append([])
                self.reads.append(0)

        return watched

    @property
    def counts(self) -> list[int]:
        """Operations between each two evaluations."""
        return [len(names) for names in self.ops[1:-1]]


WIDTH, BATCH = 64, 16
WEIGHT = (0.9 / WIDTH**0.5 * normal(WIDTH, WIDTH, seed=1)).float()
X = normal(BATCH, WIDTH, seed=2).float()


def net(z: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(torch.addmm(x, z, WEIGHT))


def beside(solver: Any, **options: Any) -> tuple[Beside, eq.Solution]:
    with torch.no_grad(), Beside() as counted:
        sol = from_zero(counted.watch(net), X, solver=solver, **options)
    assert (sol.status == CONVERGED).all()
    return counted, sol


@pytest.mark.parametrize("name", MOST)
def test_operations_between_two_evaluations(name: str) -> None:
    """The median of those in which no sample ends, and of all together."""
    counted, sol = beside(SOLVERS[name])
    quiet = counted.counts[1 : int(sol.stats.evals.min()) - 1]
    assert len(quiet) >= 8
    assert statistics.median(quiet) <= MOST[name]
    assert statistics.median(counted.counts) <= MOST[name] + 10


def test_the_counter_counts() -> None:
    """Known operations: one that computes, one copy, views, room, a read."""

    def f(z):
        return z + 1

    z = torch.zeros(3, 4)
    with Beside() as counted:
        watched = counted.watch(f)
        z = watched(z)
        z = (2 * z).t().view(4, 3).clone()
        torch.empty_like(z)
        bool(z.sum() > 1)
        watched(z.t())
    assert counted.counts == [4] and counted.reads == [0, 1, 0]
    assert (4, 3) in counted.made


@pytest.mark.parametrize("name", MOST)
def test_host_reads(name: str) -> None:
    """At most three where nothing ends, and one more where a stall is looked for; those that end
    samples add a few."""
    counted, sol = beside(SOLVERS[name])
    quiet = counted.reads[2 : int(sol.stats.evals.min()) - 1]
    assert max(quiet) <= 4 + ("memory" in name) and sorted(quiet)[-2] <= 3 + ("memory" in name)
    assert sum(counted.reads) <= 3 * len(counted.counts) + 4 * len(sol.stats.evals.unique()) + 10


@pytest.mark.parametrize("name", SOLVERS)
def test_leaves_are_never_joined(name: str) -> None:
    """No result outside of f has the entries of two leaves in one axis, padded or not."""
    widths = (24, 40)
    joined = {sum(widths), 32 + 48}  # rows in memory are padded to whole cache lines
    into = [(0.5 / w**0.5 * normal(w, w, seed=w)).float() for w in widths]
    across = (0.2 / 40**0.5 * normal(40, 24, seed=3)).float()
    x = [normal(5, w, seed=w + 1).float() for w in widths]

    def f(z, a, b):
        return (torch.tanh(z[0] @ into[0] + z[1] @ across + a), torch.tanh(z[1] @ into[1] + b))

    with torch.no_grad(), Beside() as counted:
        z0 = (torch.zeros_like(x[0]), torch.zeros_like(x[1]))
        sol = eq.fixed_point(counted.watch(f), z0, *x, solver=SOLVERS[name])
    assert (sol.status == CONVERGED).all()
    assert any(24 in size for size in counted.made) and any(40 in size for size in counted.made)
    assert not any(joined & set(size) or 5 * 64 in size for size in counted.made)


# --- memory formats ------------------------------------------------------------------------------

LAST = torch.channels_last
KERNEL = (0.15 * normal(6, 6, 3, 3, seed=4)).float()
IMAGE = normal(4, 6, 7, 5, seed=5).float()


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("name", SOLVERS)
def test_memory_formats_are_kept(name: str, starts: bool) -> None:
    """f sees the format that it gives, from the second evaluation on, whatever z0 has."""
    kernel, x = KERNEL.to(memory_format=LAST), IMAGE.to(memory_format=LAST)
    formats = []

    def f(z, x):
        formats.append(z.is_contiguous(memory_format=LAST))
        out = torch.tanh(torch.nn.functional.conv2d(z, kernel, padding=1) + x)
        return out.contiguous(memory_format=LAST)

    z0 = torch.zeros_like(x, memory_format=LAST if starts else torch.contiguous_format)
    sol = eq.fixed_point(f, z0, x, solver=SOLVERS[name])
    assert (sol.status == CONVERGED).all()
    assert len(formats) >= 4 and all(formats[1:]) and formats[0] == starts
    assert sol.value.is_contiguous(memory_format=LAST)


def test_rows_are_views_in_every_format() -> None:
    leaves = [IMAGE.to(memory_format=LAST), IMAGE, normal(4, 6, seed=1), normal(4, seed=1)]
    layout = Layout.of(leaves)
    rows = layout.rows(leaves)
    back = layout.leaves(rows)
    for leaf, row, again in zip(leaves, rows, back, strict=True):
        assert row.shape[0] == 4 and row.is_contiguous()
        assert leaf.data_ptr() == row.data_ptr() == again.data_ptr()
        assert again.stride() == leaf.stride() and torch.equal(again, leaf)


@pytest.mark.parametrize("name", MOST)
def test_an_image_costs_no_operation_more_than_a_vector(name: str) -> None:
    """Rows and leaves are views of each other: between two evaluations nothing is copied."""
    counts = []
    for form in (None, torch.contiguous_format, LAST):
        x = IMAGE.flatten(1) if form is None else IMAGE.to(memory_format=form)
        with torch.no_grad(), Beside() as counted:
            from_zero(counted.watch(lambda z, x: 0.8 * torch.cos(z) + x), x, solver=SOLVERS[name])
        counts.append(counted.counts[1:6])
    assert counts[0] == counts[1] == counts[2]


# --- compiled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SOLVERS if ", " not in name])
def test_a_cell_compiled_as_one_graph(name: str) -> None:
    """Operands keep their gradients; values are those of the uncompiled cell."""
    torch.compiler.reset()

    def cell(z, x, w):
        return torch.tanh(z @ w + x)

    found = []
    compiled = torch.compile(cell, fullgraph=True, backend="aot_eager", dynamic=False)
    for f in (cell, compiled):
        x, w = X.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
        sol = eq.fixed_point(f, torch.zeros_like(X), x, eq.shared(w), solver=SOLVERS[name])
        assert (sol.status == CONVERGED).all()
        found.append((sol.value, *torch.autograd.grad(sol.value.pow(2).sum(), (x, w))))
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-4)


def test_a_chaotic_cell_compiled_brings_auto_to_newton() -> None:
    """Products with J need f's backward differentiated, which a compiled one does not allow."""
    w = 2.5 / 40**0.5 * normal(40, 40, seed=6).float()
    x = normal(4, 40, seed=7).float()
    f = torch.compile(lambda z, x: torch.tanh(z @ w + x), fullgraph=True, backend="aot_eager")
    sol = from_zero(f, x, solver=eq.Auto(max_evals=300, newton=eq.GMRES(restart=100)))
    assert sol.stats.choices[:, 2].sum() > 0
    assert sol.value.isfinite().all()
