"""Penn Treebank and WikiText: found or downloaded, checked, and the counts that others publish."""

import hashlib
from dataclasses import replace

import pytest

from equilibria.run.data import DataError
from equilibria.zoo.io.remote import data_folders
from equilibria.zoo.language import data as text
from equilibria.zoo.language.data import published
from equilibria.zoo.language.data.published import PTB, WIKITEXT2, WIKITEXT103
from file_server import FileServer, serving
from packed import zip_of

TEXTS = {
    "train": " the cat sat on the <unk> \n the dog N \n" * 20,
    "valid": " the cat \n a bird \n",
    "test": " the dog sat \n",
}


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def check(corpus: text.Corpus, name: str) -> None:
    assert (corpus.name, corpus.unit) == (name, "words")
    assert corpus.vocabulary.tokens[:2] == ("the", "<eos>")
    assert [len(corpus.splits[split]) for split in TEXTS] == [220, 6, 4]
    assert corpus.vocabulary.decode(corpus.splits["valid"][:]) == "the cat\n<unk> <unk>\n"
    assert corpus.statistics["valid"].characters == len(TEXTS["valid"])


# --- Penn Treebank -------------------------------------------------------------------------------


@pytest.fixture
def small(cache, monkeypatch):
    """A server with a small text in place of Penn Treebank."""
    with serving() as server:
        remote = PTB.remotes[0]
        server.files = dict(zip(remote.files, map(str.encode, TEXTS.values()), strict=True))
        remote = replace(
            remote,
            addresses=(server.url("gone/"), server.url("")),
            checksums={name: f"md5:{md5(content)}" for name, content in server.files.items()},
        )
        monkeypatch.setattr(published, "PTB", replace(PTB, remotes=(remote,)))
        yield server


def test_ptb_is_downloaded_once(small, tmp_path):
    check(text.load("ptb", data_dir=tmp_path / "mine"), "ptb")
    asked = [name for name, _ in small.requests]
    assert asked == [f"/{folder}ptb.{s}.txt" for s in TEXTS for folder in ("gone/", "")]
    assert (tmp_path / "mine" / "ptb" / "ptb.test.txt").is_file()
    # The encoded text is enough from now on.
    check(text.load("ptb", data_dir=tmp_path / "empty", download=False), "ptb")
    # By characters the files are read again, and are there.
    assert text.load("ptb", unit="characters", data_dir=tmp_path / "mine").vocabulary.size == 18
    assert len(small.requests) == 6


def test_ptb_goes_on_where_a_transfer_broke_off(small):
    small.break_next, small.broken_at = 1, 100
    check(text.load("ptb"), "ptb")
    assert ("/ptb.train.txt", "bytes=100-") in small.requests


@pytest.mark.parametrize("folder", ["ptb", "."])
def test_ptb_is_found(small, tmp_path, monkeypatch, folder):
    (tmp_path / "data" / folder).mkdir(parents=True)
    for name, content in small.files.items():
        (tmp_path / "data" / folder / name).write_bytes(content)
    monkeypatch.setenv("EQUILIBRIA_DATA", str(tmp_path / "data"))
    check(text.load("ptb", download=False), "ptb")
    assert small.requests == []


def test_ptb_missing(small, tmp_path):
    with pytest.raises(DataError, match=r"ptb\.train\.txt was not found in .*--data-dir"):
        text.load("ptb", data_dir=tmp_path, download=False)
    small.files.clear()
    with pytest.raises(DataError, match=r"could not download ptb\.train\.txt.*HTTP 404"):
        text.load("ptb")


def test_ptb_with_another_content(small, tmp_path):
    (tmp_path / "ptb.train.txt").write_text("something else\n")
    with pytest.raises(
        DataError, match=r"ptb\.train\.txt is damaged or the wrong file.*--data-dir"
    ):
        text.load("ptb", data_dir=tmp_path)


@pytest.mark.data
def test_the_real_ptb(real):
    if len(PTB.remotes[0].find(data_folders("ptb"))) < 3:
        pytest.skip("EQUILIBRIA_DATA names no folder with Penn Treebank")
    corpus = text.load("ptb", download=False)
    assert corpus.vocabulary.size == 10_000
    assert corpus.vocabulary.tokens[:3] == ("the", "<unk>", "<eos>")
    assert [len(corpus.splits[split]) for split in TEXTS] == [929_589, 73_760, 82_430]
    assert corpus.vocabulary.counts[corpus.vocabulary.end] == 42_068
    assert corpus.vocabulary.decode(corpus.splits["test"][:7]) == "no it was n't black monday\n"
    # Interpolated trigrams are well known to reach about 160 here (Good-Turing: 165).
    assert 145 < text.Trigram.fit(corpus).perplexity(corpus.splits["test"]) < 165


# --- WikiText ------------------------------------------------------------------------------------


