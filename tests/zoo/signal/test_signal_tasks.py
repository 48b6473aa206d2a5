"""One network learns one signal: what is learned, from what, how well, and runs."""

import copy
import json
import math
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.config import ConfigError
from equilibria.run.data import DataError
from equilibria.run.loop import Interrupted, train
from equilibria.run.reusing import Reuse
from equilibria.run.run import Folder, load
from equilibria.run.start import TrainingError
from equilibria.run.tasks import Part
from equilibria.run.trainer import Trainer
from equilibria.zoo.signal import data as signals
from equilibria.zoo.signal.data import Signal
from equilibria.zoo.signal.model import gradient
from equilibria.zoo.signal.task.fitting import Described, suggest_scale
from equilibria.zoo.signal.task.grid import GridTask
from equilibria.zoo.signal.task.reading import SignalRepresentation

MODEL = {"name": "imfn", "inputs": None, "outputs": None, "width": 16, "scale": None}
TREE = {
    "task": {"name": "signal", "data": None},
    "model": MODEL,
    "solver": {"name": "Picard", "rtol": 1e-2, "max_evals": 50},
    "eval_solver": {"name": "Picard", "rtol": 1e-4, "max_evals": 100},
    "adjoint": {"name": "NeumannPhantom", "steps": 2, "damping": 1.0},
    "reuse": True,
    "optimizer": {"name": "Adam", "lr": 1e-2},
    "schedule": {"name": "Constant"},
    "epochs": 2,
    "epoch_steps": 5,
    "batch_size": "all",
    "eval_batch_size": 100,
    "probes": 4,
}
EXPLICIT = {
    **{key: value for key, value in TREE.items() if "solver" not in key and key != "adjoint"},
    "model": {**MODEL, "name": "mfn", "layers": 2},
    "reuse": False,
}


def picture(height=12, width=16, channels=1):
    """A smooth image, uint8, (height, width, channels)."""
    y, x = np.mgrid[:height, :width] / 6.0
    waves = [np.sin(x + k) * np.cos(1.3 * y - k) for k in range(channels)]
    return (127.5 + 100 * np.stack(waves, -1)).astype(np.uint8)


def image(**changes):
    return Signal.of("image", torch.from_numpy(picture(**changes)), "waves", low=0, high=255)


@pytest.fixture
def png(tmp_path):
    path = tmp_path / "waves.png"
    Image.fromarray(picture()[..., 0]).save(path)
    return path


@pytest.fixture
def wav(tmp_path):
    t = torch.arange(400, dtype=torch.float64)[:, None]
    sound = Signal.of("sound", 0.4 * (t / 9).sin() + 0.1 * (t / 3).cos(), "s", rate=8000.0)
    signals.write_sound(tmp_path / "tone.wav", sound.values, sound.field)
    return tmp_path / "tone.wav"


@pytest.fixture
def film(tmp_path):
    frames = torch.stack([torch.from_numpy(picture(6, 8, 3)).roll(k, 1) for k in range(4)])
    signals.write_film(tmp_path / "frames", frames / 127.5 - 1)
    return tmp_path / "frames"


def tree_of(path, base=TREE, **task):
    tree = copy.deepcopy(base)
    tree["task"] |= {"data": str(path), **task}
    return tree


def trainer_of(tree, *options) -> Any:
    recipe = recipes.parse(tree, options)
    return Trainer(recipe, recipe.task.load(), evaluation.accelerator(recipe.precision, "cpu"))


def steps(trainer, count) -> Any:
    for _ in range(count):
        trainer.train_step()
    return trainer


# --- what is learned -----------------------------------------------------------------------------


def test_each_kind_of_file_fills_in_the_network(png, wav, film):
    for path, inputs, outputs, scale in (
        (png, 2, 1, 16.0),
        (wav, 1, 1, 3600 * 400 / 8000),
        (film, 3, 3, 8.0),
        ("torus", 3, 1, 32.0),
    ):
        task = SignalRepresentation(data=str(path), test=10).load() if path == "torus" else None
        task = task or SignalRepresentation(data=str(path)).load()
        config = task.complete(recipes.parse(TREE).model)
        assert (config.inputs, config.outputs) == (inputs, outputs)
        assert config.scale == pytest.approx(scale)
        assert suggest_scale(task.signal.field, sines=True) == config.scale / 2


