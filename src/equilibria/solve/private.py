"""The private names of torch that this package needs, with a test each in test_private.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad, graph

_functorch: Any = torch._C._functorch  # pyright: ignore
_forward_ad: Any = forward_ad
_graph: Any = graph


def transform_active() -> bool:
    """Inside torch.func.grad, vjp, jvp, vmap, ... ?"""
    return _functorch.peek_interpreter_stack() is not None


def run_eagerly() -> AbstractContextManager[Any]:
    """Compiled functions run uncompiled inside, so that torch's modes see what they do."""
    if "torch._dynamo" not in sys.modules or torch.compiler.is_compiling():
        return nullcontext()  # nothing has been compiled, or this very call is being compiled
    return torch.compiler.set_stance("force_eager")


def is_wrapped(tensor: Tensor) -> bool:
    """Does the tensor belong to a level of a torch.func transform?"""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def is_mapped(tensor: Tensor) -> bool:
    """Does the tensor have an axis hidden by torch.vmap, at any level?"""
    while is_wrapped(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def alive(tensor: Tensor) -> Tensor:
    """The tensor, out of the wrapper of a torch.func level that has ended.

    torch.func.vjp hands out a function that is called after its level has ended.
    """
    return _functorch.unwrap_if_dead(tensor)


def some(mask: Tensor) -> bool:
    """Is any entry true, over mapped axes too? Reads the device."""
    return bool(bare(mask).any())


def every(mask: Tensor) -> bool:
    """Are all entries true, over mapped axes too? Reads the device."""
    return bool(bare(mask).all())


def free_to_read(tensor: Tensor) -> bool:
    """Is the tensor in the host's memory, where a look at it waits for nothing?

    Never while code is compiled: a look would break the graph.
    """
    if torch.compiler.is_compiling():
        return False
    return tensor.device.type == "cpu" and not is_wrapped(tensor)


def none(count: Tensor) -> bool:
    """Are all entries known to be zero? False on a device that would have to be waited for."""
    return free_to_read(count) and torch.equal(count, torch.zeros_like(count))


def bare(tensor: Tensor) -> Tensor:
    """The tensor under all wrappers of torch.func, its mapped axes in the open."""
    while is_wrapped(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def dual_level_active() -> bool:
    """Inside forward-mode differentiation?"""
    return _forward_ad._current_level >= 0


def primal(tensor: Tensor) -> Tensor:
    """The tensor without the tangent of the innermost forward-mode level, and that one alone."""
    if not dual_level_active():
        return tensor
    if not transform_active():
        return _forward_ad.unpack_dual(tensor).primal
    # Under torch.func `unpack_dual` would strip the outer levels too. A tensor has its tangent of
    # a level on the wrapper of that level.
    level = _functorch.current_level()
    if not is_wrapped(tensor) or _functorch.maybe_get_level(tensor) != level:
        return tensor
    return _functorch._wrap_for_grad(_functorch._unwrap_for_grad(tensor, level), level)


def forward_mode() -> AbstractContextManager[None]:
    """Lets tangents of outer levels through: torch switches them off inside a jvp rule."""
    return _forward_ad._set_fwd_grad_enabled(True)


def has_tangent(tensor: Tensor) -> bool:
    return dual_level_active() and _forward_ad.unpack_dual(tensor).tangent is not None


def run_backward(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], inputs: Sequence[Tensor], *, keep: bool
) -> Sequence[Tensor | None]:
    """torch.autograd.grad without create_graph, and without the checks it makes each time.

    They take as long as a small function's products.

    Args:
        cotangents: in the shapes and dtypes of the outputs.
        keep: the graph will be used again.
    """
    return _graph._engine_run_backward(
        tuple(outputs), tuple(cotangents), keep, False, tuple(inputs), True, accumulate_grad=False
    )


def sequence_number(node: Any) -> int:
    """Counts up with every node that autograd makes; leaves have the largest number there is."""
    return node._sequence_nr()
