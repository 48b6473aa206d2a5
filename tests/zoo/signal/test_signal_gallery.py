"""What a report shows of a network that represents a signal."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from equilibria.run import gallery, memory, run
from equilibria.run.cli.main import main
from equilibria.run.run import Folder
from equilibria.zoo.signal import data as signals

WORDS = [
    *("--epochs", "1", "--epoch-steps", "3", "--model.width", "8", "--eval_batch_size", "50"),
    *("--quiet",),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("signals")


def trained(folder, recipe, data, *options):
    path = folder / recipe
    if not path.exists():
        words = [*WORDS, *options, "--data", str(data), "--out", str(path)]
        assert main(["train", recipe, *words]) == 0
    return path


@pytest.fixture(scope="module")
def photo(folder):
    y, x = np.mgrid[:10, :14]
    Image.fromarray(np.uint8((7 * x + 11 * y) % 256)).save(folder / "ramp.png")
    options = ["--model.name", "isiren", "--solver.rtol", "0.01", "--task.size", "14"]
    return trained(folder, "image", folder / "ramp.png", *options)


def opened(content):
    return Image.open(io.BytesIO(content))


def test_an_image_is_beside_its_reconstruction_and_the_evaluations_of_each_pixel(photo):
    loaded = run.load(photo)
    found = gallery.hang(loaded)
    (picture,) = found["pictures"]
    assert found["kind"] == "signal" and found["signal"] == "image"
    assert gallery.read(Folder(photo)) == found
    factor = opened(picture["files"]["image"]).size[0] // 14
    original = np.asarray(opened(picture["files"]["image"]))[::factor, ::factor]
    y, x = np.mgrid[:10, :14]
    assert np.array_equal(original, (7 * x + 11 * y) % 256)
    with torch.no_grad():
        solved = loaded.model(loaded.task.signal.points[:])
    told = np.asarray(opened(picture["files"]["told"]))[::factor, ::factor]
    values = solved.output.clamp(-1, 1).reshape(10, 14)
    assert np.abs(told - (values.numpy() + 1) * 127.5).max() < 1
    late = np.asarray(opened(picture["files"]["late"]))[::factor, ::factor]
    evals = solved.solution.stats.evals.reshape(10, 14)
    assert np.array_equal(late + found["scale"]["low"], evals.numpy())
    rms = float((values - loaded.task.signal.values[..., 0]).square().mean().sqrt()) / 2
    assert picture["error"] == pytest.approx(rms, rel=1e-4)
    error = np.asarray(opened(picture["files"]["error"]))
    assert error.min() < error.max()


def test_the_page_shows_it(photo):
    assert main(["report", str(photo), "--no-doctor", "--quiet"]) == 0
    text = " ".join(re.sub("<[^>]+>", "", (photo / "report.html").read_text()).split())
    assert "The image beside what the network makes of it." in text
    assert re.search(r"root mean square error \d+\.\d\d% of the range", text)
    assert "reconstruction" in text and "settled after" in text


def test_frames_of_a_film_and_sections_of_a_shape(folder):
    frames = torch.rand(5, 6, 8, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    signals.write_film(folder / "frames", frames)
    options = ["--task.size", "8", "--task.frames", "5", "--batch_size", "all"]
    film = gallery.hang(run.load(trained(folder, "film", folder / "frames", *options)))
    assert [each["name"] for each in film["pictures"]] == ["frame 0", "frame 2", "frame 4"]
    options = ["--batch_size", "100", "--task.test", "50"]
    shape = gallery.hang(run.load(trained(folder, "shape", "torus", *options)))
    assert [each["name"][-5:] for each in shape["pictures"]] == ["x = 0", "y = 0", "z = 0"]
    ring = np.asarray(opened(shape["pictures"][2]["files"]["image"]))
    centre, side = ring.shape[0] // 2, ring.shape[0]
    # A ring around z: hollow in the middle, full at two thirds of the way out.
    assert ring[centre, centre] == 0 and ring[centre, round(side * 0.84)] == 255


def test_a_sound_has_no_pictures(folder):
    t = torch.arange(300, dtype=torch.float64)[:, None]
    sound = signals.Signal.of("sound", (t / 7).sin(), "s", rate=8000.0)
    signals.write_sound(folder / "tone.wav", sound.values, sound.field)
    options = ["--task.rate", "null", "--task.seconds", "null"]
    path = trained(folder, "sound", folder / "tone.wav", *options)
    assert not gallery.has_pictures(Folder(path))
    assert gallery.hang(run.load(path)) is None
    assert main(["report", str(path), "--no-doctor", "--quiet"]) == 0
    assert (path / "report.html").is_file()


def test_the_memory_of_kept_states_is_told(photo, capsys, monkeypatch):
    monkeypatch.setattr(memory, "DEPTHS", (2,))
    assert main(["memory", str(photo)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "keeps the states of all samples from step to step: 0.0 MiB" in said
