"""Named signals for studies: photographs, text images, a recording, and a film."""

import sys

import numpy as np
import pytest
import torch

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.signal.data import Signal, SignalSet
from equilibria.zoo.signal.data.sets import NAMES, STATED


def test_what_there_is():
    assert data.available(SignalSet) == ["bach", "photographs", "street", "text-images"]


# --- photographs ---------------------------------------------------------------------------------


def test_photographs_come_with_scikit_image():
    skimage = pytest.importorskip("skimage.data", reason="scikit-image is not installed")
    found = data.load("photographs", size=32)
    assert [each.name for each in found.signals] == [*NAMES] and len(found) == 8
    assert {each.field.shape for each in found.signals} == {(32, 32)}
    assert {each.field.channels for each in found.signals} == {1}
    camera = data.load("photographs", size=None, names=["camera"])["camera"]
    pixels = camera.field.restore(camera.values).round().numpy()[:, :, 0]
    assert (pixels == skimage.camera()).all()
    small = found["camera"].field.restore(found["camera"].values)[:, :, 0]
    np.testing.assert_allclose(small, pixels.reshape(32, 16, 32, 16).mean((1, 3)), atol=1e-4)
    assert found.checksum == data.load("photographs", size=32).checksum
    assert found.checksum != data.load("photographs", size=33).checksum


def test_every_photograph_is_bundled_and_in_colour_where_asked():
    pytest.importorskip("skimage.data", reason="scikit-image is not installed")
    found = data.load("photographs", size=16, names=[*STATED], channels=3)
    assert {each.field.channels for each in found.signals} == {3}
    spread = {each.name: float(each.values.std(-1).max()) for each in found.signals}
    assert spread["astronaut"] > 0.1 and spread["camera"] == 0
    gray = data.load("photographs", size=16, names=["coffee"])["coffee"].values[..., 0]
    wanted = (found["coffee"].values * torch.tensor([0.299, 0.587, 0.114])).sum(-1)
    torch.testing.assert_close(gray, wanted, rtol=0, atol=0.5 / 127)  # rounded to whole levels


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ["camara"]}, "no photograph 'camara'; did you mean 'camera'"),
        ({"names": []}, "expected one or more different names"),
        ({"names": ["cat", "cat"]}, "expected one or more different names"),
        ({"channels": 2}, "channels is 2: expected 1 or 3"),
        ({"size": 1}, "size is 1: expected 2 pixels or more"),
    ],
)
def test_impossible_photographs_are_refused(options, message):
    pytest.importorskip("skimage.data", reason="scikit-image is not installed")
    with pytest.raises(ValueError, match=message):
        data.load("photographs", **options)


def test_photographs_name_their_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage.data", None)
    with pytest.raises(DataError, match=r"needs scikit-image, .*'equilibria\[reproduce\]'"):
        data.load("photographs")


# --- text images ---------------------------------------------------------------------------------


def test_a_text_image_is_a_function_of_seed_number_and_size():
    found = data.load("text-images", size=48, count=3)
    more = data.load("text-images", size=48, count=4)
    for one, other in zip(found.signals, more.signals, strict=False):
        assert one.name == other.name and torch.equal(one.values, other.values)
    assert found.checksum == data.load("text-images", size=48, count=3).checksum
    assert found.checksum != data.load("text-images", size=48, count=3, seed=1).checksum
    assert not torch.equal(found[0].values, found[1].values)


@pytest.mark.parametrize("channels", [1, 3])
def test_text_images_have_words_in_several_colours(channels):
    for each in data.load("text-images", size=128, channels=channels).signals:
        assert each.field.shape == (128, 128) and each.field.channels == channels
        values, counts = each.targets.unique(dim=0, return_counts=True)
        # A plain ground that shows through, and words that cover a good part of it.
        assert len(values) > 20 and 0.1 < int(counts.max()) / 128**2 < 0.95


@pytest.mark.parametrize("options", [{"size": 8}, {"count": 0}, {"seed": -1}, {"channels": 4}])
def test_impossible_text_images_are_refused(options):
    with pytest.raises(ValueError, match="expected 16 or more, 1 or more, 0 or more, and 1 or 3"):
        data.load("text-images", **options)


# --- a set ---------------------------------------------------------------------------------------


def test_a_set_knows_names():
    values = torch.rand(3, 3, 1, generator=torch.Generator().manual_seed(0))
    found = SignalSet.of("few", [Signal.of("image", values, name) for name in "ab"])
    assert found["b"] is found[1] is found.signals[1]
    with pytest.raises(ValueError, match="few has no 'c': choose from a, b"):
        found["c"]
    with pytest.raises(IndexError):
        found[2]


# --- real data -----------------------------------------------------------------------------------


@pytest.mark.data
def test_the_recording(real):
    if not (real / "audio" / "gt_bach.wav").is_file():
        pytest.skip("EQUILIBRIA_DATA has no audio/gt_bach.wav")
    whole = data.load("bach", download=False)[0]
    assert whole.field.shape == (308_207,) and whole.field.rate == 44_100
    part = data.load("bach", download=False, rate=11_025, start=2.0, seconds=1.5)[0]
    assert part.field.rate == 11_025 and abs(part.field.shape[0] - 16_537.5) < 1
    # The same music: below 4 kHz, the low rate holds all that the high one does.
    long = whole.field.restore(whole.values)[88_200:][: 4 * 16_537, 0].numpy()
    short = part.field.restore(part.values)[:16_537, 0].numpy()
    spectra = [
        abs(np.fft.rfft(wave * np.hanning(len(wave))))[: int(4000 * 1.5)] / len(wave)
        for wave in (long, short)
    ]
    # The seams of the part differ; the spectra hardly do.
    error = np.linalg.norm(spectra[0] - spectra[1]) / np.linalg.norm(spectra[0])
    assert error < 0.01


@pytest.mark.data
def test_the_street(real):
    if not (real / "camvid" / "test.tar").is_file():
        pytest.skip("EQUILIBRIA_DATA has no camvid/test.tar")
    with pytest.warns(UserWarning, match="JPEG copy"):
        film = data.load("street", download=False, count=4, size=(30, 40))[0]
    assert film.field.shape == (4, 30, 40) and film.field.channels == 3
    # Consecutive frames of one drive are alike, and not the same.
    near = (film.values[1:] - film.values[:-1]).abs().mean((1, 2, 3))
    assert ((near > 0.01) & (near < 0.5)).all()
    with pytest.raises(ValueError, match="expected a height and a width of 2 or more"):
        data.load("street", download=False, count=1)
