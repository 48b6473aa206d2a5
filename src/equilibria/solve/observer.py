"""What is recorded of a solve besides its solution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equilibria.solve.rows import relative_by_leaf
from equilibria.solve.solvers import Point, Stepper


class Observer:
    """Notes the residuals of every evaluation, and what a method knows of samples that end.

    Args:
        samples: in the solve; tables have a row for each of them.
        trace: note the residuals, and at the end the Ritz values.
    """

    def __init__(self, samples: int, trace: bool) -> None:
        self.samples = samples
        self.traces = trace
        self._relative: list[Tensor] = []
        self._by_leaf: list[Tensor] = []
        self._tables: dict[str, Tensor] = {}

    def note_evaluation(
        self, point: Point, relative: Tensor, running: Tensor, index: Tensor | None
    ) -> None:
        """Notes an evaluation.

        Args:
            relative: residual of each sample in the batch.
            running: which of them have not finished.
            index: of the samples in the batch, among all; None: all.
        """
        rows = [row.detach() for row in (*point.residual, *point.f)]
        leaves = len(point.f)
        each = relative_by_leaf(rows[:leaves], rows[leaves:])
        relative = torch.where(running, relative, math.nan)
        each = torch.where(running, each, math.nan)
        if index is not None:
            relative = relative.new_full((self.samples,), math.nan).index_copy(0, index, relative)
            empty = each.new_full((leaves, self.samples), math.nan)
            each = empty.index_copy(1, index, each)
        self._relative.append(relative)
        self._by_leaf.append(each)

    def note_end(self, stepper: Stepper, here: Tensor, at: Tensor) -> None:
        """Notes what the method knows of the samples that end, which are `here` in the batch and
        `at` among all."""
        if self.traces and (ritz := stepper.ritz(here)) is not None:
            self._note("ritz", ritz, at, math.nan)
        if (choices := stepper.choices()) is not None:
            self._note("choices", choices.index_select(0, here), at, 0)

    def results(self, evals: Tensor, phases: int) -> dict[str, Tensor]:
        """Fields of `Stats`.

        Args:
            evals: of each sample, all phases together.
            phases: that the method has.
        """
        if phases:
            later = self._tables.get("choices", evals.new_zeros(self.samples, phases))[:, 1:]
            first = (evals - later.sum(1)).unsqueeze(1)
            self._tables["choices"] = torch.cat([first, later], 1)
        if not self._relative:
            return self._tables
        trace, by_leaf = torch.stack(self._relative), torch.stack(self._by_leaf)
        return {**self._tables, "trace": trace, "leaf_trace": by_leaf}

    def _note(self, name: str, rows: Tensor, at: Tensor, fill: float) -> None:
        """Writes the rows into a table, of which the shorter rows end with `fill`."""
        table = self._tables.get(name)
        if table is None:
            table = rows.new_full((self.samples, rows.shape[1]), fill)
        width = max(table.shape[1], rows.shape[1])
        table, rows = (
            torch.nn.functional.pad(x, (0, width - x.shape[1]), value=fill) for x in (table, rows)
        )
        self._tables[name] = table.index_copy(0, at, rows)
