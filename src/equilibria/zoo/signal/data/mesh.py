"""Closed surfaces of triangles, read from OBJ, PLY and STL files and written as PLY."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equilibria.run.data.storage import DataError, open_file, read_errors, replace_file, require
from equilibria.zoo.io.arrays import coarse

ENDINGS = (".obj", ".ply", ".stl")
"""Of files of meshes that are read."""

BYTES = 1 << 29
"""Maximum size of such a file."""


class Mesh(NamedTuple):
    """A surface of triangles."""

    vertices: np.ndarray
    """float64, ``(vertices, 3)``."""
    faces: np.ndarray
    """Vertices of each triangle, int64, ``(faces, 3)``."""


def read_mesh(path: str | os.PathLike[str]) -> Mesh:
    """Read a closed mesh; vertices at the same place become one.

    Args:
        path: An OBJ, PLY or STL file. trimesh reads it, of the extra ``mesh``.

    Raises:
        DataError: If it cannot be read, is damaged or empty, has vertices that are not finite, or
            is open; or if trimesh is not installed.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in ENDINGS:
        raise DataError(f"{path} is no mesh that can be read: expected {', '.join(ENDINGS)}")
    trimesh = require("trimesh", "trimesh", "mesh", f"the mesh {path}")
    with read_errors(path), open_file(path) as file:
        if (size := path.stat().st_size) > BYTES:
            raise DataError(f"{path} has {size:,} bytes: expected at most {BYTES:,}")
        try:
            # Bytes, not a path: a material or texture that an OBJ file names is not looked for.
            found = trimesh.load(file, file_type=kind[1:], force="mesh", process=False)
            mesh = Mesh(
                np.asarray(found.vertices, np.float64).reshape(-1, 3),
                np.asarray(found.faces, np.int64).reshape(-1, 3),
            )
        except Exception as error:  # what a damaged file raises depends on its format
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"{path} is no mesh, or damaged ({reason})") from None
    return clean_mesh(mesh, path)


