"""Files of a tar archive, read without unpacking it to disk, or of the folder that was in it."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from equilibria.data.errors import DataError, reading


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The files of a tar archive, compressed or not, in its order.

    Args:
        path: The archive.
        wanted: Given the name of a file, returns whether to read it.

    Yields:
        Name and content of each file that is wanted.

    Raises:
        DataError: If the archive cannot be read or is damaged.
    """
    with (
        reading(path, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError),
        tarfile.open(path, "r:*") as archive,
    ):
        for entry in archive:
            name = entry.name.removeprefix("./")
            file = archive.extractfile(entry) if entry.isfile() and wanted(name) else None
            if file is not None:
                yield name, file.read()


def contents(paths: Sequence[Path], folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """The content of some files by name, whether they are in an archive or unpacked.

    Args:
        paths: The archive alone, or the files in the order of `names`.
        folder: The folder of the archive that has them.
        names: Names of the files.

    Raises:
        DataError: If a file cannot be read, or the archive is damaged or lacks one.
    """
    if paths[0].name == names[0]:
        with reading(paths[0].parent):
            return {name: path.read_bytes() for name, path in zip(names, paths, strict=True)}
    wanted = {f"{folder}/{name}": name for name in names}
    found = {wanted[name]: content for name, content in members(paths[0], wanted.__contains__)}
    if missing := [name for name in wanted if wanted[name] not in found]:
        raise DataError(f"{paths[0]} does not contain {missing[0]}: it is a different file")
    return found
