"""Optical flow as a task: its loss and metrics, how pairs are seen, and runs."""

import colorsys
import json
import math

import pytest
import torch
from accelerate import Accelerator
from PIL import Image
from torch.nn import functional

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.data import DataError
from equilibria.run.tasks import Part
from equilibria.run.trainer import Trainer
from equilibria.zoo.flow.data import FlowField, FlowPair, FlowSet, write_flow
from equilibria.zoo.flow.data.pairs import stack_pairs
from equilibria.zoo.flow.task import FlowTask, OpticalFlow
from equilibria.zoo.flow.task import task as tasks
from equilibria.zoo.flow.task.endpoints import absolute, sums
from equilibria.zoo.flow.task.feed import (
    DRAWS,
    FlowFeed,
    PairView,
    cover,
    recolor,
    turn_hues,
    view_pair,
)
from equilibria.zoo.vision.model.explicit import UNetConfig
from flow_tree import MINI, TREE

RAFT = {
    "task": TREE["task"],
    "model": {"name": "raft", **MINI, "steps": 4},
    "epochs": 1,
    "batch_size": 4,
}


def trainer_of(tree, *options):
    recipe = recipes.parse(tree, options)
    return Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))


class Listed:
    """Pairs in memory, of any sizes."""

    def __init__(self, pairs):
        self.pairs = list(pairs)

    def __len__(self):
        return len(self.pairs)

    def size(self, place):
        return tuple(self.pairs[place].valid.shape)

    def pair(self, place):
        return self.pairs[place]

    def batch(self, places):
        return stack_pairs(self.pairs[k] for k in places.tolist())

    def select(self, index):
        return Listed(self.pairs[k] for k in index.tolist())


def noise(height, width, seed=0, valid=0.9):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (2, 3, height, width), generator=generator, dtype=torch.uint8)
    flow = 3 * torch.randn(2, height, width, generator=generator)
    return FlowPair(*images, flow, torch.rand(height, width, generator=generator) < valid)


@pytest.fixture
def listed(monkeypatch):
    """A task on pairs in memory."""

    def of(train, test=None, **options):
        test = train if test is None else test
        found = FlowSet(title="noise", train=Listed(train), test=Listed(test), checksum="sha256:0")
        monkeypatch.setattr(tasks, "load", lambda *_, **__: found)
        return OpticalFlow(data="noise", **options).load()

    return of


# --- errors and losses ---------------------------------------------------------------------------


def figures(output, flow, valid):
    found = sums(output, flow, valid)
    known = ((metric.name, metric.figure) for metric in FlowTask.metrics)
    return {name: figure(found) for name, figure in known if figure is not None}


def test_the_errors_of_a_flow_are_what_they_are_called():
    flow = torch.zeros(1, 2, 1, 5)
    flow[0, 0] = torch.tensor([0.0, 0.0, 0.0, 100.0, 100.0])
    output = flow.clone()
    # 5 pixels right and down, .5, 2; then 4 of 100 and 6 of 100: only the latter is over 5 %.
    output[0, :, 0, 0] = torch.tensor([3.0, 4.0])
    output[0, 1, 0, 1:] = torch.tensor([0.5, 2.0, 4.0, 6.0])
    found = figures(output, flow, torch.ones(1, 1, 5, dtype=torch.bool))
    assert found["epe"] == pytest.approx((5 + 0.5 + 2 + 4 + 6) / 5)
    assert found["px1"] == pytest.approx(1 / 5) and found["px3"] == pytest.approx(2 / 5)
    assert found["f1"] == pytest.approx(2 / 5)


def test_images_count_the_same_in_the_mean_of_images():
    flow, output = torch.zeros(3, 2, 1, 4), torch.zeros(3, 2, 1, 4)
    output[0, 0], output[1, 0] = 1.0, 3.0
    valid = torch.ones(3, 1, 4, dtype=torch.bool)
    valid[1, 0, 1:] = False  # one pixel of the second image
    valid[2] = False
    found = figures(output, flow, valid)
    assert found["epe"] == pytest.approx((4 * 1 + 3) / 5)
    assert found["epe_images"] == pytest.approx(2.0)


