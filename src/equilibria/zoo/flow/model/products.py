"""Inner products of given pairs of rows of two matrices, without keeping the gathered rows."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd import Function

__all__ = ["products"]

_NUMBERS = {"cpu": 1 << 17}
"""Numbers of the copies that are made at a time: half a MiB of float32, which the cache of a
processor holds; 256 MiB elsewhere."""


class _Saved(Protocol):
    """What the context of a `Function` offers here."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


def products(a: Tensor, b: Tensor, index: Tensor) -> Tensor:
    """Return c with c[i, k] = <a[i], b[index[i, k]]>.

    Written as a gather and a product, autograd would keep a copy of the gathered rows, (n, k,
    width) numbers, for each evaluation. Here they are gathered anew in backward, a part at a time.
    Differentiable to any order, forward and backward, in a and b.

    Args:
        a: (n, width).
        b: (m, width).
        index: (n, k) int64, rows of b.

    Returns:
        (n, k).
    """
    return cast(Tensor, _Products.apply(a, b, index))


def _parts(index: Tensor, width: int) -> list[slice]:
    """Rows of the index whose gathered copies are made at a time."""
    rows, each = index.shape
    step = max(1, _NUMBERS.get(index.device.type, 1 << 26) // max(1, each * width))
    return [slice(begin, begin + step) for begin in range(0, rows, step)]


def _gathered(b: Tensor, index: Tensor) -> Tensor:
    return b.index_select(0, index.reshape(-1)).reshape(*index.shape, b.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)
    ctx.save_for_forward(*inputs)


def _save_rows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.rows = inputs
    _save(ctx, tuple(tensors), output)


class _Products(Function):
    """(a, b, index) -> (n, k): products[i, k] = <a[i], b[index[i, k]]>."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(a: Tensor, b: Tensor, index: Tensor) -> Tensor:
        return torch.cat(
            [
                (a[part].unsqueeze(1) @ _gathered(b, index[part]).transpose(1, 2)).squeeze(1)
                for part in _parts(index, a.shape[1])
            ]
        )

    @staticmethod
    def backward(ctx: _Saved, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, b, index = ctx.saved_tensors
        (g,) = grads
        return (
            _Sums.apply(g, b, index) if ctx.needs_input_grad[0] else None,
            _Scattered.apply(g, a, index, b.shape[0]) if ctx.needs_input_grad[1] else None,
            None,
        )

    @staticmethod
    def jvp(ctx: _Saved, *tangents: Tensor | None) -> Tensor:
        a, b, index = ctx.saved_tensors
        da, db, _ = tangents
        return _total(
            None if da is None else _Products.apply(da, b, index),
            None if db is None else _Products.apply(a, db, index),
        )


class _Sums(Function):
    """(g, b, index) -> (n, width): sums[i] = sum_k g[i, k] b[index[i, k]]."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save)

    @staticmethod
    def forward(g: Tensor, b: Tensor, index: Tensor) -> Tensor:
        return torch.cat(
            [
                (g[part].unsqueeze(1) @ _gathered(b, index[part])).squeeze(1)
                for part in _parts(index, b.shape[1])
            ]
        )

    @staticmethod
    def backward(ctx: _Saved, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, b, index = ctx.saved_tensors
        (s,) = grads
        return (
            _Products.apply(s, b, index) if ctx.needs_input_grad[0] else None,
            _Scattered.apply(g, s, index, b.shape[0]) if ctx.needs_input_grad[1] else None,
            None,
        )

    @staticmethod
    def jvp(ctx: _Saved, *tangents: Tensor | None) -> Tensor:
        g, b, index = ctx.saved_tensors
        dg, db, _ = tangents
        return _total(
            None if dg is None else _Sums.apply(dg, b, index),
            None if db is None else _Sums.apply(g, db, index),
        )


class _Scattered(Function):
    """(g, a, index, m) -> (m, width): scattered[j] = sum of g[i, k] a[i] where index[i, k] = j."""

    generate_vmap_rule = True
    setup_context = staticmethod(_save_rows)

    @staticmethod
    def forward(g: Tensor, a: Tensor, index: Tensor, rows: int) -> Tensor:
        width = a.shape[1]
        total = (g.flatten()[0] * a[0]).new_zeros(rows, width)
        for part in _parts(index, width):
            each = g[part].unsqueeze(2) * a[part].unsqueeze(1)
            total.index_add_(0, index[part].reshape(-1), each.reshape(-1, width))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, a, index = ctx.saved_tensors
        (s,) = grads
        return (
            _Products.apply(a, s, index) if ctx.needs_input_grad[0] else None,
            _Sums.apply(g, s, index) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        g, a, index = ctx.saved_tensors
        dg, da, *_ = tangents
        return _total(
            None if dg is None else _Scattered.apply(dg, a, index, ctx.rows),
            None if da is None else _Scattered.apply(g, da, index, ctx.rows),
        )


def _total(*terms: Any) -> Tensor:
    given = [term for term in terms if term is not None]
    return given[0] if len(given) == 1 else given[0] + given[1]
