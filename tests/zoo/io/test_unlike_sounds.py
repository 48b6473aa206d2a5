"""Recordings of unlike makes: read right, or refused by name; none is wrong in silence."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
import soundfile

from equilibria.run.data import DataError
from equilibria.zoo.io import sound
from unlike_sounds import TONE, made

COARSE = {"ULAW": 0.02, "ALAW": 0.02, "IMA_ADPCM": 0.25, "MS_ADPCM": 0.25, "VORBIS": 0.1}
ERRORS = {"PCM_U8": 2**-6, "PCM_S8": 2**-6, "PCM_16": 2**-14, **COARSE}
MAKES = [
    (form, kind, channels)
    for form in ("WAV", "WAVEX", "RF64", "FLAC", "AIFF", "OGG")
    for kind, channels in itertools.product(soundfile.available_subtypes(form), (1, 2))
    if kind not in ("G721_32", "NMS_ADPCM_16", "NMS_ADPCM_24", "NMS_ADPCM_32", "MPEG_LAYER_III")
    and not kind.startswith(("DWVW", "GSM", "OPUS", "IMA" if channels == 2 else "DPCM"))
]


@pytest.mark.parametrize("make", MAKES, ids=str)
def test_every_make_holds_the_same_tone(make):
    samples, rate = sound.decode(made(*make), "tone")
    error = np.abs(samples.numpy()[: len(TONE)] - TONE * (1.0 if make[2] == 1 else 0.75)).max()
    assert rate == 8000 and error < ERRORS.get(make[1], 2**-20)


def sizes(content: bytes, riff: int | None, data: int | None) -> bytes:
    """A WAV file with other sizes in its header."""
    changed = bytearray(content)
    place = content.index(b"data") + 4
    for at, size in ((4, riff), (place, data)):
        if size is not None:
            struct.pack_into("<I", changed, at, size)
    return bytes(changed)


STREAMS = [(0, 0), (36, 0), (0xFFFFFFFF, 0xFFFFFFFF), (None, 0xFFFFFFFF), (0x7FFFF024, 0x7FFFF000)]


@pytest.mark.parametrize("sizing", STREAMS, ids=str)
@pytest.mark.parametrize("kind", ["PCM_16", "PCM_24", "FLOAT"])
@pytest.mark.parametrize("channels", [1, 2])
def test_what_came_through_a_pipe_is_whole(sizing, kind, channels):
    plain = made("WAV", kind, channels)
    expected, _ = sound.decode(plain, "tone")
    samples, _ = sound.decode(sizes(plain, *sizing) + b"\1" * (channels - 1), "tone")
    assert np.array_equal(samples, expected)


CUT = {form: made(form)[:-700] for form in ("WAV", "RF64", "FLAC", "AIFF")}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, "truncated|damaged") for content in CUT.values()),
        (sizes(made(), None, 3201), "truncated"),
        (sizes(made()[:44], None, 0), "damaged or empty"),
        (b"", "damaged, or no recording"),
        (b"RIFF", "damaged, or no recording"),
        (made("FLAC")[:20], "damaged, or no recording"),
    ],
    ids=[*CUT, "longer", "empty", "nothing", "a word", "a head"],
)
def test_what_is_cut_is_refused(content, message):
    with pytest.raises(DataError, match=message):
        sound.decode(content, "tone")


@pytest.mark.parametrize(("form", "kind"), [("AIFF", "DWVW_16"), ("WAV", "GSM610")])
def test_telephony_is_read_or_refused(form, kind):
    try:
        samples, _ = sound.decode(made(form, kind), "tone")
    except DataError as error:
        assert "convert it" in str(error)
    else:
        assert np.abs(samples.numpy()).max() < 1
