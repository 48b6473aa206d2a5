"""Folders of images: what is read from them, and what is refused with the file's name."""

import io
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.io import decode, headers, image_files, layout
from equilibria.zoo.vision.data import images
from pictures import content, folder, picture, png


@pytest.fixture
def pets(tmp_path):
    return folder(tmp_path / "pets", {"dog": 10, "cat": 20})


def copies(root, pixels, **options):
    """Two classes of two images of the same pixels."""
    for label in "ab":
        (root / label).mkdir()
        for number in range(2):
            Image.fromarray(pixels).save(root / label / f"{number}.png", **options)


# --- what a folder is ----------------------------------------------------------------------------


def test_a_tenth_of_each_class_is_to_test_on(pets):
    found = images.load(pets)
    assert found.labels == ("cat", "dog") and found.title == "pets"
    assert found.train.targets.bincount().tolist() == [18, 9]
    assert found.test.targets.bincount().tolist() == [2, 1]
    assert not {*found.train.names} & {*found.test.names}
    again = images.load(pets)
    assert (again.test.names, again.checksum) == (found.test.names, found.checksum)


def test_all_classes_are_among_the_first(pets):
    found = images.load(pets)
    assert found.train.targets[:4].tolist() == [0, 1, 0, 1]
    assert [name.split("/")[0] for name in found.train.names[:4]] == ["cat", "dog", "cat", "dog"]


@pytest.mark.parametrize(
    ("folders", "tested", "valid"),
    [
        (("train", "test"), "test", False),
        (("train", "val"), "val", False),
        (("train", "val", "test"), "test", True),
        (("train", "validation", "test"), "test", True),
    ],
)
def test_parts_of_their_own(tmp_path, folders, tested, valid):
    for part in folders:
        folder(tmp_path / part, {"a": 2, "b": 3})
    found = images.load(tmp_path)
    assert (len(found.train), len(found.test)) == (5, 5)
    assert {name.split("/")[0] for name in found.train.names} == {"train"}
    assert {name.split("/")[0] for name in found.test.names} == {tested}
    assert (found.valid is not None) == valid


def test_hidden_files_are_left_out_and_a_class_may_be_called_train(tmp_path):
    folder(tmp_path, {"train": 3, "bus": 3})
    (tmp_path / "bus" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "bus" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "README.txt").write_text("pictures")
    found = images.load(tmp_path)
    assert found.labels == ("bus", "train")
    assert len(found.train) + len(found.test) == 6


def deep(kind, channels):
    """A PNG image of 12 x 12 pixels, with 16 bits a channel, of one of the format's kinds."""
    return png(bytes(2 * channels * 12 * 12), 12, 12, bits=16, kind=kind)


def rename(root, **names):
    for old, new in names.items():
        (root / old).rename(root / new)


def with_image(image):
    return lambda root: image.save(root / "dog" / "007.png")


def with_file(name, content):
    return lambda root: (root / name).write_bytes(content)


def with_parts(**classes):
    def write(root):
        for part, names in classes.items():
            folder(root / part, dict.fromkeys(names, 1))

    return write


def without(*labels):
    return lambda root: [shutil.rmtree(root / label) for label in labels]


