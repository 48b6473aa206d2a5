"""Fixed-point problems with known answers, as data.

A problem is a map f(z, *operands, *weights), a start, and its answer in float64: a closed form,
or a dense Newton solve. The tests cross the list with solvers, adjoints and dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import equilibria as eq

NEWTON: Final = "newton"
"""The answer has no closed form: it is found by a dense Newton method in float64."""

UNKNOWN: Final = "unknown"
"""There is no fixed point, or more than one: only the residual can be checked."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """z = f(z, *operands, *weights), all tensors in float64.

    Attributes:
        name: Names the problem in test ids and in the table of known failures.
        f: The map. It treats samples independently.
        z0: The start, a tensor or a tree, shape (batch, ...).
        operands: Tensors of shape (batch, ...).
        weights: Tensors that all samples share.
        answer: The fixed point, `NEWTON` or `UNKNOWN`.
    """

    name: str
    f: Callable[..., Any]
    z0: Any
    operands: tuple[Tensor, ...] = ()
    weights: tuple[Tensor, ...] = ()
    answer: Any = NEWTON

    @property
    def batch(self) -> int:
        """The number of samples."""
        return pytree.tree_leaves(self.z0)[0].shape[0]

    @property
    def known(self) -> bool:
        """Whether the answer is known and the only one."""
        return not (isinstance(self.answer, str) and self.answer == UNKNOWN)

    def cast(self, dtype: torch.dtype) -> tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The start, the operands and the weights in a dtype."""
        return pytree.tree_map(lambda t: t.to(dtype), (self.z0, self.operands, self.weights))

    def solve(self, **options: Any) -> eq.Solution:
        """As a user would."""
        return eq.fixed_point(
            self.f, self.z0, *self.operands, *map(eq.shared, self.weights), **options
        )

    def sample(self, i: int) -> Problem:
        """Sample i alone, as a batch of one."""
        take = lambda t: t[i : i + 1]  # noqa: E731
        return Problem(
            name=self.name,
            f=self.f,
            z0=pytree.tree_map(take, self.z0),
            operands=tuple(map(take, self.operands)),
            weights=self.weights,
            answer=self.answer if isinstance(self.answer, str) else tree_take(self.answer, i),
        )

    @cached_property
    def solution(self) -> Any:
        """The fixed point of every sample in float64, like z0."""
        if not self.known:
            raise ValueError(f"{self.name}: there is no fixed point, or more than one")
        if not isinstance(self.answer, str):
            return self.answer
        return join([newton(self.sample(i)) for i in range(self.batch)])

    @cached_property
    def condition(self) -> Tensor:
        """||(I - J)^-1||_2 at the answer, J = df/dz: error per unit of residual, (batch,).

        It is infinite where the sample has no answer (NaN).
        """
        norms = torch.full((self.batch,), torch.inf, dtype=torch.float64)
        for i in range(self.batch):
            jacobian = dense_jacobian(self.sample(i), tree_take(self.solution, i))
            if jacobian.isfinite().all():
                inverse = torch.linalg.inv(torch.eye(len(jacobian)).to(jacobian) - jacobian)
                norms[i] = torch.linalg.matrix_norm(inverse, ord=2)
        return norms


# Trees, one sample at a time.


def tree_take(tree: Any, i: int) -> Any:
    """Sample i of a tree, as a batch of one."""
    return pytree.tree_map(lambda t: t[i : i + 1], tree)


def join(trees: list[Any]) -> Any:
    """Batches of one joined to a batch."""
    return pytree.tree_map(lambda *leaves: torch.cat(leaves), *trees)


def flat(tree: Any) -> Tensor:
    """All entries of each sample side by side, (batch, entries)."""
    return torch.cat([t.reshape(t.shape[0], -1) for t in pytree.tree_leaves(tree)], dim=1)


def unflat(vector: Tensor, like: Any) -> Any:
    """The inverse of `flat`, for a tree shaped like `like`."""
    leaves, spec = pytree.tree_flatten(like)
    parts = vector.split([t[0].numel() for t in leaves], dim=1)
    return pytree.tree_unflatten(
        [p.reshape(t.shape) for p, t in zip(parts, leaves, strict=True)], spec
    )


def dense_jacobian(problem: Problem, z: Any) -> Tensor:
    """df/dz of a batch of one, as a matrix (entries, entries)."""

    def flat_f(vector: Tensor) -> Tensor:
        state = unflat(vector[None], problem.z0)
        return flat(problem.f(state, *problem.operands, *problem.weights))[0]

    return torch.func.jacrev(flat_f)(flat(z)[0])


