"""A user's text: split, encoded and read back; hostile ones are told what is wrong with them."""

import codecs
import gzip
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import FUZZ

from equilibria.run.data import DataError
from equilibria.zoo.io import vocabulary
from equilibria.zoo.io.vocabulary import tokenize
from equilibria.zoo.language import data as text
from equilibria.zoo.language.data import reading, user
from equilibria.zoo.language.data.reading import Count, Piece

FEW = settings(FUZZ, max_examples=60)
SPLITS = ("train", "valid", "test")
PROSE = "".join(f"line {i} has {i % 7} and é {'ab' * (1 + i % 5)}\n" for i in range(400))


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "text.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_the_splits_follow_each_other(cache, tmp_path, unit):
    corpus = text.load(file=write(tmp_path, PROSE), unit=unit)
    assert tuple(corpus.splits) == SPLITS
    whole = [number for split in SPLITS for number in corpus.splits[split][:].tolist()]
    expected = tokenize(PROSE) if unit == "words" else list(PROSE)
    assert whole == corpus.vocabulary.encode(PROSE)
    assert len(whole) == len(expected)
    train = corpus.splits["train"][:].tolist()
    assert corpus.vocabulary.counts == tuple(
        np.bincount(train, minlength=corpus.vocabulary.size).tolist()
    )
    size = len(PROSE.encode())
    for split, share in zip(SPLITS, (0.9, 0.05, 0.05), strict=True):
        assert corpus.statistics[split].bytes == pytest.approx(share * size, abs=90)


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_statistics(cache, tmp_path, unit):
    corpus = text.load(file=write(tmp_path, PROSE), unit=unit, valid_share=0.2, test_share=0.3)
    parts = {}
    for split in SPLITS:
        found, tokens = corpus.statistics[split], corpus.splits[split][:]
        parts[split] = corpus.vocabulary.decode(tokens)
        assert found.tokens == len(corpus.splits[split]) == len(tokens)
        assert found.types == len(tokens.unique())
        assert found.unknown == (tokens == corpus.vocabulary.unknown).sum()
        assert found.unknown_share == found.unknown / found.tokens
        assert found.replaced == 0
        if unit == "characters":
            assert found.characters == found.tokens
    assert sum(found.characters for found in corpus.statistics.values()) == len(PROSE)
    assert sum(found.bytes for found in corpus.statistics.values()) == len(PROSE.encode())
    # The numbers of later lines do not stand in the training part.
    assert corpus.statistics["test"].unknown > 0 or unit == "characters"
    if unit == "words":
        assert all(part.endswith("\n") for part in parts.values())
        assert parts["train"] == PROSE[: len(parts["train"])]


def test_tokens(cache, tmp_path):
    tokens = text.load(file=write(tmp_path, PROSE)).splits["train"]
    assert tokens[:7].dtype == torch.int64
    places = torch.tensor([[0, 5], [2, 5]])
    assert tokens[places].tolist() == [[tokens[int(i)].item() for i in row] for row in places]
    part = tokens[3:8]
    part += 1  # a copy: the corpus stays as it is
    assert (tokens[3:8] == part - 1).all()
    assert isinstance(tokens.array, np.memmap)
    assert "array" not in repr(tokens)


@pytest.mark.parametrize(
    ("unit", "types", "dtype"),
    [("characters", 200, "u1"), ("characters", 300, "<u2"), ("words", 70_000, "<i4")],
)
def test_as_few_bytes_as_the_vocabulary_allows(cache, tmp_path, unit, types, dtype):
    if unit == "characters":
        content = "".join(chr(0x4E00 + i % types) for i in range(4000))
    else:
        content = " ".join(f"w{i % types}" for i in range(80_000))
    corpus = text.load(file=write(tmp_path, content), unit=unit)
    assert corpus.splits["train"].array.dtype == np.dtype(dtype)
    whole = [number for split in SPLITS for number in corpus.splits[split][:].tolist()]
    assert corpus.vocabulary.decode(whole) == content


def test_windows_lines_and_a_byte_order_mark(cache, tmp_path):
    lines = PROSE.replace("\n", "\r\n").encode()
    plain = text.load(file=write(tmp_path, PROSE), unit="words")
    windows = text.load(file=write(tmp_path, codecs.BOM_UTF8 + lines), unit="words")
    assert windows.vocabulary.tokens == plain.vocabulary.tokens
    characters = text.load(file=write(tmp_path, codecs.BOM_UTF8 + lines), unit="characters")
    assert "\r" in characters.vocabulary.tokens
    assert "\ufeff" not in characters.vocabulary.tokens


