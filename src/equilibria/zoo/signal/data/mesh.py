"""Closed surfaces of triangles, read from OBJ, PLY and STL files and written as PLY."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equilibria.run.data.errors import DataError, reading
from equilibria.run.data.extras import needed
from equilibria.run.data.regular import open_file
from equilibria.run.data.replace import replace_file
from equilibria.zoo.io.arrays import coarse

__all__ = ["ENDINGS", "Mesh", "closed", "read_mesh", "write_mesh"]

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
    trimesh = needed("trimesh", "trimesh", "mesh", f"the mesh {path}")
    with reading(path), open_file(path) as file:
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
    return closed(mesh, path)


def closed(mesh: Mesh, name: object) -> Mesh:
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
