"""Gradients are compared with exact ones, and the exact ones with autograd's."""

from typing import Any

import pytest
import torch

from equilibria.run.bench import gradients, methods
from equilibria.run.bench.cells import build, case_of, compare
from equilibria.run.bench.methods import BackwardReport, Method
from papers.bench.common import ACCURATE

SMALL: Any = {"width": 6, "batch": 3, "dtype": torch.float64}


@pytest.fixture(scope="module", params=[{"radius": 0.8}, {"scale": 0.7}], ids=["radius", "scale"])
def case(request):
    return build("small", **request.param, **SMALL)


def unrolled(case, steps=400):
    z = torch.zeros_like(case.x)
    for _ in range(steps):
        z = case.cell(z, case.x)
    return z


def test_the_exact_gradient_is_that_of_a_long_iteration(case):
    case.clear()
    (unrolled(case) * case.target).sum().backward()
    cosine, error = compare(case)
    assert error < 1e-9
    assert cosine == pytest.approx(1)
    case.x.grad *= 2
    assert compare(case)[1] > 0.1
    case.clear()
    assert compare(case)[1] == float("inf")


def test_the_jacobian_has_the_radius_that_was_asked_for():
    case: Any = build("small", radius=0.8, **SMALL)
    assert case.radius == pytest.approx(0.8, rel=1e-4)
    z = unrolled(case).detach()
    for i in range(len(z)):
        jacobian = torch.func.jacrev(lambda v, i=i: case.cell(v, case.x[i]))(z[i])
        assert float(torch.linalg.eigvals(jacobian).abs().max()) <= case.radius + 1e-6
        singular = torch.linalg.svdvals(torch.eye(6, dtype=torch.float64) - jacobian)
        assert float(singular.min()) >= case.smallest - 1e-6


def one_step(case, rtol):
    return case.cell(unrolled(case).detach(), case.x), BackwardReport


def whole(case, rtol):
    return unrolled(case), lambda: BackwardReport(torch.tensor([3, 4, 5]), failed=1)


def crash(case, rtol):
    raise ArithmeticError("no gradient")


def test_each_way_to_a_gradient_has_a_row():
    case = build("small", radius=0.8, **SMALL)
    given = [
        Method(name=f.__name__, family="test", exact=True, forward=f)
        for f in (one_step, whole, crash)
    ]
    step, exact, failed = gradients.measure(case, given, rtol=1e-4, rounds=1)
    assert step["error"] > 0.1 and step["reached"] == 3
    assert (step["entries"], step["state_bytes"], step["rounds"]) == (6, 3 * 6 * 8, 1)
    assert exact["error"] < 1e-9
    assert (exact["products"], exact["products_max"], exact["failed"]) == (4, 5, 1)
    assert exact["ms"] > 0 and exact["backward_ms"] > 0 and exact["bytes"] > 0
    assert failed["failure"] == "ArithmeticError: no gradient" and "ms" not in failed
    assert case.x.grad is None


class Repelling(torch.nn.Module):
    def __init__(self, slope=-1.2):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(slope))

    def forward(self, z, x):
        return self.slope * z + x


def test_the_exact_gradient_of_a_map_that_does_not_contract():
    x = torch.tensor([[1.0], [3.0]])
    case = case_of("repelling", Repelling(), x, torch.ones_like(x))
    torch.testing.assert_close(case.exact, torch.tensor([4 / 2.2**2, 1 / 2.2, 1 / 2.2]).double())
    with pytest.raises(ArithmeticError, match="not been solved"):
        case_of("none", Repelling(1.0), x, torch.ones_like(x))


def test_each_way_has_the_loosest_tolerance_that_keeps_its_error_in_bound():
    def rough(case, rtol):
        return unrolled(case) * (1 + rtol), BackwardReport

    case = build("small", radius=0.8, **SMALL)
    given = [
        Method(name=f.__name__, family="test", exact=True, forward=f)
        for f in (rough, one_step, crash)
    ]
    options = {"rtol": 1.0, "rounds": 1, "memory": False}
    found, never, failed = gradients.measure(case, given, **options, bound=2e-3)
    assert found["error"] <= 2e-3 < found["error"] * 10 ** (1 / 8)
    assert found["rtol"] == pytest.approx(found["error"], rel=1e-3) and found["ms"] > 0
    assert never["error"] > 0.1 and "ms" not in never and "ms" not in failed
    assert found["bound"] == 2e-3


@pytest.mark.parametrize("method", methods.adjoints(), ids=lambda method: method.name)
def test_every_adjoint_is_what_it_is_called(method):
    case = build("small", radius=0.5, **SMALL)
    (row,) = gradients.measure(case, [method], rtol=1e-6, rounds=0, memory=False)
    assert "failure" not in row
    assert row["reached"] == 3 or not row["exact"]
    assert (row["reached"] == 3 and row["error"] <= ACCURATE * 1e-6) == method.exact
    assert row["cosine"] > 0.5


def test_torchdeq_takes_part_with_all_its_exact_settings():
    pytest.importorskip("torchdeq")
    theirs = [m.name for m in methods.exact() if m.family == "torchdeq"]
    assert len(theirs) == len(set(theirs)) == 18
