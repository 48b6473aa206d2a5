"""Products with the Jacobian of a function, in two forms.

`pullback` and `pushforward` are functions that can be differentiated again; `Linearisation` keeps
one graph for the many products of a linear solve, and is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from equilibria.solve import private
from equilibria.solve.layout import Layout
from equilibria.solve.rows import Rows, add_scaled, length, select, subtract
from equilibria.solve.solvers import Jacobian, Product
from equilibria.solve.status import warn
from equilibria.solve.tree import Leaves

Function = Callable[..., tuple[Tensor, ...]]

Followed = Tensor | GradientEdge
"""What a product is asked of."""


def pullback(function: Function, primals: Leaves, cotangents: Leaves) -> Leaves:
    """J^T c at `primals`, differentiable in everything that it depends on.

    A primal that the function does not use, or one of whole numbers or truth values, gets a zero.
    """
    return [
        torch.zeros_like(x) if each is None else each
        for x, each in zip(primals, sparse_pullback(function, primals, cotangents), strict=True)
    ]


def sparse_pullback(function: Function, primals: Leaves, cotangents: Leaves) -> list[Tensor | None]:
    """The same, with None for a primal that the function does not use, where that is known."""
    smooth = [i for i, x in enumerate(primals) if x.is_floating_point() or x.is_complex()]

    def of_smooth(*given: Tensor) -> tuple[Tensor, ...]:
        everything = list(primals)
        for i, x in zip(smooth, given, strict=True):
            everything[i] = x
        return function(*everything)

    if private.transform_active():
        product = torch.func.vjp(of_smooth, *[primals[i] for i in smooth])[1]
        found = product(tuple(cotangents))
    else:
        found = _autograd_pullback(of_smooth, [primals[i] for i in smooth], cotangents)
    result: list[Tensor | None] = [None] * len(primals)
    for i, x in zip(smooth, found, strict=True):
        result[i] = x
    return result


def _autograd_pullback(
    function: Function, primals: Leaves, cotangents: Leaves
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
        return _sparse_grad(out, aliases, cotangents, keep=False, create=tracked)


def pushforward(
    function: Function, primals: Leaves, tangents: Leaves, like: Sequence[Tensor]
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
) -> Leaves:
    """torch.autograd.grad of a map into its own space, with zeros where no output depends on an
    input."""
    found = _sparse_grad(outputs, inputs, cotangents, keep=keep, create=create)
    return [
        torch.zeros_like(c) if each is None else each
        for c, each in zip(cotangents, found, strict=True)
    ]


def _sparse_grad(
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
    if not create:  # the many products of a linear solve
        return private.run_backward([o for o, _ in live], [c for _, c in live], inputs, keep=keep)
    return torch.autograd.grad(
        [o for o, _ in live],
        list(cast(Sequence[Tensor], inputs)),
        [c for _, c in live],
        create_graph=True,
        allow_unused=True,
    )


class Linearisation:
    """f evaluated once, with its graph, for products with its derivatives.

    Args:
        value: f(z, p), which depends on `z` and `p` by autograd's graph.
        z: the state that products with df/dz are of, or the edges of the graph where it entered,
            which do not keep it.
        p: the parameters; those that require a gradient are leaves.
        around: entered for every product; f may be evaluated again there, by a checkpoint in it.
        held: to be entered once by who takes products, for the same reason: what f closes over
            stands there as this evaluation found it.
        evaluate: f, where it may be evaluated anew for a product that compiled code refuses.

    Attributes:
        uncompiled: f is compiled and had to be evaluated once more, uncompiled.
    """

    def __init__(
        self,
        value: Leaves,
        z: Sequence[Followed],
        p: Leaves,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        held: AbstractContextManager[None] | None = None,
        evaluate: Callable[[Leaves, Leaves], Leaves] | None = None,
    ) -> None:
        self.value = value
        self.z = z
        self.p = p
        self.around = around
        self.held = nullcontext() if held is None else held
        self.uncompiled = False
        self._evaluate = evaluate
        self._doubled: tuple[Leaves, Leaves] | None = None

    @classmethod
    def at(
        cls,
        evaluate: Callable[[Leaves, Leaves], Leaves],
        z: Leaves,
        p: Leaves,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        held: AbstractContextManager[None] | None = None,
    ) -> Linearisation:
        """Evaluates f at (z, p); z is detached here."""
        with torch.enable_grad(), private.for_many_backwards():
            own = [x.detach().requires_grad_() for x in z]
            value = evaluate(own, p)
        return cls(value, own, p, around, held, evaluate)

    def transposed(self, u: Leaves) -> Leaves:
        """(df/dz)^T u."""
        try:
            with self.around():
                return _grad(self.value, self.z, u, keep=True)
        except RuntimeError:
            if self._fixed or not private.made_by_compiled_code(self.value):
                raise
        if private.allow_more_backwards(self.value):
            return self.transposed(u)
        warn(
            "f was compiled for a single backward pass, which reuses its buffers: the many "
            "products with its Jacobian run uncompiled. For compiled ones pass dynamic=False to "
            "torch.compile, and let the layer be the first to differentiate f"
        )
        self._evaluate_uncompiled()
        return self.transposed(u)

    def parameters(self, u: Leaves) -> list[Tensor | None]:
        """(df/dp)^T u for the parameters that require it, None for one that f does not use; ends
        the graph's life."""
        wanted = [x for x in self.p if x.requires_grad]
        with self.around():
            found = iter(_sparse_grad(self.value, wanted, u, keep=False))
        return [next(found) if x.requires_grad else None for x in self.p]

    def direct(self, t: Leaves) -> Leaves:
        """(df/dz) t, by reverse mode twice."""
        try:
            return self._direct(t)
        except RuntimeError:
            if self._fixed or not private.made_by_compiled_code(self.value):
                raise
        self._evaluate_uncompiled()
        return self._direct(t)

    def _direct(self, t: Leaves) -> Leaves:
        if self._doubled is None:
            with torch.enable_grad(), self.around():
                c = [torch.zeros_like(x).requires_grad_() for x in self.value]
                self._doubled = c, _grad(self.value, self.z, c, keep=True, create=True)
        c, product = self._doubled
        with self.around():
            return _grad(product, c, t, keep=True)

    @property
    def _fixed(self) -> bool:
        """Is there no other evaluation to be had?"""
        return self.uncompiled or self._evaluate is None

    def _evaluate_uncompiled(self) -> None:
        assert self._evaluate is not None
        with torch.enable_grad(), private.run_eagerly():
            self.value = self._evaluate(cast(Leaves, self.z), self.p)
        self.uncompiled = True
        self._doubled = None


