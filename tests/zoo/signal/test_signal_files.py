"""Signals of files: what is read and written of each format, and what is refused by name."""

import io
import struct
import wave

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import wavfile

from equilibria.run.data import DataError
from equilibria.zoo.signal import data as signals
from equilibria.zoo.signal.data import files as films
from equilibria.zoo.signal.data import read, read_film, read_image, read_sound
from pictures import png


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def save(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


# --- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)], ids=["grey", "rgb"])
def test_an_image_comes_back_pixel_by_pixel(tmp_path, shape):
    array = pixels(*shape)
    signal = read(save(tmp_path / "a.png", array))
    assert signal.field.kind == "image" and signal.name == "a.png"
    assert (signal.field.shape, signal.field.channels) == ((5, 7), 1 if len(shape) == 2 else 3)
    assert (signal.field.low, signal.field.high, signal.field.bits) == (0, 255, 8)
    torch.testing.assert_close(
        signal.values, torch.tensor(array).reshape(5, 7, -1) / 127.5 - 1, rtol=0, atol=1e-6
    )
    signals.write_image(tmp_path / "b.png", signal.values)
    assert (np.array(Image.open(tmp_path / "b.png")) == array).all()


def test_what_is_beyond_white_is_cut(tmp_path):
    signals.write_image(tmp_path / "a.png", torch.tensor([[[-3.0], [-1.0], [0.0], [9.0]]]))
    assert np.array(Image.open(tmp_path / "a.png")).tolist() == [[0, 0, 128, 255]]


def test_an_opaque_alpha_channel_is_left_out(tmp_path):
    array = pixels(4, 4, 4)
    array[:, :, 3] = 255
    found = read(save(tmp_path / "a.png", array))
    torch.testing.assert_close(found.values, torch.tensor(array[:, :, :3]) / 127.5 - 1)


def test_a_palette_and_exif_are_as_a_viewer_shows_them(tmp_path):
    array = np.repeat(pixels(2, 3, 3), 8, 0).repeat(8, 1)
    Image.fromarray(array).quantize(8).save(tmp_path / "a.gif")
    assert read(tmp_path / "a.gif").field.channels == 3
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn to the right
    save(tmp_path / "b.png", array, exif=exif)
    turned = read(tmp_path / "b.png").field.restore(read(tmp_path / "b.png").values).round()
    assert (turned.numpy() == np.rot90(array, -1)).all()


def test_cmyk_becomes_rgb(tmp_path):
    Image.fromarray(pixels(8, 8, 4), "CMYK").save(tmp_path / "a.tiff")
    expected = np.array(Image.open(tmp_path / "a.tiff").convert("RGB"))
    found = read(tmp_path / "a.tiff")
    assert (found.field.restore(found.values).round().numpy() == expected).all()


def test_an_image_at_another_size(tmp_path):
    array = pixels(4, 6, 3)
    small = read_image(save(tmp_path / "a.png", array), (2, 3))
    expected = array.reshape(2, 2, 3, 2, 3).mean((1, 3))
    np.testing.assert_allclose(small.field.restore(small.values).numpy(), expected, atol=1e-4)


def transparent():
    array = pixels(4, 4, 4)
    array[1, 2, 3] = 7
    return array


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("a.png", transparent(), "is transparent in places, and what lies behind is not known"),
        ("a.png", pixels(4, 4).astype(np.uint16) * 257, "has more than 8 bits a channel"),
        ("a.tiff", pixels(4, 4).astype(np.float32), "has more than 8 bits a channel"),
        ("a.png", np.full((4, 4), 9, np.uint8), "is constant: every value is 9"),
        ("a.png", pixels(1, 1), "has 1 row: a signal has at least 2 samples along each axis"),
        ("a.png", pixels(5, 1, 3), "has 1 column"),
    ],
)
def test_an_image_that_is_no_signal(tmp_path, name, array, message):
    with pytest.raises(DataError, match=rf"{name} {message}"):
        read(save(tmp_path / name, array))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.png", b"", "is empty: expected an image, a recording, a video"),
        ("a.obj", b"", "is empty: expected an image"),
        ("a.txt", b"words", r"has no known format \('.txt'\): expected an image"),
        ("a", b"words", r"has no known format \(''\)"),
        ("a.png", b"no picture", "is not an image that Pillow can read"),
        ("a.jpg", b"\xff\xd8\xff\xe0" + bytes(30), "is not an image|is damaged"),
        ("a.mp3", b"ID3" + bytes(30), "is damaged, or no recording .*convert it"),
        ("a.wav", b"RIFF", "is damaged, or no recording"),
        ("none.png", None, "cannot be read: No such file"),
        ("cut.png", png(pixels(40, 40, 3).tobytes(), 40, 40, kind=2)[:-900], "is damaged"),
    ],
)
def test_a_foreign_file_is_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} {message}"):
        read(tmp_path / name)


