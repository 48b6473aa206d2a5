"""Weight ensembles as functions that fill a tensor in place.

Two ensembles with the same variance give deep equilibrium networks that behave differently, because
the same matrix is applied again and again (Agarwala and Schoenholz 2022). Each function fills a
tensor in place; `scale` is the square root of their V, the average squared singular value. By plain
iteration, a linear network z = W z + x has a stable fixed point below the critical V_c:

| function         | ensemble                                              | radius of W   | V_c |
|------------------|-------------------------------------------------------|---------------|-----|
| `gaussian_`      | independent entries of variance V / N                 | scale         | 1   |
| `orthogonal_`    | sqrt(V) O, with O Haar-distributed                    | scale         | 1   |
| `goe_`           | symmetric, variance V / N, twice that on the diagonal | 2 scale       | 1/4 |
| `antisymmetric_` | antisymmetric, variance V / N, zero on the diagonal   | 2 scale       | 1/4 |
| `normal_`        | eigenvalues uniform on a disk, eigenvectors Haar      | sqrt(2) scale | 1/2 |

The eigenvalues of an antisymmetric W are imaginary: none is near 1, and at every V there is a fixed
point that other methods than plain iteration may find. Those of `normal_` can be given, up to a
factor. What is filled is a parameter, or a part of one such as `attention.in_proj_weight[:64]`.

A weight of more than two axes, as a convolution has, is taken as the matrix of shape
(outputs, fan-in) that `weight.flatten(1)` is, by `gaussian_` and `orthogonal_`; `goe_` and
`antisymmetric_` make the whole convolution a symmetric or antisymmetric map.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_linalg: Any = torch.linalg  # whose stubs leave functions untyped


@torch.no_grad()
def gaussian_(
    tensor: Tensor, scale: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Fill a weight with independent Gaussian entries, W_ij ~ N(0, scale^2 / N).

    N is the fan-in, so that W maps entries of mean square m to entries of mean square scale^2 m.

    Args:
        tensor: weight of shape (outputs, inputs, ...), changed in place.
        scale: sqrt(V), not negative.
        generator: source of randomness; torch's global one by default.

    Returns:
        The same tensor.

    Raises:
        TypeError: the tensor is not a real floating-point one.
        ValueError: it has fewer than two axes or is computed, or scale is negative.

    Source:
        Agarwala and Schoenholz 2022, section 2.1.1.
    """
    rows, columns = matrix_shape(tensor, scale)
    return write(tensor, scale / math.sqrt(columns) * gaussian(tensor, generator, rows, columns))


@torch.no_grad()
def orthogonal_(
    tensor: Tensor, scale: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Fill a weight with scale times a Haar-distributed orthogonal matrix, W = scale O.

    All singular values equal scale. A matrix that is not square gets orthonormal rows or columns,
    whichever are fewer, times scale. So does the (outputs, fan-in) matrix of a convolution, whose
    map of images is then not orthogonal: it takes independent entries of mean square 1 to entries
    of mean square scale^2, and some images to longer ones.

    Args:
        tensor: weight of shape (outputs, inputs, ...), changed in place.
        scale: sqrt(V), not negative.
        generator: source of randomness; torch's global one by default.

    Returns:
        The same tensor.

    Raises:
        TypeError: the tensor is not a real floating-point one.
        ValueError: it has fewer than two axes or is computed, or scale is negative.

    Source:
        Agarwala and Schoenholz 2022, section 2.1.2.
    """
    rows, columns = matrix_shape(tensor, scale)
    return write(tensor, scale * haar(tensor, generator, rows, columns))


def matrix_shape(tensor: Tensor, scale: float) -> tuple[int, int]:
    """Check the arguments that the ensembles share and return (outputs, fan-in).

    Raises:
        TypeError: the tensor is not a real floating-point one.
        ValueError: it has fewer than two axes or is computed, or scale is negative.
    """
    if not tensor.is_floating_point():
        raise TypeError(f"expected a real floating-point weight, got one of dtype {tensor.dtype}")
    if tensor.ndim < 2 or tensor.numel() == 0:
        raise ValueError(
            "expected a weight of shape (outputs, inputs, ...) with entries, got shape "
            f"{tuple(tensor.shape)}; a bias is not a member of a matrix ensemble"
        )
    # A part of a parameter, such as the queries of an attention, is no copy.
    part = tensor._base is not None and tensor._base.is_leaf
    if not part and tensor.grad_fn is not None:
        raise ValueError(
            "this weight is computed from other tensors, as a normalised weight is, and what is "
            "written into it would be lost: initialise before normalising"
        )
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"scale is sqrt(V) and must be finite and not negative, got {scale}")
    return tensor.shape[0], tensor[0].numel()


def gaussian(like: Tensor, generator: torch.Generator | None, *shape: int) -> Tensor:
    """Draw a standard Gaussian tensor on a tensor's device, in float32 or wider.

    It is drawn where the generator is, so that a seed on the CPU gives the same on every device.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    device = like.device if generator is None else generator.device
    return torch.randn(shape, dtype=dtype, device=device, generator=generator).to(like.device)


def haar(like: Tensor, generator: torch.Generator | None, rows: int, columns: int) -> Tensor:
    """Draw a Haar-distributed matrix with orthonormal columns, or rows where these are fewer."""
    tall = gaussian(like, generator, max(rows, columns), min(rows, columns))
    parts: tuple[Tensor, Tensor] = _linalg.qr(tall)
    q, r = parts
    # The QR of a library fixes the signs of R by its own rule; only with a positive diagonal is
    # the factorisation unique and Q Haar-distributed.
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q)
    return q if rows >= columns else q.mT


