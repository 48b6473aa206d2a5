"""Data sets by their names: registered, from official files, a copy, or damaged."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from equilibria.run import data
from equilibria.run import recipe as recipes
from equilibria.run.data import DataError, Dataset, Split
from equilibria.run.loop import train
from equilibria.run.registry import find
from equilibria.zoo.io.remote import Entry, Files, Remote
from file_server import serving
from pictures import folder

OFFICIAL, COPY = b"0 1\n1 2\n2 0\n", b"0 1\n"
"""The edges of a graph."""


def read(files, *, directed=True):
    """What any reader is: the files become whatever the data set is."""
    lines = [line.split() for path in files.paths for line in path.read_text().split("\n") if line]
    edges = [(int(a), int(b)) for a, b in lines]
    edges += [] if directed else [(b, a) for a, b in edges]
    return {"edges": edges, "title": files.title, "source": files.source}


@pytest.fixture
def server(monkeypatch, cache):
    with serving() as server:
        server.files = {"edges.txt": OFFICIAL, "weights.txt": b"\n"}
        official = Remote(
            files=("edges.txt", "weights.txt"),
            addresses=(server.url(""),),
            checksums={"edges.txt": f"md5:{hashlib.md5(OFFICIAL).hexdigest()}"},
            license="CC0",
            size="12 bytes",
        )
        copy = Remote(files=("few.txt",), license="CC0", copy="a third of it")
        graph = Entry(name="ring", title="Ring", read=read, remotes=(official, copy))
        monkeypatch.setitem(find("data"), "ring", (dict, f"{__name__}:RING"))
        monkeypatch.setitem(globals(), "RING", graph)
        yield server


def test_it_is_downloaded_once_and_checked_each_time(server, tmp_path):
    for _ in range(2):
        found = data.load("ring", tmp_path, directed=False)
        assert found["edges"] == [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)]
        assert (found["title"], found["source"]) == ("Ring", server.url(""))
        (tmp_path / "few.txt").write_bytes(COPY)  # official data on disk come before it
    assert [name for name, _ in server.requests] == ["/edges.txt", "/weights.txt"]
    # Nobody published what the second file is: what came first is what it has to be.
    for name in ("weights.txt", "edges.txt"):
        (tmp_path / "ring" / name).write_text("0 3\n")
        with pytest.raises(
            DataError, match=rf"{name} is damaged or the wrong file: its (md5|sha256)"
        ):
            data.load("ring", tmp_path)


def test_the_record_of_a_checksum_is_whole_or_not_there(server, tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(DataError, match="disk is full"):
            data.load("ring", tmp_path)
    assert data.load("ring", tmp_path)["title"] == "Ring"


@pytest.mark.parametrize("served", [{}, {"edges.txt": b"<html>"}], ids=["gone", "another"])
def test_a_copy_on_disk_is_read_without_asking_a_server(server, tmp_path, served):
    server.files = served
    with pytest.raises(DataError, match=r"could not download edges\.txt\. .*(404|its md5 is)"):
        data.load("ring", tmp_path)
    (tmp_path / "few.txt").write_bytes(COPY)
    server.requests.clear()
    with pytest.warns(UserWarning, match=r"Ring \(a third of it\) is read .*official data: http"):
        found = data.load("ring", tmp_path)
    assert server.requests == []
    assert found["edges"] == [(0, 1)] and found["title"] == "Ring (a third of it)"
    assert found["source"] == str(tmp_path / "few.txt")


def test_nothing_is_written_to_the_folder_of_the_environment(server, tmp_path, monkeypatch, cache):
    own = tmp_path / "own"
    own.mkdir()
    (own / "few.txt").write_bytes(COPY)
    monkeypatch.setenv("EQUILIBRIA_DATA", str(own))
    with pytest.warns(UserWarning, match="is read from"):
        data.load("ring")
    (own / "few.txt").unlink()
    assert data.load("ring")["title"] == "Ring"
    assert list(own.iterdir()) == [] and (cache / "equilibria" / "ring" / "edges.txt").is_file()


def test_what_is_nowhere(server, tmp_path):
    (tmp_path / "edges.txt").write_bytes(OFFICIAL)
    match = r"ring: weights\.txt was not found in .*12 bytes; licence: CC0.*--data-dir"
    with pytest.raises(DataError, match=match):
        data.load("ring", tmp_path, download=False)
    assert server.requests == []


def test_data_behind_a_log_in(server, tmp_path, monkeypatch):
    remote = Remote(files=("edges.txt",), license="on request", inside=("ring",))
    entry = replace(data.entry("ring"), remotes=(remote,), how_to_get="Ask its author")
    monkeypatch.setitem(globals(), "RING", entry)
    (tmp_path / "edges.txt").write_bytes(OFFICIAL)  # another data set's: it is not in `ring`
    with pytest.raises(DataError, match=r"ring: edges\.txt was not found in .* Ask its author"):
        data.load("ring", tmp_path)
    (tmp_path / "ring").mkdir()
    (tmp_path / "ring" / "edges.txt").write_bytes(OFFICIAL)
    for place in (tmp_path, tmp_path / "ring"):
        assert data.load("ring", place)["source"] == str(tmp_path / "ring" / "edges.txt")
    assert server.requests == []


def test_every_entry_says_how_to_get_it():
    for name in data.available():
        entry = data.entry(name)
        official = [remote for remote in entry.remotes if remote.copy is None]
        assert entry.name == name and all(remote.license for remote in entry.remotes)
        assert not entry.remotes or official[0].addresses or entry.how_to_get, name


def test_an_entry_without_remotes_has_no_files():
    files = Files(Entry(name="ring", title="Ring", read=read))
    for name in ("remote", "paths", "title", "source"):
        with pytest.raises(DataError, match="ring declares no remotes with official data"):
            getattr(files, name)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.model_selection", None)
    with pytest.raises(DataError, match=r"Digits needs scikit-learn, .*'equilibria\[cli\]'"):
        data.load("digits")
    folder(tmp_path / "pets", {"cat": 2, "dog": 2})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pets needs Pillow, .*'equilibria\[cli\]'"):
        data.load(str(tmp_path / "pets"))


def test_a_missing_module_of_a_reader_of_ones_own_is_no_data_error(server, monkeypatch):
    def reader(files):
        import no_such_module  # pyright: ignore[reportMissingImports]

        return no_such_module

    monkeypatch.setitem(globals(), "RING", replace(data.entry("ring"), read=reader))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        data.load("ring")


# --- a data set of one's own ---------------------------------------------------------------------


def stripes(files, *, count=80):
    """Images of 8 x 8 pixels with horizontal or vertical stripes."""
    targets = torch.arange(count) % 2
    rows = torch.arange(8).expand(8, 8) % 2
    inputs = torch.stack([rows if target else rows.T for target in targets])[:, None].float()
    parts = {"train": Split(inputs, targets), "test": Split(inputs[:10], targets[:10])}
    return Dataset.of(files, parts, ("horizontal", "vertical"))


STRIPES = Entry(
    name="stripes",
    title="Stripes",
    read=stripes,
    remotes=(Remote(files=(), addresses=("made here",), license="CC0"),),
)


def forget(monkeypatch, name):
    """Let a test register a data set and lose it."""
    monkeypatch.setitem(find("data"), name, None)
    monkeypatch.delitem(find("data"), name)


@pytest.mark.parametrize("entry", [STRIPES, f"{__name__}:STRIPES"], ids=["object", "module"])
def test_a_registered_data_set_is_one_like_the_others(entry, tmp_path, monkeypatch):
    forget(monkeypatch, "stripes")
    data.register("stripes", Dataset, entry)
    assert "stripes" in data.available(Dataset)
    found = data.load("stripes", count=20)
    assert (len(found.train), found.title, found.source) == (20, "Stripes", "made here")
    options = ("--task.data=stripes", "--model.classes=2", "--epochs=1", "--epoch_steps=1")
    recipe = recipes.load("digits", options)
    train(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "evaluation.json").exists()


def test_a_name_is_registered_once(monkeypatch):
    forget(monkeypatch, "stripes")
    for _ in range(2):  # the same again is no mistake
        data.register("stripes", Dataset, STRIPES)
    with pytest.raises(ValueError, match="there is a data set 'stripes' already"):
        data.register("stripes", Dataset, replace(STRIPES, title="Bars"))
    with pytest.raises(ValueError, match="there is a data set 'digits' already"):
        data.register("digits", Dataset, replace(STRIPES, name="digits"))
    with pytest.raises(ValueError, match="the entry of data set 'bars' is called 'stripes'"):
        data.register("bars", Dataset, STRIPES)


# --- samples in batches, and data sets by their names ---------------------------------------------


def split(count):
    return Split(torch.arange(count).unsqueeze(1), torch.arange(count))


def test_batches_go_through_all_samples_once():
    batches = list(split(10).batches(4))
    assert [len(targets) for _, targets in batches] == [4, 4, 2]
    assert torch.cat([targets for _, targets in batches]).tolist() == list(range(10))
    assert all((inputs[:, 0] == targets).all() for inputs, targets in batches)


def test_a_seed_is_an_order():
    first, again, other = (
        torch.cat([targets for _, targets in split(50).batches(7, seed=seed)]).tolist()
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert sorted(first) == sorted(other) == list(range(50))


def test_a_batch_needs_a_sample():
    with pytest.raises(ValueError, match="a batch of 0 samples"):
        next(split(3).batches(0))


def test_a_target_a_sample():
    with pytest.raises(ValueError, match="3 samples and 2 targets"):
        Split(torch.zeros(3, 1), torch.zeros(2))
    with pytest.raises(ValueError, match="at least one sample"):
        Split(torch.zeros(0, 1), torch.zeros(0))


def test_an_unknown_name_gets_the_nearest():
    assert data.available() == sorted(find("data"))
    assert {"digits", "mnist"} <= {*data.available(Dataset)} < {*data.available()}
    first = data.available()[0]
    with pytest.raises(ValueError, match="'minst', nor any folder; did you mean 'mnist'"):
        data.load("minst")
    with pytest.raises(ValueError, match=r"'qwertz', nor any folder; choose from: " + first):
        data.load("qwertz")
    other = next(n for n in data.available() if n not in data.available(Dataset))
    with pytest.raises(ValueError, match=rf"'{other}' is of another kind; choose from: cifar"):
        data.load(other, kind=Dataset)
