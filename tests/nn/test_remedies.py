"""Errors of a layer whose state, weights or inputs do not fit together name the remedy."""

import pytest
import torch
from torch import nn

from equilibria.nn import DEQ
from equilibria.solve import Picard, SolveError

X = torch.linspace(-1, 1, 20).view(4, 5)


class Cell(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.recur, self.inject = nn.Linear(width, width), nn.Linear(5, width)

    def forward(self, z, x):
        return 0.3 * torch.tanh(self.recur(z)) + self.inject(x)


def pair(z, x):
    fast, slow = z
    return 0.3 * torch.tanh(slow) + x, 0.3 * fast


def named(z, x):
    return {"a": 0.3 * torch.tanh(z["a"]) + x}


@pytest.mark.parametrize(
    ("cell", "init"),
    [
        (Cell(8), lambda x: torch.zeros(len(x), 8)),
        (lambda z, x: x[:, :2] + 0 * z.mean(), lambda x: torch.zeros(len(x), 2)),
        (lambda z, x: (x, x), lambda x: (x, x)),
        (pair, lambda x: (x, x)),
        (named, lambda x: {"a": x}),
    ],
    ids=["width", "returned", "structure", "pair", "dict"],
)
def test_a_state_unlike_the_input_asks_for_init(cell, init) -> None:
    with pytest.raises(
        ValueError, match=r"zeros like the first input, \(4, 5\)\..*init="
    ) as caught:
        DEQ(cell)(X)
    assert isinstance(caught.value.__cause__, Exception)
    assert str(caught.value.__cause__) in str(caught.value)
    DEQ(cell, init=init)(X)
    DEQ(cell)(X, z0=init(X))


def test_a_start_that_was_named_is_not_called_a_guess() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        DEQ(Cell(8))(X, z0=torch.zeros(4, 7))
    assert "init=" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_below_float32_are_told_of_autocast(dtype) -> None:
    layer = DEQ(Cell(5)).to(dtype)
    for x in (X, X.to(dtype)):
        with pytest.raises(
            TypeError, match=rf"weights in {dtype} .* torch\.autocast\('cpu', {dtype}"
        ):
            layer(x)


def test_the_remedy_works() -> None:
    layer = DEQ(Cell(5), solver=Picard(rtol=1e-2))
    with torch.autocast("cpu", torch.bfloat16):
        sol = layer(X)
    assert sol.value.dtype == torch.float32 and not sol.status.any()


def test_a_cell_that_casts_by_itself_is_left_alone() -> None:
    inner = Cell(5).bfloat16()
    layer = DEQ(lambda z, x: inner(z.bfloat16(), x.bfloat16()).float(), solver=Picard(rtol=1e-2))
    assert not layer(X).status.any()


def test_other_errors_of_a_cell_pass_as_they_are() -> None:
    def broken(z, x):
        raise RuntimeError("the sensor is off")

    with pytest.raises(RuntimeError, match=r"^the sensor is off$"):
        DEQ(broken)(X)
    with pytest.raises(SolveError):  # though its message may speak of sizes
        DEQ(lambda z, x: 2 * z + x, solver=Picard())(X, throw=True)


def test_the_inner_of_two_layers_speaks() -> None:
    inner = DEQ(Cell(8))
    with pytest.raises(ValueError, match="init=") as caught:
        DEQ(lambda z, x: 0.5 * z + inner(x).value)(X)
    assert str(caught.value).count("init=") == 1


def test_an_error_of_the_cells_own_kind_stays_what_it_is() -> None:
    class Mine(RuntimeError):
        pass

    def cell(z, x):
        raise Mine("queue size exceeded")

    with pytest.raises(Mine, match=r"^queue size exceeded$"):
        DEQ(cell)(X)


def test_an_operand_of_another_batch_is_not_the_starts_fault() -> None:
    with pytest.raises(ValueError, match="operand 1 has the shape") as caught:
        DEQ(lambda z, x, y: z + x)(X, X[:3])
    assert "init=" not in str(caught.value)
