"""`equilibria decode`: what it writes of each kind of signal, and what it refuses."""

import wave
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import small_signals
import torch
from PIL import Image
from small_signals import network, refusal, shape_field, signal

from equilibria.zoo.io.colors import flow_colors
from equilibria.zoo.signal.data import Signal, read_film, read_sound
from equilibria.zoo.signal.data.files import pixels_of, write_image
from equilibria.zoo.signal.predict import encode, load
from equilibria.zoo.signal.predict.file import Network, write
from equilibria.zoo.signal.predict.output import per_pixel


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def encoded(kind="image", name="imfn", channels=1, **changes):
    given = signal(kind, channels)
    encode(f"{kind}.inr", network(given.field, name, **changes), given)
    return f"{kind}.inr"


@pytest.fixture
def ball():
    """A shape whose inside is where the network's value is positive: an explicit one, set by hand
    to c - |x - mu|^2-like bumps."""
    field = shape_field()
    model = network(field, "mfn", filter="gabor", bound=None)
    with torch.no_grad():
        for part in (model.injection.first, model.injection.layers[0]):
            part.phases.weight.zero_()
            part.phases.bias.fill_(torch.pi / 2)
            part.mu.zero_()
            part.gamma.fill_(2.0)
        model.cell.layers[0].weight.copy_(torch.eye(16))
        model.cell.layers[0].bias.zero_()
        model.head.weight.zero_()
        model.head.weight[0, 0] = 1.0
        model.head.bias.fill_(-0.6)  # exp(-2 |x|^2) > .6
    about = {"name": "ball.obj", "field": field.as_dict(), "quality": {"iou": 1.0}}
    write(Path("ball.inr"), Network(model=model.config), model.state_dict(), about)
    return Path("ball.inr")


decode = partial(small_signals.run, "decode")
refused = partial(refusal, "decode")


def pixels(path):
    return np.array(Image.open(path))


# --- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_written_as_its_network_has_it(channels, capsys):
    path = encoded(channels=channels)
    decode(path, "-o", "a.png")
    found = load(path)
    expected = pixels_of(found.decode(found.field.points()).values)
    assert (pixels("a.png") == expected.squeeze(-1 if channels == 1 else ())).all()
    said = capsys.readouterr().out
    assert f"an image of 9 x 12 x {channels}, PSNR" in said
    assert said.splitlines()[-1] == "Written to a.png"


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        (["--size", "20x30"], (20, 30)),
        (["--scale", "3"], (27, 36)),
        (["--crop", "2,3,4,6"], (4, 6)),
        (["--crop", "2,3,4,6", "--scale", "2.5"], (10, 15)),
        (["--crop", "0,0,9,12", "--size", "5x4"], (5, 4)),
    ],
)
def test_any_size_and_any_part(words, shape):
    path = encoded()
    decode(path, "-o", "a.png", *words)
    options = dict(zip(words[::2], words[1::2], strict=True))
    box = options.get("--crop")
    found = load(path)
    points = found.field.points(size=shape, box=box and tuple(map(float, box.split(","))))
    assert pixels("a.png").shape == shape
    assert (pixels("a.png") == pixels_of(found.decode(points).values)[..., 0]).all()


def test_chunks_change_nothing():
    path = encoded()
    decode(path, "-o", "a.png", "--size", "45x60")
    decode(path, "-o", "b.png", "--size", "45x60", "--chunk", "50")
    difference = pixels("a.png").astype(int) - pixels("b.png")
    assert np.abs(difference).max() <= 1  # rounding, where a value lies between two levels


def test_derivatives_are_drawn_with_a_scale_that_is_said(capsys):
    path = encoded(channels=3)
    decode(path, "-o", "a.png", "--gradient", "--laplacian", "--scale", "2")
    said = capsys.readouterr().out
    found = load(path)
    points = found.field.points(size=(18, 24))
    slopes = per_pixel(found.gradient(points), found.field, 1)
    scale = np.percentile(slopes.norm(dim=-1), 99)
    assert f"a-gradient.png (saturated: {scale:.3g} levels per pixel)" in said
    # To the right is the first of a flow.
    expected = flow_colors(slopes.flip(-1).movedim(-1, 0).numpy(), scale).transpose(1, 2, 0)
    assert np.abs(pixels("a-gradient.png").astype(int) - expected).max() <= 2
    curved = per_pixel(found.hessian(points), found.field, 2)
    scale = np.percentile(curved.abs(), 99)
    assert f"a-laplacian.png (white: {scale:.3g} levels per pixel squared)" in said
    expected = (curved / scale).clamp(-1, 1) * 127.5 + 127.5
    assert np.abs(pixels("a-laplacian.png") - expected.numpy()).max() <= 2


