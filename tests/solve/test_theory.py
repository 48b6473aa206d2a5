"""Linear problems: what theory says of evaluations, and of the units that a problem is given in.

Source: Walker and Ni 2011, Theorem 2.2 (Anderson acceleration is GMRES, one step on).
"""

import itertools
import math

import pytest
import torch
from problems import normal, orthogonal, spread, with_norm, with_spectrum
from references import every_solver, from_zero
from torch import Tensor

import equilibria as eq
from equilibria.solve import convergence

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status

WIDTH, SAMPLES = 100, 2
RADII = (0.5, 0.9, 0.99)


def non_normal(radius: float, seed: int) -> Tensor:
    """As much above the diagonal as on it: its norm is about three times its radius."""
    q = orthogonal(WIDTH, seed)
    above = normal(WIDTH, WIDTH, seed=seed + 1).triu(1) * (radius / math.sqrt(WIDTH))
    return q @ (torch.diag(spread(-radius, radius, WIDTH)) + above) @ q.T


MAPS = {
    "symmetric": lambda radius: with_spectrum(spread(-radius, radius, WIDTH), seed=1),
    "semi_definite": lambda radius: with_spectrum(spread(0.0, radius, WIDTH), seed=2),
    "orthogonal": lambda radius: radius * orthogonal(WIDTH, seed=3),
    "non_normal": lambda radius: non_normal(radius, seed=4),
}


def products_of_gmres(a: Tensor, b: Tensor, rtol: float) -> tuple[int, int]:
    """GMRES on (I - A) z = b from zero, in exact arithmetic as far as float64 goes.

    Each iterate x_k, of k products, is found by a dense least-squares solve over an Arnoldi basis
    that is orthogonalised twice.

    Returns:
        The least k at which x_k has converged (see `Limits`), and the evaluations that
        Anderson acceleration needs: it evaluates z_{k+1} = A x_k + b as its (k + 2)th iterate.
    """

    def arrived(x: Tensor, image: Tensor) -> bool:
        """What CONVERGED asks for, from a start at zero."""
        residual, size, start = (image - x).norm(), image.norm(), b.norm()
        fallen = size <= convergence.GROWTH * start or residual <= convergence.SHARE * start
        return bool(residual <= rtol * size and fallen)

    system = torch.eye(len(b)).to(a) - a
    basis = [b / b.norm()]
    x = torch.zeros_like(b)
    products = evals = None
    for k in range(len(b) + 1):
        image = a @ x + b
        if products is None and arrived(x, image):
            products = k
        following = a @ image + b
        if evals is None and arrived(image, following):
            evals = k + 2
        if products is not None and evals is not None:
            return products, evals
        q = torch.stack(basis, dim=1)
        x = q @ torch.linalg.lstsq(system @ q, b[:, None]).solution[:, 0]
        new = a @ basis[-1]
        for _ in range(2):
            new = new - q @ (q.T @ new)
        basis.append(new / new.norm())
    raise AssertionError("GMRES did not end within the dimension")


@pytest.mark.parametrize(
    ("radius", "rtol"), [(0.5, 1e-3), (0.9, 1e-10), (0.99, 1e-6), (0.99, 1e-3)]
)
@pytest.mark.parametrize("name", MAPS)
def test_anderson_needs_what_gmres_needs_and_two(name: str, radius: float, rtol: float) -> None:
    """Where ||A|| > 1, exact arithmetic itself may ask for one more: z_{k+1} is worse than x_k."""
    a, b = MAPS[name](radius), normal(SAMPLES, WIDTH, seed=5)
    solver = eq.Anderson(history=None, ridge=0.0, rtol=rtol, max_evals=2 * WIDTH, patience=None)
    sol = from_zero(lambda z, b: z @ a.T + b, b, solver=solver)
    assert (sol.status == CONVERGED).all()
    for evals, (products, theory) in zip(
        sol.stats.evals.tolist(), [products_of_gmres(a, row, rtol) for row in b], strict=True
    ):
        bound = products + 2
        if name == "non_normal":
            bound = max(bound, theory)
        assert theory - 1 <= evals <= bound


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("name", MAPS)
def test_the_adjoint_needs_what_gmres_needs_and_one(name: str, radius: float) -> None:
    """The one product measures the true residual."""
    a, g = MAPS[name](radius), normal(SAMPLES, WIDTH, seed=5)
    linear = eq.GMRES(restart=2 * WIDTH, rtol=1e-6, max_evals=2 * WIDTH)
    x = torch.zeros_like(g).requires_grad_()
    sol = eq.fixed_point(
        lambda z, x: z @ a.T + x, torch.zeros_like(g), x, adjoint=eq.Implicit(linear=linear)
    )
    torch.autograd.grad(sol.value, x, g)
    assert (sol.adjoint.status == CONVERGED).all()
    wanted = torch.tensor([products_of_gmres(a.T, row, 1e-6)[0] for row in g])
    assert (sol.adjoint.stats.evals <= wanted + 1).all()


