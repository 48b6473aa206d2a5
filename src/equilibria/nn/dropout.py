"""Dropout with one mask per forward."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from equilibria import draws
from equilibria.nn.frozen import Frozen

__all__ = ["VariationalDropout", "dropout"]


class VariationalDropout(nn.Module):
    """Dropout whose mask stays the same in all evaluations of one forward of a `DEQ`.

    y = m * x, where the entries of m are 1 / (1 - p) with probability 1 - p, else 0; all are 0
    where p is 1. With a mask drawn anew at each evaluation there would be no fixed point. It holds
    in the backward of that forward too, whatever the layer did in between. In eval mode y = x.
    Outside a `DEQ` each call draws its mask.

    Two places of a cell that are to have masks of their own need two modules.

    Args:
        p: probability that an entry is dropped, in [0, 1].
        shared: axes, not the batch axis 0, along which the mask is constant: (1,) on
            (batch, time, width) drops a feature at all times, (2, 3) on
            (batch, channels, height, width) drops whole channels.

    Raises:
        ValueError: p is outside [0, 1], or axis 0 is among `shared`. In a call: the input has not
            the shape for which this forward's mask was drawn, or its first axis is not the batch.

    Source:
        Gal and Ghahramani 2016; Bai 2022 (thesis), ch. 3.
    """

    def __init__(self, p: float = 0.5, *, shared: Sequence[int] = ()) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p is the probability of dropping and must be in [0, 1], got {p}")
        if 0 in shared:
            raise ValueError("axis 0 is the batch, and every sample has a mask of its own")
        self.p = p
        self.shared = tuple(shared)

    def forward(self, x: Tensor) -> Tensor:
        frozen = Frozen.active()
        if frozen is None:
            mask = self._draw(x, x.shape[0])
            return x if mask is None else x * mask
        rows = frozen.rows
        if rows is not None and x.shape[0] != rows.shape[0]:
            raise ValueError(
                f"VariationalDropout got an input of shape {tuple(x.shape)} in an evaluation with "
                f"{rows.shape[0]} samples: its first axis must be the batch"
            )
        batch = x.shape[0] if rows is None or frozen.batch is None else frozen.batch
        mask = frozen.once(self, lambda: self._draw(x, batch))
        if mask is None:
            return x
        if rows is not None:
            mask = mask[rows]
        if mask.shape != self._mask_shape(x, x.shape[0]):
            raise ValueError(
                f"VariationalDropout has a mask of shape {tuple(mask.shape)} in this forward and "
                f"got an input of shape {tuple(x.shape)}: one module has one mask, use a second "
                "VariationalDropout at the second place"
            )
        return x * mask.to(x.dtype)

    def _mask_shape(self, x: Tensor, batch: int) -> torch.Size:
        shape = [batch, *x.shape[1:]]
        for axis in self.shared:
            if axis % x.ndim == 0:
                raise ValueError(
                    f"shared={self.shared} names the batch axis of an input with {x.ndim} axes"
                )
            shape[axis] = 1
        return torch.Size(shape)

    def _draw(self, x: Tensor, batch: int) -> Tensor | None:
        """Draw a mask for `batch` samples like those in x; None where nothing is dropped."""
        if not self.training or self.p == 0:
            return None
        mask = torch.empty(self._mask_shape(x, batch), dtype=x.dtype, device=x.device)
        return _drawn(mask, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}" + (f", shared={self.shared}" if self.shared else "")


def dropout(x: Tensor, p: float, training: bool, *, axis: int = 0) -> Tensor:
    """Return x with entries dropped, as `torch.nn.functional.dropout` does, each call anew.

    Args:
        x: any shape.
        p: probability that an entry is dropped, in [0, 1].
        training: whether any are.
        axis: along which samples are counted: each has a mask of its own, see `draws`.
    """
    if not training or p == 0:
        return x
    return x * _drawn(torch.empty_like(x, requires_grad=False), p, axis)


def _drawn(mask: Tensor, p: float, axis: int = 0) -> Tensor:
    """Fill a mask with 1 / (1 - p), with probability 1 - p, and 0."""
    return draws.for_samples(mask, draws.kept(p), axis=axis).div_(1 - p if p < 1 else 1.0)
