"""Test samples beside what the network makes of them, in the words of their application."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from equilibria.run import registry
from equilibria.words import plural

if TYPE_CHECKING:
    from equilibria.run.gallery.kind import GalleryKind


_STEPS = 6
"""Numbers of a scale that are named."""


@dataclass(frozen=True)
class Picture:
    """An image in the page itself.

    Attributes:
        source: a data URI.
        head: what it is, in a word; empty where the image stands alone.
        says: the same for those who cannot see it.
    """

    source: str
    head: str
    says: str


@dataclass(frozen=True)
class Card:
    """One test sample, with all that is drawn of it.

    Attributes:
        title: what it shows, or its name.
        notes: what was told, and how its solve went.
        wrong: whether that is a mistake.
        pictures: of one size.
    """

    title: str
    notes: Sequence[str]
    wrong: bool
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Gallery:
    """Cards with a text, and what their colours mean.

    Attributes:
        texts: on what is shown, and how it was chosen.
        cards: one a sample.
        classes: names with colours.
        scale: numbers of evaluations with colours.
        wide: whether a card takes the page's width.
        columns: pictures that stand side by side in a card.
    """

    texts: Sequence[str]
    cards: Sequence[Card]
    classes: Sequence[tuple[str, str]]
    scale: Sequence[tuple[str, str]]
    wide: bool
    columns: int


def gallery(content: Mapping[str, Any] | None) -> Gallery | None:
    """Return what the page shows of a gallery; None where there is none.

    Args:
        content: of a `kind` that an application registers, as `page` describes it.
    """
    if not content or not content["pictures"]:
        return None
    kind: GalleryKind = registry.resolve(registry.find("galleries")[content["kind"]])
    texts = [kind.describe(content)]
    if scale := content["scale"]:
        texts.append(kind.explain_map(content))
    unmapped = (each["solve"] and "late" not in each["files"] for each in content["pictures"])
    if "late" in kind.heads and any(unmapped):
        texts.append("Where a solve did not converge there is no z* to settle at, and no map.")
    return Gallery(
        texts=texts,
        cards=[_card(picture, kind) for picture in content["pictures"]],
        classes=[(name, color) for name, color in content.get("classes", ())],
        scale=_label_scale(scale["low"], scale["colours"]) if scale else [],
        wide=kind.wide,
        columns=kind.columns,
    )


def _card(picture: Mapping[str, Any], kind: GalleryKind) -> Card:
    title, notes, solve = kind.title(picture), [*kind.note(picture)], picture["solve"]
    if solve is not None:
        ended = "" if solve["status"] == "CONVERGED" else f", {solve['status']}"
        most = "at most " if kind.many_solves else ""
        notes.append(f"{most}{plural(solve['evals'], 'evaluation')}{ended}")
    several = len(picture["files"]) > 1
    pictures = [
        Picture(
            "data:image/png;base64," + base64.b64encode(picture["files"][what]).decode("ascii"),
            head if several else "",
            f"{title}: {head}",
        )
        for what, head in kind.heads.items()
        if what in picture["files"]
    ]
    return Card(title, notes, kind.is_wrong(picture), pictures)


def _label_scale(low: int, colors: Sequence[str]) -> list[tuple[str, str]]:
    """Some numbers of a scale, its ends among them, with their colours."""
    last = len(colors) - 1
    steps = min(_STEPS - 1, last)
    places = sorted({round(k * last / steps) for k in range(steps + 1)}) if steps else [0]
    return [(str(low + place), colors[place]) for place in places]
