"""Texts, graphs and archives of unlike makes: read right, or refused by name; none in silence."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from file_server import serving

from equilibria.run.data import DataError
from equilibria.run.data.errors import reading
from equilibria.zoo.graph.data import load_graphs, load_nodes
from equilibria.zoo.io import archive
from equilibria.zoo.io.fetch import fetch
from equilibria.zoo.language import data as text
from equilibria.zoo.vision.data.shards.archive import parsed

# --- texts ---------------------------------------------------------------------------------------

PROSE = {
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. ": (
        *("cp1252", "latin-1", "cp1250", "mac_roman", "cp437", "cp850", "iso8859-15", "cp1254"),
    ),
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ": (
        *("koi8-r", "cp1251", "iso8859-5", "cp866", "mac_cyrillic", "koi8-u"),
    ),
    "いろはにほへとちりぬるを、わかよたれそつねならむ。": ("shift_jis", "euc_jp", "cp932"),
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。": ("gb18030", "gbk", "gb2312"),
    "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。": ("big5", "big5hkscs"),
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. ": ("euc_kr", "cp949"),
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ": ("cp1253", "iso8859-7", "mac_greek"),
    "plain words without any accent ": ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"),
    "naïve words with a mark ": ("utf-16", "utf-32"),
}
TEXTS = [(prose, encoding) for prose, encodings in PROSE.items() for encoding in encodings]


def tokens(path: Path, **options: Any) -> list[str]:
    found = text.load(file=path, unit="characters", **options)
    names = found.vocabulary.tokens
    return [names[each] for split in found.splits.values() for each in split[:].tolist()]


@pytest.mark.parametrize(("prose", "encoding"), TEXTS, ids=[each for _, each in TEXTS])
def test_every_encoding(tmp_path: Path, cache: Path, prose: str, encoding: str) -> None:
    (tmp_path / "utf8.txt").write_bytes((prose * 40).encode())
    (tmp_path / "mark.txt").write_bytes((prose * 40).encode("utf-8-sig"))
    path = tmp_path / "a.txt"
    path.write_bytes((prose * 40).encode(encoding))
    expected = tokens(tmp_path / "utf8.txt")
    assert tokens(tmp_path / "mark.txt") == expected
    with pytest.raises(
        DataError, match=r"a\.txt (is not UTF-8|has many bytes that are 0).*encoding"
    ):
        tokens(path)
    assert tokens(path, encoding=encoding) == expected
    assert not list(cache.rglob("text.utf-8"))  # nothing is left of the conversion


def test_the_message_names_the_encoding_and_the_doubt(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((next(each for each in PROSE if "Съ" in each) * 20).encode("koi8-r"))
    with pytest.raises(
        DataError, match=r"it looks like koi8-r.* \(\d+ % of its .*\).*task.encoding"
    ):
        tokens(path)
    with pytest.raises(DataError, match="is not in the encoding ascii"):
        tokens(path, encoding="ascii")
    for name in ("klingon", "base64", "a\0b"):
        with pytest.raises(ValueError, match=r"encoding is .*, which Python does not know"):
            tokens(path, encoding=name)
    with pytest.raises(ValueError, match="errors is 'replace', which is for utf-8, not for koi8"):
        tokens(path, encoding="koi8-r", errors="replace")
    assert tokens(path, encoding="UTF-8", errors="replace")
    path.write_bytes(("na\xefve words in a row, with an accent. " * 20).encode("cp1252"))
    with pytest.raises(DataError, match="it looks like cp1252 or"):
        tokens(path)
    with pytest.raises(TypeError, match=r"give a file as load\(file=.*a\.txt"):
        text.load(cast(Any, path))


# --- graphs --------------------------------------------------------------------------------------

PARTS = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "0\n1\n",
    "node_labels": "1\n3\n1\n2\n1\n",
}
CHANGES: dict[str, Callable[[str], str]] = {
    "as they are": lambda text: text,
    "a mark": lambda text: "\ufeff" + text,
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "no last newline": lambda text: text.rstrip(),
    "empty lines after": lambda text: text + "\n\n",
    "no spaces": lambda text: text.replace(" ", ""),
    "wide spaces": lambda text: text.replace(" ", "   "),
    "floats": lambda text: "".join(f"{each}.0" if each.isdigit() else each for each in text),
    "a mark and returns": lambda text: "\ufeff" + text.replace("\n", "\r\n"),
    "floats with a mark": lambda text: "\ufeff" + text.replace("1\n", "1.00\n"),
}
ODD = {
    "a half": (lambda text: text.replace("1\n", "1.5\n", 1), "expected whole numbers"),
    "a word": (lambda text: text.replace("1", "one", 1), "is damaged or the wrong file"),
    "nothing": (lambda text: "", "it is empty"),
    "infinite": (lambda text: text.replace("1", "inf", 1), "expected finite numbers"),
    "one line less": (lambda text: text[: text.rstrip().rfind("\n") + 1], None),
    "a column more": (lambda text: text.replace("\n", ", 1\n", 1), None),
}


@pytest.mark.parametrize(("part", "change"), list(itertools.product([*PARTS, "all"], CHANGES)))
def test_every_make_of_graph(tmp_path: Path, part: str, change: str) -> None:
    for name, content in PARTS.items():
        changed = CHANGES[change](content) if part in (name, "all") else content
        (tmp_path / f"X_{name}.txt").write_bytes(changed.encode())
    first, second = load_graphs(tmp_path).graphs
    assert first.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert first.x.tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert second.x.tolist() == [[0, 1, 0], [1, 0, 0]] and (first.y, second.y) == (0, 1)


@pytest.mark.parametrize(("part", "odd"), list(itertools.product(PARTS, ODD)))
def test_graphs_that_do_not_fit(tmp_path: Path, part: str, odd: str) -> None:
    change, message = ODD[odd]
    for name, content in PARTS.items():
        changed = change(content) if part == name else content
        (tmp_path / f"X_{name}.txt").write_bytes(changed.encode())
    try:
        found = load_graphs(tmp_path)
    except DataError as error:
        assert str(tmp_path) in str(error)
        assert message is None or message in str(error)
    else:
        assert (part, odd) == ("A", "one line less") and found.graphs[1].edges == 1


def test_edges_are_repeated_or_lead_back(tmp_path: Path) -> None:
    for name, content in PARTS.items():
        (tmp_path / f"X_{name}.txt").write_text(content + "1, 1\n1, 2\n" * (name == "A"))
    with pytest.warns(UserWarning, match="X_A.txt in .* has 2 edges that are repeated or join"):
        assert load_graphs(tmp_path).graphs[0].edges == 4
    edges = np.array([[0, 1, 1, 2], [1, 0, 0, 2]])
    arrays = {"x": np.ones((6, 2)), "edge_index": edges, "y": np.arange(6) % 2.0}
    np.savez(tmp_path / "a.npz", **arrays, edge_weight=np.array([1, 1, 1, 0.5]))
    with (
        pytest.warns(UserWarning, match="1 edges that are repeated: .* add up"),
        pytest.warns(UserWarning, match="1 edges from a node to itself, one with the weight 0.5"),
    ):
        assert load_nodes(tmp_path / "a.npz").train[0].y.dtype == torch.int64


def test_features_that_float32_cannot_tell_apart(tmp_path: Path) -> None:
    x = 1.7e9 + np.arange(6.0)[:, None]
    edges = np.zeros((2, 0), np.int64)
    np.savez(tmp_path / "a.npz", x=x, edge_index=edges, y=np.arange(6) % 2)
    with pytest.warns(UserWarning, match="column 0 of x in .* than float32 can tell"):
        load_nodes(tmp_path / "a.npz")


# --- archives ------------------------------------------------------------------------------------

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
MEMBERS = {f"{n:03}.cls": f"{n}\n".encode() * 200 for n in range(8)}


def tar(form: int = tarfile.PAX_FORMAT) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as packed:
        for name, each in MEMBERS.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(each)
            packed.addfile(entry, io.BytesIO(each))
    return content.getvalue()


STEP = 1024
"""From one header to the next."""


def end() -> int:
    """Where the last member of `tar` ends."""
    return len(tar().rstrip(b"\0")) // 512 * 512 + 512


def read_both(content: bytes, path: Path) -> None:
    """An archive, as a data set's and as a shard."""
    path.write_bytes(content)
    with reading(path, *archive.DAMAGED):
        assert dict(archive.members(path, lambda name: True)) == MEMBERS
    found = parsed(content, str(path))
    assert [each["cls"] for each in found] == list(MEMBERS.values())


