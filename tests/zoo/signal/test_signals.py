"""Signals: where samples are, what their values mean, and how close a reconstruction is."""

import hashlib
import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from equilibria.run.data import DataError
from equilibria.stability.examined import peak_bytes
from equilibria.zoo.io.decode import resize
from equilibria.zoo.signal.data import ShapeField, Signal, SignalField, field_of, iou, psnr
from equilibria.zoo.signal.data.signal import checksum_of

IMAGE = SignalField(kind="image", shape=(4, 6), channels=3, low=0.0, high=255.0, bits=8)
SOUND = SignalField(kind="sound", shape=(101,), channels=2, low=-0.5, high=0.5, rate=100.0, bits=16)
FILM = SignalField(kind="film", shape=(5, 4, 6), channels=1, low=0.0, high=255.0, rate=25.0, bits=8)
FIELDS = pytest.mark.parametrize("field", [IMAGE, SOUND, FILM], ids=lambda field: field.kind)


def noise(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


# --- coordinates ---------------------------------------------------------------------------------


@FIELDS
def test_the_first_and_last_samples_are_at_the_ends(field):
    points = field.points()
    assert points.shape == field.shape
    assert len(points) == math.prod(field.shape)
    every = points[:]
    assert every.shape == (len(points), field.inputs)
    grids = [torch.linspace(-1, 1, n) for n in field.shape]
    expected = torch.stack(torch.meshgrid(*grids, indexing="ij"), -1).reshape(-1, field.inputs)
    torch.testing.assert_close(every, expected)


def test_the_last_axis_runs_fastest():
    points = IMAGE.points()
    assert points[:3][:, 0].tolist() == [-1, -1, -1]
    torch.testing.assert_close(points[:3][:, 1], torch.tensor([-1, -0.6, -0.2]))


@pytest.mark.parametrize("size", [1, 5, 24, 100])
def test_chunks_are_all_points(size):
    points = IMAGE.points()
    chunks = list(points.chunks(size))
    assert torch.equal(torch.cat(chunks), points[:])
    assert {len(chunk) for chunk in chunks[:-1]} <= {size}
    places = torch.tensor([23, 0, 7, 7])
    assert torch.equal(points[places], points[:][places])
    assert torch.equal(points[3:20:4], points[:][3:20:4])


def test_points_of_a_large_picture_take_no_memory():
    points = IMAGE.points(size=(1 << 20, 1 << 20))
    assert len(points) == 1 << 40
    assert points[torch.tensor([(1 << 40) - 1])].tolist() == [[1, 1]]


def test_places_outside_are_refused():
    with pytest.raises(IndexError, match="places 3 to 24 of 24 points: expected 0 to 23"):
        IMAGE.points()[torch.tensor([3, 24])]


def test_points_may_be_wider():
    assert replace(IMAGE.points(), dtype=torch.float64)[:1].dtype == torch.float64


def linear(points):
    """A picture whose brightness rises to the right and downwards, at any points."""
    x = replace(points, dtype=torch.float64)[:]
    return (2 * x[:, 0] + 3 * x[:, 1]).reshape(points.shape)


@pytest.mark.parametrize("size", [(2, 3), (4, 6), (12, 18), (8, 30), (3, 5)])
def test_another_size_shows_the_same_picture(size):
    own = linear(IMAGE.points())
    # Linear interpolation as of any viewer, which repeats the outermost pixels.
    expected = functional.interpolate(own[None, None], size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(linear(IMAGE.points(size)), expected[0, 0])


def test_half_the_size_is_the_mean_of_areas():
    own = linear(IMAGE.points())
    small = resize(own[None, None].float(), (2, 3))[0, 0].double()
    torch.testing.assert_close(linear(IMAGE.points((2, 3))), small, atol=1e-6, rtol=0)


def test_a_crop_is_a_part_of_the_whole():
    own = linear(IMAGE.points())
    part = linear(IMAGE.points(box=(1, 2, 3, 4)))
    assert torch.equal(part, own[1:4, 2:6])
    # The same pixels as those of the enlarged whole.
    large = linear(IMAGE.points((12, 18)))
    torch.testing.assert_close(linear(IMAGE.points((9, 12), (1, 2, 3, 4))), large[3:12, 6:18])


def test_every_point_is_within_the_cube():
    for size in [(1, 1), (7, 50), (400, 600)]:
        assert float(IMAGE.points(size)[:].abs().max()) <= 1


def test_a_film_is_seen_at_times_and_sizes():
    points = FILM.points(size=(8, 12), time=FILM.steps(1, 4, 0.5))
    assert points.shape == (6, 8, 12)
    torch.testing.assert_close(
        points.axes[0], torch.tensor([-0.5, -0.25, 0, 0.25, 0.5, 0.75]).double()
    )
    assert torch.equal(FILM.points(time=FILM.steps()).axes[0], FILM.points().axes[0])
    torch.testing.assert_close(FILM.ticks(50.0), torch.arange(0, 4.5, 0.5, dtype=torch.float64))


@pytest.mark.parametrize("rate", [25.0, 44.1, 48.0, 100.0, 300.0, 333.0])
def test_another_rate_keeps_the_pitch(rate):
    ticks = SOUND.ticks(rate)
    # Sample k is at k / rate seconds, and the last one is not past the end of the recording.
    torch.testing.assert_close(ticks / 100, torch.arange(len(ticks)).double() / rate)
    assert 0 <= 1.0 - float(ticks[-1]) / 100 < 1 / rate
    (axis,) = SOUND.points(time=ticks).axes
    torch.testing.assert_close((axis + 1) / 2, ticks / 100)


def test_a_part_of_a_sound():
    assert SOUND.ticks(100.0, 0.2, 0.25).round().tolist() == [20, 21, 22, 23, 24]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SOUND.points(size=(2, 2)), "size and box are for images and films"),
        (lambda: IMAGE.points(time=torch.zeros(1)), "time is for sounds and films"),
        (lambda: SOUND.points(time=torch.tensor([101.0])), "expected 0 to 100"),
        (lambda: SOUND.points(time=torch.tensor([math.nan])), "expected 0 to 100"),
        (lambda: SOUND.points(time=torch.zeros(0)), "1 or more"),
        (lambda: IMAGE.points(size=(0, 4)), r"size is \[0, 4\]: expected a height"),
        (lambda: IMAGE.points(size=(4, 4, 4)), "expected a height and a width"),
        (lambda: IMAGE.points(box=(1, 1, 4, 2)), "a box of 4 x 2 pixels at 1, 1: expected a part"),
        (lambda: IMAGE.points(box=(0, 0, 0, 2)), "expected a part of 4 x 6"),
        (lambda: IMAGE.ticks(10.0), "has no rate"),
        (lambda: SOUND.ticks(0.0), "rate is 0.0: expected a positive"),
        (lambda: SOUND.ticks(10.0, 0.5, 3.0), "expected a part of 0 to 1.01 s"),
        (lambda: FILM.steps(0, 9), "0 to 9 by 1: expected a part of 0 to 5"),
        (lambda: FILM.steps(0, 5, 0), "a positive step"),
        (lambda: next(IMAGE.points().chunks(0)), "a chunk of 0 points"),
    ],
)
def test_impossible_points_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- fields in files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", [IMAGE, SOUND, FILM, ShapeField(centre=(1.0, -2.0, 0.5), scale=3.0)]
)
def test_a_field_goes_through_json(field):
    assert field_of(json.loads(json.dumps(field.as_dict()))) == field


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "smell"}, "kind is 'smell': expected one of sound, image, film"),
        ({"shape": [1, 5]}, "2 or more, along row, column"),
        ({"shape": [5]}, "expected 2 numbers of samples"),
        ({"shape": [2.5, 5]}, "expected 2 numbers of samples"),
        ({"shape": [1 << 20, 1 << 20]}, "expected at most"),
        ({"shape": 5}, "no description of a signal"),
        ({"channels": 0}, "channels is 0: expected 1 to 4"),
        ({"low": 3.0, "high": 3.0}, "expected low < high"),
        ({"low": math.nan}, "expected low < high"),
        ({"rate": -1.0}, "rate is -1.0"),
        ({"kind": "sound", "shape": [5]}, "rate is None"),
        ({"colour": "red"}, "no description of a signal"),
        ({"kind": "shape"}, "no description of a signal"),
    ],
)
def test_a_foreign_description_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        field_of({**IMAGE.as_dict(), **change})


