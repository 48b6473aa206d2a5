"""The linear solvers on rows: the Krylov basis, limits of single samples, the hand-over."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from problems import normal, orthogonal, spread, with_spectrum
from promise import assert_as_promised
from torch.utils._python_dispatch import TorchDispatchMode

import equilibria as eq
from equilibria.solve.gmres import Krylov

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status

SOLVERS = [eq.GMRES(restart=10), eq.GMRES(), eq.BiCGSTAB(), eq.Neumann(), eq.Fallback()]
DTYPES = [torch.float32, torch.float64]


def elementwise(rate):
    """A map of norm |rate| at most that treats every sample alone, and alike in every batch."""

    def product(rows):
        (u,) = rows
        ramp = torch.linspace(-1, 1, u.shape[1], dtype=u.dtype)
        return [rate * (0.7 * ramp * u + 0.3 * u.roll(1, dims=1))]

    return product


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("leaves", [[7], [32, 5]])
def test_basis_is_orthonormal_and_knows_its_coordinates(leaves, dtype) -> None:
    """v_j = y_j v_0 + sum_i c_ji (I - A) v_i, also where vectors are nearly dependent."""
    entries, count = sum(leaves), 6
    spectrum = torch.cat([torch.full((entries - 3,), 0.5), torch.tensor([3.0, -2.0, 0.4999])])
    a = with_spectrum(spectrum.double(), seed=1).to(dtype)
    residual = [normal(2, width, seed=2 + i).to(dtype) for i, width in enumerate(leaves)]
    size = torch.cat(residual, 1).norm(dim=1)
    basis = Krylov(residual, size, limit=30)
    again = 0
    for k in range(count):
        image = torch.cat(basis.vector(k), 1) @ a.T
        height, shadow = basis.extend(list(image.split(leaves, dim=1)))
        weak = shadow > 10 * height
        again += int(weak.any())
        if weak.any() and k + 1 < count:
            basis.again(weak & (height > basis.eps))
    # The spectrum has four values, so the space has four dimensions.
    vectors = torch.stack([torch.cat(basis.vector(j), 1) for j in range(4)], dim=1)
    eps = torch.finfo(dtype).eps
    gram = vectors @ vectors.transpose(1, 2)
    assert (gram - torch.eye(4).to(gram)).abs().max() < 1e3 * eps
    assert again
    table = basis.table()[:, :4]
    images = vectors - vectors @ a.T
    made = table[:, :, :1] * vectors[:, :1] + table[:, :, 1:5] @ images
    scale = table.abs().amax()
    assert (made - vectors).abs().max() < 1e3 * eps * scale


@pytest.mark.parametrize(
    ("width", "dtype"),
    list(zip([1, 15, 16, 50, 784, 5000], [*DTYPES, *DTYPES, *DTYPES], strict=True)),
    ids=str,
)
@pytest.mark.parametrize("linear", SOLVERS, ids=repr)
def test_alone_or_in_company(linear, width: int, dtype) -> None:
    """Easy and hard samples together, and each alone; the last one has no contraction."""
    rates = (0.1, 0.97, 0.5, -0.9, 3.0)
    rate = torch.tensor(rates, dtype=dtype)[:, None]
    g = normal(5, width, seed=4).to(dtype)
    linear = replace(linear, rtol=1e-5, max_evals=45)
    together = linear.solve(elementwise(rate), [g])
    assert width == 1 or len(together.evals.unique()) >= 3
    for i in range(4):
        one = slice(i, i + 1)
        alone = linear.solve(elementwise(rate[one]), [g[one]])
        assert_as_promised(alone, 0, together, i, rtol=1e-5, lipschitz=abs(rates[i]))


@pytest.mark.parametrize("call", [1, 4, 9, 15])
@pytest.mark.parametrize("linear", SOLVERS, ids=repr)
def test_nan_of_one_sample_is_its_own(linear, call: int) -> None:
    """A product that turns NaN for one sample, before or after it has finished."""
    rate = torch.tensor([[0.2], [0.9], [0.9]], dtype=torch.float64)
    g = normal(3, 40, seed=5)
    linear = replace(linear, rtol=1e-9)
    healthy = linear.solve(elementwise(rate), [g])
    for ill in range(3):
        calls = 0

        def product(rows, ill=ill):
            nonlocal calls
            calls += 1
            (out,) = elementwise(rate)(rows)
            if calls == call:
                out[ill] = torch.nan
            return [out]

        run = linear.solve(product, [g])
        for i in range(3):
            if i != ill or call > healthy.evals[i]:
                norm = float(rate[i])
                assert_as_promised(run, i, healthy, i, rtol=linear.rtol, lipschitz=norm)
        assert run.value[0].isfinite().all()
        if call <= healthy.evals[ill] and run.status[ill] == CONVERGED:
            u = run.value[0]
            image = elementwise(rate)([u])[0] + g
            assert (image - u)[ill].norm() <= 1.01 * linear.rtol * image[ill].norm()


@pytest.mark.parametrize("linear", [*SOLVERS, eq.DirectSolve()], ids=repr)
def test_a_samples_own_tolerance(linear) -> None:
    """rtol (samples,) does for each sample what the solver's rtol does."""
    rate = torch.tensor([[0.9], [0.9], [0.9]], dtype=torch.float64)
    g = normal(1, 40, seed=5).expand(3, -1)
    rtol = torch.tensor([1e-2, 1e-4, 1e-7], dtype=torch.float64)
    together = linear.solve(elementwise(rate), [g], rtol=rtol)
    assert (together.status == CONVERGED).all() and (together.residual <= rtol).all()
    for i, tolerance in enumerate(rtol.tolist()):
        alone = replace(linear, rtol=tolerance).solve(elementwise(rate[:1]), [g[:1]])
        assert_as_promised(alone, 0, together, i, rtol=tolerance, lipschitz=0.9)


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("linear", [*SOLVERS, eq.DirectSolve()], ids=repr)
def test_a_samples_own_budget(linear, start: bool) -> None:
    rate = torch.tensor([[0.9]] * 4, dtype=torch.float64)
    g = normal(4, 12, seed=5)
    first = [normal(4, 12, seed=6)] if start else None
    budget = torch.tensor([0, 5, 13, 200])
    linear = replace(linear, rtol=1e-6, max_evals=150)
    run = linear.solve(elementwise(rate), [g], first, budget=budget)
    assert (run.evals <= budget).all()
    assert run.status[0] == MAX_EVALS and run.evals[0] == 0
    if first is not None:
        assert torch.equal(run.value[0][0], first[0][0])
    assert run.status[3] == CONVERGED and (run.status[1] != CONVERGED)
    free = linear.solve(elementwise(rate), [g], first, budget=torch.full((4,), 200))
    assert_as_promised(run, 3, free, 3, rtol=linear.rtol, lipschitz=0.9)


