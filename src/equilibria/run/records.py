"""Shapes of the JSON files in a run folder, as `run.data.storage` checks them.

That of gallery.json is said by the kind of gallery that it holds; see `GalleryKind`.
Keys that are not required may be missing: earlier versions of equilibria did not write them all.
"""

from typing import Any, Literal, NotRequired, TypedDict

from equilibria.stability import Compared

Status = dict[str, float]


class _Metric(TypedDict):
    name: str
    label: NotRequired[str]
    description: NotRequired[str]
    higher_is_better: NotRequired[bool]
    scale: NotRequired[float]
    spec: NotRequired[str]
    unit: NotRequired[str]
    plot: NotRequired[bool]


class Info(TypedDict, total=False):
    """run.json."""

    data: str | None
    source: str | None
    place: str | None
    unit: str
    eval_split: str
    parameters: int
    processes: int
    device: str
    metrics: list[_Metric]
    command: list[str]
    segments: list[dict[str, Any]]


class _Solves(TypedDict, total=False):
    evals: dict[str, float] | None
    status: Status | None


class _Figures(TypedDict, total=False):
    loss: float
    forward: _Solves
    adjoint: _Solves


class _Reuse(TypedDict):
    bytes: int


class _Audit(TypedDict):
    level: NotRequired[Literal[0, 1, 2, 3]]
    rung: NotRequired[Literal[0, 1, 2, 3]]  # what earlier versions called it


class Epoch(TypedDict):
    """A line of metrics.jsonl."""

    epoch: int
    step: NotRequired[int]
    seconds: NotRequired[float]
    train: NotRequired[_Figures]
    test: NotRequired[_Figures]
    valid: NotRequired[_Figures]
    spectral_radius: NotRequired[dict[str, float]]
    reuse: NotRequired[_Reuse]
    audit: NotRequired[_Audit]


class _Budget(_Figures):
    max_evals: int


class EvaluationRecord(_Figures, total=False):
    """evaluation.json."""

    step: int
    split: str
    at: dict[int, dict[str, float]]
    budgets: list[_Budget]
    baseline: dict[str, float | str]
    spectral_radius: dict[str, float]
    confusion: list[list[int]]


class Baseline(TypedDict):
    """baseline.json."""

    data: str
    splits: dict[str, dict[str, float]]


class Learner(TypedDict):
    """The description of a learned solver."""

    format: int
    distilled_from: str | None
    weights: str | None
    learned: dict[str, Any]
    solver: dict[str, Any]


class _PartFile(TypedDict):
    bytes: int
    sha256: str


class Manifest(TypedDict):
    """checkpoint.json."""

    format: int
    step: int
    sha256: str
    parts: dict[str, _PartFile]
    recipe: NotRequired[dict[str, Any]]
    data: NotRequired[str]
    seconds: NotRequired[float]
    metrics: NotRequired[list[Epoch]]


class OfWeights(TypedDict, total=False):
    """doctor.json, gradients.json and depth.json: of which weights they are."""

    weights: str | None


class _Solved(TypedDict):
    figure: float
    evals: float
    converged: float
    same: float


class SplitDepth(TypedDict):
    """What the answers on a split owe to the evaluations of their solves."""

    split: str
    samples: int
    figure: float
    at: dict[int, float]
    evals: list[int]
    converged: float
    starts: dict[str, _Solved]
    right_after: list[int]
    right_evals: list[int]
    difficulty: list[float]
    correlation: float | None
    sentence: str


class Depths(OfWeights):
    """depth.json."""

    metric: _Metric
    splits: list[SplitDepth]
    solver: NotRequired[str]
    max_evals: NotRequired[int]


class Adjoints(OfWeights):
    """gradients.json."""

    rows: list[Compared]
    floor: float
    sentence: str
