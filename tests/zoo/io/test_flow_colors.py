"""Colours of optical flow: the wheel of Middlebury, one scale of many images, the legend."""

import io

import numpy as np
import pytest
from PIL import Image

from equilibria.zoo.io.colors import Lengths, _wheel, change_colors, color_png, flow_colors, legend


def color(u, v, scale=1.0):
    return flow_colors(np.array([[[u]], [[v]]], np.float32), scale)[:, 0, 0].tolist()


def test_the_wheel_has_55_colours_and_its_corners_are_pure():
    wheel = _wheel() * 255
    assert wheel.shape == (55, 3)
    corners = wheel[[0, 15, 21, 25, 36, 49]].tolist()
    assert corners == [
        [255, 0, 0],
        [255, 255, 0],
        [0, 255, 0],
        [0, 255, 255],
        [0, 0, 255],
        [255, 0, 255],
    ]


@pytest.mark.parametrize(
    ("u", "v", "expected"),
    [
        # The place on the wheel is (atan2(-v, -u) / pi + 1) / 2 * 54.
        (1.0, 0.0, [255, 0, 0]),  # 0: red
        (0.0, 1.0, [255, 229, 0]),  # 13.5: half way between colours 13 and 14 of the first 15
        (-1.0, -1e-9, [0, 208, 255]),  # 27: two of 11 from cyan to blue
        (0.0, -1.0, [88, 0, 255]),  # 40.5: four and a half of 13 from blue to magenta
    ],
)
def test_directions_have_the_hues_of_the_wheel(u, v, expected):
    assert np.abs(np.array(color(u, v)) - expected).max() <= 1


def test_length_is_saturation_and_what_is_longer_is_darker():
    assert color(0.0, 0.0) == [255, 255, 255]
    assert color(4.0, 0.0, scale=8.0) == [255, 127, 127]
    assert color(9.0, 0.0, scale=8.0) == [191, 0, 0]
    assert color(2.0, 1.0, scale=4.0) == color(1.0, 0.5, scale=2.0)


def test_opposite_directions_differ_and_what_is_unknown_is_black():
    flow = np.array([[[1.0, np.nan, 1.0]], [[0.0, 0.0, 0.0]]])
    found = flow_colors(flow, 1.0, np.array([[True, True, False]]))
    assert found[:, 0].T.tolist() == [[255, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_a_scale_is_a_positive_number(scale):
    with pytest.raises(ValueError, match="positive number of pixels; got"):
        color(1.0, 0.0, scale)


def test_a_flow_has_two_channels():
    with pytest.raises(ValueError, match=r"\(2, height, width\), got \(3, 4, 4\)"):
        flow_colors(np.zeros((3, 4, 4)), 1.0)


def test_the_map_of_changes_is_logarithmic():
    change = np.array([[0.0, 1e-3, 0.1, 10.0, 11.0, np.nan]])
    found = change_colors(change)
    assert found[:, 0, :4].T.tolist() == [[0] * 3, [0] * 3, [128] * 3, [255] * 3]
    assert found[:, 0, 4:].T.tolist() == [[255, 0, 0]] * 2


def test_the_legend_is_the_wheel_with_its_scale():
    found = legend(12.5, size=101)
    assert found.shape == (3, 121, 101)
    assert found[:, 50, 50].tolist() == [255, 255, 255]  # no motion
    assert found[:, 50, 99].tolist()[0] == 255 and found[1, 50, 99] < 10  # to the right: red
    assert found[:, 0, 0].tolist() == [255, 255, 255]
    assert (found[:, 101:] < 128).any()  # the number


def test_a_png_holds_the_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 7), np.uint8)
    image = Image.open(io.BytesIO(color_png(pixels)))
    assert (np.array(image).transpose(2, 0, 1) == pixels).all()


def test_one_scale_of_many_images_is_their_percentile():
    generator = np.random.default_rng(1)
    flows = [generator.normal(0, size, (2, 40, 50)) for size in (0.5, 3.0, 20.0)]
    forward, backward = Lengths(), Lengths()
    for flow in flows:
        forward.add(flow)
    for flow in reversed(flows):
        backward.add(flow)
    exact = np.percentile(np.concatenate([np.hypot(*f).ravel() for f in flows]), 99)
    assert forward.percentile() == pytest.approx(exact, rel=0.02)
    assert forward.percentile() == backward.percentile()
    assert forward.percentile(50) < forward.percentile(90)


def test_nothing_and_no_motion_have_a_scale():
    lengths = Lengths()
    assert lengths.percentile() == 1.0
    lengths.add(np.full((2, 3, 3), np.nan))
    assert lengths.percentile() == 1.0
    lengths.add(np.zeros((2, 3, 3)))
    assert lengths.percentile() == 1.0  # noise around no motion is drawn faint
