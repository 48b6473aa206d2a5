"""The Jacobian penalty against algebra and finite differences."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

import equilibria as eq
from equilibria.nn import VariationalDropout, weight_norm
from equilibria.stability import jacobian_norm, jacobian_penalty

BATCH, WIDTH = 3, 5
TIGHT = {
    "solver": eq.Anderson(rtol=1e-12, max_evals=300),
    "adjoint": eq.Implicit(linear=eq.GMRES(rtol=1e-12, max_evals=300)),
}


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def probes(seed=7):
    return torch.Generator().manual_seed(seed)


class Tanh(nn.Module):
    """tanh(W z + x), normalised or not."""

    def __init__(self, wrap=lambda linear: linear):
        super().__init__()
        torch.manual_seed(0)
        linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        nn.init.orthogonal_(linear.weight, gain=0.8)
        self.linear = wrap(linear)

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


def jacobians(f, z, *operands):
    """Dense (batch, width, width)."""
    return torch.stack([torch.func.jacrev(f)(*row) for row in zip(z, *operands, strict=True)])


def expected(dense, samples, generator):
    """Eq. 4 from dense Jacobians, with the probes that the generator gives."""
    total = torch.zeros((), dtype=dense.dtype)
    for _ in range(samples):
        eps = torch.randn(len(dense), WIDTH, dtype=dense.dtype, generator=generator)
        total = total + torch.einsum("bi,bij->bj", eps, dense).square().sum(1).mean() / WIDTH
    return total / samples


@pytest.mark.parametrize("samples", [1, 3])
def test_value_is_equation_4_with_these_probes(samples):
    matrices = 0.3 * normal(BATCH, WIDTH, WIDTH)
    x = normal(BATCH, WIDTH, seed=1).requires_grad_()
    sol = eq.fixed_point(lambda z, x: torch.einsum("bij,bj->bi", matrices, z) + x, x.detach(), x)
    found = jacobian_penalty(sol, samples, generator=probes())
    torch.testing.assert_close(found, expected(matrices, samples, probes()))
    cell = Tanh()
    sol = eq.DEQ(cell, **TIGHT)(x)
    dense = jacobians(cell, sol.value.detach(), x.detach())
    found = jacobian_penalty(sol, samples, generator=probes())
    torch.testing.assert_close(found, expected(dense, samples, probes()))


def test_it_is_unbiased_and_its_spread_falls_with_the_root_of_the_samples():
    matrix = normal(WIDTH, WIDTH) / 4
    x = normal(1, WIDTH).requires_grad_()
    sol = eq.fixed_point(lambda z, x: z @ matrix.T + x, x.detach(), x)
    exact = float(matrix.square().sum() / WIDTH)
    generator = probes()
    spread = {}
    for samples in (1, 4):
        draws = [float(jacobian_penalty(sol, samples, generator=generator)) for _ in range(300)]
        found = torch.tensor(draws)
        spread[samples] = float(found.std())
        assert float(found.mean()) == pytest.approx(exact, abs=4 * spread[samples] / math.sqrt(300))
    assert spread[1] / spread[4] == pytest.approx(2, rel=0.2)
    torch.testing.assert_close(  # the same quantity as the norm that the doctor measures
        jacobian_norm(lambda z: z @ matrix.T, x, samples=2000).double().square() / WIDTH,
        torch.tensor([exact], dtype=torch.float64),
        rtol=0.05,
        atol=0,
    )


def directions(leaf):
    """Two random directions: no entry of a gradient may be wrong without being noticed."""
    return [normal(*leaf.shape, seed=seed) for seed in (11, 12)]


def slopes(function, leaf, step=1e-5):
    """Central differences of a scalar function along the directions, the leaf changed in place."""
    found = []
    for direction in directions(leaf):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                leaf += sign * step * direction
            values.append(float(function().detach()))
            with torch.no_grad():
                leaf -= sign * step * direction
        found.append((values[0] - values[1]) / (2 * step))
    return found


ADJOINTS = [
    TIGHT["adjoint"],
    eq.Implicit(linear=eq.Anderson(rtol=1e-12, max_evals=300)),
    eq.Unrolled(),
    eq.Unrolled(checkpoint=True),
    eq.Phantom(steps=80, damping=1.0),
    eq.NeumannPhantom(steps=80, damping=1.0),
]


@pytest.mark.parametrize("wrap", [lambda linear: linear, weight_norm], ids=["plain", "weight_norm"])
def test_the_whole_gradient_is_that_of_finite_differences(wrap):
    """With respect to parameters, operands and closed-over tensors, through z* too."""
    cell = Tanh(wrap)
    x = normal(BATCH, WIDTH, seed=1).requires_grad_()
    shift = normal(WIDTH, seed=2).requires_grad_()

    def total(adjoint):
        layer = eq.DEQ(cell, solver=eq.Anderson(rtol=1e-13, max_evals=400), adjoint=adjoint)
        sol = layer(x * shift.exp())
        return sol.value.sin().sum() + 3 * jacobian_penalty(sol, 2, generator=probes())

    leaves = [*cell.parameters(), x, shift]
    values = [total(adjoint) for adjoint in ADJOINTS]
    for adjoint, value in zip(ADJOINTS, values, strict=True):
        torch.testing.assert_close(value, values[0], msg=f"{adjoint}")
    gradients = [torch.autograd.grad(value, leaves) for value in values]
    for i, leaf in enumerate(leaves):
        expected = slopes(lambda: total(ADJOINTS[0]), leaf)
        for adjoint, gradient in zip(ADJOINTS, gradients, strict=True):
            found = [float((gradient[i] * each).sum()) for each in directions(leaf)]
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-7), (adjoint, i)


def test_the_part_through_the_solution_is_there():
    """f = w z^2 / 2 + x in one entry: J = w z*, so the penalty is the mean of eps^2 w^2 z*^2."""
    w = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    x = torch.full((1, 1), 0.3, dtype=torch.float64)
    sol = eq.fixed_point(lambda z, x: w * z.square() / 2 + x, x, x, **TIGHT)
    (found,) = torch.autograd.grad(jacobian_penalty(sol, generator=probes()), w)
    eps = float(torch.randn(1, 1, dtype=torch.float64, generator=probes()))
    z = float(sol.value.detach())
    slope = (z * z / 2) / (1 - 0.5 * z)  # dz*/dw
    assert float(found) == pytest.approx(eps**2 * (2 * 0.5 * z**2 + 0.25 * 2 * z * slope))


def test_loss_and_penalty_share_one_backward_solve():
    calls = 0
    cell = Tanh()

    def count(*_):
        nonlocal calls
        calls += 1

    cell.register_forward_hook(count)
    sol = eq.DEQ(cell, **TIGHT)(normal(BATCH, WIDTH, seed=1))
    before = calls
    loss = sol.value.sum() + jacobian_penalty(sol, samples=4)
    assert calls == before + 1  # for all four probes
    loss.backward()
    assert calls == before + 2  # one more, for one backward solve
    assert sol.adjoint is not None


def test_trees_and_coupled_batches_count_all_entries_together():
    matrix = 0.4 * normal(6, 6) / math.sqrt(6)
    u = normal(2, 6, seed=3).requires_grad_()

    def whole(z, u):
        return torch.tanh(z @ matrix.T + u)

    def split(z, u):
        out = whole(torch.cat([z["a"].flatten(1), z["b"]], 1), u)
        return {"a": out[:, :4].reshape(-1, 2, 2), "b": out[:, 4:]}

    start = {"a": torch.zeros(2, 2, 2).double(), "b": torch.zeros(2, 2).double()}
    trees = eq.fixed_point(split, start, u, **TIGHT)
    rows = eq.fixed_point(whole, torch.zeros_like(u), u, **TIGHT)
    one = eq.fixed_point(whole, torch.zeros_like(u), u, coupled=True, **TIGHT)
    leave = eq.fixed_point(whole, torch.zeros_like(u), u, drop_finished=True, **TIGHT)
    exact = jacobians(whole, rows.value.detach(), u.detach()).square().sum((1, 2)).mean() / 6
    found = jacobian_penalty(trees, samples=1000, generator=probes()).detach()
    torch.testing.assert_close(found, exact, rtol=0.06, atol=0)
    same = [jacobian_penalty(sol, 2, generator=probes()) for sol in (rows, one, leave)]
    torch.testing.assert_close(same[1], same[0])
    torch.testing.assert_close(same[2], same[0])


def test_one_mask_for_the_solve_and_the_penalty():
    class Dropped(Tanh):
        def __init__(self):
            super().__init__()
            self.drop = VariationalDropout(0.5)

        def forward(self, z, x):
            return self.drop(super().forward(z, x))

    cell = Dropped().train()
    sol = eq.DEQ(cell, **TIGHT)(normal(BATCH, WIDTH, seed=1))
    assert sol._evaluate is not None
    (again,) = sol._evaluate([sol.value])
    torch.testing.assert_close(again, sol.value)
    first = jacobian_penalty(sol, generator=probes())
    assert first == jacobian_penalty(sol, generator=probes())


def test_under_autocast_only_f_is_narrow():
    class Single(Tanh):
        def __init__(self):
            super().__init__()
            self.float()

    cell, x = Single(), normal(64, WIDTH, seed=1).float()
    layer = eq.DEQ(cell, solver=eq.Anderson(rtol=1e-2))
    wide = jacobian_penalty(layer(x), 8, generator=probes())
    with torch.autocast("cpu", torch.bfloat16):
        sol = layer(x)
        inside = jacobian_penalty(sol, 8, generator=probes())
    outside = jacobian_penalty(sol, 8, generator=probes())
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, outside, rtol=1e-5, atol=0)
    torch.testing.assert_close(inside, wide, rtol=0.03, atol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.SolveWarning)  # bfloat16 ends above the tolerance
        inside.backward()
    gradient = cell.linear.weight.grad
    assert gradient.dtype == torch.float32 and gradient.isfinite().all()


def test_torch_func_gives_the_same_gradient():
    cell = Tanh()
    x = normal(BATCH, WIDTH, seed=1)
    layer = eq.DEQ(cell, **TIGHT)

    def penalty(parameters, x):
        sol = torch.func.functional_call(layer, parameters, (x,))
        return jacobian_penalty(sol, 2, generator=probes())

    parameters = dict(layer.named_parameters())
    found = torch.func.grad(penalty)(parameters, x)
    usual = torch.autograd.grad(penalty(parameters, x), list(parameters.values()))
    for one, other in zip(found.values(), usual, strict=True):
        torch.testing.assert_close(one, other)


def test_a_fixed_point_inside_the_cell():
    """J of the outer map contains the inner (I - J)^-1: its penalty needs a third derivative."""
    x = normal(BATCH, WIDTH, seed=1)
    w = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)

    def outer(z, x):
        inner = lambda v, z, x: torch.tanh(w * v + 0.5 * z + x)  # noqa: E731
        return eq.fixed_point(inner, torch.zeros_like(z), z, x, **TIGHT).value

    def total():
        sol = eq.fixed_point(outer, torch.zeros_like(x), x, **TIGHT)
        return jacobian_penalty(sol, generator=probes())

    (found,) = torch.autograd.grad(total(), w)
    along = [float(found * each) for each in directions(w)]
    assert along == pytest.approx(slopes(total, w), rel=1e-5, abs=1e-7)


def test_a_compiled_cell():
    cell = Tanh()
    x = normal(BATCH, WIDTH, seed=1)
    found = []
    for each in (cell, torch.compile(cell, backend="aot_eager")):
        cell.zero_grad()
        jacobian_penalty(eq.DEQ(each, **TIGHT)(x), generator=probes()).backward()
        found.append(cell.linear.weight.grad)
    torch.testing.assert_close(found[1], found[0])


def test_a_map_that_ignores_its_state_costs_nothing():
    x = normal(2, 3).requires_grad_()
    sol = eq.fixed_point(lambda z, x: x.sin(), torch.zeros(2, 3).double(), x)
    penalty = jacobian_penalty(sol)
    assert penalty == 0
    half = eq.fixed_point(lambda z, x: (0.5 * z[0], x), (x.detach(), x.detach()), x)
    penalty = jacobian_penalty(half, 500, generator=probes())
    assert float(penalty.detach()) == pytest.approx(
        0.125, rel=0.1
    )  # half of the entries have slope 1/2


def test_a_solution_without_gradients_holds_on_to_nothing():
    layer, x = eq.DEQ(Tanh()), normal(BATCH, WIDTH)
    with torch.no_grad():
        sol = layer(x)
    assert sol._evaluate is None
    with pytest.raises(RuntimeError, match="found with gradients disabled"):
        jacobian_penalty(sol)
    sol = layer(x)
    with torch.no_grad(), pytest.raises(RuntimeError, match="use jacobian_norm"):
        jacobian_penalty(sol)


@pytest.mark.parametrize("samples", [0, -1, True, 1.5])
def test_samples_are_a_number_of_probes(samples):
    sol = eq.DEQ(Tanh())(normal(BATCH, WIDTH))
    with pytest.raises(ValueError, match="expected 1 or more"):
        jacobian_penalty(sol, samples)


def test_what_is_no_solution_is_named():
    with pytest.raises(TypeError, match="got Tensor"):
        jacobian_penalty(torch.zeros(2, 3))  # type: ignore[arg-type]
    model = eq.models.create("dense", width=8)
    with pytest.raises(TypeError, match="pass its solution"):
        jacobian_penalty(model(torch.zeros(2, 1, 8, 8)))  # type: ignore[arg-type]


def test_training_on_it_lowers_the_spectral_radius():
    cell = Tanh(lambda linear: nn.init.orthogonal_(linear.weight, gain=1.2) is None or linear)
    x = normal(8, WIDTH, seed=1)
    layer = eq.DEQ(cell, solver=eq.Anderson(max_evals=100))
    before = copy.deepcopy(cell)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.SolveWarning)
        for _ in range(12):
            optimizer.zero_grad()
            jacobian_penalty(layer(x), generator=probes()).backward()
            optimizer.step()
        radii = [
            eq.stability.spectral_radius(c, eq.DEQ(c)(x).value, x).mean() for c in (before, cell)
        ]
    assert radii[1] < 0.5 * radii[0]


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_draws_probes_as_it_is_told(randomness):
    layer = eq.DEQ(Tanh(), **TIGHT)

    def penalty(x):
        return jacobian_penalty(layer(x))

    torch.manual_seed(0)
    twice = normal(BATCH, WIDTH).expand(2, -1, -1)
    found = torch.func.vmap(penalty, randomness=randomness)(twice)
    assert torch.allclose(found[0], found[1], rtol=1e-9) == (randomness == "same")
