"""Each private name of torch in equilibria.solve.private does what the package relies on."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vjp, vmap

from equilibria.solve import private

X = torch.arange(6.0).reshape(2, 3)


def test_transform_active() -> None:
    seen = []

    def f(x):
        seen.append(private.transform_active())
        return x.sum()

    grad(f)(X)
    vmap(f)(X)
    assert seen == [True, True] and not private.transform_active()


def test_is_wrapped_and_is_mapped() -> None:
    seen = []

    def f(x):
        seen.append((private.is_wrapped(x), private.is_mapped(x), private.is_mapped(X)))
        return x.sum()

    grad(f)(X)
    vmap(f)(X)
    vmap(grad(f))(X)
    assert seen == [(True, False, False), (True, True, False), (True, True, False)]
    assert not private.is_wrapped(X) and not private.is_mapped(X)


def test_alive_takes_off_the_wrapper_of_a_level_that_has_ended() -> None:
    kept = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            kept.append((private.is_wrapped(x), private.is_wrapped(private.alive(x))))
            return g

    _, pull = vjp(Keep.apply, X)  # the level ends here
    pull(torch.ones_like(X))
    assert kept == [(True, False)]
    assert private.alive(X) is X


def test_some_and_every_read_through_mapped_axes() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    seen = []

    def f(row):
        seen.append((private.some(row), private.every(row), private.some(~row & row)))
        return row

    vmap(f)(mask)
    assert seen == [(True, False, False)]


def test_primal_strips_the_innermost_level_only() -> None:
    def inner(x):
        # The inner tangent is stripped, the outer one is not.
        return private.primal(x).square() + 0 * x

    def outer(x):
        value, tangent = jvp(inner, (x,), (torch.ones_like(x),))
        assert not tangent.any()
        return value

    _, tangent = jvp(outer, (X,), (torch.ones_like(X),))
    torch.testing.assert_close(tangent, 2 * X)


def test_primal_and_has_tangent_outside_of_transforms() -> None:
    assert not private.dual_level_active() and private.primal(X) is X
    with forward_ad.dual_level():
        assert private.dual_level_active()
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        assert private.has_tangent(dual) and not private.has_tangent(X)
        assert not private.has_tangent(private.primal(dual))


def test_forward_mode_is_switched_on_in_a_jvp_rule() -> None:
    seen = []

    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def jvp(ctx, t):
            enabled = torch._C._is_fwd_grad_enabled  # pyright: ignore
            with private.forward_mode():
                seen.append(enabled())
            return t.clone()

    jvp(Rule.apply, (X,), (torch.ones_like(X),))
    assert seen == [True]


def test_sequence_numbers_count_up_and_leaves_come_last() -> None:
    leaf = torch.ones(1, requires_grad=True)
    first, second = leaf * 2, leaf * 3
    numbers = [private.sequence_number(x.grad_fn) for x in (first, second)]
    accumulate = second.grad_fn.next_functions[0][0]  # pyright: ignore
    assert numbers[0] < numbers[1] < private.sequence_number(accumulate)


def test_run_backward_is_grad() -> None:
    """Also twice over one graph, and with an input that nothing depends on."""
    x, idle = X.clone().requires_grad_(), torch.ones(2, requires_grad=True)
    outputs = [x.sin(), x.sum(dim=1)]
    cotangents = [torch.cos(X), torch.tensor([2.0, -1.0])]
    wanted = torch.autograd.grad(outputs, x, cotangents, retain_graph=True)[0]
    for keep in (True, False):
        found, none = private.run_backward(outputs, cotangents, [x, idle], keep=keep)
        assert found is not None and torch.equal(found, wanted) and none is None
    with pytest.raises(RuntimeError, match="second time"):
        private.run_backward(outputs, cotangents, [x], keep=False)
