"""Numbers about J = df/dz at a point z, from vector-Jacobian products alone.

f is evaluated once; each product is one backward pass through that evaluation. Since f treats
samples independently, one pass gives every sample the product with its own Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.solve import Shared, boundary, followable

_TRUSTED = 0.05


@boundary
def spectral_radius(
    f: Callable[..., Any],
    z: Any,
    *operands: Any,
    iterations: int = 40,
    coupled: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimates rho(J) = max |eigenvalue of J|, J = df/dz at z, for each sample.

    The first half of the products is power iteration, u <- J^T u / ||u||. It gives the
    geometric-mean growth exp(mean log ||J^T u|| / ||u||) over its later half, which does not depend
    on a single dominant eigenvalue: the Rayleigh quotient of plain power iteration never settles on
    a complex pair. The second half goes on from the last u by Arnoldi and gives the Ritz value of
    largest modulus. That is far sharper where a few eigenvalues stick out (symmetric matrices,
    pairs), and far too small where very many share the modulus (orthogonal matrices), so it is used
    where its own residual, |h_{k+1,k} y_k| / |Ritz value|, is below 5 %, and the growth elsewhere.

    What to expect of 40 products: 1 % for symmetric and orthogonal J, and for a few eigenvalues
    apart from the rest; about 2 % for Gaussian J. Where J is far from normal (triangular, say) the
    estimate is too large, because ||J^k|| exceeds rho^k for long: it then tells how perturbations
    grow within 40 evaluations rather than in the limit.

    Args:
        f: the map f(z, *operands) -> z, samples independent of each other unless `coupled`.
        z: state, a tensor or a tree of tensors (batch, ...).
        *operands: passed on to f; `shared(x)` is passed as x.
        iterations: vector-Jacobian products in all, at least 4. Memory: iterations / 2 states.
        coupled: the whole batch is one sample; the answer has shape (1,).
        generator: of the random start; None for one that is the same in every call.

    Returns:
        (batch,) in the dtype of z, NaN for a sample at which f or J is not finite. Not
        differentiable.

    Raises:
        ValueError: fewer than 4 iterations, or f returns another tree or shape than z.
        RuntimeError: f closes over a tensor that was made in inference mode: torch differentiates
            nothing that needs such a one. State and operands may be such.

    papers: Bai 2022 (thesis), fig. 4.8 (power method on J at z*).
    """
    if iterations < 4:
        raise ValueError(f"iterations is {iterations}: expected 4 or more")
    jacobian = JacobianOperator(f, z, operands, coupled)
    u = _unit(jacobian.noise(generator))
    power = iterations // 2
    growths: list[Tensor] = []
    for _ in range(power):
        u = jacobian.apply_transpose(u)
        growths.append(torch.linalg.vector_norm(u, dim=1))
        u = _unit(u)
    growth = torch.stack(growths[power // 2 :]).log().mean(0).exp()
    ritz, residual = _arnoldi(jacobian.apply_transpose, u, iterations - power)
    radius = torch.where(residual < _TRUSTED, ritz, growth)
    return torch.where(growths[-1].isfinite(), radius, torch.nan).to(jacobian.dtype)


@boundary
def jacobian_norm(
    f: Callable[..., Any],
    z: Any,
    *operands: Any,
    samples: int = 32,
    coupled: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimates the Frobenius norm ||J||_F, J = df/dz at z, for each sample, by Hutchinson.

    ||J||_F^2 = tr(J J^T) = E ||eps^T J||^2 with eps of independent signs; the mean of `samples`
    draws has a relative error of at most sqrt(2 / samples), far less for a J of many entries.
    Divided by the root of the entries of one sample it is the root mean square of the singular
    values of J: how much f stretches a random perturbation.

    Args:
        f, z, operands, coupled, generator: as for `spectral_radius`.
        samples: draws, one vector-Jacobian product each.

    Returns:
        (batch,) in the dtype of z; (1,) if `coupled`. Not differentiable.

    Raises:
        ValueError: no samples, or f returns another tree or shape than z.

    papers: Bai 2022 (thesis), eq. 4.3.
    """
    if samples < 1:
        raise ValueError(f"samples is {samples}: expected 1 or more")
    jacobian = JacobianOperator(f, z, operands, coupled)
    generator = generator or _generator(jacobian.device)
    total = torch.zeros(jacobian.shape[0], dtype=torch.float64, device=jacobian.device)
    for _ in range(samples):
        product = jacobian.apply_transpose(jacobian.noise(generator).sign())
        total += torch.linalg.vector_norm(product, dim=1).double().square()
    return (total / samples).sqrt().to(jacobian.dtype)


class JacobianOperator:
    """The transposed Jacobian of f at z as an operator on rows (samples, entries)."""

    def __init__(
        self, f: Callable[..., Any], z: Any, operands: tuple[Any, ...], coupled: bool
    ) -> None:
        leaves, spec = pytree.tree_flatten(z)
        # In inference mode nothing has a graph, and f would seem constant.
        with torch.inference_mode(False), torch.enable_grad():
            self.inputs = [followable(leaf).detach().requires_grad_() for leaf in leaves]
            plain = [o.value if isinstance(o, Shared) else o for o in operands]
            plain = pytree.tree_map_only(Tensor, followable, plain)
            out = f(pytree.tree_unflatten(self.inputs, spec), *plain)
        self.outputs, out_spec = pytree.tree_flatten(out)
        shapes = [tuple(leaf.shape) for leaf in self.inputs]
        found = [tuple(leaf.shape) for leaf in self.outputs]
        if out_spec != spec or found != shapes:
            raise ValueError(f"f returned shapes {found} for a state of shapes {shapes}")
        self.samples = 1 if coupled else shapes[0][0]
        self.widths = [leaf.numel() // self.samples for leaf in self.inputs]
        self.shape = (self.samples, sum(self.widths))
        self.dtype = self.inputs[0].dtype
        self.device = self.inputs[0].device
        self.constant = not any(leaf.requires_grad for leaf in self.outputs)
        self._doubled: tuple[Tensor, Tensor] | None = None

    def noise(self, generator: torch.Generator | None) -> Tensor:
        generator = generator or _generator(self.device)
        options: Any = {"dtype": self.dtype, "device": generator.device, "generator": generator}
        return torch.randn(self.shape, **options).to(self.device)

    def apply_transpose(self, rows: Tensor) -> Tensor:
        """J^T u for each sample's row u: (samples, entries)."""
        return self._pull(rows, create_graph=False)

    def direct(self, rows: Tensor) -> Tensor:
        """J v for each sample's row v: (samples, entries), by reverse mode twice."""
        if self.constant:
            return torch.zeros_like(rows)
        if self._doubled is None:
            with torch.inference_mode(False), torch.enable_grad():
                u = torch.zeros_like(rows).requires_grad_()
                self._doubled = u, self._pull(u, create_graph=True)
        u, product = self._doubled
        if not product.requires_grad:  # autograd finds no dependence of f on z
            return torch.zeros_like(rows)
        with torch.inference_mode(False):
            return torch.autograd.grad(product, u, rows, retain_graph=True)[0]

    def _pull(self, rows: Tensor, *, create_graph: bool) -> Tensor:
        if self.constant:
            return torch.zeros_like(rows)
        with torch.inference_mode(False), torch.set_grad_enabled(create_graph):
            pieces = zip(self.outputs, rows.split(self.widths, dim=1), strict=True)
            used = [(out, u.reshape(out.shape).to(out.dtype)) for out, u in pieces]
            used = [(out, u) for out, u in used if out.requires_grad]
            grads = torch.autograd.grad(
                *([out for out, _ in used], self.inputs, [u for _, u in used]),
                retain_graph=True,
                create_graph=create_graph,
                allow_unused=True,  # where materialised, a zero would seem to depend on u
            )
            pairs = zip(self.inputs, grads, strict=True)
            whole = [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in pairs]
            return torch.cat([grad.reshape(self.samples, -1) for grad in whole], dim=1)


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def _unit(rows: Tensor) -> Tensor:
    """Rows of length one; a row of zeros stays."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(norms == 0, 1, norms)


def _arnoldi(
    operator: Callable[[Tensor], Tensor], start: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """The largest |Ritz value| of each sample after `steps`, and its relative residual.

    Where the Krylov space is exhausted, the vectors that follow are zero: they add zeros to the
    Ritz values, and the residual is zero.
    """
    samples = start.shape[0]
    basis = start.unsqueeze(1)
    hessenberg = start.new_zeros(samples, steps + 1, steps, dtype=torch.float64)
    exhausted = 16 * torch.finfo(start.dtype).eps
    for j in range(steps):
        w = operator(basis[:, j])
        before = torch.linalg.vector_norm(w, dim=1)
        for _ in range(2):  # once is not enough in float32
            h = (w.unsqueeze(1) @ basis.mT).squeeze(1)
            w = w - (h.unsqueeze(1) @ basis).squeeze(1)
            hessenberg[:, : j + 1, j] += h
        after = torch.linalg.vector_norm(w, dim=1)
        over = after <= exhausted * before
        hessenberg[:, j + 1, j] = torch.where(over, 0, after)
        basis = torch.cat([basis, _unit(w.masked_fill(over[:, None], 0)).unsqueeze(1)], dim=1)
    square = hessenberg[:, :steps].nan_to_num(0, 0, 0).cpu()
    values, vectors = torch.linalg.eig(square)
    radius, largest = values.abs().max(dim=1)
    last = vectors[torch.arange(samples), steps - 1, largest].abs()
    leftover = hessenberg[:, steps, steps - 1].cpu() * last
    residual = torch.where(radius > 0, leftover / radius, leftover)
    return radius.to(start.device), residual.to(start.device)
