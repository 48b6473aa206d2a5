"""A user's own sequences: folders, tables and arrays, and what is refused with the file's name."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.io import arrays, selection
from equilibria.zoo.recurrent.data import SequenceSet, load


def signal(number: int, steps: int = 5, channels: int = 2) -> np.ndarray:
    """Numbers that tell which sequence they are of."""
    return number + np.arange(steps * channels, dtype=np.float32).reshape(steps, channels) / 100


def text(array: np.ndarray, header: str = "") -> str:
    return header + "".join(",".join(map(str, row)) + "\n" for row in array.tolist())


def classes(root: Path, counts: dict[str, int], header: str = "", steps: int = 5) -> Path:
    """A folder for each class, with CSV files."""
    number = 0
    for label, count in counts.items():
        (root / label).mkdir(parents=True)
        for each in range(count):
            (root / label / f"{each:02}.csv").write_text(text(signal(number, steps), header))
            number += 1
    return root


def whole(found: SequenceSet) -> list[int]:
    """The numbers of all sequences of a data set."""
    parts = [found.train, found.test, *([found.valid] if found.valid else [])]
    return sorted(int(each.inputs[k, 0, 0]) for each in parts for k in range(len(each)))


# --- folders of classes --------------------------------------------------------------------------


def test_a_quarter_of_each_class_is_to_test_on(tmp_path):
    found = load(classes(tmp_path / "walks", {"up": 8, "down": 12}, "x,y\n"))
    assert (
        found.labels == ("down", "up") and found.title == "walks" and found.channels == ("x", "y")
    )
    assert found.train.targets.bincount().tolist() == [9, 6]
    assert found.test.targets.bincount().tolist() == [3, 2]
    assert whole(found) == [*range(20)] and found.valid is None
    assert found.train.lengths is None and found.train.groups is None
    assert found.train.inputs.shape == (15, 5, 2) and found.train.inputs.dtype == torch.float32
    place = int(found.train.inputs[0, 0, 0])
    assert torch.equal(found.train.inputs[0], torch.from_numpy(signal(place)))
    again = load(tmp_path / "walks")
    assert again.checksum == found.checksum


def test_a_folder_is_found_by_load_where_sequences_are_asked_for(tmp_path):
    root = classes(tmp_path / "walks", {"up": 4, "down": 4})
    found = data.load(str(root), kind=SequenceSet, title="Walks")
    assert isinstance(found, SequenceSet) and found.title == "Walks"
    with pytest.raises(DataError, match=r"csv is not an image"):  # an image folder by default
        data.load(str(root))
    with pytest.raises(DataError, match=r"no folder .*nowhere; expected .*labels\.csv"):
        data.load(str(tmp_path / "nowhere"), kind=SequenceSet)
    with pytest.raises(ValueError, match="'har3', nor any folder; did you mean 'har"):
        data.load("har3", kind=SequenceSet)


def test_parts_of_their_own_and_other_formats(tmp_path):
    for place, part in enumerate(("train", "valid", "test")):
        for k, label in enumerate(("a", "b")):
            (tmp_path / part / label).mkdir(parents=True)
            array = signal(10 * place + k)
            np.save(tmp_path / part / label / "one.npy", np.asfortranarray(array))
            np.savez_compressed(tmp_path / part / label / "two.npz", x=array + 5, other=np.ones(3))
    found = load(tmp_path)
    assert [int(x[0, 0]) for x in found.train.inputs] == [0, 1, 5, 6]
    assert found.train.targets.tolist() == found.test.targets.tolist() == [0, 1, 0, 1]
    assert int(found.valid.inputs[0, 0, 0]) == 10 and int(found.test.inputs[0, 0, 0]) == 20
    assert torch.equal(found.train.inputs[0], torch.from_numpy(signal(0)))
    assert found.channels == ("channel 1", "channel 2")


def test_sequences_of_different_lengths_are_padded(tmp_path):
    for part in ("train", "test"):
        for k, label in enumerate(("a", "b")):
            (tmp_path / part / label).mkdir(parents=True)
            np.save(tmp_path / part / label / "x.npy", signal(1 + k, 3 + 2 * k)[:, 0])
    found = load(tmp_path)
    assert found.train.inputs.shape == (2, 5, 1) and found.train.lengths.tolist() == [3, 5]
    assert (found.train.inputs[0, 3:] == 0).all() and (found.train.inputs[0, :3] >= 1).all()


def test_csv_files_may_differ_in_form(tmp_path):
    train = classes(tmp_path / "train", {"a": 1, "b": 1})
    classes(tmp_path / "test", {"a": 1, "b": 1})
    content = b'\xef\xbb\xbf"left", right \r\n1,2\r\n\r\n 3 ,"4e0"\r\n'
    (train / "a" / "00.csv").write_bytes(content)
    (train / "a" / ".hidden").write_text("x")
    found = load(tmp_path)
    assert found.channels == ("left", "right") and found.train.lengths.tolist() == [2, 5]
    assert found.train.inputs[0, :2].tolist() == [[1, 2], [3, 4]]


# --- a table of files ----------------------------------------------------------------------------


def table(root: Path, rows: list[str], header: str = "file,label") -> Path:
    """The files that the table lists, each once, with the table."""
    root.mkdir(exist_ok=True)
    for number, row in enumerate(rows):
        file = root / row.split(",")[0]
        file.parent.mkdir(exist_ok=True)
        file.write_text(text(signal(number)))
    (root / "labels.csv").write_text("\n".join([header, *rows]))
    return root


def test_a_table_names_files_and_classes(tmp_path):
    rows = [f"raw/{k}.csv,{(10, 9)[k % 2]}" for k in range(16)]
    found = load(table(tmp_path, rows))
    assert found.labels == ("9", "10")  # as numbers
    assert found.train.targets.bincount().tolist() == [6, 6]
    assert found.test.targets.bincount().tolist() == [2, 2]
    for part in (found.train, found.test):
        assert all((int(x[0, 0]) + 1) % 2 == int(y) for x, y in zip(*part[:], strict=True))


def test_a_table_names_splits_and_groups(tmp_path):
    rows = ["0.csv,train,a,tom", "1.csv,test,b,ann", "2.csv,val,b,tom", "3.csv,train,b,ann"]
    found = load(table(tmp_path, rows, "file,split,label,group"))
    assert (len(found.train), len(found.valid), len(found.test)) == (2, 1, 1)
    assert found.train.groups.tolist() == [1, 0] and found.test.groups.tolist() == [0]
    assert found.test.targets.tolist() == [1]


# --- arrays --------------------------------------------------------------------------------------


def batch(count: int = 8, **more: object) -> dict[str, object]:
    x = np.stack([signal(k) for k in range(count)])
    return {"x": x, "y": np.arange(count) % 2, **more}


def test_arrays_of_all_sequences(tmp_path):
    np.savez(tmp_path / "train.npz", **batch(y=np.array(["no", "yes"] * 4)))
    np.savez(tmp_path / "test.npz", x=np.ones((2, 7, 2)), y=np.array(["yes", "no"]))
    found = load(tmp_path)
    assert found.labels == ("no", "yes") and len(found.train) == 8 and found.valid is None
    assert found.test.targets.tolist() == [1, 0] and found.test.inputs.shape == (2, 7, 2)
    assert torch.equal(found.train.inputs[3], torch.from_numpy(signal(3)))


def test_nothing_after_the_end_of_a_sequence_is_read(tmp_path):
    x = np.arange(24.0).reshape(8, 3) + 1
    x[0, 1:] = np.nan
    np.savez(tmp_path / "train.npz", x=x, y=np.arange(8) % 2, lengths=[1, *[3] * 7])
    found = load(tmp_path)
    every = torch.cat([found.train.inputs, found.test.inputs])
    lengths = torch.cat([found.train.lengths, found.test.lengths])
    assert every.shape == (8, 3, 1) and every[lengths == 1].flatten().tolist() == [1, 0, 0]


def test_a_quarter_by_groups_where_these_are_known(tmp_path):
    groups = np.repeat([f"volunteer {k}" for k in range(12)], 10)
    np.savez(tmp_path / "train.npz", **batch(120, groups=groups))
    found = load(tmp_path)
    train, test = ({*part.groups.tolist()} for part in (found.train, found.test))
    assert not train & test and len(test) == 3
    assert found.test.targets.bincount().tolist() == [15, 15]


# --- division ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4, 10, 101])
def test_about_a_quarter_is_held_out(count):
    targets = torch.tensor([0] * count + [1] * 40)
    held = selection.hold_out_groups(targets, None, "ab", "here")
    assert abs(int(held[:count].sum()) - count / 4) <= 0.5 and int(held[count:].sum()) == 10


def test_groups_of_one_class_are_divided_within_it():
    groups = torch.arange(16).repeat_interleave(5)
    targets = (groups >= 8).long()
    held = selection.hold_out_groups(targets, groups, "ab", "here")
    assert held[targets == 0].sum() == held[targets == 1].sum() == 10
    assert all(held[groups == group].unique().numel() == 1 for group in range(16))


def test_a_class_that_would_not_be_tested_gets_a_group():
    # The few of class 1 are in groups that are too large for a quarter of class 0.
    groups = torch.tensor([0] * 50 + [1] * 50)
    targets = torch.tensor(([0] * 45 + [1] * 5) * 2)
    held = selection.hold_out_groups(targets, groups, "ab", "here")
    assert 0 < int(held.sum()) < 100 and (targets[held] == 1).sum() == 5


def test_a_class_in_one_group_cannot_be_on_both_sides():
    targets, groups = torch.tensor([0, 0, 1, 1, 0, 0]), torch.tensor([1, 1, 2, 2, 3, 3])
    with pytest.raises(DataError, match=r"here: no group of class b can be held out"):
        selection.hold_out_groups(targets, groups, "ab", "here")


# --- what is refused -----------------------------------------------------------------------------


def _csv(content: str | bytes, name: str = "a/00.csv") -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        classes(root, {"a": 3, "b": 3})
        path = root / name
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)

    return spoil


def _array(name: str, array: np.ndarray) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        classes(root, {"a": 3, "b": 3})
        np.save(root / "a" / name, array)

    return spoil


def _train(**arrays: object) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        root.mkdir()
        np.savez(root / "train.npz", **{k: v for k, v in batch(**arrays).items() if v is not None})

    return spoil


def _table(rows: list[str], header: str = "file,label", gone: str = "") -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        table(root, rows, header)
        if gone:
            (root / gone).unlink()

    return spoil


def _part(name: str, **arrays: object) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        _train()(root)
        np.savez(root / name, **batch(**arrays))

    return spoil


def _empty_class(root: Path) -> None:
    classes(root, {"a": 3, "b": 3, "c": 0})


def _single_class(root: Path) -> None:
    classes(root, {"a": 3})


def _unknown_class(root: Path) -> None:
    classes(root / "train", {"a": 3, "b": 3})
    classes(root / "test", {"a": 3, "c": 3})


def _no_training(root: Path) -> None:
    root.mkdir()
    np.savez(root / "test.npz", **batch())


def _both_valid(root: Path) -> None:
    _part("val.npz")(root)
    np.savez(root / "valid.npz", **batch())


def _zip(root: Path) -> None:
    root.mkdir()
    with zipfile.ZipFile(root / "train.npz", "w") as archive:
        archive.writestr("word/document.xml", "<x/>")


def _truncated(root: Path) -> None:
    _train()(root)
    path = root / "train.npz"
    path.write_bytes(path.read_bytes()[:-40])


def _promise(root: Path) -> None:
    """An .npy file whose header promises more than there is."""
    classes(root, {"a": 3, "b": 3})
    path = root / "a" / "x.npy"
    np.save(path, np.zeros((4, 2)))
    path.write_bytes(path.read_bytes().replace(b"(4, 2)", b"(9, 2)"))


def _damaged_header(root: Path) -> None:
    _promise(root)
    path = root / "a" / "x.npy"
    path.write_bytes(path.read_bytes().replace(b"(9, 2)", b"(9, 2("))


def _pipe(root: Path) -> None:
    classes(root, {"a": 3, "b": 3})
    os.mkfifo(root / "a" / "x.csv")


def _pickled(root: Path) -> None:
    classes(root, {"a": 3, "b": 3})
    (root / "a" / "x.npy").write_bytes(pickle.dumps([1, 2]))


RAGGED = np.empty(8, object)
RAGGED[:] = [signal(k, 3 + k) for k in range(8)]
NAN = np.where(np.arange(80).reshape(8, 5, 2) == 33, np.nan, 1.0)

BAD = {
    "text": (_csv("1,2\n3,low\n"), r"a/00\.csv, line 2, column 2: 'low' is not a number"),
    "missing value": (_csv("1,2\n3,\n"), r"a/00\.csv, line 2, column 2: the value is missing"),
    "two headers": (_csv("x,y\nx,y\n1,2\n"), r"a/00\.csv, line 2, column 1: 'x' is not a number"),
    "semicolons": (_csv("1;2\n3;4\n"), r"a/00\.csv, line 1, column 1: '1;2' is not a number"),
    "an index": (_csv(",x,y\n0,1,2\n"), r"a/00\.csv, line 1: column 1 has no name"),
    "nan": (_csv("x,y\n\n1,2\n3,nan\n"), r"a/00\.csv, line 4, column 2: the value is missing"),
    "infinite": (_csv("1,2\n-inf,4\n"), r"a/00\.csv, line 2, column 1: -inf is not a finite"),
    "beyond float32": (_csv("1,2\n1e39,4\n"), r"a/00\.csv, line 2, column 1: 1e\+39 is not"),
    "ragged": (_csv("1,2\n3\n"), r"a/00\.csv, line 2: 1 values, where lines before have 2"),
    "another width": (_csv("1,2,3\n"), r"csv has \d channels, and .*00\.csv has \d: expected the"),
    "other names": (_csv("q,r\n1,2\n", "b/01.csv"), None),
    "empty file": (_csv(""), r"a/00\.csv has no steps"),
    "header only": (_csv("x,y\n"), r"a/00\.csv has no steps"),
    "binary": (
        _csv(b"\xff\xfe1\x002\x00\xd8"),
        r"a/00\.csv is not a table .*: it is UTF-16 by its",
    ),
    "an array called csv": (_csv(b"\x93NUMPY\x01\x00v\x00"), r"a/00\.csv is not a table"),
    "another type": (_csv("x", "a/notes.md"), r"a/notes\.md is none of \.csv, \.tsv"),
    "a pipe": (_pipe, r"a/x\.csv cannot be read: it is a named pipe"),
    "a csv called npy": (_csv("1,2\n", "a/x.npy"), r"a/x\.npy is no \.npy file of NumPy"),
    "a csv called npz": (_csv("1,2\n", "a/x.npz"), r"a/x\.npz is no \.npz file of NumPy"),
    "a pickle": (_pickled, r"a/x\.npy is no \.npy file of NumPy"),
    "a promise": (_promise, r"a/x\.npy is no \.npy file of NumPy, or is damaged"),
    "a header": (_damaged_header, r"a/x\.npy is no \.npy file of NumPy, or is damaged \(its head"),
    "objects": (_array("x.npy", RAGGED), r"a/x\.npy is an array of Python objects"),
    "three axes": (_array("x.npy", np.ones((1, 5, 2))), r"x\.npy has the shape \(1, 5, 2\)"),
    "no steps": (_array("x.npy", np.ones((0, 2))), r"x\.npy has the shape \(0, 2\)"),
    "complex": (_array("x.npy", np.ones((5, 2)) * 1j), r"x\.npy is an array of complex128"),
    "nan in an array": (_array("x.npy", NAN[3]), r"x\.npy at \[1, 1\]: the value is missing"),
    "empty class": (_empty_class, r"c has no files"),
    "one class": (_single_class, r"has a single class, a"),
    "unknown class": (_unknown_class, r"test has a class c that .*train does not have"),
    "nothing": (Path.mkdir, r"has no class folders: expected .*labels\.csv"),
    "no y": (_train(y=None), r"train\.npz has the arrays x: expected x and y"),
    "another key": (_train(length=np.ones(8)), r"train\.npz has the arrays x, y, length"),
    "y too short": (_train(y=np.ones(3)), r"y in .*train\.npz has the shape \(3,\), and x \(8, 5"),
    "y of numbers": (_train(y=np.ones(8) / 2), r"y in .*train\.npz is an array of float64"),
    "y alike": (_train(y=np.ones(8, int)), r"has a single class, 1: there is nothing"),
    "lengths too long": (_train(lengths=np.full(8, 6)), r"lengths in .* \[6\], int64: .*1 to 5"),
    "lengths of zero": (_train(lengths=np.arange(8) % 2), r"lengths in .* are \[0 1\]"),
    "lengths of text": (_train(lengths=np.array(["5"] * 8)), r"lengths in .* an array of <U1"),
    "too few lengths": (_train(lengths=np.ones(7, int)), r"lengths in .* has the shape \(7,\)"),
    "too few groups": (_train(groups=np.ones(7, int)), r"groups in .* has the shape \(7,\)"),
    "x of one axis": (_train(x=np.ones(8)), r"x in .*train\.npz has the shape \(8,\)"),
    "x of objects": (_train(x=RAGGED), r"x in .*train\.npz is an array of Python objects"),
    "nan in x": (_train(x=NAN), r"x in .*train\.npz at \[3, 1, 1\]: the value is"),
    "a document": (_zip, r"train\.npz is no \.npz file of NumPy"),
    "truncated": (_truncated, r"train\.npz is no \.npz file of NumPy, or is damaged"),
    "only a test": (_no_training, r"has test\.npz and no train\.npz"),
    "two valid": (_both_valid, r"has both val\.npz and valid\.npz: keep only one"),
    "a class to test on": (_part("test.npz", y=np.arange(8)), r"test part of .* has a class 2"),
    "fewer channels": (
        _part("test.npz", x=np.ones((8, 5, 3))),
        r"x in .*test\.npz has 3 channels, and in train\.npz 2",
    ),
    "columns": (_table(["0.csv,a"], "path,label"), r"labels\.csv has the columns path, label"),
    "another column": (_table(["0.csv,a,1"], "file,label,groups"), r"columns file, label, groups"),
    "no label": (_table(["0.csv,a", "1.csv,"]), r"labels\.csv, line 3: expected a value for each"),
    "too many cells": (_table(["0.csv,a,b"]), r"labels\.csv, line 2: expected a value for each"),
    "listed twice": (_table(["0.csv,a", "0.csv,b"]), r"line 3: 0\.csv is listed twice"),
    "no such file": (_table(["0.csv,a", "1.csv,b"], gone="1.csv"), r"line 3: there is no file"),
    "a split": (_table(["0.csv,a,new"], "file,label,split"), r"the split is 'new', expected train"),
    "no training": (_table(["0.csv,a,test"], "file,label,split"), r"lists no sequences to train"),
    "an empty table": (_table([]), r"lists no sequences to train"),
    "one of a class": (
        _table(["0.csv,a", "1.csv,a", "2.csv,b"]),
        r"no sequence of class b can be held out for testing",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_by_name(tmp_path, case):
    spoil, message = BAD[case]
    spoil(tmp_path / "mine")
    if message is None:  # a single header names the channels of all
        assert load(tmp_path / "mine").channels == ("q", "r")
        return
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / "mine")
    assert str(tmp_path) in str(caught.value)


def test_files_that_name_other_channels_are_refused(tmp_path):
    root = classes(tmp_path, {"a": 2, "b": 2}, "x,y\n")
    (root / "b" / "00.csv").write_text("y,x\n1,2\n")
    with pytest.raises(DataError, match=r"has the channels y, x, and .*csv has x, y: expected the"):
        load(root)


def test_what_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    many = classes(tmp_path / "many", {"a": 20, "b": 20})
    _train(x=np.zeros((8, 500, 2)))(tmp_path / "zipped")
    np.savez_compressed(tmp_path / "zipped" / "train.npz", **batch(x=np.zeros((8, 500, 2))))
    monkeypatch.setattr(arrays, "LARGEST", 1_500)
    with pytest.raises(DataError, match=r"40 sequences padded to the 5 steps .* have 3,200 bytes"):
        load(many)
    with pytest.raises(DataError, match=r"train\.npz unpacks to 6\d,\d{3} bytes, and at most"):
        load(tmp_path / "zipped")
    (many / "a" / "00.csv").write_text("1,2\n" * 400)
    with pytest.raises(DataError, match=r"a/00\.csv has 1,600 bytes, and at most 1,500"):
        load(many)
