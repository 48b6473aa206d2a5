"""Every registered model runs forward and backward, is saved and loaded, and becomes a file."""

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from applications import present
from equilibria.run import models
from equilibria.run.export import ExportError, exportable
from equilibria.solve import Picard, Status
from small_models import FEW, SMALL, build


def test_every_model_has_a_row():
    missing = {*models.available()} - {*SMALL}
    if not present("recurrent"):
        missing -= {"recurrent-lm"}  # whose cells are there
    assert not missing, f"add rows for {sorted(missing)} to ALL in tests/helpers/small_models.py"


@pytest.fixture(params=SMALL)
def name(request):
    return request.param


def test_every_parameter_gets_a_gradient(name):
    kind, _ = SMALL[name]
    model = build(name)
    prediction = model(kind.inputs())
    assert prediction.output.shape[: len(kind.output)] == kind.output
    for solution in prediction.solutions if kind.layer is not FEW else ():
        assert (solution.status == Status.CONVERGED).all()
    kind.loss(model, prediction.output).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.any(), key


def test_only_a_model_that_solves_takes_options_of_the_layer(name):
    kind, fields = SMALL[name]
    solves = models.config_of(name)(**fields).implicit
    assert bool(build(name)(kind.inputs()).solutions) is solves
    if not solves:
        for option, value in (("solver", Picard()), ("drop_finished", True)):
            with pytest.raises(
                TypeError, match=f"(no equilibrium layer to take|takes no) {option}"
            ):
                models.create(name, **fields, **{option: value})


def test_a_copy_and_a_saved_state_give_the_same_and_double_precision_nearly(name):
    x = SMALL[name][0].inputs()
    model, other = build(name).eval(), build(name, seed=1).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = model(x).output
        assert torch.equal(copy.deepcopy(model)(x).output, expected)
        assert torch.equal(other(x).output, expected)
        double = other.double()(pytree.tree_map(widen, x)).output
    torch.testing.assert_close(double.to(expected.dtype), expected, rtol=1e-3, atol=1e-3)


def widen(x: Any) -> Any:
    return x.double() if torch.is_tensor(x) and x.is_floating_point() else x


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (kind, _) in SMALL.items() if kind.exports])
def test_what_is_exported_does_the_same(name):
    kind, _ = SMALL[name]
    model, x = build(name), kind.inputs()
    if kind.refuses:
        with pytest.raises(ExportError, match=kind.refuses):
            exportable(model, 3)
        return
    plain = exportable(model, 3, "picard")
    program = torch.export.export(plain, (x,), strict=False).module()
    torch.testing.assert_close(program(x).output, plain(x).output, rtol=1e-4, atol=1e-5)
