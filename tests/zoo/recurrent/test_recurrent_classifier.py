"""The recurrent classifier: one answer for each sequence, whatever its length."""

import itertools

import pytest
import torch
from drawn_sequences import CELLS

from equilibria.run.models import create
from equilibria.solve import Picard, Status
from equilibria.zoo.recurrent.model import ERNNOptions, ImplicitERNNOptions

LENGTHS = torch.tensor([7, 2, 1, 5, 7])


def build(**options):
    torch.manual_seed(0)
    return create("recurrent", **{"shape": (4,), "classes": 3, "hidden": 6, **options})


def signals(time: int = 7) -> torch.Tensor:
    return torch.randn(5, time, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("cell", CELLS)
def test_any_cell_answers_and_learns(cell):
    options = CELLS[cell]()
    layer = {"solver": Picard(rtol=1e-4)} if options.implicit else {}
    model = build(cell=options, **layer)
    prediction = model(signals())
    assert prediction.output.shape == (5, 3)
    assert all((s.status == Status.CONVERGED).all() for s in prediction.solutions)
    prediction.output.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize(
    ("readout", "bidirectional", "layers"),
    list(itertools.product(["last", "mean"], [False, True], [1, 2])),
)
def test_padding_changes_no_answer(readout, bidirectional, layers):
    model = build(readout=readout, bidirectional=bidirectional, layers=layers)
    x = signals()
    together = model((x, LENGTHS)).output
    for row, length in enumerate(LENGTHS):
        alone = model(x[row : row + 1, :length]).output
        torch.testing.assert_close(together[row : row + 1], alone)


@pytest.mark.parametrize("readout", ["last", "mean"])
@pytest.mark.parametrize("cell", [ERNNOptions(steps=2), CELLS["LSTM"](), ImplicitERNNOptions()])
def test_steps_of_a_stream_end_at_the_answer(readout, cell):
    model = build(readout=readout, cell=cell, layers=2).double()
    for layer in [m for m in model.modules() if hasattr(m, "eval_solver")]:
        layer.solver = Picard(rtol=1e-10, max_evals=500)
    x = signals().double()
    y, state = None, model.begin(5)
    for k in range(7):
        y, state = model.step(x[:, k], state, time=k)
    torch.testing.assert_close(y, model(x).output)


def test_lengths_may_be_a_list():
    model = build(readout="mean")
    expected = model((signals(), LENGTHS)).output
    torch.testing.assert_close(model((signals(), LENGTHS.tolist())).output, expected)


def test_tokens_have_an_embedding():
    model = build(shape=(), vocabulary=11, embedding=5)
    tokens = torch.randint(11, (5, 7), generator=torch.Generator().manual_seed(1))
    assert model((tokens, LENGTHS)).output.shape == (5, 3)
    y, state = None, model.begin(5)
    for k in range(7):
        y, state = model.step(tokens[:, k], state)
    torch.testing.assert_close(y, model(tokens).output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "hidden must be positive"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ({"dropout": 0.1}, "from layer to layer, and layers is 1"),
        ({"shape": None}, "shape and classes are not known"),
    ],
)
def test_an_impossible_field_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_what_does_not_fit_is_refused():
    model = build()
    with pytest.raises(ValueError, match=r"expected sequences \(batch, time, 4\); got \(5, 4\)"):
        model(signals()[:, 0])
    with pytest.raises(ValueError, match="no memory and takes no carry"):
        model(signals(), carry=model.begin(5))
    with pytest.raises(TypeError, match="solves for nothing and takes no solver"):
        build(solver=Picard())
