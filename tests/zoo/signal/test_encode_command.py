"""`equilibria encode`: from a file to a small file, stopped and continued, and what it refuses."""

import signal as signals_of_system
from functools import partial

import numpy as np
import pytest
import small_signals
import torch
from PIL import Image
from small_signals import network, refusal, signal

from equilibria.run import recipe as recipes
from equilibria.zoo.signal.commands import encode as command
from equilibria.zoo.signal.data import read_image, solid, write_mesh, write_sound
from equilibria.zoo.signal.data.files import write_image
from equilibria.zoo.signal.predict import encode, load

QUICK = ("--model.width", "16", "--epochs", "1", "--epoch-steps", "4")
TRAIN = command.train


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_image("a.png", signal().values)
    return tmp_path


run = partial(small_signals.run, "encode")
refused = partial(refusal, "encode")


@pytest.mark.parametrize("size", [48, 96])
def test_the_file_takes_no_more_than_the_samples(here, asked, capsys, size):
    """Two photographs of which the larger one gets the wider network."""
    noise = torch.rand(size, size, 3, generator=torch.Generator().manual_seed(0))
    write_image("c.png", 2 * noise - 1)
    run("c.png", "--epochs", "1", "--epoch-steps", "2")
    raw, written = 3 * size**2, (here / "c.inr").stat().st_size
    assert raw / 2 < written <= raw and f"{raw:,} bytes of samples" in capsys.readouterr().out
    assert asked[0].model.width == load("c.inr").about["model"]["width"]


def test_the_next_signal_is_as_wide_as_the_one_it_starts_from(here, asked):
    noise = torch.rand(64, 64, 3, generator=torch.Generator().manual_seed(0))
    write_image("c.png", 2 * noise - 1)
    quick = ("--epochs", "1", "--epoch-steps", "2")
    run("c.png", *quick)
    run("a.png", *quick, "--init-from", "c.inr")
    wide, next_ = (each.model.width for each in asked)
    assert wide == next_ > command.LEAST_WIDTH


def test_a_file_larger_than_its_samples_is_named(here, capsys):
    run("a.png", "--epochs", "1", "--epoch-steps", "2")
    assert load("a.inr").about["model"]["width"] == command.LEAST_WIDTH
    assert "larger than the" in capsys.readouterr().out


def names(folder):
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def asked(monkeypatch):
    """The recipes that are trained."""
    found = []

    def train(recipe, *rest, **options):
        found.append(recipe)
        return TRAIN(recipe, *rest, **options)

    monkeypatch.setattr(command, "train", train)
    return found


def test_an_image_becomes_a_small_file(here, capsys):
    run("a.png", "-o", "b.inr", *QUICK, "--seed", "3")
    said = capsys.readouterr().out
    assert names(here) == ["a.png", "b.inr"]
    found, image = load("b.inr"), read_image("a.png")
    assert found.field == image.field and found.about["name"] == "a.png"
    assert found.about["model"]["width"] == 16
    psnr = image.psnr(found.decode(image.points).values)
    assert found.about["quality"]["psnr"] == pytest.approx(psnr, abs=1e-6)
    size = (here / "b.inr").stat().st_size
    assert f"Written to b.inr, {size:,} bytes for 108 bytes of samples, " in said
    assert f"PSNR {psnr:.2f} dB. Decode it: " in said
    assert said.rstrip().endswith("equilibria decode b.inr")


def test_a_shape_is_measured_where_it_was_trained(capsys):
    pytest.importorskip("trimesh")
    write_mesh("a.ply", solid("torus").mesh)
    run("a.ply", *QUICK, "--batch-size", "64", "--task.test", "4000")
    quality = load("a.inr").about["quality"]
    assert quality["noise"] == recipes.load("shape").task.noise
    assert f"IoU {100 * quality['iou']:.2f} % near the surface" in capsys.readouterr().out


def test_keys_of_the_recipe_are_options(here, asked, capsys):
    run("a.png", *QUICK, "--optimizer.lr", "2e-3", "--model.name", "isiren", "--quiet")
    assert capsys.readouterr().out == "a.inr\n"
    (recipe,) = asked
    assert recipe.optimizer.lr == 2e-3 and recipe.epochs * recipe.epoch_steps == 4
    assert recipe.task.data == str(here / "a.png") and recipe.task.size is None
    assert load("a.inr").about["model"]["name"] == "isiren"


def test_pictures_are_brought_to_a_size(capsys):
    run("a.png", *QUICK, "--task.size", "6")
    assert load("a.inr").field.shape == (4, 6)
    assert "an image of 4 x 6 x 1" in capsys.readouterr().out