def test_the_frequencies_suit_what_is_between_the_learned_pixels(png):
    task = SignalRepresentation(data=str(png), split="quarter").load()
    config = task.complete(recipes.parse(TREE).model)
    assert config.scale == 16 / 4


def test_a_model_for_another_signal_is_refused(png):
    task = SignalRepresentation(data=str(png)).load()
    with pytest.raises(ValueError, match=r"model.outputs is 3, and waves.png has 1"):
        task.complete(recipes.parse(TREE, ["--model.outputs", "3"]).model)
    other = recipes.parse({**TREE, "model": {"name": "dense"}, "reuse": False})
    with pytest.raises(ValueError, match="no network of coordinates"):
        task.complete(other.model)


def test_size_channels_and_parts(png, wav, film):
    field = SignalRepresentation(data=str(png), size=8, channels=3).load().signal.field
    assert field.shape == (6, 8) and field.channels == 3
    field = SignalRepresentation(data=str(film), size=4, channels=1, start=1, frames=2).load()
    assert field.signal.field.shape == (2, 3, 4) and field.signal.field.channels == 1
    whole = SignalRepresentation(data=str(film)).load()
    assert field.checksum != whole.checksum
    sound = SignalRepresentation(data=str(wav), rate=4000, start=0.01, seconds=0.02).load()
    assert sound.signal.field.shape == (80,)


def test_grey_is_the_weighted_mean_of_colours(tmp_path):
    Image.fromarray(picture(channels=3)).save(tmp_path / "c.png")
    gray = SignalRepresentation(data=str(tmp_path / "c.png"), channels=1).load().signal
    r, g, b = picture(channels=3).astype(float).transpose(2, 0, 1)
    want = 0.299 * r + 0.587 * g + 0.114 * b
    assert gray.field.restore(gray.values)[..., 0].numpy() == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 1.0}, "seconds is for sounds, and waves.png is an image"),
        ({"noise": 0.1}, "noise is for shapes"),
        ({"signal": "camera"}, "waves.png, a single signal"),
        ({"size": 1}, "size must be at least 2"),
        ({"channels": 2}, "channels must be 1, 3 or null"),
        ({"near": 1.5}, r"near must lie in \[0, 1\]"),
        ({"split": "half"}, "split must be whole or quarter; got half"),
    ],
)
def test_impossible_options_are_refused(png, options, message):
    with pytest.raises(ValueError, match=message):
        SignalRepresentation(data=str(png), **options).load()


def test_data_that_are_none_are_refused(tmp_path, wav):
    with pytest.raises(ValueError, match="--data FILE"):
        SignalRepresentation(data=None).load()
    with pytest.raises(ValueError, match="no file camra, and no data set"):
        SignalRepresentation(data="camra").load()
    with pytest.raises(DataError, match="cannot be read"):
        SignalRepresentation(data=str(tmp_path / "none.png")).load()
    with pytest.raises(ValueError, match="split is for images"):
        SignalRepresentation(data=str(wav), split="quarter").load()
    with pytest.raises(ValueError, match="gradient, and s is a sound"):
        t = torch.arange(40.0)[:, None]
        GridTask(Signal.of("sound", t.sin(), "s", rate=8.0), "s", fit="gradient")


def test_a_file_is_named_by_its_path_and_a_set_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = SignalRepresentation(data="photographs", signal="camera")
    assert task.at("cat.png").data == str(tmp_path / "cat.png")
    assert task.at("cat.png").signal is None
    assert task.at("street").data == "street" and task.at("knot").data == "knot"
    assert task.at("photographs") == task


# --- batches and figures -------------------------------------------------------------------------


