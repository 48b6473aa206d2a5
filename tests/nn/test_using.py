"""Other methods for the layers of a module, for as long as a block runs."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equilibria as eq
from equilibria.learned import Initializer, Learned
from equilibria.nn import DEQ, using


class Cell(nn.Module):
    def __init__(self, inner: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))
        self.inner = DEQ(lambda z, x: 0.1 * z + x, solver=few(7)) if inner else None

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        if self.inner is not None:
            x = self.inner(x).value
        return torch.tanh(self.weight * z) + x


@pytest.fixture
def layer() -> DEQ:
    return DEQ(Cell(), solver=eq.Picard(rtol=0.0, max_evals=12))


X = torch.ones(2, 3)


def evals(layer: DEQ) -> int:
    return int(layer(X).stats.evals.max())


def few(count: int) -> eq.Picard:
    return eq.Picard(rtol=0.0, max_evals=count, patience=None)


@pytest.mark.filterwarnings("ignore::equilibria.SolveWarning")
def test_the_inner_block_prevails_and_all_is_as_before_after_it(layer: DEQ) -> None:
    shown = repr(layer)
    with torch.no_grad():
        with using(layer, few(5)):
            assert evals(layer) == 5 and repr(layer) == shown
            with using(layer, eval_solver=few(3)):
                assert evals(layer) == 5
                assert evals(layer.eval()) == 3
            with pytest.raises(RuntimeError), using(layer, few(2)):
                raise RuntimeError
            assert evals(layer) == evals(layer.train()) == 5
        assert evals(layer) == 12
        layer.eval_solver = few(4)
        with using(layer, few(6)):
            assert evals(layer.eval()) == 6


@pytest.mark.filterwarnings("ignore::equilibria.SolveWarning")
def test_a_block_says_which_iterate_is_returned() -> None:
    layer = DEQ(lambda z, x: -z - torch.where(z < 0, -x, x), solver=few(5))  # 0, -1, 2, -3, 4

    def value() -> float:
        return float(layer(torch.ones(1, 1)).value)

    with torch.no_grad(), using(layer, returns="last"):
        assert value() == 4
        with using(layer, few(3)):
            assert value() == 2
            with using(layer, returns="best"):
                assert value() == 0
    assert value() == 0 and layer.returns == "best"
    with pytest.raises(ValueError, match="returns: expected"), using(layer, returns="next"):
        pass


def test_an_adjoint_gives_the_gradient_of_forwards_in_the_block(layer: DEQ) -> None:
    grads = {}
    for name, adjoint in (("own", None), ("unrolled", eq.Unrolled()), ("free", eq.JacobianFree())):
        with using(layer, adjoint=adjoint):
            value = layer(X).value
        (grads[name],) = torch.autograd.grad(value.sum(), layer.cell.weight)
    torch.testing.assert_close(grads["own"], grads["unrolled"], rtol=1e-4, atol=0.0)
    assert not torch.isclose(grads["own"], grads["free"])


@pytest.mark.filterwarnings("ignore::equilibria.SolveWarning")
def test_other_threads_and_other_layers_keep_their_methods(layer: DEQ) -> None:
    other, counts = DEQ(Cell(), solver=few(9)), {}
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        assert inside.wait(60)
        with torch.no_grad():
            counts["thread"] = evals(layer)
            with using(layer, few(4)):
                counts["its own"] = evals(layer)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with torch.no_grad(), using(layer, few(5)):
        inside.set()
        assert done.wait(60)
        assert evals(layer) == 5 and evals(other) == 9
    thread.join()
    assert counts == {"thread": 12, "its own": 4}


@pytest.mark.filterwarnings("ignore::equilibria.SolveWarning")
def test_all_layers_of_a_module_but_those_inside_of_cells() -> None:
    model = nn.ModuleList([DEQ(Cell(inner=True), solver=few(9)), DEQ(Cell(), solver=few(8))])
    seen: list[int] = []
    assert model[0].cell.inner is not None
    model[0].cell.inner.register_forward_hook(
        lambda _, __, solution: seen.append(int(solution.stats.evals.max()))
    )
    with torch.no_grad(), using(model, few(5)):
        assert [evals(each) for each in model] == [5, 5]
    assert set(seen) == {7}


def test_what_is_no_method_or_is_for_other_cells_is_refused(layer: DEQ) -> None:
    with pytest.raises(TypeError, match="solver: expected one such as"), using(layer, "Picard"):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="adjoint: expected"), using(layer, adjoint=eq.Picard()):  # type: ignore[arg-type]
        pass
    with (
        pytest.raises(TypeError, match="neural: expected the weights"),
        using(layer, neural=nn.ReLU()),
    ):  # type: ignore[arg-type]
        pass


class Solved(Initializer):
    """Guesses the equilibrium itself."""

    def __init__(self, layer: DEQ) -> None:
        super().__init__([])
        self.guess = layer(X).value.detach()

    def forward(self, inputs: Any, own: Any) -> Tensor:
        return self.guess


def test_the_weights_of_a_learned_solver_are_each_threads_own(layer: DEQ) -> None:
    layer.solver = eq.Picard(rtol=1e-4)
    solver, before = eq.NeuralSolver(rtol=1e-3), list(layer.state_dict())
    knowing, counts = Learned(Solved(layer)), {}
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        assert inside.wait(60)
        with torch.no_grad(), using(layer, solver, neural=Learned()):
            counts["ignorant"] = evals(layer)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with torch.no_grad(), using(layer, solver, neural=knowing):
        inside.set()
        assert done.wait(60)
        assert evals(layer) == 1
        assert layer.neural is None and list(layer.state_dict()) == before
    thread.join()
    assert counts["ignorant"] > 1
    with pytest.raises(ValueError, match="this layer has none"), using(layer, solver):
        layer(X)
