"""Pairs of images with flow in files: official layouts in small, a user's folder, and damage."""

import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from equilibria.run.data import DataError, load
from equilibria.zoo.flow.data import FlowField, FlowSet, PairFiles, write_flow

SIZE = (6, 8)


@pytest.fixture(autouse=True)
def _cache(cache):
    """Nothing is found but what a test has written."""


def read(name: str, folder: Path | None = None, **options: object) -> FlowSet:
    return load(name, folder, download=False, kind=FlowSet, **options)


_numbers = iter(range(1_000_000))


def image(path: Path, size: tuple[int, int] = SIZE, mode: str = "RGB") -> Tensor:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, 3) if mode == "RGB" else size
    values = np.random.default_rng(next(_numbers)).integers(0, 256, shape).astype(np.uint8)
    Image.fromarray(values).convert(mode).save(path)
    return torch.from_numpy(values)


def flow(path: Path, size: tuple[int, int] = SIZE, u: float | None = None) -> Tensor:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = torch.full((2, *size), float(next(_numbers) % 64 if u is None else u))
    write_flow(path, FlowField.dense(found))
    return found


def names(pairs: object) -> list[str]:
    assert isinstance(pairs, PairFiles)
    return pairs.names


# --- official layouts ----------------------------------------------------------------------------


def chairs(root: Path) -> Path:
    release = root / "FlyingChairs_release"
    for number in range(1, 6):
        for k in (1, 2):
            image(release / "data" / f"{number:05}_img{k}.ppm")
        flow(release / "data" / f"{number:05}_flow.flo", u=number)
    (release / "chairs_split.txt").write_text("1\n1\n2\n1\n2\n")
    return release


def test_chairs(tmp_path):
    release = chairs(tmp_path)
    for place in (tmp_path, release):
        found = read("chairs", place)
        assert names(found.train) == ["00001", "00002", "00004"]
        assert names(found.test) == ["00003", "00005"]
    assert found.title == "FlyingChairs (5 pairs)" and not found.seen
    pair = found.test.pair(1)
    assert pair.flow.unique().tolist() == [5.0] and pair.valid.all()
    expected = np.asarray(Image.open(release / "data" / "00005_img2.ppm")).transpose(2, 0, 1)
    assert np.array_equal(pair.second.numpy(), expected) and pair.first.dtype == torch.uint8
    (release / "chairs_split.txt").rename(tmp_path / "FlyingChairs_train_val.txt")
    assert len(read("chairs", tmp_path).test) == 2


def test_chairs_without_their_split(tmp_path):
    release = chairs(tmp_path)
    split = release / "chairs_split.txt"
    split.write_text("1\n2\n1\n")
    with pytest.raises(DataError, match=r"00004_img1\.ppm has no line in the list .* has 3:"):
        read("chairs", tmp_path)
    split.write_text("1\n2\n3\n")
    with pytest.raises(DataError, match=r"chairs_split\.txt: '3' is neither 1 nor 2"):
        read("chairs", tmp_path)
    split.write_text("1\n" * 5)
    with pytest.raises(DataError, match=r"no pairs \*_img1\.ppm to validate on"):
        read("chairs", tmp_path)
    split.unlink()
    with pytest.raises(DataError, match=r"chairs_split\.txt is missing: .* \('2'\)\. Get .*https:"):
        read("chairs", tmp_path)


def things(root: Path) -> Path:
    folder = root / "FlyingThings3D"
    for split in ("TRAIN", "TEST"):
        for number in (6, 7, 8):
            for name in ("clean", "final"):
                image(folder / f"frames_{name}pass/{split}/A/0000/left/{number:04}.png")
            for way, u in (("Future", number), ("Past", -number)):
                scene = folder / f"optical_flow/{split}/A/0000/into_{way.lower()}"
                flow(scene / f"left/OpticalFlowInto{way}_{number:04}_L.pfm", u=u)
                flow(scene / f"right/OpticalFlowInto{way}_{number:04}_R.pfm")
    return folder