@pytest.mark.parametrize(("form", "packer"), list(itertools.product(FORMATS, PACKERS)))
def test_every_make_of_archive(tmp_path: Path, form: str, packer: str) -> None:
    content = tar(FORMATS[form])
    read_both(PACKERS[packer](content), tmp_path / "a.tar")
    read_both(PACKERS[packer](content.rstrip(b"\0").ljust(end() + 1024, b"\0")), tmp_path / "b.tar")
    read_both(PACKERS[packer](content + bytes(99 * 512)), tmp_path / "c.tar")


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a bit of a header": lambda tar: flipped(tar, 5 * STEP + 20),
    "a bit of a checksum": lambda tar: flipped(tar, 5 * STEP + 150),
    "a zero header": lambda tar: tar[: 5 * STEP] + bytes(512) + tar[5 * STEP + 512 :],
    "zeros in the middle": lambda tar: tar[: 5 * STEP] + bytes(1024) + tar[5 * STEP + 1024 :],
    "cut at a member": lambda tar: tar[: 5 * STEP],
    "cut in a member": lambda tar: tar[: 5 * STEP + 700],
    "cut in a header": lambda tar: tar[: 5 * STEP + 100],
    "no end": lambda tar: tar[: end()],
    "half an end": lambda tar: tar[: end()] + bytes(512),
    "more than an end": lambda tar: tar + b"more",
    "another archive behind": lambda tar: tar + tar,
}


