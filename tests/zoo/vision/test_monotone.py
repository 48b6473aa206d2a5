"""Monotone networks: the operator is as promised, and every solver finds the one fixed point."""

import copy
from dataclasses import fields, replace
from typing import Any, cast

import pytest
import torch
from torch.nn.functional import conv2d, conv_transpose2d, pad

from equilibria import DEQ
from equilibria.run import models
from equilibria.solve import (
    GMRES,
    Anderson,
    Broyden,
    Implicit,
    Solver,
    Status,
    Unrolled,
    fixed_point,
)
from equilibria.zoo.vision.model.monotone import (
    ForwardBackward,
    MonotoneMap,
    PeacemanRachford,
    Resolvent,
)

CONFIGS = {
    "dense": ("monotone-dense", {"shape": (1, 2, 3), "width": 7}),
    "one": ("monotone", {"shape": (1, 3, 4), "channels": (3,), "squares": 2}),
    "two": ("monotone", {"shape": (2, 4, 3), "channels": (2, 3), "squares": 2}),
    "three": ("monotone", {"shape": (1, 5, 6), "channels": (1, 2, 2), "squares": 1}),
}
SOLVERS = {
    "forward-backward": ForwardBackward(alpha=0.25),
    "peaceman-rachford": PeacemanRachford(alpha=0.4),
    "anderson": Anderson(),
    "broyden": Broyden(),
}


@pytest.fixture(params=CONFIGS)
def key(request):
    return request.param


def create(key, *, length=1.5, m=0.5, double=True, **layer):
    """A model whose W is far from zero, so that plain iteration would not do."""
    torch.manual_seed(0)
    name, config = CONFIGS[key]
    model = models.create(name, **config, classes=3, m=m, **layer)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("length"):
                parameter.fill_(length)
    return model.double() if double else model


def map_of(model) -> MonotoneMap:
    return model.deq.cell.linear


def images(model, count=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, *model.config.shape, dtype=torch.float64, generator=generator)


def joined(states):
    return torch.cat([x.flatten(1) for x in states], dim=1)


def matrix(linear):
    """W as a matrix, column by column."""
    sizes = [c * h * w for c, h, w in linear.shapes]
    columns = torch.eye(sum(sizes), dtype=torch.float64).split(sizes, dim=1)
    states = [x.reshape(-1, *shape) for x, shape in zip(columns, linear.shapes, strict=True)]
    return joined(linear(states)).detach().T


@pytest.mark.parametrize("m", [0.1, 1.0])
def test_the_operator_is_strongly_monotone_whatever_its_weights(key, m):
    linear = map_of(create(key, length=5.0, m=m))
    w = matrix(linear)
    assert torch.linalg.eigvalsh((w + w.T) / 2).max() <= 1 - m + 1e-9
    assert torch.linalg.matrix_norm(w - w.T, 2) > 0.1  # it is no gradient either


@pytest.mark.parametrize("part", ["a", "b"])
def test_transpose_and_skew_part_are_those_of_the_product(key, part):
    linear = map_of(create(key))
    coupling = getattr(linear, part)
    generator = torch.Generator().manual_seed(2)
    z, y = (
        [torch.randn(4, *s, dtype=torch.float64, generator=generator) for s in linear.shapes]
        for _ in range(2)
    )
    direct = (joined(coupling(z)) * joined(y)).sum()
    torch.testing.assert_close(direct, (joined(z) * joined(coupling.apply_transpose(y))).sum())
    skew = joined(coupling(z)) - joined(coupling.apply_transpose(z))
    torch.testing.assert_close(joined(coupling.skew(z)), skew)


def test_one_resolution_is_the_formula_of_the_paper():
    torch.manual_seed(0)
    linear = MonotoneMap([2], [(6, 5)], kernel=3, m=0.3).double()
    z = torch.randn(2, 2, 6, 5, dtype=torch.float64)
    a, b = linear.a.same[0].weight, linear.b.same[0].weight
    inner = (slice(None), slice(None), slice(2, -2), slice(2, -2))

    def around(x, edge):
        return pad(x, (edge,) * 4, mode="circular")

    square = conv_transpose2d(around(conv2d(around(z, 1), a), 1), a)[inner]
    skew = conv2d(around(z, 1), b) - conv_transpose2d(around(z, 1), b)[inner]
    torch.testing.assert_close(linear([z])[0], 0.7 * z - square + skew)


@pytest.mark.parametrize("alpha", [0.1, 2.0])
def test_the_inverse_by_fourier_transform_is_the_dense_one(key, alpha):
    linear = map_of(create(key))
    z = [torch.randn(2, *shape, dtype=torch.float64) for shape in linear.shapes]
    w = matrix(linear)
    identity = torch.eye(len(w), dtype=torch.float64)
    expected = torch.linalg.solve((1 + alpha) * identity - alpha * w, joined(z).T).T
    with torch.no_grad():
        torch.testing.assert_close(joined(Resolvent(linear, alpha)(z)), expected)


