"""What an application says of its gallery: what is drawn of samples, and what a report tells."""

# Annotations are evaluated here: where they are postponed, a TypedDict knows no NotRequired.
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from equilibria.run.gallery.hanging import Hanging
from equilibria.run.models import Model

__all__ = ["HEADS", "GalleryKind", "Picture", "Stored"]

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


class Picture(TypedDict):
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
        shape: of gallery.json, as `equilibria.run.data.stored` checks it: it extends `Stored`.
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