@pytest.mark.parametrize("channels", [1, 3])
def test_derivatives_of_pictures_are_for_each_pixel_of_the_original(channels):
    found = load(encoded(channels=channels), dtype=torch.float64)
    found = replace(found, solver=replace(found.solver, rtol=1e-12, max_evals=500))
    shares = torch.tensor((0.299, 0.587, 0.114) if channels == 3 else (1.0,), dtype=torch.float64)
    # A hundredth of a pixel apart, in levels of the file.
    centre = torch.tensor([[4.0, 5.0]], dtype=torch.float64)
    size = torch.tensor([8.0, 11.0], dtype=torch.float64)

    def level(row, column):
        place = centre + torch.tensor([[row, column]], dtype=torch.float64)
        return float(found.field.restore(found.decode(2 * place / size - 1).values) @ shares)

    x = 2 * centre / size - 1
    h = 0.01
    down, right = (level(h, 0) - level(-h, 0)) / (2 * h), (level(0, h) - level(0, -h)) / (2 * h)
    slopes = per_pixel(found.gradient(x), found.field, 1)[0]
    assert slopes.tolist() == pytest.approx([down, right], rel=1e-2)
    around = level(h, 0) + level(-h, 0) + level(0, h) + level(0, -h) - 4 * level(0, 0)
    curved = per_pixel(found.hessian(x), found.field, 2)
    assert curved.tolist() == pytest.approx([around / h**2], rel=1e-2)


def test_points_that_do_not_converge_are_said(capsys):
    decode(encoded(), "-o", "a.png", "--max-evals", "2", "--gradient")
    said = capsys.readouterr().err
    assert "warning: 108 of 108 points did not converge" in said
    assert "their derivatives are inexact" in said and "fixed_point" not in said


def test_a_sound_too_loud_for_its_file_is_cut_with_a_warning(capsys):
    tone = signal("sound")
    loud = Signal.of("sound", 3 * tone.values, "loud.wav", rate=100.0)
    model = network(loud.field)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(0.5)
    encode("loud.inr", model, loud)
    decode("loud.inr", "-o", "a.wav")
    assert "40 samples exceed ±1, and are clipped in the file" in capsys.readouterr().err


def test_an_explicit_network_is_decoded_too(capsys):
    path = encoded(name="siren")
    decode(path, "-o", "a.png", "--gradient")
    assert "converge" not in capsys.readouterr().err
    assert "this network is explicit" in refused(capsys, path, "-o", "b.png", "--max-evals", "9")


# --- other kinds ---------------------------------------------------------------------------------


def test_a_sound_at_another_rate():
    path = encoded("sound")
    decode(path, "-o", "a.wav")
    decode(path, "-o", "b.wav", "--rate", "250")
    with wave.open("b.wav") as file:
        # To the last sample, at .39 s, and not beyond.
        assert (file.getframerate(), file.getnframes()) == (250, 98)
    first, second = read_sound("a.wav"), read_sound("b.wav")
    assert first.field.shape == (40,) and second.field.rate == 250
    found = load(path)
    values = found.decode(found.field.points(time=found.field.ticks(250))).values
    heard = second.field.restore(second.values)
    torch.testing.assert_close(heard, found.field.restore(values).clamp(-1, 1), rtol=0, atol=2e-4)


def test_a_film_is_an_mp4():
    pytest.importorskip("av")
    path = encoded("film", channels=1)
    decode(path, "-o", "a.mp4", "--size", "32x48")
    assert read_film("a.mp4").field.shape == (3, 32, 48)


def test_a_film_between_its_frames(capsys):
    path = encoded("film")
    decode(path, "-o", "frames")
    assert read_film("frames").field.shape == (3, 6, 8)
    decode(path, "-o", "half", "--frames", "0:2:.5", "--scale", "2")
    film = read_film("half")
    assert film.field.shape == (4, 12, 16)
    found = load(path)
    points = found.field.points(size=(12, 16), time=found.field.steps(0, 2, 0.5))
    expected = pixels_of(found.decode(points).values)
    assert (pixels_of(film.values) == expected).all()
    decode(path, "-o", "a.gif", "--frames", ":2:.5")
    with Image.open("a.gif") as image:
        assert image.n_frames == 4 and image.info["duration"] == 100  # 10 a second, not 5
    decode(path, "-o", "one", "--frames", "1.5:2")
    assert [each.name for each in Path("one").iterdir()] == ["000000.png"]
    assert "one exists: remove it" in refused(capsys, path, "-o", "one", "--overwrite")


