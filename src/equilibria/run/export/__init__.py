"""Trained models as files that run without this library: torch.export and ONNX.

A file takes raw inputs, as they were before the task prepared them, and gives logits. What it does
is a fixed sequence of operations: a model that solves to a tolerance is exported with a chosen
number of evaluations. `exportable` does that alone, for any module that holds a `DEQ`.
"""

from equilibria.run.export.exporting import Exported, export
from equilibria.run.export.inference import exportable
from equilibria.run.export.judging import Judgment, find_evals, judge
from equilibria.run.export.program import ExportError

__all__ = ["ExportError", "Exported", "Judgment", "export", "exportable", "find_evals", "judge"]
