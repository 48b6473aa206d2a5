"""What an application says of its gallery: what is drawn of samples, and what a report tells."""

# Annotations are evaluated here: where they are postponed, a TypedDict knows no NotRequired.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.nn.using import in_eval_mode
from equilibria.run.models import EquilibriumModel, Model
from equilibria.run.pictures import make_colors, numbers_png
from equilibria.run.tasks.normalization import PixelStatistics
from equilibria.solve import Status

# --- settling -------------------------------------------------------------------------------------

# Where in an image the equilibrium is found late.


_MEMORY = 2**30
"""Bytes that the iterates of a solve may take; of a longer one some are left out, evenly."""


@dataclass(frozen=True, kw_only=True)
class Settling:
    """How the state of one image settled, place by place."""

    after: Tensor | None
    """(height, width) of the highest resolution: evaluations after which each place stays within
    the tolerance; None where the solve did not converge, so that there is no z* to settle at."""
    evals: int
    """Evaluations of the solve."""
    status: Status
    """How it ended."""


@torch.no_grad()
def measure_settling(model: Model, image: Tensor, rtol: float) -> Settling | None:
    """Solve for one image, and return where its state settled when.

    Args:
        model: any; only an equilibrium network whose state lies in a plane and is found in one
            solve has places.
        image: (1, channels, height, width).
        rtol: of the solver; see `count_to_settle`.

    Returns:
        None for a network without places.
    """
    if not isinstance(model, EquilibriumModel):
        return None
    with in_eval_mode(model):
        solutions = model(image).solutions
        if len(solutions) != 1 or _highest(solutions[0].value) is None:
            return None
        first = solutions[0]
        evals, status = int(first.stats.evals[0]), Status(int(first.status[0]))
        if status is not Status.CONVERGED:
            return Settling(after=None, evals=evals, status=status)
        leaves = pytree.tree_leaves(first.value)
        each = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        depths = list(range(0, evals, max(1, -(-evals * each // _MEMORY))))
        found = model(image, states=depths).solution
    value = _highest(found.value)
    assert value is not None  # as in the first solve
    states = [_highest(state) for state in found.states]
    after = count_to_settle([z for z in states if z is not None], value, depths, evals, rtol)
    return Settling(after=after[0], evals=evals, status=status)


def count_to_settle(
    states: Sequence[Tensor], value: Tensor, depths: Sequence[int], evals: int, rtol: float
) -> Tensor:
    """Return after how many evaluations each place stays near z*, (batch, height, width) int64.

    It is near where the root mean square of z - z* over the channels of the place is at most rtol
    times that of z* over all places and channels of the sample.

    Args:
        states: iterates, (batch, channels, height, width) each.
        value: z*, of the same shape.
        depths: evaluations after which the iterates were taken, ascending.
        evals: of the whole solve: what a place has that is not near at the last of them.
        rtol: relative tolerance.
    """
    limit = rtol * value.square().mean((1, 2, 3), keepdim=True).sqrt()[:, 0]
    after = torch.full((len(value), *value.shape[2:]), evals, device=value.device)
    near = torch.ones_like(after, dtype=torch.bool)
    for depth, state in zip(reversed(depths), reversed(states), strict=True):
        near &= (state - value).square().mean(1).sqrt() <= limit
        after[near] = depth
    return after


def _highest(state: Any) -> Tensor | None:
    """The leaf of a state with the most places; None where no leaf lies in a plane."""
    planes = [leaf for leaf in pytree.tree_leaves(state) if leaf.ndim == 4]
    return max(planes, key=lambda leaf: leaf.shape[2] * leaf.shape[3], default=None)


# --- hanging --------------------------------------------------------------------------------------

# Pictures of a gallery as they are collected, and what is common to all kinds.


@dataclass
class Hanging:
    """What is being collected: the pictures with their files, and maps that share one scale."""

    pictures: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    maps: list[tuple[dict[str, Any], Tensor, tuple[int, int]]] = field(default_factory=list)

    def add(
        self, about: dict[str, Any], settled: Settling | None, size: tuple[int, int], **png: bytes
    ) -> None:
        """Add a picture.

        Args:
            about: what is told of it.
            settled: how its solve went.
            size: of its files, in pixels.
            png: files by what they show.
        """
        place = len(self.pictures)
        names = {what: f"{place}-{what}.png" for what in png}
        self.files.update({names[what]: content for what, content in png.items()})
        solve = None
        if settled is not None:
            solve = {"evals": settled.evals, "status": settled.status.name}
            if settled.after is not None:
                self.maps.append((names, settled.after, size))
                names["late"] = f"{place}-late.png"
        self.pictures.append({**about, "files": names, "solve": solve})

    def scale(self) -> dict[str, Any] | None:
        """Draw the maps in colours that mean the same in all; return which number has which."""
        if not self.maps:
            return None
        low = min(int(after.min()) for _, after, _ in self.maps)
        high = max(int(after.max()) for _, after, _ in self.maps)
        colors = make_colors(high - low + 1)
        # A palette has 256 colours: of more numbers, neighbours share one.
        step = -(-len(colors) // 255)
        for names, after, size in self.maps:
            self.files[names["late"]] = numbers_png((after - low) // step, colors[::step], size)
        return {"low": low, "high": high, "colours": [hex_of(color) for color in colors]}


def as_it_was(image: Tensor, statistics: PixelStatistics | None) -> Tensor:
    """An image (channels, height, width) before it was normalised."""
    if statistics is None:
        return image
    mean, deviation = (
        torch.tensor(each)[:, None, None] for each in (statistics.mean, statistics.deviation)
    )
    return image * deviation + mean


def rtol_of(model: Model) -> float:
    """The relative tolerance of the solver that evaluates; 0 of an explicit network."""
    if not isinstance(model, EquilibriumModel):
        return 0.0
    return (model.deq.eval_solver or model.deq.solver).finest


def hex_of(color: Sequence[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)


# --- kind -----------------------------------------------------------------------------------------


# Annotations are evaluated here: where they are postponed, a TypedDict knows no NotRequired.


HEADS = {
    "image": "image",
    "truth": "truth",
    "told": "predicted",
    "late": "settled after",
    "error": "error",
}
"""What a page calls the files of a picture by default, in the order in which they stand."""


class _Solve(TypedDict):
    evals: int
    status: str


class _Scale(TypedDict):
    low: int
    colours: list[str]


class PictureRecord(TypedDict):
    """One of the `pictures` in gallery.json, to be extended by what a kind tells of it."""

    files: dict[str, str]
    solve: _Solve | None


class Stored(TypedDict):
    """gallery.json, to be extended by `pictures` and by what else a kind keeps."""

    version: int
    weights: str | None
    data: str
    kind: str
    count: int
    seen: int
    rtol: float
    scale: _Scale | None
    classes: NotRequired[list[tuple[str, str]]]


def _explain_map(content: Mapping[str, Any]) -> str:
    return (
        "The map “settled after” shows where the solve converges late: for each position of "
        "the state at its highest resolution, the number of evaluations after which it stays "
        f"within {content['rtol']:g} of z*, the solver's tolerance, relative to the root mean "
        "square of z* over that resolution. Bright positions settle last."
    )


def _name(picture: Mapping[str, Any]) -> str:
    return picture["name"]


def _is_never_wrong(picture: Mapping[str, Any]) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class GalleryKind:
    """A kind of gallery: how it is made, the shape in which it is kept, and a report's words on it.

    An application registers it by a name, which a task gives as `Task.gallery`. What the functions
    are given as a content is a gallery as `equilibria.run.gallery.hang` returns it, and a picture
    is one of its `pictures`.

    Attributes:
        hang: picks test samples of a task and draws what a model makes of them; takes the task, the
            model and how many samples are evaluated together. Returns the pictures and what is told
            of them all, `count` of the test samples and `seen`, those that were looked at, among
            it; None where nothing can be shown.
        shape: of gallery.json, as `equilibria.run.data.storage` checks it: it extends `Stored`.
        describe: says of a content what is shown, and how it was chosen.
        note: says of a picture what was told in it, in some short lines; that of its solve is
            added. It raises ValueError or LookupError where a picture that was kept is damaged, and
            the gallery is then made again.
        title: of a picture; by default its `name`.
        is_wrong: whether what was told in a picture is a mistake, which is marked.
        explain_map: says of a content what the map "late" shows, where there is one.
        heads: what each of a picture's files is called, in the order in which they stand; one that
            has no head is not shown. Where "late" has one, and a picture that was solved for has no
            such map, the report says why.
        many_solves: whether each point of a picture has a solve of its own, so that the evaluations
            told are the most of all.
        wide: whether a picture takes the page's width.
        columns: files that stand side by side in a picture.
    """

    hang: Callable[[Any, Model, int], tuple[Hanging, dict[str, Any]] | None]
    shape: Any
    describe: Callable[[Mapping[str, Any]], str]
    note: Callable[[Mapping[str, Any]], Sequence[str]]
    title: Callable[[Mapping[str, Any]], str] = _name
    is_wrong: Callable[[Mapping[str, Any]], bool] = _is_never_wrong
    explain_map: Callable[[Mapping[str, Any]], str] = _explain_map
    heads: Mapping[str, str] = field(default_factory=lambda: HEADS)
    many_solves: bool = False
    wide: bool = True
    columns: int = 4