def test_a_shape_by_marching_cubes(ball):
    trimesh = pytest.importorskip("trimesh")
    pytest.importorskip("skimage")
    decode(ball, "-o", "a.ply", "--resolution", "40")
    mesh = trimesh.load("a.ply")
    assert mesh.is_watertight
    # Two bumps exp(-|x|^2) in a product, of which one is squared: a ball in the file's own space.
    distance = np.linalg.norm(mesh.vertices - [1, 2, 3], axis=1) / 2
    assert distance.std() < 0.01 * distance.mean()
    decode(ball, "-o", "b.ply", "--resolution", "20")
    assert len(trimesh.load("b.ply").vertices) < len(mesh.vertices)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("image", ["--rate", "100"], "--rate is for sounds, and this is an image"),
        ("image", ["--frames", "0:1"], "--frames is for films, and this is an image"),
        ("image", ["--resolution", "0"], "--resolution is for shapes, and this is an image"),
        ("sound", ["--size", "3x3"], "--size is for images and films, and this is a sound"),
        ("sound", ["--gradient"], "--gradient is for images, and this is a sound"),
        ("film", ["--laplacian"], "--laplacian is for images, and this is a film"),
        ("image", ["--size", "3"], "--size expects numbers such as 480x640; got '3'"),
        ("image", ["--size", "0x4"], "size is [0, 4]: expected a height and a width"),
        ("image", ["--size", "3x4", "--scale", "2"], "--size and --scale both set the size"),
        ("image", ["--scale", "-1"], "--scale must be a positive number; got -1"),
        ("image", ["--crop", "1,2,3"], "--crop expects numbers such as 0,0,64,64; got '1,2,3'"),
        ("image", ["--crop", "0,0,10,3"], "a box of 10 x 3 pixels at 0, 0: expected a part"),
        ("film", ["--frames", "a:b"], "--frames expects numbers such as 10:20:.5; got"),
        ("film", ["--frames", "2.5:"], "time is outside of the signal: expected 0 to 2"),
        ("film", ["--frames", "0:9"], "0 to 9 by 1: expected a part of 0 to 3"),
        ("image", ["--chunk", "0"], "a chunk of 0 points: give a size of at least 1"),
        ("image", ["--max-evals", "0"], "--max-evals must be 1 or more; got 0"),
        ("sound", ["--rate", "99.5"], "--rate expects a whole number, got '99.5'"),
        ("sound", ["--rate", "0"], "rate is 0: expected a positive number"),
        ("image", ["-o", "a.jpg"], "an image is decoded to .png; got a.jpg"),
        ("sound", ["-o", "a.png"], "a sound is decoded to .wav; got a.png"),
        ("film", ["-o", "a.png"], "a film is decoded to .gif or .mp4 or a folder; got a.png"),
        ("image", ["--compare", "a.png"], "unknown option '--compare'"),
    ],
)
def test_options_that_do_not_fit_are_refused(kind, words, message, capsys):
    path = encoded(kind)
    assert message in refused(capsys, path, *words)
    assert [each.name for each in Path(".").iterdir()] == [f"{kind}.inr"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resolution", "30000"], "lower --resolution"),
        (["--size", "3x3"], "--size is for images and films"),
        (["--resolution", "0"], "resolution is 0: expected 2"),
        (["--resolution", "1"], "resolution is 1: expected 2 or more"),
    ],
)
def test_options_of_shapes(ball, words, message, capsys):
    error = refused(capsys, ball, *words)
    assert message in error and "--crop" not in error


def test_nothing_is_replaced_unasked(capsys):
    path = encoded()
    decode(path, "--quiet")
    assert capsys.readouterr().out == "image-decoded.png\n"
    before = Path("image-decoded.png").read_bytes()
    assert "image-decoded.png exists: replace it with --overwrite" in refused(capsys, path)
    assert Path("image-decoded.png").read_bytes() == before
    decode(path, "--overwrite", "--gradient")
    words = [path, "-o", "b.png", "--gradient"]
    Path("b-gradient.png").touch()
    assert "b-gradient.png exists" in refused(capsys, *words)
    assert not Path("b.png").exists()


def test_a_signal_too_large_to_hold_is_refused_before_it_is_decoded(capsys):
    error = refused(capsys, encoded(), "--size", "2000000x2000000")
    assert "4,000,000,000,000 points take 122070312.5 MiB" in error and "--crop" in error


def test_other_files_are_refused(capsys):
    write_image("a.png", signal().values)
    assert "a.png is no .inr file" in refused(capsys, "a.png")
    assert "b.inr does not exist" in refused(capsys, "b.inr")