def test_a_full_batch_is_the_signal_in_its_order():
    signal = image()
    task = GridTask(signal, "waves")
    batch = task.feed(task.whole(), 0).batch(7)
    assert batch.numbers is None and task.numbered == len(batch.inputs) == 192
    assert torch.equal(batch.inputs, signal.points[:])
    assert torch.equal(batch.targets["values"], signal.targets)
    shares = [task.feed(192, 0).batch(0, Part(k, 3)) for k in range(3)]
    assert torch.equal(torch.cat([each.inputs for each in shares]), batch.inputs)
    assert torch.cat([each.numbers for each in shares]).tolist() == list(range(192))


def test_parts_of_a_batch_are_a_function_of_the_step():
    signal = image()
    task = GridTask(signal, "waves")
    one, other = (task.feed(48, 3) for _ in range(2))
    seen = []
    for step in (5, 4, 0, 1, 2, 3):
        batch, same = one.batch(step), other.batch(step)
        assert torch.equal(batch.inputs, same.inputs)
        assert torch.equal(signal.points[batch.numbers], batch.inputs)
        assert torch.equal(signal.targets[batch.numbers], batch.targets["values"])
        seen += batch.numbers.tolist() if step < 4 else []
    assert sorted(seen) == list(range(192))


def test_a_quarter_is_learned_and_another_one_evaluated():
    signal = image()
    task = GridTask(signal, "waves", split="quarter")
    train, test = signal.quarters()
    batch = task.feed(task.whole(), 0).batch(0)
    assert torch.equal(batch.inputs, signal.points[train])
    (held,) = task.batches("test", 1000)
    assert torch.equal(held.targets["values"], signal.targets[test])
    assert task.numbered == 48


@pytest.mark.parametrize("kind", ["image", "sound", "film"])
def test_psnr_adds_up_over_chunks_to_that_of_the_signal(kind):
    shape = {"image": (8, 10, 3), "sound": (80, 2), "film": (3, 5, 6, 1)}[kind]
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator).clamp(-1.5, 1.5)
    signal = Signal.of(kind, values, "noise", rate=None if kind == "image" else 10.0)
    task = GridTask(signal, "noise")
    sums = {}
    found = []
    for batch in task.batches("test", 7):
        target = batch.targets["values"]
        output = target + 0.3 * torch.randn(target.shape, generator=generator)
        found.append(output)
        for name, each in task.sums(None, output, batch.targets).items():
            sums[name] = sums.get(name, 0) + each
    assert task.figures({"loss": torch.zeros(()), "units": torch.ones(()), **sums})[
        "psnr"
    ] == pytest.approx(signal.psnr(torch.cat(found)), rel=1e-9)


def test_the_loss_is_the_mean_squared_error():
    task = GridTask(image(channels=3), "waves")
    batch = task.sample("train", 20)
    output = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    loss = task.loss(None, output, batch.targets) / task.units(batch.targets)
    assert loss == pytest.approx(float((output - batch.targets["values"]).square().mean()))


# --- from gradients ------------------------------------------------------------------------------


def test_slopes_are_the_differences_of_neighbours():
    signal = image()
    task = GridTask(signal, "waves", fit="gradient")
    slopes = task.batches("test", 192).__next__().targets["slopes"].reshape(12, 16, 1, 2)
    v = signal.values[..., 0]
    assert torch.allclose(slopes[3, 4, 0], torch.stack([v[4, 4] - v[2, 4], v[3, 5] - v[3, 3]]) / 2)
    assert slopes[0, 0, 0, 1] == pytest.approx(float(v[0, 1] - v[0, 0]))


def test_the_loss_of_a_gradient_is_by_the_exact_adjoint(png):
    tree = tree_of(png, fit="gradient") | {"reuse": False}
    trainer = trainer_of(tree, "--solver.rtol", "1e-6", "--solver.max_evals", "300")
    task, batch = trainer.task, trainer.batch()
    slopes = gradient(trainer.model, batch.inputs) * torch.tensor([2 / 11, 2 / 15])
    want = (slopes - batch.targets["slopes"]).square().mean((1, 2)).sum()
    found = task.loss(trainer.model, None, batch.targets)
    assert found.item() == pytest.approx(want.item(), rel=1e-3)
    found.backward()  # of several processes each waits for the gradients of all parameters
    grads = {name: each.grad for name, each in trainer.model.named_parameters()}
    assert all(each is not None for each in grads.values()) and not grads["head.bias"].any()


