"""A tolerance for each leaf of the state."""

import functools
import math

import pytest
import torch

import equilibria as eq
from equilibria.solve.options import finest, flatten_tolerance

METHODS = [
    eq.Picard,
    eq.Anderson,
    functools.partial(eq.Anderson, period=3),
    eq.Broyden,
    eq.NewtonKrylov,
    eq.Auto,
]


def problem(batch: int = 3):
    """A large leaf that arrives at once, and a small one that takes its time."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(batch, 64, generator=generator, dtype=torch.float64)
    b = torch.randn(batch, 2, generator=generator, dtype=torch.float64)

    def f(z, a, b):
        hidden, flow = z
        return 0.1 * hidden + a, 0.9 * flow.flip(1) + 1e-3 * b

    return f, (torch.zeros_like(a), torch.zeros_like(b)), (a, b)


def relative(f, z, operands):
    return [((y - x).norm(dim=1) / y.norm(dim=1)) for x, y in zip(z, f(z, *operands), strict=True)]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_each_leaf_meets_its_own(method):
    f, z0, operands = problem()
    loose = eq.fixed_point(f, z0, *operands, solver=method(rtol=1e-3, max_evals=500))
    both = eq.fixed_point(f, z0, *operands, solver=method(rtol=(1e-3, 1e-4), max_evals=500))
    for found in (loose, both):
        assert (found.status == eq.Status.CONVERGED).all()
    hidden, flow = relative(f, both.value, operands)
    assert hidden.max() <= 1e-3 and flow.max() <= 1e-4
    if method not in (eq.Broyden, eq.NewtonKrylov, eq.Auto):
        # Over all leaves together the small one is hidden.
        assert relative(f, loose.value, operands)[1].max() > 1e-4


def test_the_residual_is_that_of_all_leaves_together():
    f, z0, operands = problem()
    found = eq.fixed_point(f, z0, *operands, solver=eq.Picard(rtol=(0.1, 1e-4), max_evals=500))
    image = f(found.value, *operands)
    gap = torch.cat([y - x for x, y in zip(found.value, image, strict=True)], 1).norm(dim=1)
    torch.testing.assert_close(found.stats.residual, gap / torch.cat(image, 1).norm(dim=1))


def test_an_absolute_tolerance_of_a_leaf_is_its_rms():
    f, z0, operands = problem()
    solver = eq.Picard(rtol=(1e-3, 0.0), atol=(0.0, 1e-5), max_evals=500)
    found = eq.fixed_point(f, z0, *operands, solver=solver)
    assert (found.status == eq.Status.CONVERGED).all()

    def rms(z):
        flow = f(z, *operands)[1] - z[1]
        return flow.norm(dim=1) / math.sqrt(2)

    assert rms(found.value).max() <= 1e-5
    fewer = eq.Picard(
        rtol=(1e-3, 0.0), atol=(0.0, 1e-5), max_evals=int(found.stats.evals.min()) - 1
    )
    before = eq.fixed_point(f, z0, *operands, solver=fewer)
    assert (before.status == eq.Status.MAX_EVALS).all() and rms(before.value).min() > 1e-5


@pytest.mark.parametrize("rtol", [(1e-3, 1e-1), (1e-7, 1e-2), (0.0, 1e-3)])
@pytest.mark.parametrize("atol", [(1e-9, 0.0), (1e-2, 1e-5)])
def test_it_ends_as_soon_as_every_leaf_meets_its_own(rtol, atol):
    f, z, operands = problem(5)
    solver = eq.Picard(rtol=rtol, atol=atol, max_evals=500)
    found = eq.fixed_point(f, z, *operands, solver=solver)
    evals, met = torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.bool)
    while not met.all():
        image = f(z, *operands)
        evals += ~met
        each = [
            (y - x).norm(dim=1) <= r * y.norm(dim=1) + a * math.sqrt(y.shape[1])
            for x, y, r, a in zip(z, image, rtol, atol, strict=True)
        ]
        met |= torch.stack(each).all(0)
        z = image
    assert found.stats.evals.tolist() == evals.tolist()


def test_batch_mates_change_nothing():
    f, z0, operands = problem()
    solver = eq.Anderson(rtol=(1e-3, 1e-6), max_evals=500)
    together = eq.fixed_point(f, z0, *operands, solver=solver, drop_finished=True)
    for i in range(3):
        one = slice(i, i + 1)
        alone = eq.fixed_point(
            f, tuple(z[one] for z in z0), *(x[one] for x in operands), solver=solver
        )
        assert alone.status.tolist() == together.status[one].tolist()
        assert abs(int(alone.stats.evals) - int(together.stats.evals[i])) <= 1
        for x, y in zip(alone.value, together.value, strict=True):
            torch.testing.assert_close(x, y[one], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("adjoint", [eq.Implicit(), eq.Phantom(steps=3), eq.Unrolled()])
def test_gradients(adjoint):
    f, z0, operands = problem()
    a, b = (x.clone().requires_grad_() for x in operands)
    solver = eq.Picard(rtol=(1e-6, 1e-8), max_evals=500)
    found = eq.fixed_point(f, z0, a, b, solver=solver, adjoint=adjoint)
    assert (found.status == eq.Status.CONVERGED).all()
    found.value[0].sum().backward()
    exact = 1 / 0.9
    tolerated = 0.2 if isinstance(adjoint, eq.Phantom) else 1e-3
    torch.testing.assert_close(a.grad, torch.full_like(a, exact), rtol=tolerated, atol=0.0)


def test_a_leaf_that_solves_to_zero_has_arrived():
    def f(z, a):
        return 0.5 * z[0] + a, 0.0 * z[1]

    a = torch.ones(2, 4)
    start = torch.zeros(2, 4), torch.ones(2, 3)
    found = eq.fixed_point(f, start, a, solver=eq.Picard(rtol=(1e-3, 1e-3)))
    assert (found.status == eq.Status.CONVERGED).all() and not found.value[1].any()


def test_trees_follow_the_state():
    state = {"deep": (torch.zeros(1, 2), [torch.zeros(1), torch.zeros(1)]), "flow": torch.zeros(1)}
    assert flatten_tolerance("rtol", {"deep": 0.1, "flow": 0.2}, state) == (0.1, 0.1, 0.1, 0.2)
    assert flatten_tolerance("rtol", {"flow": 0.2, "deep": (0.1, 0.3)}, state) == (
        0.1,
        0.3,
        0.3,
        0.2,
    )
    assert flatten_tolerance("rtol", 0.1, state) == 0.1

    def f(z, a):
        return {"x": 0.5 * z["x"] + a}

    a = torch.ones(2, 3)
    found = eq.fixed_point(f, {"x": torch.zeros(2, 3)}, a, solver=eq.Picard(rtol={"x": 1e-3}))
    assert (found.status == eq.Status.CONVERGED).all()


def test_the_finest_of_several_is_not_that_of_a_leaf_without_one():
    assert finest(1e-3) == 1e-3 and finest(0.0) == 0.0
    assert finest((1e-2, 0.0)) == 1e-2
    assert finest({"deep": (0.1, 0.03), "flow": 0.0}) == 0.03
    assert finest((0.0, 0.0)) == 0.0
    assert eq.Anderson(rtol=(1e-2, 0.0), atol=(0.0, 1e-3)).finest == 1e-2


@pytest.mark.parametrize(
    ("rtol", "state", "said"),
    [
        ((1e-3, 1e-2), torch.zeros(2, 3), "rtol is .* not follow .*, Tensor"),
        ((1e-3,), (torch.zeros(2, 3), torch.zeros(2, 1)), r"not follow .* tuple\(Tensor, Tensor\)"),
        ({"a": 1e-3}, (torch.zeros(2, 3),), r"not follow .* tuple\(Tensor\)"),
        ({"a": 1e-3}, {"b": torch.zeros(2, 3)}, r"rtol is {'a': 0.001}.* dict\(b=Tensor\)"),
        ((1e-3,), {"b": torch.zeros(2, 3)}, r"not follow .* dict\(b=Tensor\)"),
    ],
)
def test_another_structure_than_the_state_is_refused(rtol, state, said):
    with pytest.raises(ValueError, match=said):
        eq.fixed_point(lambda z: z, state, solver=eq.Picard(rtol=rtol))


def test_what_is_no_tolerance_is_refused():
    with pytest.raises(ValueError, match=r"Picard\(rtol=...\): expected a finite number >= 0"):
        eq.Picard(rtol=(1e-3, -1.0))
    with pytest.raises(TypeError, match=r"Picard\(atol=...\): expected a number, or one for each"):
        eq.Picard(atol=(0.0, "small"))
    with pytest.raises(ValueError, match="expected a number for each leaf"):
        eq.Picard(rtol=())
    with pytest.raises(TypeError, match="expected one rtol and one atol"):
        eq.Implicit(linear=eq.Anderson(rtol=(1e-3, 1e-2)))
    with pytest.raises(TypeError, match=r"GMRES\(rtol=...\): expected a number"):
        eq.GMRES(rtol=(1e-3, 1e-2))