def newton(problem: Problem, steps: int = 50) -> Any:
    """The fixed point of a batch of one, by a dense Newton method in float64 with halved steps."""
    z = flat(problem.z0)

    def gap(vector: Tensor) -> Tensor:
        state = unflat(vector, problem.z0)
        return flat(problem.f(state, *problem.operands, *problem.weights)) - vector

    for _ in range(steps):
        g = gap(z)
        if g.norm() <= 1e-14 * (1 + z.norm()):
            break
        jacobian = dense_jacobian(problem, unflat(z, problem.z0))
        eye = torch.eye(z.shape[1], dtype=z.dtype)
        step = torch.linalg.solve(eye - jacobian, g[0])[None]
        size = 1.0
        while size > 1e-6 and not gap(z + size * step).norm() < g.norm():
            size /= 2
        z = z + size * step
    if not gap(z).norm() <= 1e-12 * (1 + z.norm()):
        raise AssertionError(f"{problem.name}: Newton stopped at |f(z) - z| = {gap(z).norm():.1e}")
    return unflat(z, problem.z0)


def relative_residual(f: Callable[..., Any], z: Any, *operands: Any) -> Tensor:
    """||f(z) - z|| / ||f(z)|| of each sample, over all leaves together, (batch,)."""
    fz = flat(f(z, *operands))
    gap = (fz - flat(z)).norm(dim=1)
    return torch.where(gap == 0, gap, gap / fz.norm(dim=1))


# Matrices.


def normal(*shape: int, seed: int) -> Tensor:
    """Standard normal entries in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def orthogonal(d: int, seed: int) -> Tensor:
    """A Haar-orthogonal matrix, (d, d)."""
    q, r = torch.linalg.qr(normal(d, d, seed=seed))
    return q * r.diagonal().sign()


def with_spectrum(values: Tensor, seed: int) -> Tensor:
    """The symmetric matrix with these eigenvalues in a random basis."""
    q = orthogonal(len(values), seed)
    return q @ (values[:, None] * q.T)


def with_norm(norm: float, d: int, seed: int) -> Tensor:
    """A Gaussian matrix with this spectral norm; its spectral radius is near half of it."""
    w = normal(d, d, seed=seed)
    return w * (norm / torch.linalg.matrix_norm(w, ord=2))


def triangular(radius: float, coupling: float, d: int, seed: int) -> Tensor:
    """Upper triangular: eigenvalues in [-radius, radius], off-diagonal entries of this size."""
    w = coupling * normal(d, d, seed=seed).triu(1)
    return w + torch.diag(torch.linspace(-radius, radius, d, dtype=torch.float64))


def spread(low: float, high: float, d: int) -> Tensor:
    """d values between the two, ends included."""
    return torch.linspace(low, high, d, dtype=torch.float64)


def column(*values: float) -> Tensor:
    """One number a sample, (batch, 1)."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


# Families of problems.


def affine(z: Tensor, x: Tensor, a: Tensor) -> Tensor:
    """A z + x for every sample."""
    return z @ a.T + x


def linear(name: str, a: Tensor, batch: int = 3) -> Problem:
    """z = A z + x, with the answer (I - A)^-1 x."""
    d = len(a)
    x = normal(batch, d, seed=1)
    answer = torch.linalg.solve(torch.eye(d, dtype=a.dtype) - a, x.T).T
    return Problem(
        name=f"linear/{name}",
        f=affine,
        z0=torch.zeros_like(x),
        operands=(x,),
        weights=(a,),
        answer=answer,
    )


