"""A panel in three dimensions: surfaces that may cross, and curves that lie on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb, to_rgba
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

__all__ = ["Curve", "Relief", "Surface", "relief"]

Numbers = Sequence[float]

LIGHT = np.array([-0.4, -0.3, 0.87])
"""Where the light comes from; the sides of a surface that face it are brighter."""

SHADE = 0.35
"""How much darker the sides that face away are drawn, as a share."""


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A height for each place of a grid.

    Args:
        label: in the legend; empty for none.
        x: places along the first axis.
        y: along the second.
        z: heights, a row for each y and in it a number for each x.
        colour: index into the palette.
        alpha: 1 hides what is behind it.
    """

    label: str
    x: Numbers
    y: Numbers
    z: Sequence[Numbers]
    colour: int = 0
    alpha: float = 0.75


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line in space, drawn over all surfaces.

    Args:
        label: in the legend; empty for none.
        x, y, z: the points.
        colour: index into the palette.
        dashed: a dashed line.
    """

    label: str
    x: Numbers
    y: Numbers
    z: Numbers
    colour: int = 1
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Relief:
    """Axes in space.

    Args:
        title: what it shows.
        x, y, z: names of the axes, with units.
        surfaces: those that hide each other where they cross; none says that nothing was run.
        curves: lines over them.
        heights: lower and upper end of the vertical axis; None for what the surfaces reach.
        view: elevation and azimuth of the eye, in degrees.
    """

    title: str
    x: str
    y: str
    z: str
    surfaces: Sequence[Surface]
    curves: Sequence[Curve] = ()
    heights: tuple[float, float] | None = None
    view: tuple[float, float] = (22.0, -60.0)


def relief(axes: Any, panel: Relief, palette: Sequence[str], ink: str) -> None:
    """Draw a relief on axes in three dimensions.

    Args:
        axes: of matplotlib, `projection="3d"`.
        panel: what to draw.
        palette: colours that indices point into.
        ink: colour of words.
    """
    axes.set_title(panel.title, loc="left", fontsize=9, color=ink, wrap=True)
    if not panel.surfaces:
        axes.text2D(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=ink)
        axes.set_axis_off()
        return
    axes.view_init(*panel.view)
    axes.set(xlabel=panel.x, ylabel=panel.y, zlabel=panel.z)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.pane.set_visible(False)
    tiles = [tile for each in panel.surfaces for tile in _tiles(each, panel.heights)]
    # One collection for all surfaces: only tiles of one and the same are sorted by distance.
    axes.add_collection3d(
        Poly3DCollection(
            [corners for corners, _, _ in tiles],
            facecolors=[
                _shaded(palette[colour % len(palette)], corners, alpha)
                for corners, colour, alpha in tiles
            ],
            edgecolors=to_rgba(ink, 0.25),
            linewidths=0.3,
        )
    )
    for each in panel.surfaces:
        if each.label:
            axes.plot(
                [], [], [], lw=6, label=each.label, alpha=each.alpha,
                color=palette[each.colour % len(palette)],
            )  # fmt: skip
    for curve in panel.curves:
        axes.plot(
            curve.x, curve.y, curve.z, lw=1.6, zorder=10, label=curve.label or None,
            color=palette[curve.colour % len(palette)], ls="--" if curve.dashed else "-",
        )  # fmt: skip
    corners = np.concatenate([corner for corner, _, _ in tiles])
    low, high = corners.min(0), corners.max(0)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    axes.set_zlim(*(panel.heights or (low[2], high[2])))
    if any(each.label for each in (*panel.surfaces, *panel.curves)):
        axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(0, 0.98))


def _tiles(
    surface: Surface, heights: tuple[float, float] | None
) -> list[tuple[np.ndarray, int, float]]:
    """Corners (4, 3), colour and opacity of each tile; one out of sight or not finite is left out.

    A tile of which a part is out of sight is cut off at that height.
    """
    low, high = heights or (-math.inf, math.inf)
    z = np.asarray(surface.z, dtype=float)
    if z.shape != (len(surface.y), len(surface.x)):
        raise ValueError(
            f"the surface '{surface.label}' has heights of shape {z.shape}, expected "
            f"{(len(surface.y), len(surface.x))}: a row for each y, a number for each x"
        )
    found: list[tuple[np.ndarray, int, float]] = []
    for row in range(len(surface.y) - 1):
        for column in range(len(surface.x) - 1):
            ring = ((row, column), (row, column + 1), (row + 1, column + 1), (row + 1, column))
            corners = np.array([(surface.x[c], surface.y[r], z[r, c]) for r, c in ring])
            inside = (corners[:, 2] >= low) & (corners[:, 2] <= high)
            if not np.isfinite(corners).all() or not inside.any():
                continue
            corners[:, 2] = corners[:, 2].clip(low, high)
            found.append((corners, surface.colour, surface.alpha))
    return found


def _shaded(colour: str, corners: np.ndarray, alpha: float) -> tuple[float, ...]:
    """The colour of a tile in the light."""
    normal = np.cross(corners[2] - corners[0], corners[3] - corners[1])
    length = float(np.linalg.norm(normal))
    facing = abs(float(normal @ LIGHT)) / length if length else 1.0
    return (*(np.array(to_rgb(colour)) * (1 - SHADE * (1 - facing))), alpha)
