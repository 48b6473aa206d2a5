"""Masks of unlike makes and damaged ones: read right, or refused by name."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from mutations import FUZZ, bounded, mutated, put
from PIL import Image

from equilibria.run.data import DataError
from equilibria.zoo.vision.data.segmentation import VOID, folder
from equilibria.zoo.vision.data.segmentation.folder import MaskClasses
from equilibria.zoo.vision.predict import mask_png
from unlike_pictures import RGB, image

CLASSES = {
    "names": ("sky\nearth\n", [0, 1], ("sky", "earth")),
    "a mark": ("\ufeffsky\r\nearth\r\n", [0, 1], ("sky", "earth")),
    "values": ("0: sky\n3: earth\n7: water\n", [0, 3, 7], ("sky", "earth", "water")),
    "void": ("0: void\n3: earth\n7: water\n", [3, 7], ("earth", "water")),
    "comments": ("# mine\nsky\n\nearth\n", [0, 1], ("sky", "earth")),
    "gaps": ("200:sky\n254 : earth\n", [200, 254], ("sky", "earth")),
}


KINDS = ("L", "P", "1", "TIFF", "BMP", "void too")


def masks(root, classes, values, kind):
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    (root / "classes.txt").write_text(classes, "utf-8")
    for k in range(10):
        mask = np.resize(np.array(values, np.uint8), (6, 7))
        if kind == "void too":
            mask[0, 0] = VOID
        Image.fromarray(RGB).resize((7, 6)).save(root / "images" / f"{k}.png")
        made = Image.fromarray(mask, "L")
        if kind == "P":
            made = Image.fromarray(mask, "P")
            made.putpalette([each for n in range(256) for each in (n, 255 - n, n * 7 % 256)])
        elif kind == "1":
            made = Image.fromarray(mask.astype(bool))
        form = kind if kind in ("TIFF", "BMP") else "PNG"
        made.save(root / "masks" / f"{k}.{form.lower()}", form)
    return root


@pytest.mark.parametrize(
    ("classes", "kind"),
    [  # one bit holds 0 and 1
        each
        for each in itertools.product(CLASSES, KINDS)
        if each[1] != "1" or CLASSES[each[0]][1] == [0, 1]
    ],
)
def test_every_make_of_mask(tmp_path, cache, classes, kind):
    text, values, labels = CLASSES[classes]
    root = masks(tmp_path / "own", text, values, kind)
    found = folder.load(root)
    expected = np.resize(np.arange(len(values)), (6, 7))
    if kind == "void too":
        expected[0, 0] = VOID
    assert np.array_equal(found.train.mask(0), expected)
    assert (found.labels, found.values) == (labels, tuple(values))
    if (classes, kind) == ("gaps", "P"):  # colours that are less alike
        assert found.colors == tuple((n, 255 - n, n * 7 % 256) for n in values)


@pytest.mark.parametrize("classes", CLASSES)
def test_masks_that_are_predicted_are_masks(tmp_path, cache, classes):
    text, values, _ = CLASSES[classes]
    root = masks(tmp_path / "own", text, values, "P")
    before = folder.load(root)
    for path in (root / "masks").iterdir():
        told = before.train.mask(0).numpy()
        path.write_bytes(mask_png(told, before.colors, before.values))
        assert np.array_equal(np.array(Image.open(path)), np.resize(values, (6, 7)))
    after = folder.load(root)
    assert np.array_equal(after.train.mask(0), before.train.mask(0))
    assert after.colors == before.colors


def test_a_name_of_void_is_said_to_be_none(tmp_path, cache):
    root = masks(tmp_path / "own", "0: sky\n3: earth\n255: border\n", [0, 3, 255], "L")
    with pytest.warns(UserWarning, match="calls the value 255 'border', and it always means void"):
        assert folder.load(root).labels == ("sky", "earth")


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("sky\nearth\n", [0, 255], "255 means void: where it stands for a class, write 1"),
        ("sky\nearth\n", [0, 3, 7], r"has the value 3 .* which .*classes.txt does not list"),
        ("sky\nearth\n", [0, 0], "all pixels of the training masks .* are sky or void"),
        ("sky\nearth\n", [255, 255], "are void: there is nothing to learn.* write 1"),
    ],
)
def test_masks_that_do_not_fit(tmp_path, cache, text, values, message):
    with pytest.raises(DataError, match=message):
        folder.load(masks(tmp_path / "own", text, values, "L"))


# --- damaged --------------------------------------------------------------------------------------


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
def test_masks(segmented, cache, data):
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
