"""Published sets of pairs, in their official layouts.

- FlyingChairs: rendered chairs that fly over photographs (Dosovitskiy et al. 2015).
- FlyingThings3D: rendered objects that fly about, seen by a moving camera (Mayer et al. 2016).
- MPI Sintel: an animated film with its true flow (Butler et al. 2012).
- KITTI-2015: a car's camera, with flow where its laser scanner reached (Menze and Geiger 2015).
- HD1K: streets filmed at high resolution, with reference flow (Kondermann et al. 2016).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from equilibria.run.data.storage import DataError, read_errors
from equilibria.zoo.flow.data.pairs import FlowSet, Names, find_pairs, list_files
from equilibria.zoo.io.remote import Entry, Files, Remote

Pass = Literal["clean", "final"]
"""Rendered films come twice: a clean pass, and a final one with blur, fog and shadows."""

_PAGE = "https://lmb.informatik.uni-freiburg.de/resources/datasets"


def choose_passes(render: str | None) -> tuple[Pass, ...]:
    """The passes that a name stands for: both for None.

    Raises:
        ValueError: If it is none.
    """
    passes: tuple[Pass, ...] = ("clean", "final")
    if render is not None and render not in passes:
        raise ValueError(f"render is {render!r}: expected clean, final, or null for both")
    return tuple(each for each in passes if render in (None, each))


def _title(files: Files, render: str | None = None) -> str:
    return files.title + (f" ({render})" if render else "")


def _count(pairs: int, published: int) -> str:
    """What a title says of pairs that are not as many as were published."""
    return "" if pairs == published else f" ({pairs:,} pairs)"


def _reuse_training(root: Path, pairs: Sequence[Names], title: str) -> FlowSet:
    """Training pairs that are the test pairs too, whose own flow is not published."""
    found, checksum = find_pairs(root, {"all": pairs})
    return FlowSet(title=title, train=found["all"], test=found["all"], seen=True, checksum=checksum)


# --- chairs ---------------------------------------------------------------------------------------

SPLITS = ("chairs_split.txt", "FlyingChairs_train_val.txt")
"""Names of the list that tells, pair by pair, 1 to train on or 2 to validate on."""

_FIRST = "_img1.ppm"


def read_chairs(files: Files) -> FlowSet:
    """The pairs of 384 x 512 pixels, or as many of them as there are; those to validate on test.

    Raises:
        DataError: If there are none, the list of the split is missing or damaged, or has no line
            for a pair.
    """
    data = files.paths[0]
    marks = _read_marks(data.parent)
    splits: dict[str, list[Names]] = {"1": [], "2": []}
    for name in list_files(data, _FIRST):
        stem = name.removesuffix(_FIRST)
        if not stem.isdigit() or not 1 <= int(stem) <= len(marks):
            raise DataError(
                f"{data / name} has no line in the list of the split, which has {len(marks):,}: "
                f"expected 00001{_FIRST} for line 1, and so on"
            )
        pair = Names(stem, name, f"{stem}_img2.ppm", f"{stem}_flow.flo")
        splits[marks[int(stem) - 1]].append(pair)
    for mark, what in (("1", "train"), ("2", "validate")):
        if not splits[mark]:
            raise DataError(f"{data} has no pairs *{_FIRST} to {what} on: unpack it again")
    found, checksum = find_pairs(data, splits)
    title = _title(files) + _count(sum(map(len, found.values())), 22_872)
    return FlowSet(title=title, train=found["1"], test=found["2"], checksum=checksum)


def _read_marks(folder: Path) -> list[str]:
    """The mark of each pair."""
    places = [place / name for place in (folder, folder.parent) for name in SPLITS]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataError(
            f"{folder / SPLITS[0]} is missing: it tells the pairs to train on (a line '1') from "
            f"those to validate on ('2'). Get the 'train-validation split' from {_PAGE}/"
            f"FlyingChairs.en.html, and save it as {folder / SPLITS[0]} or {SPLITS[1]}"
        )
    with read_errors(path):
        marks = path.read_bytes().split()
    if not marks or set(marks) - {b"1", b"2"}:
        odd = next((mark for mark in marks if mark not in (b"1", b"2")), b"")
        raise DataError(f"{path}: '{odd.decode('utf-8', 'replace')}' is neither 1 nor 2")
    return [mark.decode() for mark in marks]


CHAIRS = Entry(
    name="chairs",
    title="FlyingChairs",
    read=read_chairs,
    remotes=(
        Remote(
            files=("data/",),
            license="research; cite Dosovitskiy et al. 2015",
            inside=("FlyingChairs_release", "flyingchairs_release", "chairs"),
        ),
    ),
    how_to_get=(
        "Get FlyingChairs.zip (about 30 GB) and the train-validation split from "
        f"{_PAGE}/FlyingChairs.en.html, unpack it to FlyingChairs_release/data/00001_img1.ppm and "
        f"so on, save the split as FlyingChairs_release/{SPLITS[0]}, and name the folder that "
        "contains FlyingChairs_release with --data-dir or EQUILIBRIA_DATA"
    ),
)

# --- things ---------------------------------------------------------------------------------------

_DIRECTIONS = {
    "into_future": ("OpticalFlowIntoFuture", 1),
    "into_past": ("OpticalFlowIntoPast", -1),
}
"""Folder and name of the flow to a later or an earlier frame, and which that is."""


def read_things(files: Files, *, render: str | None = None) -> FlowSet:
    """The pairs of the left camera, 540 x 960 pixels, forwards and backwards in time.

    Args:
        files: The folder.
        render: ``"clean"`` or ``"final"``, the pass that images are of; None for both.

    Raises:
        DataError: If a file is missing.
        ValueError: If `render` is another word.
    """
    root = files.paths[0].parent.parent
    passes = choose_passes(render)
    splits: dict[str, list[Names]] = {"TRAIN": [], "TEST": []}
    for split, pairs in splits.items():
        folder = root / "optical_flow" / split
        with read_errors(folder):
            found = sorted(path for path in folder.glob("*/*") if path.is_dir())
        scenes = [f"{split}/{path.parent.name}/{path.name}" for path in found]
        for name in passes:
            for scene in scenes:
                pairs += _pair_scene(root, scene, name)
        if not pairs:
            raise DataError(
                f"{folder} has no A/0000/into_future/left/*.pfm with the frame that follows: "
                "unpack it again"
            )
    found, checksum = find_pairs(root, splits)
    return FlowSet(
        title=_title(files, render), train=found["TRAIN"], test=found["TEST"], checksum=checksum
    )


def _pair_scene(root: Path, scene: str, name: Pass) -> list[Names]:
    """The pairs of a scene in one pass, whose last frame has no next one."""
    found: list[Names] = []
    for direction, (stem, step) in _DIRECTIONS.items():
        folder = f"optical_flow/{scene}/{direction}/left"
        if not (root / folder).is_dir():
            continue
        flows = list_files(root / folder, "_L.pfm")
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
    read=read_things,
    remotes=(
        Remote(
            files=("optical_flow/TRAIN/", "optical_flow/TEST/"),
            license="research, not commercial; cite Mayer et al. 2016",
            inside=("things", "FlyingThings3D", "."),
        ),
    ),
    how_to_get=(
        "Get the RGB images (PNG), clean and final pass, and the optical flow of FlyingThings3D "
        f"from {_PAGE}/SceneFlowDatasets.en.html (several hundred GB once unpacked), unpack them "
        "to FlyingThings3D/frames_cleanpass, FlyingThings3D/frames_finalpass and FlyingThings3D/"
        "optical_flow, and name the folder that contains FlyingThings3D with --data-dir or "
        "EQUILIBRIA_DATA"
    ),
)

# --- sintel ---------------------------------------------------------------------------------------

_FRAME = "frame_"


def read_sintel(files: Files, *, render: str | None = None) -> FlowSet:
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
    names = choose_passes(render)
    if files.remote.copy is not None:
        listed = files.paths[0]
        pairs = [pair for pair, kind in _read_sample(listed) if kind in names]
        if not pairs:
            raise DataError(f"{listed} lists no pair of the {render} pass")
        found, checksum = find_pairs(listed.parent, {"test": pairs})
        return FlowSet(
            title=_title(files, render), train=None, test=found["test"], checksum=checksum
        )
    root = files.paths[0].parent.parent
    pairs = [each for name in names for each in _pair_film(root, name)]
    if not pairs:
        raise DataError(f"{root / 'training/flow'} has no SCENE/frame_0001.flo: unpack it again")
    title = _title(files, render) + _count(len(pairs) // len(names), 1_041)
    return _reuse_training(root, pairs, title)


def _pair_film(root: Path, name: Pass) -> list[Names]:
    """The pairs of a pass, scene by scene."""
    flows = root / "training" / "flow"
    with read_errors(flows):
        scenes = sorted(path.name for path in flows.iterdir() if path.is_dir())
    found: list[Names] = []
    for scene in scenes:
        for flow in list_files(flows / scene, ".flo"):
            stem = flow.removesuffix(".flo")
            number = stem.removeprefix(_FRAME)
            if not number.isdigit():
                raise DataError(f"{flows / scene / flow} has no number: expected frame_0001.flo")
            images = f"training/{name}/{scene}"
            later = f"{images}/{_FRAME}{int(number) + 1:04}.png"
            unknown = f"training/invalid/{scene}/{stem}.png"
            unknown = unknown if (root / unknown).is_file() else ""
            title, truth = f"{scene}/{stem} {name}", f"training/flow/{scene}/{flow}"
            found.append(Names(title, f"{images}/{stem}.png", later, truth, unknown))
    return found


def _read_sample(listed: Path) -> list[tuple[Names, str]]:
    """The pairs that a list in JSON names, and the pass of each, which is clean or says final."""
    with read_errors(listed, ValueError):
        rows = json.loads(listed.read_text("utf-8"))
    found: list[tuple[Names, str]] = []
    for row in rows if isinstance(rows, list) else [rows]:
        try:
            name, first, second, flow = (str(row[key]) for key in ("name", "im0", "im1", "flow"))
        except (TypeError, KeyError):
            raise DataError(
                f"{listed} is damaged: expected a list of pairs with name, im0, im1 and flow"
            ) from None
        path = Path(first)
        unknown = str(path.with_name(path.name.replace(_FRAME, "invalid_")))
        known = unknown != first and (listed.parent / unknown).is_file()
        kind = "final" if name.endswith("_final") else "clean"
        found.append((Names(name, first, second, flow, unknown if known else ""), kind))
    return found


_LICENSE = "CC BY 3.0 for the film, (c) Blender Foundation; cite Butler et al. 2012"

SINTEL = Entry(
    name="sintel",
    title="MPI Sintel",
    read=read_sintel,
    remotes=(
        Remote(
            files=("training/flow/",),
            license=_LICENSE,
            inside=("sintel", "Sintel", "MPI-Sintel-complete", "MPI-Sintel", "."),
        ),
        Remote(files=("pairs.json",), license=_LICENSE, inside=("sintel_flow",), copy="sample"),
    ),
    how_to_get=(
        "Get MPI-Sintel-complete.zip (5.3 GB) from http://sintel.is.tue.mpg.de/downloads, unpack "
        "it to sintel/training/clean, sintel/training/final, sintel/training/flow and so on, and "
        "name the folder that contains sintel with --data-dir or EQUILIBRIA_DATA"
    ),
)

# --- kitti ----------------------------------------------------------------------------------------

_NOW, _NEXT = "_10.png", "_11.png"


def read_kitti(files: Files) -> FlowSet:
    """The 200 training pairs of about 375 x 1242 pixels, which are the test pairs too.

    The flow of the official test pairs is not published. Flow is that of all pixels (``flow_occ``),
    hidden ones included.

    Raises:
        DataError: If there are none, or a file is missing.
    """
    root = files.paths[0].parent.parent
    flows = list_files(root / "training" / "flow_occ", _NOW)
    if not flows:
        raise DataError(f"{root / 'training/flow_occ'} has no 000000{_NOW}: unpack it again")
    images, truth = "training/image_2", "training/flow_occ"
    stems = [name.removesuffix(_NOW) for name in flows]
    pairs = [
        Names(k, f"{images}/{k}{_NOW}", f"{images}/{k}{_NEXT}", f"{truth}/{k}{_NOW}") for k in stems
    ]
    return _reuse_training(root, pairs, _title(files) + _count(len(pairs), 200))


KITTI = Entry(
    name="kitti",
    title="KITTI-2015",
    read=read_kitti,
    remotes=(
        Remote(
            files=("training/flow_occ/", "training/image_2/"),
            license="CC BY-NC-SA 3.0; cite Menze and Geiger 2015",
            inside=("kitti", "KITTI", "data_scene_flow", "."),
        ),
    ),
    how_to_get=(
        "KITTI-2015 cannot be downloaded without a log-in: register at "
        "https://www.cvlibs.net/datasets/kitti/eval_scene_flow.php?benchmark=flow, get "
        "data_scene_flow.zip, and unpack it to kitti/training/image_2 and kitti/training/flow_occ. "
        "Then name the folder that contains kitti with --data-dir or EQUILIBRIA_DATA"
    ),
)

# --- hd1k -----------------------------------------------------------------------------------------


def read_hd1k(files: Files) -> FlowSet:
    """The pairs of consecutive frames of a sequence, 1080 x 2560 pixels, to learn from and to test.

    Raises:
        DataError: If there are none, or a file is missing.
    """
    root = files.paths[0].parent.parent
    images, truth = "hd1k_input/image_2", "hd1k_flow_gt/flow_occ"
    there = set(list_files(root / images, ".png"))
    pairs: list[Names] = []
    for name in list_files(root / truth, ".png"):
        stem = name.removesuffix(".png")
        sequence, _, frame = stem.partition("_")
        if not frame.isdigit():
            raise DataError(f"{root / truth / name} has no numbers: expected SEQUENCE_FRAME.png")
        later = f"{sequence}_{int(frame) + 1:04}.png"
        if later in there:  # else it is the sequence's last frame
            pairs.append(Names(stem, f"{images}/{name}", f"{images}/{later}", f"{truth}/{name}"))
    if not pairs:
        raise DataError(
            f"{root / truth} has no 000000_0000.png whose next frame is in {root / images}: unpack "
            "both again"
        )
    return _reuse_training(root, pairs, _title(files))


HD1K = Entry(
    name="hd1k",
    title="HD1K",
    read=read_hd1k,
    remotes=(
        Remote(
            files=("hd1k_flow_gt/flow_occ/", "hd1k_input/image_2/"),
            license="research; cite Kondermann et al. 2016",
            inside=("hd1k", "HD1K", "."),
        ),
    ),
    how_to_get=(
        "Get hd1k_input.zip and hd1k_flow_gt.zip from http://hci-benchmark.iwr.uni-heidelberg.de, "
        "unpack them to hd1k/hd1k_input/image_2 and hd1k/hd1k_flow_gt/flow_occ, and name the "
        "folder that contains hd1k with --data-dir or EQUILIBRIA_DATA"
    ),
)
