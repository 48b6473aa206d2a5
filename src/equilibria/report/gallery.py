"""Test images beside what the network makes of them, and where its equilibrium was found late."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equilibria.words import percent, plural

__all__ = ["Card", "Gallery", "Picture", "gallery"]

_STEPS = 6
"""Numbers of a scale that are named."""

_HEADS = {
    "image": "image",
    "second": "next image",
    "truth": "truth",
    "told": "predicted",
    "late": "settled after",
    "error": "error",
    "moves": "still moves",
}


_SIGNAL_HEADS = {"image": "original", "told": "reconstruction"}
"""What is called otherwise where a network represents a signal."""


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
    """One test image, with all that is drawn of it.

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
        cards: one an image.
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
        content: of `kind` "classification", "segmentation", "flow" or "signal", as `page` describes
            it.
    """
    if not content or not content["pictures"]:
        return None
    kind = content["kind"]
    texts = [_TEXTS[kind](content)]
    if (scale := content["scale"]) and kind == "signal":
        texts.append(
            "The map “settled after” shows where the solve converges late: each point is a sample "
            "with a solve of its own, and has the number of evaluations that this took, to a "
            f"relative residual of {content['rtol']:g}. Bright points converge last."
        )
    elif scale:
        texts.append(
            "The map “settled after” shows where the solve converges late: for each position of "
            "the state at its highest resolution, the number of evaluations after which it stays "
            f"within {content['rtol']:g} of z*, the solver's tolerance, relative to the root mean "
            "square of z* over that resolution. Bright positions settle last."
        )
    settle = kind not in ("flow", "signal")
    if settle and any(p["solve"] and "late" not in p["files"] for p in content["pictures"]):
        texts.append("Where a solve did not converge there is no z* to settle at, and no map.")
    return Gallery(
        texts=texts,
        cards=[_card(picture, kind) for picture in content["pictures"]],
        classes=[(name, colour) for name, colour in content.get("classes", ())],
        scale=_named(scale["low"], scale["colours"]) if scale else [],
        wide=kind != "classification",
        columns=3 if kind == "flow" else 4,
    )


def _answers(content: Mapping[str, Any]) -> str:
    seen, wrong, pictures = content["seen"], content["wrong"], content["pictures"]
    shown = sum(_mistaken(picture) for picture in pictures)
    images = plural(seen, "test image")
    of = f"Of all {images}," if seen == content["count"] else f"Of {images} taken at random,"
    if not shown:
        return f"{of} none is misclassified. Shown are the first {len(pictures)}."
    return (
        f"{of} {wrong} {'is' if wrong == 1 else 'are'} misclassified. Shown are the first {shown} "
        f"of these and the first {len(pictures) - shown} of the others: the selection does not "
        "reflect how frequent mistakes are."
    )


def _scenes(content: Mapping[str, Any]) -> str:
    return (
        f"{content['seen']} of {plural(content['count'], 'test image')}, evenly spaced, whatever "
        "the network predicts for them. Void pixels of the truth are left blank."
    )


def _pairs(content: Mapping[str, Any]) -> str:
    text = (
        f"{content['seen']} of {plural(content['count'], 'test pair')}, evenly spaced. The hue of "
        "a flow is its direction (red to the right, yellow down, cyan to the left, violet up), its "
        f"saturation the length; beyond {content['pixels']:.3g} pixels it is darker. The map "
        "“error” shows the distance from the true flow"
    )
    if any("moves" in picture["files"] for picture in content["pictures"]):
        text += ", and “still moves” the distance by which one more evaluation moves the flow"
    return (
        f"{text}, on a logarithmic scale from .001 pixels (black) to 10 (white); red is more. "
        "Pixels whose true flow is unknown are black."
    )


def _signal(content: Mapping[str, Any]) -> str:
    if content["signal"] == "shape":
        return (
            "Sections through the middle of the shape; white is inside, and the map “error” black "
            "where the network is wrong."
        )
    what = {"image": "The image", "film": f"{content['seen']} of {content['count']} frames"}
    constant = (
        ", with the mean of the original, which its gradient leaves free" * (content["constant"])
    )
    return (
        f"{what[content['signal']]} beside what the network makes of it{constant}. The map “error” "
        f"is white where both agree and black where they are {content['black']:.0%} of the range "
        "from black to white apart, or more."
    )


_TEXTS = {"classification": _answers, "segmentation": _scenes, "flow": _pairs, "signal": _signal}


def _mistaken(picture: Mapping[str, Any]) -> bool:
    return "truth" in picture and picture["told"][0][0] != picture["truth"]


def _card(picture: Mapping[str, Any], kind: str) -> Card:
    solve, wrong = picture["solve"], _mistaken(picture)
    if kind == "flow":
        title = picture["name"]
        notes = [f"error {picture['epe']:.2f} px, of zero flow {picture['zero']:.2f} px"]
    elif kind == "signal":
        title = picture["name"]
        notes = [
            f"{percent(picture['wrong'])} of the points wrong"
            if "wrong" in picture
            else f"root mean square error {picture['error']:.2%} of the range"
        ]
    elif kind == "segmentation":
        title, notes = picture["name"], [f"{percent(picture['right'])} of the pixels correct"]
    else:
        title = picture["truth"]
        (best, chance), *others = picture["told"]
        notes = [f"{'predicted ' + best if wrong else 'correct'}, {percent(chance)}"]
        if others:
            notes.append("then " + ", ".join(f"{name} {percent(value)}" for name, value in others))
    if solve is not None:
        ended = "" if solve["status"] == "CONVERGED" else f", {solve['status']}"
        most = "at most " * (kind == "signal")
        notes.append(f"{most}{plural(solve['evals'], 'evaluation')}{ended}")
    heads = {**_HEADS, **_SIGNAL_HEADS} if kind == "signal" else _HEADS
    several = len(picture["files"]) > 1
    pictures = [
        Picture(
            "data:image/png;base64," + base64.b64encode(picture["files"][what]).decode("ascii"),
            head if several else "",
            f"{title}: {head}",
        )
        for what, head in heads.items()
        if what in picture["files"]
    ]
    return Card(title, notes, wrong, pictures)


def _named(low: int, colours: Sequence[str]) -> list[tuple[str, str]]:
    """Some numbers of a scale, its ends among them, with their colours."""
    last = len(colours) - 1
    steps = min(_STEPS - 1, last)
    places = sorted({round(k * last / steps) for k in range(steps + 1)}) if steps else [0]
    return [(str(low + place), colours[place]) for place in places]