def test_what_is_not_valid_may_be_anything_and_an_answer_may_not():
    flow, valid = torch.zeros(1, 2, 2, 2), torch.ones(1, 2, 2, dtype=torch.bool)
    flow[..., 0, 0], valid[..., 0, 0] = math.nan, False
    output = torch.ones_like(flow).requires_grad_()
    found = figures(output.detach(), flow, valid)
    assert found["epe"] == pytest.approx(math.sqrt(2))
    loss = absolute(output, flow, valid)
    loss.backward()
    assert float(loss.detach()) == 6.0
    assert output.grad is not None
    assert torch.equal(output.grad, valid[:, None].expand_as(flow).float())
    broken = output.detach().clone()
    broken[..., 1, 1] = math.nan
    found = figures(broken, flow, valid)
    assert found["px1"] == 0.0 and found["f1"] == pytest.approx(1 / 3)
    assert math.isnan(found["epe"])


def test_a_flow_that_is_too_long_is_not_learned_from_but_judged(listed):
    pair = noise(32, 40, valid=1.1)
    pair.flow[:, 0, 0] = torch.tensor([300.0, 300.0])
    task = listed([pair])
    targets = task.sample("test", 1).targets
    assert task.units(targets) == 32 * 40 - 1
    output = torch.zeros_like(targets[0])
    expected = pair.flow.abs().sum() - 600.0
    torch.testing.assert_close(task.loss(None, output, targets), expected, rtol=1e-5, atol=0.0)
    assert task.reference("test")["epe"] == pytest.approx(float(pair.flow.norm(dim=0).mean()))


def test_earlier_refinements_weigh_less_and_less():
    trainer = trainer_of(RAFT, "--task.gamma", "0.5")
    batch = trainer.batch()
    prediction = trainer.model.train()(batch.inputs)
    assert len(prediction.auxiliary) == 3
    targets = batch.targets
    total = evaluation.loss_of(
        trainer.model, trainer.task, prediction, targets, trainer.accelerator
    )
    losses = [
        trainer.task.loss(trainer.model, each, targets)
        for each in (*prediction.auxiliary, prediction.output)
    ]
    weights = (0.125, 0.25, 0.5, 1.0)
    expected = sum(w * each for w, each in zip(weights, losses, strict=True))
    torch.testing.assert_close(total, expected)


# --- how pairs are seen --------------------------------------------------------------------------


