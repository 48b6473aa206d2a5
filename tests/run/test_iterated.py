"""A chosen number of evaluations in place of a solve."""

import copy

import pytest
import torch
from torch import nn

import equilibria as eq
from applications import needs
from equilibria.run.export import ExportError, find_evals
from equilibria.run.export.inference import exportable, find_iterated, pairs
from equilibria.run.export.iterated import Iterated, iterate, relative
from tasks_in_memory import digits


class Affine(nn.Module):
    """f(z; x) = A z + x, with eigenvalues of A from -.9 to .95."""

    def __init__(self):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)))
        self.matrix = nn.Parameter(q @ torch.diag(torch.linspace(-0.9, 0.95, 12)) @ q.T)

    def forward(self, z, x):
        return z @ self.matrix.T + x


@pytest.fixture
def x():
    return torch.randn(5, 12, generator=torch.Generator().manual_seed(1))


def residual(method, evals, x):
    cell = Affine()
    with torch.no_grad():
        z = iterate(lambda z: cell(z, x), torch.zeros_like(x), evals, method)
        return float(relative(cell(z, x), z).max())


def test_evaluations_lead_to_what_the_solver_evaluates_next(x):
    solvers = {
        "picard": eq.Picard(rtol=0.0, max_evals=9),
        "anderson": eq.Anderson(period=3, rtol=0.0, max_evals=9, history=5),
    }
    for method, solver in solvers.items():
        layer = eq.DEQ(Affine(), solver=solver)
        with torch.no_grad():
            (state,) = layer(x, states=(8,)).states  # the ninth evaluation is of it
            found = Iterated(layer, 8, method)(x).value
        assert float((found - state).norm() / state.norm()) < 1e-3, method


def test_acceleration_needs_fewer_evaluations_than_plain_iteration(x):
    assert residual("picard", 30, x) > 1e-2
    assert residual("anderson", 30, x) < 0.1 * residual("picard", 30, x)
    assert residual("anderson", 60, x) < 1e-5


def test_neither_scale_nor_batch_mates_nor_rest_change_a_sample(x):
    cell, zero = Affine(), torch.zeros_like(x)

    @torch.no_grad()
    def solved(x):
        return iterate(lambda z: cell(z, x), torch.zeros_like(x), 24, "anderson")

    assert torch.allclose(solved(1024 * x), 1024 * solved(x), rtol=1e-3)
    assert torch.allclose(solved(x[:2]), solved(x)[:2], rtol=1e-3, atol=1e-4)
    assert torch.equal(solved(zero), zero)  # all differences are 0 there


def test_residuals_are_those_of_the_start_and_of_each_state(x):
    layer = Iterated(eq.DEQ(Affine()), 4, "picard")
    layer.residuals = []
    with torch.no_grad():
        z = layer(x).value
        (found,) = layer.residuals
        assert found.shape == (5, 5)
        assert torch.equal(found[0], torch.ones(5))  # f(0) - 0 is f(0)
        assert torch.allclose(found[-1], relative(layer.cell(z, x), z))
    assert "0" in str(float(relative(torch.zeros(1, 3), torch.zeros(1, 3))))


@pytest.mark.parametrize("name", ["dense", "conv", "monotone", "mdeq"])
def test_a_state_of_any_shape_is_iterated(name, tmp_path):
    small = {
        "dense": {"width": 16},
        "conv": {"channels": 8, "stride": 2},
        "monotone": {"channels": (8, 8)},
        "mdeq": {"channels": (8, 8), "head_channels": (4, 4), "final": 16, "expansion": 1},
    }
    model, task = digits(name, tmp_path, **small[name])
    x = next(pairs(task, "valid", 6)).inputs
    with torch.no_grad():
        operands = model.inject(x)
        z = model.deq.start(*operands)
        for _ in range(5):
            z = model.deq.cell(z, *operands)
        expected = model.readout(z)
        found = exportable(model, 5, "picard")(x).output
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_copy_has_plain_weights_and_the_model_keeps_its_own(tmp_path):
    model, task = digits("dense", tmp_path, width=16, bound=0.5, scale=2.0)
    x = next(pairs(task, "valid", 4)).inputs
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        solved = model(x).output
    # A copy shares the class of a parametrised module with what it is a copy of.
    other, made = (exportable(model, 3, "picard") for _ in range(2))
    for each in (other, made):
        assert not any("parametrizations" in name for name, _ in each.named_parameters())
    weight = made.get_submodule("deq.cell.linear").weight
    assert torch.equal(weight, model.deq.cell.linear.weight)
    assert [layer.evals for layer in find_iterated(made)] == [3]
    assert {k: v.tolist() for k, v in model.state_dict().items()} == {
        k: v.tolist() for k, v in before.items()
    }
    with torch.no_grad():
        assert torch.equal(model(x).output, solved)


def test_as_many_evaluations_are_chosen_as_the_tolerance_needs(tmp_path):
    model, task = digits("dense", tmp_path, width=16)
    counts = {method: find_evals(model, task, method, 50) for method in ("picard", "anderson")}
    for method, count in counts.items():
        for evals, enough in ((count, True), (count - 1, False)):
            made = exportable(model, evals, method)
            (layer,) = find_iterated(made)
            layer.residuals = []
            made(next(pairs(task, "valid", 50)).inputs)
            assert (float(layer.residuals[0][-1].max()) <= 1e-3) is enough, (method, evals)
    with eq.nn.using(model):
        model.deq.solver = eq.Picard(rtol=1e-12, max_evals=3)
        assert find_evals(model, task, "picard", 50) == 3


@pytest.mark.parametrize(
    ("name", "config", "what"),
    [
        pytest.param(
            *("lstm", {"vocabulary": 9, "width": 8, "hidden": 8}, "language model"),
            marks=needs("language"),
        ),
        ("neural-ode", {"shape": (1, 8, 8), "classes": 2, "filters": 4}, "chooses its steps"),
    ],
)
def test_what_is_no_fixed_sequence_of_operations_is_refused(name, config, what):
    if name == "neural-ode":
        pytest.importorskip("torchdiffeq")
    with pytest.raises(ExportError, match=what):
        exportable(eq.models.create(name, **config), 1, "picard")
