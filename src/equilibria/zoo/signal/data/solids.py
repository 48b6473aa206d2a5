"""Closed surfaces by formula: shapes to try a network on, where there is no file."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from equilibria.words import nearest
from equilibria.zoo.signal.data.mesh import Mesh
from equilibria.zoo.signal.data.shape import Shape

__all__ = ["SOLIDS", "solid", "tube"]


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
