"""The audit climbs where a gradient fails, and nobody else notices."""

import math

import pytest
import torch
from torch import Tensor, nn

import equilibria as eq
from equilibria import draws
from equilibria.nn import VariationalDropout
from equilibria.nn.methods import Methods, chosen
from equilibria.stability import AdjointAudit

LEVELS = ["JacobianFree", "NeumannPhantom", "Phantom", "Implicit"]


class Cell(nn.Module):
    def __init__(self, radius):
        super().__init__()
        turned = torch.linalg.qr(
            torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        )[0]
        values = radius * torch.linspace(-1, 1, 8, dtype=torch.float64)
        self.weight = nn.Parameter(turned @ torch.diag(values) @ turned.T)

    def forward(self, z, x):
        return z @ self.weight.T + x


def layer(radius, **options):
    options = {"linear": eq.GMRES(rtol=1e-9), **options}
    solver = eq.Anderson(rtol=1e-9, max_evals=2000)
    return eq.DEQ(Cell(radius), solver=solver, adjoint=eq.AdaptiveAdjoint(**options))


def x():
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def loss_of(module):
    towards = torch.randn(5, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return lambda: (module(x()).value * towards).sum()


@pytest.mark.parametrize(("radius", "level"), [(0.05, 0), (0.6, 1), (0.999, 3)])
def test_it_climbs_as_far_as_is_needed(radius, level):
    module = layer(radius)
    found = AdjointAudit(module)(0, loss_of(module))
    assert (found.level, found.adjoint) == (level, LEVELS[level])
    assert module.adjoint.level == level
    assert found.cosine >= 0.95


def test_it_is_due_every_so_many_steps_and_never_at_the_top():
    module = layer(0.05, check_every=10)
    audit = AdjointAudit(module)
    due = [audit(step, loss_of(module)) is not None for step in range(21)]
    assert [step for step in range(21) if due[step]] == [0, 10, 20]
    audit.resume(3)
    assert audit(30, loss_of(module)) is None


def test_it_never_goes_down():
    module = layer(0.999, check_every=1)
    audit = AdjointAudit(module)
    audit(0, loss_of(module))
    with torch.no_grad():
        module.cell.weight.mul_(0.01)
    audit(1, loss_of(module))
    assert module.adjoint.level == 3


@pytest.mark.parametrize("level", range(4))
def test_a_rung_has_the_gradient_of_the_adjoint_that_it_names(level):
    one = layer(0.7, level=level, steps=3)
    two = eq.DEQ(one.cell, solver=one.solver, adjoint=one.adjoint.levels[level])
    grads = [torch.autograd.grad(loss_of(each)(), each.cell.weight)[0] for each in (one, two)]
    assert torch.equal(*grads)


class Noisy(nn.Module):
    """A module with random numbers and a buffer that counts its calls."""

    def __init__(self):
        super().__init__()
        self.deq = layer(0.6)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, given):
        self.calls += 1
        return self.deq(self.drop(given)).value


def test_random_numbers_and_buffers_are_as_if_nobody_had_measured():
    module = Noisy().train()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    found = AdjointAudit(module)(0, lambda: module(x()).square().sum())
    assert found.cosine >= 0.95
    assert torch.equal(torch.rand(4), expected)
    assert int(module.calls) == 0
    assert all(p.grad is None for p in module.parameters())


class Dropped(Noisy):
    """The same with masks that are keyed to samples."""

    def __init__(self):
        super().__init__()
        self.drop = VariationalDropout(0.5)


def test_all_gradients_are_of_the_same_masks():
    module, seen = Dropped().train(), []

    def loss():
        value = module(x()).square().sum()
        seen.append(float(value.detach()))
        return value

    with draws.key_rows("step", slice(0, 5)):
        found = AdjointAudit(module)(0, loss)
        after = draws.for_samples(torch.empty(5, 2), Tensor.normal_)
    with draws.key_rows("step", slice(0, 5)):
        assert torch.equal(draws.for_samples(torch.empty(5, 2), Tensor.normal_), after)
    assert found.cosine >= 0.95
    assert len(seen) >= 2 and seen == pytest.approx([seen[0]] * len(seen))


def test_all_processes_act_on_the_cosine_that_they_agree_on():
    module, seen = layer(0.05), []

    def average(cosine):
        seen.append(cosine)
        return cosine - 1.0

    found = AdjointAudit(module, average)(0, loss_of(module))
    assert found.level == 3
    assert len(seen) == 3 and min(seen) >= 0.95


class Two(nn.Module):
    """An audited layer behind one that has an adjoint of its own."""

    def __init__(self):
        super().__init__()
        self.first = eq.DEQ(Cell(0.9), solver=eq.Picard(max_evals=5), adjoint=eq.Unrolled())
        self.second = layer(0.05)

    def forward(self, given):
        return self.second(self.first(given).value)


def test_layers_with_another_adjoint_keep_it():
    module, used = Two(), []

    def loss():
        used.append(chosen.get().get(module.first, Methods()).adjoint)
        return loss_of(module)()

    assert AdjointAudit(module)(0, loss) is not None and used == [None, None]


def test_an_exact_gradient_that_is_not_finite_says_nothing():
    module = layer(0.05, check_every=1)
    audit = AdjointAudit(module)
    assert audit(0, lambda: math.nan * loss_of(module)()) is None
    assert module.adjoint.level == 0 and audit.latest is None
    assert audit(1, loss_of(module)) is not None


def test_mistakes():
    with pytest.raises(ValueError, match="has nothing to measure"):
        AdjointAudit(frozen := layer(0.5).requires_grad_(False))(0, loss_of(frozen))
    with pytest.raises(ValueError, match="adjoint is adaptive"):
        AdjointAudit(eq.DEQ(Cell(0.5)))
    both = nn.ModuleList([layer(0.5), layer(0.5, min_cosine=0.9)])
    with pytest.raises(ValueError, match="different"):
        AdjointAudit(both)
    for options in (
        {"min_cosine": 0.0},
        {"min_cosine": 2.0},
        {"check_every": 0},
        {"steps": 0},
        {"level": 4},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            eq.AdaptiveAdjoint(**options)


@pytest.mark.parametrize("value", [1.0, torch.ones(3)])
def test_a_loss_is_a_scalar(value):
    with pytest.raises(ValueError, match="expected a scalar tensor"):
        AdjointAudit(layer(0.05))(0, lambda: value)
