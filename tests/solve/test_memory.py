"""Memory of a training step: it does not grow with evaluations, while an unrolled one does."""

import pytest
import torch
from problems import normal
from references import Counted
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

import equilibria as eq
from equilibria.solve.gmres import Krylov
from equilibria.solve.rows import Memory

EVALS = (5, 40, 80)
B, D = 16, 1024  # a state of 64 KiB: small things beside it do not count


class Cell(nn.Module):
    """A slow map: after 80 evaluations it still moves."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(0.5, 0.99, D))

    def forward(self, z, x):
        return self.rate * torch.sin(z) + x


def step(solver, adjoint) -> int:
    """One forward and backward; returns the evaluations of the forward."""
    cell = Counted(Cell())
    x = normal(B, D, seed=1).float()
    sol = eq.fixed_point(cell, torch.zeros(B, D), x, solver=solver, adjoint=adjoint)
    evals = cell.calls
    sol.value.sum().backward()
    return evals


def saved_bytes(solver, adjoint) -> int:
    """Bytes of the tensors that autograd keeps between forward and backward."""
    total = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return tensor

    x = normal(B, D, seed=1).float()
    cell = Cell()
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        eq.fixed_point(cell, torch.zeros(B, D), x, solver=solver, adjoint=adjoint)
    return total


def peak_bytes(solver, adjoint) -> int:
    """The highest sum of bytes allocated and not yet freed, over forward and backward."""
    step(solver, adjoint)  # what is made once and stays is made before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(solver, adjoint)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    now = peak = 0
    for event in events:
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def fixed(solver, evals: int, **options):
    """A solver that takes exactly so many evaluations."""
    return solver(rtol=0.0, max_evals=evals, patience=1000, **options)


ADJOINTS = [
    eq.Implicit(linear=eq.GMRES(max_evals=15)),
    eq.JacobianFree(),
    eq.NeumannPhantom(steps=3),
    eq.Phantom(steps=3),
]


@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")
@pytest.mark.parametrize(
    ("solver", "adjoint"),
    list(zip([eq.Picard, eq.Anderson, eq.Auto, eq.Picard], ADJOINTS, strict=True)),
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_saved_bytes_do_not_grow(solver, adjoint) -> None:
    sizes = [saved_bytes(fixed(solver, n), adjoint) for n in EVALS]
    assert max(sizes) <= 1.05 * min(sizes)
    assert min(sizes) >= B * D * 4  # z* itself at least: the measurement sees it


@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")
@pytest.mark.parametrize(
    "solver",
    [
        lambda n: fixed(eq.Picard, n),
        lambda n: fixed(eq.Anderson, n, history=3),
        lambda n: fixed(eq.Broyden, n, memory=3),
    ],
    ids=["Picard", "Anderson", "Broyden"],
)
def test_peak_bytes_do_not_grow(solver) -> None:
    """Measured as in DESIGN, section 3. The history is full at 5 evaluations.

    Up to five |z| more are held where the newest iterate is not every sample's best, and where the
    last three with their images, from which the error is estimated, are not among the history.
    """
    adjoint = eq.Implicit(linear=eq.Neumann(max_evals=10))
    for n in EVALS:
        assert step(solver(n), adjoint) == n
    peaks = [peak_bytes(solver(n), adjoint) for n in EVALS]
    assert max(peaks) - min(peaks) <= 5.1 * B * D * 4
    assert min(peaks) >= 2 * B * D * 4


def held(monkeypatch, solver, adjoint) -> list[int]:
    """Vectors that the stores of one forward and backward have room for at their end."""
    stores: list[Memory | Krylov] = []
    for kind in (Memory, Krylov):

        def noted(self, *args, make=kind.__init__, **options):
            stores.append(self)
            make(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", noted)
    step(solver, adjoint)
    buffers = [each.rows() if isinstance(each, Memory) else each.buffers for each in stores]
    return [rows[0].shape[1] for rows in buffers]


@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")
@pytest.mark.parametrize("evals", [3, 12, 35])
def test_a_history_has_no_more_room_than_its_limit(monkeypatch, evals) -> None:
    """As the docstrings say: vectors of the size of the state."""
    assert held(monkeypatch, fixed(eq.Broyden, evals), eq.JacobianFree()) == [evals]
    memory = fixed(eq.Broyden, evals, memory=9)
    assert held(monkeypatch, memory, eq.JacobianFree()) == [min(evals, 10)]
    anderson = fixed(eq.Anderson, evals, history=None)
    residuals, moves = held(monkeypatch, anderson, eq.JacobianFree())
    assert residuals <= evals + 2 and moves <= evals
    linear = eq.GMRES(rtol=0.0, max_evals=evals, restart=50)
    found = held(monkeypatch, fixed(eq.Picard, 10), eq.Implicit(linear=linear))
    assert found and max(found) == evals  # evals - 1 in the cycle, and r; one measures


def slope(sizes: list[int]) -> float:
    """Growth from 40 to 80 evaluations over growth from 5 to 40, per evaluation: 1 if linear."""
    return ((sizes[-1] - sizes[-2]) / 40) / ((sizes[-2] - sizes[0]) / 35)


def test_unrolled_grows_linearly() -> None:
    saved = [saved_bytes(fixed(eq.Picard, n), eq.Unrolled()) for n in EVALS]
    peaks = [peak_bytes(fixed(eq.Picard, n), eq.Unrolled()) for n in EVALS]
    for sizes in (saved, peaks):
        assert sizes[-1] > 8 * sizes[0]
        assert slope(sizes) == pytest.approx(1, abs=0.1)


def test_checkpointing_grows_more_slowly() -> None:
    plain = [peak_bytes(fixed(eq.Picard, n), eq.Unrolled()) for n in EVALS]
    checked = [peak_bytes(fixed(eq.Picard, n), eq.Unrolled(checkpoint=True)) for n in EVALS]
    assert checked[-1] < 0.6 * plain[-1]
