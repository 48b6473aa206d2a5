"""Some test samples of a run with what its network makes of them, kept in the run folder.

What is drawn of them is for the application to say: see `GalleryKind`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from equilibria import files
from equilibria.nn.using import in_eval_mode
from equilibria.run import registry
from equilibria.run.data import storage
from equilibria.run.data.storage import read_bytes
from equilibria.run.gallery.kind import GalleryKind, rtol_of
from equilibria.run.run import Folder, Run, RunError
from equilibria.run.weights import checksum

__all__ = ["FOLDER", "GalleryKind", "hang", "has_pictures", "read"]

FOLDER = "gallery"
"""The folder, in that of the run, that holds the PNG files and what they show."""

_FILE = "gallery.json"

_VERSION = 1


def has_pictures(folder: Folder) -> bool:
    """Return whether a run can have a gallery, from its folder alone.

    Raises:
        RunError: the folder is not a run.
        ConfigError: its recipe is not valid in this version of equilibria.
        DataError: what its task keeps in the folder is damaged.
    """
    return folder.read_recipe().task.has_gallery(folder.path)


def read(folder: Folder) -> dict[str, Any] | None:
    """Return the gallery of a run as `hang` does; None where there is none of its weights."""
    place = folder.path / FOLDER
    try:
        content = storage.read(place / _FILE, dict[str, Any], spelt=True)
        kind = _find_kind(content["kind"])
        storage.check(content, kind.shape)
        known, data = checksum(folder.weights), folder.read_info().get("data")
        if (content["version"], content["weights"], content["data"]) != (_VERSION, known, data):
            return None
        for picture in content["pictures"]:
            kind.note(picture)  # which raises where there is nothing to say
            names = picture["files"].items()  # of files in this folder, and nowhere else
            found = {
                what: read_bytes(place / Path(name).name, storage.MOST) for what, name in names
            }
            picture["files"] = found
        return content
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RunError):
        return None  # it is made again


def hang(loaded: Run) -> dict[str, Any] | None:
    """Look at some test samples of a run, and write what its network makes of them into its folder.

    Where the model solves for an equilibrium that has places, there can be a map of the evaluations
    after which each place stays near z*; see `count_to_settle`.

    Args:
        loaded: the run, with its data, on the CPU.

    Returns:
        `kind`, which the task gives; `split`; `count`, of the samples in it; `seen`, of those that
        were looked at; `rtol`; `scale`, numbers and colours of the maps; `classes`, names and
        colours for a legend, where there is one; what else the kind tells; and `pictures`, each
        with what the kind tells of it, `solve` and `files`, the bytes of PNG files by what they
        show, such as "image", "truth", "told" and "late". None where nothing can be shown.

    Raises:
        OSError: the folder cannot be written.
    """
    task, model = loaded.data, loaded.model
    if not task.gallery:
        return None
    with torch.no_grad(), in_eval_mode(model):
        found = _find_kind(task.gallery).hang(task, model, loaded.recipe.eval_batch_size)
    if found is None:
        return None
    hanging, about = found
    content = {
        "version": _VERSION,
        "weights": checksum(Folder(loaded.folder).weights),
        "data": task.checksum,
        "split": "test",
        "rtol": rtol_of(model),
        "kind": task.gallery,
        **about,
        "scale": hanging.scale(),
        "pictures": hanging.pictures,
    }
    _write(loaded.folder / FOLDER, content, hanging.files)
    for picture in hanging.pictures:
        picture["files"] = {what: hanging.files[n] for what, n in picture["files"].items()}
    return content


def _write(place: Path, content: Mapping[str, Any], pictures: Mapping[str, bytes]) -> None:
    shutil.rmtree(place, ignore_errors=True)  # of other weights
    text = files.to_json(content, indent=2) + "\n"
    files.write_folder(place, {**pictures, _FILE: text.encode()})


def _find_kind(name: str) -> GalleryKind:
    """Return the kind of gallery that an application registers by a name.

    Raises:
        KeyError: none does.
    """
    return registry.resolve(registry.find("galleries")[name])
