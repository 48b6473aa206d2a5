"""KITTI-2015: a car's camera, with flow where its laser scanner reached (Menze and Geiger 2015)."""

from __future__ import annotations

from equilibria.run.data.storage import DataError
from equilibria.zoo.flow.data.pairs import FlowSet, Names, files_in, pairs_of
from equilibria.zoo.io.remote import Entry, Files, Remote

PAIRS = 200
_NOW, _NEXT = "_10.png", "_11.png"


def read(files: Files) -> FlowSet:
    """The 200 training pairs of about 375 x 1242 pixels, which are the test pairs too.

    The flow of the official test pairs is not published. Flow is that of all pixels (``flow_occ``),
    hidden ones included.

    Raises:
        DataError: If there are none, or a file is missing.
    """
    root = files.paths[0].parent.parent
    flows = files_in(root / "training" / "flow_occ", _NOW)
    if not flows:
        raise DataError(f"{root / 'training/flow_occ'} has no 000000{_NOW}: unpack it again")
    pairs = [
        Names(
            name.removesuffix(_NOW),
            f"training/image_2/{name}",
            f"training/image_2/{name.removesuffix(_NOW)}{_NEXT}",
            f"training/flow_occ/{name}",
        )
        for name in flows
    ]
    found, checksum = pairs_of(root, {"all": pairs})
    return FlowSet(
        title=files.title + ("" if len(pairs) == PAIRS else f" ({len(pairs):,} pairs)"),
        train=found["all"],
        test=found["all"],
        seen=True,
        checksum=checksum,
    )


KITTI = Entry(
    name="kitti",
    title="KITTI-2015",
    read=read,
    remotes=(
        Remote(
            files=("training/flow_occ/", "training/image_2/"),
            licence="CC BY-NC-SA 3.0; cite Menze and Geiger 2015",
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
