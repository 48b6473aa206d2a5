"""The test images of benchmarks, and the layouts that their servers expect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from equilibria.zoo.flow.predict.frames import (
    Frame,
    FramePair,
    FramesError,
    pair_frames,
    read_frame,
)
from equilibria.zoo.io.naming import natural_key


@dataclass(frozen=True)
class Benchmark:
    """How the test images of a benchmark are stored, and how its server expects their flow.

    Attributes:
        name: of the benchmark.
        images: folder of the test images in that of the benchmark.
        folders: names that the benchmark's folder may have in a folder of data sets.
        ending: of files of flow.
        inside: folder, in the submission, of the flow files.
        consecutive: whether frames follow each other.
        next: what to do with the folder.
    """

    name: str
    images: str
    folders: tuple[str, ...]
    ending: str
    inside: str
    consecutive: bool
    next: str

    def root(self, data_dir: Path | None) -> Path:
        """Return the benchmark's folder.

        Args:
            data_dir: where it is looked for, before $EQUILIBRIA_DATA.

        Raises:
            FramesError: it is in neither.
        """
        given = os.environ.get("EQUILIBRIA_DATA")
        places = [place for place in (data_dir, Path(given) if given else None) if place]
        for place in places:
            for folder in (place, *(place / name for name in self.folders)):
                if (folder / self.images).is_dir():
                    return folder
        if not places:
            raise FramesError(
                f"--submit {self.folders[0]} needs the test images of {self.name}: name the folder "
                f"that holds {self.folders[0]}/{self.images} with --data-dir"
            )
        raise FramesError(
            f"there are no test images of {self.name} in {' or '.join(map(str, places))}: expected "
            f"a folder {self.images} there, or in its folder {' or '.join(self.folders)}"
        )

    def pairs(self, root: Path) -> list[FramePair]:
        """Return the test pairs, whose names are those of the files to submit.

        Raises:
            FramesError: an image is missing, without which the server would take nothing.
        """
        found = list(_sintel(root) if self.consecutive else _kitti(root))
        if not found:
            raise FramesError(f"{root / self.images} has no test images")
        return found


def _frame(path: Path, name: str) -> Frame:
    return Frame(str(path.parent.resolve() / path.name), name, lambda: read_frame(path))


def _sintel(root: Path) -> Iterator[FramePair]:
    for rendering in ("clean", "final"):
        scenes = root / "test" / rendering
        if not scenes.is_dir():
            raise FramesError(f"there is no folder {scenes}: the server takes clean and final")
        for scene in sorted(path for path in scenes.iterdir() if path.is_dir()):
            images = sorted(scene.glob("frame_*.png"), key=natural_key)
            if len(images) < 2:
                count = "a single image" if images else "no images"
                raise FramesError(f"{scene} has {count} frame_*.png: expected two or more")
            names = [
                f"{rendering}/{scene.name}/frame{image.stem.removeprefix('frame_')}"
                for image in images
            ]
            yield from pair_frames(map(_frame, images, names))


def _kitti(root: Path) -> Iterator[FramePair]:
    folder = root / "testing" / "image_2"
    images = sorted(folder.glob("*_10.png"))
    if not images:
        raise FramesError(f"{folder} has no images NNNNNN_10.png")
    for image in images:
        other = image.with_name(image.name.replace("_10.", "_11."))
        if not other.is_file():
            raise FramesError(f"{other} is missing, the second image of {image.name}")
        (pair,) = pair_frames([_frame(image, image.stem), _frame(other, other.stem)])
        yield replace(pair, follows=False)


BENCHMARKS = {
    "sintel": Benchmark(
        name="MPI Sintel",
        images="test/clean",
        folders=("sintel", "Sintel", "MPI-Sintel", "MPI-Sintel-complete"),
        ending=".flo",
        inside="",
        consecutive=True,
        next="Pack it with the bundler that comes with the data.",
    ),
    "kitti": Benchmark(
        name="KITTI 2015",
        images="testing/image_2",
        folders=("kitti", "KITTI", "kitti2015", "data_scene_flow"),
        ending=".png",
        inside="flow",
        consecutive=False,
        next="Pack its folder flow as a zip file.",
    ),
}
"""Benchmarks whose test flow is kept by a server, by name."""