def test_an_image_is_learned_from_its_gradient_up_to_a_constant(png):
    for base in (TREE, EXPLICIT):
        tree = tree_of(png, base, fit="gradient") | {"reuse": False}
        trainer = trainer_of(tree, "--optimizer.lr", "0.05")
        before = trainer.evaluate("test")
        after = steps(trainer, 30).evaluate("test", (1, 2))
        assert after["psnr"] > before["psnr"] + 6 and "at" not in after
        # The constant is free: moving the answer changes nothing.
        with torch.no_grad():
            trainer.model.head.bias += 3.0
        assert trainer.evaluate("test")["psnr"] == pytest.approx(after["psnr"], abs=0.01)


def test_a_layer_that_learned_a_gradient_is_examined_by_its_values(png):
    task = SignalRepresentation(data=str(png), fit="gradient", split="quarter").load()
    other = task.task_for_doctor()
    assert other.fit == "values" and other.early and other.numbered == 48
    assert other.task_for_doctor() is other


def test_a_loss_of_gradients_takes_no_states_on_the_way(png):
    tree = tree_of(png, fit="gradient")
    with pytest.raises(TrainingError, match="fit is gradient"):
        trainer_of(tree)
    tree |= {"reuse": False, "correction": {"name": "FixedPointCorrection", "count": 1}}
    with pytest.raises(TrainingError, match="correction"):
        trainer_of(tree)


# --- shapes --------------------------------------------------------------------------------------


def shape_tree(**changes):
    tree = tree_of("torus", test=400) | {"reuse": False, "batch_size": 300}
    return tree | changes


def test_points_of_a_shape_are_a_function_of_the_step():
    task = SignalRepresentation(data="torus", near=0.25, test=50).load()
    feed, again = (task.feed(80, 1) for _ in range(2))
    first, second = feed.batch(0), feed.batch(1)
    assert not torch.equal(first.inputs, second.inputs)
    assert torch.equal(again.batch(1).inputs, second.inputs)
    assert int(second.targets["near"].sum()) == 20
    assert torch.equal(task.signal.inside(second.inputs), second.targets["inside"])
    shares = [again.batch(1, Part(k, 2)) for k in range(2)]
    assert [int(each.targets["near"].sum()) for each in shares] == [10, 10]
    assert sorted(torch.cat([each.inputs for each in shares]).tolist()) == sorted(
        second.inputs.tolist()
    )


def test_points_of_a_shape_follow_both_seeds_and_none_is_evaluated():
    def points(seed=0, data_seed=0):
        task = SignalRepresentation(data="torus", test=20, data_seed=data_seed).load()
        return task.feed(40, seed).batch(0).inputs, task.test[0]

    learned, evaluated = points()
    assert not {*map(tuple, learned.tolist())} & {*map(tuple, evaluated.tolist())}
    other, same = points(seed=1)
    assert not torch.equal(other, learned) and torch.equal(same, evaluated)
    assert not any(map(torch.equal, points(data_seed=1), (learned, evaluated)))


def test_a_shape_is_learned_and_judged_near_its_surface():
    quick = ("--solver.rtol", "0.1", "--optimizer.lr", "0.02")
    trainer = trainer_of(shape_tree(), "--model.scale", "4", "--task.noise", "0.05", *quick)
    steps(trainer, 160)
    found = trainer.evaluate("test")
    assert found["points"] == 800 and found["iou_cube"] > 0.6 and found["loss"] < 0.5
    task = trainer.task
    inputs, targets = task.test
    trainer.model.eval()
    with torch.no_grad():
        told = trainer.model(inputs).output
    near = signals.Occupancy(inputs[:400], targets["inside"][:400])
    assert found["iou"] == pytest.approx(task.signal.near_surface_iou(told[:400], near))