def test_things(tmp_path):
    folder = things(tmp_path)
    clean = read("things", tmp_path, render="clean")
    assert names(clean.train) == [
        "TRAIN/A/0000/0006 into_future clean",
        "TRAIN/A/0000/0007 into_future clean",
        "TRAIN/A/0000/0007 into_past clean",
        "TRAIN/A/0000/0008 into_past clean",
    ]
    assert clean.title == "FlyingThings3D (clean)" and len(clean.test) == 4
    both = read("things", folder)
    assert (len(both.train or ()), both.title) == (8, "FlyingThings3D")
    assert both.test.pair(7).flow.unique().tolist() == [-8.0]
    past = both.test.pair(3)
    later = np.asarray(Image.open(folder / "frames_cleanpass/TEST/A/0000/left/0008.png"))
    assert np.array_equal(past.first.permute(1, 2, 0).numpy(), later)
    with pytest.raises(ValueError, match="render is 'grey': expected clean, final, or null"):
        read("things", folder, render="grey")
    shutil.rmtree(folder / "frames_finalpass")
    assert len(read("things", folder, render="clean").train or ()) == 4
    with pytest.raises(DataError, match=r"frames_finalpass/TRAIN/A/0000/left/0006\.png is missing"):
        read("things", folder)
    shutil.rmtree(folder / "optical_flow/TEST/A")
    with pytest.raises(DataError, match=r"optical_flow/TEST has no A/0000/into_future/left"):
        read("things", folder, render="clean")


def sintel(root: Path) -> Path:
    training = root / "MPI-Sintel-complete" / "training"
    for scene, count in (("alley_1", 3), ("bamboo_2", 2)):
        for number in range(1, count + 1):
            for name in ("clean", "final"):
                image(training / name / scene / f"frame_{number:04}.png")
            if number < count:
                flow(training / "flow" / scene / f"frame_{number:04}.flo", u=number)
                unknown = training / "invalid" / scene / f"frame_{number:04}.png"
                image(unknown, mode="L")
                mask = np.zeros(SIZE, np.uint8)
                mask[0, :3] = 255
                Image.fromarray(mask).save(unknown)
    return training


def test_sintel(tmp_path):
    training = sintel(tmp_path)
    found = read("sintel", tmp_path, render="final")
    assert names(found.test) == [
        "alley_1/frame_0001 final",
        "alley_1/frame_0002 final",
        "bamboo_2/frame_0001 final",
    ]
    assert found.seen and found.title == "MPI Sintel (final) (3 pairs)"
    pair = found.test.pair(1)
    assert not pair.valid[0, :3].any() and int(pair.valid.sum()) == 45
    assert pair.flow[0, 1].unique().tolist() == [2.0] and pair.flow[0, 0, 0] == 0
    last = np.asarray(Image.open(training / "final/alley_1/frame_0003.png")).transpose(2, 0, 1)
    assert np.array_equal(pair.second.numpy(), last)
    both = read("sintel", tmp_path)
    assert len(both.test) == 6 and both.checksum != found.checksum
    shutil.rmtree(training / "invalid")
    assert read("sintel", tmp_path).test.pair(0).valid.all()
    (training / "clean/bamboo_2/frame_0002.png").unlink()
    with pytest.raises(DataError, match=r"clean/bamboo_2/frame_0002\.png is missing: unpack"):
        read("sintel", tmp_path)