def write(tensor: Tensor, values: Tensor) -> Tensor:
    """Copy values into a tensor, by its shape and dtype."""
    return tensor.copy_(values.reshape(tensor.shape))


@torch.no_grad()
def goe_(tensor: Tensor, scale: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
    """Fill a square weight from the Gaussian orthogonal ensemble, W = scale (G + G^T) / sqrt(2 N).

    W is symmetric, with entries of variance scale^2 / N off the diagonal and twice that on it. Its
    eigenvalues fill [-2 scale, 2 scale] (Wigner's semicircle).

    A convolution of stride 1 that keeps the size of its images is a symmetric map if its kernel is
    K(c, c', d) = K(c', c, -d), c and c' the channels and d the place; so it is drawn, with fan-in
    N. At each frequency it is then a Hermitian matrix with the semicircle above.

    Args:
        tensor: weight of shape (N, N), or (C, C, k, ...) of a convolution with kernels of odd size,
            changed in place.
        scale: sqrt(V), not negative.
        generator: source of randomness; torch's global one by default.

    Returns:
        The same tensor.

    Raises:
        TypeError: the tensor is not a real floating-point one.
        ValueError: it has more outputs than inputs or fewer, kernels of even size, or is computed;
            or scale is negative.

    Source:
        Agarwala and Schoenholz 2022, section 2.1.2.
    """
    return _fill_mirrored(tensor, scale, generator, 1.0, "symmetric")


@torch.no_grad()
def antisymmetric_(
    tensor: Tensor, scale: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Fill a square weight with a random antisymmetric matrix, W = scale (G - G^T) / sqrt(2 N).

    W^T = -W, with entries of variance scale^2 / N and zeros on the diagonal. Its eigenvalues are
    imaginary and fill i [-2 scale, 2 scale], with the density of a semicircle. I - W is never
    singular: z* = W z* + x exists at every scale, though plain iteration finds it below 1/2 only.

    A convolution of stride 1 that keeps the size of its images is antisymmetric if its kernel is
    K(c, c', d) = -K(c', c, -d); so it is drawn, with fan-in N.

    Args:
        tensor: weight of shape (N, N), or (C, C, k, ...) of a convolution with kernels of odd size,
            changed in place.
        scale: sqrt(V), not negative; of small matrices the mean of V is V (1 - 1 / N).
        generator: source of randomness; torch's global one by default.

    Returns:
        The same tensor.

    Raises:
        TypeError: the tensor is not a real floating-point one.
        ValueError: it has more outputs than inputs or fewer, kernels of even size, or is computed;
            or scale is negative.

    papers: Agarwala and Schoenholz 2022, sec. 5, where other ensembles are future work.
    """
    return _fill_mirrored(tensor, scale, generator, -1.0, "antisymmetric")


def _fill_mirrored(
    tensor: Tensor, scale: float, generator: torch.Generator | None, sign: float, kind: str
) -> Tensor:
    """Fill a weight with scale (G + sign G') / sqrt(2 N), G' being the transposed map."""
    _, columns = matrix_shape(tensor, scale)
    shape = tuple(tensor.shape)
    if shape[0] != shape[1]:
        raise ValueError(
            f"{kind} maps have as many outputs as inputs, and this weight has shape {shape}: "
            "use gaussian_ or orthogonal_ here"
        )
    if any(size % 2 == 0 for size in shape[2:]):
        raise ValueError(
            f"{kind} convolutions have kernels of odd size, with a middle to mirror them at, and "
            f"this weight has shape {shape}: use gaussian_ or orthogonal_ here"
        )
    g = gaussian(tensor, generator, *shape)
    # Seen from the output, what lies at d is at -d seen from the input.
    mirrored = g.transpose(0, 1).flip(list(range(2, len(shape))))
    return write(tensor, scale / math.sqrt(2 * columns) * (g + sign * mirrored))
