"""What the configs of all image models say: the shape of an image and the number of classes."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equilibria.checks import check_fields
from equilibria.run.models.base import ClassifierConfig


@dataclass(frozen=True, kw_only=True)
class VisionConfig(ClassifierConfig):
    """The architecture of a model that tells images apart.

    Args:
        shape: channels, height and width of one image; None for that of the data, which the task
            fills in.
        classes: number of outputs; None for that of the data.
    """

    dense: ClassVar[bool] = False
    """Whether the model tells the class of each pixel, not of the whole image."""

    shape: tuple[int, int, int] | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "shape", "classes")
        if self.shape is not None and min(self.shape[1:]) < self.min_size:
            _, height, width = self.shape
            raise ValueError(
                f"images of {height} x {width} pixels are too small for a "
                f"{type(self).__name__.removesuffix('Config')} of this shape, which needs "
                f"{self.min_size} x {self.min_size}: {self.remedy}"
            )

    @property
    def min_size(self) -> int:
        """The smallest height and width, in pixels, of an image that the model can take."""
        return 1

    @property
    def remedy(self) -> str:
        """What to do where images are smaller than that."""
        return "take larger images"

    def require_shape(self) -> tuple[tuple[int, int, int], int]:
        """Return shape and classes.

        Raises:
            ValueError: one of them is None.
        """
        if self.shape is None or self.classes is None:
            raise ValueError(
                "shape or classes is None, which stands for that of the data: give both where a "
                f"model is built without a task (they are {self.shape} and {self.classes})"
            )
        return self.shape, self.classes

    def check(self, x: Tensor) -> None:
        """Refuse what is no batch of images for the model.

        Args:
            x: (batch, channels, height, width); height and width need not be those of `shape`.

        Raises:
            ValueError: it has another shape, or no floating-point numbers.
        """
        (channels, _, _), _ = self.require_shape()
        if x.ndim != 4 or x.shape[1] != channels or not x.is_floating_point():
            raise ValueError(
                f"expected images (batch, {channels}, height, width) of floating-point numbers; "
                f"got {tuple(x.shape)} of {x.dtype}"
            )
