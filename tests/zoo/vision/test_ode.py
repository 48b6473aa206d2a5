"""Neural ODEs: right to the tolerance, forward and backward, counted, and clear where they fail."""

import subprocess
import sys

import pytest
import torch

from equilibria.run import models
from equilibria.run.data.storage import DataError
from equilibria.zoo.vision.model.ode import Dynamics, ODEError

pytest.importorskip("torchdiffeq")

SHAPE = {"shape": (2, 4, 4), "classes": 3}
TIGHT = {"rtol": 1e-7, "atol": 1e-7}


def create(augment=0, **fields):
    torch.manual_seed(0)
    name = "augmented-neural-ode" if augment else "neural-ode"
    return models.create(name, **SHAPE, **{"filters": 5, "augment": augment, **fields}).double()


@pytest.fixture
def x():
    return torch.randn(3, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_time_is_a_channel_of_every_convolution(x):
    torch.manual_seed(0)
    dynamics = Dynamics(2, 5, limit=9).double()

    def channel(z, conv):
        z = torch.cat([torch.full_like(z[:, :1], 0.3), z], dim=1)
        return torch.nn.functional.conv2d(z, conv.weight, conv.bias, padding=conv.padding)

    inside = channel(x, dynamics.conv1).relu()
    inside = channel(inside, dynamics.conv2).relu()
    expected = channel(inside, dynamics.conv3)
    torch.testing.assert_close(dynamics(torch.tensor(0.3), x), expected)


def by_small_steps(dynamics, z, steps=12):
    """z(1) by Runge and Kutta's method of order 4."""
    for i in range(steps):
        t, h = torch.tensor(i / steps), 1 / steps
        k1 = dynamics(t, z)
        k2 = dynamics(t + h / 2, z + h / 2 * k1)
        k3 = dynamics(t + h / 2, z + h / 2 * k2)
        k4 = dynamics(t + h, z + h * k3)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return z


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("augment", [0, 3])
def test_answer_and_gradients_are_those_of_many_small_steps(x, augment, adjoint):
    model = create(augment=augment, continuous_adjoint=adjoint, **TIGHT)
    with torch.no_grad():  # far from the kinks, where methods have the order that they promise
        for conv, bias in ((model.dynamics.conv1, 3.0), (model.dynamics.conv2, 5.0)):
            conv.weight.mul_(0.5)
            conv.bias.fill_(bias)
    given = [x.requires_grad_(), *model.parameters()]
    output = model(x).output
    found = torch.autograd.grad(output.square().sum(), given)
    z = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, augment))
    expected = model.head(by_small_steps(model.dynamics, z).flatten(1))
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(found, torch.autograd.grad(expected.square().sum(), given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("adjoint", [False, True])
def test_evaluations_are_counted_apart(x, adjoint):
    model = create(continuous_adjoint=adjoint)
    calls = []
    model.dynamics.register_forward_hook(lambda *_: calls.append(1))
    prediction = model(x)
    forward = len(calls)
    assert prediction.solutions == () and prediction.output.shape == (3, 3)
    assert model.evals == forward > 0 and model.backward_evals == 0
    prediction.output.sum().backward()
    assert model.evals == forward
    assert model.backward_evals == len(calls) - forward
    assert (model.backward_evals > 0) == adjoint


def test_a_tighter_tolerance_takes_more_evaluations(x):
    counts = []
    for tolerance in (1e-2, 1e-4, 1e-6):
        model = create(rtol=tolerance, atol=tolerance)
        model(x)
        counts.append(model.evals)
    assert counts == sorted(set(counts))


@pytest.mark.parametrize("factor", [1e4, float("nan")], ids=["stiff", "nan"])
def test_dynamics_that_cannot_be_integrated_are_an_error(x, factor):
    model = create(max_evals=50)
    with torch.no_grad():
        model.dynamics.conv3.weight.mul_(factor)
    with pytest.raises(ODEError, match="too stiff"):
        model(x)


def test_too_many_evaluations_in_backward_are_an_error(x):
    model = create(continuous_adjoint=True)
    output = model(x).output
    model.dynamics.limit = model.evals + 2
    with pytest.raises(ODEError, match=r"more than \d+ evaluations"):
        output.sum().backward()


def test_a_backward_integration_that_cannot_be_finished_is_an_error(x):
    output = create(continuous_adjoint=True)(x).output
    with pytest.raises(ODEError, match="ended before its time"):
        output.backward(torch.full_like(output, float("nan")))


def test_without_torchdiffeq_no_model_is_built_and_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(DataError, match=r"pip install 'equilibria\[ode\]'"):
        create()


def test_counting_parameters_first_leaves_the_solver_its_coefficients():
    code = (
        "import torch\nfrom equilibria.run import models\n"
        "options = {'shape': (1, 8, 8), 'classes': 3, 'filters': 4}\n"
        "with torch.device('meta'):\n    models.create('neural-ode', **options)\n"
        "print(models.create('neural-ode', **options)(torch.zeros(2, 1, 8, 8)).output.shape)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "torch.Size([2, 3])"