def clean_mesh(mesh: Mesh, name: object) -> Mesh:
    """The mesh with one vertex for each place, and without triangles that enclose nothing.

    Raises:
        DataError: If there is no triangle, a vertex is not finite or named by none, or the surface
            is open: an edge has an odd number of triangles.
    """
    vertices, faces = mesh
    if not len(faces):
        raise DataError(f"{name} has no triangles: a shape is a closed surface")
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise DataError(f"{name} is damaged: a triangle names a vertex that is not there")
    if not np.isfinite(vertices).all():
        raise DataError(f"{name} has vertices that are NaN or infinite: repair it")
    # Adding zero makes -0 and 0 one.
    places, number = np.unique(vertices[faces.reshape(-1)] + 0.0, axis=0, return_inverse=True)
    faces = number.reshape(-1, 3)
    a, b, c = faces.T
    faces = faces[(a != b) & (b != c) & (c != a)]
    # Two equal triangles enclose nothing.
    _, first, count = np.unique(np.sort(faces, 1), axis=0, return_index=True, return_counts=True)
    faces = faces[np.sort(first[count % 2 == 1])]
    if not len(faces):
        raise DataError(f"{name} encloses no volume: a shape is a closed surface")
    edges = np.sort(faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    count = np.unique(edges, axis=0, return_counts=True)[1]
    if holes := int((count % 2).sum()):
        raise DataError(
            f"{name} is an open mesh: {holes:,} of its {len(count):,} edges are open, so that it "
            "has no inside. Close its holes, for example with MeshLab or pymeshfix"
        )
    return Mesh(places, faces.astype(np.int64))


def write_mesh(path: str | os.PathLike[str], mesh: Mesh) -> None:
    """Write a mesh as binary PLY, whole or not at all.

    Vertices are float32, or float64 where that would round them to more than 0.1 % of the shape, as
    of coordinates in metres on a map.

    Raises:
        ValueError: If the ending is not ``.ply``, or there is no triangle.
        DataError: If the file cannot be written.

    papers: Turk 1994, The PLY Polygon File Format.
    """
    path = Path(path)
    if path.suffix.lower() != ".ply":
        raise ValueError(f"meshes are written to .ply files; got {path.name}")
    if not len(mesh.faces):
        raise ValueError("a mesh without triangles: there is no surface to write")
    kind, name = ("<f8", "double") if coarse([mesh.vertices]).any() else ("<f4", "float")
    header = (
        "ply\nformat binary_little_endian 1.0\n"
        f"element vertex {len(mesh.vertices)}\n"
        f"property {name} x\nproperty {name} y\nproperty {name} z\n"
        f"element face {len(mesh.faces)}\n"
        "property list uchar int vertex_indices\nend_header\n"
    )
    faces = np.empty(len(mesh.faces), np.dtype([("corners", "u1"), ("vertices", "<i4", 3)]))
    faces["corners"] = 3
    faces["vertices"] = mesh.faces
    content = header.encode() + mesh.vertices.astype(kind).tobytes() + faces.tobytes()
    replace_file(path, content)


# --- inside ---------------------------------------------------------------------------------------

# Which points are inside of a closed mesh.


_BLOCK = 1 << 20
"""Pairs of a point and a triangle that are looked at together: about 150 MB."""


_ROWS = 64
"""Rows of cells in which a triangle lies, on average, at most."""


class Inside:
    """Tells points inside of a closed mesh from those outside.

    From each point a ray goes upwards along the last axis; the point is inside where it meets an
    odd number of triangles. Seen from above, triangles are sorted once into the cells of a square
    grid, so that a point is compared with those above and below it alone.

    Whether a ray meets a triangle is decided by the crossings of the triangle's edges with a line,
    each computed alike in both triangles of the edge. So a ray through an edge or a corner is
    counted once, not never or twice.

    Args:
        mesh: closed; see `mesh.clean_mesh`.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._corners = mesh.vertices[mesh.faces]  # (faces, 3, 3)
        flat = self._corners[:, :, :2]
        self._low = flat.min((0, 1))
        self._high = flat.max((0, 1))
        side = int(np.clip(np.sqrt(len(flat)), 1, 512))
        while True:
            self._side = side
            self._cell = np.maximum((self._high - self._low) / side, np.finfo(float).tiny)
            first, last = self._cells(flat.min(1))[:, 0], self._cells(flat.max(1))[:, 0]
            # Long triangles lie in many rows: fewer rows bound the memory.
            if (last - first + 1).sum() <= _ROWS * len(flat) or side == 1:
                break
            side //= 2
        face, row = _ranges(np.arange(len(flat)), first, last)
        left, right = self._spans(flat[face], row)
        pair, column = _ranges(np.arange(len(face)), left, right)
        face, cell = face[pair], row[pair] * side + column
        order = np.argsort(cell, kind="stable")
        self._faces = face[order]
        self._begin = np.searchsorted(cell[order], np.arange(side * side + 1))

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Return whether each of some points, float64, ``(count, 3)``, is inside, ``(count,)``."""
        found = np.zeros(len(points), bool)
        flat = points[:, :2]
        near = np.flatnonzero(((flat >= self._low) & (flat <= self._high)).all(1))
        if not len(near):
            return found
        place = self._cells(flat[near])
        cell = place[:, 0] * self._side + place[:, 1]
        begin, count = self._begin[cell], self._begin[cell + 1] - self._begin[cell]
        block = (count.cumsum() - 1) // _BLOCK
        for part in np.split(np.arange(len(near)), np.flatnonzero(np.diff(block)) + 1):
            pairs = np.repeat(part, count[part])
            ends = count[part].cumsum()
            within = np.arange(len(pairs)) - np.repeat(ends - count[part], count[part])
            face = self._faces[begin[pairs] + within]
            met = _above(points[near[pairs]], self._corners[face])
            crossings = np.bincount(pairs[met] - part[0], minlength=len(part))
            found[near[part]] = crossings % 2 == 1
        return found

    def _spans(self, flat: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last cell of a row that each triangle, ``(count, 3, 2)``, touches."""
        low = self._low[0] + row * self._cell[0]
        high = low + self._cell[0]
        slack = 1e-9 * (self._high[0] - self._low[0])
        least, most = np.full(len(row), np.inf), np.full(len(row), -np.inf)
        for one, other in ((0, 1), (1, 2), (2, 0)):
            p, q = flat[:, one], flat[:, other]
            rise = q[:, 0] - p[:, 0]
            level = rise == 0
            bottom, top = np.minimum(p[:, 0], q[:, 0]), np.maximum(p[:, 0], q[:, 0])
            here = (bottom <= high + slack) & (top >= low - slack)
            for edge in (low, high):
                share = np.where(level, 0.0, (edge - p[:, 0]) / np.where(level, 1.0, rise))
                at = p[:, 1] + np.clip(share, 0, 1) * (q[:, 1] - p[:, 1])
                least = np.where(here, np.minimum(least, at), least)
                most = np.where(here, np.maximum(most, at), most)
            # One along the row lies in it from end to end.
            along = here & level
            least = np.where(along, np.minimum(least, np.minimum(p[:, 1], q[:, 1])), least)
            most = np.where(along, np.maximum(most, np.maximum(p[:, 1], q[:, 1])), most)
        # A little more than that: rounding must not lose a triangle.
        spare = 1e-9 * (self._high[1] - self._low[1])
        cells = [(each - self._low[1]) / self._cell[1] for each in (least - spare, most + spare)]
        first, last = (np.clip(np.floor(c), 0, self._side - 1).astype(np.int64) for c in cells)
        return first, last

    def _cells(self, places: np.ndarray) -> np.ndarray:
        cells = np.floor((places - self._low) / self._cell)
        return np.clip(cells, 0, self._side - 1).astype(np.int64)


def _ranges(
    owner: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Every whole number from `first` to `last` of each owner, and whose it is."""
    count = np.maximum(last - first + 1, 0)
    within = np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
    return np.repeat(owner, count), np.repeat(first, count) + within


def _above(points: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Whether the ray upwards from each point meets its triangle."""
    inside = np.zeros(len(points), bool)
    x, y = points[:, 0], points[:, 1]
    for one, other in ((0, 1), (1, 2), (2, 0)):
        p, q = corners[:, one, :2], corners[:, other, :2]
        # Always from the lower end, so that both triangles of an edge compute the same.
        swap = (p[:, 1] > q[:, 1])[:, None]
        p, q = np.where(swap, q, p), np.where(swap, p, q)
        spans = (p[:, 1] <= y) & (y < q[:, 1])
        rise = np.where(spans, q[:, 1] - p[:, 1], 1.0)
        inside ^= spans & (x < p[:, 0] + (y - p[:, 1]) / rise * (q[:, 0] - p[:, 0]))
    a, b, c = corners[:, 0], corners[:, 1], corners[:, 2]
    normal = np.cross(b - a, c - a)
    # One seen from its edge covers nothing, so that no ray meets it.
    upright = normal[:, 2] == 0
    slope = np.where(upright, 1.0, normal[:, 2])
    offset = normal[:, 0] * (x - a[:, 0]) + normal[:, 1] * (y - a[:, 1])
    return inside & ~upright & (a[:, 2] - offset / slope > points[:, 2])
