"""Damaged files of eight kinds: read as a reference reads them, or refused with a DataError."""

from __future__ import annotations

import csv
import io
import re
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from mutations import FUZZ, bounded, mutated
from PIL import Image
from test_unlike_pictures import RIGHT, image, masks
from test_unlike_sounds import made
from test_unlike_texts import PARTS, tar, zipped

from equilibria.run.data import DataError
from equilibria.run.data.errors import reading
from equilibria.zoo.flow.data.formats import read_flow
from equilibria.zoo.graph.data import load_graphs
from equilibria.zoo.io import archive, decode, delimited, wav
from equilibria.zoo.language.data import reading as text
from equilibria.zoo.recurrent.data import tables
from equilibria.zoo.vision.data.segmentation import folder
from equilibria.zoo.vision.data.segmentation.folder import Classes
from equilibria.zoo.vision.data.shards.archive import parsed


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutated")


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


TABLES = (
    b"left,right\n1.5,-2.25\n3.0,4.5\n0.125,1000.0\n",
    b"left;right\r\n1,5;-2,25\r\n3,0;4,5\r\n",
    b"1.5\t2\n3\t4.5\n",
    b"\xef\xbb\xbf1.5 2\n3 4.5\n",
    '"1,5","2,5"\n"3,0","4,5"\n'.encode("utf-16"),
)


@FUZZ
@given(content=mutated(*TABLES))
def test_tables(root: Path, content: bytes) -> None:
    path = put(root / "a.csv", content)
    with bounded(len(content)):
        try:
            form = delimited.find_format([path])
            found, names = tables.read(path, tables.Reading(form))
        except DataError as error:
            assert str(path) in str(error)
            return
    kind = next((k for k in ("utf-16", "utf-8-sig") if content[:2] == b"\xff\xfe" or "8" in k), "")
    separator = delimited.SEPARATORS[form.separator]
    lines = list(io.StringIO(content.decode(kind), newline=""))
    if separator == " ":
        rows = [each for line in lines if (each := re.split(" +", line.strip(" \r\n"))) != [""]]
    else:
        rows = [row for row in csv.reader(lines, delimiter=separator, skipinitialspace=True) if row]
    rows = [row for row in rows if any(map(str.strip, row))][bool(names) :]
    if form.decimal == ",":
        rows = [[cell.replace(",", ".") for cell in row] for row in rows]
    assert np.array_equal(found, np.array(rows, np.float64))


@FUZZ
@given(content=mutated(made(), made("FLAC"), made("RF64", "PCM_24", 2), made("AIFF", "PCM_16", 2)))
def test_sounds(content: bytes) -> None:
    with bounded(len(content)):
        try:
            found, rate = wav.decode(content, "a sound")
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
def test_images(content: bytes) -> None:
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


@pytest.fixture(scope="module")
def segmented(root: Path) -> Path:
    return masks(root / "masks", "0: sky\n3: earth\n7: water\n", [0, 3, 7], "P")


MASK = b"0: sky\n3: earth\n7: water\n"


@FUZZ
@given(content=mutated(MASK, b"\xef\xbb\xbfsky\r\nearth\r\n"))
def test_lists_of_classes(root: Path, content: bytes) -> None:
    path = put(root / "classes.txt", content)
    with bounded(len(content)):
        try:
            found = Classes.read(path)
        except DataError as error:
            assert str(path) in str(error)
            return
    assert len(set(found.labels)) == len(found.labels) >= 2
    known = found.numbers[(found.numbers >= 0) & (found.numbers < 255)]
    assert sorted(known.tolist()) == list(range(len(found.labels)))


@FUZZ
@given(data=mutated(*(image("PNG", mode) for mode in ("L", "P"))))
def test_masks(segmented: Path, monkeypatch_cache: None, data: bytes) -> None:
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
def monkeypatch_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))


@FUZZ
@given(content=mutated(*RIGHT.values()))
@pytest.mark.parametrize("ending", [".flo", ".pfm", ".png", ".flo.xz"])
def test_flows(root: Path, ending: str, content: bytes) -> None:
    path = put(root / f"a{ending}", content)
    with bounded(len(content)):
        try:
            found = read_flow(path)
        except DataError as error:
            assert str(path) in str(error)
            return
    assert found.flow[:, found.valid].isfinite().all()


PROSE = "Zwölf Boxkämpfer jagen\nViktor 天地玄黃 \U0001f600 quer\n" * 3


@FUZZ
@given(content=mutated(PROSE.encode(), PROSE.encode("utf-8-sig"), b"plain\n" * 9))
def test_texts(root: Path, content: bytes) -> None:
    path = put(root / "a.txt", content)
    with bounded(len(content)):
        try:
            found = "".join(text.texts(text.Piece(path)))
        except DataError as error:
            assert str(path) in str(error)
            with pytest.raises(UnicodeDecodeError):
                content.decode()
            return
    assert found == content.decode("utf-8-sig")


@FUZZ
@given(content=mutated(*(each.encode() for each in PARTS.values())))
@pytest.mark.parametrize("part", PARTS)
def test_graphs(root: Path, part: str, content: bytes) -> None:
    for name, each in PARTS.items():
        put(root / f"X_{name}.txt", content if name == part else each.encode())
    with bounded(len(content)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graphs = load_graphs(root).graphs
        except DataError as error:
            assert str(root) in str(error)
            return
    assert sum(graph.nodes for graph in graphs) > 0


@FUZZ
@given(content=mutated(tar(), tar(tarfile.GNU_FORMAT), archive.gzip.compress(tar(), mtime=0)))
def test_archives(root: Path, content: bytes) -> None:
    path = put(root / "a.tar", content)
    with bounded(len(content)):
        try:
            with reading(path, *archive.DAMAGED):
                found = dict(archive.members(path, lambda name: True))
        except DataError as error:
            assert str(path) in str(error)
            found = None
        try:
            samples = parsed(content, "a shard")
        except DataError as error:
            assert "a shard" in str(error)
            samples = None
    if found is not None:
        with tarfile.open(fileobj=io.BytesIO(content)) as opened:
            expected = {}
            for entry in opened:
                file = opened.extractfile(entry)
                if file is not None and entry.isfile():
                    expected[entry.name.removeprefix("./")] = file.read()
        assert found == expected
    if samples is not None:
        assert found is not None


@FUZZ
@given(content=mutated(zipped()))
def test_zips(root: Path, content: bytes) -> None:
    path = put(root / "a.zip", content)
    with bounded(len(content)):
        try:
            with reading(path, *archive.DAMAGED_ZIP), archive.open_zip(path, path) as opened:
                name = archive.find_member(opened, "MUTAG/MUTAG_A.txt")
                found = None if name is None else opened.read(name)
        except DataError as error:
            assert str(path) in str(error)
            return
    assert found is None or found == PARTS["A"].encode()