def test_a_sample_of_sintel(tmp_path):
    root = tmp_path / "sintel_flow"
    rows = []
    for name in ("cave_clean", "cave_final"):
        for number in (2, 3):
            image(root / name / f"frame_{number:04}.png")
        rows.append(
            {
                "name": name,
                "im0": f"{name}/frame_0002.png",
                "im1": f"{name}/frame_0003.png",
                "flow": "cave_clean/frame_0002.flo.xz",
            }
        )
    flow(root / "cave_clean" / "frame_0002.flo", u=4)
    plain = root / "cave_clean" / "frame_0002.flo"
    plain.with_name("frame_0002.flo.xz").write_bytes(lzma.compress(plain.read_bytes()))
    plain.unlink()
    mask = np.zeros(SIZE, np.uint8)
    mask[5] = 255
    Image.fromarray(mask).save(root / "cave_final" / "invalid_0002.png")
    listed = root / "pairs.json"
    listed.write_text(json.dumps(rows))
    with pytest.warns(UserWarning, match="sample"):
        found = read("sintel", tmp_path)
    assert found.title == "MPI Sintel (sample)" and found.train is None and not found.seen
    assert names(found.test) == ["cave_clean", "cave_final"]
    assert found.test.pair(0).valid.all() and int(found.test.pair(1).valid.sum()) == 40
    assert found.test.size(0) == SIZE and found.test.pair(1).flow[0, 0, 0] == 4
    with pytest.warns(UserWarning, match="sample"):
        assert names(read("sintel", tmp_path, render="final").test) == ["cave_final"]
    for content, message in (
        ("[{", r"pairs\.json is damaged"),
        ('{"a": 1}', r"pairs\.json is damaged: expected a list of pairs"),
        ("[3]", r"pairs\.json is damaged: expected a list of pairs"),
        ("[]", r"lists no pair of the clean pass"),
    ):
        listed.write_text(content)
        with pytest.warns(UserWarning, match="sample"), pytest.raises(DataError, match=message):
            read("sintel", tmp_path, render="clean")


def test_kitti(tmp_path):
    training = tmp_path / "kitti" / "training"
    for number, size in enumerate((SIZE, (7, 9))):
        for k in (10, 11):
            image(training / "image_2" / f"{number:06}_{k}.png", size)
        values = torch.full((2, *size), float(number))
        valid = torch.arange(size[0] * size[1]).view(size) % 3 == 1
        (training / "flow_occ").mkdir(exist_ok=True)
        write_flow(training / "flow_occ" / f"{number:06}_10.png", FlowField(values, valid))
    found = read("kitti", tmp_path)
    assert found.title == "KITTI-2015 (2 pairs)" and found.seen
    assert names(found.test) == ["000000", "000001"] and found.test.size(1) == (7, 9)
    pair = found.test.pair(1)
    assert torch.equal(pair.valid, torch.arange(63).view(7, 9) % 3 == 1)
    assert pair.flow[:, pair.valid].unique().tolist() == [1.0]
    with pytest.raises(DataError, match="differ in size: 6 x 8 and 7 x 9 pixels"):
        found.test.batch(torch.tensor([0, 1]))
    (training / "image_2" / "000001_11.png").unlink()
    with pytest.raises(DataError, match=r"image_2/000001_11\.png is missing"):
        read("kitti", tmp_path)
    for path in (training / "flow_occ").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"flow_occ has no 000000_10\.png"):
        read("kitti", tmp_path)


def test_hd1k(tmp_path):
    root = tmp_path / "HD1K"
    for sequence, frames in (("000000", 3), ("000005", 2)):
        for frame in range(frames):
            image(root / "hd1k_input/image_2" / f"{sequence}_{frame:04}.png")
            flow(root / "hd1k_flow_gt/flow_occ" / f"{sequence}_{frame:04}.png", u=frame)
    found = read("hd1k", tmp_path)
    assert names(found.test) == ["000000_0000", "000000_0001", "000005_0000"] and found.seen
    assert found.test.pair(1).flow.unique().tolist() == [1.0]
    later = np.asarray(Image.open(root / "hd1k_input/image_2/000005_0001.png"))
    assert np.array_equal(found.test.pair(2).second.permute(1, 2, 0).numpy(), later)
    flow(root / "hd1k_flow_gt/flow_occ" / "flow.png")
    with pytest.raises(DataError, match=r"flow_occ/flow\.png has no numbers"):
        read("hd1k", tmp_path)


