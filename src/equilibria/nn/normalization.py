"""Weight and spectral normalisation of the linear and convolutional layers in a module.

Both are torch parametrisations: the module trains the original tensors and computes its weight from
them. A `DEQ` computes it once per forward and not once per evaluation.
"""

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import (
    _ConvNd,  # pyright: ignore[reportPrivateUsage]
    _ConvTransposeNd,  # pyright: ignore[reportPrivateUsage]
)
from torch.nn.utils import parametrize

from equilibria.checks import check_within
from equilibria.nn.frozen import walk_modules
from equilibria.solve import without_autocast

_linalg: Any = torch.linalg  # whose stubs leave functions untyped
_Module = TypeVar("_Module", bound=nn.Module)


def weight_norm(module: _Module) -> _Module:
    """Write the weights of linear and convolutional layers as length times direction, g v / |v|.

    There is one g for each output; at first w is what it was. The state dict is that of torch's
    `parametrizations.weight_norm`, whose fused operation has wrong second derivatives (torch 2.13).

    Args:
        module: one such layer or any module that contains some; changed in place.

    Returns:
        The same module.

    Raises:
        ValueError: it contains no such layer; a weight is shared by two layers, is already
            normalised, not yet initialised, or all zero for some output (it has no direction).

    Source:
        Salimans and Kingma 2016; Bai 2022 (thesis), sec. 4.2.4.
    """
    targets = _targets(module)
    for path, layer in targets:
        if layer.weight.is_meta:  # no values to look at, for counting parameters
            continue
        if bool((torch.norm_except_dim(layer.weight, 2, _output_axis(layer)) == 0).any()):
            raise ValueError(
                f"'{path}' has an output whose weights are all zero, so they have no direction: "
                "initialise it before weight_norm"
            )
    for _, layer in targets:
        parametrization = LengthAndDirection(_output_axis(layer))
        parametrize.register_parametrization(layer, "weight", parametrization)
    return module


def spectral_norm(module: _Module, bound: float = 1.0, squarings: int = 5) -> _Module:
    """Keep the norm of every linear and convolutional map at most `bound`, w = v min(1, bound / s).

    For a linear map s is an upper bound on its largest singular value, the Schatten norm of order
    p = 2^(squarings + 2): it is too large by a factor rank^(1/p) at most, 3 % for 64 equal singular
    values, and exact for rank one. Unlike power iteration it errs on the safe side, keeps no
    vectors from call to call, and is differentiable to any order.

    For a convolution s is that of the flattened kernel times the square root of the kernel's area,
    since each entry of the input lies in that many patches at most: a bound for every image size,
    stride, dilation and zero padding, about twice the norm for random 3x3 kernels.

    Args:
        module: one such layer or any module that contains some; changed in place.
        bound: largest norm, > 0; below 1 makes z -> W z a contraction.
        squarings: squarings of the smaller Gram matrix v v^T each time the weight is computed.

    Returns:
        The same module.

    Raises:
        ValueError: bound is not positive or squarings negative; the module contains no such layer;
            a weight is shared by two layers, already normalised or not yet initialised.

    Source:
        Delattre et al. 2023 (Gram iteration); Tsuzuku et al. 2018, sec. 3.4 (convolutions);
        Bai 2022 (thesis), ch. 8.
    """
    if not (math.isfinite(bound) and bound > 0):
        raise ValueError(f"bound is the largest norm of a weight and must be positive, got {bound}")
    check_within("[0, inf)", squarings=squarings)
    for _, layer in _targets(module):
        parametrize.register_parametrization(layer, "weight", _BoundedNorm(bound, squarings))
    return module


class LengthAndDirection(nn.Module):
    """The parametrisation (g, v) -> g v / |v|, with a norm for each index of one axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, length: Tensor, direction: Tensor) -> Tensor:
        return direction * (length / torch.norm_except_dim(direction, 2, self.axis))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return torch.norm_except_dim(weight, 2, self.axis), weight

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


class _BoundedNorm(nn.Module):
    """The parametrisation v -> v min(1, bound / s(v)); see `spectral_norm`."""

    def __init__(self, bound: float, squarings: int) -> None:
        super().__init__()
        self.bound = bound
        self.squarings = squarings

    def forward(self, weight: Tensor) -> Tensor:
        if weight.is_meta:  # no values to look at, for counting parameters
            return weight
        area = weight[0, 0].numel()
        with without_autocast(weight.device.type):
            wide = weight.flatten(1).to(torch.promote_types(weight.dtype, torch.float32))
            excess = _log_norm(wide, self.squarings) + 0.5 * math.log(area) - math.log(self.bound)
            return weight * torch.exp(-excess.clamp(min=0)).to(weight.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight

    def extra_repr(self) -> str:
        return f"bound={self.bound}, squarings={self.squarings}"


def _log_norm(matrix: Tensor, squarings: int) -> Tensor:
    """Logarithm of a matrix's Schatten norm of order 2^(squarings + 2).

    With G_0 = A A^T, c_j = |G_j|_F and G_j+1 = (G_j / c_j)^2 it is the sum of 2^-j log(c_j) / 2.
    The logarithm is finite, and has a finite derivative, for a weight of zeros too.
    """
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.mT
    gram = matrix @ matrix.mT
    total = matrix.new_zeros(())
    for j in range(squarings + 1):
        if j:
            gram = gram @ gram
        norm: Tensor = _linalg.matrix_norm(gram)
        size = norm.clamp(min=torch.finfo(gram.dtype).tiny)
        total = total + 0.5 ** (j + 1) * size.log()
        gram = gram / size
    return total


def find_layers(module: nn.Module, sharing: str) -> list[tuple[str, nn.Linear | _ConvNd]]:
    """Path and module of each linear and convolutional layer in a module, the module included.

    Args:
        module: what is to be searched.
        sharing: what would become of two layers that share a weight, for the message.

    Raises:
        ValueError: there is none; or a weight that is not parametrised is shared by two layers or
            not yet initialised.
    """
    layers = [(path, m) for path, m in walk_modules(module) if isinstance(m, nn.Linear | _ConvNd)]
    if not layers:
        raise ValueError(f"{type(module).__name__} contains no linear or convolutional layer")
    owners: dict[Tensor, str] = {}
    for path, layer in layers:
        if parametrize.is_parametrized(layer, "weight"):
            continue
        if isinstance(layer.weight, nn.UninitializedParameter):
            raise ValueError(f"'{path}' is lazy: run the module once before")
        if layer.weight in owners:
            raise ValueError(
                f"'{owners[layer.weight]}' and '{path}' share one weight, and {sharing}: share the "
                "layer instead"
            )
        owners[layer.weight] = path
    return layers


def _targets(module: nn.Module) -> list[tuple[str, nn.Linear | _ConvNd]]:
    """Path and module of each linear and convolutional layer, after checking all of them."""
    targets = find_layers(module, "normalising would part them")
    for path, layer in targets:
        if parametrize.is_parametrized(layer, "weight"):
            raise ValueError(f"the weight of '{path}' is already parametrised")
    return targets


def _output_axis(layer: nn.Linear | _ConvNd) -> int:
    return 1 if isinstance(layer, _ConvTransposeNd) else 0
