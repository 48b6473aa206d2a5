"""`equilibria encode`: from a file to a small file, stopped and continued, and what it refuses."""

import json
import re
import signal as signals_of_system
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from small_signals import network, signal

from equilibria.cli import encode as command
from equilibria.cli.main import main
from equilibria.data.signals import (
    ShapeField,
    read_image,
    read_shape,
    solid,
    write_mesh,
    write_sound,
)
from equilibria.data.signals.image import write_image
from equilibria.data.signals.shape import NOISE
from equilibria.predict.representation import load
from equilibria.predict.representation.encoding import encode, measure, offset
from equilibria.train.folder import Folder

QUICK = ("--width", "16", "--steps", "4")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_image("a.png", signal().values)
    return tmp_path


def run(*words, status=0):
    assert main(["encode", *map(str, words)]) == status


def refused(capsys, *words):
    """The message of a command that fails, in one line."""
    capsys.readouterr()
    run(*words, status=1)
    error = capsys.readouterr().err
    assert error.startswith("equilibria encode: error: ") and error.count("\n") == 1
    assert "bug" not in error
    return error


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def test_an_image_becomes_a_small_file(here, capsys):
    run("a.png", "-o", "b.inr", *QUICK, "--seed", "3")
    said = capsys.readouterr().out
    assert names(here) == ["a.png", "b.inr"]
    found, image = load("b.inr"), read_image("a.png")
    assert found.field == image.field and found.about["name"] == "a.png"
    assert found.about["model"]["width"] == 16
    size = (here / "b.inr").stat().st_size
    assert f"{size:,} bytes, {8 * size / 108:.3g} bits per pixel" in said
    psnr = measure(found, image)["quality"]["psnr"]
    assert found.about["quality"]["psnr"] == pytest.approx(psnr, abs=1e-6)
    assert f"PSNR {psnr:.2f} dB, all converged" in said
    assert said.rstrip().endswith("Written to b.inr. Decode it: equilibria decode b.inr")


def test_a_shape_is_measured_where_it_was_trained(here, capsys):
    pytest.importorskip("trimesh")
    ball = solid("torus")
    write_mesh("a.ply", ball.mesh)
    run("a.ply", *QUICK, "--run", "kept", "--batch-size", "64", "--task.test", "4000")
    said = capsys.readouterr().out
    found = load("a.inr")
    quality = found.about["quality"]
    assert quality["noise"] == Folder(here / "kept").read_recipe().task.noise != NOISE
    shape = read_shape("a.ply")
    assert measure(found, shape)["quality"] == pytest.approx(quality)
    trained = re.findall(r"test IoU near the surface ([\d.]+) %", said.replace("\n", " "))
    assert float(trained[-1]) == pytest.approx(100 * quality["iou"], abs=3)
    # The same mesh elsewhere in space: its inside is looked for where it is.
    there = replace(found, field=ShapeField(centre=(9.0, 9.0, 9.0), scale=shape.field.scale))
    assert measure(there, shape)["quality"]["iou"] != pytest.approx(quality["iou"], abs=0.01)


def test_the_run_can_be_kept_and_keys_of_the_recipe_are_options(here, capsys):
    words = ["a.png", *QUICK, "--run", "kept", "--optimiser.lr", "2e-3", "--model.name", "isiren"]
    run(*words, "--quiet")
    assert capsys.readouterr().out == "a.inr\n"
    recipe = Folder(here / "kept").read_recipe()
    assert recipe.optimiser.lr == 2e-3 and recipe.epochs * recipe.epoch_steps == 4
    assert recipe.task.data == str(here / "a.png") and recipe.task.size is None
    assert load("a.inr").about["model"]["name"] == "isiren"
    # The same training again takes none.
    run(*words, "--overwrite")
    assert "there is nothing to resume" in capsys.readouterr().out
    error = refused(capsys, *words[:-1], "imfn", "--overwrite")
    assert "kept belongs to an earlier encoding" in error


def test_pictures_are_brought_to_a_size(capsys):
    run("a.png", *QUICK, "--size", "6")
    assert load("a.inr").field.shape == (4, 6)
    assert "an image of 4 x 6 x 1" in capsys.readouterr().out
    assert main(["decode", "a.inr", "--compare", "a.png"]) == 0
    psnr = load("a.inr").about["quality"]["psnr"]
    assert f"PSNR {psnr:.2f} dB against a.png" in capsys.readouterr().out


def test_a_sound_a_film_and_a_part_of_it(here, capsys):
    tone = signal("sound")
    write_sound("a.wav", tone.values, tone.field)
    run("a.wav", *QUICK)
    field = load("a.inr").field
    assert (field.kind, field.shape, field.rate) == ("sound", (40,), 100.0)
    assert "bits per sample" in capsys.readouterr().out
    folder = here / "frames"
    folder.mkdir()
    for k, frame in enumerate(signal("film").values):
        write_image(folder / f"{k}.png", frame)
    run("frames", *QUICK)
    assert load("frames.inr").field.shape == (3, 6, 8)
    run("frames", "-o", "two.inr", *QUICK, "--task.frames", "2")
    assert load("two.inr").field.shape == (2, 6, 8)