def test_every_solver_from_every_start_finds_the_one_fixed_point(key):
    model = create(key)
    x = images(model, 2).repeat(2, 1, 1, 1)
    (u,) = model.inject(x)
    far = torch.tensor([0.0, 0.0, 3.0, 3.0], dtype=torch.float64)[:, None, None, None]
    z0, values = tuple(far * torch.randn_like(part) for part in u), []
    for solver in SOLVERS.values():
        model.deq.solver = replace(solver, rtol=1e-7, max_evals=1000, patience=None)
        with torch.no_grad():
            solution = model(x, z0=z0).solution
        assert (solution.status == Status.CONVERGED).all(), type(solver).__name__
        values += joined(solution.value).split(2)
    for value in values[1:]:
        torch.testing.assert_close(value, values[0], rtol=0, atol=1e-5)


def test_the_fixed_point_is_that_of_the_paper(key):
    model = create(key, solver=PeacemanRachford(rtol=1e-10, alpha=0.4))
    cell, x = model.deq.cell, images(model)
    (u,) = model.inject(x)
    z = cell.activate(model(x).solution.value)
    again = cell.activate([w + b for w, b in zip(cell.linear(z), u, strict=True)])
    torch.testing.assert_close(joined(again), joined(z), rtol=0, atol=1e-8)
    assert 0.05 < (joined(z) > 0).double().mean() < 0.95


@pytest.mark.parametrize("name", ["forward-backward", "peaceman-rachford"])
def test_residual_status_and_count_are_those_of_the_cell(key, name):
    solver = replace(SOLVERS[name], rtol=1e-6, max_evals=400)
    model = create(key, solver=solver)
    x, calls = images(model), []
    model.deq.cell.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        (u,) = model.inject(x)
        solution = model(x, trace=True).solution
        assert solution.stats.evals.max() == len(calls)
        found = model.deq.cell(solution.value, u)
    value, found = joined(solution.value), joined(found)
    residual = (found - value).norm(dim=1) / found.norm(dim=1)
    torch.testing.assert_close(residual, solution.stats.residual)
    assert (solution.status == Status.CONVERGED).all() and (residual <= 1e-6).all()
    model.deq.solver = replace(solver, max_evals=3)
    short = model(x).solution
    assert (short.status == Status.MAX_EVALS).all() and (short.stats.evals == 3).all()


def test_forward_backward_is_the_iteration_of_the_paper(key):
    model = create(key, solver=ForwardBackward(alpha=0.3, rtol=0.0, max_evals=6, patience=None))
    cell, x = model.deq.cell, images(model)
    (u,) = model.inject(x)
    states = model(x, states=range(6)).solution.states
    z = [torch.zeros_like(part) for part in u]
    for state in states[:-1]:
        torch.testing.assert_close(joined(cell.activate(state)), joined(z))
        step = zip(z, cell.linear(z), u, strict=True)
        z = cell.activate([a - 0.3 * (a - w - b) for a, w, b in step])


def test_peaceman_rachford_is_the_iteration_of_the_paper(key):
    alpha = 0.7
    model = create(key, solver=PeacemanRachford(alpha=alpha, rtol=0.0, max_evals=6, patience=None))
    cell, x = model.deq.cell, images(model)
    (b,) = model.inject(x)
    states = model(x, states=range(6)).solution.states
    inverse = Resolvent(cell.linear, alpha)
    z = u = [torch.zeros_like(part) for part in b]
    for state in states[:-1]:
        torch.testing.assert_close(joined(cell.activate(state)), joined(z))
        half = [2 * a - c for a, c in zip(z, u, strict=True)]
        middle = inverse([c + alpha * d for c, d in zip(half, b, strict=True)])
        u = [2 * a - c for a, c in zip(middle, half, strict=True)]
        z = cell.activate(u)