@pytest.mark.parametrize(("damage", "packer"), list(itertools.product(DAMAGE, PACKERS)))
def test_an_archive_that_ends_early_is_refused(tmp_path: Path, damage: str, packer: str) -> None:
    content = PACKERS[packer](DAMAGE[damage](tar()))
    path = tmp_path / "a.tar"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar is damaged"):
        list(archive.members(path, lambda name: True))
    with pytest.raises(DataError, match=r"a\.tar is damaged"):
        parsed(content, str(path))


@pytest.mark.parametrize("packer", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("cut", [1, 4, 8])
def test_a_packing_without_its_end_is_refused(tmp_path: Path, packer: str, cut: int) -> None:
    content = PACKERS[packer](tar())[:-cut]
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar is damaged"):
        list(archive.members(tmp_path / "a.tar", lambda name: True))
    with pytest.raises(DataError, match=r"a\.tar is damaged"):
        parsed(content, str(tmp_path / "a.tar"))


def zipped(method: int = zipfile.ZIP_DEFLATED, folder: str = "MUTAG/", twice: str = "") -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as packed:
        for name, each in PARTS.items():
            packed.writestr(f"{folder}MUTAG_{name}.txt", each)
        if twice:
            with pytest.warns(UserWarning, match="Duplicate"):
                packed.writestr(f"{folder}MUTAG_{twice}.txt", "1\n")
    return content.getvalue()


def encrypted() -> bytes:
    content = bytearray(zipped())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = -1
        while (place := content.find(signature, place + 1)) >= 0:
            content[place + flags] |= 1
    return bytes(content)


ZIPS: dict[str, tuple[Callable[[], bytes], str | None]] = {
    "stored": (lambda: zipped(zipfile.ZIP_STORED), None),
    "deflated": (zipped, None),
    "bzip2": (lambda: zipped(zipfile.ZIP_BZIP2), None),
    "lzma": (lambda: zipped(zipfile.ZIP_LZMA), None),
    "without a folder": (lambda: zipped(folder=""), None),
    "another folder": (lambda: zipped(folder="mine/"), "has no MUTAG_A.txt"),
    "encrypted": (encrypted, "is encrypted: pack it anew"),
    "two of one name": (lambda: zipped(twice="A"), "has two members called MUTAG/MUTAG_A.txt"),
    "cut": (lambda: zipped()[:-30], "is damaged"),
    "a bit": (lambda: flipped(zipped(zipfile.ZIP_STORED), 50), "is damaged"),
    "nothing": (lambda: b"", "is damaged"),
    "a page": (lambda: b"<html>", "is damaged"),
}


@pytest.mark.parametrize("make", ZIPS)
def test_every_make_of_zip(tmp_path: Path, cache: Path, make: str) -> None:
    from equilibria.run import data

    content, message = ZIPS[make]
    (tmp_path / "MUTAG.zip").write_bytes(content())
    if message is None:
        assert len(data.load("mutag", tmp_path, download=False).graphs) == 2
    else:
        with pytest.raises(DataError, match=message):
            data.load("mutag", tmp_path, download=False)


# --- downloads without a checksum ----------------------------------------------------------------


ANSWERS: dict[str, tuple[str, int, dict[str, str], bytes, str]] = {
    "a page": ("a.bin", 200, {}, b"<!DOCTYPE html><p>", "sent a page"),
    "a page with a mark": ("a.txt", 200, {}, b"\xef\xbb\xbf <HTML>", "sent a page"),
    "no content": ("a.bin", 204, {}, b"", "HTTP 204"),
    "an empty body": ("a.bin", 200, {}, b"", "empty file"),
    "packed": ("a.bin", 200, {"Content-Encoding": "gzip"}, gzip.compress(b"a"), "are packed"),
    "a length of letters": ("a.bin", 200, {"Content-Length": "abc"}, b"a", "Content-Length is"),
    "no length": ("a.bin", 200, {"Content-Length": ""}, b"a", "gave no length"),
    "a cut zip": ("a.zip", 200, {"Content-Length": ""}, zipped()[:-9], r"no \.zip file, or is cut"),
    "a cut gzip": ("a.gz", 200, {"Content-Length": ""}, gzip.compress(b"a")[:-3], r"\.gz file"),
    "a cut tar": ("a.tar", 200, {"Content-Length": ""}, tar()[:4608], r"\.tar file"),
    "a cut tar.xz": ("a.tar.xz", 200, {"Content-Length": ""}, lzma.compress(tar())[:-5], r"\.xz"),
    "another archive": ("a.zip", 200, {}, tar(), r"no \.zip file"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_wrong_answer_is_refused_and_the_next_address_asked(tmp_path: Path, answer: str) -> None:
    name, status, head, body, message = ANSWERS[answer]
    with serving() as server:
        server.answers[f"odd/{name}"] = (status, head, body)
        with pytest.raises(DataError, match=message):
            fetch(server.url(f"odd/{name}"), tmp_path / name)
        assert not (tmp_path / name).exists()
        good = {".zip": zipped(), ".gz": gzip.compress(b"a"), ".tar": tar()}
        right = good.get(Path(name).suffix, lzma.compress(b"a"))
        server.files[f"good/{name}"] = right
        urls = [server.url(f"odd/{name}"), server.url(f"good/{name}")]
        assert fetch(urls, tmp_path / name).read_bytes() == right


def test_an_archive_tells_its_own_end(tmp_path: Path) -> None:
    with serving() as server:
        server.answers["a.zip"] = (200, {"Content-Length": ""}, zipped())
        assert fetch(server.url("a.zip"), tmp_path / "a.zip").read_bytes() == zipped()
