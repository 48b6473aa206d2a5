"""Settings that follow from one's own images: size, colours, mirroring, moves, steps."""

import pytest
import torch
from tar_shards import picture

from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.data import Split
from equilibria.run.loop import train
from equilibria.run.run import Folder
from equilibria.zoo.vision.task.own_images import (
    LEAST,
    MOST,
    OFTEN,
    PASSES,
    Looked,
    OwnImages,
    compare_mirrored,
    pace,
    side,
)


def write(folder, *, side, mode="RGB", count=8, odd=None):
    """Two classes of noise on a dark or a light ground; `odd` is the mode of one file."""
    for number in range(2 * count):
        path = folder / ("dark", "light")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number, side, odd if odd and number == 0 else mode))
    return folder


def arrows(count, *, both_ways):
    """Images of a ramp that rises to the right in class 0; in class 1 it falls, or lies."""
    random = torch.Generator().manual_seed(0)
    ramp = torch.linspace(0, 1, 16).expand(16, 16)
    other = ramp.T if both_ways else ramp.flip(-1)
    targets = torch.arange(count) % 2
    images = torch.where(targets[:, None, None] == 0, ramp, other)
    if both_ways:  # each image is met from either side
        turned = torch.rand(count, generator=random) < 0.5
        images = torch.where(turned[:, None, None], images.flip(-1), images)
    noise = 0.3 * torch.randn(count, 16, 16, generator=random)
    return Split((images + noise)[:, None], targets)


def test_arrows_that_point_left_or_right_are_not_mirrored():
    found = compare_mirrored(arrows(60, both_ways=False))
    assert found.plain > 0.9 and found.mirrored < 0.1
    assert found.held_out == 30 and not found.harmless
    assert "30 held-out images" in str(found)


def test_what_is_met_from_either_side_is_mirrored():
    found = compare_mirrored(arrows(200, both_ways=True))
    assert found.plain > 0.9 and found.harmless


@pytest.mark.parametrize("images", [arrows(4, both_ways=False), arrows(3, both_ways=True)])
def test_a_handful_of_images_can_be_asked_too(images):
    assert compare_mirrored(images).held_out in (1, 2)


@pytest.mark.parametrize(
    ("shorter", "images", "expected"),
    [(20, 100, 32), (47, 100, 32), (48, 100, 48), (500, 100, 64), (500, 10**4, 32)],
)
def test_images_are_as_large_as_they_are_and_as_the_run_can_bear(shorter, images, expected):
    assert side(Looked(images, shorter, 3)) == expected


def test_the_cost_of_a_run_is_bounded_whatever_the_number_of_images():
    area, batch, epochs = 32 * 32, 32, 12
    shown = [pace(n, area, batch, epochs) * batch * epochs for n in (10, 1_000, 10**6)]
    middle = min(max(PASSES * 1_000, LEAST), MOST)
    for found, expected in zip(shown, (LEAST, middle, MOST), strict=True):
        assert expected <= found < expected + batch * epochs
    assert pace(10**6, 4 * area, batch, epochs) == pytest.approx(shown[2] / 4 / 384, abs=1)
    assert pace(10, 2 * area, batch, epochs) == pace(10, area, batch, epochs)


def test_a_larger_size_leaves_each_image_as_often_shown_as_it_must_be():
    for images in (100, 500, 900, 1_600):
        size = side(Looked(images, 500, 3))
        shown = pace(images, size * size, 32, 8) * 32 * 8
        assert shown >= OFTEN * images


def test_grey_images_stay_grey_and_one_in_colour_makes_all_of_them_so(tmp_path):
    gray = OwnImages(data=str(write(tmp_path / "grey", side=8, mode="L"))).load()
    mixed = OwnImages(data=str(write(tmp_path / "mixed", side=8, mode="L", odd="RGB"))).load()
    assert gray.shape == (1, 32, 32) and mixed.shape == (3, 32, 32)
    assert gray.own.channels == 1 and gray.own.shift == 3 and isinstance(gray.own.flip, bool)


def test_what_is_given_is_not_chosen(tmp_path):
    folder = write(tmp_path / "images", side=12)
    given = OwnImages(data=str(folder), size=16, channels=1, flip=True, shift=0)
    task = given.load()
    assert task.own == given and task.shape == (1, 16, 16) and task.mirroring is None
    assert task.config.flip and task.config.shift == 0


def test_a_named_data_set_has_the_channels_that_it_has():
    task = OwnImages(data="digits", samples=50).load()
    assert task.own.channels is None and task.shape == (1, 32, 32) and task.own.flip is False


@pytest.mark.parametrize(("key", "value"), [("size", "large"), ("flip", "maybe"), ("shift", "-1")])
def test_a_value_that_is_neither_auto_nor_possible_is_refused(key, value):
    with pytest.raises(ConfigError, match=key):
        recipes.load("mdeq-images", [f"--task.{key}", value])


def test_no_folder_and_no_data_set(tmp_path):
    with pytest.raises(ValueError, match="--data FOLDER"):
        OwnImages().load()
    with pytest.raises(ValueError, match="digits"):
        OwnImages(data="digts").load()


TINY = (
    *("--model.channels", "[8]", "--model.head_channels", "[2]", "--model.groups", "2"),
    *("--model.final", "8", "--batch_size", "4", "--probes", "2", "--epochs", "2"),
)


def test_a_run_says_and_records_what_it_has_chosen(tmp_path, monkeypatch, capsys):
    for name in ("LEAST", "MOST"):
        monkeypatch.setattr(f"equilibria.zoo.vision.task.own_images.{name}", 24)
    folder = write(tmp_path / "images", side=12)
    asked = recipes.load("mdeq-images", [*TINY, "--task.data", str(folder)])
    train(asked, tmp_path / "run")
    found = Folder(tmp_path / "run").read_recipe()
    assert (found.task.size, found.task.channels, found.task.shift) == (32, 3, 3)
    assert found.epoch_steps == 3 and found.model.shape == (3, 32, 32)
    assert recipes.decisive(recipes.settle(asked, asked.task.load())) == recipes.decisive(found)
    said = capsys.readouterr().out
    assert f"task.size 32, task.channels 3, task.flip {str(found.task.flip).lower()}" in said
    assert "epoch_steps 3" in said
    train(asked, tmp_path / "run", resume=True)  # what is auto there is what was found here


def test_other_tasks_cannot_tell_the_steps_of_an_epoch(tree):
    recipe = recipes.parse(tree | {"epoch_steps": "auto"})
    with pytest.raises(ValueError, match="does not say how many steps make an epoch"):
        recipes.settle(recipe, recipe.task.load())
