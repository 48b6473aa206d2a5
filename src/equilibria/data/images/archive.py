"""Files of an archive, or of the folder that it was unpacked into."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from equilibria.data.errors import DataError


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The files of a tar archive, compressed or not, in its order; nothing is unpacked to disk.

    Args:
        path: The archive.
        wanted: Told the name of a file, whether to read it.

    Yields:
        Name and content of each file that is wanted.

    Raises:
        DataError: If the archive cannot be read or is damaged.
    """
    try:
        with tarfile.open(path, "r:*") as archive:
            for entry in archive:
                name = entry.name.removeprefix("./")
                file = archive.extractfile(entry) if entry.isfile() and wanted(name) else None
                if file is not None:
                    yield name, file.read()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is damaged ({error}): delete it and run again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
