"""MPI Sintel: an animated film with its true flow (Butler et al. 2012)."""

from __future__ import annotations

import json
from pathlib import Path

from equilibria.run.data.storage import DataError, reading
from equilibria.zoo.flow.data.pairs import FlowSet, Names, Pass, chosen, files_in, pairs_of
from equilibria.zoo.io.remote import Entry, Files, Remote

PAIRS = 1_041
_FRAME = "frame_"


def read(files: Files, *, render: str | None = None) -> FlowSet:
    """The training pairs of 436 x 1024 pixels, which are the test pairs too.

    The flow of the official test pairs is not published, so figures are those of the training
    pairs, of models that have learned from other data; or, in brackets, from these.

    A sample of pairs is read where the film is not at hand: it has test pairs only.

    Args:
        files: The folder, or a sample's list of pairs.
        render: ``"clean"`` or ``"final"``, the pass that images are of; None for both.

    Raises:
        DataError: If a file is missing or damaged, or a sample has no pair of that pass.
        ValueError: If `render` is another word.
    """
    names = chosen(render)
    title = files.title + (f" ({render})" if render else "")
    if files.remote.copy is not None:
        listed = files.paths[0]
        pairs = [pair for pair, kind in _sample(listed) if kind in names]
        if not pairs:
            raise DataError(f"{listed} lists no pair of the {render} pass")
        found, checksum = pairs_of(listed.parent, {"test": pairs})
        return FlowSet(title=title, train=None, test=found["test"], checksum=checksum)
    root = files.paths[0].parent.parent
    pairs = [each for name in names for each in _of(root, name)]
    if not pairs:
        raise DataError(f"{root / 'training/flow'} has no SCENE/frame_0001.flo: unpack it again")
    found, checksum = pairs_of(root, {"all": pairs})
    count = len(pairs) // len(names)
    return FlowSet(
        title=title + ("" if count == PAIRS else f" ({count:,} pairs)"),
        train=found["all"],
        test=found["all"],
        seen=True,
        checksum=checksum,
    )


def _of(root: Path, name: Pass) -> list[Names]:
    """The pairs of a pass, scene by scene."""
    flows = root / "training" / "flow"
    with reading(flows):
        scenes = sorted(path.name for path in flows.iterdir() if path.is_dir())
    found: list[Names] = []
    for scene in scenes:
        for flow in files_in(flows / scene, ".flo"):
            stem = flow.removesuffix(".flo")
            number = stem.removeprefix(_FRAME)
            if not number.isdigit():
                raise DataError(f"{flows / scene / flow} has no number: expected frame_0001.flo")
            unknown = f"training/invalid/{scene}/{stem}.png"
            found.append(
                Names(
                    f"{scene}/{stem} {name}",
                    f"training/{name}/{scene}/{stem}.png",
                    f"training/{name}/{scene}/{_FRAME}{int(number) + 1:04}.png",
                    f"training/flow/{scene}/{flow}",
                    unknown if (root / unknown).is_file() else "",
                )
            )
    return found


def _sample(listed: Path) -> list[tuple[Names, str]]:
    """The pairs that a list in JSON names, and the pass of each, which is clean or says final."""
    with reading(listed, ValueError):
        rows = json.loads(listed.read_text("utf-8"))
    found: list[tuple[Names, str]] = []
    for row in rows if isinstance(rows, list) else [rows]:
        try:
            first, *others = (str(row[key]) for key in ("im0", "im1", "flow"))
            name = str(row["name"])
        except (TypeError, KeyError):
            raise DataError(
                f"{listed} is damaged: expected a list of pairs with name, im0, im1 and flow"
            ) from None
        path = Path(first)
        unknown = str(path.with_name(path.name.replace(_FRAME, "invalid_")))
        known = unknown != first and (listed.parent / unknown).is_file()
        kind = "final" if name.endswith("_final") else "clean"
        found.append((Names(name, first, others[0], others[1], unknown if known else ""), kind))
    return found


_LICENCE = "CC BY 3.0 for the film, (c) Blender Foundation; cite Butler et al. 2012"

SINTEL = Entry(
    name="sintel",
    title="MPI Sintel",
    read=read,
    remotes=(
        Remote(
            files=("training/flow/",),
            licence=_LICENCE,
            inside=("sintel", "Sintel", "MPI-Sintel-complete", "MPI-Sintel", "."),
        ),
        Remote(files=("pairs.json",), licence=_LICENCE, inside=("sintel_flow",), copy="sample"),
    ),
    how_to_get=(
        "Get MPI-Sintel-complete.zip (5.3 GB) from http://sintel.is.tue.mpg.de/downloads, unpack "
        "it to sintel/training/clean, sintel/training/final, sintel/training/flow and so on, and "
        "name the folder that contains sintel with --data-dir or EQUILIBRIA_DATA"
    ),
)
