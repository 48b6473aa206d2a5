"""The checkpoints of a run: everything needed to continue as if it had never stopped.

Each is a folder named by its step, with `checkpoint.json`, which holds the metrics so far and the
SHA-256 of every other file, `model.safetensors`, `optimiser.pt` and `processes.pt`. If parameters
are sharded, each process writes its own `share-*.safetensors` in place of `model.safetensors`; see
`shares`. A checkpoint is complete or absent, and is verified when it is read: if the newest is
damaged, the previous one is used.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from equilibria import __version__, files
from equilibria.checks import check_fields
from equilibria.run.data import storage
from equilibria.run.data.storage import open_file, read_bytes
from equilibria.run.processes import agree
from equilibria.run.records import Manifest
from equilibria.run.tasks.feed import WHOLE, Part
from equilibria.words import is_out_of_memory

# --- checkpointing --------------------------------------------------------------------------------

# Recipe keys for checkpointing.


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """When and how checkpoints are written.

    Args:
        every: steps between checkpoints; null for one at the end of each epoch only.
        keep: number of checkpoints to keep: if the newest is damaged, a run resumes from the
            previous one.
        async_: write while training continues, from a copy in CPU memory. The key is `async`. The
            weights and the checkpoint of an epoch then appear a little later.
    """

    every: int | None = None
    keep: int = 2
    async_: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "every", "keep")


# --- background -----------------------------------------------------------------------------------

# A checkpoint that is written in the background, while training continues.


PATIENCE = 120.0
"""Seconds that a run that failed waits for its last checkpoint, if that needs other processes."""


class Abandoned(RuntimeError):
    """The run ended before its checkpoint was written, and was no longer waiting for it."""


class Write(Protocol):
    """A write in progress, as a `concurrent.futures.Future` is one."""

    def result(self, timeout: float | None = None) -> object:
        """Wait for the end of the write, and raise the error that ended it, if any."""
        ...

    def done(self) -> bool:
        """Return whether the write has ended."""
        ...


class Background:
    """The latest checkpoint that is written in the background; at most one is in progress.

    Args:
        accelerator: of this process; None if nothing is written in the background.
        patience: seconds that a run that failed waits for its last checkpoint. After that,
            `place_files` refuses what was being written.
        group: by which several processes agree on what is written; None where one writes alone.

    Attributes:
        write: the one in progress; None if there is none.
    """

    def __init__(
        self, accelerator: Accelerator | None, patience: float = math.inf, group: Any = None
    ) -> None:
        self.accelerator, self.patience, self.group = accelerator, patience, group
        self.write: Write | None = None
        self._abandoned, self._lock = False, threading.Lock()

    def submit(self, work: Callable[[], object]) -> None:
        """Run `work`, the write, in a thread of its own, which ends with it."""
        thread = ThreadPoolExecutor(1)
        self.write = thread.submit(work)
        thread.shutdown(wait=False)

    @contextmanager
    def place_files(self) -> Iterator[None]:
        """Put files in place in a block, unless the run has ended.

        Raises:
            Abandoned: it has.
        """
        with self._lock:
            if self._abandoned:
                raise Abandoned("the run has ended before its checkpoint was written")
            yield

    def settle(self) -> None:
        """Wait until nothing is being written on any process.

        Raises:
            OSError, Elsewhere: a checkpoint could not be written.
        """
        if self.accelerator is None:
            return
        with agree(self.accelerator):
            try:
                if self.write is not None:
                    self.write.result()
            finally:
                if self.write is None or self.write.done():  # else a signal came: `close` waits
                    self.write = None

    def close(self) -> None:
        """Wait for the write at the end of a run that failed, whatever becomes of it.

        No file may be written once the run folder is unlocked, so signals do not end the wait.
        """
        write, self.write = self.write, None
        if write is None:
            return
        until = time.monotonic() + self.patience
        while (left := until - time.monotonic()) > 0.0:
            with suppress(BaseException):  # it is the run's own error that counts
                write.result(None if left == math.inf else left)
            if write.done():
                return
        with self._lock:
            self._abandoned = True


# --- checkpoint -----------------------------------------------------------------------------------


FORMAT = 4
SHARED = 5
"""Format of sharded checkpoints, which earlier versions cannot read."""
MANIFEST = "checkpoint.json"
MODEL = "model.safetensors"


class CheckpointError(RuntimeError):
    """A file of a run cannot be read; the message names it and suggests a remedy."""


class DamagedError(CheckpointError):
    """A checkpoint differs from what was written."""


class MissingError(DamagedError):
    """A checkpoint of which a file is not there."""


Gather = Callable[[Any], list[Any]]
"""Returns what all processes give, in their order; each calls it at the same point."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found intact."""

    path: Path
    step: int
    about: dict[str, Any]
    """The other contents of `checkpoint.json`: numbers, strings and containers of these."""
    model: dict[str, Tensor]
    """Parameters and buffers; empty if they are sharded."""
    parts: dict[str, Any]
    """Everything else, by name, on the CPU: tensors, numbers, strings and containers of these."""
    damaged: tuple[Path, ...] = ()
    """Newer checkpoints, all of them damaged."""

    def set_aside(self) -> None:
        """Rename the damaged checkpoints, so that they are not counted among those to keep."""
        for path in self.damaged:
            path.rename(path.with_name(f"{path.name}.damaged-{secrets.token_hex(2)}"))


