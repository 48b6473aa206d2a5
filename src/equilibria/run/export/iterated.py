"""A chosen number of evaluations in place of a solve to a tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from equilibria.nn import DEQ
from equilibria.solve import Shared, flatten, unflatten

Method = Literal["anderson", "picard"]
"""How one state follows from the ones before."""

HISTORY = 5
"""Differences that Anderson acceleration keeps in an exported graph."""

PERIOD = 3
"""Evaluations from one extrapolation to the next: each is a system of its own in the graph."""

RIDGE = 1e-5
"""Tikhonov term, relative to each difference's squared length: the system is solved in float32."""


class IteratedValue(NamedTuple):
    """What stands for the `Solution` of a layer: the state alone."""

    value: Any

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"'{name}' of a solution is not known in an exportable copy, whose number of "
            "evaluations is fixed: let the forward that is exported read `value` alone"
        )


class Iterated(nn.Module):
    """A `DEQ` that evaluates its cell so many times, whatever the residual is then.

    All of it is tensor operations without a branch on data, so that it can be exported. It is for
    evaluation mode: nothing is frozen, since neither weights nor masks change.

    Args:
        layer: whose cell and start it takes; its parametrised weights must be plain ones by now.
        evals: evaluations of the cell.
        method: plain iteration, or Anderson acceleration with `HISTORY` differences.

    Attributes:
        residuals: while a list, each call appends the relative residuals (samples,) of the start
            and of the state after each evaluation, (evals + 1, samples), at the cost of one more
            evaluation.
    """

    def __init__(self, layer: DEQ, evals: int, method: Method) -> None:
        super().__init__()
        self.cell, self.init, self.start = layer.cell, layer.init, layer.start
        self.has_aux = layer.has_aux
        self.evals = evals
        self.method: Method = method
        self.residuals: list[Tensor] | None = None

    def forward(
        self, *inputs: Any, z0: Any = None, warm: Any = None, **options: Any
    ) -> IteratedValue:
        """Return the state after `evals` evaluations from z0, `warm` or the layer's own start.

        The other options of a layer's call change what is said of a solution, and not its value;
        other keywords are the cell's.

        Raises:
            ValueError: several starts are asked for.
        """
        if options.get("starts") is not None:
            raise ValueError(
                "an exported layer iterates from one start: leave starts out, or pass the chosen "
                "one as z0"
            )
        if z0 is None:
            z0 = self.start(*inputs) if warm is None else warm.value
        operands = [_bare(x) for x in inputs]
        keywords = {key: _bare(x) for key, x in options.items() if key not in DEQ.options}
        leaves, spec = flatten(z0)
        shapes = [leaf.shape[1:] for leaf in leaves]
        sizes = [shape.numel() for shape in shapes]

        def tree(rows: Tensor) -> Any:
            parts = rows.split(sizes, 1) if sizes[1:] else (rows,)
            shaped = zip(parts, shapes, strict=True)
            # Whatever does nothing is left out: it would be in the graph at every evaluation.
            return unflatten(
                [x.reshape(-1, *shape) if len(shape) > 1 else x for x, shape in shaped], spec
            )

        def f(rows: Tensor) -> Tensor:
            out = self.cell(tree(rows), *operands, **keywords)
            return _rows(flatten(out[0] if self.has_aux else out)[0])

        seen: list[Tensor] | None = None if self.residuals is None else []
        rows = iterate(f, _rows(leaves), self.evals, self.method, seen)
        if seen is not None and self.residuals is not None:
            seen.append(relative(f(rows), rows))
            self.residuals.append(torch.stack(seen))
        return IteratedValue(tree(rows))


def iterate(
    f: Callable[[Tensor], Tensor],
    z: Tensor,
    evals: int,
    method: Method,
    seen: list[Tensor] | None = None,
) -> Tensor:
    """Return the state (samples, entries) after so many evaluations of f.

    Args:
        f: the map.
        z: the start.
        evals: evaluations of f.
        method: plain iteration, or Anderson acceleration at every third evaluation, in
            difference form; see `eq.Anderson`.
        seen: takes the relative residuals of the states that f was evaluated at.
    """
    moves: list[Tensor] = []
    changes: list[Tensor] = []
    last: tuple[Tensor, Tensor] | None = None
    for count in range(1, evals + 1):
        image = f(z)
        if seen is not None:
            seen.append(relative(image, z))
        if method == "picard":
            z = image
            continue
        residual = image - z
        if last is not None:
            moves = [*moves, image - last[0]][-HISTORY:]
            changes = [*changes, residual - last[1]][-HISTORY:]
        last, z = (image, residual), image
        if count % PERIOD == 0 and count >= 2 * PERIOD:
            gamma = _coefficients(torch.stack(changes, 1), residual)
            z = image - (gamma.unsqueeze(1) @ torch.stack(moves, 1)).squeeze(1)
    return z


def relative(image: Tensor, z: Tensor) -> Tensor:
    """Return ||f(z) - z|| / ||f(z)|| of each sample, (samples,); 0 where f(z) = z = 0."""
    size, residual = image.norm(dim=1), (image - z).norm(dim=1)
    return torch.where(residual == 0, residual, residual / size)


def _bare(operand: Any) -> Any:
    return operand.value if isinstance(operand, Shared) else operand


def _rows(leaves: list[Tensor]) -> Tensor:
    flat = [leaf if leaf.dim() == 2 else leaf.flatten(1) for leaf in leaves]
    return torch.cat(flat, 1) if flat[1:] else flat[0]


def _coefficients(changes: Tensor, residual: Tensor) -> Tensor:
    """gamma, (samples, k), with least ||residual - gamma changes||, by elimination.

    ONNX has no operation that solves a system. The differences are brought to length 1, so that
    neither the scale of z nor how far the iteration has come matters.
    """
    lengths = changes.norm(dim=2, keepdim=True)
    unit = changes / torch.where(lengths > 0, lengths, 1.0)
    count = unit.shape[1]
    identity = torch.eye(count, dtype=unit.dtype, device=unit.device)
    matrix = unit @ unit.transpose(1, 2) + RIDGE * identity
    system = torch.cat([matrix, unit @ residual.unsqueeze(2)], 2)
    for k in range(count):  # positive definite: no pivoting
        row = system[:, k : k + 1] / system[:, k : k + 1, k : k + 1]
        system = system - (system[:, :, k : k + 1] - identity[:, k : k + 1]) * row
    solved = system[:, :, -1:] / torch.where(lengths > 0, lengths, 1.0)
    return solved.squeeze(2)
