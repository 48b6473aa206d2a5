"""What a trained network says of a user's own images: classes, or a mask for each.

`predict` goes through pictures and writes a row for each into a `Journal`, which a second
call continues.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from equilibria.nn.using import in_eval_mode
from equilibria.run.data.storage import DataError
from equilibria.run.models import EquilibriumModel, Model, Prediction
from equilibria.run.trees import widen
from equilibria.solve import Solution, Status
from equilibria.zoo.io import decode, headers
from equilibria.zoo.io.image_files import ImageView
from equilibria.zoo.io.rows import Journal
from equilibria.zoo.vision.model.segmentation import masks_of, upsample
from equilibria.zoo.vision.task.batches import prepare
from equilibria.zoo.vision.task.seen import ImageFormat, Resize


@dataclass(frozen=True)
class Sight:
    """An image, and how large it was.

    Attributes:
        path: of its file.
        pixels: float32, normalised as in training, (channels, height, width).
        size: height and width of the upright image in the file.
    """

    path: Path
    pixels: Tensor
    size: tuple[int, int]


def sight(path: Path, seen: ImageFormat) -> Sight:
    """Read an image as the run has read its own.

    It is turned upright, converted to the run's colours, brought to its size in the same way, and
    normalised by the same numbers. Where a run took images as they were, a classifier's are brought
    to their shape by the middle part of that ratio; those for segmentation keep their size.

    Raises:
        DataError: the file cannot be read, is no image, or is damaged; the message names it.
    """
    content, resize = decode.read_image(path), seen.resize
    channels, high, wide = seen.shape
    mode = "RGB" if channels == 3 else "L"
    if resize is None and seen.kind == "segmentation":
        values = decode.pixels(content, path, mode, None)
    elif resize is not None and resize.fit == "stretch":
        area, part = resize.filter == "area", lambda h, w: (0.0, 0.0, float(h), float(w))
        values = decode.pixels(content, path, mode, resize.size, part, area)
    else:
        resize = resize or Resize(size=(high, wide))
        shape, area = (channels, *resize.size), resize.filter == "area"
        view = ImageView(shape=shape, fits=False, share=resize.share, area=area)
        values = view.pixels(content, path)
    header = headers.read_header(decode.identify_image(io.BytesIO(content), path))
    pixels = torch.from_numpy(np.ascontiguousarray(values)) / 255
    pixels = prepare(pixels[None], seen.statistics)[0]
    return Sight(path, pixels, (header.height, header.width))


# --- unlabelled -----------------------------------------------------------------------------------

# Batches of a user's own images for a network to look at, without labels.


def iterate_batches(
    paths: Sequence[Path], seen: ImageFormat, batches: int, size: int, seed: int
) -> Iterator[Tensor]:
    """Yield batches (size, channels, height, width) of images in random order.

    Images of one size make a batch. Where no more of them are left, the batches that have begun
    follow as they are, the fullest first.

    Args:
        paths: of the images.
        seen: how a run has seen its own.
        batches: how many, at most.
        size: images of each.
        seed: of the order.

    Warns:
        UserWarning: images could not be read, and are left out; the message names the first.
    """
    waiting: dict[tuple[int, ...], list[Tensor]] = {}
    errors: list[str] = []
    given = 0
    for place in torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed)).tolist():
        if given == batches:
            break
        try:
            pixels = sight(paths[place], seen).pixels
        except DataError as error:
            errors.append(str(error))
            continue
        begun = waiting.setdefault(tuple(pixels.shape), [])
        begun.append(pixels)
        if len(begun) == size:
            yield torch.stack(waiting.pop(tuple(pixels.shape)))
            given += 1
    if errors:
        warnings.warn(
            f"{len(errors)} of {len(paths)} images are left out: {errors[0]}", stacklevel=2
        )
    rest = sorted(waiting.values(), key=len, reverse=True)
    yield from (torch.stack(begun) for begun in rest[: batches - given])


# --- drawing --------------------------------------------------------------------------------------

# Masks as palette PNG, and overlays to look at.


OPACITY = 0.5
"""Of the colours of classes over an image."""


def best_classes(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the class with the largest logit at each pixel, uint8 (height, width).

    Logits are interpolated one class at a time: an image may be far larger than what the network
    has seen of it.

    Args:
        logits: of one image, (classes, h, w).
        size: height and width of the image.
    """
    best = upsample(logits[None, :1], size)[0, 0]
    answer = torch.zeros(best.shape, dtype=torch.uint8, device=logits.device)
    for number in range(1, len(logits)):
        other = upsample(logits[None, number : number + 1], size)[0, 0]
        better = other > best
        answer[better] = number
        best = torch.where(better, other, best)
    return answer.cpu()


