"""Gradients of a loss that has nothing left to teach: adjoints are judged by the output instead."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import equilibria as eq
from equilibria.metric import ACCURACY
from equilibria.stability import compare_adjoints, comparison, doctor
from equilibria.stability.findings import findings

WIDTH = 12


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            self.linear.weight.mul_(0.9)

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


class Classifier(nn.Module):
    """Three classes, of which it is the surer the larger `scale` is."""

    def __init__(self, scale):
        super().__init__()
        self.deq = eq.DEQ(Cell(), solver=eq.Anderson(rtol=1e-4), adjoint=eq.JacobianFree())
        self.head = nn.Linear(WIDTH, 3)
        self.scale = scale

    def forward(self, x):
        return self.scale * self.head(self.deq(x).value)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(comparison, "peak_bytes", lambda step, device: 0)
    monkeypatch.setattr(comparison, "SETTINGS", ((1, 1.0), (10, 1.0)))


def sure(scale, *, margin):
    """A classifier that is right, and the samples at least so far from the next class."""
    torch.manual_seed(0)
    model, x = Classifier(scale), torch.randn(64, WIDTH)
    with torch.no_grad():
        logits = model(x)
    best = logits.topk(2).values
    kept = best[:, 0] - best[:, 1] > margin * scale
    assert int(kept.sum()) >= 6
    return model, x[kept], logits.argmax(1)[kept]


LOSSES = {
    "cross-entropy of logits in the hundreds": (1000.0, functional.cross_entropy),
    "cross-entropy that float64 has not either": (1e5, functional.cross_entropy),
    "a hinge that all samples are beyond": (
        100.0,
        lambda y, classes: functional.multi_margin_loss(y, classes, margin=1.0),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_adjoints_are_compared_on_the_output_where_the_loss_has_no_gradient(name):
    scale, loss = LOSSES[name]
    model, x, classes = sure(scale, margin=0.3)
    found = compare_adjoints(model, x, loss=lambda y: loss(y, classes), repeats=1)
    expected = compare_adjoints(model, x, repeats=1)  # by the output itself
    assert found.vanished is not None and found.vanished < 1e-6
    assert found.loss == "random projection"
    for row, other in zip(found.rows, expected.rows, strict=True):
        assert row.cosine == pytest.approx(other.cosine, abs=1e-5)
        assert row.norm_ratio == pytest.approx(other.norm_ratio, rel=1e-4)
    assert found.recommended.cosine >= 0.99
    assert "The gradient of the loss has vanished" in found.sentence
    assert "tighter" not in found.sentence
    examined = doctor(model, x, loss=lambda y: loss(y, classes), starts=1)
    gradient = next(each for each in examined.findings if each.topic == "Gradient")
    assert examined.gradient.vanished is not None
    assert "The gradient of the loss has vanished" in gradient.sentence
    assert math.isfinite(examined.gradient.norm_ratio)


def test_a_part_of_the_output_is_what_is_projected():
    model, x, classes = sure(1e5, margin=0.3)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            y = self.model(x)
            return functional.cross_entropy(y, classes), y

    found = compare_adjoints(
        Both(), x, loss=lambda both: both[0], answer=lambda both: both[1], repeats=1
    )
    alone = compare_adjoints(model, x, repeats=1)
    assert [row.cosine for row in found.rows] == pytest.approx([row.cosine for row in alone.rows])


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, classes: functional.cross_entropy(y, 2 - classes),  # large
        lambda y, classes: 1e-9 * y.square().mean(),  # small by its unit alone
        lambda y, classes: y.sum(),
    ],
)
def test_a_gradient_that_can_be_computed_is_the_loss_own(loss):
    model, x, classes = sure(1.0, margin=0.05)
    found = compare_adjoints(model, x, loss=lambda y: loss(y, classes), repeats=1)
    assert found.vanished is None and found.loss == "loss"
    assert found.rows[0].cosine < 0.9999  # JacobianFree is not exact, and the loss shows it


def test_samples_without_a_loss_do_not_make_the_worst_cosine():
    model, x, classes = sure(30.0, margin=0.3)
    found = compare_adjoints(
        model, x, loss=lambda y: functional.cross_entropy(y, classes), repeats=1
    )
    exact = next(row for row in found.rows if row.exact)
    assert found.vanished is None and exact.sample_cosine > 0.95


def test_it_is_said_what_each_cosine_is_of_and_from_which_side_the_bound_comes():
    torch.manual_seed(0)
    model, x = Classifier(1.0), torch.randn(6, WIDTH)
    model.deq.adjoint = eq.Implicit()
    examined = doctor(model, x, starts=1, metric=ACCURACY)
    said = {each.topic: each.sentence for each in examined.findings}
    assert "with respect to the layer's parameters" in said["Gradient"]
    assert "With respect to the layer's inputs, the smallest cosine of a sample" in said["Gradient"]
    assert (
        "estimated from above: the bound may be a few per cent larger" in said["Gradient's bound"]
    )
    plain = doctor(eq.DEQ(lambda z, x: 0.5 * torch.tanh(z) + x), x, starts=1)
    assert plain.gradient.of == "inputs"
    again = findings(replace(plain, gradient=replace(plain.gradient, cosine=0.5)))
    (gradient,) = [each.sentence for each in again if each.topic == "Gradient"]
    assert "the layer's parameters" not in gradient
