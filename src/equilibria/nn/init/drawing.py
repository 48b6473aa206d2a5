"""What the ensembles share: checks of their arguments, Gaussian and Haar-distributed matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["gaussian", "haar", "matrix_shape", "write"]


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
    q, r = torch.linalg.qr(tall)
    # The QR of a library fixes the signs of R by its own rule; only with a positive diagonal is
    # the factorisation unique and Q Haar-distributed.
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0).to(q)
    return q if rows >= columns else q.mT


def write(tensor: Tensor, values: Tensor) -> Tensor:
    """Copy values into a tensor, by its shape and dtype."""
    return tensor.copy_(values.reshape(tensor.shape))