def test_the_next_frame_begins_with_the_last(here, capsys):
    run("a.png", *QUICK)
    begun = load("a.inr")
    write_image("b.png", signal().values.flip(0))
    run("b.png", "--from", "a.inr", "--steps", "1", "--optimiser.lr", "1e-9")
    capsys.readouterr()
    found = load("b.inr")
    assert found.about["model"] == begun.about["model"]
    mine, its = found.model.state_dict(), begun.model.state_dict()
    for name, value in mine.items():
        torch.testing.assert_close(value, its[name], rtol=1e-4, atol=1e-6)
    assert names(here) == ["a.inr", "a.png", "b.inr", "b.png"]
    assert "leave out --width" in refused(capsys, "b.png", "--from", "a.inr", "-o", "c.inr", *QUICK)
    words = ["b.png", "--from", "a.inr", "-o", "c.inr", "--model.layers", "2"]
    assert "leave out --model.layers" in refused(capsys, *words)
    tone = signal("sound")
    write_sound("a.wav", tone.values, tone.field)
    error = refused(capsys, "a.wav", "-o", "c.inr", "--from", "a.inr")
    assert "--from: a.inr is an image of 9 x 12 x 1, not a sound" in error
    assert "--out would replace" in refused(capsys, "b.png", "-o", "a.inr", "--from", "a.inr")
    write_image("c.png", signal(channels=3).values)
    error = refused(capsys, "c.png", "--from", "a.inr", "-o", "c.inr")
    assert "c.png is an image of 9 x 12 x 3" in error and "--task.channels 1" in error
    run("c.png", "--from", "a.inr", "-o", "c.inr", "--steps", "1", "--task.channels", "1")


def test_an_explicit_network_can_be_begun_with(here):
    encode(here / "b.inr", network(signal().field, "mfn"), signal())
    run("a.png", "--from", "b.inr", "--steps", "2")
    assert load("a.inr").about["model"]["name"] == "mfn"


def test_a_signal_leaves_no_file_and_the_same_command_continues(here, monkeypatch, capsys):
    whole = ["a.png", "-o", "b.inr", *QUICK, "--quiet"]
    run(*whole)
    expected = (here / "b.inr").read_bytes()
    (here / "b.inr").unlink()
    from equilibria.train.trainer import Trainer

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
    monkeypatch.setattr(Trainer, "train_step", lambda self: (step(self), taken.append(self.step)))
    run(*whole)
    assert taken == [1, 2, 3, 4]
    assert names(here) == ["a.png", "b.inr"]
    assert (here / "b.inr").read_bytes() == expected


def test_a_gradient_is_fitted_up_to_a_constant_which_is_added():
    image = signal(channels=2)
    model = network(image.field)
    offset(model, image, chunk=50)
    with torch.no_grad():
        found = model(image.points[:]).output
    torch.testing.assert_close(found.mean(0), image.targets.mean(0), rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_into_memory_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(command, "free_bytes", lambda device: 1000.0)
    error = refused(capsys, "a.png", *QUICK)
    assert "the states of 108 points take 7 kB, but 1 kB are free" in error and "--size" in error


def test_large_signals_are_learned_in_batches(here, monkeypatch, capsys):
    monkeypatch.setattr(command, "BATCH", 50)
    run("a.png", *QUICK, "--run", "one")
    assert Folder(here / "one").read_recipe().batch_size == 50
    run("a.png", "-o", "b.inr", *QUICK, "--run", "two", "--batch-size", "30")
    assert Folder(here / "two").read_recipe().batch_size == 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.png", "-o", "b.png"], "--out: encoded signals are .inr files; got b.png"),
        (["a.png", "--steps", "0"], "--steps must be 1 or more; got 0"),
        (["a.png", "--steps", "4", "--epochs", "2"], "--steps and --epochs were both given"),
        (["a.png", "--width", "4", "--model.width", "8"], "--width and --model.width were both"),
        (["a.png", "--recipe", "digits"], "recipe digits is not for signals"),
        (["a.png", "--task.seconds", "2"], "seconds is for sounds, and a.png is an image"),
        (["a.png", "--size", "1"], "size must be at least 2; got 1"),
        (["no.png"], "no.png"),
        (["a.png", "--from", "a.png"], "a.png is no .inr file"),
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


def test_the_run_says_with_what_it_was_begun(here):
    run("a.png", *QUICK, "--run", "kept")
    info = json.loads((here / "kept" / "run.json").read_text())
    assert info["command"][0] == "image"
