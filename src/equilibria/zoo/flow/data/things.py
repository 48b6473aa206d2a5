"""FlyingThings3D: rendered objects that fly about, seen by a moving camera (Mayer et al. 2016)."""

from __future__ import annotations

from pathlib import Path

from equilibria.run.data.storage import DataError, reading
from equilibria.zoo.flow.data.pairs import FlowSet, Names, Pass, chosen, files_in, pairs_of
from equilibria.zoo.io.remote import Entry, Files, Remote

_PAGE = "https://lmb.informatik.uni-freiburg.de/resources/datasets/SceneFlowDatasets.en.html"
_DIRECTIONS = {
    "into_future": ("OpticalFlowIntoFuture", 1),
    "into_past": ("OpticalFlowIntoPast", -1),
}
"""Folder and name of the flow to a later or an earlier frame, and which that is."""


def read(files: Files, *, render: str | None = None) -> FlowSet:
    """The pairs of the left camera, 540 x 960 pixels, forwards and backwards in time.

    Args:
        files: The folder.
        render: ``"clean"`` or ``"final"``, the pass that images are of; None for both.

    Raises:
        DataError: If a file is missing.
        ValueError: If `render` is another word.
    """
    root = files.paths[0].parent.parent
    names = chosen(render)
    splits = {
        split: [
            each
            for name in names
            for scene in _scenes(root, split)
            for each in _of(root, scene, name)
        ]
        for split in ("TRAIN", "TEST")
    }
    for split, found in splits.items():
        if not found:
            raise DataError(
                f"{root / 'optical_flow' / split} has no A/0000/into_future/left/*.pfm with the "
                "frame that follows: unpack it again"
            )
    pairs, checksum = pairs_of(root, splits)
    return FlowSet(
        title=files.title + (f" ({render})" if render else ""),
        train=pairs["TRAIN"],
        test=pairs["TEST"],
        checksum=checksum,
    )


def _scenes(root: Path, split: str) -> list[str]:
    """``TRAIN/A/0000`` and so on."""
    folder = root / "optical_flow" / split
    with reading(folder):
        found = folder.glob("*/*")
        return sorted(f"{split}/{path.parent.name}/{path.name}" for path in found if path.is_dir())


def _of(root: Path, scene: str, name: Pass) -> list[Names]:
    """The pairs of a scene in one pass, whose last frame has no next one."""
    found: list[Names] = []
    for direction, (stem, step) in _DIRECTIONS.items():
        folder = f"optical_flow/{scene}/{direction}/left"
        if not (root / folder).is_dir():
            continue
        flows = files_in(root / folder, "_L.pfm")
        numbers = {flow.split("_")[1]: flow for flow in flows if flow.startswith(f"{stem}_")}
        for number, flow in numbers.items():
            other = f"{int(number) + step:04}" if number.isdigit() else ""
            if other in numbers:
                images = [f"frames_{name}pass/{scene}/left/{k}.png" for k in (number, other)]
                title = f"{scene}/{number} {direction} {name}"
                found.append(Names(title, images[0], images[1], f"{folder}/{flow}"))
    return found


THINGS = Entry(
    name="things",
    title="FlyingThings3D",
    read=read,
    remotes=(
        Remote(
            files=("optical_flow/TRAIN/", "optical_flow/TEST/"),
            licence="research, not commercial; cite Mayer et al. 2016",
            inside=("things", "FlyingThings3D", "."),
        ),
    ),
    how_to_get=(
        "Get the RGB images (PNG), clean and final pass, and the optical flow of FlyingThings3D "
        f"from {_PAGE} (several hundred GB once unpacked), unpack them to FlyingThings3D/"
        "frames_cleanpass, FlyingThings3D/frames_finalpass and FlyingThings3D/optical_flow, and "
        "name the folder that contains FlyingThings3D with --data-dir or EQUILIBRIA_DATA"
    ),
)
