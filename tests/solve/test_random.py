"""Every solver on random problems with NaN and inf thrown in.

Never an exception, never a wrong CONVERGED, and the samples that are well do not notice the sick.
"""

import warnings
import zlib
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from problems import flat, normal, relative_residual, with_norm
from promise import assert_as_promised
from torch import Tensor

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status

EXAMPLES = 12  # problems a solver
EVALS = 30
LIMITS = {"max_evals": EVALS, "patience": 12}
PLAIN = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
FEW = settings(PLAIN, max_examples=30)

SOLVERS = {
    "Picard": eq.Picard(**LIMITS),
    "Picard, damped": eq.Picard(**LIMITS, damping=0.6),
    "Picard, overrelaxed": eq.Picard(**LIMITS, damping=1.7),
    "Anderson, period 1": eq.Anderson(**LIMITS, period=1),
    "Anderson, period 3": eq.Anderson(**LIMITS, period=3),
    "Anderson, damped": eq.Anderson(**LIMITS, history=3, damping=0.7, period=2),
    "Broyden": eq.Broyden(**LIMITS),
    "Anderson, whole history": eq.Anderson(**LIMITS, history=30, ridge=0.0),
    "Broyden, memory 4": eq.Broyden(**LIMITS, memory=4),
    "Broyden, memory 1": eq.Broyden(**LIMITS, memory=1),
    "NewtonKrylov": eq.NewtonKrylov(**LIMITS),
    "Auto": eq.Auto(**LIMITS),
}
ONE_CALL_A_STEP = (eq.Picard, eq.Anderson, eq.Broyden)


@dataclass(frozen=True)
class Case:
    """A random problem.

    Attributes:
        kind: what becomes of A u: sin, tanh, or nothing.
        dense: A is a matrix; else a number.
        radius: of A, the largest over the samples.
        exponents: powers of ten, the units of each sample; the leaves' units differ by `between`.
        sick: sample -> the call of f that returns `bad` in one of its entries.
    """

    seed: int
    kind: str
    dense: bool
    dtype: torch.dtype
    batch: int
    width: int
    leaves: int
    radius: float
    exponents: tuple[int, ...]
    between: int
    sick: dict[int, int]
    bad: float
    drop_finished: bool


@st.composite
def cases(draw) -> Case:
    batch = draw(st.sampled_from([4, 3, 5, 6, 2, 1]))
    return Case(
        seed=draw(st.integers(0, 10**6)),
        kind=draw(st.sampled_from(["sin", "linear", "tanh"])),
        dense=draw(st.sampled_from([True, True, False])),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        batch=batch,
        width=draw(st.sampled_from([33, 20, 7, 2, 1])),
        leaves=draw(st.integers(1, 3)),
        radius=draw(st.sampled_from([3.0, 2.0, 1.5, 1.0, 0.95, 0.8, 0.3, 0.0])),
        exponents=tuple(draw(st.integers(-8, 8)) for _ in range(batch)),
        between=draw(st.sampled_from([0, 0, 3, -5])),
        sick=draw(st.dictionaries(st.integers(0, batch - 1), st.integers(1, 12), max_size=batch)),
        bad=draw(st.sampled_from([torch.nan, torch.inf, -torch.inf])),
        drop_finished=draw(st.booleans()),
    )