def smooth(height=48, width=64, batch=3):
    """Pairs of smooth images under affine motion: second(p + flow(p)) = first(p) everywhere."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    generator = torch.Generator().manual_seed(0)
    waves = torch.rand(batch, 3, 4, 3, generator=generator)

    def texture(x, y):
        turns = waves[..., :1, None] * x[:, None, None] + waves[..., 1:2, None] * y[:, None, None]
        return 127 + 30 * torch.sin(0.35 * turns + 6 * waves[..., 2:, None]).sum(2)

    x, y = (each.float()[None].expand(batch, -1, -1) for each in (columns, rows))
    shift = 4 * torch.rand(batch, 2, 1, 1, generator=generator) - 2
    u = shift[:, 0] + 0.03 * (y - 20)
    v = shift[:, 1] - 0.02 * (x - 30)
    # Where the second image's pixels were: the inverse of (x + u, y + v).
    a = torch.tensor([[1.0, 0.03], [-0.02, 1.0]]).inverse()
    dx, dy = x - shift[:, 0] + 0.03 * 20, y - shift[:, 1] - 0.02 * 30
    back_x, back_y = a[0, 0] * dx + a[0, 1] * dy, a[1, 0] * dx + a[1, 1] * dy

    def image(x, y):
        return (
            torch.stack(
                [texture(x.flatten(1)[b : b + 1], y.flatten(1)[b : b + 1])[b] for b in range(batch)]
            )
            .squeeze()
            .view(batch, 3, height, width)
        )

    first, second = image(x, y), image(back_x, back_y)
    return FlowPair(first, second, torch.stack([u, v], 1), torch.ones(batch, height, width) > 0)


def mismatch(pair, margin=6):
    """The largest difference of the first images and the second ones, looked up by the flow."""
    first, second, flow, valid = pair
    height, width = valid.shape[1:]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    x, y = columns + flow[:, 0], rows + flow[:, 1]
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], 3)
    found = functional.grid_sample(second, grid, align_corners=False)
    inside = valid & (x > margin) & (x < width - margin) & (y > margin) & (y < height - margin)
    inside[:, :margin] = inside[:, -margin:] = False
    inside[:, :, :margin] = inside[:, :, -margin:] = False
    assert int(inside.sum()) > 100
    return float(((found - first).abs().amax(1) * inside).max())


VIEWS = {
    "cut": PairView(crop=(32, 40)),
    "mirrored": PairView(flip=1.0),
    "upside down": PairView(flip_down=1.0, flip=1.0),
    "larger": PairView(crop=(32, 40), scale=(1.5, 1.9)),
    "smaller": PairView(crop=(24, 24), scale=(0.6, 0.8), flip=0.5),
    "stretched": PairView(crop=(32, 40), scale=(1.0, 1.3), stretch=1.4, flip_down=0.5),
    "too small for the crop": PairView(crop=(96, 96)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", VIEWS)
def test_the_flow_of_what_is_seen_is_its_flow(name, seed):
    view = VIEWS[name]
    drawn = torch.rand(3, DRAWS, generator=torch.Generator().manual_seed(seed))
    plain = smooth()
    pair = view_pair(plain, view, drawn)
    assert mismatch(plain) < 3.0
    assert pair.valid.shape[1:] == (view.crop or (48, 64)) and bool(pair.valid.all())
    assert mismatch(pair) < 6.0
    wrong = pair._replace(flow=-pair.flow)
    assert mismatch(wrong) > 12.0


@pytest.mark.parametrize("name", ["cut", "mirrored", "larger", "smaller"])
def test_single_pixels_keep_their_flow(name):
    view = PairView(**{**vars(VIEWS[name]), "sparse": True})
    drawn = torch.rand(3, DRAWS, generator=torch.Generator().manual_seed(5))
    plain = smooth()
    keep = torch.rand(plain.valid.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    flow = torch.where(keep[:, None], plain.flow, math.nan)
    found = view_pair(plain._replace(flow=flow, valid=keep), view, drawn)
    dense = view_pair(plain, PairView(**{**vars(view), "sparse": False}), drawn)
    share = float(found.valid.float().mean())
    assert 0.05 < share < 0.6
    assert torch.equal(found.first, dense.first)
    there = found.valid[:, None].expand_as(found.flow)
    # The nearest pixel is at most half a pixel off, where the flow is nearly the same.
    torch.testing.assert_close(found.flow[there], dense.flow[there], atol=0.1, rtol=0.0)
    assert not found.flow[~there].any()
    if name in ("cut", "mirrored"):
        torch.testing.assert_close(found.flow[there], dense.flow[there], atol=1e-4, rtol=0.0)


def test_where_several_pixels_become_one_the_last_is_taken_always():
    flow = torch.arange(64.0).view(1, 1, 8, 8).repeat(1, 2, 1, 1)
    pair = FlowPair(*torch.zeros(2, 1, 3, 8, 8), flow, torch.ones(1, 8, 8) > 0)
    drawn = torch.full((1, DRAWS), 0.5)
    view = PairView(crop=(4, 4), scale=(0.5, 0.5), sparse=True)
    found = view_pair(pair, view, drawn)
    expected = 0.5 * (flow[:, :, 1::2, 1::2])
    torch.testing.assert_close(found.flow, expected)


def test_an_unknown_pixel_leaves_no_flow_beside_it():
    plain = smooth()
    valid = plain.valid.clone()
    valid[:, 20:24, 30:34] = False
    flow = torch.where(valid[:, None], plain.flow, math.nan)
    drawn = torch.rand(3, DRAWS, generator=torch.Generator().manual_seed(2))
    found = view_pair(plain._replace(flow=flow, valid=valid), VIEWS["larger"], drawn)
    dense = view_pair(plain, VIEWS["larger"], drawn)
    there = found.valid[:, None].expand_as(found.flow)
    assert 0.9 < float(found.valid.float().mean()) < 1.0
    torch.testing.assert_close(found.flow[there], dense.flow[there], atol=0.01, rtol=0.0)


def test_hues_are_turned_as_on_the_circle():
    colors = torch.rand(1, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    for turn in (0.25, -0.1, 1.0):
        found = turn_hues(colors, torch.full((1, 1, 1), turn))
        for row, column in ((0, 0), (2, 3), (4, 6)):
            hue, saturation, value = colorsys.rgb_to_hsv(*colors[0, :, row, column].tolist())
            expected = colorsys.hsv_to_rgb((hue + turn) % 1.0, saturation, value)
            assert found[0, :, row, column].tolist() == pytest.approx(expected, abs=1e-5)
    gray = torch.full((1, 3, 2, 2), 0.4)
    assert torch.equal(turn_hues(gray, torch.full((1, 1, 1), 0.3)), gray)


def test_colours_change_alike_but_in_asymmetric_pairs():
    image = 60 + 100 * torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    one = torch.tensor([[1.2, 0.8, 1.3, 0.1]] * 2)
    other = torch.tensor([[1.2, 0.8, 1.3, 0.1], [0.8, 1.2, 0.7, -0.1]])
    first, second = recolor(image, image, one, other, torch.tensor([False, True]))
    assert torch.equal(first[0], second[0])
    assert float((first[1] - second[1]).abs().mean()) > 10
    assert float(first.min()) >= 0.0 and float(first.max()) <= 255.0
    same = torch.tensor([[1.0, 1.0, 1.0, 0.0]] * 2)
    plain, _ = recolor(image, image, same, same, torch.tensor([False, False]))
    torch.testing.assert_close(plain, image, atol=1e-3, rtol=0.0)
    dim = torch.tensor([[0.5, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]])
    half, _ = recolor(image, image, dim, dim, torch.tensor([False, False]))
    torch.testing.assert_close(half[0], image[0] / 2)
    assert float(half[1].std()) < 1e-2  # without contrast it is its mean grey


def test_asymmetric_pairs_have_colours_of_their_own():
    pairs = [noise(8, 8, seed) for seed in range(40)]
    pair = stack_pairs(each._replace(second=each.first) for each in pairs)
    drawn = torch.rand(40, DRAWS, generator=torch.Generator().manual_seed(0))
    for share, hue in ((0.3, 0.1), (0.0, 0.1), (1.0, 0.0)):
        found = view_pair(pair, PairView(color=0.4, hue=hue, asymmetric=share), drawn)
        apart = (found.first != found.second).flatten(1).any(1)
        assert abs(float(apart.float().mean()) - share) < 0.2 and bool(apart.any()) == (share > 0)
        assert bool((found.first != pair.first).flatten(1).any(1).all())


def test_a_rectangle_has_the_mean_colour():
    images = torch.rand(2, 3, 20, 30, generator=torch.Generator().manual_seed(0))
    corners, sides = torch.tensor([[5.0, 25.0]] * 2), torch.tensor([[6.0, 10.0]] * 2)
    found = cover(images, corners, sides, torch.tensor([True, False]))
    assert torch.equal(found[1], images[1])
    mean = images[0].mean((1, 2))
    assert torch.allclose(found[0, :, 5:11, 25:], mean[:, None, None].expand(3, 6, 5))
    changed = (found[0] != images[0]).any(0)
    assert int(changed.sum()) == 6 * 5


def test_only_the_second_image_is_covered():
    pair = smooth()
    drawn = torch.rand(3, DRAWS, generator=torch.Generator().manual_seed(0))
    found = view_pair(pair, PairView(erase=1.0, erased=(10, 20)), drawn)
    assert torch.equal(found.first, pair.first) and torch.equal(found.flow, pair.flow)
    assert all((found.second != pair.second).flatten(1).any(1))


FULL = PairView(
    crop=(32, 40),
    scale=(0.9, 1.5),
    stretch=1.2,
    flip=0.5,
    flip_down=0.1,
    color=0.4,
    hue=0.16,
    asymmetric=0.2,
    erase=0.5,
    erased=(5, 15),
)


def test_a_batch_is_a_function_of_seed_and_step_whatever_process_makes_it():
    pairs = Listed(noise(40, 48, seed) for seed in range(12))
    feed = FlowFeed(pairs, 4, 0, view=lambda _: FULL)
    whole = feed.batch(1)
    assert whole.inputs[0].shape == (4, 3, 32, 40) and whole.targets[1].dtype == torch.bool
    again = FlowFeed(pairs, 4, 0, view=lambda _: FULL)
    halves = [again.batch(1, Part(k, 2)) for k in range(2)]
    for full, *parts in zip(
        (*whole.inputs, *whole.targets), *((*h.inputs, *h.targets) for h in halves), strict=True
    ):
        torch.testing.assert_close(full, torch.cat(parts), rtol=1e-4, atol=1e-2)
    other = FlowFeed(pairs, 4, 1, view=lambda _: FULL).batch(1)
    assert not torch.equal(whole.inputs[0], other.inputs[0])
    # The same pairs in another pass are seen otherwise.
    alone = FlowFeed(pairs.select(torch.tensor([0])), 1, 0, view=lambda _: FULL)
    assert not torch.equal(alone.batch(0).inputs[0], alone.batch(1).inputs[0])


def test_pairs_of_any_sizes_share_a_batch_where_parts_of_one_size_are_shown(listed):
    pairs = [noise(40 + 8 * k, 48, k) for k in range(4)]
    task = listed(pairs, crop=(32, 40), scale=(1.0, 1.2))
    assert task.feed(4, 0).batch(0).inputs[0].shape == (4, 3, 32, 40)
    found = [batch.inputs[0].shape[2:] for batch in task.batches("test", 4)]
    assert found == [(40 + 8 * k, 48) for k in range(4)]
    with pytest.raises(ValueError, match="differ in size, from 40 x 48 to 64 x 48 pixels"):
        listed(pairs).complete(recipes.parse(TREE).model)


def test_data_sets_are_learned_from_together(monkeypatch):
    """Each as often as is said; the flow of one that knows single pixels is not interpolated."""
    sets = {
        "things": [noise(40, 48, k, valid=1.1) for k in range(3)],
        "kitti": [noise(36, 52, 3 + k, valid=0.3) for k in range(2)],
        "sintel": [noise(40, 48, 5, valid=1.1)],
    }
    asked = {}

    def found(name, *_, render=None, **__):
        asked[name] = render
        pairs = Listed(sets[name])
        return FlowSet(title=name, train=pairs, test=pairs, checksum=f"sha256:{name}")

    monkeypatch.setattr(tasks, "load", found)
    options = {"data": "things", "crop": (32, 40), "scale": (1.2, 1.5)}
    plain = OpticalFlow(**options).load()
    task = OpticalFlow(**options, mixed={"kitti": 4, "things": 3}).load()
    feed = task.feed(17, 0)
    assert feed.steps == 1 and plain.feed(3, 0).steps == 1
    shares = feed.batch(0).targets[1].float().mean((1, 2))
    assert int((shares == 1.0).sum()) == 3 * 3 and int((shares < 0.4).sum()) == 4 * 2
    assert float(shares.min()) > 0.05  # interpolated, hardly a pixel would be left
    assert task.checksum != plain.checksum and task.source == "things, with kitti"
    assert [batch.samples for batch in task.batches("test", 8)] == [3]
    assert task.mixture is not None
    some = task.mixture.select(torch.tensor([0, 9, 16]))
    assert [some.is_sparse(k) for k in range(3)] == [False, True, True]
    assert torch.equal(some.pair(1).flow, sets["kitti"][0].flow)
    assert torch.equal(some.batch(torch.tensor([2])).flow[0], sets["kitti"][1].flow)
    asked.clear()
    OpticalFlow(**options, render="clean", mixed={"kitti": 1, "sintel": 1}).load()
    assert asked == {"things": "clean", "kitti": None, "sintel": "clean"}
    with pytest.raises(ValueError, match="kitti must be at least 1"):
        OpticalFlow(**options, mixed={"kitti": 0})


# --- what is refused -----------------------------------------------------------------------------


def test_a_flow_that_is_no_number_is_refused(listed):
    pair = noise(32, 40, valid=1.1)
    pair.flow[0, 3, 4] = math.nan
    task = listed([noise(32, 40), pair])
    with pytest.raises(DataError, match=r"the flow of pair 1 \(from 0\) is not finite"):
        list(task.batches("test", 2))
    with pytest.raises(DataError, match="the flow of pair 1"):
        task.feed(2, 0).batch(0)


def test_data_without_a_valid_pixel_are_refused_where_they_judge(listed):
    task = listed([noise(32, 40)], [noise(32, 40, valid=-1.0)])
    trainer = Trainer(recipes.parse({**TREE, "batch_size": 1}), task, Accelerator(cpu=True))
    with pytest.raises(DataError, match="no pixel of the test split of noise is valid"):
        trainer.evaluate("test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": (0, 8)}, "crop must be a height and a width"),
        ({"crop": "auto"}, "crop must be a height and a width, or null; got auto"),
        ({"scale": (2.0, 1.0)}, "scale must be the smallest and the largest factor"),
        ({"stretch": 0.9}, "stretch must be at least 1"),
        ({"hue": 0.6}, r"hue must lie in \[0, 0.5\]"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"max_flow": 0.0}, "max_flow must be positive"),
        ({"data": "chairs", "size": (32, 32)}, "size is for data layers, and data is chairs"),
        ({"render": "clean"}, "render is for data sintel and things, and data is layers"),
    ],
)
def test_an_impossible_task_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        OpticalFlow(**options)


def test_a_network_that_cannot_take_the_pairs_is_refused(listed):
    task = listed([noise(32, 40)])
    with pytest.raises(ValueError, match="images of 32 x 40 pixels are too small"):
        task.complete(recipes.parse(TREE, ["--model.levels", "3"]).model)
    task = listed([noise(64, 72)], [noise(32, 40)], crop=(64, 64))
    with pytest.raises(ValueError, match="images of 32 x 40 pixels are too small"):
        task.complete(recipes.parse(TREE, ["--model.levels", "3"]).model)
    with pytest.raises(ValueError, match="UNetConfig describes no network for optical flow"):
        task.complete(UNetConfig())
    with pytest.raises(ValueError, match="test is 5, and the test split has 1 pairs"):
        FlowTask(OpticalFlow(data="noise", test=5))


def test_other_data_leave_out_what_is_for_generated_pairs(tmp_path):
    config = OpticalFlow(size=(64, 64), shift=3.0, test=5)
    folder = tmp_path / "pairs"
    folder.mkdir()
    other = config.at(folder)
    assert (other.data, other.size, other.shift, other.test) == (str(folder), None, None, 5)
    assert config.at("layers") == config
    assert OpticalFlow(data="sintel", render="clean").at("things").render == "clean"
    assert OpticalFlow(data="sintel", render="clean").at("kitti").render is None


# --- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjoint", [("JacobianFree",), ("Phantom", "3")])
def test_the_correction_is_the_loss_of_a_flow_on_the_way(adjoint):
    name, *steps = adjoint
    options = ["--adjoint.name", name]
    options += ["--adjoint.steps", *steps, "--adjoint.damping", "1.0"] if steps else []
    trainer = trainer_of(TREE, *options)
    stabilizer = trainer.stabilizer
    assert stabilizer is not None and stabilizer.options() == {"states": (3,)}
    batch = trainer.batch()
    prediction = trainer.model.train()(batch.inputs, states=(3,))
    (state,) = prediction.solution.states
    early = trainer.task.loss(
        trainer.model, trainer.model.answer(state, batch.inputs), batch.targets
    )
    scale = 1 / trainer.task.units(batch.targets)
    weight = trainer.model.scene.features.stem.weight
    (gradient,) = torch.autograd.grad(early, [weight], retain_graph=True)
    assert float(gradient.abs().sum()) > 0
    trainer.train_step()
    found = trainer.finish_epoch()
    assert found["correction"]["loss"] == pytest.approx(
        0.8 * scale * float(early.detach()), rel=1e-3
    )
    assert found["train"]["epe"] > 0


def test_states_on_the_way_are_read_at_the_size_of_the_images(listed):
    task = listed([noise(36, 45, k) for k in range(2)])
    trainer = Trainer(recipes.parse({**TREE, "batch_size": 2}), task, Accelerator(cpu=True))
    trainer.train_step()
    found = trainer.evaluate("test", (1, 3))
    assert set(found["at"]) == {"1", "3"} and found["at"]["1"]["epe"] > 0


def test_a_network_learns_to_see_motion():
    options = ["--optimizer.lr", "0.005", "--schedule.name", "Constant"]
    trainer = trainer_of(TREE, *options, "--task.samples", "2", "--batch_size", "2")
    zero = trainer.task.reference("train")["epe"]
    for _ in range(15):
        trainer.train_step()
    assert trainer.evaluate("train")["epe"] < 0.9 * zero


@pytest.mark.usefixtures("unsaved")
def test_a_run_from_the_command_line(tmp_path, capsys):
    (tmp_path / "mini.yaml").write_text(json.dumps(TREE))
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "mini.yaml"), "--out", str(run)]) == 0
    found = json.loads((run / "evaluation.json").read_text())
    assert found["epe"] > 0 and found["pixels"] == 4 * 32 * 40 and 0 <= found["f1"] <= 1
    capsys.readouterr()
    assert main(["evaluate", str(run)]) == 0
    out = capsys.readouterr().out
    assert "end-point error" in out and "zero flow: end-point error" in out and "F1-all" in out
    found = json.loads((run / "evaluation.json").read_text())
    zero = recipes.parse(TREE).task.load().reference("test")
    assert found["baseline"]["epe"] == pytest.approx(zero["epe"])
    assert main(["report", str(run), "--no-doctor"]) == 0
    assert "End-point error" in (run / "report.html").read_text()

    folder = tmp_path / "own"
    for part in ("first", "second", "flow"):
        (folder / part).mkdir(parents=True)
    for k in range(3):
        pair = noise(36, 44 + k, k)
        for part, image in (("first", pair.first), ("second", pair.second)):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / part / f"{k}.png")
        write_flow(folder / "flow" / f"{k}.flo", FlowField(pair.flow, pair.valid))
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(folder)]) == 0
    assert "zero flow" in capsys.readouterr().out
    (path,) = run.glob("evaluation-other-own-*.json")
    found = json.loads(path.read_text())
    assert found["epe"] > 0 and 0.8 * 4860 < found["pixels"] < 4860
