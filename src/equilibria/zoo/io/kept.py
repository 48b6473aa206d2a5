"""Tensors that take long to make, made once and kept in the user's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from equilibria import files
from equilibria.run.data.errors import writing
from equilibria.zoo.io import locate


def tensors(name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
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

    path = locate.cache() / f"{name}.safetensors"
    if (found := _restored(path)) is not None:
        return found
    with writing(path, "XDG_CACHE_HOME"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if (found := _restored(path)) is None:  # else another process was faster
                found = make()
                content = save(found, {"checksum": _digest(found)})
                files.write(path, lambda file: file.write(content), flush=False)
    return found


def _restored(path: Path) -> dict[str, Tensor] | None:
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
