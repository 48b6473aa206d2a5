"""FlyingChairs: rendered chairs that fly over photographs (Dosovitskiy et al. 2015)."""

from __future__ import annotations

from pathlib import Path

from equilibria.run.data.storage import DataError, reading
from equilibria.zoo.flow.data.pairs import FlowSet, Names, files_in, pairs_of
from equilibria.zoo.io.remote import Entry, Files, Remote

PAIRS = 22_872
SPLITS = ("chairs_split.txt", "FlyingChairs_train_val.txt")
"""Names of the list that tells, pair by pair, 1 to train on or 2 to validate on."""

_PAGE = "https://lmb.informatik.uni-freiburg.de/resources/datasets/FlyingChairs.en.html"
_FIRST = "_img1.ppm"


def read(files: Files) -> FlowSet:
    """The pairs of 384 x 512 pixels, or as many of them as there are; those to validate on test.

    Raises:
        DataError: If there are none, the list of the split is missing or damaged, or has no line
            for a pair.
    """
    data = files.paths[0]
    marks = _split(data.parent)
    splits: dict[str, list[Names]] = {"1": [], "2": []}
    for name in files_in(data, _FIRST):
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
    found, checksum = pairs_of(data, splits)
    count = sum(map(len, found.values()))
    return FlowSet(
        title=files.title + ("" if count == PAIRS else f" ({count:,} pairs)"),
        train=found["1"],
        test=found["2"],
        checksum=checksum,
    )


def _split(folder: Path) -> list[str]:
    """The mark of each pair."""
    places = [place / name for place in (folder, folder.parent) for name in SPLITS]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataError(
            f"{folder / SPLITS[0]} is missing: it tells the pairs to train on (a line '1') from "
            f"those to validate on ('2'). Get the 'train-validation split' from {_PAGE}, and save "
            f"it as {folder / SPLITS[0]} or {SPLITS[1]}"
        )
    with reading(path):
        marks = path.read_bytes().split()
    if not marks or set(marks) - {b"1", b"2"}:
        odd = next((mark for mark in marks if mark not in (b"1", b"2")), b"")
        raise DataError(f"{path}: '{odd.decode('utf-8', 'replace')}' is neither 1 nor 2")
    return [mark.decode() for mark in marks]


CHAIRS = Entry(
    name="chairs",
    title="FlyingChairs",
    read=read,
    remotes=(
        Remote(
            files=("data/",),
            licence="research; cite Dosovitskiy et al. 2015",
            inside=("FlyingChairs_release", "flyingchairs_release", "chairs"),
        ),
    ),
    how_to_get=(
        f"Get FlyingChairs.zip (about 30 GB) and the train-validation split from {_PAGE}, unpack "
        f"it to FlyingChairs_release/data/00001_img1.ppm and so on, save the split as "
        f"FlyingChairs_release/{SPLITS[0]}, and name the folder that contains FlyingChairs_release "
        "with --data-dir or EQUILIBRIA_DATA"
    ),
)
