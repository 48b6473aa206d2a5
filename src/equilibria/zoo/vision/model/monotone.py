"""Monotone equilibrium networks, whose fixed point exists and is unique whatever the weights."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrize import register_parametrization
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import DEQ
from equilibria.run.models.base import EquilibriumModel
from equilibria.solve import Jacobian, Point, Rows, Solver, Stepper
from equilibria.zoo.vision.model.config import VisionConfig

# --- monotone map ---------------------------------------------------------------------------------

# The linear map of a monotone equilibrium network, and the inverse that its splitting takes.


States = Sequence[Tensor]
"""One tensor (batch, channels, height, width) for each resolution, the highest first."""


class MonotoneMap(nn.Module):
    """W = (1 - m) I - A^T A + B - B^T, so that z^T (I - W) z >= m ||z||^2 for all z.

    A and B are circular convolutions of each resolution and, between one resolution and the next,
    of stride 2; a single place and kernels of 1x1 make dense matrices of them. Their kernels are
    length times direction.

    Args:
        channels: of each resolution.
        places: height and width of each; half of those before it.
        kernel: width of the kernels, odd.
        m: how strongly monotone I - W is, positive.

    papers: Winston and Kolter 2020, proposition 1 and sec. 4; with several resolutions A and B are
    block bidiagonal, where the paper's W is block triangular.
    """

    def __init__(
        self, channels: Sequence[int], places: Sequence[tuple[int, int]], *, kernel: int, m: float
    ) -> None:
        super().__init__()
        self.shapes = tuple((c, *hw) for c, hw in zip(channels, places, strict=True))
        self.m = m
        self.maps = {"a": None, "b": None}  # W is made of them: no ensemble of matrices is W
        self.a = Coupling(channels, kernel)
        self.b = Coupling(channels, kernel)

    def forward(self, z: States) -> list[Tensor]:
        """Return W z."""
        square = self.a.apply_transpose(self.a(z))
        skew = self.b.skew(z)
        parts = zip(z, square, skew, strict=True)
        return [(1.0 - self.m) * own - root + turn for own, root, turn in parts]


class Coupling(nn.Module):
    """A block bidiagonal matrix of circular convolutions: y_i = K_i * z_i + D_i * z_(i-1).

    K_i keeps the resolution, D_i has stride 2.

    Args:
        channels: of each resolution.
        kernel: width of the kernels, odd.
    """

    def __init__(self, channels: Sequence[int], kernel: int) -> None:
        super().__init__()
        self.same = nn.ModuleList(_kernel(c, c, kernel) for c in channels)
        self.down = nn.ModuleList(
            _kernel(above, below, kernel) for above, below in pairwise(channels)
        )

    def forward(self, z: States) -> list[Tensor]:
        """Return the product with z."""
        out = [_circular(x, k) for x, k in zip(z, _weights(self.same), strict=True)]
        for i, kernel in enumerate(_weights(self.down)):
            out[i + 1] = out[i + 1] + _circular(z[i], kernel, stride=2)
        return out

    def apply_transpose(self, y: States) -> list[Tensor]:
        """Return the product of the transposed matrix with y."""
        out = [
            _circular(x, _transpose_kernel(k)) for x, k in zip(y, _weights(self.same), strict=True)
        ]
        for i, kernel in enumerate(_weights(self.down)):
            out[i] = out[i] + _circular(_spread(y[i + 1]), _transpose_kernel(kernel))
        return out

    def skew(self, z: States) -> list[Tensor]:
        """Return the product of the matrix less its transpose with z."""
        out = [
            _circular(x, k - _transpose_kernel(k))
            for x, k in zip(z, _weights(self.same), strict=True)
        ]
        for i, kernel in enumerate(_weights(self.down)):
            out[i + 1] = out[i + 1] + _circular(z[i], kernel, stride=2)
            out[i] = out[i] - _circular(_spread(z[i + 1]), _transpose_kernel(kernel))
        return out


class Resolvent:
    """V = (I + alpha (I - W))^-1, by Fourier transform.

    Gathered into channels of the lowest resolution, the state is moved by W as it is itself: shifts
    of that grid commute with W. So W is a matrix for each frequency there, which is read from its
    answers to impulses and inverted. Costs one application of W to as many samples as there are
    gathered channels, and an inverse a frequency.

    Args:
        linear: W.
        alpha: step.
    """

    def __init__(self, linear: MonotoneMap, alpha: float) -> None:
        self.shapes = linear.shapes
        weight = next(linear.parameters())
        _, height, width = self.shapes[-1]
        self.factors = [shape[1] // height for shape in self.shapes]
        self.gathered = [s[0] * f**2 for s, f in zip(self.shapes, self.factors, strict=True)]
        count = sum(self.gathered)
        impulses = weight.new_zeros(count, count, height, width)
        impulses[:, :, 0, 0] = torch.eye(count, dtype=weight.dtype, device=weight.device)
        answers = self._gather(linear(self._scatter(impulses)))
        by_frequency = torch.fft.rfft2(answers).permute(2, 3, 1, 0)  # the row is the output
        identity = torch.eye(count, dtype=weight.dtype, device=weight.device)
        self.inverse = torch.linalg.inv((1.0 + alpha) * identity - alpha * by_frequency)

    def __call__(self, z: States) -> list[Tensor]:
        """Return V z."""
        size = self.shapes[-1][1:]
        columns = torch.fft.rfft2(self._gather(z)).permute(2, 3, 1, 0)
        solved = (self.inverse @ columns).permute(3, 2, 0, 1)
        return self._scatter(torch.fft.irfft2(solved, s=size))

    def _gather(self, z: States) -> Tensor:
        parts = zip(z, self.factors, strict=True)
        return torch.cat([functional.pixel_unshuffle(x, factor) for x, factor in parts], dim=1)

    def _scatter(self, joined: Tensor) -> list[Tensor]:
        parts = zip(joined.split(self.gathered, dim=1), self.factors, strict=True)
        return [functional.pixel_shuffle(x, factor) for x, factor in parts]


class _Length(nn.Module):
    """A kernel as its length times its direction."""

    def __init__(self) -> None:
        super().__init__()
        self.length = nn.Parameter(torch.ones(()))

    @override
    def forward(self, direction: Tensor) -> Tensor:
        return self.length * direction / direction.square().sum().sqrt()


def _kernel(inputs: int, outputs: int, kernel: int) -> nn.Module:
    """A module whose `weight` is a kernel of length 1, at the start."""
    conv = nn.Conv2d(inputs, outputs, kernel, bias=False)
    register_parametrization(conv, "weight", _Length())
    return conv


def _weights(modules: nn.ModuleList) -> list[Tensor]:
    return [module.weight for module in modules if isinstance(module, nn.Conv2d)]


def _circular(x: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    edge = kernel.shape[-1] // 2
    if edge:
        x = functional.pad(x, (edge, edge, edge, edge), mode="circular")
    return functional.conv2d(x, kernel, stride=stride)


def _transpose_kernel(kernel: Tensor) -> Tensor:
    """The kernel of the transposed convolution."""
    return kernel.transpose(0, 1).flip(2, 3)


def _spread(x: Tensor) -> Tensor:
    """Every second place of a grid of twice the size: what a stride of 2 has for its transpose."""
    batch, channels, height, width = x.shape
    spread = functional.pad(x[:, :, :, None, :, None], (0, 1, 0, 0, 0, 1))
    return spread.reshape(batch, channels, 2 * height, 2 * width)


# --- monotone -------------------------------------------------------------------------------------


BORDER = 1
"""Places at the lowest resolution, on each side, that are kept at zero around an image."""


@dataclass(frozen=True, kw_only=True)
class MonotoneConvConfig(VisionConfig):
    """The architecture of a convolutional monotone equilibrium network.

    On 3 x 16 x 16 with 10 classes, channels (48,) have 50,508 parameters and (16, 32) 40,432.

    Args:
        channels: of each resolution of the state, the highest first, each half of the one before.
        m: how strongly monotone the operator is, positive; the larger, the faster the solves and
            the smaller the family of functions.
        squares: squares along each side over which each resolution is averaged for the classifier.
    """

    channels: tuple[int, ...] = (48,)
    m: float = 1.0
    squares: int = 4

    @override
    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "channels", "squares")
        _check_m(self.m)
        super().__post_init__()

    @property
    @override
    def min_size(self) -> int:
        return 2 ** (len(self.channels) - 1)

    @property
    @override
    def remedy(self) -> str:
        return f"take larger images, or fewer resolutions (channels: {self.channels})"

    @override
    def build(self, **layer: Any) -> MonotoneConv:
        return MonotoneConv(self, **layer)


@dataclass(frozen=True, kw_only=True)
class MonotoneDenseConfig(VisionConfig):
    """The architecture of a monotone equilibrium network without a grid.

    Args:
        width: entries of the state.
        m: how strongly monotone the operator is, positive; the larger, the faster the solves and
            the smaller the family of functions.
    """

    width: int = 100
    m: float = 1.0

    @override
    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "width")
        _check_m(self.m)
        super().__post_init__()

    @override
    def build(self, **layer: Any) -> MonotoneDense:
        return MonotoneDense(self, **layer)


class MonotoneCell(nn.Module):
    """f(y; u) = W relu(y) + u, with I - W strongly monotone.

    y = f(y; u) and z = relu(W z + u) are one equation, with z = relu(y) and y = W z + u. The state
    is y, not z: f(y) then tells a splitting method what it needs, W z + u before the relu, and the
    residual of a state is the same number for every solver.

    In the border around an image z is kept at zero, so that circular convolutions don't reach
    around it.

    Args:
        linear: W.
        inner: for each resolution first and last row, and first and last column, inside the border.
    """

    def __init__(
        self, linear: MonotoneMap, inner: Sequence[tuple[int, int, int, int]] | None = None
    ) -> None:
        super().__init__()
        self.linear = linear
        self.inner = tuple(inner) if inner is not None else None

    def forward(self, y: Sequence[Tensor], u: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Evaluate f once; `u` is the injection, of the state's shapes."""
        image = self.linear(self.activate(y))
        return tuple((w + x).contiguous() for w, x in zip(image, u, strict=True))

    def activate(self, y: Sequence[Tensor]) -> list[Tensor]:
        """Return z = relu(y), and zero in the border."""
        return [self._fill_border(torch.relu(x), 0.0, i) for i, x in enumerate(y)]

    def lift(self, z: Sequence[Tensor], y: Sequence[Tensor]) -> list[Tensor]:
        """Return the state that `activate` makes `z` of and that is nearest to `y`."""
        out: list[Tensor] = []
        for i, (one, other) in enumerate(zip(z, y, strict=True)):
            lifted = torch.where(one > 0, one, other.clamp(max=0.0))
            out.append(self._fill_border(lifted, other, i))
        return out

    def _fill_border(self, x: Tensor, border: Tensor | float, i: int) -> Tensor:
        """`x` inside and `border` in the border of resolution `i`."""
        if self.inner is None:
            return x
        top, bottom, left, right = self.inner[i]
        rows = torch.arange(x.shape[2], device=x.device)
        columns = torch.arange(x.shape[3], device=x.device)
        inside = ((rows >= top) & (rows < bottom))[:, None] & (columns >= left) & (columns < right)
        return torch.where(inside, x, border)


