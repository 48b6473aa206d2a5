"""A panel in three dimensions: surfaces that may intersect, and curves on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.colors import LightSource, to_rgba
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

Numbers = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class PlotSurface:
    """A height for each point of a grid: `z` has a row for each y, with a number for each x.

    `color` is an index into the palette; `label` stands in the legend, where it is not empty.
    """

    label: str
    x: Numbers
    y: Numbers
    z: Sequence[Numbers]
    color: int = 0
    alpha: float = 0.75


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line in space, drawn over all surfaces."""

    label: str
    x: Numbers
    y: Numbers
    z: Numbers
    color: int = 1
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class SurfacePlot:
    """Axes in space.

    Args:
        title: what it shows.
        x, y, z: names of the axes, with units.
        surfaces: empty if nothing was run.
        curves: lines over them.
        heights: ends of the vertical axis, at which surfaces are clipped.
    """

    title: str
    x: str
    y: str
    z: str
    surfaces: Sequence[PlotSurface]
    curves: Sequence[Curve] = ()
    heights: tuple[float, float] = (-math.inf, math.inf)


def draw_surfaces(axes: Any, panel: SurfacePlot, colors: Mapping[str, str]) -> bool:
    """Draw as `draw_panel` does, on axes with `projection="3d"`."""
    if not panel.surfaces:
        axes.text2D(0.5, 0.5, "not run", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return False
    axes.view_init(22, -60)
    axes.set(xlabel=panel.x, ylabel=panel.y, zlabel=panel.z)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.pane.set_visible(False)
    tiles = [(tile, each) for each in panel.surfaces for tile in _tiles(each, panel.heights)]
    corners = np.array([tile for tile, _ in tiles])
    # One collection for all surfaces: only the tiles of one collection are sorted by distance.
    axes.add_collection3d(
        Poly3DCollection(
            corners,
            facecolors=[to_rgba(colors[f"series-{s.color % 8 + 1}"], s.alpha) for _, s in tiles],
            edgecolors=to_rgba(colors["muted"], 0.25),
            linewidths=0.3,
            shade=True,
            lightsource=LightSource(azdeg=225, altdeg=60),
        )
    )
    for each in (*panel.surfaces, *panel.curves):
        line = isinstance(each, Curve)
        axes.plot(
            *((each.x, each.y, each.z) if line else ([], [], [])),
            lw=1.6 if line else 6,
            ls="--" if line and each.dashed else "-",
            alpha=1 if line else each.alpha,
            color=colors[f"series-{each.color % 8 + 1}"],
            label=each.label or None,
            zorder=10,
        )
    low, high = corners.min((0, 1)), corners.max((0, 1))
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    return True


def _tiles(surface: PlotSurface, heights: tuple[float, float]) -> Iterator[np.ndarray]:
    """The corners (4, 3) of each tile that is finite and in sight, clipped to the heights."""
    grid = np.stack([*np.meshgrid(surface.x, surface.y), np.asarray(surface.z, float)], -1)
    rings = (grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1])
    for corners in np.stack(rings, 2).reshape(-1, 4, 3):
        z = corners[:, 2]
        if np.isfinite(corners).all() and ((z >= heights[0]) & (z <= heights[1])).any():
            yield np.column_stack([corners[:, :2], z.clip(*heights)])