class Checkpoints:
    """The checkpoints of a run.

    Args:
        path: the folder that holds them; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[Path]:
        """Return the folders of all checkpoints, including damaged ones, newest first."""
        if not self.path.is_dir():
            return []
        found = (path for path in self.path.iterdir() if path.name.isdigit() and path.is_dir())
        return sorted(found, key=lambda path: int(path.name), reverse=True)

    def save(
        self,
        step: int,
        about: Mapping[str, Any],
        model: Mapping[str, Tensor],
        parts: Mapping[str, Any],
        *,
        keep: int = 2,
    ) -> None:
        """Write a checkpoint atomically, and delete those that are no longer needed.

        Args:
            step: steps taken; checkpoints of this or a later step are from an abandoned past.
            about: contents of `checkpoint.json`.
            model: parameters and buffers.
            parts: everything else, by name: tensors, numbers, strings and containers of these.
            keep: number of checkpoints to keep, including this one.

        Raises:
            OSError: it could not be written; the earlier checkpoints are untouched.
        """
        content = {MODEL: save(plain(model)), **_pickle(parts)}
        content[MANIFEST] = _manifest(FORMAT, step, about, _sums(content))
        path = self._place(step)
        files.write_folder(path, content)
        self._prune(step, keep)

    def begin(self, step: int) -> Path:
        """Return a new folder for the shards of a checkpoint, which `complete` moves into place."""
        path = self._place(step, clear=False)
        return files.new_folder(path)

    def complete(
        self,
        begun: Path,
        step: int,
        about: Mapping[str, Any],
        parts: Mapping[str, Any],
        sums: Mapping[str, Any],
        *,
        keep: int = 2,
    ) -> None:
        """Complete a checkpoint whose shards have been written, and delete unneeded ones.

        Args:
            begun: the folder returned by `begin`, with all shards in it.
            step, about, parts, keep: see `save`.
            sums: size and SHA-256 of each shard, by file name.

        Raises:
            OSError: it could not be written; the earlier checkpoints are untouched.
        """
        content = _pickle(parts)
        content[MANIFEST] = _manifest(SHARED, step, about, {**sums, **_sums(content)})
        files.complete_folder(begun, self._place(step), content)
        self._prune(step, keep)

    def _place(self, step: int, *, clear: bool = True) -> Path:
        """Return the folder for the checkpoint of a step; `clear` deletes an abandoned one."""
        self.path.mkdir(exist_ok=True)
        files.sync_folder(self.path.parent)
        path = self.path / f"{step:010d}"
        if clear and path.exists():
            _delete(path)
        return path

    def _prune(self, step: int, keep: int) -> None:
        path = self.path / f"{step:010d}"
        earlier = [each for each in self.all() if int(each.name) < step]
        for each in set(self.all()) - {path, *earlier[: keep - 1]}:
            _delete(each)

    def newest(
        self,
        warn: Callable[[str], object],
        *,
        part: Part = WHOLE,
        gather: Gather = lambda own: [own],
    ) -> Checkpoint | None:
        """Return the newest intact checkpoint; None if there are no checkpoints.

        Several processes read it together. Each verifies its part of the shares, and all take the
        same checkpoint, or raise the same error.

        Args:
            warn: called with a message for each newer one that is damaged.
            part: of this process.
            gather: collects what each process found.

        Raises:
            CheckpointError: all are damaged, or of another version; or a process cannot read what
                others can, or reads something else.
        """
        damaged: dict[Path, str] = {}
        names = _attempt(lambda: [path.name for path in self.all()])
        for name in _exchange(names, gather)[0]:  # as the first process sees them
            path = self.path / name
            found = _attempt(lambda: self.read(path, part))  # noqa: B023 - called at once
            try:
                sums = _exchange(found, gather, lambda each: each.about["sha256"])
            except DamagedError as error:
                damaged[path] = str(error)
                continue
            if len(set(sums)) > 1:
                raise CheckpointError(
                    f"{path} is not the same for all processes: put the run folder on a file "
                    "system that all of them share"
                )
            assert isinstance(found, Checkpoint)
            for message in damaged.values():
                warn(f"{message}: it is ignored, and the run continues from {path}")
            return replace(found, damaged=tuple(damaged))
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.path} can be read ({'; '.join(damaged.values())}): "
                "restore one from a copy, or train into another folder with --out"
            )
        return None

    def read(self, path: Path, part: Part = WHOLE) -> Checkpoint:
        """Read a checkpoint; nothing in it is executed.

        Args:
            path: its folder.
            part: which of its shares to verify; of the others only the size is.

        Raises:
            DamagedError: it is damaged.
            CheckpointError: it is of another version, or the disk cannot be read.
        """
        try:
            text = read_bytes(path / MANIFEST, storage.MOST)
            about: dict[str, Any] = storage.parse(text, Manifest, spelt=True)
            if _sign({k: v for k, v in about.items() if k != "sha256"}) != text:
                raise ValueError(f"{MANIFEST} does not have the checksum that it should")
            if about["format"] not in (FORMAT, SHARED):
                raise CheckpointError(
                    f"{path} has format {about['format']} of version {about.get('equilibria')}, "
                    f"and this version ({__version__}) reads formats {FORMAT} and {SHARED}"
                )
            content: dict[str, bytes] = {}
            shares = [name for name in about["parts"] if name.startswith("share-")]
            for name, known in about["parts"].items():
                if Path(name).name != name:
                    raise ValueError(f"{name!r} is no name of a file in it")
                if name not in shares:
                    content[name] = read_bytes(path / name, known["bytes"])
                    found = _sha256(content[name])
                elif shares.index(name) % part.count == part.index:
                    with open_file(path / name) as file:
                        found = hashlib.file_digest(file, "sha256").hexdigest()
                elif (path / name).stat().st_size == known["bytes"]:
                    continue
                else:
                    raise ValueError(f"{name} does not have the size that it should")
                if found != known["sha256"]:
                    raise ValueError(f"{name} does not have the checksum that it should")
            model = load(content.pop(MODEL)) if MODEL in content else {}
            parts = {name.removesuffix(".pt"): _unpickle(name, c) for name, c in content.items()}
        except FileNotFoundError as error:
            name = Path(error.filename).name
            raise MissingError(f"{path} is damaged ({name} is missing)") from None
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EFBIG):  # a pipe, say, or more than was written
                raise DamagedError(
                    f"{path} is damaged ({error.filename}: {error.strerror})"
                ) from None
            # It may be temporary, so no checkpoint is given up.
            raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from None
        except (ValueError, LookupError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise DamagedError(f"{path} is damaged ({reason})") from None
        return Checkpoint(path, about["step"], about, model, parts)


def _attempt(work: Callable[[], Any]) -> Any:
    """Return what `work` returns, or the error that it raises."""
    try:
        return work()
    except Exception as error:
        return error


def _exchange(
    own: Any, gather: Gather, known: Callable[[Any], Any] = lambda each: each
) -> list[Any]:
    """Return what is `known` by each process, unless any of them found an error.

    Nothing is raised before all have given theirs: none of them waits for one that has failed.

    Raises:
        DamagedError: the files that all see are damaged.
        CheckpointError: a process cannot read them, or sees others than the first does.
    """
    unexpected = isinstance(own, Exception) and not isinstance(own, CheckpointError)
    if unexpected:
        told: Any = CheckpointError(f"{type(own).__name__}: {' '.join(str(own).split())}")
    else:
        told = own if isinstance(own, Exception) else known(own)
    every = gather(told)
    if unexpected:
        raise own
    errors = {index: each for index, each in enumerate(every) if isinstance(each, Exception)}
    for index, error in errors.items():
        if not isinstance(error, DamagedError):
            alike = all(str(each) == str(error) for each in every)
            raise CheckpointError(str(error) if alike else f"process {index}: {error}")
        if isinstance(error, MissingError) and len(errors) < len(every):
            raise CheckpointError(
                f"process {index}: {error}, and other processes see it: try again when all do"
            )
    for error in errors.values():
        raise DamagedError(str(error))
    return every


def _pickle(parts: Mapping[str, Any]) -> dict[str, bytes]:
    content = {}
    for name, part in parts.items():
        buffer = io.BytesIO()
        torch.save(part, buffer)
        content[f"{name}.pt"] = buffer.getvalue()
    return content


def _sums(content: Mapping[str, bytes]) -> dict[str, Any]:
    return {name: {"bytes": len(c), "sha256": _sha256(c)} for name, c in content.items()}


def _manifest(kind: int, step: int, about: Mapping[str, Any], sums: Mapping[str, Any]) -> bytes:
    return _sign(
        {"format": kind, "equilibria": __version__, "step": step, **about, "parts": dict(sums)}
    )


def _sign(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of `checkpoint.json`, including their own checksum."""
    text = files.to_json(content, indent=1)
    return files.to_json({**content, "sha256": _sha256(text.encode())}, indent=1).encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _unpickle(name: str, content: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of many classes; torch's own advice is to run what is in the file
        if is_out_of_memory(error):
            raise
        raise ValueError(f"{name} holds more than tensors, numbers and texts, or is cut") from None


def _delete(path: Path) -> None:
    """Delete a checkpoint, manifest first, so that a partly deleted one is never used."""
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters and buffers as safetensors needs them: on the CPU, sharing no memory."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for key, value in state.items():
        value = value.detach().cpu().contiguous()
        memory = value.untyped_storage().data_ptr()
        found[key] = value.clone() if memory in seen else value
        seen.add(memory)
    return found
