"""Panels in space and bars: drawn whole, the same each time, and said where nothing was run."""

import re

import pytest

from equilibria.experiments.draw import Panel, Series, draw
from equilibria.experiments.relief import Curve, Relief, Surface

AXIS = [0.0, 1.0, 2.0]


def panel(*surfaces, **options):
    fields = {"title": "t", "x": "x", "y": "y", "z": "z", "surfaces": surfaces, **options}
    return Relief(**fields)


def drawn(tmp_path, *panels):
    path = tmp_path / "figure.svg"
    draw(panels, path)
    return path.read_text()


def tiles(text):
    return len(re.findall(r'<path [^>]*clip-path[^>]*style="fill: #', text))


def surface(z, **options):
    return Surface(label="hill", x=AXIS, y=AXIS, z=z, **options)


HILL = [[0.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 0.0]]


def test_a_relief_is_the_same_to_the_last_byte_and_has_what_it_shows(tmp_path):
    curve = Curve(label="path", x=AXIS, y=AXIS, z=[0.0, 2.0, 0.0], dashed=True)
    hill = panel(surface(HILL), curves=[curve])
    text = drawn(tmp_path, hill)
    assert text == drawn(tmp_path, hill)
    assert "hill" in text and "path" in text and tiles(text) == 4


def test_what_is_out_of_sight_is_left_out(tmp_path):
    far = [[0.0, 1.0, 0.0], [1.0, 2.0, 1.0], [9.0, 9.0, float("nan")]]
    text = drawn(tmp_path, panel(surface(far), heights=(-1.0, 3.0)))
    assert tiles(text) == 3  # one corner of the fourth tile is no number


def test_a_relief_without_surfaces_says_not_run(tmp_path):
    assert "not run" in drawn(tmp_path, panel())


def test_heights_of_another_grid_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"shape \(2, 3\), expected \(3, 3\)"):
        drawn(tmp_path, panel(surface(HILL[:2])))


def test_bars_stand_side_by_side_with_their_figures_and_names(tmp_path):
    series = [
        Series(label="ours", x=[0, 1], y=[2.5, 3.25], style="bars"),
        Series(label="theirs", x=[0, 1], y=[4.0, None], style="bars"),
    ]
    text = drawn(
        tmp_path, Panel(title="t", x="", y="", series=series, names=["left", "right"], zero=True)
    )
    for word in ("left", "right", "2.5", "3.25", "theirs"):
        assert f">{word}</text>" in text
