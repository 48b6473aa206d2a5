"""Products with the Jacobian of a function, in two forms.

`pullback` and `pushforward` are functions that can be differentiated again; `Linearization` keeps
one graph for the many products of a linear solve, and is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from equilibria.solve import private
from equilibria.solve.layout import Layout
from equilibria.solve.rows import Rows, add_scaled, length, subtract
from equilibria.solve.solvers import Jacobian, Product
from equilibria.solve.status import SolveError, warn
from equilibria.solve.tree import Leaves, followable

TensorFunction = Callable[..., tuple[Tensor, ...]]

Followed = Tensor | GradientEdge
"""What a product is asked of."""


def fill_missing(found: Sequence[Tensor | None], like: Sequence[Tensor]) -> Leaves:
    """What was found, with zeros in place of None."""
    return [
        torch.zeros_like(x) if each is None else each for x, each in zip(like, found, strict=True)
    ]


def refuse_batches(what: str, grads: Sequence[Tensor | None], advice: str) -> None:
    """Raise RuntimeError for batches of gradients in one, as torch's older vmap makes them."""
    if any(g is not None and private.is_batched_gradient(g) for g in grads):
        raise RuntimeError(
            f"{what} has no gradients in batches by is_grads_batched=True or "
            f"torch.autograd.functional.jacobian(vectorize=True): {advice}"
        )


def pullback(function: TensorFunction, primals: Leaves, cotangents: Leaves) -> Leaves:
    """J^T c at `primals`, differentiable in everything that it depends on, with zeros for a primal
    that the function does not use."""
    return fill_missing(sparse_pullback(function, primals, cotangents), primals)


def sparse_pullback(
    function: TensorFunction, primals: Leaves, cotangents: Leaves
) -> list[Tensor | None]:
    """The same, with None for a primal that the function does not use, where that is known."""
    if private.transform_active():
        return list(torch.func.vjp(function, *primals)[1](tuple(cotangents)))
    return list(_autograd_pullback(function, primals, cotangents))


def _autograd_pullback(
    function: TensorFunction, primals: Leaves, cotangents: Leaves
) -> Sequence[Tensor | None]:
    """By torch.autograd.grad, at aliases.

    An alias keeps its link to the tensor it stands for, so that the product can be differentiated
    again; but a path that leads from one primal into another's history ends below the alias, so the
    derivative is the partial one.
    """
    tracked = torch.is_grad_enabled()
    with torch.enable_grad():
        aliases = [
            x.view_as(x) if tracked and x.requires_grad else x.detach().requires_grad_()
            for x in primals
        ]
        # Compiled code can be differentiated once.
        with private.run_eagerly() if tracked else nullcontext():
            out = function(*aliases)
        return _grad(out, aliases, cotangents, keep=False, create=tracked)


def pushforward(
    function: TensorFunction, primals: Leaves, tangents: Leaves, like: Sequence[Tensor]
) -> Leaves:
    """J t at `primals`, differentiable in everything that it depends on.

    Args:
        like: tensors shaped as the function's output.
    """
    template = [torch.zeros_like(private.primal(x)) for x in like]

    def of_cotangents(*cotangents: Tensor) -> tuple[Tensor, ...]:
        return tuple(pullback(function, primals, list(cotangents)))

    return pullback(of_cotangents, template, tangents)


def _grad(
    outputs: Sequence[Tensor],
    inputs: Sequence[Followed],
    cotangents: Sequence[Tensor],
    *,
    keep: bool,
    create: bool = False,
) -> Sequence[Tensor | None]:
    """torch.autograd.grad, with None where an output depends on no input."""
    live = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
    if not live or not inputs:
        return [None] * len(inputs)
    return private.run_backward(
        [o for o, _ in live], [c for _, c in live], inputs, keep=keep or create, create=create
    )


class FrozenParameter(Exception):
    """Another thread has frozen a parameter that backward was about to use as it is."""

    def __init__(self) -> None:
        super().__init__(
            "a parameter has been frozen, in another thread perhaps, during a backward"
        )