def test_it_converges_for_any_step_where_forward_backward_diverges():
    model = create("one", length=4.0, m=0.2)
    x = images(model)
    limits = {"rtol": 1e-4, "max_evals": 1000, "patience": None}
    with torch.no_grad():
        for alpha in (0.1, 3.0):
            model.deq.solver = PeacemanRachford(alpha=alpha, **limits)
            assert (model(x).solution.status == Status.CONVERGED).all()
        model.deq.solver = ForwardBackward(alpha=1.0, **limits)
        assert (model(x).solution.status != Status.CONVERGED).all()


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("dense", "forward-backward"),
        ("dense", "broyden"),
        ("two", "peaceman-rachford"),
        ("two", "anderson"),
    ],
)
def test_gradients_are_those_of_the_fixed_point(key, name):
    tight = {"rtol": 1e-11, "max_evals": 3000, "patience": None}
    adjoint = Implicit(linear=GMRES(rtol=1e-11, max_evals=400, restart=100))
    model = create(key, solver=replace(SOLVERS[name], **tight), adjoint=adjoint)
    x = images(model, 1).requires_grad_()
    parameters = dict(model.deq.cell.named_parameters())
    leaf = parameters["linear.a.same.0.parametrizations.weight.original"]
    length = parameters["linear.b.same.0.parametrizations.weight.0.length"]

    def f(x, *_):
        return model(x).output

    assert torch.autograd.gradcheck(f, (x, leaf, length), rtol=1e-4, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("name", ["forward-backward", "peaceman-rachford"])
def test_unrolled_steps_have_the_gradient_of_the_fixed_point_too(name):
    solver = replace(SOLVERS[name], rtol=1e-9, max_evals=1000, patience=None)
    model = create("two", solver=solver, adjoint=Implicit(linear=GMRES(rtol=1e-9)))
    other = copy.deepcopy(model)
    other.deq.adjoint = Unrolled()
    for one in (model, other):
        one(images(one, 1)).output.square().sum().backward()
    for path, parameter in model.named_parameters():
        twin = other.get_parameter(path)
        torch.testing.assert_close(parameter.grad, twin.grad, rtol=1e-5, atol=1e-8, msg=path)
        assert parameter.grad.abs().sum() > 0, path


@pytest.mark.parametrize("name", ["forward-backward", "peaceman-rachford"])
def test_samples_that_leave_the_batch_change_nothing(name):
    solver = replace(SOLVERS[name], rtol=1e-6, max_evals=500)
    model = create("two", solver=solver)
    x = images(model, 8) * torch.logspace(-2, 2, 8, dtype=torch.float64)[:, None, None, None]
    with torch.no_grad():
        staying = model(x).solution
        model.deq.drop_finished = True
        leaving = model(x).solution
        alone = model(x[2:3]).solution
    assert len(set(staying.stats.evals.tolist())) > 1
    assert torch.equal(staying.stats.evals, leaving.stats.evals)
    torch.testing.assert_close(joined(leaving.value), joined(staying.value))
    torch.testing.assert_close(joined(alone.value), joined(staying.value)[2:3])


def test_single_precision_will_do(key):
    model = create(key, double=False, solver=PeacemanRachford(rtol=1e-4, alpha=0.4))
    x = images(model).float()
    prediction = model(x)
    assert (prediction.solution.status == Status.CONVERGED).all()
    double = copy.deepcopy(model).double()(x.double()).output
    torch.testing.assert_close(prediction.output.double(), double, rtol=1e-2, atol=1e-2)


def test_what_is_outside_the_image_stays_zero_and_nothing_reaches_around():
    model = create("one", solver=PeacemanRachford(rtol=1e-8, alpha=0.4))
    cell = model.deq.cell
    (z,) = cell.activate(model(images(model)).solution.value)
    assert z.shape == (3, 3, 5, 6)  # an image of 3 x 4 and what is around it
    inside = z[:, :, 1:-1, 1:-1]
    assert inside.any() and torch.equal(pad(inside, (1, 1, 1, 1)), z)
    left = torch.zeros_like(z)
    left[:, :, 1:-1, 1] = 1.0
    (image,) = cell.linear([left])
    assert image[..., 3].any() and not image[..., 4].any()


@pytest.mark.parametrize(
    "solver", [ForwardBackward(), PeacemanRachford()], ids=["forward-backward", "peaceman-rachford"]
)
def test_another_cell_is_refused(solver):
    name = type(solver).__name__
    x = torch.zeros(2, 3)
    with pytest.raises(TypeError, match=f"{name} splits .* the cell Linear is not: take another"):
        DEQ(torch.nn.Linear(3, 3), eval_solver=solver)
    with pytest.raises(TypeError, match=f"{name} splits .* the cell Linear is not: take another"):
        DEQ(torch.nn.Linear(3, 3), solver=solver)
    with pytest.raises(TypeError, match=f"{name} splits .* this equation is not: take another"):
        fixed_point(lambda z: 0.5 * z, x, solver=solver)
    model = create("dense", adjoint=Implicit(linear=solver))
    with pytest.raises(TypeError, match=f"{name} splits .* this equation is not"):
        model(images(model)).output.sum().backward()


@pytest.mark.parametrize("cls", [ForwardBackward, PeacemanRachford])
def test_all_limits_hold_where_the_cell_is_known(cls):
    others: dict[str, Any] = {
        field.name: True if field.default is False else (cast(Any, field.default) or 0) + 1
        for field in fields(Solver)
    }
    bound = cls(**others).bound_to(create("dense").deq.cell)
    assert {name: getattr(bound, name) for name in others} == others


@pytest.mark.parametrize("cls", [ForwardBackward, PeacemanRachford])
@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_step_is_refused(cls, alpha):
    with pytest.raises(ValueError, match="alpha must be positive"):
        cls(alpha=alpha)
