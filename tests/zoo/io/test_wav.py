"""Recordings: what is read of each format, and what is said of those that cannot be."""

import struct
import wave

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from equilibria.run.data import DataError
from equilibria.zoo.io import sound

TONE = 0.7 * np.sin(np.arange(800) * 0.1)
GUID = bytes.fromhex("000000001000800000aa00389b71")


def chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def form(tag: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16) -> bytes:
    block = channels * bits // 8
    return struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits)


def riff(*chunks: bytes) -> bytes:
    return chunk(b"RIFF", b"WAVE" + b"".join(chunks))


DATA = chunk(b"data", (TONE * 2**15).astype("<i2").tobytes())
PLAIN = riff(chunk(b"fmt ", form()), DATA)


def in_24_bits(tone: np.ndarray) -> bytes:
    return b"".join(int(x * 2**23).to_bytes(3, "little", signed=True) for x in tone)


# --- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "bits", "data", "error"),
    [
        (1, 8, (TONE * 128 + 128).astype(np.uint8).tobytes(), 2**-7),
        (1, 16, (TONE * 2**15).astype("<i2").tobytes(), 2**-15),
        (1, 24, in_24_bits(TONE), 2**-23),
        (1, 32, (TONE * 2**31).astype("<i4").tobytes(), 2**-22),
        (3, 32, TONE.astype("<f4").tobytes(), 2**-24),
        (3, 64, TONE.astype("<f8").tobytes(), 2**-24),
    ],
)
def test_all_formats_hold_the_same_tone(tag, bits, data, error):
    plain = form(tag, bits=bits)
    extended = form(0xFFFE, bits=bits) + struct.pack("<HHIH", 22, bits, 4, tag) + GUID
    for header in (plain, extended):
        samples, rate = sound.decode(riff(chunk(b"fmt ", header), chunk(b"data", data)), "tone")
        assert (samples.dtype, samples.shape, rate) == (torch.float32, (800,), 8000)
        assert abs(samples.double().numpy() - TONE).max() <= error


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32])
def test_scipy_reads_the_same_samples(tmp_path, dtype):
    scale, middle = {np.uint8: (128, 128), np.int16: (2**15, 0), np.int32: (2**31, 0)}.get(
        dtype, (1, 0)
    )
    stereo = np.stack([TONE, -0.5 * TONE], axis=1) * scale + middle
    wavfile.write(tmp_path / "a.wav", 44100, stereo.astype(dtype))
    rate, expected = wavfile.read(tmp_path / "a.wav")
    samples, found = sound.read(tmp_path / "a.wav")
    assert found == rate
    mean = ((expected.astype(float) - middle) / scale).mean(1)
    assert abs(samples.numpy() - mean).max() < 1e-6


def test_other_parts_and_their_padding_are_passed_over():
    other = chunk(b"LIST", b"odd")
    content = riff(other, chunk(b"fmt ", form()), other, DATA, other)
    assert torch.equal(sound.decode(content, "a")[0], sound.decode(PLAIN, "b")[0])
    odd = riff(chunk(b"fmt ", form(bits=8)), chunk(b"data", b"\x80\x90\x70"))
    # Some programs leave out the last byte of padding.
    assert torch.equal(sound.decode(odd[:-1], "c")[0], torch.tensor([0, 0.125, -0.125]))


def test_what_is_written_is_read_and_clipped(tmp_path):
    samples = torch.tensor([0.0, 0.5, -1.0, 1.0, -7.0, 2**-15])
    sound.write(tmp_path / "a.wav", samples, 16000)
    found, rate = sound.read(tmp_path / "a.wav")
    assert rate == 16000
    assert found.tolist() == [0, 0.5, -1, 1 - 2**-15, -1, 2**-15]
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getnframes()) == (1, 2, 6)


@pytest.mark.parametrize(
    "samples", [torch.zeros(0), torch.zeros(2, 3, 1), torch.tensor([0.0, torch.nan])]
)
def test_what_is_no_recording_is_not_written(tmp_path, samples):
    with pytest.raises(ValueError, match=r"expected \(samples,\), finite, at least 1"):
        sound.write(tmp_path / "a.wav", samples, 16000)


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged, or no recording .*convert it, e.g. with ffmpeg"),
        (b"no sound at all", "is damaged, or no recording"),
        (PLAIN[:-100], "is truncated: its part 'data' should have 1,600 bytes, and 1,500 are"),
        (PLAIN[:30], "is truncated: its part 'fmt '"),
        (PLAIN[:36], "is damaged"),
        (riff(chunk(b"fmt ", form()), chunk(b"data", b"")), "damaged or empty"),
        (riff(chunk(b"fmt ", form()[:9]), DATA), "is damaged"),
        (riff(chunk(b"fmt ", form(0x1234)), DATA), "is damaged, or no recording"),
        (riff(chunk(b"fmt ", form(channels=0)), DATA), "is damaged"),
        (
            riff(chunk(b"fmt ", form(3, bits=32)), chunk(b"data", struct.pack("<f", np.inf))),
            "a sample is not a finite number",
        ),
    ],
)
def test_a_damaged_or_foreign_file_is_named(tmp_path, content, message):
    (tmp_path / "sound.wav").write_bytes(content)
    with pytest.raises(DataError, match=rf"sound\.wav .*{message}"):
        sound.read(tmp_path / "sound.wav")


def test_a_missing_or_large_file_is_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"none\.wav cannot be read: No such file"):
        sound.read(tmp_path / "none.wav")
    (tmp_path / "long.wav").write_bytes(PLAIN)
    monkeypatch.setattr(sound, "LARGEST", len(PLAIN) - 1)
    with pytest.raises(DataError, match=r"long\.wav has more than 1,643 bytes: cut it"):
        sound.read(tmp_path / "long.wav")
