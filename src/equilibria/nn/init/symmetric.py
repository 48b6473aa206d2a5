"""Ensembles of symmetric and of antisymmetric maps, matrices and convolutions."""

import math

import torch
from torch import Tensor

from equilibria.nn.init.ensembles import gaussian, matrix_shape, write

__all__ = ["antisymmetric_", "goe_"]


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
    return _mirrored(tensor, scale, generator, 1.0, "symmetric")


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
    return _mirrored(tensor, scale, generator, -1.0, "antisymmetric")


def _mirrored(
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