BAD = {
    "empty class": (lambda root: (root / "bird").mkdir(), r"bird has no files"),
    "single class": (without("dog"), r"pets has a single class, cat"),
    "no class": (without("cat", "dog"), r"pets has no class folders: expected FOLDER/CLASS/FILE"),
    "masks": (
        lambda root: rename(root, cat="images", dog="masks"),
        r"pets has images and their masks, the data of the recipe segment-folder",
    ),
    "nested": (lambda root: (root / "cat" / "more").mkdir(), r"cat has a folder more in it"),
    "single image": (lambda root: folder(root, {"bird": 1}), r"bird has a single file, .*000\.png"),
    "no test": (with_parts(train="ab"), r"has a folder train but neither test nor val"),
    "flat parts": (lambda root: rename(root, cat="train", dog="test"), r"pets has no class folder"),
    "unknown class": (
        with_parts(train="ab", test="ac"),
        r"test has a class c that .*train does not have",
    ),
    "no image": (with_file("cat/notes.txt", b"hello"), r"cat/notes\.txt is not an image"),
    "empty file": (with_file("cat/000.png", b""), r"cat/000\.png is not an image"),
    "grey": (
        with_image(picture(0, mode="L")),
        r"dog/007\.png is grey \(mode L\), and 29 of 30 images are RGB.*convert\('RGB'\)",
    ),
    "alpha": (
        with_image(picture(0, mode="RGBA")),
        r"dog/007\.png is RGB with an alpha channel \(mode RGBA\).*task\.channels",
    ),
    "palette": (
        with_image(picture(0).convert("P")),
        r"dog/007\.png is of palette colours \(mode P\)",
    ),
    "deep grey": (
        with_image(Image.fromarray(np.zeros((12, 12), np.uint16))),
        r"dog/007\.png has 16 bits per channel \(mode I\)",
    ),
    "deep colours": (
        with_file("dog/007.png", deep(2, 3)),
        r"dog/007\.png has 16 bits per channel \(mode RGB\)",
    ),
    "sizes": (
        with_image(picture(0, (12, 14))),
        r"12 x 12 pixels and .*dog/007\.png has 12 x 14.*--task\.size",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD.values(), ids=BAD)
def test_a_bad_folder_is_refused_by_name(pets, spoil, message):
    spoil(pets)
    with pytest.raises(DataError, match=message):
        images.load(pets)


def test_no_folder(tmp_path):
    with pytest.raises(DataError, match="nowhere is not a folder"):
        images.load(tmp_path / "nowhere")


@pytest.mark.parametrize("option", [{"size": 0}, {"channels": 2}])
def test_impossible_options(pets, option):
    with pytest.raises(ValueError, match=next(iter(option))):
        images.load(pets, **option)


# --- pixels --------------------------------------------------------------------------------------


def test_images_as_they_are(pets):
    found = images.load(pets)
    inputs, targets = found.train[torch.tensor([3, 0])]
    assert inputs.dtype == torch.float32 and found.shape == (3, 12, 12)
    for row, place in enumerate((3, 0)):
        expected = np.asarray(Image.open(pets / found.train.names[place])).transpose(2, 0, 1)
        assert np.array_equal((255 * inputs[row]).round().numpy(), expected)
        assert targets[row] == found.train.targets[place]


def test_grey_images_have_one_channel(tmp_path):
    found = images.load(folder(tmp_path, {"a": 3, "b": 3}, mode="L"))
    assert found.shape == (1, 12, 12) and found.train[:2][0].shape == (2, 1, 12, 12)


@pytest.mark.parametrize(
    ("kind", "channels"),
    [(0, 1), (2, 3), (4, 2), (6, 4)],
    ids=["grey", "rgb", "grey-alpha", "rgb-alpha"],
)
def test_sixteen_bits_are_refused_where_images_are_converted(pets, kind, channels):
    (pets / "dog" / "007.png").write_bytes(deep(kind, channels))
    for wanted in (3, 1):
        with pytest.raises(DataError, match=r"dog/007\.png has 16 bits per channel"):
            images.load(pets, channels=wanted)


@pytest.mark.parametrize(("channels", "mode"), [(3, "RGB"), (1, "L")])
def test_channels_convert_every_image(pets, channels, mode):
    picture(0, mode="L").save(pets / "dog" / "007.png")
    (pets / "cat" / "003.png").unlink()
    picture(1, mode="RGBA").save(pets / "cat" / "003.png")
    found = images.load(pets, channels=channels)
    everything = found.train.decode_all().inputs
    assert everything.shape == (27, channels, 12, 12)
    expected = np.asarray(Image.open(pets / found.train.names[5]).convert(mode))
    assert np.array_equal(everything[5].permute(1, 2, 0).squeeze(-1).numpy(), expected)


def test_the_middle_square_is_shown(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200  # the middle square; the sides are black
    copies(tmp_path, wide)
    assert (images.load(tmp_path, size=5).train.decode_all().inputs[:, :, 1:-1, 1:-1] == 200).all()
    whole = images.load(tmp_path, size=10, share=0.5).train
    assert whole.decode_all().inputs.float().mean() == 200


@pytest.mark.parametrize("smaller", [1, 2])
def test_a_resized_photograph_is_what_pillow_makes_of_it(smaller):
    smooth = picture(0, (8, 8)).resize((256, 256), Image.Resampling.BICUBIC)
    side = 64 // smaller
    found = decode.pixels(
        content(smooth), "x.jpg", "RGB", (side, side), lambda height, width: (0, 0, height, width)
    )
    opened = Image.open(io.BytesIO(content(smooth)))
    expected = np.asarray(opened.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    # Decoded at a half or a quarter of its size: not the same to the last digit.
    assert np.abs(found.astype(int) - expected).mean() < 2


def test_photographs_are_upright(tmp_path):
    half = np.zeros((8, 16, 3), np.uint8)
    half[:, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right to see it upright
    copies(tmp_path, half, exif=exif)
    found = images.load(tmp_path)
    assert found.shape == (3, 16, 8)
    inputs = found.train.decode_all().inputs
    assert (inputs[:, :, :8] == 255).all() and (inputs[:, :, 8:] == 0).all()
    part = images.load(tmp_path, size=4, channels=3).train.decode_all().inputs
    assert part.float().mean() == pytest.approx(127.5, abs=2)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_truncated_image_is_found_by_decoding(tmp_path, suffix):
    folder(tmp_path, {"a": 4, "b": 4}, size=(64, 64), suffix=suffix)
    bad = tmp_path / "b" / f"001.{suffix}"
    bad.write_bytes(bad.read_bytes()[: len(bad.read_bytes()) // 2])
    found = images.load(tmp_path)
    train = found.train if f"b/001.{suffix}" in found.train.names else found.test
    for read in (train.check, train.decode_all, lambda: train[:]):
        with pytest.raises(DataError, match=rf"b/001\.{suffix} is damaged"):
            read()


def test_a_file_that_is_gone_is_named(pets):
    found = images.load(pets)
    (pets / found.train.names[2]).unlink()
    with pytest.raises(DataError, match=r"\.png cannot be read: No such file"):
        found.train[:5]


def test_the_checksum_knows_bytes_of_few_files_and_lengths_of_many(pets, monkeypatch):
    few = images.load(pets).checksum
    monkeypatch.setattr(headers, "SMALL", 5)
    many = images.load(pets).checksum
    path = pets / "cat" / "000.png"
    length = path.stat().st_size
    picture(99).save(path)
    assert path.stat().st_size == length
    assert images.load(pets).checksum == many
    monkeypatch.undo()
    assert images.load(pets).checksum != few
    monkeypatch.setattr(headers, "SMALL", 5)
    Image.new("RGB", (12, 12)).save(path)
    assert images.load(pets).checksum != many


def test_long_work_is_done_in_order_and_stops_at_an_error():
    asked: list[int] = []

    def double(number):
        asked.append(number)
        if number == 50:
            raise DataError("50")
        return 2 * number

    with pytest.raises(DataError, match="50"):
        for place, doubled in enumerate(decode.in_threads(double, range(10_000), threads=2)):
            assert doubled == 2 * place
    assert len(asked) < 200


# --- random parts --------------------------------------------------------------------------------


def test_boxes_lie_in_the_image_and_have_their_share():
    boxes = image_files.boxes(image_files.draw(4000, torch.Generator().manual_seed(0)), 0.1, 30, 40)
    top, left, high, wide = boxes.unbind(1)
    assert (
        (boxes >= 0).all() and (top + high <= 30 + 1e-9).all() and (left + wide <= 40 + 1e-9).all()
    )
    share = high * wide / 1200
    assert share.min() < 0.13 and 0.5 < share.mean() < 0.56
    ratio = wide / high
    assert ratio.max() <= 4 / 3 + 1e-9 and ratio.min() >= 3 / 4 - 1e-9


def test_random_parts_are_a_function_of_what_was_drawn(pets):
    train = images.load(pets).train
    places = torch.arange(6)
    drawn = image_files.draw(6, torch.Generator().manual_seed(1))
    one, same = (train.images(places, drawn, 0.2) for _ in range(2))
    assert torch.equal(one, same) and one.shape == (6, 3, 12, 12)
    assert not torch.equal(one, train.images(places))
    # All of the area, as high as it is wide, is the image itself.
    whole = train.images(places, torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 6), 1.0)
    assert torch.equal(whole, train.images(places))


# --- ImageNet ------------------------------------------------------------------------------------


def test_imagenet_is_found_and_says_how_much_of_it_is_there(tmp_path, cache):
    for part, count in (("train", 3), ("val", 2)):
        folder(tmp_path / "imagenet" / part, {"n01440764": count, "n01443537": count})
    picture(5, mode="L").save(tmp_path / "imagenet" / "val" / "n01443537" / "grey.png")
    for place in (tmp_path, tmp_path / "imagenet"):
        found = data.load("imagenet", place, size=8)
        assert found.title == "ImageNet (2 classes, 6 training images)"
        assert found.shape == (3, 8, 8) and len(found.test) == 5
    (tmp_path / "imagenet").rename(tmp_path / "ILSVRC")
    assert len(data.load("imagenet", tmp_path / "ILSVRC", size=8).test) == 5


def test_imagenet_missing(tmp_path, cache):
    with pytest.raises(
        DataError, match=r"imagenet: train/ was not found in .*image-net\.org.*WNID"
    ):
        data.load("imagenet", tmp_path)
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"imagenet: val/ was not found in .*image-net\.org"):
        data.load("imagenet", tmp_path)


def test_the_layout_alone_reads_no_file(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        for number in range(3):
            (tmp_path / label / str(number)).write_text("no image")
    assert layout.read(tmp_path).labels == ("a", "b")