class GraphKeeper(Jacobian):
    """f on rows, and its Jacobian by products.

    From the first time that a Jacobian is asked for, every evaluation keeps its graph, so that to
    linearise at the newest iterate takes no evaluation of its own. Memory: one evaluation of f.
    Compiled code can't be differentiated twice: those evaluations run uncompiled.

    Where autograd can't differentiate f twice (fused attention, custom functions) a product is a
    difference of two evaluations, exact to half of the digits.

    Args:
        plain: f, untracked.
        linearise: f at a state, tracked, with its graph.
    """

    def __init__(
        self,
        layout: Layout,
        plain: Callable[[Rows], Rows],
        linearise: Callable[[Leaves], Linearisation],
    ) -> None:
        self.cost = 1
        self._layout = self._layout_of_graph = layout
        self._plain = plain
        self._linearise = linearise
        self._keeps = False
        self._latest: Linearisation | None = None
        self._among: Tensor | None = None  # which of the graph's samples are still in the batch
        self._uncompiled = False  # f is compiled, and is evaluated uncompiled for its graph
        self._differences = False  # f can't be differentiated twice

    def evaluate(self, z: Rows) -> Rows:
        """f(z)."""
        if not self._keeps:
            return self._plain(z)
        latest = self._linearised(z)
        return self._layout.rows([leaf.detach() for leaf in latest.value])

    def select(self, index: Tensor, layout: Layout) -> None:
        """Keeps the samples named by `index`, in rows of this layout; the newest graph still holds
        all."""
        self._among, self._layout = index, layout

    def __call__(self, z: Rows) -> Product:
        self._keeps = True
        if self._latest is None:
            self._linearised(z)
        latest, among = self._latest, self._among
        assert latest is not None
        layout = self._layout_of_graph

        def by_graph(v: Rows) -> Rows:
            if among is None:
                return layout.rows(latest.direct(layout.leaves(v)))
            samples = latest.value[0].shape[0]
            v = [row.new_zeros(samples, row.shape[1]).index_copy_(0, among, row) for row in v]
            return select(layout.rows(latest.direct(layout.leaves(v))), among)

        def by_difference(v: Rows) -> Rows:
            image = layout.rows([leaf.detach() for leaf in latest.value])
            if among is not None:
                image = select(image, among)
            size = length(v)
            step = math.sqrt(torch.finfo(size.dtype).eps) * (length(z) + length(image)) / size
            step = torch.where(torch.isfinite(step) & (step > 0), step, 1.0)
            change = subtract(self._plain(add_scaled(z, step, v)), image)
            return [row / step.unsqueeze(1) for row in change]

        def product(v: Rows) -> Rows:
            if not self._differences:
                try:
                    found = by_graph(v)
                    self._uncompiled |= latest.uncompiled
                    return found
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:  # of kernels and functions without a derivative
                    self._differences = True
                    warn(
                        "f can't be differentiated twice "
                        f"({type(error).__name__}: {str(error).splitlines()[0]}): Newton's "
                        "products with its Jacobian are finite differences, to half the digits"
                    )
            return by_difference(v)

        return product

    def _linearised(self, z: Rows) -> Linearisation:
        self._latest = self._among = None  # one graph at a time
        with (
            torch.inference_mode(False),
            private.run_eagerly() if self._uncompiled else nullcontext(),
        ):
            self._latest = self._linearise(self._layout.leaves(z))
            self._layout_of_graph = self._layout
        return self._latest


class KnownProduct(Jacobian):
    """The Jacobian of an affine map, the same everywhere."""

    def __init__(self, product: Product) -> None:
        self.cost = 0
        self._product = product

    def __call__(self, z: Rows) -> Product:
        return self._product