# --- sounds --------------------------------------------------------------------------------------

TONE = 0.6 * np.sin(np.arange(900) * 0.1)
STEREO = np.stack([TONE, -0.3 * TONE], 1)


def in_24_bits(samples):
    return b"".join(round(x * 2**23).to_bytes(3, "little", signed=True) for x in samples.ravel())


def saved(path, samples, bits, rate=8000):
    """A WAV file by other programs than ours."""
    if bits == 24:
        with wave.open(str(path), "wb") as file:
            file.setnchannels(samples.reshape(len(samples), -1).shape[1])
            file.setsampwidth(3)
            file.setframerate(rate)
            file.writeframes(in_24_bits(samples))
        return path
    kind, scale = {8: (np.uint8, 7), 16: (np.int16, 15), 32: (np.int32, 31), -32: (np.float32, 0)}[
        bits
    ]
    wavfile.write(path, rate, (samples * 2.0**scale + 128 * (bits == 8)).astype(kind))
    return path


@pytest.mark.parametrize("bits", [8, 16, 24, 32, -32])
@pytest.mark.parametrize("samples", [TONE, STEREO], ids=["mono", "stereo"])
def test_every_channel_of_every_format_is_read(tmp_path, bits, samples):
    signal = read(saved(tmp_path / "a.wav", samples, bits))
    expected = samples.reshape(len(samples), -1)
    assert signal.field.kind == "sound" and signal.field.rate == 8000
    assert signal.field.channels == expected.shape[1]
    assert signal.field.bits == abs(bits)
    assert float(signal.values.abs().max()) == 1
    assert -signal.field.low == signal.field.high == pytest.approx(0.6, abs=0.02)
    error = abs(signal.field.restore(signal.values).numpy() - expected).max()
    assert error <= (2**-6 if bits == 8 else 2**-15 + 1e-7)