def test_shapes_refuse_what_does_not_fit_them():
    with pytest.raises(TrainingError, match="drawn anew in each step"):
        trainer_of(shape_tree(reuse=True))
    with pytest.raises(ValueError, match="batch_size is all, and the points of a shape"):
        trainer_of(shape_tree(batch_size="all"))


# --- reuse ---------------------------------------------------------------------------------------


def test_a_step_takes_one_evaluation_and_the_record_says_so(png):
    trainer = steps(trainer_of(tree_of(png)), 5)
    assert trainer.reuse.cache.bytes == trainer.reuse.bytes == 192 * (4 * 16 + 1)
    first = trainer.finish_epoch()
    assert first["reuse"]["solves"] == 1 and first["reuse"]["bytes"] == trainer.reuse.bytes
    found = steps(trainer, 5).reuse.state()["overall"]
    record = trainer.finish_epoch()
    assert record["train"]["forward"]["evals"]["max"] == 1
    mean = pytest.approx(sum(found) / 5)
    assert record["reuse"]["residual"] == {"mean": mean, "max": max(found), "last": found[-1]}
    assert min(found) > 0 and record["reuse"]["solves"] == 0
    # Evaluation solves from zero, to its own tolerance.
    assert record["test"]["forward"]["evals"]["mean"] > 3
    assert record["test"]["forward"]["status"]["CONVERGED"] == 1.0


def test_reuse_and_solves_end_alike(png):
    kept = steps(trainer_of(tree_of(png), "--optimizer.lr", "3e-3"), 75).evaluate("test")
    solved = steps(trainer_of(tree_of(png), "--optimizer.lr", "3e-3", "--reuse", "false"), 75)
    assert solved.reuse is None
    assert kept["psnr"] > 25
    assert kept["psnr"] == pytest.approx(solved.evaluate("test")["psnr"], abs=0.1)


def test_mini_batches_are_solved_until_each_sample_is_known(png):
    trainer = trainer_of(tree_of(png), "--batch_size", "48")
    assert trainer.feed.steps == 4
    record = steps(trainer, 6).finish_epoch()
    assert record["reuse"]["solves"] == 4
    assert steps(trainer, 4).finish_epoch()["train"]["forward"]["evals"]["max"] == 1


def test_two_starts_lead_to_one_equilibrium(png):
    trainer = steps(trainer_of(tree_of(png)), 20)
    x = trainer.batch().inputs
    model = trainer.model.eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        zero = model(x).output
        other = model(x, z0=3 * torch.randn(len(x), 16, generator=generator)).output
    assert torch.allclose(zero, other, atol=1e-3)
    norm = torch.linalg.matrix_norm(model.deq.cell.layers[0].weight, 2)
    assert norm <= 0.9701


def test_chunks_of_an_evaluation_change_nothing(png):
    figures = [
        steps(trainer_of(tree_of(png), "--eval_batch_size", size), 5).evaluate("test")["psnr"]
        for size in ("7", "192")
    ]
    assert figures[0] == pytest.approx(figures[1], abs=1e-3)


def test_micro_batches_take_the_same_steps(png):
    whole = steps(trainer_of(tree_of(png)), 4)
    parts = steps(trainer_of(tree_of(png), "--accumulate", "3"), 4)
    assert parts.reuse.cache.known()
    states = [each.reuse.cache.read() for each in (whole, parts)]
    assert torch.allclose(*states, atol=1e-4)


def test_states_are_kept_by_one_process(png):
    trainer = trainer_of(tree_of(png))
    several: Any = SimpleNamespace(num_processes=2, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="there are 2 processes"):
        Reuse(trainer.task, trainer.model, several)


def test_states_stay_in_float32_under_autocast(png):
    trainer, seen = trainer_of(tree_of(png), "--precision", "bf16"), set()
    layer = trainer.model.deq.cell.layers[0]
    layer.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    steps(trainer, 3)
    assert seen == {torch.bfloat16}
    assert trainer.reuse.cache.read().dtype == torch.float32
    assert math.isfinite(trainer.finish_epoch()["reuse"]["residual"]["last"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--adjoint.name", "Phantom"], "adjoint is Phantom, and reuse takes one evaluation"),
        (["--regularizer.gamma", "0.1"], "regularizer needs a solve"),
        (["--correction.count", "1"], "correction needs a solve"),
    ],
)
def test_a_recipe_that_needs_a_solve_refuses_reuse(options, message):
    with pytest.raises(ConfigError, match=message):
        recipes.parse(TREE, options)


