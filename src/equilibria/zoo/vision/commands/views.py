"""How images are seen by a segmentation network: at several scales, mirrored, in windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from equilibria.run.cli.options import ViewOptions
from equilibria.run.cli.parser import Parser, UserError
from equilibria.run.models import Model
from equilibria.run.recipe import Recipe

LARGEST = 8.0
"""Scale up to which images are enlarged: 64 times the pixels."""


class Views(ViewOptions):
    """The options that say how images are seen, for `equilibria evaluate` and `predict`."""

    @override
    def add_to(self, parser: Parser) -> None:
        parser.add_argument(
            "--scales",
            type=float,
            nargs="+",
            metavar="SCALE",
            help="segmentation: average the class probabilities over these scales, such as "
            "0.75 1 1.25",
        )
        parser.add_argument(
            "--mirrored",
            action="store_true",
            help="segmentation: average them over mirrored images too",
        )
        parser.add_argument(
            "--window",
            type=int,
            nargs=2,
            metavar=("HEIGHT", "WIDTH"),
            help="segmentation: process larger images in overlapping windows of this size, "
            "in pixels",
        )
        parser.add_argument(
            "--overlap",
            type=int,
            metavar="PIXELS",
            help="least overlap of two windows, in pixels (default: a quarter of the shorter side)",
        )

    @override
    def changes_of(self, arguments: Any, recipe: Recipe) -> dict[str, Any]:
        """Return what the options say, as a record holds it; empty where images are seen as usual.

        Raises:
            UserError: the run's model does not tell the class of each pixel, or `--overlap` is
                given without `--window`.
        """
        found: dict[str, Any] = {}
        if arguments.scales:
            if wrong := [each for each in arguments.scales if not 0 < each <= LARGEST]:
                raise UserError(
                    "--scales are factors of height and width, above 0 and at most "
                    f"{LARGEST:g}; got {wrong[0]:g}"
                )
            found["scales"] = list(arguments.scales)
        if arguments.mirrored:
            found["mirrored"] = True
        if arguments.window:
            found["window"] = list(arguments.window)
            short = min(arguments.window)
            found["overlap"] = short // 4 if arguments.overlap is None else arguments.overlap
        elif arguments.overlap is not None:
            raise UserError("--overlap needs windows: give their size with --window HEIGHT WIDTH")
        if not found:
            return found
        from equilibria.zoo.vision.model.config import VisionConfig

        if not (isinstance(recipe.model, VisionConfig) and recipe.model.dense):
            raise UserError(
                f"--{next(iter(found))} is for segmentation, which this run's {recipe.model.title} "
                "does not do: leave it out"
            )
        if "masks" not in getattr(recipe.model, "heads", ("masks",)):
            raise UserError(
                f"--{next(iter(found))} is for segmentation, and this network has no head for "
                "masks: leave it out"
            )
        return found

    @override
    def view(self, model: Model, changes: Mapping[str, Any]) -> Model:
        from equilibria.zoo.vision.model.segmentation import MultiScale, Tiled

        try:
            if "window" in changes:
                high, wide = changes["window"]
                model = Tiled(model, size=(high, wide), overlap=changes["overlap"])
            if "scales" in changes or "mirrored" in changes:
                model = MultiScale(
                    model,
                    scales=changes.get("scales", (1.0,)),
                    mirrored=changes.get("mirrored", False),
                )
        except ValueError as error:
            raise UserError(str(error)) from None
        return model.eval()

    @override
    def describe(self, changes: Mapping[str, Any]) -> str:
        parts = list[str]()
        if "scales" in changes:
            parts.append("scales " + " ".join(f"{scale:g}" for scale in changes["scales"]))
        if "mirrored" in changes:
            parts.append("mirrored")
        if "window" in changes:
            parts.append("windows of {} x {}".format(*changes["window"]))
        return "".join(f", {part}" for part in parts)
