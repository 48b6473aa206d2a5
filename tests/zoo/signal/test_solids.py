"""Shapes by formula."""

import math

import pytest
import torch

from equilibria.zoo.signal import data as signals


@pytest.mark.parametrize("name", signals.SOLIDS)
def test_a_generated_shape_is_closed_and_in_the_cube(name):
    shape = signals.solid(name)
    assert abs(shape.mesh.vertices).max() == pytest.approx(0.95)
    edges = {}
    for a, b, c in shape.mesh.faces.tolist():
        for one, other in ((a, b), (b, c), (c, a)):
            edges[one, other] = edges.get((one, other), 0) + 1
    # Each edge has a triangle on either side, and all are turned alike.
    assert all(count == 1 and edges.get((b, a)) == 1 for (a, b), count in edges.items())


def test_a_torus_has_the_volume_of_a_torus():
    shape = signals.solid("torus")
    drawn = shape.uniform(20_000, 0)
    radius = 0.95 / 1.4
    volume = 2 * math.pi**2 * radius * (0.4 * radius) ** 2
    assert float(drawn.inside.float().mean()) == pytest.approx(volume / 8, abs=0.01)
    centre = torch.tensor([[0.0, 0.0, 0.0], [radius, 0.0, 0.0]])
    assert shape.inside(centre).tolist() == [False, True]


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="'knot'"):
        signals.solid("knut")
