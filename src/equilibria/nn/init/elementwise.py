"""Cells for which there is a theory of how they start: one weight and an elementwise activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

__all__ = ["Elementwise"]


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
