"""Random normal matrices: a spectrum that can be prescribed, with orthogonal eigenvectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.nn.init.ensembles import haar, matrix_shape, write

Spectrum = Tensor | Sequence[complex] | Callable[[int, torch.Generator | None], Tensor]
"""Eigenvalues, or a function of their number and a generator that draws them."""


@torch.no_grad()
def normal_(
    tensor: Tensor,
    scale: float = 1.0,
    generator: torch.Generator | None = None,
    spectrum: Spectrum | None = None,
) -> Tensor:
    """Fill a square weight with a random normal matrix, W = scale Q B Q^T.

    Q is Haar-distributed and B holds the spectrum: an eigenvalue on the diagonal where it is real,
    and a block [[a, -b], [b, a]] for a pair a + ib, a - ib. W W^T = W^T W, so that powers of W grow
    like its spectral radius from the first, and the singular values are the |eigenvalues|.

    Args:
        tensor: weight of shape (N, N), or (N, N, 1, ...) as of a 1x1 convolution, changed in place.
        scale: sqrt(V), the root mean square of the |eigenvalues|, not negative.
        generator: source of randomness; torch's global one by default.
        spectrum: the N eigenvalues up to a common factor, each with its conjugate, or a function
            (N, generator) that returns them: they are divided by their root mean square, as
            `equilibria.theory` does. None for independent draws from the disk of radius sqrt(2),
            the shape of a Gaussian matrix's spectrum, of mean square 1 on average.

    Returns:
        The same tensor.

    Raises:
        TypeError: the tensor is not a real floating-point one.
        ValueError: it is not square, or is computed; scale is negative; there are not N
            eigenvalues, one is not finite, all are zero, or some lack their conjugates.

    papers: Agarwala and Schoenholz 2022, sec. 5, where other ensembles are future work.
    """
    rows, columns = matrix_shape(tensor, scale)
    if rows != columns:
        raise ValueError(
            f"normal matrices are square, and this weight of shape {tuple(tensor.shape)} is "
            f"{rows} x {columns} as a matrix: use gaussian_ or orthogonal_ here"
        )
    source: Any = disk if spectrum is None else spectrum
    drawn = source(rows, generator) if callable(source) else source
    if not isinstance(drawn, Tensor):
        drawn = torch.tensor(drawn, dtype=torch.complex128)
    real, pairs = _part_spectrum(drawn, rows)
    if spectrum is not None:
        size = _size(real, pairs)
        real, pairs = real / size, pairs / size
    q = haar(tensor, generator, rows, rows)
    real, a, b = (part.to(q) for part in (real, pairs.real, pairs.imag))
    pairwise: Tensor = cast(Any, q[:, : 2 * len(a)]).unflatten(1, (-1, 2))
    x, y = pairwise.unbind(2)
    turned = torch.stack([a * x + b * y, a * y - b * x], 2).flatten(1)  # Q B, pair by pair
    product = torch.cat([turned, real * q[:, 2 * len(a) :]], 1) @ q.mT
    return write(tensor, scale * product)


def _size(real: Tensor, pairs: Tensor) -> float:
    """The root mean square modulus of eigenvalues, of which one of each pair is given.

    Raises:
        ValueError: all are zero.
    """
    # In parts of the largest, for squares may underflow.
    moduli = torch.cat([real.abs(), pairs.abs(), pairs.abs()])
    largest = moduli.max()
    if largest == 0:
        raise ValueError(
            "a spectrum is given up to a common factor, and all eigenvalues of this one are zero; "
            "scale 0 makes a weight of zeros"
        )
    return float(largest * (moduli / largest).square().mean().sqrt())


def disk(count: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw eigenvalues uniformly on the disk of radius sqrt(2), each with its conjugate.

    Args:
        count: of eigenvalues; where it is odd, one of them is real, of a modulus like the others.
        generator: source of randomness; torch's global one by default.

    Returns:
        (count,) complex128, on the device of the generator.
    """
    device = "cpu" if generator is None else generator.device
    upper = (count + 1) // 2
    modulus, angle = torch.rand(2, upper, dtype=torch.float64, device=device, generator=generator)
    modulus = (2 * modulus).sqrt()
    values = torch.polar(modulus, math.pi * angle)
    if count % 2 == 0:
        return torch.cat([values, values.conj()])
    last = (modulus[-1:] * torch.sign(angle[-1:] - 0.5)).to(values)
    return torch.cat([values[:-1], values[:-1].conj(), last])


def _part_spectrum(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Real eigenvalues, and of each pair the one above the real axis, in complex128.

    Raises:
        ValueError: they are not `count` finite numbers closed under conjugation.
    """
    if values.shape != (count,):
        raise ValueError(
            f"a matrix of this weight's size has {count} eigenvalues, and the spectrum has shape "
            f"{tuple(values.shape)}"
        )
    precision = torch.finfo(values.dtype if values.is_complex() else torch.float64).eps
    values = values.detach().to(torch.complex128).cpu()
    if not values.isfinite().all():
        raise ValueError("the spectrum has eigenvalues that are not finite")
    # What a computed spectrum may be wrong by: as the conjugates of one another, or off the axis.
    slack = precision**0.5 * float(values.abs().max())
    real = values.imag.abs() <= slack
    upper = values[~real & (values.imag > 0)]
    lower = values[~real & (values.imag < 0)].conj()
    matched = len(upper) == len(lower)
    for value in upper if matched else ():
        distance, nearest = (lower - value).abs().min(0)
        matched = matched and bool(distance <= slack)
        lower = torch.cat([lower[:nearest], lower[nearest + 1 :]])
    if not matched:
        raise ValueError(
            "a real matrix has with each eigenvalue a + ib its conjugate a - ib, and this "
            "spectrum has some without"
        )
    return values[real].real, upper