class MonotoneConv(EquilibriumModel):
    """z* = relu(W z* + U x + b) on one or several grids, logits from means over squares of them.

    The solvers `ForwardBackward` and `PeacemanRachford` are made for it; every other one serves
    too. With several resolutions x enters at the highest.

    papers: Winston and Kolter 2020, sec. 4.
    """

    def __init__(self, config: MonotoneConvConfig, **layer: Any) -> None:
        super().__init__()
        (inputs, height, width), classes = config.require_shape()
        self.config = config
        coarse = 2 ** (len(config.channels) - 1)
        margin = BORDER * coarse
        full = [_multiple(side + 2 * margin, coarse) for side in (height, width)]
        self.margins = (*(margin, full[1] - width - margin), *(margin, full[0] - height - margin))
        factors = [2**i for i in range(len(config.channels))]
        self.embed = nn.Conv2d(inputs, config.channels[0], 3, padding=1)
        self.bias = nn.ParameterList(
            nn.Parameter(torch.zeros(count)) for count in config.channels[1:]
        )
        places = [(full[0] // k, full[1] // k) for k in factors]
        inner = [
            (
                *(margin // k, margin // k + math.ceil(height / k)),
                *(margin // k, margin // k + math.ceil(width / k)),
            )
            for k in factors
        ]
        linear = MonotoneMap(config.channels, places, kernel=3, m=config.m)
        self.deq = DEQ(MonotoneCell(linear, inner), **layer)
        self.inner, self.shapes = inner, linear.shapes
        self.head = nn.Linear(sum(config.channels) * config.squares**2, classes)

    @override
    def inject(self, x: Tensor) -> tuple[tuple[Tensor, ...]]:
        """Return U x + b at every resolution, for images (batch, channels, height, width)."""
        self.config.check(x)
        first = functional.pad(self.embed(x), self.margins).contiguous()
        _, *lower = self.shapes
        rest = (
            bias[:, None, None].expand(len(x), *shape).contiguous()
            for bias, shape in zip(self.bias, lower, strict=True)
        )
        return ((first, *rest),)

    @override
    def readout(self, z: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes) of the state, before its relu."""
        squares = []
        for y, (top, bottom, left, right) in zip(z, self.inner, strict=True):
            image = torch.relu(y[:, :, top:bottom, left:right])
            squares.append(functional.adaptive_avg_pool2d(image, self.config.squares).flatten(1))
        return self.head(torch.cat(squares, dim=1))


class MonotoneDense(EquilibriumModel):
    """z* = relu(W z* + U x + b), logits = V z* + c, for flattened images.

    The solvers `ForwardBackward` and `PeacemanRachford` are made for it; every other one serves
    too. The state has its entries for channels of a grid of one place.

    papers: Winston and Kolter 2020, sec. 4.
    """

    def __init__(self, config: MonotoneDenseConfig, **layer: Any) -> None:
        super().__init__()
        shape, classes = config.require_shape()
        self.config = config
        self.embed = nn.Linear(math.prod(shape), config.width)
        linear = MonotoneMap([config.width], [(1, 1)], kernel=1, m=config.m)
        self.deq = DEQ(MonotoneCell(linear), **layer)
        self.head = nn.Linear(config.width, classes)

    @override
    def inject(self, x: Tensor) -> tuple[tuple[Tensor]]:
        """Return U x + b, (batch, width, 1, 1), for images (batch, channels, height, width)."""
        self.config.check(x)
        return ((self.embed(x.flatten(1))[:, :, None, None],),)

    @override
    def readout(self, z: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes) of the state, before its relu."""
        return self.head(torch.relu(z[0]).flatten(1))


def _check_m(m: float) -> None:
    if not 0.0 < m < math.inf:
        raise ValueError(f"m must be positive, or the fixed point need not exist; got {m}")


def _multiple(number: int, of: int) -> int:
    """The smallest multiple of `of` that is at least `number`."""
    return -(-number // of) * of


# --- monotone solvers -----------------------------------------------------------------------------

# Operator splitting: the methods that are made for monotone equilibrium networks.


class _Splitter(Stepper):
    """z and y as images, and back to the rows of a state.

    Args:
        cell: whose states are contiguous, so that a row lies as its image does.
        alpha: step.
    """

    def __init__(self, cell: MonotoneCell, alpha: float) -> None:
        self.cell, self.alpha = cell, alpha
        self.shapes = cell.linear.shapes

    @override
    def step(self, now: Point) -> Rows:
        y = self._images(now.f)
        z = self.next(now, self.cell.activate(self._images(now.z)), y)
        return [image.flatten(1) for image in self.cell.lift(z, y)]

    @abc.abstractmethod
    def next(self, now: Point, z: list[Tensor], y: list[Tensor]) -> list[Tensor]:
        """The next z, from z and y = W z + u."""

    @override
    def select(self, index: Tensor) -> None:
        pass

    def _images(self, rows: Rows) -> list[Tensor]:
        return [row.reshape(-1, *shape) for row, shape in zip(rows, self.shapes, strict=True)]


class _ForwardBackward(_Splitter):
    @override
    def next(self, now: Point, z: list[Tensor], y: list[Tensor]) -> list[Tensor]:
        return self.cell.activate([torch.lerp(a, b, self.alpha) for a, b in zip(z, y, strict=True)])


class _PeacemanRachford(_Splitter):
    def __init__(self, cell: MonotoneCell, alpha: float) -> None:
        super().__init__(cell, alpha)
        self.inverse = Resolvent(cell.linear, alpha)
        self.u: list[Tensor] = []  # relu(u) is z, at the newest evaluation

    @override
    def next(self, now: Point, z: list[Tensor], y: list[Tensor]) -> list[Tensor]:
        u = self.u or self._images(now.z)
        parts = zip(z, y, u, strict=True)
        moved = self.inverse([a - c + self.alpha * (b - a) for a, b, c in parts])
        self.u = [a + 2.0 * b for a, b in zip(u, moved, strict=True)]
        return self.cell.activate(self.u)

    @override
    def select(self, index: Tensor) -> None:
        self.u = [u.index_select(0, index) for u in self.u]


@dataclass(frozen=True, kw_only=True)
class Splitting(Solver, abc.ABC):
    """A splitting method for z = relu(W z + u), of a monotone model alone.

    One evaluation is one of the cell's f, with one application of W, as for any other solver, and
    the residual that it converges in is that of f too.

    Attributes:
        alpha: step, positive.

    Raises:
        TypeError: the solver is used on another cell, by `fixed_point`, or in backward.
    """

    alpha: float = 1.0
    _stepper: ClassVar[type[_Splitter]]

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "alpha")

    @override
    def bound_to(self, cell: object) -> Solver:
        if not isinstance(cell, MonotoneCell):
            raise self._refusal(f"the cell {type(cell).__name__}")
        return _Bound(**self.limits, splitting=self, cell=cell)

    @override
    def start(self, tracked: bool, jacobian: Jacobian | None) -> Stepper:
        raise self._refusal("this equation")

    def _refusal(self, what: str) -> TypeError:
        return TypeError(
            f"{type(self).__name__} splits z = relu(W z + u) of a monotone model, which {what} is "
            "not: take another solver, such as eq.Anderson()"
        )


@dataclass(frozen=True, kw_only=True)
class ForwardBackward(Splitting):
    """z <- relu(z - alpha (z - W z - u)), forward-backward splitting.

    Converges for alpha < 2 m / L^2, L the norm of I - W. With alpha = 1 it is plain iteration.
    History: none.

    Source: Winston and Kolter 2020, sec. 3.3.
    """

    _stepper = _ForwardBackward


@dataclass(frozen=True, kw_only=True)
class PeacemanRachford(Splitting):
    """u <- R_W(R_relu(u)), z = relu(u): Peaceman-Rachford splitting.

    R_W = 2 (I + alpha (I - W))^-1 (. + alpha b) - I reflects at the linear part, whose inverse is
    computed once per solve, and R_relu = 2 relu - I at the other. Converges for every alpha > 0.
    Written with the evaluation y = W z + b that every step takes anyway,

        u <- u + 2 (I + alpha (I - W))^-1 (z - u + alpha (y - z)).

    Besides its evaluations, a step applies the inverse once. History: u, one vector of the size of
    the state; the inverse, for each frequency of the lowest resolution a square matrix of its
    channels and those that lie above them.

    Source: Winston and Kolter 2020, sec. 3.3.
    """

    _stepper = _PeacemanRachford


@dataclass(frozen=True, kw_only=True)
class _Bound(Solver):
    """A splitting method with the cell that it splits."""

    splitting: Splitting
    cell: MonotoneCell

    @override
    def start(self, tracked: bool, jacobian: Jacobian | None) -> Stepper:
        with torch.set_grad_enabled(tracked):
            return self.splitting._stepper(self.cell, self.splitting.alpha)
