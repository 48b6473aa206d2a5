"""Shapes: the inside of a closed mesh, sampled as occupancy."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, require
from equilibria.words import nearest
from equilibria.zoo.signal.data.field import Points
from equilibria.zoo.signal.data.mesh import Inside, Mesh, clean_mesh, read_mesh
from equilibria.zoo.signal.data.signal import iou

EXTENT = 0.95
"""Where the mesh ends along its longest side: the cube has a margin on which nothing is inside."""

NOISE = 2e-3
"""Standard deviation of points near the surface, that of the released code, in [-1, 1]."""


class Occupancy(NamedTuple):
    """Points, and whether each is inside."""

    points: Tensor
    """float32 in [-1, 1], ``(count, 3)``."""
    inside: Tensor
    """bool, ``(count,)``."""


@dataclass(frozen=True, kw_only=True)
class ShapeField:
    """A shape without its surface: how the cube [-1, 1]^3 lies in the space of its file.

    A vertex v of the file is at (v - centre) / scale.

    Attributes:
        centre: Middle of the mesh's bounding box.
        scale: Length in the file that is 1 in the cube.

    Raises:
        ValueError: If one is not finite, or the scale is not positive.
    """

    centre: tuple[float, float, float]
    scale: float
    kind: str = dataclasses.field(default="shape", init=False)

    inputs: ClassVar[int] = 3
    """Coordinates of a point: x, y and z."""
    outputs: ClassVar[int] = 1
    """Values of a point: the logit of being inside."""

    def __post_init__(self) -> None:
        numbers = [*self.centre, self.scale]
        if len(numbers) != 4 or not all(map(math.isfinite, numbers)) or self.scale <= 0:
            raise ValueError(
                f"centre is {self.centre} and scale is {self.scale}: expected three finite numbers "
                "and a positive one"
            )

    def points(self, resolution: int) -> Points:
        """The points of a grid over the cube, from -1 to 1 along each axis.

        Raises:
            ValueError: If `resolution` is below 2.
        """
        if resolution < 2:
            raise ValueError(f"resolution is {resolution}: expected 2 or more points along an axis")
        axis = torch.linspace(-1, 1, resolution, dtype=torch.float64)
        return Points((axis, axis, axis))

    def restore(self, vertices: np.ndarray) -> np.ndarray:
        """Places in the cube, ``(count, 3)``, as those of the file."""
        return vertices * self.scale + np.array(self.centre)

    def as_dict(self) -> dict[str, Any]:
        """The field as plain numbers and words, for a file."""
        return {**asdict(self), "centre": list(self.centre)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """The inside of a closed mesh, in the cube [-1, 1]^3.

    Attributes:
        name: What tables and messages call it.
        field: How the cube lies in the space of the file; see `ShapeField`.
        mesh: The surface, in the cube.
    """

    name: str
    field: ShapeField
    mesh: Mesh = dataclasses.field(repr=False)

    @classmethod
    def of(cls, mesh: Mesh, name: str) -> Shape:
        """Bring a mesh into the cube, its longest side from -0.95 to 0.95.

        Raises:
            DataError: If it is open, empty or not finite.
        """
        places, faces = clean_mesh(mesh, name)
        low, high = places.min(0), places.max(0)
        centre = (low + high) / 2
        described = ShapeField(
            centre=(float(centre[0]), float(centre[1]), float(centre[2])),
            scale=float((high - low).max() / 2 / EXTENT),
        )
        inner = (places - np.array(described.centre)) / described.scale
        return cls(name=name, field=described, mesh=Mesh(inner, faces))

    @cached_property
    def _inside(self) -> Inside:
        return Inside(self.mesh)

    def inside(self, points: Tensor) -> Tensor:
        """Tell whether points of the cube, ``(count, 3)``, are inside, bool, ``(count,)``."""
        return torch.from_numpy(self._inside(points.detach().cpu().double().numpy()))

    def uniform(self, count: int, seed: int | Sequence[int]) -> Occupancy:
        """Draw points evenly from the cube.

        The released code draws them from the bounding box of the mesh instead.

        Args:
            count: Points, 1 or more.
            seed: The same one gives the same points.

        Raises:
            ValueError: If there are no points, or a seed is negative.
        """
        return self._judge(_generator(count, seed).uniform(-1, 1, (count, 3)))

    def near_surface(
        self, count: int, seed: int | Sequence[int], noise: float = NOISE
    ) -> Occupancy:
        """Draw points evenly from the surface, by area, and move them by N(0, noise^2) each way.

        The released code draws triangles without regard to their areas.

        Args:
            count: Points, 1 or more.
            seed: The same one gives the same points.
            noise: Standard deviation along each axis, in the cube.

        Raises:
            ValueError: If there are no points, a seed or the noise is negative.

        papers: Bai 2022, sec. 8.3.5; Mescheder et al. 2019.
        """
        if not 0 <= noise < math.inf:
            raise ValueError(f"noise is {noise}: expected 0 or more")
        generator = _generator(count, seed)
        corners = self.mesh.vertices[self.mesh.faces]
        sides = corners[:, 1:] - corners[:, :1]
        area = np.linalg.norm(np.cross(sides[:, 0], sides[:, 1]), axis=1)
        chosen = generator.choice(len(area), count, p=area / area.sum())
        root, along = np.sqrt(generator.random(count)), generator.random(count)
        weights = np.stack([1 - root, root * (1 - along), root * along], 1)
        places = (corners[chosen] * weights[:, :, None]).sum(1)
        return self._judge(places + noise * generator.standard_normal((count, 3)))

    def near_surface_iou(self, found: Tensor, drawn: Occupancy) -> float:
        """Intersection over union on points of `near_surface`.

        Args:
            found: Logits or bool, ``(count,)`` or ``(count, 1)``; above 0 is inside.
            drawn: The points.
        """
        flat = found.detach().cpu().reshape(-1)
        return iou(flat if flat.dtype == torch.bool else flat > 0, drawn.inside)

    def _judge(self, places: np.ndarray) -> Occupancy:
        # In float32 first: inside is judged where the network looks.
        points = torch.from_numpy(places).float()
        return Occupancy(points, self.inside(points))


def read_shape(path: str | os.PathLike[str]) -> Shape:
    """Read a mesh as a shape; see `mesh.read_mesh`.

    Raises:
        DataError: If it cannot be read, is damaged, empty or open, or trimesh is not installed.
    """
    return Shape.of(read_mesh(path), Path(path).name)


def _generator(count: int, seed: int | Sequence[int]) -> np.random.Generator:
    if count < 1:
        raise ValueError(f"{count} points: expected 1 or more")
    return np.random.default_rng(seed)


# --- solids ---------------------------------------------------------------------------------------

# Closed surfaces by formula: shapes to try a network on, where there is no file.


def tube(curve: Callable[[np.ndarray], np.ndarray], radius: float, along: int, around: int) -> Mesh:
    """A tube around a closed curve, of 2 x `along` x `around` triangles.

    Args:
        curve: From angles, ``(count,)`` in [0, 2 pi), to places, ``(count, 3)``; smooth, nowhere
            straight, and further from itself than the tube is thick.
        radius: Of the tube.
        along: Rings along the curve, 3 or more.
        around: Vertices of a ring, 3 or more.
    """
    angle = 2 * np.pi * np.arange(along) / along
    step = 1e-4
    before, here, after = (curve(angle + by) for by in (-step, 0.0, step))
    tangent = _unit(after - before)
    # Frenet's frame comes back to itself, so that the last ring fits the first.
    bend = after - 2 * here + before
    normal = _unit(bend - (bend * tangent).sum(1, keepdims=True) * tangent)
    across = np.cross(tangent, normal)
    turn = 2 * np.pi * np.arange(around) / around
    ring = normal[:, None] * np.cos(turn)[:, None] + across[:, None] * np.sin(turn)[:, None]
    vertices = (here[:, None] + radius * ring).reshape(-1, 3)
    i, j = np.meshgrid(np.arange(along), np.arange(around), indexing="ij")
    i, j = i.reshape(-1), j.reshape(-1)
    a, b = i * around + j, i * around + (j + 1) % around
    c, d = ((each + around) % (along * around) for each in (a, b))
    return Mesh(vertices, np.concatenate([np.stack([a, c, b], 1), np.stack([b, c, d], 1)]))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _circle(t: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(t), np.sin(t), 0 * t], 1)


def _trefoil(t: np.ndarray) -> np.ndarray:
    return np.stack(
        [np.sin(t) + 2 * np.sin(2 * t), np.cos(t) - 2 * np.cos(2 * t), -np.sin(3 * t)], 1
    )


SOLIDS: dict[str, Callable[[], Mesh]] = {
    "knot": lambda: tube(_trefoil, 0.4, 192, 24),
    "torus": lambda: tube(_circle, 0.4, 96, 32),
}
"""Generated shapes by name: a tube along a trefoil knot, and a torus."""


def solid(name: str) -> Shape:
    """Return a generated shape.

    Raises:
        ValueError: If there is none of that name.
    """
    if name not in SOLIDS:
        raise ValueError(f"there is no shape {name!r}{nearest(name, SOLIDS)}")
    return Shape.of(SOLIDS[name](), name)


# --- surface --------------------------------------------------------------------------------------

# The surface of decoded occupancy, by marching cubes.


def surface(logits: Tensor, field: ShapeField, level: float = 0.0) -> Mesh:
    """Triangles where values on a grid over the cube cross a level, in the space of the file.

    What lies beyond the cube counts as outside, so that the surface is closed.

    Args:
        logits: At ``field.points(resolution)``, ``(resolution,) * 3``; above `level` is inside.
        field: Of the shape.
        level: Of the surface; 0 is a probability of one half.

    Raises:
        ValueError: If the shape is another.
        DataError: If a value is not finite, or all are inside or all outside; or if scikit-image is
            not installed, of the extra ``mesh``.

    papers: Lewiner et al. 2003.
    """
    measure = require("skimage.measure", "scikit-image", "mesh", "marching cubes")
    values = logits.detach().cpu().double().numpy()
    if values.ndim != 3 or len(set(values.shape)) != 1 or len(values) < 2:
        raise ValueError(f"values of the shape {values.shape}: expected (n, n, n), n 2 or more")
    if not np.isfinite(values).all():
        raise DataError("the decoded shape has values that are NaN or infinite")
    if values.max() <= level:
        raise DataError("the decoded shape has no inside: no value is above the level")
    step = 2 / (len(values) - 1)
    # As far below the level as the values reach above it, so that the surface closes at the edge.
    outside = level - max(float(np.abs(values - level).max()), 1e-12)
    padded = np.pad(values, 1, constant_values=outside)
    places, faces, *_ = measure.marching_cubes(
        padded, level, allow_degenerate=False, gradient_direction="ascent"
    )
    return Mesh(field.restore((places - 1) * step - 1), faces.astype(np.int64))