@pytest.mark.parametrize("linear", [eq.GMRES(rtol=1e-5), eq.BiCGSTAB(rtol=1e-5)], ids=repr)
def test_a_trusted_estimate_saves_the_product_that_measures(linear) -> None:
    rate = torch.tensor([[0.3], [0.8]], dtype=torch.float64)
    g = normal(2, 40, seed=5)
    measured = linear.solve(elementwise(rate), [g])
    trusted = linear.solve(elementwise(rate), [g], trust=True)
    assert torch.equal(trusted.evals, measured.evals - 1)
    torch.testing.assert_close(trusted.value[0], measured.value[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(trusted.residual, measured.residual, rtol=1e-4, atol=0.0)


class _Ops(TorchDispatchMode):
    """Counts operations that compute or copy, and marks the count at every product."""

    VIEWS = frozenset(
        (
            *("view", "_unsafe_view", "t", "transpose", "unsqueeze", "squeeze"),
            *("select", "slice", "expand", "detach"),
        )
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.marks: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ not in self.VIEWS
        return func(*args, **(kwargs or {}))


def test_gmres_takes_few_operations_a_product() -> None:
    """Between two products of a cycle, where the buffer does not grow: at most 20."""
    rate = torch.tensor([[0.9], [0.95]])
    ops = _Ops()

    def product(rows):
        ops.marks.append(ops.count)
        out = elementwise(rate)(rows)
        ops.count = ops.marks[-1]
        return out

    with ops:
        run = eq.GMRES(rtol=1e-6, max_evals=18).solve(product, [normal(2, 64, seed=5).float()])
    steps = [b - a for a, b in pairwise(ops.marks)]
    assert int(run.evals.max()) == 18
    assert len([k for k in steps[:-1] if k <= 20]) >= len(steps) - 3  # it grows at 8 and 16


def test_relay_hands_over() -> None:
    """Anderson can't solve what GMRES can; each sample is handed over by its own failure."""
    entries = 24
    hard = with_spectrum(spread(-2, 2, entries), seed=4)
    easy = with_spectrum(spread(-0.5, 0.5, entries), seed=4)
    a = torch.stack([easy, hard, easy])
    g = normal(3, entries, seed=5)

    def product(rows):
        return [torch.einsum("bij,bj->bi", a[: len(rows[0])], rows[0])]

    fallback = eq.Fallback(
        rtol=1e-8, max_evals=200, first=eq.Anderson(patience=10), then=eq.GMRES(restart=entries)
    )
    run = fallback.solve(product, [g])
    assert (run.status == CONVERGED).all()
    identity = torch.eye(entries, dtype=torch.float64)
    wanted = torch.linalg.solve(identity - a, g)
    torch.testing.assert_close(run.value[0], wanted, rtol=1e-5, atol=1e-6)
    assert run.evals[1] > 20 > run.evals[0]
    first = replace(fallback, then=eq.GMRES(restart=entries), max_evals=20).solve(product, [g])
    assert first.status[1] != CONVERGED and first.evals[1] <= 20


def test_relay_divides_max_evals() -> None:
    rate = torch.tensor([[0.999]], dtype=torch.float64)
    g = normal(1, 200, seed=5)
    for most in (1, 2, 3, 11, 40):
        run = eq.Fallback(rtol=1e-12, max_evals=most).solve(elementwise(rate), [g])
        assert run.status[0] != CONVERGED and run.evals[0] <= most
        assert run.value[0].isfinite().all()


def test_a_fallback_is_checked() -> None:
    with pytest.raises(TypeError, match=r"first=.*expected a forward solver"):
        eq.Fallback(first=eq.GMRES())  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"then=.*expected a linear solver"):
        eq.Fallback(then=eq.Anderson())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("linear", [eq.GMRES(), eq.Fallback()], ids=repr)
def test_no_product_exhausts_an_empty_space(linear) -> None:
    """A = I and A = 0, where the Krylov space ends at once: reported, and solved."""
    g = normal(3, 9, seed=5)
    identity = linear.solve(lambda rows: rows, [g])
    assert (identity.status != CONVERGED).all() and identity.value[0].isfinite().all()
    zero = linear.solve(lambda rows: [0.0 * rows[0]], [g])
    assert (zero.status == CONVERGED).all() and (zero.evals <= 2).all()
    torch.testing.assert_close(zero.value[0], g, rtol=1e-14, atol=0.0)


def test_rotation_needs_the_whole_space() -> None:
    """GMRES makes no progress until the space is full: a cycle in which nothing falls."""
    n = 8
    a = torch.eye(n, dtype=torch.float64) - torch.eye(n, dtype=torch.float64).roll(1, 0)
    g = [torch.eye(n, dtype=torch.float64)[:1]]
    run = eq.GMRES(rtol=1e-10, restart=n).solve(lambda rows: [rows[0] @ a.T], g)
    assert run.status[0] == CONVERGED and run.evals[0] == n + 1
    short = eq.GMRES(rtol=1e-10, restart=n - 1).solve(lambda rows: [rows[0] @ a.T], g)
    assert short.status[0] == STALLED and math.isclose(float(short.residual[0]), 1.0)


def test_the_estimate_is_true() -> None:
    """In float32 too, the residual is what a cycle has promised."""
    a = 0.9 * orthogonal(200, seed=7).float()
    g = [normal(4, 200, seed=8).float()]
    for rtol in (1e-2, 1e-3, 1e-4):
        run = eq.GMRES(rtol=rtol, restart=150, max_evals=300).solve(
            lambda rows: [rows[0] @ a.T], g, trust=True
        )
        (u,) = run.value
        image = u @ a.T + g[0]
        real = (image - u).norm(dim=1) / image.norm(dim=1)
        torch.testing.assert_close(run.residual, real, rtol=0.02, atol=0.0)


def test_orthogonality_saves_products() -> None:
    """Eigenvalues from 1e-4 to 1e4 in float32: a basis that loses its right angles needs 100."""
    a = with_spectrum(-torch.logspace(-4, 4, 100, dtype=torch.float64), seed=9).float()
    g = [normal(6, 100, seed=9).float()]
    run = eq.GMRES(rtol=1e-3, restart=120, max_evals=400).solve(lambda rows: [rows[0] @ a.T], g)
    assert (run.status == CONVERGED).all() and run.evals.double().mean() < 60
