"""Generated pairs of layers: the flow is exact, hidden pixels are known, places decide alone."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from equilibria.run.data import DataError, available, load
from equilibria.zoo.flow.data import (
    FlowField,
    FlowSet,
    Layers,
    Motion,
    photographs,
    rendered,
    write_flow,
)
from equilibria.zoo.flow.data.drawn import HARMONICS, PhotographDetail, Scenes, draw

SIZE = (48, 64)


def waves(height: int, width: int, period: float = 90.0) -> Tensor:
    """A photograph that is smooth: interpolation changes it little."""
    y, x = np.mgrid[:height, :width] * (2 * math.pi / period)
    values = np.stack([np.sin(x + 2 * y), np.cos(2 * x - y), np.sin(x - y + 1)])
    return torch.from_numpy((127.5 + 100 * values).round().astype(np.uint8))


def scenes(count: int, motion: Motion, seed: int = 0) -> Scenes:
    return draw([(seed, 0, k) for k in range(count)], SIZE, motion, SURFACES)


PHOTOGRAPHS = (waves(90, 120), waves(100, 80, 70.0))
SURFACES = [PhotographDetail.of(each.numpy()) for each in PHOTOGRAPHS]


def warped(image: Tensor, flow: Tensor, mode: str = "bilinear") -> Tensor:
    """What an image shows where the flow points to."""
    height, width = flow.shape[2:]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack(
        [2 * (x + flow[:, 0]) / (width - 1) - 1, 2 * (y + flow[:, 1]) / (height - 1) - 1], 3
    )
    return functional.grid_sample(image, grid, mode=mode, align_corners=True)


def spread(values: Tensor) -> Tensor:
    """The largest value among a pixel and its neighbours, less the smallest."""
    return functional.max_pool2d(values, 3, 1, 1) + functional.max_pool2d(-values, 3, 1, 1)


def edges(flow: Tensor) -> Tensor:
    """Pixels within two of one that moves otherwise, more than an affine map would have it."""
    jumps = (spread(flow).amax(1, keepdim=True) > 1.5).float()
    return functional.max_pool2d(jumps, 3, 1, 1)[:, 0] > 0


# --- the flow is exact ---------------------------------------------------------------------------


def test_a_background_that_moves_by_whole_pixels():
    drawn = scenes(4, Motion(shapes=(0, 0)))
    forward, backward = (np.broadcast_to(np.eye(2, 3), (4, 1, 2, 3)).copy() for _ in range(2))
    forward[..., 2], backward[..., 2] = (5, -3), (-5, 3)
    moved = dataclasses.replace(drawn, forward=forward, backward=backward)
    first, second, flow = rendered.render(moved, SIZE, PHOTOGRAPHS)
    assert torch.equal(flow, torch.tensor([5.0, -3.0])[:, None, None].expand_as(flow))
    assert (first[:, :, 3:, :-5] - second[:, :, :-3, 5:]).abs().max() < 0.01
    assert (first - second).abs().mean() > 5
    hidden = rendered.find_occluded(moved, SIZE)
    assert hidden[:, :3].all() and hidden[:, :, -5:].all() and not hidden[:, 3:, :-5].any()


@pytest.mark.parametrize("turn", [0.0, 25.0], ids=["shift", "turn"])
def test_the_second_image_warped_back_is_the_first(turn):
    drawn = scenes(12, Motion(turn=turn, zoom=0.2 if turn else 0.0))
    first, second, flow = rendered.render(drawn, SIZE, PHOTOGRAPHS)
    # A mixture of two layers at an edge of the second image is none in the first.
    near = functional.max_pool2d(rendered.find_occluded(drawn, SIZE).float(), 5, 1, 2) > 0
    visible = ~near & ~edges(flow)
    assert visible.float().mean() > 0.3
    error = (warped(second, flow) - first).abs().amax(1)[visible]
    without = (second - first).abs().amax(1)[visible]
    # What is left is interpolation between the levels of a photograph, of 255.
    assert without.mean() > 50 and error.mean() < 0.5
    assert error.quantile(0.99) < 3


def test_what_is_hidden():
    """Layers of one colour each: the second image tells which of them is seen where."""
    drawn = scenes(20, Motion())
    color = np.zeros_like(drawn.color)
    color[..., 1, :] = 30.0 * np.arange(color.shape[1])[:, None]
    drawn = dataclasses.replace(drawn, color=color)
    first, second, flow = rendered.render(drawn, SIZE, PHOTOGRAPHS)
    hidden = rendered.find_occluded(drawn, SIZE)
    there = warped(second, flow, "nearest")[:, 0]
    y, x = torch.meshgrid(torch.arange(48.0), torch.arange(64.0), indexing="ij")
    at = torch.stack([x + flow[:, 0], y + flow[:, 1]], 1)
    inside = ((at >= 0) & (at <= torch.tensor([63.0, 47.0])[:, None, None])).all(1)
    assert hidden[~inside].all() and (~inside).any()
    # Away from edges, in either image.
    plain = warped((spread(second) == 0).float(), flow, "nearest")[:, 0] > 0
    pure = (first[:, 0] % 30 == 0) & plain & inside
    assert torch.equal(hidden[pure], there[pure] > first[:, 0][pure])
    assert hidden[pure].float().mean() > 0.02 and pure.float().mean() > 0.5


def test_edges_are_antialiased():
    drawn = draw([(7, 0, k) for k in range(12)], (90, 120), Motion(shapes=(1, 1)), SURFACES)
    local, outline = drawn.local[:, 1], drawn.outline[:, 1]
    y, x = torch.arange(-90.0, 180.0)[:, None], torch.arange(-90.0, 210.0)
    maps, parts = (torch.from_numpy(each).float() for each in (local, outline))
    cover = rendered._shape(maps, parts, x, y)
    circle = math.pi * (1 + (outline**2).sum((1, 2)) / 2)  # r = 1 + sum p cos m t + q sin m t
    area = torch.from_numpy(circle / abs(np.linalg.det(local[..., :2]))).float()
    found = cover.sum((1, 2))
    assert torch.allclose(found, area, rtol=5e-3)
    mixed = ((cover > 0.02) & (cover < 0.98)).sum((1, 2)) / found.sqrt()
    assert (mixed > 2).all() and (mixed < 12).all()  # a line, not an area
    assert len(HARMONICS) == outline.shape[1]


def test_no_motion_is_no_flow():
    still = Layers(photographs=PHOTOGRAPHS, shape=SIZE, motion=Motion(shift=0, turn=0, zoom=0))
    first, second, flow, valid = still.batch(torch.arange(3))
    assert (first.int() - second.int()).abs().max() <= 1
    assert flow.abs().max() < 1e-4 and valid.all()


def test_sizes_of_motion():
    motion = Motion(shift=11.0, turn=0, zoom=0, shapes=(0, 0))
    flow = Layers(photographs=PHOTOGRAPHS, shape=(16, 16), motion=motion).batch(torch.arange(900))[
        2
    ]
    length = flow[:, :, 0, 0].norm(dim=1)
    assert abs(length.mean() - 11) < 0.6 and abs(flow[:, :, 0, 0].mean()) < 0.8
    usual = Layers(photographs=PHOTOGRAPHS).batch(torch.arange(60))
    assert usual.first.shape == (60, 3, 96, 128)
    assert 6 < usual.flow.norm(dim=1).mean() < 10


def test_details_of_photographs():
    image = np.zeros((3, 24, 40), np.uint8)
    image[:, :, 16:24] = 100 * (np.arange(8) % 2)
    found = PhotographDetail.of(image)
    low = np.array([[0, 0], [16, 8], [8, 0], [-50, 3], [39, 23]])
    high = np.array([[8, 8], [24, 16], [24, 24], [90, 9], [60, 40]])
    assert found.details(low, high).tolist() == [0, 100, 50, 20, 0]


def test_layers_show_details_where_there_are_some():
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 80, 90), np.uint8))
    flat = torch.full((3, 80, 90), 30, dtype=torch.uint8)
    pairs = Layers(photographs=(flat, noise), shape=SIZE).batch(torch.arange(40))
    change = pairs.first.float().diff(dim=3).abs().mean(1)
    # A half of the layers would be flat; of six parts, all are so once in 64 times.
    assert (functional.avg_pool2d(change, 5) < 3).float().mean() < 0.1


# --- the seed and the place decide ---------------------------------------------------------------


def alike(one: Tensor, other: Tensor) -> bool:
    return bool((one.int() - other.int()).abs().max() <= 1)  # rounding


def test_a_pair_does_not_depend_on_its_batch(monkeypatch):
    layers = Layers(photographs=PHOTOGRAPHS, shape=SIZE)
    many = layers.batch(torch.tensor([5, 0, 7, 7]))
    for row, place in enumerate((5, 0, 7)):
        one = layers.pair(place)
        assert alike(one.first, many.first[row]) and alike(one.second, many.second[row])
        assert torch.allclose(one.flow, many.flow[row], atol=1e-4)
    assert torch.equal(many.first[2], many.first[3])
    chosen = layers.select(torch.tensor([7, 5]))
    assert len(chosen) == 2 and alike(chosen.pair(0).first, many.first[2])
    monkeypatch.setattr("equilibria.zoo.flow.data.layers._BLOCK", 1)
    assert torch.allclose(layers.batch(torch.tensor([5, 0])).flow, many.flow[:2], atol=1e-4)
    hidden = layers.find_occluded(torch.tensor([5, 0, 7]))
    assert hidden.shape == (3, *SIZE) and hidden.any()


def test_other_seeds_and_parts_are_other_pairs():
    known = Layers(photographs=PHOTOGRAPHS, shape=SIZE)
    for other in (dataclasses.replace(known, seed=1), dataclasses.replace(known, part=1)):
        assert (other.pair(0).flow - known.pair(0).flow).abs().mean() > 1
    assert (known.pair(1).flow - known.pair(0).flow).abs().mean() > 1


def test_the_pairs_stay_the_same():
    """Every machine and every version draws these; others need another `_FORMAT`."""
    flow = Layers(photographs=PHOTOGRAPHS, shape=SIZE).batch(torch.arange(2)).flow
    means = flow.mean((2, 3)).flatten()
    assert torch.allclose(means, torch.tensor(MEANS), atol=2e-3), means.tolist()


MEANS = (1.56576, -3.75807, 3.19950, 4.21619)


# --- the data set --------------------------------------------------------------------------------


def test_it_needs_no_download(cache):
    found = load("layers", download=False, kind=FlowSet, count=20, test=4, seed=3, size=SIZE)
    assert "layers" in available(FlowSet) and (len(found.train), len(found.test)) == (20, 4)
    assert found.title == "layers (scikit-learn's photographs)" and not found.seen
    assert found.train.size(0) == SIZE and found.valid is None
    first, second, flow, valid = found.test.batch(torch.arange(4))
    assert first.shape == second.shape == (4, 3, *SIZE) and first.dtype == torch.uint8
    assert flow.shape == (4, 2, *SIZE) and flow.dtype == torch.float32 and valid.dtype == torch.bool
    assert first.float().std() > 30
    # The right third of each photograph is for the test pairs alone.
    for learned, held in zip(found.train.photographs, found.test.photographs, strict=True):
        assert learned.shape == (3, 427, 426) and held.shape == (3, 427, 214)
    again = load("layers", count=20, test=4, seed=3, size=list(SIZE), shift=7)  # as of YAML
    assert again.checksum == found.checksum
    assert load("layers", count=20, test=4, seed=4, size=SIZE).checksum != found.checksum
    # The photographs have details: the flow still takes one image to the other.
    places = torch.arange(20)
    pairs, hidden = found.train.batch(places), found.train.find_occluded(places)
    visible = ~hidden & ~edges(pairs.flow)
    first, second = pairs.first.float(), pairs.second.float()
    error = (warped(second, pairs.flow) - first).abs().mean(1)[visible].mean()
    assert error < 0.4 * (second - first).abs().mean(1)[visible].mean()


def test_photographs_of_a_folder(tmp_path, cache):
    folder = tmp_path / "views"
    folder.mkdir()
    for k, size in enumerate(((40, 120), (600, 1200))):
        pixels = np.random.default_rng(k).integers(0, 256, (*size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{k}.png")
    found = load("layers", count=2, test=1, size=SIZE, photographs=str(folder))
    assert found.title == "layers (views)"
    assert [tuple(p.shape) for p in found.test.photographs] == [(3, 40, 40), (3, 512, 342)]
    assert found.train.pair(1).first.shape == (3, *SIZE)
    Image.new("RGB", (95, 40)).save(folder / "small.png")
    with pytest.raises(DataError, match=r"small\.png has 40 x 95 pixels .* at least 32 x 96"):
        load("layers", photographs=str(folder))
    (folder / "small.png").write_text("no image")
    with pytest.raises(DataError, match=r"small\.png is not an image"):
        load("layers", photographs=str(folder))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no photographs"):
        load("layers", photographs=str(tmp_path / "empty"))
    with pytest.raises(DataError, match=r"there is no folder .*/none"):
        load("layers", photographs=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"no data set is called 'camwid'.* did you mean 'camvid'"):
        load("layers", photographs="camwid")


def test_photographs_of_a_data_set(cache):
    found = photographs.find("shapes")
    assert found.title == "shapes (drawn)" and found.train[0].shape == (3, 48, 64)
    assert (len(found.train), len(found.test)) == (200, 100)
    spread = load("shapes").train
    assert torch.equal(found.train[1], spread.image(3)) and len(spread) == 600
    with pytest.raises(ValueError, match="photographs is 'layers', which are made of"):
        photographs.find("layers")
    many = Layers(photographs=found.train, shape=(16, 24))
    assert many.batch(torch.arange(30)).first.float().std() > 20


def test_photographs_of_a_data_set_that_is_tested_on_its_training_images(tmp_path, cache):
    training = tmp_path / "kitti" / "training"
    (training / "flow_occ").mkdir(parents=True)
    (training / "image_2").mkdir()
    image = waves(40, 99)
    for name in ("000000_10", "000000_11"):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(training / "image_2" / f"{name}.png")
    write_flow(training / "flow_occ" / "000000_10.png", FlowField.dense(torch.zeros(2, 40, 99)))
    found = photographs.find("kitti", tmp_path)
    assert torch.equal(found.train[0], image[:, :, :66])
    assert torch.equal(found.test[0], image[:, :, 66:])


def test_photographs_that_take_too_much_memory(tmp_path, monkeypatch):
    Image.new("RGB", (120, 40)).save(tmp_path / "a.png")
    monkeypatch.setattr(photographs, "MEMORY", 10_000)
    with pytest.raises(DataError, match="take more than 10,000 bytes of memory"):
        photographs.find(str(tmp_path))


IMPOSSIBLE = {
    "size": ({"size": (15, 64)}, r"size is \[15, 64\]"),
    "count": ({"count": 0}, "count is 0"),
    "test": ({"test": 0}, "test is 0"),
    "seed": ({"seed": -1}, "seed must not be negative; got -1"),
    "shift": ({"shift": -1.0}, "shift must not be negative; got -1"),
    "nan": ({"shift": math.nan}, "shift must not be negative; got nan"),
    "infinite": ({"shift": math.inf}, "shift must not be negative and finite; got inf"),
    "turn": ({"turn": 181.0}, r"turn must lie in \[0, 180\]; got 181"),
    "zoom": ({"zoom": 1.5}, r"zoom must lie in \[0, 1\]"),
    "sides": ({"size": [64]}, r"size is \[64\]: expected a height and a width"),
    "many": ({"shapes": [3, 4, 5]}, r"the fewest and the most shapes .* got \[3, 4, 5\]"),
    "shapes": ({"shapes": (4, 3)}, r"the fewest and the most shapes .* got \[4, 3\]"),
}


@pytest.mark.parametrize(("options", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_numbers_that_are_impossible(options, message):
    with pytest.raises(ValueError, match=message):
        load("layers", **options)
    with pytest.raises(ValueError, match="at least one photograph"):
        Layers(photographs=())
