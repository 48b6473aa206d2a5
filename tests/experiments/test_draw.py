"""Figures show what there is, leave out what cannot be drawn, and do not change by themselves."""

import math

from equilibria.experiments.draw import Panel, Series, draw


def panel(*series, **options):
    return Panel(**{"title": "t", "x": "x", "y": "y", "series": series, **options})


def drawn(tmp_path, *panels):
    path = tmp_path / "figure.svg"
    draw(panels, path)
    return path.read_bytes()


def test_a_drawing_is_the_same_to_the_last_byte(tmp_path):
    line = Series(label="one", x=[1, 2, 3], y=[3.0, 1.0, 2.0], low=[2, 0, 1], high=[4, 2, 3])
    panels = [panel(line, log_x=True), panel(Series(label="", x=[1], y=[1], style="points"))]
    assert drawn(tmp_path, *panels) == drawn(tmp_path, *panels)


def test_what_cannot_be_drawn_is_left_out(tmp_path):
    holes = Series(label="holes", x=[0, 1, 2, 3], y=[1.0, None, math.nan, 0.0])
    without = Series(label="holes", x=[0], y=[1.0])
    assert drawn(tmp_path, panel(holes, log_y=True)) == drawn(tmp_path, panel(without, log_y=True))


def test_nothing_at_all_says_not_run(tmp_path):
    assert b"not run" in drawn(tmp_path, panel(), panel(Series(label="a", x=[1], y=[None])))


def test_published_levels_stand_beside_ours(tmp_path):
    line = Series(label="ours", x=[1, 2], y=[1.0, 2.0])
    assert b"published" in drawn(tmp_path, panel(line, levels=[("published", 1.5)]))