@FEW
@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), st.integers(1, 7))
def test_decoding_does_not_depend_on_the_blocks(monkeypatch, tmp_path, content, block):
    monkeypatch.setattr(reading, "BLOCK", block)
    piece, count = Piece(write(tmp_path, content)), Count()
    decoded = "".join(reading.read_texts(piece, "replace", count))
    expected = content.decode(errors="replace").removeprefix("\ufeff")
    assert decoded == expected
    assert count.bytes == len(content)
    assert count.characters == len(expected)
    own = content.count("\ufffd".encode())
    assert count.replaced == expected.count("\ufffd") - own
    try:
        content.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(DataError, match=rf"at offset {error.start} |UTF-16"):
            list(reading.read_texts(piece))
    else:
        assert "".join(reading.read_texts(piece)) == expected


@FEW
@given(
    st.text("ab \n\u00e9\u4e9c\U0001f600", min_size=1, max_size=120),
    st.sampled_from(["words", "characters"]),
    st.floats(0.01, 0.49),
    st.floats(0.01, 0.49),
)
def test_the_pieces_are_a_partition(tmp_path, content, unit, valid, test):
    path = write(tmp_path, content)
    pieces = user.divide_text(path, unit, valid, test)
    parts = ["".join(reading.read_texts(pieces[split])) for split in SPLITS]
    assert "".join(parts) == content
    if unit == "words":
        for before, after in itertools.pairwise(parts):
            assert not before or not after or before[-1].isspace()


def test_a_split_begins_with_a_line(tmp_path):
    path = write(tmp_path, PROSE)
    pieces = user.divide_text(path, "words", 0.2, 0.2)
    for split in SPLITS[1:]:
        assert PROSE.encode()[pieces[split].start - 1 : pieces[split].start] == b"\n"


# --- options -------------------------------------------------------------------------------------


def test_limits_of_the_vocabulary(cache, tmp_path):
    path = write(tmp_path, PROSE)
    small = text.load(file=path, unit="words", max_size=5)
    assert small.vocabulary.size == 5
    assert small.vocabulary.counts[small.vocabulary.unknown] == small.statistics["train"].unknown
    often = text.load(file=path, unit="words", min_count=100)
    assert min(c for t, c in zip(often.vocabulary.tokens, often.vocabulary.counts, strict=True)
               if t not in ("<unk>", "<eos>")) >= 100  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name is None and file is None: give one of them"),
        ({"name": "ptb", "file": "a.txt"}, "give one of them"),
        ({"name": "ptp"}, "no data set is called 'ptp'; did you mean 'ptb'"),
        ({"file": "a.txt", "unit": "bytes"}, "unit is 'bytes': expected one of words, characters"),
        ({"file": "a.txt", "errors": "ignore"}, "errors is 'ignore'"),
        ({"file": "a.txt", "min_count": 0}, "min_count is 0"),
        ({"file": "a.txt", "max_size": 2}, "max_size is 2"),
        ({"file": "a.txt", "valid_share": 0.0}, "valid_share is 0.0 and test_share 0.05"),
        ({"file": "a.txt", "valid_share": 0.5, "test_share": 0.5}, "a sum below 1"),
    ],
    ids=range(9),
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        text.load(**options)


# --- hostile texts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "unit", "message"),
    [
        ("", "words", "text.txt is empty"),
        ("", "characters", "text.txt is empty"),
        (" \n \t", "words", r"too short: 1 token by words \(train 0, valid 0, test 1\)"),
        (" \t ", "words", "too short: 0 tokens by words"),
        ("word", "words", r"1 token by words .*each split needs 2.*read it by characters"),
        ("x", "characters", "1 token by characters .*each split needs 2"),
        ("\ufeff", "characters", "0 tokens"),
        ("a b c d\n", "words", "5 tokens by words .*each split needs 2"),
        (b"abc\xffdef" * 9, "characters", r"not UTF-8: byte 0xff at offset 3 .*errors=.replace"),
        ("naïve".encode("latin1") * 9, "words", r"byte 0xef at offset 2 .*--task\.encoding NAME"),
        ("abcä".encode()[:-1] * 20, "words", "byte 0xc3 at offset 3"),
        ("some text".encode("utf-16"), "words", "it is UTF-16 by its byte order mark"),
        (gzip.compress(b"text" * 99, mtime=0), "words", r"is compressed \(gzip\).*gunzip -k"),
        (b"PK\x03\x04" + b"\0" * 99, "words", r"is compressed \(zip\)"),
    ],
    ids=range(14),
)
def test_hostile(cache, tmp_path, content, unit, message):
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=message) as caught:
        text.load(file=path, unit=unit)
    assert str(path) in str(caught.value)
    # Nothing half-made stays behind.
    left = [p.name for p in cache.glob("equilibria/text/*") if not p.name.endswith(".lock")]
    assert left == []