def archive(folder: str = "wikitext-2") -> bytes:
    files = {f"{folder}/wiki.{split}.tokens": part.encode() for split, part in TEXTS.items()}
    return zip_of({**files, "../../escaped.txt": b"nobody asked for this one"})


def served(monkeypatch: pytest.MonkeyPatch, server: FileServer, content: bytes) -> None:
    """Let the server have `content` for WikiText-2."""
    server.files["wikitext-2-v1.zip"] = content
    sha1 = [f"sha1:{hashlib.sha1(part.encode()).hexdigest()}" for part in TEXTS.values()]
    packed, *unpacked = WIKITEXT2.remotes
    checksums = {"wikitext-2-v1.zip": f"md5:{md5(content)}"}
    remotes = [replace(packed, addresses=(server.url(""),), checksums=checksums)]
    for remote in unpacked:
        checksums = dict(zip(remote.files, sha1, strict=True))
        remotes.append(replace(remote, checksums=checksums))
    entry = replace(WIKITEXT2, remotes=tuple(remotes))
    monkeypatch.setattr(published, "WIKITEXT2", entry)


@pytest.fixture
def wiki(cache, monkeypatch):
    """A server with a small archive in place of WikiText-2's."""
    with serving() as server:
        served(monkeypatch, server, archive())
        yield server


def test_wikitext_is_downloaded_once(wiki, tmp_path):
    wiki.break_next, wiki.broken_at = 1, 50
    check(text.load("wikitext2", data_dir=tmp_path / "mine"), "wikitext2")
    assert [wanted for _, wanted in wiki.requests] == [None, "bytes=50-"]
    text.load("wikitext2", data_dir=tmp_path / "mine", unit="characters")
    assert len(wiki.requests) == 2
    # The archive is read where it lies; nothing of it is unpacked anywhere.
    assert {path.name for path in (tmp_path / "mine").rglob("*") if path.is_file()} == {
        *("wikitext-2-v1.zip", ".wikitext-2-v1.zip.lock")
    }
    assert not list(tmp_path.rglob("escaped.txt"))


@pytest.mark.parametrize("folder", ["wikitext2", "wikitext-2", "wikitext2/wikitext-2"])
@pytest.mark.parametrize("name", ["wiki.{}.tokens", "{}.txt"])
def test_wikitext_unpacked_by_somebody_else(wiki, tmp_path, folder, name):
    (tmp_path / folder).mkdir(parents=True)
    for split, content in TEXTS.items():
        (tmp_path / folder / name.format(split)).write_text(content)
    check(text.load("wikitext2", data_dir=tmp_path, download=False), "wikitext2")
    assert wiki.requests == []


def test_files_of_the_same_name_elsewhere(wiki, tmp_path):
    for split in TEXTS:
        (tmp_path / f"{split}.txt").write_text("of another data set\n")
    check(text.load("wikitext2", data_dir=tmp_path), "wikitext2")


def test_a_damaged_split(wiki, tmp_path):
    (tmp_path / "wikitext2").mkdir()
    for split, content in TEXTS.items():
        (tmp_path / "wikitext2" / f"{split}.txt").write_text(content + "." * (split == "valid"))
    with pytest.raises(DataError, match=r"valid\.txt is damaged or the wrong file: its sha1 is"):
        text.load("wikitext2", data_dir=tmp_path)


def test_wikitext_missing(wiki, tmp_path):
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2" / "valid.txt").write_text(TEXTS["valid"])
    with pytest.raises(DataError, match=r"wikitext-2-v1\.zip or train\.txt was not found in"):
        text.load("wikitext2", data_dir=tmp_path, download=False)


def test_a_damaged_archive(wiki, tmp_path):
    (tmp_path / "wikitext-2-v1.zip").write_bytes(archive()[:-9])
    with pytest.raises(DataError, match=r"wikitext-2-v1\.zip is damaged or the wrong file"):
        text.load("wikitext2", data_dir=tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        archive()[:-9],
        archive("wikitext-3"),
        archive()[:80] + bytes(20) + archive()[100:],
        b"<html>",
    ],
    ids=["cut off", "another folder", "overwritten", "no archive"],
)
def test_an_archive_that_cannot_be_read(wiki, monkeypatch, content):
    served(monkeypatch, wiki, content)
    with pytest.raises(DataError, match=r"wikitext-2-v1\.zip is damaged"):
        text.load("wikitext2")


def test_names():
    assert text.available() == ["ptb", "wikitext103", "wikitext2"]
    assert WIKITEXT103.remotes[0].files == ("wikitext-103-v1.zip",)


@pytest.mark.parametrize("known", [WIKITEXT2, WIKITEXT103])
def test_wikitext_is_read_packed_and_unpacked(known):
    first = [remote.files[0] for remote in known.remotes]
    assert first == [f"{known.title.lower()}-v1.zip", "wiki.train.tokens", "train.txt"]