@dataclass
class Linearization:
    """f evaluated once, with its graph, for products with its derivatives.

    Attributes:
        value: f(z, p), which depends on `z` and `p` by autograd's graph.
        z: the state that products with df/dz are of, or the edges of the graph where it entered,
            which do not keep it.
        p: the parameters.
        edges: of the graph where parameters entered whose gradients are wanted, for by now another
            thread may have frozen them; None for the others.
        per_product: makes a context that is entered for each product: a checkpoint in f evaluates f
            again there, with the stand-ins of this evaluation.
        per_solve: a context that whoever takes products enters once, around all of them: what f
            closes over stands there as this evaluation found it.
        evaluate: f, where it may be evaluated again for a product that compiled code refuses.
        constant: a product has shown that autograd finds no dependence of f on z.
    """

    value: Leaves
    z: Sequence[Followed]
    p: Leaves
    edges: Sequence[GradientEdge | None] = ()
    per_product: Callable[[], AbstractContextManager[None]] = nullcontext
    per_solve: AbstractContextManager[None] = field(default_factory=nullcontext)
    evaluate: Callable[[Leaves, Leaves], Leaves] | None = None
    constant: bool = False
    _doubled: tuple[Leaves, Leaves] | None = None

    @classmethod
    def at(
        cls,
        evaluate: Callable[[Leaves, Leaves], Leaves],
        z: Leaves,
        p: Leaves,
        needed: Sequence[bool] = (),
        per_product: Callable[[], AbstractContextManager[None]] = nullcontext,
        per_solve: AbstractContextManager[None] | None = None,
    ) -> Linearization:
        """Evaluates f at (z, p); z is detached here. `needed` says which parameters, leaves that
        require gradients, will be asked for theirs.

        Raises:
            FrozenParameter: one of these no longer requires a gradient.
        """
        with torch.enable_grad(), private.for_many_backwards():
            own = [followable(x).detach().requires_grad_() for x in z]
            try:
                edges = [
                    get_gradient_edge(x) if n else None for x, n in zip(p, needed, strict=False)
                ]
            except RuntimeError as error:
                raise FrozenParameter from error
            value = evaluate(own, p)
        return cls(value, own, p, edges, per_product, per_solve or nullcontext(), evaluate)

    def multiply_transposed(self, u: Leaves) -> Leaves:
        """(df/dz)^T u."""
        try:
            with self.per_product():
                found = _grad(self.value, self.z, u, keep=True)
            self.constant = all(x is None for x in found)
            return fill_missing(found, u)
        except RuntimeError:
            if self.evaluate is None or not private.made_by_compiled_code(self.value):
                raise
        if private.allow_more_backwards(self.value):
            return self.multiply_transposed(u)
        evaluate, self.evaluate = self.evaluate, None
        with torch.enable_grad(), private.run_eagerly():
            self.value = evaluate(cast(Leaves, self.z), self.p)
        found = self.multiply_transposed(u)
        warn(
            "f was compiled for a single backward pass, which reuses its buffers: the many "
            "products with its Jacobian run uncompiled. For compiled ones pass dynamic=False to "
            "torch.compile, and let the layer be the first to differentiate f"
        )
        return found

    def parameters(self, u: Leaves) -> list[Tensor | None]:
        """(df/dp)^T u for the parameters that require it, None for one that f does not use; ends
        the graph's life."""
        wanted = [edge for edge in self.edges if edge is not None]
        with self.per_product():
            found = iter(_grad(self.value, wanted, u, keep=False))
        return [None if edge is None else next(found) for edge in self.edges]

    def growth_rate(self, products: int) -> Tensor:
        """By how much a perturbation of each sample grows in an evaluation, `(samples,)`.

        It is an estimate of the spectral radius of df/dz: the geometric mean of the growth over the
        later half of a power iteration, which also has a limit where eigenvalues are complex.
        """
        layout, half = Layout.of(self.value), products // 2
        v: Leaves = []
        for x in self.value:  # the same in every sample, and along no direction in particular
            wave = torch.arange(1, x[0].numel() + 1, device=x.device).cos()
            v.append(wave.to(x).reshape(x[0].shape).expand_as(x))
        total = torch.zeros((), device=v[0].device)
        for step in range(products):
            rows = layout.rows(self.multiply_transposed(v))
            size = length(rows)
            v = layout.leaves([row / torch.where(size > 0, size, 1.0)[:, None] for row in rows])
            if step >= half:
                total = total + size.log()
        return (total / (products - half)).exp()

    def multiply(self, t: Leaves) -> Leaves:
        """(df/dz) t, by reverse mode twice; f has been evaluated uncompiled."""
        if self._doubled is None:
            with torch.enable_grad(), self.per_product():
                c = [torch.zeros_like(x).requires_grad_() for x in self.value]
                found = _grad(self.value, self.z, c, keep=True, create=True)
                self._doubled = c, fill_missing(found, c)
        c, product = self._doubled
        with self.per_product():
            return fill_missing(_grad(product, c, t, keep=True), t)