def test_a_folder_or_nothing(cache, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is not a regular file"):
        text.load(file=tmp_path / "pipe")
    with pytest.raises(DataError, match="is a folder: give one text file"):
        text.load(file=tmp_path)
    with pytest.raises(DataError, match=r"nothing\.txt does not exist"):
        text.load(file=tmp_path / "nothing.txt")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file/text\.txt does not exist"):
        text.load(file=tmp_path / "file" / "text.txt")


def test_invalid_bytes_far_into_a_file(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 1000)
    content = bytearray(PROSE.encode())
    for at in (8001, len(content) - 3):  # in the training part, and in the test part
        broken = bytearray(content)
        broken[at] = 0xFE
        with pytest.raises(DataError, match=f"byte 0xfe at offset {at} "):
            text.load(file=write(tmp_path, bytes(broken)), unit="words")


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_invalid_bytes_may_be_replaced(cache, tmp_path, unit):
    # Three invalid bytes, and one U+FFFD that was in the text.
    content = PROSE.encode() + b"\xff \xfe\xfe \xef\xbf\xbd " + PROSE.encode()
    corpus = text.load(file=write(tmp_path, content), unit=unit, errors="replace")
    replaced = {split: corpus.statistics[split].replaced for split in SPLITS}
    assert replaced == {"train": 3, "valid": 0, "test": 0}
    assert any("\ufffd" in token for token in corpus.vocabulary.tokens)


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_without_a_newline(cache, tmp_path, unit):
    content = " ".join(["one", "two", "three"] * 100)
    corpus = text.load(file=write(tmp_path, content), unit=unit)
    whole = [number for split in SPLITS for number in corpus.splits[split][:].tolist()]
    assert corpus.vocabulary.decode(whole) == content
    assert corpus.statistics["train"].unknown == 0


def test_one_short_line(cache, tmp_path):
    # The only newline is the last byte: it must not draw the splits' beginnings to it.
    corpus = text.load(file=write(tmp_path, "word " * 200 + "\n"), unit="words")
    assert [len(corpus.splits[split]) for split in SPLITS] == pytest.approx([180, 10, 11], abs=1)


def test_ten_megabytes_without_a_space(cache, tmp_path):
    path = write(tmp_path, "abcdefghij" * 1_000_000)
    characters = text.load(file=path, unit="characters")
    assert characters.statistics["train"].tokens == 9_000_000
    assert characters.vocabulary.size == 11
    with pytest.raises(DataError, match=r"too short: 1 token by words .*by characters"):
        text.load(file=path, unit="words")


def test_a_line_of_ten_megabytes_between_others(cache, tmp_path):
    content = PROSE * 20 + "x" * 10_000_000 + "\n" + PROSE * 20
    corpus = text.load(file=write(tmp_path, content), unit="words", valid_share=0.1)
    # It is one word, too long for a vocabulary.
    assert corpus.statistics["train"].unknown == 1
    assert max(map(len, corpus.vocabulary.tokens)) <= vocabulary.LONGEST


# --- memory --------------------------------------------------------------------------------------

GROWTH = """
import resource, sys
from equilibria.zoo.language import data as text
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for unit in ("characters", "words"):
    corpus = text.load(file=sys.argv[1], unit=unit)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(after - before, len(corpus.splits["train"]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_memory_is_bounded(cache, tmp_path):
    line = "The quick brown fox jumps over the lazy dog while naïve readers count the words .\n"
    path = tmp_path / "text.txt"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(300):
            file.write(line * 1000)
    run = subprocess.run(
        [sys.executable, "-c", GROWTH, str(path)], capture_output=True, text=True, check=True
    )
    lines = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert [tokens for _, tokens in lines] == pytest.approx([22_140_000, 4_590_000], rel=1e-3)
    # As code points or as a list of words the text takes 100 and 300 MB.
    assert max(kilobytes for kilobytes, _ in lines) * 1024 < 64e6