class Map:
    """f of a case; the samples are known by the operand `who`, as some may have left the batch."""

    def __init__(self, case: Case, sick: dict[int, int]) -> None:
        self.case, self.sick, self.calls = case, sick, 0
        batch, width, number = case.batch, case.width, case.seed
        # Some samples are easier than the radius says.
        share = torch.linspace(1, 0.2, batch, dtype=torch.float64)
        self.rate = (case.radius * share).to(case.dtype)[:, None]
        self.matrix = with_norm(1.0, width, seed=number).to(case.dtype)
        if case.kind == "linear":  # the radius, and not the norm, is what the case says
            largest = torch.linalg.eigvals(self.matrix.double()).abs().max().item()
            self.matrix = self.matrix / max(largest, 0.2)
        self.offsets = [
            normal(batch, width, seed=number + 1 + i).to(case.dtype) for i in range(case.leaves)
        ]
        powers = torch.tensor(case.exponents, dtype=torch.float64)[:, None]
        self.units = [
            (10.0 ** (powers + i * case.between).clamp(-8, 8)).to(case.dtype)
            for i in range(case.leaves)
        ]
        shapes = [(batch, width), (batch, 1, width), (batch, width, 1)]
        starts = [0.5 * normal(batch, width, seed=number + 9 + i) for i in range(case.leaves)]
        self.z0 = tuple(
            (unit * start.to(case.dtype)).reshape(shape)
            for unit, start, shape in zip(self.units, starts, shapes, strict=False)
        )

    def lipschitz(self, i: int) -> float:
        """Of sample i, in the norm of the solver; inf where that is not known."""
        norm = float(self.rate[i])
        if self.case.dense:
            norm *= float(torch.linalg.matrix_norm(self.matrix.double(), ord=2))
        if self.case.leaves == 1:
            return norm
        return norm + 0.3 if self.case.between == 0 else torch.inf

    def product(self, u: Tensor) -> Tensor:
        """A u, by a sum that rounds a row alone as in company."""
        return (u[:, None] * self.matrix).sum(2) if self.case.dense else u

    def clean(self, z: tuple[Tensor, ...], who: Tensor) -> tuple[Tensor, ...]:
        rate = self.rate[who]
        u = [leaf.flatten(1) / unit[who] for leaf, unit in zip(z, self.units, strict=True)]
        out = []
        for i, leaf in enumerate(z):
            value = rate * self.product(u[i])
            if i > 0:
                value = value + 0.3 * u[i - 1]  # a leaf feels the one before it
            value = value + self.offsets[i][who]
            if self.case.kind != "linear":
                value = getattr(torch, self.case.kind)(value)
            out.append((self.units[i][who] * value).reshape(leaf.shape))
        return tuple(out)

    def __call__(self, z: tuple[Tensor, ...], who: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        out = self.clean(z, who)
        for sample, call in self.sick.items():
            if call == self.calls:
                leaf = self.case.seed % len(out)
                here = (who == sample).reshape(-1, *[1] * (out[leaf].dim() - 1))
                spot = torch.zeros_like(out[leaf], dtype=torch.bool)
                spot.flatten(1)[:, self.case.seed % self.case.width] = True
                spoilt = torch.where(here & spot, self.case.bad, out[leaf])
                out = (*out[:leaf], spoilt, *out[leaf + 1 :])
        return out


def solve(case: Case, solver: eq.solve.Solver, sick: dict[int, int]) -> tuple[Map, eq.Solution]:
    f = Map(case, sick)
    who = torch.arange(case.batch)
    return f, eq.fixed_point(f, f.z0, who, solver=solver, drop_finished=case.drop_finished)


def rounding(f: Map, z: tuple[Tensor, ...]) -> Tensor:
    """What the relative residual may change by when f is taken anew, (batch,)."""
    image = flat(f.clean(z, torch.arange(f.case.batch)))
    # An entry of f is off by eps times the terms that it is the sum of, in its own unit.
    terms = flat(
        tuple(
            unit
            * (1 + f.rate * (leaf / unit).norm(dim=1, keepdim=True) * f.matrix.norm())
            * torch.ones_like(leaf)
            for leaf, unit in zip([leaf.flatten(1) for leaf in z], f.units, strict=True)
        )
    )
    eps = torch.finfo(f.case.dtype).eps
    return 16 * eps * (1 + terms.norm(dim=1) / image.norm(dim=1))


def check(case: Case, solver: eq.solve.Solver) -> list[int]:
    """Checks one problem; returns how its samples ended."""
    f, sol = solve(case, solver, case.sick)
    status, evals = sol.status, sol.stats.evals

    assert flat(sol.value).isfinite().all()
    assert ((evals >= 1) & (evals <= solver.max_evals)).all()
    residual = relative_residual(f.clean, sol.value, torch.arange(case.batch))
    done, slack = status == CONVERGED, rounding(f, sol.value)
    assert (residual[done] <= solver.rtol * 1.001 + slack[done]).all()
    # The value is the iterate that was measured, however the sample ended.
    told = sol.stats.residual
    off = (residual - told).abs() > 1e-3 * told + slack
    assert not (off & told.isfinite()).any()

    if not case.sick:
        return status.tolist()
    _, healthy = solve(case, solver, {})
    for i in range(case.batch):
        hit = i in case.sick and case.sick[i] <= f.calls
        if hit and isinstance(solver, ONE_CALL_A_STEP):
            hit = case.sick[i] <= healthy.stats.evals[i]
            if hit:  # the bad evaluation is its last
                assert status[i] == NONFINITE and evals[i] == case.sick[i]
        if hit:
            continue
        exact, lipschitz = isinstance(solver, eq.Picard), f.lipschitz(i)
        if exact or lipschitz < 1:
            options = {"rtol": solver.rtol, "lipschitz": lipschitz, "exact": exact}
            assert_as_promised(sol, i, healthy, i, **options)
        else:  # the others may be led elsewhere by rounding, but not to NaN
            assert status[i] != NONFINITE or healthy.status[i] == NONFINITE
    return status.tolist()


@pytest.mark.parametrize("name", SOLVERS)
def test_random_problems(name: str) -> None:
    seen = Counter()

    @seed(zlib.crc32(name.encode()))  # each has problems of its own
    @settings(PLAIN, max_examples=EXAMPLES)
    @given(cases())
    def examples(case: Case) -> None:
        seen.update(check(case, SOLVERS[name]))

    examples()
    # The problems are such that there is something to see.
    assert seen[CONVERGED] > EXAMPLES / 2 and seen[NONFINITE] > EXAMPLES / 5
    assert seen[MAX_EVALS] + seen[STALLED] + seen[DIVERGED] > EXAMPLES / 12


# Without anything thrown in: random nets, and random backward solves.

BATCH = 5
solvers = st.sampled_from(
    [
        eq.Picard(max_evals=40),
        eq.Picard(max_evals=40, damping=1.7),
        eq.Anderson(max_evals=40),
        eq.Anderson(period=3, max_evals=40),
        eq.Anderson(max_evals=40, history=1, period=2),
        eq.Anderson(max_evals=40, history=30, ridge=0.0),
        eq.Broyden(max_evals=40),
        eq.Broyden(max_evals=40, memory=1),
        eq.Broyden(max_evals=40, memory=4),
    ]
)
with_products = st.sampled_from(
    [
        eq.NewtonKrylov(max_evals=40),
        eq.NewtonKrylov(max_evals=40, linear=eq.BiCGSTAB()),
        eq.NewtonKrylov(max_evals=40, linear=eq.DirectSolve()),
        eq.Auto(max_evals=40),
        eq.Auto(max_evals=40, history=1, patience=None),
    ]
)
dtypes = st.sampled_from([torch.float32, torch.float64])
seeds = st.integers(0, 10**6)
norms = st.sampled_from([0.0, 0.3, 0.95, 2.0, 8.0, 1e6])


@FEW
@given(st.one_of(solvers, with_products), dtypes, st.integers(1, 9), seeds, norms, st.booleans())
def test_random_nets(solver, dtype, width, seed, norm, linear: bool) -> None:
    """Contractions, chaos and explosions: every status is true, whatever the path."""
    w = with_norm(1.0, width, seed=seed).to(dtype) * norm
    x = normal(BATCH, width, seed=seed + 1).to(dtype)

    def f(z):
        value = z @ w.T + x
        return value if linear else torch.tanh(value)

    z0 = normal(BATCH, width, seed=seed + 2).to(dtype)
    sol = eq.fixed_point(f, z0, solver=solver)
    assert sol.value.isfinite().all()
    assert ((sol.stats.evals >= 1) & (sol.stats.evals <= solver.max_evals)).all()
    eps = torch.finfo(dtype).eps
    # Anew, a product with entries of size `norm` rounds anew.
    rounding = 64 * eps * (1 + norm * sol.value.norm(dim=1)) / (f(sol.value).norm(dim=1) + eps)
    residual = relative_residual(f, sol.value)
    done = sol.status == CONVERGED
    assert (residual[done] <= solver.rtol * 1.01 + rounding[done]).all()
    over = sol.status == MAX_EVALS
    assert (sol.stats.evals[over] == solver.max_evals).all()
    # The best iterate that was evaluated is no worse than the start.
    start = relative_residual(f, z0)
    assert (sol.stats.residual <= start * 1.01 + rounding).all()


linear_solvers = st.sampled_from(
    [
        eq.GMRES(max_evals=30),
        eq.GMRES(max_evals=30, restart=2),
        eq.BiCGSTAB(max_evals=30),
        eq.Neumann(max_evals=30),
        eq.DirectSolve(max_evals=30),
        eq.Anderson(max_evals=30),
        eq.NewtonKrylov(max_evals=30),
        eq.Auto(max_evals=30),
    ]
)


@FEW
@given(linear_solvers, dtypes, st.integers(1, 6), seeds, norms, st.booleans())
def test_random_backward_solves(linear, dtype, width, seed, norm, poison: bool) -> None:
    """A CONVERGED adjoint solves its equation; one that is poisoned says so and stays alone."""
    a = with_norm(1.0, width, seed=seed).to(dtype) * norm
    x = normal(BATCH, width, seed=seed + 1).to(dtype).requires_grad_()
    sol = eq.fixed_point(
        lambda z, x: z @ a.T + x,
        torch.zeros(BATCH, width, dtype=dtype),
        x,
        solver=eq.Picard(max_evals=1),
        adjoint=eq.Implicit(linear=linear),
    )
    g = normal(BATCH, width, seed=seed + 2).to(dtype)
    if poison:
        g[seed % BATCH, 0] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # df/dx is the identity: the gradient is u itself.
        (u,) = torch.autograd.grad(sol.value, x, g)
    status = sol.adjoint.status
    done = status == CONVERGED
    image = u @ a + g
    gap, scale = (image - u).norm(dim=1), image.norm(dim=1)
    eps = torch.finfo(dtype).eps
    rounding = 64 * eps * (g.norm(dim=1) + (1 + norm) * u.norm(dim=1))
    assert (gap[done] <= linear.rtol * 1.01 * scale[done] + rounding[done]).all()
    if poison:
        bad = seed % BATCH
        assert status[bad] == NONFINITE
        assert u[[i for i in range(BATCH) if i != bad]].isfinite().all()
