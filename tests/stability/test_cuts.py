"""Derivatives that autograd gets wrong, found by finite differences."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import equilibria as eq
from equilibria.stability import comparison
from equilibria.stability.derivative_check import find_cuts
from equilibria.stability.examined import Exact, Patient


class Cell(nn.Module):
    """tanh(W z / (1 + ||z||) + b + x) with one part cut from autograd."""

    def __init__(self, cut, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(width, width)
        self.cut = cut

    def forward(self, z, x):
        size = z.norm(dim=1, keepdim=True)
        if self.cut == "state":
            z, size = z.detach(), size.detach()
        if self.cut == "normaliser":
            size = size.detach()
        if self.cut == "a sample":
            z = torch.cat([z[:1].detach(), z[1:]])
        bias = self.linear.bias.detach() if self.cut == "bias" else self.linear.bias
        x = x.detach() if self.cut == "operand" else x
        return torch.tanh(nn.functional.linear(z / (1 + size), self.linear.weight, bias) + x)


def cuts_of(cell, *inputs, seed=0, **options):
    patient = Patient.admit(eq.DEQ(cell, **options), inputs)
    with torch.no_grad():
        found = patient.call().solution
    return {cut.of: cut.error for cut in find_cuts(Exact.of(patient, found), seed)}


EXPECTED = {
    "": {},
    "state": {"the state": 1.0},
    "bias": {"parameter linear.bias": 1.0},
    "operand": {"operand 0": 1.0},
}


@pytest.mark.parametrize("cut", EXPECTED)
def test_what_is_cut_is_named(cut):
    assert cuts_of(Cell(cut), torch.randn(5, 8)) == pytest.approx(EXPECTED[cut], rel=1e-5)


@pytest.mark.parametrize("cut", ["normaliser", "a sample"])
def test_a_part_is_an_error_of_that_size(cut):
    found = cuts_of(Cell(cut), torch.randn(5, 8))
    assert set(found) == {"the state"} and 0.01 < found["the state"] < 0.9


def test_a_leaf_of_a_state_and_an_operand_of_all_samples_have_names():
    def cell(z, x, w):
        a, b = z
        return torch.tanh(0.5 * a + 0.2 * b.detach()) @ w.detach() + x, 0.3 * a

    x, w = torch.randn(4, 6), 0.5 * torch.eye(6)
    found = cuts_of(cell, x, eq.shared(w), init=lambda x, w: (torch.zeros_like(x),) * 2)
    assert set(found) == {"leaf 1 of the state", "operand 1"}


def test_kinks_that_the_state_lies_on_are_no_cut():
    class Rectified(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8, bias=False)

        def forward(self, z, x):
            return torch.relu(0.5 * self.linear(z) + x).clamp(max=1.0)

    x = torch.randn(6, 8).clamp(min=0.0)
    x[:3] = 0  # rows of padding, whose state is zero
    assert not cuts_of(Rectified(), x)


def test_f_that_is_not_finite_around_is_asked_for_shares_of_its_entries():
    x = torch.cat([torch.zeros(4, 2), torch.rand(4, 2) + 0.5], dim=1)

    def f(z, x):
        return torch.where(x > 0, torch.log1p(z) + torch.where(x >= 0, x, torch.nan), x)

    assert not cuts_of(f, x)
    assert cuts_of(lambda z, x: f(z.detach(), x), x) == pytest.approx({"the state": 1.0})


def test_f_that_refuses_other_inputs_is_not_asked():
    x = torch.randn(4, 3)

    def f(z, x, whole):
        if bool((whole != whole.round()).any()):
            raise ValueError("expected whole numbers")
        return 0.5 * torch.tanh(z) + x

    assert not cuts_of(f, x, torch.ones(4, 1))


def test_the_parameters_are_left_as_they_are():
    patient = Patient.admit(eq.DEQ(Cell("bias")), (torch.randn(3, 8),))
    with torch.no_grad():
        exact = Exact.of(patient, patient.call().solution)
    before = {name: x.clone() for name, x in exact.patient.module.state_dict().items()}
    find_cuts(exact, 0)
    for name, x in exact.patient.module.state_dict().items():
        assert torch.equal(x, before[name])


def test_where_a_derivative_is_wrong_no_adjoint_is_recommended(monkeypatch):
    monkeypatch.setattr(comparison, "peak_bytes", lambda step, device: 0)
    layer, x = eq.DEQ(Cell("state")), torch.randn(5, 8)
    found = eq.stability.compare_adjoints(layer, x, adjoints=[eq.Implicit()], repeats=1)
    assert found.rows[0].cosine > 0.999  # with a gradient that is as wrong
    assert found.recommended is None and not found.compared
    assert "with respect to the state (100 %)" in str(found) and "detach()" in str(found)
    assert json.loads(json.dumps(found.json()))["cuts"][0]["of"] == "the state"
    right = eq.stability.compare_adjoints(eq.DEQ(Cell("")), x, adjoints=[eq.Implicit()], repeats=1)
    assert not right.cuts and right.recommended is not None


def test_the_doctor_tells_it():
    examined = eq.stability.doctor(eq.DEQ(Cell("state")), torch.randn(5, 8), starts=1)
    assert examined.findings[0].topic == "Derivatives" and examined.severity == "unhealthy"
    assert "the state (100 %)" in examined.findings[0].sentence
    assert "torch.func.grad" in examined.findings[0].advice
    right = eq.stability.doctor(eq.DEQ(Cell("")), torch.randn(5, 8), starts=1)
    assert "Derivatives" not in {each.topic for each in right.findings}


@pytest.fixture
def oracle(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "oracle")
    return importlib.import_module("cuts")


def test_random_cells(oracle):
    for cut in (*oracle.CUTS, None):
        for number in range(2 if cut else 6):
            about, report = oracle.judged(number, 0, cut)
            assert not report.false, about
