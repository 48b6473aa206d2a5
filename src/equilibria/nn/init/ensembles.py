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

import math

import torch
from torch import Tensor

from equilibria.nn.init.drawing import gaussian, haar, matrix_shape, write
from equilibria.nn.init.normal import normal_
from equilibria.nn.init.symmetric import antisymmetric_, goe_

__all__ = ["antisymmetric_", "gaussian_", "goe_", "normal_", "orthogonal_"]


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
