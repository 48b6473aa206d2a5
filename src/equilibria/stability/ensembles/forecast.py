"""What the theory of wide networks predicts of a cell, where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equilibria.nn.frozen import module_of
from equilibria.nn.init import Elementwise, Ensemble, RecurrentWeight
from equilibria.theory.meanfield import mean_field
from equilibria.theory.spectrum import radius_at

__all__ = ["Theory"]


@dataclass(frozen=True)
class Theory:
    """A cell that the theory covers, with the moments of its input; or why there is none.

    Attributes:
        cell: the form that the cell declares; None where there is no theory.
        reason: why there is none.
        input_mean: mean of the entries of u, over the batch.
        input_variance: their variance within a sample, which is what theory takes of one input,
            mean over the samples.
    """

    cell: Elementwise | None
    reason: str = ""
    input_mean: float = math.nan
    input_variance: float = math.nan

    @classmethod
    def of(
        cls,
        cell: Callable[..., Any],
        weights: Sequence[RecurrentWeight],
        operands: tuple[Any, ...],
    ) -> Theory:
        """Return what is known of a cell.

        Args:
            cell: that of the layer, which says in an attribute `theory` what form it has.
            weights: its recurrent weights.
            operands: what it is called with; the first is u.
        """
        form = getattr(module_of(cell), "theory", None)
        name = type(module_of(cell) or cell).__name__
        if not isinstance(form, Elementwise):
            return cls(
                None,
                f"{name} declares no elementwise activation (equilibria.nn.init.Elementwise), and "
                "the theory is of phi(W z) with a single W",
            )
        if len(weights) != 1:
            return cls(None, f"{name} has {len(weights)} recurrent weights, the theory one")
        u = operands[0] if operands else None
        if not (isinstance(u, Tensor) and u.is_floating_point()):
            return cls(None, f"the first operand of {name} is no tensor: the theory takes u there")
        rows = u.detach().double().reshape(len(u) if u.dim() > 1 else 1, -1)
        variance, mean = torch.var_mean(rows, 1, correction=0)
        return cls(form, "", float(mean.mean()), float(variance.mean()))

    def radius(self, ensemble: Ensemble, gain: float) -> float:
        """Return the spectral radius of J at z* for a root mean square singular value of W.

        NaN where there is no theory, or where it has no fixed point.
        """
        if self.cell is None:
            return math.nan
        try:
            found = mean_field(
                self.cell.activation,
                ensemble,
                gain**2,
                input_variance=self.input_variance,
                input_mean=self.input_mean,
                injection=self.cell.injection,
            )
            return radius_at(found)
        except ValueError:  # no solution at this V, or none that is known for this activation
            return math.nan
