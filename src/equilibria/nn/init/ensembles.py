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

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from equilibria.words import nearest

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


# --- symmetric ------------------------------------------------------------------------------------

# Ensembles of symmetric and of antisymmetric maps, matrices and convolutions.


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


# --- normal ---------------------------------------------------------------------------------------

# Random normal matrices: a spectrum that can be prescribed, with orthogonal eigenvectors.


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


# --- fill -----------------------------------------------------------------------------------------

# Ensembles by name, and weights that hold several maps.


Ensemble = Literal["gaussian", "orthogonal", "goe", "antisymmetric", "normal"]
"""A family of random matrices by name; see `equilibria.nn.init.ensembles`."""

ENSEMBLES: Mapping[Ensemble, Callable[..., Tensor]] = {
    "gaussian": gaussian_,
    "orthogonal": orthogonal_,
    "goe": goe_,
    "antisymmetric": antisymmetric_,
    "normal": normal_,
}
"""The function of each ensemble, (weight, scale, generator) -> weight."""

SQUARE: frozenset[str] = frozenset({"goe", "antisymmetric", "normal"})
"""Ensembles whose members are square: symmetry needs as many outputs as inputs."""


@dataclass(frozen=True, kw_only=True)
class Maps:
    """How a weight of shape (outputs, inputs, ...) is made up of linear maps.

    A module that owns layers whose weights hold several maps, such as query, key and value, says so
    in an attribute `maps`, a mapping from the path of a layer below it to a `Maps`, or to None for
    a layer that is not applied to the state.

    Args:
        rows: outputs of each of the maps that stand one below the other; empty for one map.
        columns: maps that stand side by side, such as the taps of a convolution over time.
        transposed: the weight's shape is (inputs, outputs, ...), as that of a transposed
            convolution; its maps are its transpose's, and `rows` are inputs.
    """

    rows: tuple[int, ...] = ()
    columns: int = 1
    transposed: bool = False

    def tiles(self, weight: Tensor) -> list[Tensor]:
        """Return the maps of a weight (outputs, inputs, ...), views of it.

        Raises:
            ValueError: its shape is not that of these maps.
        """
        if weight.ndim < 2:
            raise ValueError(f"a tensor of shape {tuple(weight.shape)} holds no linear maps")
        outputs, inputs = weight.shape[:2]
        if (self.rows and sum(self.rows) != outputs) or inputs % self.columns:
            raise ValueError(
                f"a weight of shape {tuple(weight.shape)} cannot be made of maps with "
                f"{self.rows} outputs, {self.columns} side by side"
            )
        below = torch.split(weight, list(self.rows)) if self.rows else [weight]
        tiles = [tile for row in below for tile in row.chunk(self.columns, 1)]
        return [tile.transpose(0, 1) for tile in tiles] if self.transposed else tiles


def check_ensemble(ensemble: str) -> Ensemble:
    """Return the name of an ensemble.

    Raises:
        ValueError: there is none of that name.
    """
    if ensemble not in get_args(Ensemble):
        raise ValueError(f"there is no ensemble '{ensemble}'{nearest(str(ensemble), ENSEMBLES)}")
    return cast(Ensemble, ensemble)


@torch.no_grad()
def fill(
    weight: Tensor,
    ensemble: Ensemble,
    scale: float = 1.0,
    maps: Maps | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> tuple[Ensemble, ...]:
    """Fill a weight in place, each of its maps with a member of an ensemble.

    A map that cannot be a member is Gaussian of the same scale: one that is not square where the
    ensemble's members are, or a convolution with kernels of even size (`goe`, `antisymmetric`) or
    larger than 1 (`normal`).

    Args:
        weight: shape (outputs, inputs, ...).
        ensemble: one of `ENSEMBLES`.
        scale: sqrt(V), not negative.
        maps: what it is made of; None for one map.
        generator: source of randomness; torch's global one by default.
        **options: of the ensemble's function, such as the `spectrum` of `normal_`.

    Returns:
        The ensemble of each map.

    Raises:
        TypeError: the weight is not a real floating-point one, or the ensemble has no such option.
        ValueError: there is no such ensemble, the weight is none, or not made of these maps.
    """
    _check_options(check_ensemble(ensemble), options)
    used: list[Ensemble] = []
    for tile in (maps or Maps()).tiles(weight):
        chosen: Ensemble = ensemble if _fits(tile, ensemble) else "gaussian"
        extra = options if chosen == ensemble else {}
        ENSEMBLES[chosen](tile, scale, generator=generator, **extra)
        used.append(chosen)
    return tuple(used)


def _check_options(ensemble: Ensemble, options: Mapping[str, Any]) -> None:
    """What the function of an ensemble takes beside what all take.

    Raises:
        TypeError: it does not take one of these.
    """
    known = list(inspect.signature(ENSEMBLES[ensemble]).parameters)[3:]
    for name in options:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise TypeError(f"the ensemble '{ensemble}' has no option '{name}'; it {takes}")


def _fits(tile: Tensor, ensemble: Ensemble) -> bool:
    """Whether a map can be a member."""
    outputs, inputs, *kernel = tile.shape
    if ensemble not in SQUARE:
        return True
    if ensemble == "normal":
        return outputs == inputs and all(size == 1 for size in kernel)
    return outputs == inputs and all(size % 2 for size in kernel)


# --- elementwise ----------------------------------------------------------------------------------

# Cells for which there is a theory of how they start: one weight and an elementwise activation.


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """Says that a cell is f(z; u) = phi(W z + u), or phi(W z) + u, with W its one recurrent weight.

    A cell of this form says so in an attribute `theory`, and what `equilibria.theory` predicts of
    it is shown beside what is measured. Its first operand is u.

    Args:
        activation: phi, by name or as a function of a tensor, elementwise.
        injection: where u is added: "inside" phi, or "outside", behind it.

    papers: Agarwala and Schoenholz 2022, eq. 21 (outside).
    """

    activation: str | Callable[[Tensor], Tensor]
    injection: Literal["inside", "outside"] = "inside"

    def __str__(self) -> str:
        phi = self.activation if isinstance(self.activation, str) else "phi"
        return f"{phi}(W z) + u" if self.injection == "outside" else f"{phi}(W z + u)"
