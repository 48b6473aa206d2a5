"""A user's folder of pairs of images with their flow."""

from __future__ import annotations

import os
from pathlib import Path

from equilibria.run.data.dataset import UserData
from equilibria.run.data.storage import DataError
from equilibria.words import others
from equilibria.zoo.flow.data.formats import READERS, suffix_of
from equilibria.zoo.flow.data.pairs import FlowSet, Names, find_pairs, list_files
from equilibria.zoo.io.layout import STRAY, TEST, TRAIN, hold_out, name_stems, read_parts

FIRST, SECOND, FLOW = "first", "second", "flow"

EXPECTED = (
    f"expected FOLDER/{FIRST}/NAME.png and FOLDER/{SECOND}/NAME.png with FOLDER/{FLOW}/NAME.flo "
    "(or .flo.xz, .pfm or a KITTI .png), or the three in FOLDER/train and FOLDER/test"
)


def load(root: str | os.PathLike[str], *, whole: bool = False) -> FlowSet:
    """Find the pairs of a folder.

    ``root/first``, ``root/second`` and ``root/flow`` have files of the same names but for their
    endings. A tenth of the pairs, chosen by a fixed seed, is then the test part. Or the three are
    in ``root/train`` and ``root/test``, and perhaps in ``root/valid`` (or ``val``); without
    ``test``, the validation pairs are the test pairs.

    Args:
        root: The folder.
        whole: Whether all pairs of a folder without parts are test pairs, to evaluate a model on
            that has learned from others; there are then no training pairs.

    Raises:
        DataError: If that is not what the folder is; the message names the file.
    """
    path = Path(root).expanduser()
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: {EXPECTED}")
    test = path / TEST
    advice = f"put test pairs into {test / FIRST}, {test / SECOND} and {test / FLOW}"
    pairs, checksum = find_pairs(path, read_parts(path, FIRST, _pairs, advice, EXPECTED))
    if "" in pairs:
        every = pairs.pop("")
        if whole:
            pairs[TEST] = every
        else:
            held = hold_out(len(every), f"{path} has a single pair")
            pairs |= {part: every.select(places) for part, places in held.items()}
    return FlowSet(
        title=path.resolve().name,
        train=pairs.get(TRAIN),
        test=pairs[TEST],
        valid=pairs.get("valid"),
        checksum=checksum,
    )


def _pairs(root: Path, part: str) -> list[Names]:
    """The pairs of a part, of which each has three files."""
    found = {kind: _stems(root, part, kind) for kind in (FIRST, SECOND, FLOW)}
    if not found[FIRST]:
        raise DataError(f"{root / part / FIRST} has no files: {EXPECTED}")
    for kind, names in found.items():
        for beside in found.values():
            if lacking := sorted(set(beside) - set(names)):
                raise DataError(
                    f"{root / beside[lacking[0]]} has no file of the same name in "
                    f"{root / part / kind}{others(lacking)}: {EXPECTED}"
                )
    stems = sorted(found[FIRST])
    return [Names(stem, *(found[kind][stem] for kind in (FIRST, SECOND, FLOW))) for stem in stems]


def _stems(root: Path, part: str, kind: str) -> dict[str, str]:
    """Files of a folder by their names without ending."""
    folder = root / part / kind
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: {EXPECTED}")
    names = [name for name in list_files(folder) if name.lower() not in STRAY]
    for name in names if kind == FLOW else ():
        if not suffix_of(Path(name)):
            raise DataError(f"{folder / name} is no file of flow: expected {', '.join(READERS)}")

    def stem_of(name: str) -> str:
        return name[: -len(suffix_of(Path(name)))] if kind == FLOW else Path(name).stem

    found = name_stems(folder, names, stem_of)
    return {stem: str(Path(part, kind, name)) for stem, name in found.items()}


OWN = UserData(load, EXPECTED)
"""A user's folder of pairs."""