@pytest.mark.parametrize("name", ["chairs", "things", "sintel", "kitti", "hd1k"])
def test_how_to_get_what_is_not_there(tmp_path, name):
    with pytest.raises(DataError, match=rf"{name}: .* was not found in .*https?://.*--data-dir"):
        load(name, tmp_path, kind=FlowSet)


# --- a user's folder -----------------------------------------------------------------------------


def own(root: Path, count: int = 3, suffix: str = "flo") -> Path:
    for k in range(count):
        image(root / "first" / f"{k}.png")
        image(root / "second" / f"{k}.jpg")
        flow(root / "flow" / f"{k}.{suffix}", u=k)
    return root


def test_a_folder_of_pairs(tmp_path):
    root = own(tmp_path / "walks", 12)
    packed = root / "flow" / "3.flo"
    packed.with_name("3.flo.xz").write_bytes(lzma.compress(packed.read_bytes()))
    packed.unlink()
    (root / "flow" / ".hidden").touch()
    (root / "first" / "Thumbs.db").touch()
    found = read(str(root))
    assert (len(found.train or ()), len(found.test), found.title) == (11, 1, "walks")
    assert sorted(names(found.train) + names(found.test)) == sorted(map(str, range(12)))
    assert names(read(str(root)).test) == names(found.test)
    assert found.valid is None and not found.seen
    every = read(str(root), whole=True)
    assert every.train is None and len(every.test) == 12
    batch = every.test.batch(torch.tensor([0, 1]))
    assert batch.first.shape == (2, 3, *SIZE) and batch.flow[:, 0, 0, 0].tolist() == [0.0, 1.0]
    assert batch.valid.shape == (2, *SIZE) and batch.valid.dtype == torch.bool
    before = found.checksum
    flow(root / "flow" / "5.flo", (8, 6))
    assert read(str(root)).checksum != before


def test_a_folder_with_parts(tmp_path):
    root = tmp_path / "walks"
    own(root / "train", 2, "pfm")
    with pytest.raises(DataError, match="has a folder train but neither test nor val"):
        read(str(root))
    own(root / "val", 1, "png")
    found = read(str(root))
    assert (len(found.train or ()), len(found.test), found.valid) == (2, 1, None)
    own(root / "test", 3)
    found = read(str(root))
    assert (len(found.train or ()), len(found.test), len(found.valid or ())) == (2, 3, 1)
    own(root / "valid", 1)
    with pytest.raises(DataError, match=r"has both \w+ and \w+: keep only one"):
        read(str(root))