# --- units ---------------------------------------------------------------------------------------

LIMITS = {"rtol": 1e-5, "max_evals": 60}
SOLVERS = [
    *every_solver(**LIMITS).values(),
    eq.Anderson(**LIMITS, history=None, ridge=0.0),
    eq.Anderson(**LIMITS, history=2, period=2, damping=0.75, ridge=1e-3),
]
# Easy, slow, expanding (Newton's phase of Auto, and divergence of others), one a sample.
RATES = torch.tensor([[0.3], [0.97], [2.5]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("solver", "kind", "dtype"),
    [
        (solver, *kind)
        for solver, kind in zip(
            SOLVERS, itertools.cycle([("linear", torch.float64), ("tanh", torch.float32)])
        )
    ],
    ids=str,
)
def test_units_change_nothing(solver, kind: str, dtype: torch.dtype) -> None:
    """z -> c f(z / c), c = 2^power, a state of two leaves: every bit of the solve is the same."""
    w = with_norm(1.0, 16, seed=6)
    w = (w / torch.linalg.eigvals(w).abs().max()).to(dtype)
    x, rates = normal(3, 16, seed=7).to(dtype), RATES.to(dtype)

    def f(z, x, rates):
        value = rates * (z["a"] @ w.T) + x + 0.1 * z["b"].flatten(1).repeat(1, 2)
        value = torch.tanh(value) if kind == "tanh" else value
        return {"a": value, "b": 0.5 * z["b"] - 0.25 * z["a"][:, :8].reshape(3, 4, 2)}

    z0 = {"a": torch.zeros(3, 16, dtype=dtype), "b": normal(3, 4, 2, seed=8).to(dtype)}
    times = lambda tree, by: {name: by * leaf for name, leaf in tree.items()}  # noqa: E731
    plain = eq.fixed_point(f, z0, x, rates, solver=solver, trace=True)
    for c in (2.0**-20, 2.0**20):
        scaled = eq.fixed_point(
            lambda z, x, rates, c=c: times(f(times(z, 1 / c), x, rates), c),
            times(z0, c),
            x,
            rates,
            solver=solver,
            trace=True,
        )
        assert torch.equal(scaled.stats.evals, plain.stats.evals)
        assert torch.equal(scaled.status, plain.status)
        assert torch.equal(scaled.stats.residual, plain.stats.residual)
        traces = scaled.stats.trace, plain.stats.trace
        torch.testing.assert_close(*traces, rtol=0, atol=0, equal_nan=True)
        for name in plain.value:
            assert torch.equal(scaled.value[name], c * plain.value[name])


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_no_unit_makes_a_wrong_answer(solver) -> None:
    """Where squares leave the range of the dtype, a norm may be lost: it is never called solved."""
    for dtype, exponents in {
        torch.float64: (-100, -30, 30, 100),
        torch.float32: (-30, -20, -14, 14, 36),
    }.items():
        for exponent in exponents:
            check_unit(solver, dtype, exponent)


def check_unit(solver, dtype: torch.dtype, exponent: int) -> None:
    c = torch.tensor(10.0**exponent, dtype=torch.float64).to(dtype)
    x = (1 + normal(2, 8, seed=7).abs()).to(dtype)
    sol = eq.fixed_point(lambda z: 0.9 * z + c * x, torch.zeros_like(x), solver=solver)
    value = sol.value.double()
    image = 0.9 * value + c.double() * x.double()
    gap = (image - value).norm(dim=1) / image.norm(dim=1)
    done = sol.status == CONVERGED
    assert (gap[done] <= LIMITS["rtol"] * 1.01 + 16 * torch.finfo(dtype).eps).all()
    if 10.0 ** abs(exponent) < torch.finfo(dtype).max ** 0.4:  # squares are safe
        assert done.any() or type(solver) is eq.Picard