def test_a_shape_with_no_size_is_refused():
    with pytest.raises(ValueError, match="expected three finite numbers and a positive one"):
        ShapeField(centre=(0.0, 0.0, 0.0), scale=0.0)


@FIELDS
def test_values_go_to_the_interval_and_back(field):
    ends = torch.tensor([field.low, field.high, (field.low + field.high) / 2])
    assert field.normalize(ends).tolist() == [-1, 1, 0]
    raw = field.low + (field.high - field.low) * noise(100).double()
    torch.testing.assert_close(field.restore(field.normalize(raw)), raw, rtol=0, atol=1e-5)


def test_every_pixel_comes_back():
    pixels = torch.arange(256)
    assert torch.equal(IMAGE.restore(IMAGE.normalize(pixels)).round().long(), pixels)


# --- signals -------------------------------------------------------------------------------------


def test_targets_are_in_the_order_of_points():
    values = torch.arange(24.0).reshape(4, 6, 1)
    signal = Signal.of("image", values, "ramp")
    assert (signal.field.low, signal.field.high) == (-23, 23)
    torch.testing.assert_close(signal.field.restore(signal.targets)[:, 0].float(), values.ravel())
    assert len(signal.points) == len(signal.targets)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("image", noise(4, 1, 3), "x has 1 column: a signal has at least 2 samples along each"),
        ("image", noise(1, 1, 1), "x has 1 row: "),
        ("film", noise(1, 4, 4, 3), "x has 1 frame: "),
        ("sound", noise(0, 1), "x has 0 samples: "),
        ("image", torch.full((3, 3, 1), 7.0), "x is constant: every value is 7, so"),
        ("sound", torch.tensor([[0.0], [math.nan], [math.inf]]), "x has 2 values that are NaN or"),
    ],
)
def test_what_is_no_signal_is_refused(kind, values, message):
    with pytest.raises(DataError, match=message):
        Signal.of(kind, values, "x", rate=1.0)


