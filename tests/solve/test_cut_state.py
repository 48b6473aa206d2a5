"""f that depends on its state where autograd finds no dependence: a backward says so."""

import warnings

import pytest
import torch
from torch import Tensor

import equilibria as eq

torch.manual_seed(0)
WEIGHT = 0.15 * torch.randn(16, 16)
WORDS = "autograd finds no dependence"


def energy(z: Tensor, x: Tensor, create_graph: bool) -> Tensor:
    """x - dE/dz / 2."""
    with torch.enable_grad():
        z = z if z.requires_grad else z.detach().requires_grad_()
        value = torch.log(torch.cosh(z @ WEIGHT)).sum()
        return x - torch.autograd.grad(value, z, create_graph=create_graph)[0] / 2


WRONG = {
    "detach": lambda z, x: torch.tanh(z.detach() @ WEIGHT) + x,
    "numpy": lambda z, x: torch.tanh(torch.from_numpy(z.detach().numpy()) @ WEIGHT) + x,
    "no_grad": lambda z, x: torch.no_grad()(torch.tanh)(z @ WEIGHT) + x,
    "energy": lambda z, x: energy(z, x, create_graph=False),
}
RIGHT = {
    "dense": lambda z, x: torch.tanh(z @ WEIGHT) + x,
    "energy": lambda z, x: energy(z, x, create_graph=True),
    "functional": lambda z, x: x - torch.func.grad(lambda z: torch.cosh(z @ WEIGHT).sum())(z) / 4,
    "constant": lambda z, x: torch.tanh(x @ WEIGHT),
    "step": lambda z, x: torch.tanh(x @ WEIGHT) + 0.1 * (z > 0.3),
    "none of the state": lambda z, x: torch.zeros_like(z) + x,
}
OPTIONS = {
    "default": {},
    "damped": {"solver": eq.Picard(damping=0.5)},
    "newton": {"solver": eq.NewtonKrylov()},
    "phantom": {"adjoint": eq.NeumannPhantom()},
    "zero tolerance": {"solver": eq.Picard(rtol=0.0, max_evals=8, patience=None)},
    "gmres": {"adjoint": eq.Implicit(linear=eq.GMRES())},
}


def warned(f, **options) -> bool:
    x = torch.randn(4, 16, requires_grad=True)
    sol = eq.fixed_point(f, torch.zeros(4, 16), x, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sol.value.sum().backward()
    found = [each for each in caught if WORDS in str(each.message)]
    assert all(each.category is eq.SolveWarning for each in found) and len(found) <= 1
    return bool(found)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", WRONG)
def test_a_cut_state_is_told(name: str, options: str) -> None:
    assert warned(WRONG[name], **OPTIONS[options])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_a_right_one(name: str, options: str) -> None:
    assert not warned(RIGHT[name], **OPTIONS[options])


def test_a_constant_costs_no_evaluation() -> None:
    calls = []

    def f(z: Tensor, x: Tensor) -> Tensor:
        calls.append(None)
        return 2 * x

    x = torch.ones(2, 3, requires_grad=True)
    eq.fixed_point(f, torch.zeros(2, 3), x).value.sum().backward()
    assert len(calls) == 3  # two in the solve, one in backward
    assert torch.equal(x.grad, torch.full_like(x, 2.0))


@pytest.mark.parametrize("name", WRONG)
def test_a_cut_is_told_of_a_solution_found_elsewhere(name: str) -> None:
    x = torch.randn(4, 16, requires_grad=True)
    found = eq.fixed_point(WRONG[name], torch.zeros(4, 16), x, solver=eq.Auto(rtol=1e-6)).value
    sol = eq.attach(WRONG[name], found.detach(), x)
    with pytest.warns(eq.SolveWarning, match=WORDS):
        sol.value.sum().backward()
