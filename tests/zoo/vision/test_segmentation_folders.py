"""A user's folder of images and masks: what it may be, and what is refused before training."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from equilibria.run.data import DataError, load
from equilibria.zoo.io import decode
from equilibria.zoo.vision.data.segmentation import SegmentationSet
from equilibria.zoo.vision.data.segmentation.folder import MaskClasses
from equilibria.zoo.vision.data.segmentation.masks import mask_pixels, nearest, palette
from pictures import png, scenes

pytestmark = pytest.mark.usefixtures("cache")


def write(folder, count=10, size=(12, 16), classes="sky\nearth\nwater\n", part=""):
    """Images whose grey tells the class, with their masks."""
    generator = np.random.default_rng(len(part))
    masks = [generator.integers(0, 3, size, dtype=np.uint8) for _ in range(count)]
    pairs = ((np.repeat((80 * mask)[..., None], 3, 2), mask) for mask in masks)
    scenes(folder / part, pairs, None)
    (folder / "classes.txt").write_text(classes)
    return folder


def read(folder, **options):
    return load(str(folder), kind=SegmentationSet, **options)


def test_a_folder_without_parts_holds_a_tenth_out(tmp_path):
    found = read(write(tmp_path / "own"))
    assert (len(found.train), len(found.test), found.valid) == (9, 1, None)
    assert not set(found.train.names) & set(found.test.names)
    assert found.labels == ("sky", "earth", "water") and found.colors == palette(3)
    for images in (found.train, found.train.decode_all()):
        for k in range(9):
            image, mask = images.image(k), images.mask(k)
            assert image.dtype == mask.dtype == torch.uint8
            assert torch.equal(image, (80 * mask).expand(3, 12, 16))
    assert read(tmp_path / "own").checksum == found.checksum
    assert len(read(tmp_path / "own", whole=True).test) == 10


def test_parts(tmp_path):
    folder = tmp_path / "own"
    for part, count in (("train", 4), ("val", 2), ("test", 3)):
        write(folder, count, part=part)
    found = read(folder)
    assert [len(each) for each in (found.train, found.valid, found.test)] == [4, 2, 3]
    shutil.rmtree(folder / "test")
    found = read(folder)
    assert (len(found.test), found.valid) == (2, None)
    shutil.rmtree(folder / "val")
    with pytest.raises(DataError, match="neither test nor val"):
        read(folder)


def test_another_size(tmp_path):
    folder = write(tmp_path / "own")
    found, small = read(folder), read(folder, size=(6, 8))
    assert small.train.sizes == [(6, 8)] * 9 and small.train.same_size
    rows, columns = nearest(12, 6), nearest(16, 8)
    whole, half = found.train, small.train
    assert torch.equal(half.mask(0), whole.mask(0)[rows][:, columns])
    image = whole.image(0).float().reshape(3, 6, 2, 8, 2).mean((2, 4))
    # Linear over what a pixel covers and its neighbours: near the mean over the pixel alone.
    assert (half.image(0).float() - image).abs().mean() < 20


def test_sizes_may_differ(tmp_path):
    folder = write(tmp_path / "own", count=4)
    for kind in ("images", "masks"):
        path = folder / kind / "00.png"
        Image.open(path).crop((0, 0, 9, 7)).save(path)
    found = read(folder, whole=True)
    assert not found.test.same_size and found.test.sizes[0] == (7, 9)
    assert found.test.image(0).shape == (3, 7, 9) and found.test.mask(0).shape == (7, 9)
    assert found.test.decode_all().select(torch.tensor([1, 0])).sizes == [(12, 16), (7, 9)]


def test_a_palette_of_greys_tells_no_classes_apart(tmp_path):
    """As `Image.fromarray(mask).convert("P")` writes it: black beside almost black."""
    folder = write(tmp_path / "own")
    for path in (folder / "masks").iterdir():
        Image.open(path).convert("L").convert("P").save(path)
    assert read(folder).colors == palette(3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sky\nsky\n", "lists the name sky twice"),
        ("1: sky\n1: earth\n", "lists the value 1 twice"),
        ("1: sky\nearth\n", "'earth' has no value"),
        ("sky\n", "lists a single class, sky: at least two"),
        ("0: void\n", "lists no classes: at least two"),
        ("0: sky\n256: earth\n", "lists the value 256"),
    ],
)
def test_classes_that_cannot_be(tmp_path, text, words):
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(DataError, match=words):
        MaskClasses.read(tmp_path / "classes.txt")


def with_mask(mode, *value, size=(16, 12)):
    return lambda folder: Image.new(mode, size, *value).save(folder / "masks" / "03.png")


def masks_of(value):
    def write(folder):
        for path in (folder / "masks").iterdir():
            Image.new("L", (16, 12), value).save(path)

    return write


def with_file(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def without(name):
    return lambda folder: (folder / name).unlink()


def cut(name, length):
    def write(folder):
        noise = np.random.default_rng(0).integers(0, 255, (12, 16, 3), dtype=np.uint8)
        if name.startswith("images"):
            Image.fromarray(noise).save(folder / name)
        (folder / name).write_bytes((folder / name).read_bytes()[:length])  # the header is whole

    return write


def as_classes(folder):
    without("classes.txt")(folder)
    (folder / "images").rename(folder / "cat")
    (folder / "masks").rename(folder / "dog")


def lossy(folder):
    (folder / "masks" / "03.png").rename(folder / "masks" / "03.jpg")


def no_files(folder):
    for path in (folder / "images").iterdir():
        path.unlink()


LATIN = "ciel\nterre\nforêt\n".encode("latin-1")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            without("classes.txt"),
            r"classes\.txt is missing: write the name of a class on each line",
        ),
        (as_classes, "own has no folder images: expected FOLDER/images/NAME.jpg"),
        (without("masks/03.png"), r"03\.png has no mask: expected .*masks/03\.png"),
        (without("images/03.png"), r"masks/03\.png is a mask without an image"),
        (
            with_mask("L", size=(5, 4)),
            r"masks/03\.png has 4 x 5 pixels .* and its image .*03\.png has 12 x 16",
        ),
        (with_mask("L", 9), r"masks/03\.png has the value 9 \(192 pixels\).*does not list"),
        (with_mask("I;16"), r"masks/03\.png has 16 bits"),
        (with_mask("RGB"), r"masks/03\.png has colours \(mode RGB\)"),
        (lossy, r"03\.jpg is a JPEG"),
        (with_file("masks/03.png", b"nothing"), r"masks/03\.png is not an image"),
        (cut("masks/03.png", 80), r"masks/03\.png is damaged"),
        (with_file("images/03.png", b"nothing"), r"images/03\.png is not an image"),
        (cut("images/03.png", 400), r"images/03\.png is damaged"),
        (with_mask("RGBA"), r"masks/03\.png has colours \(mode RGBA\)"),
        (no_files, "images has no files"),
        (with_file("classes.txt", LATIN), r"classes\.txt is not UTF-8 text"),
        (masks_of(255), "are void"),
        (masks_of(1), "are earth or void: at least two classes are needed"),
    ],
)
def test_what_is_wrong_is_named_before_training(tmp_path, spoil, words):
    folder = write(tmp_path / "own")
    spoil(folder)
    with pytest.raises(DataError, match=words):
        read(folder)


@pytest.mark.parametrize(("value", "words"), [(255, "void"), (1, "earth or void")])
def test_training_masks_without_classes_are_named(tmp_path, value, words):
    """Though there are some in the test part."""
    folder = tmp_path / "own"
    for part in ("train", "test"):
        write(folder, part=part)
    read(folder)
    masks_of(value)(folder / "train")
    with pytest.raises(DataError, match=f"all pixels of the training masks in .* are {words}"):
        read(folder)


def test_one_class_is_enough_to_evaluate(tmp_path):
    folder = write(tmp_path / "own")
    masks_of(1)(folder)
    assert len(read(folder, whole=True).test) == 10


def test_files_are_decoded_once(tmp_path, monkeypatch):
    folder = write(tmp_path / "own")
    read(folder)
    decoded = []
    original = decode.pixels
    monkeypatch.setattr(
        decode, "pixels", lambda *given: decoded.append(given[1]) or original(*given)
    )
    read(folder, size=(6, 8))
    (folder / "classes.txt").write_text("heaven\nearth\nwater\n")
    assert read(folder).labels[0] == "heaven" and decoded == []
    with_mask("L", 9)(folder)  # new content is looked at
    with pytest.raises(DataError, match="value 9"):
        read(folder)
    assert len(decoded) == 10


def test_what_other_systems_add_is_left_out(tmp_path):
    folder = write(tmp_path / "own")
    for name in ("Thumbs.db", ".DS_Store"):
        (folder / "images" / name).write_bytes(b"x")
    (folder / "classes.txt").write_bytes(b"\xef\xbb\xbfsky\r\nearth\r\nwater\r\n")
    found = read(folder)
    assert len(found.train) == 9 and found.labels == ("sky", "earth", "water")


# --- masks as files have them --------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_of_few_bits_keeps_its_numbers(bits):
    values = np.arange(128, dtype=np.uint8).reshape(8, 16) & ((1 << bits) - 1)
    digits = "".join(f"{value:0{bits}b}" for value in values.flat)
    content = png(int(digits, 2).to_bytes(len(digits) // 8, "big"), 16, 8, bits=bits)
    assert np.array_equal(mask_pixels(content, "mask"), values)


def test_image_and_mask_are_upright_alike(tmp_path):
    folder = write(tmp_path / "own")
    before = read(folder, whole=True).test.mask(3)
    for kind in ("images", "masks"):
        image = Image.open(folder / kind / "03.png")
        exif = Image.Exif()
        exif[0x0112] = 6  # stored on its side
        image.transpose(Image.Transpose.ROTATE_90).save(folder / kind / "03.png", exif=exif)
    test = read(folder, whole=True).test
    assert torch.equal(test.mask(3), before)
    assert torch.equal(test.image(3)[0], 80 * before)


def test_no_such_folder(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        read(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "classes.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="has no folder images"):
        read(tmp_path / "empty")


def test_the_palette_is_that_of_pascal_voc():
    assert palette(4) == ((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0))
    assert palette(21)[20] == (0, 64, 128) and len(set(palette(256))) == 256
