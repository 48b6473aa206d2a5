"""Correlation of the features of two images: of all pairs, or only where it is looked up."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.solve import without_autocast

# --- products -------------------------------------------------------------------------------------

# Inner products of given pairs of rows of two matrices, without keeping the gathered rows.


_NUMBERS = {"cpu": 1 << 17}
"""Numbers of the copies that are made at a time: half a MiB of float32, which the cache of a
processor holds; 256 MiB elsewhere."""


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
    return _contract("products", a, b, index, b.shape[0])


def _contract(kind: str, p: Tensor, q: Tensor, index: Tensor, rows: int) -> Tensor:
    return cast(Tensor, _Contraction.apply(kind, p, q, index, rows))


def _parts(index: Tensor, width: int) -> list[slice]:
    """Rows of the index whose gathered copies are made at a time."""
    rows, each = index.shape
    step = max(1, _NUMBERS.get(index.device.type, 1 << 26) // max(1, each * width))
    return [slice(begin, begin + step) for begin in range(0, rows, step)]


def _gather(b: Tensor, index: Tensor) -> Tensor:
    return b.index_select(0, index.reshape(-1)).reshape(*index.shape, b.shape[1])


def _products(a: Tensor, b: Tensor, index: Tensor, rows: int) -> Tensor:
    """(n, k): products[i, k] = <a[i], b[index[i, k]]>."""
    return torch.cat(
        [
            (a[part].unsqueeze(1) @ _gather(b, index[part]).transpose(1, 2)).squeeze(1)
            for part in _parts(index, a.shape[1])
        ]
    )


def _sums(g: Tensor, b: Tensor, index: Tensor, rows: int) -> Tensor:
    """(n, width): sums[i] = sum_k g[i, k] b[index[i, k]]."""
    return torch.cat(
        [
            (g[part].unsqueeze(1) @ _gather(b, index[part])).squeeze(1)
            for part in _parts(index, b.shape[1])
        ]
    )


def _scatter(g: Tensor, a: Tensor, index: Tensor, rows: int) -> Tensor:
    """(rows, width): scatter[j] = sum of g[i, k] a[i] where index[i, k] = j."""
    width = a.shape[1]
    total = (g.flatten()[0] * a[0]).new_zeros(rows, width)
    for part in _parts(index, width):
        each = g[part].unsqueeze(2) * a[part].unsqueeze(1)
        total.index_add_(0, index[part].reshape(-1), each.reshape(-1, width))
    return total


_KERNELS = {"products": _products, "sums": _sums, "scatter": _scatter}


class _Contraction(Function):
    """One of `_KERNELS`, each linear in its first two tensors; their derivatives are the others."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kind: str, p: Tensor, q: Tensor, index: Tensor, rows: int) -> Tensor:
        return _KERNELS[kind](p, q, index, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kind, *tensors, ctx.rows = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (p, q, index), (g,) = ctx.saved_tensors, grads
        adjoints: dict[str, tuple[tuple[str, Tensor, Tensor], tuple[str, Tensor, Tensor]]] = {
            "products": (("sums", g, q), ("scatter", g, p)),
            "sums": (("products", g, q), ("scatter", p, g)),
            "scatter": (("products", q, g), ("sums", p, g)),
        }
        of_p, of_q = adjoints[ctx.kind]
        _, first, second, *_ = ctx.needs_input_grad
        return (
            None,
            _contract(*of_p, index, ctx.rows) if first else None,
            _contract(*of_q, index, ctx.rows) if second else None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        p, q, index = ctx.saved_tensors
        _, dp, dq, *_ = tangents
        pairs = [(a, b) for a, b in ((dp, q), (p, dq)) if a is not None and b is not None]
        terms = [_contract(ctx.kind, *pair, index, ctx.rows) for pair in pairs]
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


# --- correlation ----------------------------------------------------------------------------------


CorrelationForm = Literal["all-pairs", "on-demand"]
"""Correlation by name; see `AllPairs` and `OnDemand`."""

SMALLEST = 2
"""Height and width of the coarsest level: aligned corners divide by one less."""

Pyramid = tuple[Tensor, ...]
"""What is computed once per pair of images, tensors with the batch first: an operand of a cell."""


@dataclass(frozen=True, kw_only=True)
class Correlation(abc.ABC):
    """C(f)[i, j] = <u1[i, j], u2[(i, j) + f[i, j] + d]> / sqrt(channels), at several resolutions.

    At level k the second features are averaged over squares of 2^k pixels, the position is divided
    by 2^k, and d runs over the (2 radius + 1)^2 whole displacements of a window. Between pixels the
    correlation is bilinear, corners being centres of pixels; outside it is 0.

    Attributes:
        levels: resolutions, at least 1.
        radius: of the window, in pixels of each level, at least 0.

    Raises:
        ValueError: levels below 1, radius below 0.

    papers: Teed and Deng 2020, sec. 3.2; Bai 2022 (thesis), eq. 7.1.
    """

    levels: int = 4
    radius: int = 4

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "levels")
        check_fields(self, "[0, inf)", "radius")

    @property
    def channels(self) -> int:
        """Channels of what is looked up."""
        return self.levels * (2 * self.radius + 1) ** 2

    def check(self, height: int, width: int) -> None:
        """Refuse features whose coarsest level is smaller than 2 x 2 pixels.

        Raises:
            ValueError: height or width of the features is below 2^levels.
        """
        coarsest = height >> (self.levels - 1), width >> (self.levels - 1)
        if min(coarsest) < SMALLEST:
            raise ValueError(
                f"the coarsest of {self.levels} correlation levels of {height} x {width} features "
                f"would have {coarsest[0]} x {coarsest[1]} pixels, and needs 2 x 2: take larger "
                "images or fewer levels"
            )

    def sizes(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return height and width of each level, the finest first."""
        return [(height >> level, width >> level) for level in range(self.levels)]

    def pyramid(self, first: Tensor, second: Tensor) -> Pyramid:
        """Return what lookups read, computed once of a pair.

        Args:
            first: (batch, channels, height, width) features of the first image, at least float32.
            second: the second's, of the same shape.

        Raises:
            ValueError: the shapes differ, or the coarsest level is under 2 pixels.
        """
        if first.shape != second.shape:
            raise ValueError(
                "the features of both images must have the same shape; got "
                f"{tuple(first.shape)} and {tuple(second.shape)}"
            )
        self.check(*first.shape[2:])
        # Half precision would leave 3 digits of a sum over the channels.
        with without_autocast(first.device.type):
            wide = torch.promote_types(first.dtype, torch.float32)
            first = first.to(wide) / first.shape[1] ** 0.5
            return self._pyramid(first, second.to(wide))

    def lookup(self, pyramid: Pyramid, flow: Tensor) -> Tensor:
        """Return the correlation around where each pixel has gone.

        Args:
            pyramid: of the pair.
            flow: (batch, 2, height, width), to the right and downwards, in pixels of the features.

        Returns:
            (batch, levels (2 radius + 1)^2, height, width); within a level, displacements to the
            right are the slower index and downwards the faster.
        """
        batch, _, height, width = flow.shape
        with without_autocast(flow.device.type):
            x, y = (each.flatten(1) for each in flow.unbind(1))
            columns = torch.arange(width, device=flow.device, dtype=flow.dtype)
            rows = torch.arange(height, device=flow.device, dtype=flow.dtype)
            x = x + columns.repeat(height)
            y = y + rows.repeat_interleave(width)
            found = [
                self._level(pyramid, level, size, x / 2**level, y / 2**level)
                for level, size in enumerate(self.sizes(height, width))
            ]
            return torch.cat(found, 2).transpose(1, 2).reshape(batch, -1, height, width)

    def _level(
        self, pyramid: Pyramid, level: int, size: tuple[int, int], x: Tensor, y: Tensor
    ) -> Tensor:
        """(batch, positions, window) correlation of one level at positions (batch, positions)."""
        # All samples of a window lie at the same place between pixels: with one more row and
        # column of whole pixels, four weights make them all.
        rows, in_rows, down = _surround(y, size[0], self.radius)
        columns, in_columns, along = _surround(x, size[1], self.radius)
        index = columns.unsqueeze(3) + rows.unsqueeze(2) * size[1]
        inside = in_columns.unsqueeze(3) * in_rows.unsqueeze(2)
        found = self._at(pyramid, level, index.flatten(2)).unflatten(2, inside.shape[2:]) * inside
        found = found[:, :, :-1].lerp(found[:, :, 1:], along[..., None, None])
        found = found[..., :-1].lerp(found[..., 1:], down[..., None, None])
        return found.flatten(2)

    def bytes(self, batch: int, height: int, width: int, channels: int) -> int:
        """Return the memory of the pyramid in float32, in bytes, before it is allocated.

        In training the gradient takes as much once more.

        Args:
            batch: pairs of images.
            height: of the features, an eighth of the images'.
            width: of the features.
            channels: of the features.
        """
        return 4 * batch * self._numbers(height, width, channels)

    @abc.abstractmethod
    def _pyramid(self, first: Tensor, second: Tensor) -> Pyramid:
        """The pyramid of features in full precision."""

    @abc.abstractmethod
    def _at(self, pyramid: Pyramid, level: int, index: Tensor) -> Tensor:
        """(batch, positions, n) correlation with the pixels (batch, positions, n) of a level."""

    @abc.abstractmethod
    def _numbers(self, height: int, width: int, channels: int) -> int:
        """Numbers in the pyramid of one pair."""


@dataclass(frozen=True, kw_only=True)
class AllPairs(Correlation):
    """The correlation of every pixel with every other, computed once.

    A lookup only reads; memory is quadratic in the number of pixels, 5.6 GB for a pair of
    1080 x 1920.
    """

    @override
    def _pyramid(self, first: Tensor, second: Tensor) -> Pyramid:
        volume = first.flatten(2).transpose(1, 2) @ second.flatten(2)
        volumes = [volume.unflatten(2, second.shape[2:])]
        while len(volumes) < self.levels:
            volumes.append(functional.avg_pool2d(volumes[-1], 2))
        return tuple(volumes)

    @override
    def _at(self, pyramid: Pyramid, level: int, index: Tensor) -> Tensor:
        return pyramid[level].flatten(2).gather(2, index)

    @override
    def _numbers(self, height: int, width: int, channels: int) -> int:
        del channels
        return height * width * sum(h * w for h, w in self.sizes(height, width))


@dataclass(frozen=True, kw_only=True)
class OnDemand(Correlation):
    """The correlation where it is looked up, recomputed by each lookup.

    Averages of inner products are inner products with averages, so the values are those of
    `AllPairs`. Memory is linear in the number of pixels; a lookup takes `channels` times the work.
    """

    @override
    def _pyramid(self, first: Tensor, second: Tensor) -> Pyramid:
        levels = [second]
        while len(levels) < self.levels:
            levels.append(functional.avg_pool2d(levels[-1], 2))
        # A pixel's channels lie together, as they are read.
        return tuple(each.flatten(2).transpose(1, 2).contiguous() for each in (first, *levels))

    @override
    def _at(self, pyramid: Pyramid, level: int, index: Tensor) -> Tensor:
        first, second = pyramid[0], pyramid[level + 1]
        batch, pixels, _ = second.shape
        begins = torch.arange(batch, device=index.device)[:, None, None] * pixels
        index = (index + begins).flatten(0, 1)
        return products(first.flatten(0, 1), second.flatten(0, 1), index).unflatten(
            0, first.shape[:2]
        )

    @override
    def _numbers(self, height: int, width: int, channels: int) -> int:
        return channels * (height * width + sum(h * w for h, w in self.sizes(height, width)))


def correlation(form: CorrelationForm, levels: int, radius: int) -> Correlation:
    """Return the correlation of that name.

    Raises:
        ValueError: there is none, levels below 1, radius below 0.
    """
    forms = {"all-pairs": AllPairs, "on-demand": OnDemand}
    if form not in forms:
        raise ValueError(f"correlation must be 'all-pairs' or 'on-demand'; got {form!r}")
    return forms[form](levels=levels, radius=radius)


def _surround(position: Tensor, size: int, radius: int) -> tuple[Tensor, Tensor, Tensor]:
    """The whole pixels around positions along one axis.

    Returns:
        Their places within the axis, int64, (batch, positions, 2 radius + 2); 1 for what is and 0
        for what was beyond its ends; and how far past the middle one positions lie, in [0, 1).
    """
    base = position.detach().floor()
    offsets = torch.arange(-radius, radius + 2, device=base.device, dtype=base.dtype)
    # Held near the axis first: what is not finite, or beyond int64, has no place.
    near = base.nan_to_num(0.0).clamp(-2.0 - radius, size + radius + 1.0)
    around = near.unsqueeze(2) + offsets
    inside = ((around >= 0) & (around <= size - 1)).to(base.dtype)
    return around.clamp(0, size - 1).long(), inside, position - base
