"""Tables of unlike makes: read right, or refused by name; none is wrong in silence."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from equilibria.run.data import DataError
from equilibria.zoo.recurrent.data import load
from equilibria.zoo.recurrent.task.sequences import SequenceClassification

VALUES = np.array([[1.5, -2.25], [3.0, 4.5], [0.125, 1000.0]])
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": "  "}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16")
MAKES = list(itertools.product(SEPARATORS, ".,", (False, True), ("\n", "\r\n"), ENCODINGS))


def folder(root: Path, content: str | bytes, name: str = "0.csv") -> Path:
    """Two classes of two files each, all alike."""
    for label in "ab":
        for number in range(2):
            path = root / label / f"{number}{name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.mark.parametrize("make", MAKES, ids=str)
def test_every_make_gives_the_same_numbers(tmp_path, make):
    separator, decimal, header, newline, encoding = make
    cells = [[str(each).replace(".", decimal) for each in row] for row in VALUES.tolist()]
    if separator == "comma" and decimal == ",":  # which needs quotation marks
        cells = [[f'"{cell}"' for cell in row] for row in cells]
    rows = [["left", "right"]] * header + cells
    text = newline.join(SEPARATORS[separator].join(row) for row in rows) + newline
    found = load(folder(tmp_path, text.encode(encoding)))
    assert np.array_equal(found.train.inputs[0], VALUES)
    assert found.channels == (("left", "right") if header else ("channel 1", "channel 2"))
    sign = {".": "point", ",": "comma"}[decimal]
    assert found.form == f"columns separated by {separator}, decimal {sign}"


ONE = "2,126\n1,868\n1,5\n"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (ONE, {}, "can be read in two ways.*--task.separator comma or --task.separator semicolon"),
        (ONE, {"separator": "comma"}, [[2, 126], [1, 868], [1, 5]]),
        (ONE, {"separator": "semicolon"}, [[2.126], [1.868], [1.5]]),
        (f"metres\n{ONE}", {}, [[2.126], [1.868], [1.5]]),
        (f"x,y\n{ONE}", {}, [[2, 126], [1, 868], [1, 5]]),
        (f"{ONE}-3,-4\n", {}, [[2, 126], [1, 868], [1, 5], [-3, -4]]),
        (f"{ONE}3,\n", {"separator": "comma"}, "the value is missing"),
        ("1,2,3\n4,5,6\n", {}, [[1, 2, 3], [4, 5, 6]]),
        ("1;2\n3;4\n", {}, [[1, 2], [3, 4]]),
        ("1.234,5;2\n3;4\n", {}, "is not a number"),
        ("1_0,2\n3,4.5\n", {}, "'1_0' is not a number"),
        ("# a,b\n1.5,2\n", {}, [[1.5, 2]]),
        ("NA,NA\n1.5,2\n", {}, "line 1, column 1: the value is missing"),
        ("NA,NA\n1.5,2\n", {"missing": "drop"}, [[1.5, 2]]),
        ("1.5;\n2.5;3\n4.5;5\n", {"missing": "interpolate"}, [[1.5, 3], [2.5, 3], [4.5, 5]]),
        ("1.5;1\n?;#N/A\n3.5;5\n", {"missing": "interpolate"}, [[1.5, 1], [2.5, 3], [3.5, 5]]),
        ("1.5;1\nnan;3\n3.5;5\n", {"missing": "drop"}, [[1.5, 1], [3.5, 5]]),
        ("1.5;\n2.5;\n", {"missing": "interpolate"}, "all values of channel 2 are missing"),
        ("1.5;\n2.5;\n", {"missing": "drop"}, "and in all steps"),
        ("1.5;inf\n", {"missing": "drop"}, "inf is not a finite number"),
        ('"1.5,2\n', {}, "is not a table"),
        ("Zeit;Beschl. (x,y)\n1,5;2\n3,5;4\n", {}, [[1.5, 2], [3.5, 4]]),
        ("Zeit;Beschl. (x,y)\n1,5;2\n", {"separator": "semicolon"}, [[1.5, 2]]),
        ("x;y\n" + "1;2\n" * 3000 + "0,5;1,5\n", {}, [*[[1, 2]] * 3000, [0.5, 1.5]]),
        ("1,2\n" * 3000 + "-1,-2\n", {}, [*[[1, 2]] * 3000, [-1, -2]]),
        ("sep=;\nx;y\n1,5;2\n", {}, [[1.5, 2]]),
        ("04.11.2025 08:15;-0,943;2\n", {}, "semicolon, decimal comma, and names in the first"),
        ("1.5,2\n", {"separator": "bar"}, "'1.5,2' is not a number"),
        ("1.5,2\n", {"channel": 2}, "channel is 2, and .* has no .wav, .flac"),
        ("1.5,2\n3.5\n", {}, "1 values, where lines before have 2"),
    ],
    ids=lambda each: repr(each)[:30],
)
def test_what_is_ambiguous_or_missing(tmp_path, text, options, expected):
    root = folder(tmp_path, text)
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            load(root, **options)
    else:
        assert np.allclose(load(root, **options).train.inputs[0], expected)


@pytest.mark.parametrize("name", ["labels.csv", "train.npz", "a.npy"])
def test_missing_values_of_other_forms(tmp_path, name):
    whole = np.array([[1.0, 5.0], [np.nan, 6.0], [3.0, 7.0]])
    if name == "train.npz":
        np.savez(tmp_path / name, x=np.stack([whole] * 8), y=np.arange(8) % 2 * 1.0)
    else:
        for label in "ab":
            (tmp_path / label).mkdir()
            for number in range(2):
                np.save(tmp_path / label / f"{number}.npy", whole)
    if name == "labels.csv":
        lines = [f"{label}/{number}.npy;{label}" for label in "ab" for number in range(2)]
        (tmp_path / name).write_bytes("\n".join(["file;label", *lines]).encode("utf-8-sig"))
    with pytest.raises(DataError, match=r"at \[.*1, 0\]: the value is missing; .*--task.missing"):
        load(tmp_path)
    assert load(tmp_path, missing="interpolate").train.inputs[0].tolist()[1] == [2, 6]
    assert load(tmp_path, missing="drop").train.inputs.shape[1:] == (2, 2)


@pytest.mark.parametrize("offset", [0.0, 1.7e9, 1e8])
@pytest.mark.parametrize("form", ["csv", "npy", "npz"])
def test_an_offset_costs_a_channel_nothing(tmp_path, form, offset):
    waves = 0.1 * np.sin(np.arange(40.0)[:, None] * [0.1, 0.3])
    if form == "npz":
        np.savez(tmp_path / "train.npz", x=np.stack([waves + offset] * 8), y=np.arange(8) % 2)
    else:
        for label, number in itertools.product("ab", range(4)):
            path = tmp_path / label / f"{number}.{form}"
            path.parent.mkdir(exist_ok=True)
            if form == "npy":
                np.save(path, waves + offset)
            else:
                np.savetxt(path, waves + offset, "%.9f", ",")
    task = SequenceClassification(data=str(tmp_path)).load()
    x = next(iter(task.batches("test", 1))).inputs
    expected = (waves - waves.mean(0)) / waves.std(0)
    assert x.dtype == torch.float32
    assert np.abs(x[0].numpy() - expected).max() < 1e-5


def test_what_float32_holds_stays_float32(tmp_path):
    root = folder(tmp_path, "pressure\n101325.0\n101326.5\n101324.25\n")
    assert load(root).train.inputs.dtype == torch.float32


def test_an_offset_that_is_not_subtracted_is_said(tmp_path):
    root = folder(tmp_path, "time,x\n1700000000.0,1.5\n1700000001.0,2.5\n")
    with pytest.warns(UserWarning, match="^time varies by less than float32 can tell"):
        SequenceClassification(data=str(root), standardize=False).load()


@pytest.mark.parametrize("head", ["file,   label", "file   , label", "file;label", "label\tfile"])
def test_a_list_of_files_may_be_aligned(tmp_path, head):
    sign = re.sub(r"\w", "", head)
    order = reversed if head.startswith("label") else list
    rows = []
    for label, number in itertools.product("ab", range(2)):
        (tmp_path / f"{label}{number}.csv").write_text("1.5,2.5\n")
        rows.append(sign.join(order([f"{label}{number}.csv", label])))
    (tmp_path / "labels.csv").write_text("\n".join([head, *rows]))
    assert load(tmp_path).labels == ("a", "b")


def test_how_a_folder_is_read_is_for_that_folder(tmp_path):
    config = SequenceClassification(data=str(folder(tmp_path / "own", "1;2\n3;4,5\n")))
    assert replace(config, separator="semicolon").load().notes.endswith("decimal comma")
    with pytest.raises(ValueError, match="separator is for a folder of your own, and 'har2'"):
        SequenceClassification(data="har2", separator="semicolon").load()
    task = replace(config, separator="semicolon").load()
    task.save(tmp_path)
    other = replace(config, separator="semicolon").at(folder(tmp_path / "b", "1,2.5\n3,4.5\n"))
    assert (
        found := other.load_other(tmp_path)
    ).notes == "columns separated by comma, decimal point"
    assert sum(len(each.targets) for each in found.batches("test", 3)) == 4  # all of it


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path):
    lines = []
    for number, label in itertools.product(range(2), ("10.0", "2.0", "-1.5")):
        (tmp_path / f"{label}-{number}.csv").write_text("1.5,2.5\n")
        lines.append(f"{label}-{number}.csv\t{label}")
    (tmp_path / "labels.csv").write_text("\n".join(["file\tlabel", *lines]))
    assert load(tmp_path).labels == ("-1.5", "2.0", "10.0")
