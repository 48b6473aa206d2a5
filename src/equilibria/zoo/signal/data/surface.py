"""The surface of decoded occupancy, by marching cubes."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from equilibria.run.data.errors import DataError
from equilibria.run.data.extras import needed
from equilibria.zoo.signal.data.mesh import Mesh
from equilibria.zoo.signal.data.shape import ShapeField

__all__ = ["surface"]


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
    measure = needed("skimage.measure", "scikit-image", "mesh", "marching cubes")
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
    return Mesh(field.restored((places - 1) * step - 1), faces.astype(np.int64))
