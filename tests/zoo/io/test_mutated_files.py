"""Damaged sounds, images and archives: read as a reference reads them, or refused."""

from __future__ import annotations

import io
import warnings

import numpy as np
import soundfile
from hypothesis import given
from mutations import FUZZ, bounded, mutated, put
from PIL import Image

from equilibria.run.data import DataError
from equilibria.run.data.storage import read_errors
from equilibria.zoo.io import archive, decode, sound
from packed import PARTS, zipped
from unlike_pictures import image
from unlike_sounds import made


@FUZZ
@given(content=mutated(made(), made("FLAC"), made("RF64", "PCM_24", 2), made("AIFF", "PCM_16", 2)))
def test_sounds(content):
    with bounded(len(content)):
        try:
            found, rate = sound.decode(content, "a sound")
        except DataError as error:
            assert "a sound" in str(error)
            return
    try:
        expected, own = soundfile.read(io.BytesIO(content), always_2d=True)
    except soundfile.LibsndfileError:
        return  # a stream, whose header says nothing
    assert rate == own
    if len(expected) == len(found):
        assert np.allclose(found, expected.mean(1), atol=1e-6)


IMAGES = [image(*each) for each in (("PNG", "RGB"), ("TIFF", "L"), ("BMP", "P"), ("GIF", "L"))]
IMAGES += [image("JPEG", "RGB"), image("PPM", "RGB"), image("WEBP", "RGB")]


@FUZZ
@given(content=mutated(*IMAGES))
def test_images(content):
    with bounded(len(content)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = decode.pixels(content, "an image", "RGB", None)
        except DataError as error:
            assert "an image" in str(error)
            return
        with Image.open(io.BytesIO(content)) as opened:
            if opened.mode.startswith("I") or decode.orientation(opened) != 1:
                return  # which Pillow cuts, or does not turn
            expected = np.array(opened.convert("RGB"))
    assert np.array_equal(found.transpose(1, 2, 0), expected)


@FUZZ
@given(content=mutated(zipped()))
def test_zips(root, content):
    path = put(root / "a.zip", content)
    with bounded(len(content)):
        try:
            with read_errors(path, *archive.DAMAGED_ZIP), archive.open_zip(path, path) as opened:
                name = archive.find_member(opened, "MUTAG/MUTAG_A.txt")
                found = None if name is None else opened.read(name)
        except DataError as error:
            assert str(path) in str(error)
            return
    assert found is None or found == PARTS["A"].encode()