def test_a_film_takes_little_memory_beside_its_own():
    frames = torch.arange(256).repeat(1 << 10).to(torch.uint8).reshape(4, 256, 256, 1)
    peak = peak_bytes(lambda: Signal.of("film", frames, "x", low=0.0, high=255.0))
    assert peak < 14 * frames.numel()  # float64 once, and the float32 that stays


def test_values_outside_of_their_range_are_refused():
    with pytest.raises(DataError, match="values from -1 to 2, not 0 to 1"):
        Signal.of("image", torch.tensor([[[-1.0], [2.0]]] * 2), "x", low=0.0, high=1.0)
    with pytest.raises(ValueError, match=r"expected \(row, column, channels\)"):
        Signal.of("image", noise(4, 4), "x")


def test_quarters_are_apart_and_where_the_whole_image_has_them():
    signal = Signal.of("image", noise(6, 8, 3), "x")
    train, test = signal.quarters()
    assert len(train) == len(test) == 12
    assert not {*train.tolist()} & {*test.tolist()}
    torch.testing.assert_close(signal.targets[train], signal.values[::2, ::2].reshape(-1, 3))
    torch.testing.assert_close(signal.targets[test], signal.values[1::2, 1::2].reshape(-1, 3))
    rows = signal.points[test][:, 0].unique()
    torch.testing.assert_close(rows, torch.linspace(-1, 1, 6)[1::2])
    with pytest.raises(ValueError, match="x is a sound: quarters are of an image"):
        Signal.of("sound", noise(9, 1), "x", rate=1.0).quarters()


def test_a_smaller_signal_is_the_mean_of_areas():
    film = Signal.of("film", noise(2, 4, 6, 3), "x")
    small = film.resize((2, 3))
    assert small.field.shape == (2, 2, 3) and small.values.shape == (2, 2, 3, 3)
    expected = film.values.reshape(2, 2, 2, 3, 2, 3).mean((2, 4))
    torch.testing.assert_close(small.values, expected)


# --- measures ------------------------------------------------------------------------------------


def test_psnr_of_an_image_is_that_of_zero_to_one():
    target, found = 2 * noise(50) - 1, 2 * noise(2, 50)[1] - 1
    mean = float((((found + 1) / 2 - (target + 1) / 2).double() ** 2).mean())
    assert psnr(found, target) == pytest.approx(-10 * math.log10(mean))
    assert psnr(target, target) == math.inf
    # What is beyond black or white is cut.
    assert psnr(torch.tensor([3.0, -1.0]), torch.tensor([1.0, -1.0])) == math.inf
    assert psnr(torch.tensor([3.0]), torch.tensor([1.0]), clip=False) == pytest.approx(0)


def test_psnr_of_a_sound_is_that_of_its_file():
    raw = 0.4 * (2 * noise(80, 1) - 1)
    signal = Signal.of("sound", raw, "x", rate=10.0)
    error = 0.01 * torch.ones(80, 1)
    found = signal.field.normalize(raw + error)
    assert signal.psnr(found) == pytest.approx(40, abs=1e-4)


def test_psnr_of_a_film_is_the_mean_of_its_frames():
    signal = Signal.of("film", noise(2, 4, 4, 1), "x", low=0.0, high=1.0)
    found = signal.values * torch.tensor([0.9, 0.5]).reshape(2, 1, 1, 1)
    each = [psnr(a, b) for a, b in zip(found, signal.values, strict=True)]
    assert signal.psnr(found.reshape(-1, 1)) == pytest.approx(sum(each) / 2)
    assert each[0] - each[1] > 6


def test_measures_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="expected the same"):
        psnr(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="peak is 0"):
        psnr(torch.zeros(2), torch.ones(2), peak=0)
    with pytest.raises(ValueError, match="expected bool of one shape"):
        iou(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"expected \(4, 6, 3\)"):
        Signal.of("image", noise(4, 6, 3), "x").psnr(torch.zeros(4, 6, 1))


def test_iou():
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    assert iou(a, b) == pytest.approx(1 / 3)
    assert iou(a, a) == 1 and iou(a, ~a) == 0
    assert iou(torch.zeros(3).bool(), torch.zeros(3).bool()) == 1


def test_the_checksum_is_the_one_that_runs_have_recorded() -> None:
    """By which a run finds out that its data have changed: no name of a class may enter it."""
    field = SignalField(kind="image", shape=(2, 3), channels=1, low=0.0, high=255.0, bits=8)
    found = checksum_of(("a.png", field, torch.zeros(6, 1)))
    text = "a.png Field(kind='image', shape=(2, 3), channels=1, low=0.0, high=255.0, "
    recorded = f"{text}rate=None, bits=8)".encode() + bytes(24)
    assert found == f"sha256:{hashlib.sha256(recorded).hexdigest()}"
