"""Weight ensembles as functions that fill a tensor in place.

Two ensembles with the same variance give deep equilibrium networks that behave differently, because
the same matrix is applied again and again (Agarwala and Schoenholz 2022). Each function fills a
tensor in place; `scale` is the square root of their V. A linear network z = W z + x has a stable
fixed point below the critical V_c:

| function      | ensemble                                              | radius of W | V_c |
|---------------|-------------------------------------------------------|-------------|-----|
| `gaussian_`   | independent entries of variance V / N                 | scale       | 1   |
| `orthogonal_` | sqrt(V) O, with O Haar-distributed                    | scale       | 1   |
| `goe_`        | symmetric, variance V / N, twice that on the diagonal | 2 scale     | 1/4 |

A weight of more than two axes, as a convolution has, is taken as the matrix of shape
(outputs, fan-in) that `weight.flatten(1)` is.
"""

import math

import torch
from torch import Tensor

__all__ = ["gaussian_", "goe_", "orthogonal_"]


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
    rows, columns = _matrix_shape(tensor, scale)
    return _fill(tensor, scale / math.sqrt(columns) * _normal(rows, columns, tensor, generator))


@torch.no_grad()
def orthogonal_(
    tensor: Tensor, scale: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Fill a weight with scale times a Haar-distributed orthogonal matrix, W = scale O.

    All singular values equal scale. A matrix that is not square gets orthonormal rows or columns,
    whichever are fewer, times scale.

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
    rows, columns = _matrix_shape(tensor, scale)
    tall = _normal(max(rows, columns), min(rows, columns), tensor, generator)
    q, r = torch.linalg.qr(tall)
    # The QR of a library fixes the signs of R by its own rule; only with a positive diagonal is
    # the factorisation unique and Q Haar-distributed.
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q)
    return _fill(tensor, scale * (q if rows >= columns else q.mT))


@torch.no_grad()
def goe_(tensor: Tensor, scale: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
    """Fill a square weight from the Gaussian orthogonal ensemble, W = scale (G + G^T) / sqrt(2 N).

    W is symmetric, with entries of variance scale^2 / N off the diagonal and twice that on it. Its
    eigenvalues fill [-2 scale, 2 scale] (Wigner's semicircle).

    Args:
        tensor: weight of shape (N, N), or (N, N, 1, ...) as of a 1x1 convolution, changed in place.
        scale: sqrt(V), not negative.
        generator: source of randomness; torch's global one by default.

    Returns:
        The same tensor.

    Raises:
        TypeError: the tensor is not a real floating-point one.
        ValueError: it is not square or is computed, or scale is negative.

    Source:
        Agarwala and Schoenholz 2022, section 2.1.2.
    """
    rows, columns = _matrix_shape(tensor, scale)
    if rows != columns:
        raise ValueError(
            f"goe_ makes symmetric matrices and got a weight of shape {tuple(tensor.shape)}, which "
            f"is {rows} x {columns} as a matrix: use gaussian_ or orthogonal_ here"
        )
    g = _normal(rows, rows, tensor, generator)
    return _fill(tensor, scale / math.sqrt(2 * rows) * (g + g.mT))


def _matrix_shape(tensor: Tensor, scale: float) -> tuple[int, int]:
    """Check the arguments that the ensembles share and return (outputs, fan-in)."""
    if not tensor.is_floating_point():
        raise TypeError(f"expected a real floating-point weight, got one of dtype {tensor.dtype}")
    if tensor.ndim < 2 or tensor.numel() == 0:
        raise ValueError(
            "expected a weight of shape (outputs, inputs, ...) with entries, got shape "
            f"{tuple(tensor.shape)}; a bias is not a member of a matrix ensemble"
        )
    if tensor.grad_fn is not None:
        raise ValueError(
            "this weight is computed from other tensors, as a normalised weight is, and what is "
            "written into it would be lost: initialise before normalising"
        )
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"scale is sqrt(V) and must be finite and not negative, got {scale}")
    return tensor.shape[0], tensor[0].numel()


def _normal(rows: int, columns: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw a standard Gaussian matrix on a tensor's device, in float32 or wider."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.randn(rows, columns, dtype=dtype, device=like.device, generator=generator)


def _fill(tensor: Tensor, matrix: Tensor) -> Tensor:
    return tensor.copy_(matrix.reshape(tensor.shape))