def test_a_sound_a_film_and_a_part_of_it(here):
    tone = signal("sound")
    write_sound("a.wav", tone.values, tone.field)
    run("a.wav", *QUICK)
    field = load("a.inr").field
    assert (field.kind, field.shape, field.rate) == ("sound", (40,), 100.0)
    folder = here / "frames"
    folder.mkdir()
    for k, frame in enumerate(signal("film").values):
        write_image(folder / f"{k}.png", frame)
    run("frames", *QUICK)
    assert load("frames.inr").field.shape == (3, 6, 8)
    run("frames", "-o", "two.inr", *QUICK, "--task.frames", "2")
    assert load("two.inr").field.shape == (2, 6, 8)


def test_the_next_frame_begins_with_the_last():
    run("a.png", *QUICK)
    write_image("b.png", signal().values.flip(0))
    run("b.png", *QUICK, "--init-from", "a.inr", "--optimizer.lr", "1e-9")
    mine, its = (load(name).model.state_dict() for name in ("b.inr", "a.inr"))
    for name, value in mine.items():
        torch.testing.assert_close(value, its[name], rtol=1e-4, atol=1e-6)


def test_a_signal_leaves_no_file_and_the_same_command_continues(here, monkeypatch, capsys):
    whole = ["a.png", "-o", "b.inr", *QUICK, "--quiet"]
    run(*whole)
    expected = (here / "b.inr").read_bytes()
    (here / "b.inr").unlink()
    from equilibria.run.trainer import Trainer

    step = Trainer.train_step
    taken = []

    def stopping(self):
        step(self)
        taken.append(self.step)
        if self.step == 2:
            signals_of_system.raise_signal(signals_of_system.SIGTERM)  # SIGINT may be ignored

    monkeypatch.setattr(Trainer, "train_step", stopping)
    run(*whole, status=75)
    error = capsys.readouterr().err
    assert "stopped before b.inr was written" in error and "the same command continues" in error
    assert names(here) == ["a.png", "b.inr.run"]
    error = refused(capsys, *whole, "--optimizer.lr", "1")
    assert "b.inr.run belongs to an earlier encoding" in error
    monkeypatch.setattr(Trainer, "train_step", lambda self: (step(self), taken.append(self.step)))
    run(*whole)
    assert taken == [1, 2, 3, 4]
    assert names(here) == ["a.png", "b.inr"]
    assert (here / "b.inr").read_bytes() == expected


def test_what_does_not_fit_into_memory_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(command, "free_bytes", lambda device: 1000.0)
    error = refused(capsys, "a.png", *QUICK)
    assert "108 points take 0.0 MiB, but 0.0 MiB are free" in error and "--task.size" in error


def test_large_signals_are_learned_in_batches(monkeypatch, asked):
    monkeypatch.setattr(command, "BATCH", 50)
    run("a.png", *QUICK)
    run("a.png", "-o", "b.inr", *QUICK, "--batch-size", "30")
    assert [recipe.batch_size for recipe in asked] == [50, 30]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.png", "-o", "b.png"], "--out: encoded signals are .inr files; got b.png"),
        (["a.png", "--steps", "4"], "unknown option '--steps'"),
        (["a.png", "--task.fit", "gradient"], "--task.fit gradient leaves a constant open"),
        (["a.png", "--recipe", "digits"], "recipe digits is not for signals"),
        (["a.png", "--task.seconds", "2"], "seconds is for sounds, and a.png is an image"),
        (["a.png", "--task.size", "1"], "size must be at least 2, or be null; got 1"),
        (["no.png"], "no.png"),
        (["a.png", "--widht", "4"], "widht"),
        (["a.png", "--task.data", "b.png"], "--task.data sets the signal, which is a.png"),
        (["a.png", "--data", "b.png"], "--data sets the signal, which is a.png"),
        (["flat.png"], "flat.png is constant"),
        (["clear.png"], "clear.png is transparent in places"),
        (["deep.png"], "deep.png has more than 8 bits a channel"),
        (["one.png"], "one.png has 1 row"),
    ],
)
def test_what_cannot_be_encoded_is_refused(words, message, here, capsys):
    Image.fromarray(np.full((4, 4), 7, np.uint8)).save("flat.png")
    Image.fromarray(np.full((4, 4, 4), 7, np.uint8)).save("clear.png")
    Image.fromarray(np.arange(16, dtype=np.uint16).reshape(4, 4)).save("deep.png")
    Image.fromarray(np.arange(4, dtype=np.uint8).reshape(1, 4)).save("one.png")
    before = names(here)
    assert message in refused(capsys, *words)
    assert names(here) == before


def test_a_file_is_not_replaced_unasked(here, capsys):
    encode(here / "a.inr", network(signal().field), signal())
    assert "a.inr exists: replace it with --overwrite" in refused(capsys, "a.png", *QUICK)
