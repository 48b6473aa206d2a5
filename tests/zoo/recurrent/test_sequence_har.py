"""HAR: the official windows packed and unpacked, those cut from raw signals, and damage."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.io.remote import cache_tensors, data_folders
from equilibria.zoo.recurrent.data import SequenceSet, har
from packed import zip_of

COUNTS = {"train": 12, "test": 6}


def official() -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """The text files by name, and the windows that they hold."""
    random = np.random.default_rng(0)
    files, windows = {}, {}
    for split, count in COUNTS.items():
        x = random.standard_normal((count, 128, 9)).astype(np.float32)
        y = np.arange(count) % 6
        volunteers = np.arange(count) // 3 + 1
        windows |= {f"{split}.x": x, f"{split}.y": y, f"{split}.volunteer": volunteers}
        files[f"{split}/y_{split}.txt"] = text(y[:, None] + 1, "%d")
        files[f"{split}/subject_{split}.txt"] = text(volunteers[:, None], "%d")
        for place, channel in enumerate(har.CHANNELS):
            # As they are published: columns of a fixed width.
            files[f"{split}/Inertial Signals/{channel}_{split}.txt"] = text(
                x[:, :, place], "%16.7e"
            )
    return files, windows


def text(array: np.ndarray, form: str) -> bytes:
    buffer = io.BytesIO()
    np.savetxt(buffer, array, form)
    return buffer.getvalue()


@pytest.fixture
def small(monkeypatch, cache):
    """An empty cache, and archives of any content taken for the published ones."""
    monkeypatch.setattr(har, "COUNTS", COUNTS)
    for name in ("HAR2", "HAR6"):
        entry = getattr(har, name)
        remotes = tuple(replace(remote, checksums={}) for remote in entry.remotes)
        monkeypatch.setattr(har, name, replace(entry, remotes=remotes))
    return cache


def write(root: Path, files: dict[str, bytes], *, unpacked: bool) -> None:
    root.mkdir(parents=True, exist_ok=True)
    if not unpacked:
        content = {"__MACOSX/._x": b"x"} | {f"UCI HAR Dataset/{k}": v for k, v in files.items()}
        (root / "UCI HAR Dataset.zip").write_bytes(zip_of(content))
        return
    for name, content in files.items():
        path = root / "UCI HAR Dataset" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("unpacked", [False, True], ids=["archive", "folder"])
@pytest.mark.parametrize("place", ["har", "har2", "."])
def test_the_official_windows_are_read(small, tmp_path, place, unpacked):
    files, windows = official()
    write(tmp_path / place, files, unpacked=unpacked)
    six = data.load("har6", tmp_path, download=False)
    assert six.title == "HAR-6" and six.labels == har.ACTIVITIES and six.channels == har.CHANNELS
    for split in COUNTS:
        found = getattr(six, split)
        assert found.inputs.dtype == torch.float32 and found.lengths is None
        np.testing.assert_allclose(found.inputs.numpy(), windows[f"{split}.x"], rtol=1e-6)
        assert found.targets.tolist() == windows[f"{split}.y"].tolist()
        assert found.groups.tolist() == windows[f"{split}.volunteer"].tolist()


def test_har2_is_three_activities_against_three(small, tmp_path):
    write(tmp_path, official()[0], unpacked=False)
    two = data.load("har2", tmp_path, download=False)
    first = {"SITTING", "LAYING", "WALKING_UPSTAIRS"}
    assert [set(label.split("/")) for label in two.labels] == [first, {*har.ACTIVITIES} - first]
    named = [har.ACTIVITIES[k] in first for k in range(6)]
    assert two.test.targets.tolist() == [int(not each) for each in named]


def test_the_windows_are_made_once(small, tmp_path, monkeypatch):
    write(tmp_path, official()[0], unpacked=False)
    first = data.load("har2", tmp_path, download=False)
    monkeypatch.setattr(har, "_parse", lambda paths: pytest.fail("the files were read again"))
    assert data.load("har2", tmp_path, download=False).checksum == first.checksum
    assert data.load("har6", tmp_path, download=False).train.groups is not None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/y_train.txt", b"1\n2\n", r"y_train\.txt has 2 rows of 1 numbers: expected 12 of 1"),
        ("test/y_test.txt", b"7\n" * 6, r"y_test\.txt has another activity than 1 to 6"),
        ("train/subject_train.txt", b"one\n" * 12, r"subject_train\.txt in .* is damaged"),
        ("train/subject_train.txt", b"", r"subject_train\.txt has 1 rows of 0 numbers"),
        (
            "test/Inertial Signals/body_acc_x_test.txt",
            b"nan " * 128 * 6,
            r"body_acc_x_test\.txt in .*zip is damaged .*not finite",
        ),
        ("test/Inertial Signals/body_acc_x_test.txt", None, r"does not contain .*body_acc_x_test"),
    ],
)
def test_another_archive_is_refused(small, tmp_path, name, content, message):
    files, _ = official()
    files.pop(name)
    if content is not None:
        files[name] = content
    write(tmp_path, files, unpacked=False)
    with pytest.raises(DataError, match=message):
        data.load("har6", tmp_path, download=False)
    assert not list(small.rglob("*.safetensors"))


def test_the_published_archive_is_known_by_its_checksum(cache, tmp_path):
    write(tmp_path, official()[0], unpacked=False)
    with pytest.raises(DataError, match=r"Dataset\.zip is damaged or the wrong file: its sha256"):
        data.load("har2", tmp_path, download=False)


# --- windows from raw signals --------------------------------------------------------------------


def raw(root: Path) -> dict[str, np.ndarray]:
    """Two trials, of a volunteer to train on and one to test on, each with two stretches."""
    random = np.random.default_rng(1)
    stretches = ((1, 11, 300), (9, 301, 310), (5, 311, 739))
    labels = [
        (trial + 1, volunteer, activity, first, last)
        for trial, volunteer in enumerate((1, 2))
        for activity, first, last in stretches
    ]
    content = {
        "acc": random.standard_normal((1700, 3)).astype(np.float32),
        "gyro": random.standard_normal((1700, 3)).astype(np.float32),
        "trials": np.array([(1, 1, 0, 800), (2, 2, 800, 1700)], np.int32),
        "labels": np.array(labels, np.int32),
    }
    np.savez(root / "hapt_raw.npz", **content)
    return content


def test_windows_are_cut_from_filtered_signals(small, tmp_path):
    from scipy import signal  # takes as long to import as all else here to collect

    content = raw(tmp_path)
    with pytest.warns(UserWarning, match=r"HAR-6 \(rebuilt\) is read from .*hapt_raw\.npz"):
        found = data.load("har6", tmp_path, download=False)
    assert found.title == "HAR-6 (rebuilt)" and found.source.endswith("hapt_raw.npz")
    for split, volunteer, start, stop in (("train", 1, 0, 800), ("test", 2, 800, 1700)):
        part = getattr(found, split)
        # 290 samples give three windows, 429 five; the transition between them none.
        assert part.targets.tolist() == [0, 0, 0, 4, 4, 4, 4, 4]
        assert part.groups.tolist() == [volunteer] * 8
        calm = [
            signal.filtfilt(
                *signal.butter(3, 20 / 25), signal.medfilt(content[name][start:stop, axis], 3)
            )
            for name in ("acc", "gyro")
            for axis in range(3)
        ]
        total = np.array(calm[:3])
        body = total - signal.filtfilt(*signal.butter(3, 0.3 / 25), total)
        nine = np.concatenate([body, calm[3:], total]).T
        begins = [10, 74, 138, *(310 + 64 * k for k in range(5))]
        expected = np.stack([nine[begin : begin + 128] for begin in begins])
        np.testing.assert_allclose(part.inputs.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_official_windows_come_before_rebuilt_ones(small, tmp_path):
    raw(tmp_path)
    write(tmp_path, official()[0], unpacked=True)
    assert data.load("har2", tmp_path, download=False).title == "HAR-2"


# --- what is kept --------------------------------------------------------------------------------


def test_a_damaged_file_of_the_cache_is_made_again(cache):
    made = []

    def make() -> dict[str, torch.Tensor]:
        made.append(1)
        return {"x": torch.arange(1000.0), "y": torch.zeros(3, dtype=torch.int64)}

    for _ in range(2):
        assert torch.equal(cache_tensors("a/b", make)["x"], torch.arange(1000.0))
    assert len(made) == 1
    (path,) = cache.rglob("b.safetensors")
    whole = bytearray(path.read_bytes())
    whole[-100] ^= 1
    for damaged in (bytes(whole), b"", b"\0" * 20):
        path.write_bytes(damaged)
        assert torch.equal(cache_tensors("a/b", make)["x"], torch.arange(1000.0))
    assert len(made) == 4


# --- real data -----------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.filterwarnings("ignore:HAR")
def test_the_real_signals_give_the_windows_that_were_counted(real):
    if not any(remote.find(data_folders("har6")) for remote in har.HAR6.remotes):
        pytest.skip("EQUILIBRIA_DATA names no folder with HAR")
    six: SequenceSet = data.load("har6", download=False)
    train, test = six.train, six.test
    if six.title == "HAR-6":
        assert train.targets.bincount().tolist() == [1226, 1073, 986, 1286, 1374, 1407]
        assert test.targets.bincount().tolist() == [496, 471, 420, 491, 532, 537]
    else:
        assert (len(train), len(test)) == (7_415, 2_996)
        assert train.targets.bincount().tolist() == [1226, 1073, 987, 1293, 1423, 1413]
        assert test.targets.bincount().tolist() == [496, 471, 420, 508, 556, 545]
    assert sorted({*test.groups.tolist()}) == [*har.TESTED]
    assert not {*test.groups.tolist()} & {*train.groups.tolist()}
    inputs, _ = train[:]
    # Gravity is in the total acceleration, mostly along x, and not in the body's.
    assert (
        abs(inputs[..., 6].mean() - 0.8) < 0.05
        and inputs[..., :3].mean(dim=(0, 1)).abs().max() < 0.01
    )
