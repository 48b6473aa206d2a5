"""Pictures show what there is, leave out what cannot be drawn, and do not change by themselves."""

import math
import re

import pytest

from equilibria.run.report.panel import Panel, Series
from equilibria.run.report.surfaces import Curve, PlotSurface, SurfacePlot
from equilibria.run.report.svg import inline, picture


def panel(*series, **options):
    return Panel(**{"title": "t", "x": "x", "y": "y", "series": series, **options})


def words(svg):
    """All that is written, ticks included."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def ticks(low, high):
    """What is written at a logarithmic axis from low to high."""
    line = Series(label="", x=[1, 2], y=[low, high])
    svg = picture([panel(line, log_y=True, span_y=(low, high), x="", names=["", "", ""])])
    return [each for each in words(svg) if each[:1].isdigit()]


def test_a_picture_is_the_same_to_the_last_byte():
    line = Series(label="one", x=[1, 2, 3], y=[3.0, 1.0, 2.0], low=[2, 0, 1], high=[4, 2, 3])
    panels = [panel(line, log_x=True), panel(Series(label="", x=[1], y=[1], style="points"))]
    assert picture(panels) == picture(panels)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 0.0, -1.0, 1e300])
def test_what_cannot_be_drawn_is_left_out(value):
    holes = Series(label="holes", x=[0, 1], y=[1.0, value])
    without = Series(label="holes", x=[0], y=[1.0])
    assert picture([panel(holes, log_y=True)]) == picture([panel(without, log_y=True)])


def test_nothing_at_all_says_not_run():
    nothing = Series(label="a", x=[1], y=[None])
    space = SurfacePlot(title="t", x="x", y="y", z="z", surfaces=[])
    assert words(picture([panel(), panel(nothing), space])).count("not run") == 3
    assert inline(panel(nothing, levels=[("published", 1.5)])) is None


def test_published_levels_stand_beside_ours():
    line = Series(label="ours", x=[1, 2], y=[1.0, 2.0])
    assert "published" in words(picture([panel(line, levels=[("published", 1.5)])]))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1e-6, 1e3, ["10⁻⁶", "10⁻⁴", "10⁻²", "10⁰", "10²"]),
        (0.5, 30, ["0.5", "1", "2", "5", "10", "20"]),
        (1e-6, 1e-5, ["10⁻⁶", "2·10⁻⁶", "5·10⁻⁶", "10⁻⁵"]),
        (1.1, 1.9, ["1.2", "1.4", "1.6", "1.8"]),
        (3.0, 3.00001, ["2.88", "2.96", "3.04", "3.12"]),
    ],
)
def test_a_logarithmic_axis_has_several_ticks(low, high, expected):
    assert ticks(low, high) == expected


def test_a_single_epoch_is_one_whole_number():
    svg = picture([panel(Series(label="", x=[2], y=[0.5]), whole_x=True, y="", span_y=(0.1, 0.9))])
    assert [each for each in words(svg) if not each.startswith("0.")] == ["2", "x", "t"]


def test_coordinates_are_rounded_and_words_are_not():
    svg = picture([panel(Series(label="12.34567", x=[1, 3], y=[1, 2]), y="1.0625")])
    assert {"12.34567", "1.0625"} <= {*words(svg), *" ".join(words(svg)).split()}
    assert not re.search(r'[" ,]\d\d+\.\d\d', "".join(re.findall(r"<path[^>]*>", svg)))


def test_a_label_is_once_in_the_legend_with_the_look_that_comes_first():
    lines = [
        Series(label="a", x=[1, 2], y=[1, k], style=s) for k, s in ((1, "line"), (2, "dashed"))
    ]
    drawing = inline(panel(*lines, Series(label="b", color="muted"), Series(label="c", x=[1])))
    assert drawing.legend == [("a", "series-1", "line"), ("b", "muted", "line")]
    assert words(picture([panel(*lines)])).count("a") == 1


def test_bars_stand_side_by_side_with_their_figures_and_names():
    ours = Series(label="ours", x=[0, 1], y=[2.5, 3.25], style="bars")
    theirs = Series(label="theirs", x=[0, 1], y=[4.0, None], style="bars")
    written = words(picture([panel(ours, theirs, names=["left", "right"], zero=True)]))
    assert {"left", "right", "2.5", "3.25", "theirs"} <= set(written)


def test_surfaces_are_clipped_and_curves_are_named():
    axis = [0.0, 1.0, 2.0]
    hill = PlotSurface(label="hill", x=axis, y=axis, z=[[0, 1, 0], [1, 2, 1], [9, 9, math.nan]])
    path = Curve(label="path", x=axis, y=axis, z=[0, 2, 0], dashed=True)
    plot = SurfacePlot(
        title="t", x="x", y="y", z="z", surfaces=[hill], curves=[path], heights=(-1, 3)
    )
    svg = picture([plot])
    assert {"hill", "path"} <= set(words(svg)) and svg == picture([plot])
    # One corner of the fourth tile is no number.
    assert len(re.findall(r'<path [^>]*clip-path[^>]*style="fill: #', svg)) == 3
