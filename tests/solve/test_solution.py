"""What a solve returns: detached, copied, pickled, shown, and mistaken for a tensor."""

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from problems import normal

import equilibria as eq

X = normal(3, 4, seed=1)


def solved(backward: bool = False, **options: Any) -> eq.Solution:
    x = X.clone().requires_grad_()
    sol = eq.fixed_point(
        lambda z, x: {"a": 0.3 * torch.tanh(z["b"]) + x, "b": 0.2 * z["a"]},
        {"a": torch.zeros_like(x), "b": torch.zeros_like(x)},
        x,
        trace=True,
        states=(1, 2),
        **options,
    )
    if backward:
        sol.value["a"].sum().backward()
    return sol


def tensors(sol: eq.Solution) -> list[torch.Tensor]:
    stats = [x for x in vars(sol.stats).values() if x is not None]
    trees = [sol.value, *sol.states]
    return [sol.status, *stats, *(tree[name] for tree in trees for name in ("a", "b"))]


def stored(sol: eq.Solution) -> eq.Solution:
    file = io.BytesIO()
    torch.save(sol, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "detach": eq.Solution.detach,
    "deepcopy": copy.deepcopy,
    "pickle": lambda sol: pickle.loads(pickle.dumps(sol)),
    "torch.save": stored,
}


@pytest.mark.parametrize("adjoint", [eq.Implicit(), eq.Unrolled(), eq.Phantom(steps=2)])
@pytest.mark.parametrize("way", WAYS)
def test_without_its_graph_it_is_the_same(way: str, adjoint) -> None:
    sol = solved(adjoint=adjoint)
    assert sol.value["a"].requires_grad and sol.states[1]["a"].requires_grad
    again = WAYS[way](sol)
    for one, other in zip(tensors(again), tensors(sol), strict=True):
        assert not one.requires_grad
        torch.testing.assert_close(one, other.detach(), rtol=0.0, atol=0.0, equal_nan=True)
    assert len(again.states) == 2 and list(again.value) == ["a", "b"]


def test_a_detached_solution_shares_its_memory_and_a_copy_does_not() -> None:
    sol = solved()
    assert sol.detach().value["a"].data_ptr() == sol.value["a"].data_ptr()
    assert copy.deepcopy(sol).value["a"].data_ptr() != sol.value["a"].data_ptr()
    assert copy.copy(sol) is sol


@pytest.mark.parametrize("way", WAYS)
def test_the_adjoint_stays_as_it_is_and_starts_the_next_backward(way: str) -> None:
    first = solved(backward=True)
    kept = WAYS[way](first)
    assert first.adjoint is not None and kept.adjoint is not None
    assert torch.equal(kept.adjoint.status, first.adjoint.status)
    again = solved(backward=True, warm=kept)
    assert again.stats.evals.tolist() == [1, 1, 1]
    assert all(torch.equal(again.value[name], first.value[name]) for name in ("a", "b"))
    assert again.adjoint is not None
    assert (again.adjoint.stats.evals < first.adjoint.stats.evals).all()


def test_a_later_backward_is_not_seen_by_what_was_detached_before() -> None:
    sol = solved()
    kept = sol.detach()
    sol.value["a"].sum().backward()
    assert sol.adjoint is not None and kept.adjoint is None


def test_the_penalty_says_that_it_needs_the_graph() -> None:
    with pytest.raises(RuntimeError, match="was detached"):
        eq.stability.jacobian_penalty(solved().detach())


def test_what_is_shown_is_public() -> None:
    public = ["value", "status", "stats", "states", "aux", "starts"]
    assert list(inspect.signature(eq.Solution).parameters) == public
    assert "_record" not in repr(solved())


@pytest.mark.parametrize(
    "function",
    [torch.relu, torch.nn.functional.relu, torch.nn.Linear(4, 2), lambda sol: torch.cat([sol])],
)
def test_torch_is_given_a_tensor_or_says_what_to_take(function) -> None:
    sol = eq.fixed_point(lambda z: 0.5 * z + 1, torch.zeros(3, 4))
    with pytest.raises(TypeError, match=r"take its `value`.*eq\.nn\.Value"):
        function(sol)


def test_numbers_of_states_may_come_from_an_iterator() -> None:
    sol = eq.fixed_point(lambda z: 0.5 * z + 1, torch.zeros(1, 1), states=iter([1, 2]))
    assert [float(state) for state in sol.states] == [1.0, 1.5]
