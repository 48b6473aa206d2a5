"""A segmentation network on images that are larger than it is used to, or seen at several scales.

Both wrappers are models themselves: they take images and give logits at the images' own size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.run.models.base import Model, Prediction
from equilibria.solve import Solution
from equilibria.zoo.vision.model.mdeq import MDEQ
from equilibria.zoo.vision.model.segmentation import upsample


def masks_of(output: Any) -> Tensor:
    """Return the logits of pixels, from the output of a network with one head or several."""
    return output["masks"] if isinstance(output, dict) else output


class Tiled(Model):
    """Logits of images of any size, from windows that overlap.

    Windows begin at multiples of `stride`, and two neighbours share a strip of at least `overlap`
    pixels. Of this strip the outer quarter of each window is not used: what is told there is told
    without seeing what lies beyond. From there the weight of a window rises to that of the other,
    in the middle of the strip. A network whose receptive field reaches no further than a quarter of
    the overlap tells of each pixel what it tells of it in the whole image.

    Args:
        model: the network, in evaluation mode.
        size: height and width of a window.
        overlap: pixels that two neighbouring windows share, at least; below both sides of `size`.
        stride: that the places of windows are multiples of, for a network that halves its input;
            None for the model's `config.min_size`, or 1.

    Raises:
        ValueError: the overlap is not below the size of a window less the stride.
    """

    def __init__(
        self, model: Model, *, size: tuple[int, int], overlap: int, stride: int | None = None
    ) -> None:
        super().__init__()
        self.model, self.size, self.overlap = model, size, overlap
        self.stride = stride or _smallest(model)
        most = min(size) - self.stride
        if not 0 <= overlap <= most:
            raise ValueError(
                f"windows of {size[0]} x {size[1]} pixels cannot overlap by {overlap} in steps of "
                f"{self.stride}: take windows of at least {max(overlap, 0) + self.stride} x "
                f"{max(overlap, 0) + self.stride}"
                + (f", or an overlap between 0 and {most}" if most >= 0 else "")
            )

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return logits (batch, classes, height, width), and the solutions of all windows.

        Args:
            x: (batch, channels, height, width); smaller images than a window are one window.
            carry: None.
        """
        self.refuse_carry(carry)
        height, width = x.shape[2:]
        rows, columns = self.spans(height, self.size[0]), self.spans(width, self.size[1])
        down, across = self.weights(rows, height), self.weights(columns, width)
        total: Tensor | None = None
        solutions: list[Solution] = []
        for (top, bottom), line in zip(rows, down, strict=True):
            for (left, right), column in zip(columns, across, strict=True):
                part = self.model(x[:, :, top:bottom, left:right].contiguous())
                logits = upsample(masks_of(part.output), (bottom - top, right - left))
                if total is None:
                    total = logits.new_zeros(*logits.shape[:2], height, width)
                weight = (line[:, None] * column).to(logits)
                total[:, :, top:bottom, left:right] += weight * logits
                solutions += part.solutions
        assert total is not None
        return Prediction(total, tuple(solutions))

    def spans(self, length: int, window: int) -> list[tuple[int, int]]:
        """Return where windows begin and end along a side of an image.

        All begin at a multiple of the stride. The last ends with the image, and is larger than the
        others by less than a stride.
        """
        if length <= window:
            return [(0, length)]
        step = (window - self.overlap) // self.stride * self.stride
        last = (length - window) // self.stride * self.stride
        return [*((begin, begin + window) for begin in range(0, last, step)), (last, length)]

    def weights(self, spans: Sequence[tuple[int, int]], length: int) -> list[Tensor]:
        """Return the weight of each pixel of each window along a side; together they are 1."""
        found: list[Tensor] = []
        total = torch.zeros(length, dtype=torch.float64)
        quarter = max(self.overlap / 4, 0.5)
        for begin, end in spans:
            inside = torch.arange(end - begin, dtype=torch.float64) + 0.5
            # The edge of the image is no edge of what can be seen.
            before = inside if begin else torch.full_like(inside, torch.inf)
            after = end - begin - inside if end < length else torch.full_like(inside, torch.inf)
            nearest = torch.minimum(before, after)
            weight = ((nearest - quarter) / quarter).clamp(1e-9, 1.0)
            total[begin:end] += weight
            found.append(weight)
        return [w / total[b:e] for (b, e), w in zip(spans, found, strict=True)]


class MultiScale(Model):
    """The mean of the class probabilities of images at several scales, mirrored ones too.

    At each scale the image is interpolated, the network's logits are brought back to its own size,
    and their softmax is added up; the output is the logarithm of the mean. Scales are taken in
    ascending order, and the equilibrium of one, interpolated, starts the solve of the next.

    Args:
        model: the network, in evaluation mode.
        scales: of height and width.
        mirrored: whether each scale is also taken mirrored left to right.
        warm: whether a solve starts at the coarser scale's equilibrium; only of an `MDEQ`, whose
            state can be interpolated.

    Raises:
        ValueError: there is no scale, or one that is not positive.
    """

    def __init__(
        self,
        model: Model,
        *,
        scales: Sequence[float] = (1.0,),
        mirrored: bool = False,
        warm: bool = True,
    ) -> None:
        super().__init__()
        if not scales or min(scales) <= 0:
            raise ValueError(f"scales must be positive numbers, one or more; got {tuple(scales)}")
        self.model, self.scales, self.mirrored = model, tuple(sorted(scales)), mirrored
        self.warm = warm and isinstance(model, MDEQ)

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return log-probabilities (batch, classes, height, width), and all solutions."""
        self.refuse_carry(carry)
        size = x.shape[2:]
        total: Tensor | None = None
        solutions: list[Solution] = []
        coarser: Sequence[Tensor] | None = None
        smallest = _smallest(self.model)
        for scale in self.scales:
            target = [max(smallest, round(scale * side)) for side in size]
            image = x
            if target != list(size):
                image = functional.interpolate(
                    x, size=target, mode="bilinear", align_corners=False, antialias=scale < 1
                )
            found = self._solve(image, coarser)
            solutions += found.solutions
            mirror = None
            if self.warm:
                coarser = found.solution.value
            if self.mirrored:
                start = None if coarser is None else [z.flip(-1) for z in coarser]
                mirror = self._solve(image.flip(-1), start)
                solutions += mirror.solutions
            for each, flipped in ((found, False), (mirror, True)):
                if each is not None:
                    logits = upsample(masks_of(each.output).float(), size).softmax(1)
                    logits = logits.flip(-1) if flipped else logits
                    total = logits if total is None else total + logits
        assert total is not None
        runs = len(self.scales) * (1 + self.mirrored)
        return Prediction((total / runs).clamp_min(1e-12).log(), tuple(solutions))

    def _solve(self, image: Tensor, start: Sequence[Tensor] | None) -> Prediction:
        if start is None or not self.warm:
            return self.model(image)
        assert isinstance(self.model, MDEQ)
        sizes = self.model.config.sizes(*image.shape[2:])
        z0 = tuple(upsample(z, size) for z, size in zip(start, sizes, strict=True))
        return self.model(image, z0=z0)


def _smallest(model: Model) -> int:
    """The smallest height and width of an image that a model can take, as its config has it."""
    seen = model.model if isinstance(model, Tiled) else model
    return int(getattr(getattr(seen, "config", None), "min_size", 1))