@pytest.mark.parametrize("bits", [16, 24])
def test_what_is_written_is_read_again(tmp_path, bits):
    signal = read(saved(tmp_path / "a.wav", STEREO, bits))
    signals.write_sound(tmp_path / "b.wav", signal.values, signal.field, bits=bits)
    again = read(tmp_path / "b.wav")
    assert torch.equal(again.values, signal.values) and again.field == signal.field
    with wave.open(str(tmp_path / "b.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (2, bits // 8)


def test_a_sound_at_another_rate_has_its_length_and_pitch(tmp_path):
    time = np.arange(44100) / 44100
    # What the lower rate cannot hold must go, not come back as another tone.
    both = 0.4 * np.sin(2 * np.pi * 440 * time) + 0.4 * np.sin(2 * np.pi * 9000 * time)
    path = saved(tmp_path / "a.wav", both, 16, 44100)
    low = read_sound(path, rate=11025)
    assert low.field.rate == 11025 and low.field.shape == (11025,)
    middle = slice(1000, 10000)
    tone = 0.4 * np.sin(2 * np.pi * 440 * np.arange(11025) / 11025)
    found = low.field.restore(low.values)[:, 0].numpy()
    assert abs(found[middle] - tone[middle]).max() < 5e-3


def test_a_part_of_a_sound(tmp_path):
    path = saved(tmp_path / "a.wav", TONE, 16)
    part = read_sound(path, start=0.05, seconds=0.025)
    expected = (TONE * 2**15).astype(np.int16)[400:600] / 2**15
    np.testing.assert_allclose(part.field.restore(part.values)[:, 0], expected, atol=1e-6)
    with pytest.raises(DataError, match=r"a\.wav is 0\.1125 s long: 0\.1 to 0\.2 s is no part"):
        read_sound(path, start=0.1, seconds=0.1)


@pytest.mark.parametrize(
    ("samples", "bits", "message"),
    [
        (np.zeros(50), 16, "is constant: every value is 0"),
        (np.full(50, 0.25), 16, "is constant"),
        (TONE[3:4], 16, "has 1 sample: "),
        (np.append(TONE, np.nan), -32, "is damaged: a sample is not a finite number"),
    ],
)
def test_a_sound_that_is_no_signal(tmp_path, samples, bits, message):
    with pytest.raises(DataError, match=rf"a\.wav {message}"):
        read(saved(tmp_path / "a.wav", samples, bits))


def test_what_is_no_sound_is_not_written(tmp_path):
    signal = read(saved(tmp_path / "a.wav", STEREO, 16))
    given = (signal.values, signal.field)
    for name, values, options, message in [
        ("b.flac", signal.values, {}, r"written to \.wav files; got b\.flac"),
        ("b.wav", signal.values[:, :1], {}, r"expected \(samples, 2\) of a sound"),
        ("b.wav", signal.values, {"rate": 8000.5}, "rate is 8000.5: a WAV file has a whole"),
        ("b.wav", signal.values, {"bits": 8}, "bits is 8: expected 16 or 24"),
        ("b.wav", signal.values * torch.inf, {}, "finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            signals.write_sound(tmp_path / name, values, given[1], **options)
    assert [each.name for each in tmp_path.iterdir()] == ["a.wav"]


# --- films ---------------------------------------------------------------------------------------


def frames(folder, count, *shape):
    folder.mkdir()
    array = pixels(count, *shape)
    for number, each in enumerate(array):
        save(folder / f"frame-{number}.png", each)
    return array


def test_a_folder_of_frames_is_read_in_natural_order(tmp_path):
    array = frames(tmp_path / "film", 12, 4, 5, 3)
    (tmp_path / "film" / "notes.txt").write_text("10 comes after 9")
    film = read(tmp_path / "film")
    assert film.field.kind == "film" and film.field.shape == (12, 4, 5)
    assert film.field.rate is None
    assert (film.field.restore(film.values).round().numpy() == array).all()
    part = read_film(tmp_path / "film", frames=slice(2, 9, 3), size=(2, 5))
    assert part.field.shape == (3, 2, 5)
    expected = array[2:9:3].reshape(3, 2, 2, 5, 3).mean(2)
    np.testing.assert_allclose(part.field.restore(part.values), expected, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_written_folder_is_the_same_film(tmp_path, channels):
    values = torch.tensor(pixels(11, 4, 5, channels)).double() / 127.5 - 1
    signals.write_film(tmp_path / "film", values)
    again = read(tmp_path / "film")
    torch.testing.assert_close(again.values.double(), values, rtol=0, atol=1e-6)
    with pytest.raises(DataError, match="film exists: remove it"):
        signals.write_film(tmp_path / "film", values)


def test_an_animation_is_a_film_with_a_rate(tmp_path):
    values = torch.zeros(3, 6, 6, 1)
    values[1, :3], values[2] = 1, -1
    signals.write_film(tmp_path / "a.gif", values, rate=10.0)
    film = read(tmp_path / "a.gif")
    assert film.field.shape == (3, 6, 6) and film.field.rate == 10
    torch.testing.assert_close(film.values, values.expand(3, 6, 6, 3), rtol=0, atol=2 / 255)
    assert read_film(tmp_path / "a.gif", slice(0, 3, 2)).field.rate == 5


def test_an_animation_of_one_frame_is_an_image(tmp_path):
    save(tmp_path / "a.gif", np.repeat(pixels(2, 2), 4, 0))
    assert read(tmp_path / "a.gif").field.kind == "image"


def test_a_video_needs_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    (tmp_path / "a.mp4").write_bytes(bytes(8))
    with pytest.raises(DataError, match=r"a\.mp4 needs the extra 'video': pip install"):
        read(tmp_path / "a.mp4")


def test_a_video_is_a_film(tmp_path):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=20)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for level in (40, 120, 200):
            frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), level, np.uint8), "rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    film = read(tmp_path / "a.mp4")
    assert film.field.shape == (3, 16, 32) and film.field.rate == 20
    levels = film.field.restore(film.values).mean((1, 2, 3))
    assert (levels - torch.tensor([40.0, 120, 200])).abs().max() < 8


def test_films_that_are_none(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty has no images: name one that holds the frames"):
        read(tmp_path / "empty")
    frames(tmp_path / "one", 1, 4, 4)
    with pytest.raises(DataError, match="one has 1 frame: a signal has at least 2"):
        read(tmp_path / "one")
    with pytest.raises(DataError, match="one has no frames: a film has at least 2"):
        read_film(tmp_path / "one", slice(5, 9))
    frames(tmp_path / "two", 2, 4, 4, 3)
    save(tmp_path / "two" / "frame-2.png", pixels(4, 5, 3))
    message = r"frame-2\.png has 4 x 5 pixels in colour and .*frame-0\.png has 4 x 4 pixels"
    with pytest.raises(DataError, match=message):
        read(tmp_path / "two")
    with pytest.raises(DataError, match="expected 0 or more"):
        read_film(tmp_path / "two", slice(-2, None))
    monkeypatch.setattr(films, "MEMORY", 300)
    with pytest.raises(DataError, match="two takes more than 300 bytes of memory: read fewer"):
        read_film(tmp_path / "two", slice(0, 2))


PICTURE = torch.zeros(2, 2, 1)


@pytest.mark.parametrize(
    ("write", "name", "values", "message"),
    [
        ("image", "a.jpg", PICTURE, r"written to \.png files; got a\.jpg"),
        ("image", "a.png", PICTURE[..., 0], r"expected \(height, width, 1 or 3\)"),
        ("image", "a.png", PICTURE.expand(2, 2, 2), r"expected \(height, width, 1 or 3\)"),
        ("image", "a.png", PICTURE.log() * 0, "NaN or infinite: nothing is written"),
        ("film", "a.mp4", PICTURE[None], r"written to \.gif files or folders"),
        ("film", "a", PICTURE, r"expected \(frames, height, width, 1 or 3\)"),
        ("film", "a", PICTURE[None].log(), "NaN or infinite: nothing is written"),
    ],
)
def test_what_is_no_picture_is_not_written(tmp_path, write, name, values, message):
    with pytest.raises((ValueError, DataError), match=message):
        getattr(signals, f"write_{write}")(tmp_path / name, values)
    assert list(tmp_path.iterdir()) == []


def test_a_stereo_header_that_lies_is_damaged(tmp_path):
    content = io.BytesIO(saved(tmp_path / "a.wav", TONE, 16).read_bytes())
    broken = bytearray(content.getvalue())
    broken[22:24] = struct.pack("<H", 2)  # channels, without the size of a block
    (tmp_path / "a.wav").write_bytes(bytes(broken))
    with pytest.raises(DataError, match="its header says 2 channels"):
        read(tmp_path / "a.wav")
