"""HD1K: streets filmed at high resolution, with reference flow (Kondermann et al. 2016)."""

from __future__ import annotations

from equilibria.run.data.storage import DataError
from equilibria.zoo.flow.data.pairs import FlowSet, Names, files_in, pairs_of
from equilibria.zoo.io.remote import Entry, Files, Remote


def read(files: Files) -> FlowSet:
    """The pairs of consecutive frames of a sequence, 1080 x 2560 pixels, to learn from and to test.

    Raises:
        DataError: If there are none, or a file is missing.
    """
    root = files.paths[0].parent.parent
    truth = root / "hd1k_flow_gt" / "flow_occ"
    images = set(files_in(root / "hd1k_input" / "image_2", ".png"))
    pairs: list[Names] = []
    for name in files_in(truth, ".png"):
        sequence, _, frame = name.removesuffix(".png").partition("_")
        if not frame.isdigit():
            raise DataError(f"{truth / name} has no numbers: expected SEQUENCE_FRAME.png")
        later = f"{sequence}_{int(frame) + 1:04}.png"
        if later in images:  # else it is the sequence's last frame
            folder = "hd1k_input/image_2"
            stem = name.removesuffix(".png")
            pairs.append(
                Names(
                    stem, f"{folder}/{name}", f"{folder}/{later}", f"hd1k_flow_gt/flow_occ/{name}"
                )
            )
    if not pairs:
        raise DataError(
            f"{truth} has no 000000_0000.png whose next frame is in "
            f"{root / 'hd1k_input/image_2'}: unpack both again"
        )
    found, checksum = pairs_of(root, {"all": pairs})
    return FlowSet(
        title=files.title, train=found["all"], test=found["all"], seen=True, checksum=checksum
    )


HD1K = Entry(
    name="hd1k",
    title="HD1K",
    read=read,
    remotes=(
        Remote(
            files=("hd1k_flow_gt/flow_occ/", "hd1k_input/image_2/"),
            licence="research; cite Kondermann et al. 2016",
            inside=("hd1k", "HD1K", "."),
        ),
    ),
    how_to_get=(
        "Get hd1k_input.zip and hd1k_flow_gt.zip from http://hci-benchmark.iwr.uni-heidelberg.de, "
        "unpack them to hd1k/hd1k_input/image_2 and hd1k/hd1k_flow_gt/flow_occ, and name the "
        "folder that contains hd1k with --data-dir or EQUILIBRIA_DATA"
    ),
)
