"""Gradients are compared with exact ones, and the exact ones with autograd's."""

import dataclasses
import json
from typing import Any

import pytest
import torch

from equilibria.bench import gradient_tables, gradients, methods
from equilibria.bench.cells import at_radius, compare, plain
from equilibria.bench.methods import Backward, Method
from equilibria.bench.record import finite

SMALL = {"width": 6, "batch": 3, "device": "cpu", "dtype": torch.float64}


@pytest.fixture(scope="module", params=["dense", "plain"])
def case(request):
    if request.param == "dense":
        return at_radius("small", radius=0.8, **SMALL)
    return plain("small", scale=0.7, **SMALL)


def unrolled(case, steps=400):
    z = torch.zeros_like(case.x)
    for _ in range(steps):
        z = case.cell(z, case.x)
    return z


def clear(case):
    for p in (*case.cell.parameters(), case.x):
        p.grad = None


def test_the_exact_gradient_is_that_of_a_long_iteration(case):
    clear(case)
    (unrolled(case) * case.target).sum().backward()
    compared = compare(case.cell, case.x, case.exact)
    assert compared.error < 1e-9
    assert compared.cosine == pytest.approx(1)
    case.x.grad *= 2
    assert compare(case.cell, case.x, case.exact).error > 0.1
    clear(case)
    assert compare(case.cell, case.x, case.exact).error == float("inf")


def test_the_jacobian_has_the_radius_that_was_asked_for():
    case: Any = at_radius("small", radius=0.8, **SMALL)
    assert case.radius == pytest.approx(0.8, rel=1e-4)
    z = unrolled(case).detach()
    for i in range(len(z)):
        jacobian = torch.func.jacrev(lambda v, i=i: case.cell(v, case.x[i]))(z[i])
        assert float(torch.linalg.eigvals(jacobian).abs().max()) <= case.radius + 1e-6
        singular = torch.linalg.svdvals(torch.eye(6, dtype=torch.float64) - jacobian)
        assert float(singular.min()) >= case.smallest - 1e-6


def one_step(case, rtol):
    return case.cell(unrolled(case).detach(), case.x), Backward


def whole(case, rtol):
    return unrolled(case), lambda: Backward(torch.tensor([3, 4, 5]), failed=1)


def crash(case, rtol):
    raise ArithmeticError("no gradient")


def test_a_wrong_gradient_that_is_called_exact_is_marked():
    case = at_radius("small", radius=0.8, **SMALL)
    given = [
        Method(name=f.__name__, family="test", exact=True, forward=f)
        for f in (one_step, whole, crash)
    ]
    report = gradients.measure(case, given, rtol=1e-4, turns=1)
    measured: Any = report.measured
    step, exact, failed = measured
    assert step.error > 0.1 and step.reached == 3
    assert not gradient_tables.accurate(step, 1e-4)
    assert exact.error < 1e-9 and gradient_tables.accurate(exact, 1e-4)
    assert (exact.products_mean, exact.products_max, exact.failed) == (4, 5, 1)
    assert exact.ms > 0 and exact.backward_ms > 0 and exact.bytes > 0
    assert failed.error_text == "ArithmeticError: no gradient" and failed.ms is None
    notes = {row[0]: row[-1] for row in gradient_tables.adjoint_table(report, 1e-4).rows}
    assert notes["one_step"] == "called exact, and is not"
    assert notes["whole"] == "backward: says that 1 failed"
    again = gradients.GradientReport.of(json.loads(json.dumps(finite(report.json()))))
    assert again.measured[1] == exact
    assert case.x.grad is None


def test_speed_is_against_the_fastest_accurate_step_of_torchdeq():
    case = at_radius("small", radius=0.8, **SMALL)
    ours = Method(name="default", family="equilibria", exact=True, forward=whole)
    report = gradients.measure(case, [ours], rtol=1e-4, turns=0)
    each = dataclasses.replace(report.measured[0], ms=2.0)
    its = [
        dataclasses.replace(each, method="torchdeq fast", family="torchdeq", ms=1.0, error=0.5),
        dataclasses.replace(each, method="torchdeq right", family="torchdeq", ms=5.0),
        dataclasses.replace(each, method="torchdeq slow", family="torchdeq", ms=9.0),
    ]
    report = dataclasses.replace(report, measured=[each, *its])
    assert gradient_tables.speed(report, "default", 1e-4) == pytest.approx(2.5)
    table = gradient_tables.trainings([report], 1e-4)[0]
    assert table.rows[0] == ["small", "right", 5.0, 2.5]


@pytest.mark.parametrize("method", methods.adjoints(), ids=lambda method: method.name)
def test_every_adjoint_is_what_it_is_called(method):
    case = at_radius("small", radius=0.5, **SMALL)
    report = gradients.measure(case, [method], rtol=1e-6, turns=0, memory=False)
    measured: Any = report.measured[0]
    assert measured.error_text is None
    assert measured.reached == 3 or not measured.exact
    assert gradient_tables.accurate(measured, 1e-6) == method.exact
    assert measured.cosine > 0.5


def test_torchdeq_takes_part_with_all_its_exact_settings():
    pytest.importorskip("torchdeq")
    theirs = [m.name for m in methods.exact() if m.family == "torchdeq"]
    assert len(theirs) == len(set(theirs)) == 18
