"""Where the files of a data set are looked for, how they are checked, where they come from."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from equilibria import files
from equilibria.run.data.storage import DataError, write_errors
from equilibria.zoo.io.archive import LARGEST
from equilibria.zoo.io.download import check_checksum, digest, fetch, fingerprint, mismatch

# --- locate ---------------------------------------------------------------------------------------

# Where data sets are looked for: the folder given, then $EQUILIBRIA_DATA, then the cache.


def data_folders(name: str, data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders in which the files of a data set may lie, the likeliest first.

    Under each root (`data_dir`, ``$EQUILIBRIA_DATA``, the user's cache) the folder called `name`
    comes first, then the root itself.

    Args:
        name: Name of the data set, e.g. ``"mnist"``.
        data_dir: A root that comes before the others; None for none.
    """
    named = (data_dir, os.environ.get("EQUILIBRIA_DATA"))
    roots = [Path(root).expanduser() for root in named if root]
    return [place for root in (*roots, cache()) for place in (root / name, root)]


def downloads(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder to which a data set is downloaded: below `data_dir`, or in the user's cache.

    ``$EQUILIBRIA_DATA`` is the user's own folder of data, and nothing is written to it.
    """
    return (Path(data_dir).expanduser() if data_dir else cache()) / name


def cache() -> Path:
    """The folder for what the package downloads and makes, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "equilibria"


# --- remote ---------------------------------------------------------------------------------------


# What stands for itself in an address: not all servers take "%2B" for the plus of a file's name.
_PATH = "/+"


@dataclass(frozen=True, kw_only=True)
class Remote:
    """One form in which a data set is published: an archive, say, or the files that are in it.

    Attributes:
        files: Names of the files, all of which are needed; one that ends with ``/`` is a folder.
            Empty if an installed package has the data.
        addresses: Folders on the web that have them, the official one first, or the package; empty
            for files that are only read from disk.
        checksums: ``"md5:..."``, ``"sha256:..."`` or another algorithm of hashlib, by file name,
            as published. One for a name without its ``.gz`` is that of the uncompressed content:
            the file is then also accepted uncompressed, or compressed by someone else. A
            downloaded file without a published checksum gets one, in ``.FILE.checksum`` next to
            it, and is checked against that from then on.
        license: Terms of use of the data.
        size: Size of the download, such as ``"160 MB"``.
        inside: Folders in which the files are looked for, for names that other data sets also
            use; ``"."`` is any data folder.
        largest: Bytes of the largest file once unpacked: a gzipped file is unpacked no further to
            check its content.
        copy: Why the quality is lower, such as ``"JPEG copy"``; None for official data.
    """

    files: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    license: str
    size: str = ""
    inside: tuple[str, ...] = (".",)
    largest: int = LARGEST
    copy: str | None = None

    @property
    def address(self) -> str:
        """Where the data come from: the first address, of the file where there is one file."""
        return self.addresses[0] + (
            quote(self.files[0], safe=_PATH) if len(self.files) == 1 else ""
        )

    def as_folder(
        self, names: tuple[str, ...], *inside: str, checksums: Mapping[str, str]
    ) -> Remote:
        """The files that are in this archive, where somebody unpacked it."""
        return replace(self, files=names, addresses=(), checksums=checksums, inside=inside)

    def find(self, places: list[Path]) -> dict[str, Path]:
        """Those of the files that are in one of some folders, by name, unchecked."""
        folders = [
            place / inner
            for place in places
            for inner in ((".", *self.inside) if place.name.lower() in self.inside else self.inside)
        ]
        found: dict[str, Path] = {}
        for name in self.files:
            plain = name.removesuffix(".gz")
            names = (name, plain) if plain in self.checksums else (name,)
            paths = (folder / each for folder in folders for each in names)
            there = Path.is_dir if name.endswith("/") else Path.is_file
            if path := next(filter(there, paths), None):
                found[name] = path
        return found

    def check(self, files: Mapping[str, Path]) -> None:
        """Raise DataError if a file has another checksum than was published or recorded."""
        known = self.checksums
        for name, path in files.items():
            plain = name.removesuffix(".gz")
            there = plain if path.name == Path(plain).name else name
            if there != plain and plain in known:
                # As published, it need not be unpacked to be known; else somebody else packed it.
                if there not in known or mismatch(path, known[there]):
                    check_checksum(path, known[plain], unpacked=True, largest=self.largest)
            elif there in known:
                check_checksum(path, known[there])
            elif (record := _record(path)).is_file():
                check_checksum(path, record.read_text("utf-8"))

    def download(self, name: str, path: Path) -> Path:
        """Fetch a file from the first address that has it."""
        checksum = self.checksums.get(name)
        urls = [address + quote(name, safe=_PATH) for address in self.addresses]
        fetch(urls, path, checksum=checksum)
        if checksum is None:
            record = _record(path)
            with write_errors(record, "--data-dir or XDG_CACHE_HOME"):
                files.write_text(record, digest(path))
        return path


def _record(path: Path) -> Path:
    """The file that keeps the checksum of a downloaded file without a published one."""
    return path.with_name(f".{path.name}.checksum")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set before it is read.

    Attributes:
        name: Its name for `load`.
        title: Its name in tables.
        read: Makes the data set from its `Files` and the options of `load`.
        remotes: Forms in which it is published, the best first; the first that has an address is
            downloaded. Empty only if the reader asks nothing of its `Files`.
        how_to_get: What to do if it cannot be downloaded, for example because of a log-in.
    """

    name: str
    title: str
    read: Callable[..., Any]
    remotes: tuple[Remote, ...] = ()
    how_to_get: str = ""

    def files(self, data_dir: str | os.PathLike[str] | None, download: bool) -> Files:
        """Return the files of the data set, which are looked for when they are asked for."""
        return Files(self, data_dir, download)


@dataclass(frozen=True)
class Files:
    """The files of a data set; found and checked, or downloaded, on first access.

    Official data on disk come first, in the order of the entry's forms; then a lower-quality copy
    on disk, with a warning; then a download. If that fails, a file is damaged, or the entry
    declares no remotes, all properties raise DataError.

    Attributes:
        entry: The data set.
        data_dir: Folder that is searched before ``$EQUILIBRIA_DATA`` and the user's cache.
        may_download: Whether missing files may be downloaded, into `downloads`.
    """

    entry: Entry
    data_dir: str | os.PathLike[str] | None = None
    may_download: bool = True

    @property
    def remote(self) -> Remote:
        """The form that is read."""
        return self._location[0]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of `remote`, in its order."""
        return self._location[1]

    @property
    def root(self) -> Path | None:
        """The folder of an archive that was unpacked; None where one file has all."""
        return None if len(self.paths) == 1 else self.paths[0].parent

    @property
    def checksum(self) -> str:
        """That of a single file, as published or computed."""
        (path,) = self.paths
        return self.remote.checksums.get(path.name) or digest(path)

    def describe(self, splits: Mapping[str, Any]) -> dict[str, Any]:
        """Return what every data set says of itself, by its parts: train, test, perhaps valid."""
        return {
            "name": self.entry.name,
            "title": self.title,
            "source": self.source,
            "train": splits["train"],
            "test": splits["test"],
            "valid": splits.get("valid"),
        }

    def key(self, names: Callable[[Path], Iterable[str]]) -> str:
        """Digits that tell the data from others.

        Args:
            names: Given `root`, names the files below it.
        """
        checksum = self.checksum if self.root is None else fingerprint(self.root, names(self.root))
        return checksum.rpartition(":")[2][:24]

    @property
    def title(self) -> str:
        """What tables call the data that are read."""
        copy = self.remote.copy
        return self.entry.title if copy is None else f"{self.entry.title} ({copy})"

    @property
    def source(self) -> str:
        """Where the data come from: the official address, or the place on disk of a copy."""
        official = _first(self._official)
        known = official.addresses and self.remote.copy is None
        return official.address if known else str(self.paths[0])

    @property
    def _official(self) -> list[Remote]:
        """The forms that are not copies, at least one."""
        if official := [remote for remote in self.entry.remotes if remote.copy is None]:
            return official
        raise DataError(
            f"{self.entry.name} declares no remotes with official data: its Entry needs a Remote, "
            "even one without files, that says where the data come from"
        )

    @cached_property
    def _location(self) -> tuple[Remote, tuple[Path, ...]]:
        official = self._official
        if not official[0].files:
            return official[0], ()
        places = data_folders(self.entry.name, self.data_dir)
        copies = [remote for remote in self.entry.remotes if remote.copy is not None]
        if found := _complete(official, places):
            return found
        if found := _complete(copies, places):
            first = _first(official)
            where = first.address if first.addresses else self.entry.how_to_get
            warnings.warn(
                f"{self.entry.title} ({found[0].copy}) is read from {found[1][0]}; the official "
                f"data: {where}",
                stacklevel=6,
            )
            return found
        return self._download(official, places)

    def _download(
        self, official: list[Remote], places: list[Path]
    ) -> tuple[Remote, tuple[Path, ...]]:
        remote = _first(official)
        found = remote.find(places)
        if self.may_download and remote.addresses:
            remote.check(found)
            into = downloads(self.entry.name, self.data_dir)
            return remote, tuple(
                found.get(name) or remote.download(name, into / name) for name in remote.files
            )
        lacking = [
            next(name for name in form.files if name not in there)
            for form, there in ((form, form.find(places)) for form in official)
            if there or form.addresses or form is remote
        ]
        advice = self.entry.how_to_get or (
            f"Allow the download ({remote.size}; licence: {remote.license}), or fetch "
            f"{remote.address} and name its folder with --data-dir or EQUILIBRIA_DATA"
        )
        where = ", ".join(map(str, places))
        raise DataError(
            f"{self.entry.name}: {' or '.join(lacking)} was not found in {where}. {advice}"
        )


def _first(official: list[Remote]) -> Remote:
    """The first form that has an address; the first of all where none has."""
    return next((remote for remote in official if remote.addresses), official[0])


def _complete(remotes: list[Remote], places: list[Path]) -> tuple[Remote, tuple[Path, ...]] | None:
    """The first form all files of which are on disk, checked; None where there is none."""
    for remote in remotes:
        if len(found := remote.find(places)) == len(remote.files):
            remote.check(found)
            return remote, tuple(found.values())
    return None


# --- kept -----------------------------------------------------------------------------------------

# Tensors that take long to make, made once and kept in the user's cache.


def cache_tensors(name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by name, from the cache, or made and put there.

    They are checked each time they are read, and made again where they are damaged. Two processes
    that want the same wait for each other.

    Args:
        name: The file below the cache, without its ending. It has to name all that the tensors
            depend on: a part of a file's checksum, say, and a number that counts layouts.
        make: Makes them where the cache does not have them.

    Raises:
        DataError: If the cache cannot be written, or by `make`.
    """
    from filelock import FileLock
    from safetensors.torch import save

    path = cache() / f"{name}.safetensors"
    if (found := _read_cache(path)) is not None:
        return found
    with write_errors(path, "XDG_CACHE_HOME"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if (found := _read_cache(path)) is None:  # else another process was faster
                found = make()
                content = save(found, {"checksum": _digest(found)})
                files.write(path, lambda file: file.write(content), flush=False)
    return found


def _read_cache(path: Path) -> dict[str, Tensor] | None:
    """The content of a file; None if there is none, or it is damaged."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            found: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            checksum = (file.metadata() or {}).get("checksum")
    except (SafetensorError, OSError, ValueError):
        return None
    return found if _digest(found) == checksum else None


def _digest(found: dict[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(found.items()):
        total.update(str((name, tuple(tensor.shape), tensor.dtype)).encode())
        total.update(tensor.contiguous().numpy().data.cast("B"))
    return f"sha256:{total.hexdigest()}"