def test_explicit_networks_and_other_tasks_refuse_reuse(tree, png):
    with pytest.raises(ConfigError, match="explicit network, which has no state to begin at"):
        recipes.parse(EXPLICIT, ["--reuse", "true"])
    with pytest.raises(TrainingError, match="reuse is true, but"):
        trainer_of(tree, "--reuse", "true")
    trainer = steps(trainer_of(tree_of(png, EXPLICIT), "--model.bound", "0.5"), 3)
    assert torch.linalg.matrix_norm(trainer.model.cell.layers[1].weight, 2) <= 0.5001


def test_a_recipe_without_reuse_is_the_recipe_of_before(tree):
    assert "reuse" not in recipes.decisive(recipes.parse(tree))
    assert recipes.decisive(recipes.parse(TREE))["reuse"] is True


# --- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["all", 48])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(tmp_path, png, size):
    recipe = recipes.parse(tree_of(png) | {"batch_size": size, "checkpoint": {"every": 1}})
    train(recipe, tmp_path / "whole")
    taken = iter(range(100))
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "cut", stop=lambda: next(taken) == 6)
    train(recipe, tmp_path / "cut", resume=True)
    one, other = (tmp_path / name for name in ("whole", "cut"))
    weights = [load_file(path / "model.safetensors") for path in (one, other)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    kept = [Folder(path).checkpoints.newest(print).parts["processes"][0] for path in (one, other)]
    caches = [each["reuse"]["cache"] for each in kept]
    assert caches[0]["states"].shape == (192, 16)
    assert all(torch.equal(caches[0][key], caches[1][key]) for key in ("states", "known"))
    records = [Folder(path).read_metrics() for path in (one, other)]
    for record in (*records[0], *records[1]):
        del record["seconds"], record["throughput"]
    assert records[0] == records[1]


def test_a_run_by_the_command_line(tmp_path, png, capsys):
    run = tmp_path / "run"
    words = ["--epochs", "2", "--epoch-steps", "15", "--model.width", "16", "--out", str(run)]
    assert main(["train", "image", "--data", str(png), "--task.size", "16", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "waves.png, 12 x 16" in said
    assert "the states of 192 samples are kept from step to step" in said
    assert main(["evaluate", str(run)]) == 0
    assert "PSNR" in capsys.readouterr().out
    found = json.loads((run / "evaluation.json").read_text())
    loaded = load(run)
    points = loaded.task.signal.points[:]
    with torch.no_grad():
        assert loaded.task.signal.psnr(loaded.model(points).output) == pytest.approx(
            found["psnr"], abs=1e-3
        )
    described = Described.read(run)
    assert described.name == "waves.png" and described.field == loaded.task.signal.field
    assert math.isfinite(found["psnr"])


def test_a_moved_file_is_found_and_a_changed_one_refused(tmp_path, png):
    run = tmp_path / "run"
    train(recipes.parse(tree_of(png) | {"epochs": 1}), run)
    (tmp_path / "elsewhere").mkdir()
    shutil.move(png, tmp_path / "elsewhere")
    assert load(run, data_dir=tmp_path / "elsewhere").task.source.startswith("waves.png")
    Image.fromarray(255 - picture()[..., 0]).save(png)
    with pytest.raises(RuntimeError, match="data"):
        load(run)


def test_a_damaged_description_is_refused(tmp_path, png):
    SignalRepresentation(data=str(png)).load().save(tmp_path)
    path = tmp_path / "signal.json"
    content = json.loads(path.read_text())
    for text in ("[]", "{", json.dumps({**content, "field": {"kind": "image"}})):
        path.write_text(text)
        with pytest.raises(DataError, match=r"signal\.json"):
            Described.read(tmp_path)