def mask_png(
    mask: np.ndarray, colors: Sequence[Sequence[int]], values: Sequence[int] = ()
) -> bytes:
    """Return a mask as a PNG whose palette has the colours of classes.

    Args:
        mask: classes, uint8 (height, width).
        colors: red, green and blue of each class.
        values: what the file holds for each class; empty for 0, 1, ...
    """
    from PIL import Image

    values = values or range(len(colors))
    table = np.zeros(256, np.uint8)
    table[: len(values)] = values
    palette = np.zeros((max(values) + 1, 3), np.uint8)
    palette[list(values)] = colors
    found = Image.fromarray(table[mask])
    found.putpalette(palette.tobytes())
    return _png(found)


def overlay_png(image: np.ndarray, mask: np.ndarray, colors: Sequence[Sequence[int]]) -> bytes:
    """Return an image, uint8 (3, height, width), under the colours of its mask, as PNG."""
    from PIL import Image

    table = np.array(colors, np.float32)
    mixed = (1 - OPACITY) * image.transpose(1, 2, 0) + OPACITY * table[mask]
    return _png(Image.fromarray(mixed.round().astype(np.uint8)))


def _png(image: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")  # type: ignore[attr-defined]
    return file.getvalue()


# --- engine ---------------------------------------------------------------------------------------


AHEAD = 2
"""Images that each thread may have decoded before they are taken: they bound the memory."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """How images are gone through.

    Args:
        batch_size: images of one size that are solved at once.
        top: classes of an image that a row names, the most probable first.
        overlays: draw each image under its mask, for segmentation.
        video: take images for frames of a video: each solve starts at the equilibrium of the one
            before, where that had the same size.
        threads: that decode images; None for one a core.
    """

    batch_size: int = 16
    top: int = 5
    overlays: bool = True
    video: bool = False
    threads: int | None = None


@dataclass(frozen=True)
class Large:
    """What sees images that are larger than a window.

    Attributes:
        model: takes images of any size.
        window: height and width up to which an image is shown to the run's own model.
    """

    model: Model
    window: tuple[int, int]

    def fits(self, height: int, width: int) -> bool:
        """Return whether an image is no larger than the window."""
        return height <= self.window[0] and width <= self.window[1]


@dataclass(frozen=True)
class Unreadable:
    """An image that cannot be read, or is too small to be seen."""

    path: Path
    error: str

    @property
    def row(self) -> dict[str, Any]:
        """What is written of it."""
        return {"path": str(self.path), "result": "error", "error": self.error}


def predict(
    model: Model,
    seen: ImageFormat,
    paths: Sequence[Path],
    journal: Journal,
    accelerator: Accelerator,
    options: PredictOptions,
    *,
    large: Large | None = None,
    smallest: int = 1,
    progress: Callable[[int], object] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Write a row for each image that has none yet.

    Args:
        model: of the run, on the accelerator's device.
        seen: how the run has seen its images.
        paths: absolute paths of the images.
        journal: where rows go.
        accelerator: gives device and precision.
        options: see there.
        large: what sees images that are too large for the model; None to show it all of them.
        smallest: height and width, in pixels, that the model needs at least.
        progress: called with the number of rows that were written at once.
        stop: asked after each batch.

    Returns:
        Whether all images have a row: False where `stop` ended it.
    """
    left = [path for path in paths if str(path) not in journal.done]
    before: tuple[tuple[int, ...], Solution] | None = None
    with torch.no_grad(), in_eval_mode(model):
        for batch in _batches(left, seen, options, smallest):
            if isinstance(batch, Unreadable):
                journal.add([batch.row])
                progress(1)
            else:
                inputs = torch.stack([each.pixels for each in batch]).to(accelerator.device)
                warm: dict[str, Any] = {}
                if options.video and before is not None and before[0] == tuple(inputs.shape):
                    warm = {"warm": before[1]}
                chosen = model
                if large is not None and not large.fits(inputs.shape[2], inputs.shape[3]):
                    chosen = large.model
                with accelerator.autocast():
                    prediction: Prediction = chosen(inputs, **warm)
                if options.video and isinstance(model, EquilibriumModel):
                    before = tuple(inputs.shape), prediction.solution
                output = widen(prediction.output)
                describe = _describe_mask if seen.kind == "segmentation" else _describe_classes
                rows: list[dict[str, Any]] = []
                for place, each in enumerate(batch):
                    try:
                        found = describe(each, _of(output, place), seen, journal, options)
                    except DataError as error:  # the file has changed in the meantime
                        rows.append(Unreadable(each.path, str(error)).row)
                        continue
                    solve = _solve(prediction.solutions, place)
                    rows.append({"path": str(each.path), "result": "ok", **found, **solve})
                journal.add(rows)
                progress(len(rows))
            if stop():
                return all(str(path) in journal.done for path in paths)
    return True


def _batches(
    paths: Sequence[Path], seen: ImageFormat, options: PredictOptions, smallest: int
) -> Iterator[list[Sight] | Unreadable]:
    """Images of one size, as they follow each other; and what cannot be read, in order too."""

    def read(path: Path) -> Sight | Unreadable:
        try:
            found = sight(path, seen)
        except DataError as error:
            return Unreadable(path, str(error))
        high, wide = found.pixels.shape[1:]
        if min(high, wide) < smallest:
            return Unreadable(
                path,
                f"{path} has {high} x {wide} pixels, and the network needs {smallest} x "
                f"{smallest}: make it larger",
            )
        return found

    waiting: list[Sight] = []
    size = 1 if options.video else options.batch_size
    for each in decode.in_threads(read, paths, options.threads, ahead=AHEAD):
        broken = isinstance(each, Unreadable)
        if waiting and (
            broken or len(waiting) == size or each.pixels.shape != waiting[0].pixels.shape
        ):
            yield waiting
            waiting = []
        if broken:
            yield each
        else:
            waiting.append(each)
    if waiting:
        yield waiting


def _of(output: Any, place: int) -> Any:
    """The part of an output that belongs to one image."""
    if isinstance(output, dict):
        return {name: each[place] for name, each in output.items()}
    return output[place]


def _describe_classes(
    image: Sight, logits: Tensor, seen: ImageFormat, journal: Journal, options: PredictOptions
) -> dict[str, Any]:
    """The most probable classes of an image."""
    probabilities = logits.softmax(0)
    best = probabilities.topk(min(options.top, len(probabilities)))
    top = [
        {"label": seen.labels[number], "probability": round(value, 6)}
        for value, number in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    return {**top[0], "top": top}


def _describe_mask(
    image: Sight, output: Any, seen: ImageFormat, journal: Journal, options: PredictOptions
) -> dict[str, Any]:
    """The mask of an image, written, and the share of each class in it."""
    row: dict[str, Any] = {}
    if isinstance(output, dict) and "presence" in output:
        likely = output["presence"].sigmoid().tolist()
        row["presence"] = {
            label: round(each, 6) for label, each in zip(seen.labels, likely, strict=True)
        }
        if "masks" not in output:
            return row
    mask = best_classes(masks_of(output).float(), image.size).numpy()
    name = journal.name_of(str(image.path))
    journal.draw("masks", name, mask_png(mask, seen.colors, seen.values))
    row["mask"] = f"masks/{name}"
    if options.overlays:
        whole = decode.pixels(decode.read_image(image.path), image.path, "RGB", None)
        journal.draw("overlays", name, overlay_png(whole, mask, seen.colors))
        row["overlay"] = f"overlays/{name}"
    counts = torch.bincount(torch.from_numpy(mask).flatten().long(), minlength=len(seen.labels))
    shares = (counts / mask.size).tolist()
    row["share"] = {label: round(each, 6) for label, each in zip(seen.labels, shares, strict=True)}
    return row


def _solve(solutions: Sequence[Solution], place: int) -> dict[str, Any]:
    """How the solves of an image ended: the worst of them, and their evaluations together."""
    if not solutions:
        return {}
    return {
        # From CONVERGED up to NONFINITE, each number is of a worse end.
        "status": Status(max(int(each.status[place]) for each in solutions)).name,
        "evaluations": sum(int(each.stats.evals[place]) for each in solutions),
        "residual": max(float(each.stats.residual[place]) for each in solutions),
    }