def tanh_layer(z: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """tanh(W z + x) for every sample."""
    return torch.tanh(z @ w.T + x)


def tanh_net(name: str, w: Tensor, answer: str = NEWTON, batch: int = 3, seed: int = 2) -> Problem:
    """z = tanh(W z + x)."""
    x = normal(batch, len(w), seed=seed)
    return Problem(
        name=f"tanh/{name}",
        f=tanh_layer,
        z0=torch.zeros_like(x),
        operands=(x,),
        weights=(w,),
        answer=answer,
    )


def scalar(name: str, f: Callable[..., Tensor], z0: Tensor, *operands: Tensor, **answer: Any):
    """A problem with one unknown a sample."""
    return Problem(name=f"scalar/{name}", f=f, z0=z0, operands=operands, **answer)


def tree_layer(z: dict[str, Any], x: Tensor, w: Tensor) -> dict[str, Any]:
    """A dict of a vector, and of a tuple of a matrix and a number; each feels the others."""
    vector, (matrix, number) = z["vector"], z["pair"]
    mixed = torch.tanh(vector @ w.T + x + number[:, None])
    return {
        "vector": mixed * (1 + 0.1 * matrix.sum((1, 2)))[:, None],
        "pair": (
            0.5 * torch.sin(matrix + vector[:, :2, None]),
            0.3 * vector.sum(1) - 0.2 * matrix[:, 0, 1],
        ),
    }


def tree_problem() -> Problem:
    """The state is a tree of three leaves with different shapes."""
    zeros = lambda *shape: torch.zeros(3, *shape, dtype=torch.float64)  # noqa: E731
    return Problem(
        name="tree",
        f=tree_layer,
        z0={"vector": zeros(3), "pair": (zeros(2, 2), zeros())},
        operands=(normal(3, 3, seed=3),),
        weights=(with_norm(0.6, 3, seed=4),),
    )


def image_layer(z: Tensor, x: Tensor, kernel: Tensor) -> Tensor:
    """tanh(kernel * z + x), a convolution of images (batch, channels, height, width)."""
    return torch.tanh(torch.nn.functional.conv2d(z, kernel, padding=1) + x)


def image_problem() -> Problem:
    """The state is an image of two channels."""
    x = normal(3, 2, 5, 6, seed=5)
    return Problem(
        name="image",
        f=image_layer,
        z0=torch.zeros_like(x),
        operands=(x,),
        weights=(0.25 * normal(2, 2, 3, 3, seed=6),),
    )


def relaxation(z: Tensor, y: Tensor) -> Tensor:
    """An implicit Euler step: the first unknown relaxes a thousand times faster."""
    fast = 100 * (torch.cos(z[:, 1]) - z[:, 0])
    slow = 0.1 * (z[:, 0] - z[:, 1])
    return y + torch.stack([fast, slow], dim=1)


def robertson(z: Tensor, y: Tensor) -> Tensor:
    """An implicit Euler step of .01 s for Robertson's chemical reaction, rates .04 to 3e7.

    It has a second, unphysical fixed point, with a negative concentration.
    """
    slow, fast, cross = 0.04 * z[:, 0], 3e7 * z[:, 1] ** 2, 1e4 * z[:, 1] * z[:, 2]
    return y + 0.01 * torch.stack([cross - slow, slow - cross - fast, fast], dim=1)


def stiff_problems() -> list[Problem]:
    """Time scales far apart: 1 - eigenvalue spans three orders of magnitude and more."""
    rates = torch.logspace(0, 3, 8, dtype=torch.float64)
    y = 1 + normal(3, 8, seed=7).abs()
    start = torch.tensor([[1.0, 0, 0], [0.9, 3e-5, 0.1]], dtype=torch.float64)
    slow = with_spectrum(1 - torch.logspace(-3, 0, 3, dtype=torch.float64), seed=8)
    return [
        Problem(
            name="stiff/decay",
            f=lambda z, y, rates: y - rates * z,
            z0=torch.zeros_like(y),
            operands=(y,),
            weights=(rates,),
            answer=y / (1 + rates),
        ),
        linear("ill_conditioned", slow),
        Problem(name="stiff/relaxation", f=relaxation, z0=y[:, :2], operands=(y[:, :2],)),
        Problem(name="stiff/robertson", f=robertson, z0=start, operands=(start,), answer=UNKNOWN),
    ]


GOLDEN: Final = (1 + math.sqrt(5)) / 2
COSINE: Final = 0.7390851332151607
OMEGA: Final = 0.5671432904097838


def scalar_problems() -> list[Problem]:
    """One unknown a sample, closed forms."""
    starts = column(1.0, 0.3, 2.5)
    squares = column(2.0, 0.25, 90.0)
    anomaly = column(0.1, 2.0, 3.0)
    rate = column(2.5, 3.2, 3.5)
    return [
        # A state without any axis but the batch.
        scalar("cosine", torch.cos, starts[:, 0], answer=torch.full_like(starts[:, 0], COSINE)),
        scalar("omega", lambda z: torch.exp(-z), starts, answer=torch.full_like(starts, OMEGA)),
        scalar("golden", lambda z: 1 + 1 / z, starts, answer=torch.full_like(starts, GOLDEN)),
        scalar(
            "square_root",
            lambda z, x: (z + x / z) / 2,
            torch.ones_like(squares),
            squares,
            answer=squares.sqrt(),
        ),
        scalar(
            "kepler", lambda z, m, e: m + e * torch.sin(z), anomaly, anomaly, column(0.1, 0.6, 0.9)
        ),
        # The last two have slopes below -1 at the answer: plain iteration cycles for ever.
        scalar(
            "logistic",
            lambda z, r: r * z * (1 - z),
            torch.full_like(rate, 0.6),
            rate,
            answer=1 - 1 / rate,
        ),
        scalar("steep", lambda z: 6 - 5 * z, starts + 1, answer=torch.ones_like(starts)),
        # The answer is zero: the relative residual is 1 wherever the iterate is not exactly zero.
        scalar("halving", lambda z: z / 2, starts, answer=torch.zeros_like(starts)),
        scalar("constant", lambda z, x: x + 0 * z, starts, squares, answer=squares),
    ]


def without_answer() -> list[Problem]:
    """Maps that have no fixed point."""
    starts = column(1.0, -2.0, 2.5)
    return [
        scalar("exponential", torch.exp, starts, answer=UNKNOWN),
        # ||f(z) - z|| is at least half of ||f(z)|| everywhere.
        scalar("hyperbola", lambda z: (1 + z**2).sqrt() + z.abs(), starts, answer=UNKNOWN),
        scalar("flip", lambda z: torch.where(z > 0, -1.0, 1.0).to(z), starts, answer=UNKNOWN),
        scalar("translation", lambda z: z + 1, starts, answer=UNKNOWN),
    ]


def not_a_number() -> list[Problem]:
    """z = sqrt(x - z), answer (sqrt(1 + 4 x) - 1) / 2, where the root may be of a negative."""
    samples = {"at_once": column(2.0, -1.0, 6.0), "second_evaluation": column(2.0, 0.5, 6.0)}
    return [
        Problem(
            name=f"nan/{when}",
            f=lambda z, x: (x - z).sqrt(),
            z0=torch.zeros_like(x),
            operands=(x,),
            answer=((1 + 4 * x).sqrt() - 1) / 2,
        )
        for when, x in samples.items()
    ]


def spectra() -> list[Problem]:
    """Linear maps: the spectrum decides how hard they are."""
    quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    return [
        linear("symmetric_.5", with_spectrum(spread(-0.5, 0.5, 40), seed=10)),
        linear("symmetric_.9", with_spectrum(spread(-0.9, 0.9, 40), seed=11)),
        linear("symmetric_.99", with_spectrum(spread(-0.99, 0.99, 40), seed=12)),
        linear("symmetric_2", with_spectrum(spread(-2.0, 1.6, 5), seed=13)),
        linear("symmetric_2_wide", with_spectrum(spread(-2.0, 2.0, 60), seed=14)),
        linear("semi_definite_.5", with_spectrum(spread(0.0, 0.5, 40), seed=15)),
        linear("semi_definite_.95", with_spectrum(spread(0.0, 0.95, 40), seed=16)),
        linear("negative_3", with_spectrum(spread(-3.0, 0.0, 20), seed=17)),
        linear("orthogonal_.5", 0.5 * orthogonal(20, seed=18)),
        linear("orthogonal_.9", 0.9 * orthogonal(20, seed=19)),
        linear("orthogonal_1.1", 1.1 * orthogonal(4, seed=20)),
        linear("quarter_turn", quarter_turn),
        linear("non_normal_.5", triangular(0.5, 0.5, 12, seed=21)),
        linear("non_normal_.9", triangular(0.9, 0.3, 12, seed=22)),
        linear("nilpotent", 2 * torch.diag(torch.ones(7, dtype=torch.float64), diagonal=1)),
        linear("gaussian_.9", with_norm(0.9, 40, seed=23)),
    ]


def nets() -> list[Problem]:
    """tanh networks, from a contraction to chaos."""
    return [
        tanh_net("norm_.9", with_norm(0.9, 40, seed=30)),
        tanh_net("norm_1.5", with_norm(1.5, 40, seed=31)),
        tanh_net("norm_2.5", with_norm(2.5, 40, seed=32), answer=UNKNOWN),
        tanh_net("norm_6", with_norm(6.0, 40, seed=33), answer=UNKNOWN),
        tanh_net("orthogonal_.95", 0.95 * orthogonal(40, seed=34)),
        tanh_net("negative_2", with_spectrum(spread(-2.0, 0.5, 40), seed=35)),
    ]


PROBLEMS: Final[tuple[Problem, ...]] = (
    *spectra(),
    *nets(),
    *scalar_problems(),
    *stiff_problems(),
    tree_problem(),
    image_problem(),
    *without_answer(),
    *not_a_number(),
)

BY_NAME: Final[dict[str, Problem]] = {problem.name: problem for problem in PROBLEMS}