def without(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def gray(root: Path) -> None:
    image(root / "second" / "1.png", mode="L")
    (root / "second" / "1.jpg").unlink()


def alpha(root: Path) -> None:
    Image.new("RGBA", SIZE[::-1]).save(root / "first" / "1.png")


def deep(root: Path) -> None:
    flow(root / "first" / "1.png")  # 16-bit RGB


def deep_gray(root: Path) -> None:
    Image.fromarray(np.zeros(SIZE, np.uint16)).save(root / "first" / "1.png")


def broken(root: Path) -> None:
    path = root / "first" / "1.png"
    path.write_bytes(path.read_bytes()[:-40])


def another_size(root: Path) -> None:
    image(root / "second" / "1.jpg", (6, 9))


def another_flow(root: Path) -> None:
    flow(root / "flow" / "1.flo", (8, 6))


def truncated(root: Path) -> None:
    path = root / "flow" / "1.flo"
    path.write_bytes(path.read_bytes()[:-1])


BAD_PAIRS = {
    "grey": (gray, r"second/1\.png has the mode L: images of a pair are RGB"),
    "alpha": (alpha, r"first/1\.png has the mode RGBA: images"),
    "deep": (deep, r"first/1\.png has more than 8 bits per channel \(mode RGB\)"),
    "deep grey": (deep_gray, r"first/1\.png has more than 8 bits per channel \(mode I;16\)"),
    "broken": (broken, r"first/1\.png is damaged"),
    "size": (another_size, r"second/1\.jpg has 6 x 9 pixels .*first/1\.png has 6 x 8: the im"),
    "flow size": (another_flow, r"flow/1\.flo has 8 x 6 pixels .*first/1\.png has 6 x 8: the im"),
    "truncated": (truncated, r"flow/1\.flo is truncated: 383 bytes .*, expected 384"),
    "gone": (without("flow/1.flo"), r"flow/1\.flo cannot be read: No such file"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_PAIRS.values(), ids=BAD_PAIRS)
def test_a_bad_pair_is_named_when_it_is_read(tmp_path, spoil, message):
    root = own(tmp_path / "walks")
    if spoil is not gray:  # files are opened when they are used
        found = read(str(root), whole=True)
        spoil(root)
    else:  # another file
        spoil(root)
        found = read(str(root), whole=True)
    found.test.pair(0)  # another pair is not concerned
    with pytest.raises(DataError, match=message):
        found.test.pair(1)


def test_a_mask_that_leaves_nothing(tmp_path):
    training = sintel(tmp_path)
    path = training / "invalid" / "alley_1" / "frame_0001.png"
    Image.fromarray(np.full(SIZE, 255, np.uint8)).save(path)
    found = read("sintel", tmp_path)
    with pytest.raises(
        DataError, match=r"invalid/alley_1/frame_0001\.png leaves no pixel of .*flo"
    ):
        found.test.pair(0)
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(path)
    with pytest.raises(DataError, match=r"frame_0001\.png has 3 x 3 pixels .* has 6 x 8"):
        found.test.pair(0)


def stray(root: Path) -> None:
    image(root / "second" / "4.png")


def two(root: Path) -> None:
    image(root / "second" / "1.png")


def no_flow(root: Path) -> None:
    (root / "flow" / "1.flo").rename(root / "flow" / "1.txt")


def empty(root: Path) -> None:
    for path in (root / "first").iterdir():
        path.unlink()


BAD_FOLDERS = {
    "lacking": (
        without("second/1.jpg"),
        r"first/1\.png has no file of the same name in .*/second: ",
    ),
    "stray": (stray, r"second/4\.png has no file of the same name in .*/first: "),
    "flow": (without("flow/1.flo"), r"first/1\.png has no file of the same name in .*/flow: "),
    "two": (two, r"second has two files called 1: 1\.jpg, 1\.png"),
    "ending": (no_flow, r"flow/1\.txt is no file of flow: expected \.flo, "),
    "empty": (empty, r"first has no files: expected FOLDER/first"),
    "no flow": (lambda root: shutil.rmtree(root / "flow"), r"flow is missing: expected FOLDER"),
    "no first": (
        lambda root: shutil.rmtree(root / "first"),
        r"walks has no folder first: expected",
    ),
    "nothing": (shutil.rmtree, r"there is no folder .*walks; expected FOLDER/first/NAME\.png and"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_FOLDERS.values(), ids=BAD_FOLDERS)
def test_a_bad_folder(tmp_path, spoil, message):
    root = own(tmp_path / "walks")
    spoil(root)
    with pytest.raises(DataError, match=message):
        read(str(root))


def test_a_single_pair_cannot_be_split(tmp_path):
    root = own(tmp_path / "walks", 1)
    with pytest.raises(DataError, match="has a single pair: expected at least one for training"):
        read(str(root))
    assert len(read(str(root), whole=True).test) == 1


# --- real files ----------------------------------------------------------------------------------


@pytest.mark.data
def test_the_sample_of_sintel(monkeypatch):
    monkeypatch.undo()
    try:
        with pytest.warns(UserWarning, match="sample"):
            found = load("sintel", download=False, kind=FlowSet)
    except DataError as error:
        pytest.skip(str(error))
    assert len(found.test) == 9 and found.test.size(0) == (436, 1024)
    pair = found.test.pair(names(found.test).index("alley_1_clean"))
    length = pair.flow.norm(dim=0)[pair.valid].mean()
    assert abs(length - 2.98) < 0.05  # the error of no flow at all
