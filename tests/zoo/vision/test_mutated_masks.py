"""Damaged masks: read as a reference reads them, or refused with a DataError."""

import numpy as np
import pytest
from hypothesis import given
from mutations import FUZZ, bounded, mutated, put
from PIL import Image
from test_unlike_masks import masks

from equilibria.run.data import DataError
from equilibria.zoo.vision.data.segmentation import folder
from equilibria.zoo.vision.data.segmentation.folder import MaskClasses
from unlike_pictures import image


@pytest.fixture(scope="module")
def segmented(root):
    return masks(root / "masks", "0: sky\n3: earth\n7: water\n", [0, 3, 7], "P")


MASK = b"0: sky\n3: earth\n7: water\n"


@FUZZ
@given(content=mutated(MASK, b"\xef\xbb\xbfsky\r\nearth\r\n"))
def test_lists_of_classes(root, content):
    path = put(root / "classes.txt", content)
    with bounded(len(content)):
        try:
            found = MaskClasses.read(path)
        except DataError as error:
            assert str(path) in str(error)
            return
    assert len(set(found.labels)) == len(found.labels) >= 2
    known = found.numbers[(found.numbers >= 0) & (found.numbers < 255)]
    assert sorted(known.tolist()) == list(range(len(found.labels)))


@FUZZ
@given(data=mutated(*(image("PNG", mode) for mode in ("L", "P"))))
def test_masks(segmented, monkeypatch_cache, data):
    path = put(segmented / "masks" / "3.png", data)
    with bounded(len(data)):
        try:
            found = folder.load(segmented, whole=True)
        except DataError as error:
            assert str(segmented) in str(error)
            return
    with Image.open(path) as opened:
        values = np.array(opened)
    told = found.test.mask(3).numpy()
    assert np.array_equal(np.array([0, 3, 7, 255])[np.minimum(told, 3)], values)


@pytest.fixture
def monkeypatch_cache(root, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
