"""Derivatives of a cell that autograd gets wrong: its products against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from equilibria.nn.frozen import module_of
from equilibria.solve import Shared
from equilibria.stability.examined import Exact, map_floats
from equilibria.words import list_some, percent

RANDOM, COVECTORS = 2, 4
"""Random directions of a change, beside that in which an input grows, which normalisers undo."""

STEPS = (1e-7, 1e-5, 1e-3, 1e-1)
"""Steps of the differences, relative to the size of what is changed: the smallest for kinks, the
larger ones for a cell that computes in less than float64, where smaller ones change nothing."""

AWAY = 1e-3
"""How far from the solution f is differentiated: there it may have kinks, as a ReLU at zero has."""

SUSPECT, WRONG = 1e-6, 1e-3
"""Relative errors from which the inputs of a group are looked at one by one, and from which the
derivative with respect to one is called wrong."""

NOISE = 20.0
"""The same in units of what the differences of two steps are apart."""

FAINT = 1e-6
"""Change of f, relative to itself, for a change of an input as large as itself, that is nothing."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """An input of f whose derivative autograd gets wrong.

    Attributes:
        of: "the state", "leaf 1 of the state", "operand 0", "parameter linear.weight".
        error: of w^T (df/d of) v over random v and w, relative to the larger of what autograd and
            finite differences give: 1 where autograd finds no dependence.
        uncertainty: relative, of the finite differences.
    """

    of: str
    error: float
    uncertainty: float


def describe_cuts(cuts: Sequence[Cut]) -> str:
    """Name the derivatives that are wrong, the worst first."""
    named = [f"{cut.of} ({percent(cut.error)})" for cut in cuts]
    return (
        "Autograd's derivative of f is not that of finite differences, with respect to "
        f"{list_some(named, 8)}. Every gradient is wrong, the exact one too"
    )


ADVICE = (
    "Look for what leaves autograd on the way from these inputs to the value of f: detach(), "
    "item(), float(), numpy, torch.no_grad(), or torch.autograd.grad without create_graph=True "
    "(torch.func.grad is always right). Leave it if it is meant, as in a straight-through "
    "estimator."
)


def find_cuts(exact: Exact, seed: int) -> tuple[Cut, ...]:
    """Compares products with the Jacobians of f with central differences, near the solution.

    For random v and w, w^T (df/dq) v by one backward pass is compared with
    w^T (f(q + h v) - f(q - h v)) / 2 h in float64, q the state, the operands and the parameters:
    each kind together, and input by input where that finds an error. The step is the one whose
    difference is nearest that of a step twice as long, and what these are apart is not held against
    autograd. Takes some 36 evaluations of f where nothing is wrong.

    Args:
        exact: the layer in float64, at its solution.
        seed: of the directions.

    Returns:
        What is wrong, the worst first; nothing where f raises near its solution, as for an index
        out of range, or is not finite there.
    """
    probe = _Probe.of(exact, torch.Generator().manual_seed(seed))
    with suppress(AssertionError, IndexError, RuntimeError, ValueError), probe.preserve():
        return tuple(sorted(probe.find(), key=lambda cut: -cut.error))
    return ()


@dataclass
class _Probe:
    """f as a function of a list of tensors: the leaves of the state, of the operands, parameters.

    Attributes:
        f: of these tensors, to the leaves of its value.
        names: what they are called.
        groups: their numbers, kind by kind.
        base: where f is differentiated.
        parameters: that are written to; they begin at number `first`.
    """

    f: Callable[[Sequence[Tensor]], list[Tensor]]
    names: list[str]
    groups: list[list[int]]
    base: list[Tensor]
    parameters: list[Tensor]
    first: int
    generator: torch.Generator

    @classmethod
    def of(cls, exact: Exact, generator: torch.Generator) -> _Probe:
        cell: Callable[..., Any] = exact.patient.layer.cell
        state, spec = pytree.tree_flatten(exact.solution.value)
        operands: list[Tensor] = []
        named = [f"leaf {i} of the state" for i in range(len(state))]
        names = named if len(state) > 1 else ["the state"]
        for number, operand in enumerate(exact.operands):
            before = len(operands)
            map_floats(operands.append, operand)  # pyright: ignore[reportArgumentType]
            count = len(operands) - before
            leaves = (f"leaf {i} of operand {number}" for i in range(count))
            names = [*names, *(leaves if count > 1 else [f"operand {number}"] * count)]
        owner = module_of(cell)
        parameters = {} if owner is None else dict(owner.named_parameters())
        parameters = {k: p for k, p in parameters.items() if p.is_floating_point()}
        n, first = len(state), len(state) + len(operands)
        everything = [*state, *operands, *parameters.values()]

        def f(tensors: Sequence[Tensor]) -> list[Tensor]:
            given = iter(tensors[n:first])
            tree = map_floats(lambda _: next(given), exact.operands)
            plain = [x.value if isinstance(x, Shared) else x for x in tree]
            return pytree.tree_leaves(cell(pytree.tree_unflatten(tensors[:n], spec), *plain))

        return cls(
            f=f,
            names=[*names, *(f"parameter {name}" for name in parameters)],
            groups=[[*range(n)], [*range(n, first)], [*range(first, len(everything))]],
            base=[x.detach().clone() for x in everything],
            parameters=list(parameters.values()),
            first=first,
            generator=generator,
        )

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """The parameters are afterwards what they were."""
        before = [p.detach().clone() for p in self.parameters]
        try:
            yield
        finally:
            self._write(before)

    def find(self) -> Iterator[Cut]:
        """The cuts of each kind of inputs: by itself, where that is enough to be wrong."""
        for group in self.groups if self.begin() else ():
            whole = self.compare(group, SUSPECT)
            if whole is None:
                continue
            each = [cut for i in group if (cut := self.compare([i], WRONG)) is not None]
            yield from each or ([whole] if whole.error > WRONG else [])

    def begin(self) -> bool:
        """Differentiates f near the solution; is all finite there?"""
        solution = self.base
        units = self._units()
        for by_entry in (False, True):  # a change of each entry by a share of it keeps its sign
            self.scales = [
                x.abs() if by_entry else x.new_tensor(unit).expand_as(x)
                for x, unit in zip(solution, units, strict=True)
            ]
            away = self._direction(range(len(solution)))
            self.base = [x + AWAY * v for x, v in zip(solution, away, strict=True)]
            if self._linearize():
                return True
        return False

    def _units(self) -> list[float]:
        """The size of each input; of one that is zero, the smallest of its kind."""
        found = [_unit(x) for x in self.base]
        for group in self.groups:
            least = min((found[i] for i in group if found[i] > 0), default=1.0)
            for i in group:
                found[i] = found[i] or least
        return found

    def _linearize(self) -> bool:
        """w^T df for some w, with respect to all inputs."""
        self._write(self.base[self.first :])
        leaves = [x.detach().requires_grad_() for x in self.base[: self.first]]
        inputs = [*leaves, *(p.requires_grad_() for p in self.parameters)]
        with torch.enable_grad(), _Precision() as seen:
            out = self.f(inputs)
        self.steps = [h for h in STEPS if h >= math.sqrt(seen.eps)]
        self.sizes = [_unit(x) or 1.0 for x in out]
        width = sum(x.numel() for x in out)
        like = out[0].detach().double()
        self.covectors = self._normal(like.new_empty(COVECTORS, width))
        self.pulled: list[list[Tensor]] = []
        tracked = [i for i, x in enumerate(out) if x.requires_grad]
        for w in self.covectors:
            pieces = w.split([x.numel() for x in out])
            given = [
                (piece / size).view_as(x).to(x)
                for piece, size, x in zip(pieces, self.sizes, out, strict=True)
            ]
            grads = [torch.zeros_like(x) for x in inputs]
            if tracked:
                grads = torch.autograd.grad(
                    *([out[i] for i in tracked], inputs, [given[i] for i in tracked]),
                    retain_graph=True,
                    materialize_grads=True,
                )
            self.pulled.append(list(grads))
        tensors = [*out, *(g for grads in self.pulled for g in grads)]
        return all(bool(x.isfinite().all()) for x in tensors)

    def compare(self, which: Sequence[int], limit: float) -> Cut | None:
        """A cut with respect to some inputs together; None where the error is below the limit."""
        if not which:
            return None
        expected, found, sizes, errors = [], [], [], []
        own = [x if i in which else torch.zeros_like(x) for i, x in enumerate(self.base)]
        for v in (own, *(self._direction(which) for _ in range(RANDOM))):
            change, uncertain = self._differentiate(v)
            if not math.isfinite(uncertain):
                return None
            sizes.append(float(change.norm()))
            errors.append(uncertain)
            expected.append(self.covectors @ change)
            products = [
                sum(float((grads[i].double() * v[i]).sum()) for i in which) for grads in self.pulled
            ]
            found.append(change.new_tensor(products))
        noise = math.hypot(*errors) / (math.hypot(*sizes) or 1.0)
        exact, ours = torch.stack(expected), torch.stack(found)
        apart, size = float((exact - ours).norm()), float(torch.maximum(exact.norm(), ours.norm()))
        if not apart > max(limit, NOISE * noise) * size:
            return None
        if apart <= FAINT * math.sqrt(exact.numel() * self.covectors.shape[1]):
            return None
        names = [self.names[i] for i in which]
        return Cut(of=list_some(names, 3), error=apart / size, uncertainty=noise)

    def _differentiate(self, v: Sequence[Tensor]) -> tuple[Tensor, float]:
        """(df) v by differences, each leaf of f in units of its size; and their uncertainty."""
        best, least, uncertain = torch.zeros_like(self.covectors[0]), math.inf, math.inf
        still = True  # has nothing changed at any step?
        for h in self.steps:
            near, far = self._difference(v, h), self._difference(v, 2 * h)
            size = float(torch.maximum(near.norm(), far.norm()))
            if size == 0:  # or the step is below the precision of f
                continue
            still = False
            apart = float((near - far).norm())
            if apart / size < least:
                best, least, uncertain = near, apart / size, apart
            if least < SUSPECT / NOISE:
                break
        return best, 0.0 if still else uncertain

    def _difference(self, v: Sequence[Tensor], h: float) -> Tensor:
        ahead, behind = self._evaluate(v, h), self._evaluate(v, -h)
        return (ahead - behind) / (2 * h)

    @torch.no_grad()
    def _evaluate(self, v: Sequence[Tensor], h: float) -> Tensor:
        moved = [x + h * step for x, step in zip(self.base, v, strict=True)]
        self._write(moved[self.first :])
        out = self.f(moved)
        pairs = zip(out, self.sizes, strict=True)
        return torch.cat([(x.detach().double() / size).flatten() for x, size in pairs])

    def _direction(self, which: Sequence[int]) -> list[Tensor]:
        """Random changes of some inputs, as large as they are; none of the others."""
        return [
            self._normal(scale) * scale if i in which else torch.zeros_like(scale)
            for i, scale in enumerate(self.scales)
        ]

    def _normal(self, like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, dtype=torch.float64, generator=self.generator)
        return drawn.to(like)

    @torch.no_grad()
    def _write(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)


class _Precision(TorchFunctionMode):
    """Notes `eps` of the coarsest dtype that a derivative goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = torch.finfo(torch.float64).eps

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(out):
            if isinstance(x, Tensor) and x.is_floating_point() and x.requires_grad:
                self.eps = max(self.eps, torch.finfo(x.dtype).eps)
        return out


def _unit(x: Tensor) -> float:
    """Root mean square of the entries; 0 of none."""
    return float(x.detach().double().square().mean().sqrt()) if x.numel() else 0.0