class GraphKeeper(Jacobian):
    """f on rows, evaluated plainly until a Jacobian is asked for, and its Jacobian by products.

    From the first time that a Jacobian is asked for, every evaluation keeps its graph, so that to
    linearise at the newest iterate takes no evaluation of its own. Memory: one evaluation of f.
    Compiled code can't be differentiated twice: those evaluations run uncompiled.

    Where autograd can't differentiate f twice (fused attention, custom functions) a product is a
    difference of two evaluations, exact to half of the digits.

    Args:
        plain: f, untracked.
        linearize: f at a state, tracked, with its graph.
    """

    def __init__(
        self,
        layout: Layout,
        plain: Callable[[Rows], Rows],
        linearize: Callable[[Leaves], Linearization],
    ) -> None:
        self.cost = 1
        self._layout = layout
        self._plain = plain
        self._linearize = linearize
        self._keeps = False
        self._latest: Linearization | None = None
        self._differences = False  # f can't be differentiated twice

    def evaluate(self, z: Rows) -> Rows:
        """f(z)."""
        if not self._keeps:
            return self._plain(z)
        latest = self._linearize_at(z)
        return self._layout.rows([leaf.detach() for leaf in latest.value])

    def select(self, layout: Layout) -> None:
        """Samples have left the batch, whose rows lie like this now."""
        self._layout = layout

    def __call__(self, z: Rows) -> Product:
        self._keeps = True
        if self._latest is None:
            self._linearize_at(z)
        latest, layout = self._latest, self._layout
        assert latest is not None

        def by_graph(v: Rows) -> Rows:
            return layout.rows(latest.multiply(layout.leaves(v)))

        def by_difference(v: Rows) -> Rows:
            image = layout.rows([leaf.detach() for leaf in latest.value])
            size = length(v)
            step = math.sqrt(torch.finfo(size.dtype).eps) * (length(z) + length(image)) / size
            step = torch.where(torch.isfinite(step) & (step > 0), step, 1.0)
            change = subtract(self._plain(add_scaled(z, step, v)), image)
            return [row / step.unsqueeze(1) for row in change]

        def product(v: Rows) -> Rows:
            if not self._differences:
                try:
                    return by_graph(v)
                except (torch.OutOfMemoryError, SolveError):
                    raise
                except RuntimeError as error:
                    # Raises where the fault is f's own.
                    latest.multiply_transposed(layout.leaves(v))
                    self._differences = True
                    warn(
                        "f can't be differentiated twice "
                        f"({type(error).__name__}: {str(error).splitlines()[0]}): Newton's "
                        "products with its Jacobian are finite differences, to half the digits"
                    )
            return by_difference(v)

        return product

    def _linearize_at(self, z: Rows) -> Linearization:
        self._latest = None  # one graph at a time
        with torch.inference_mode(False), private.run_eagerly():
            self._latest = self._linearize(self._layout.leaves(z))
        return self._latest


class KnownProduct(Jacobian):
    """The Jacobian of an affine map, the same everywhere."""

    def __init__(self, product: Product) -> None:
        self.cost = 0
        self._product = product

    def __call__(self, z: Rows) -> Product:
        return self._product
