"""Reviews of Yelp: words, tokens, both forms in which they are published, and damage."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.recurrent.data import SequenceSet, yelp
from file_server import serve_entry, serving
from packed import tar_of

TRAIN = [
    (5, "Great food, great service!\nWe'll be back."),
    (1, "Terrible. The food was cold, the service rude"),
    (3, "food food FOOD"),
]
TEST = [(4, "The food was great & spicy"), (2, "!!! :-("), (5, "food")]

TOKENS = {"food": 2, "great": 3, "service": 4, "the": 5}
"""Of the most frequent words, those of the same count in the order of their letters."""


def as_json(reviews: Sequence[tuple[float, str]]) -> bytes:
    rows = [{"review_id": "x", "stars": float(stars), "text": t} for stars, t in reviews]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv(reviews: Sequence[tuple[int, str]]) -> bytes:
    content = io.StringIO()
    writer = csv.writer(content, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows((stars, text.replace("\n", "\\n")) for stars, text in reviews)
    return content.getvalue().encode()


def packed(files: dict[str, bytes]) -> bytes:
    names = {"readme.txt": b"nobody asked", **files}.items()
    return tar_of(((f"yelp_review_full_csv/{k}", v) for k, v in names), mode="w:gz")


def zhang(train: bytes = as_csv(TRAIN), test: bytes = as_csv(TEST)) -> bytes:
    # In this order: the test split comes first.
    return packed({"test.csv": test, "train.csv": train})


@pytest.fixture
def server(cache, monkeypatch):
    """A server with a few reviews in place of those of Zhang et al."""
    monkeypatch.setattr(yelp, "VOCABULARY", 4)
    with serving() as server:
        server.files["yelp_review_full_csv.tgz"] = zhang()
        serve_entry(monkeypatch, server, yelp, "YELP5")
        yield server


def official(root: Path, content: bytes = as_json(TRAIN + TEST)) -> Path:
    (root / "yelp_academic_dataset_review.json").write_bytes(content)
    return root


def check(found: SequenceSet) -> None:
    assert found.labels == ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
    assert found.vocabulary == 6 and found.channels == ()
    train, test = found.train, found.test
    assert train.targets.tolist() == [4, 0, 2] and test.targets.tolist() == [3, 1, 4]
    assert train.lengths is not None and train.lengths.tolist() == [7, 8, 3]
    assert test.lengths is not None and test.lengths.tolist() == [5, 1, 1]
    assert train.inputs.shape == test.inputs.shape == (3, 300)
    assert train.inputs.dtype == train.lengths.dtype == torch.int64
    assert train.inputs[0, :9].tolist() == [3, 2, 3, 4, 1, 1, 1, 0, 0]
    assert test.inputs[0, :6].tolist() == [5, 2, 1, 3, 1, 0]
    assert test.inputs[1, :2].tolist() == [1, 0]  # without any word
    assert int(train.inputs.max()) == yelp.VOCABULARY + 1


# --- words ---------------------------------------------------------------------------------------


def test_words_are_lower_case_and_without_punctuation():
    assert yelp.words("We'll be BACK -- in '24, says Zoë!") == [
        *("we'll", "be", "back", "in", "24", "says", "zoë")
    ]
    assert yelp.words("... !") == []
    assert yelp.words("a" * 300 + " b") == ["<unk>", "b"]


def test_a_review_ends_after_300_words():
    assert yelp.words("word " * 299 + "last one") == ["word"] * 299 + ["last"]


# --- both forms ----------------------------------------------------------------------------------


def test_zhangs_reviews_are_downloaded_once_and_kept(server, monkeypatch):
    found = data.load("yelp5", kind=SequenceSet)
    check(found)
    assert found.title == "Yelp-5 (Zhang et al. 2015)"
    assert found.source == server.url("yelp_review_full_csv.tgz")
    monkeypatch.setattr(yelp, "_encode", None)  # they are in the cache
    assert data.load("yelp5").checksum == found.checksum
    assert len(server.requests) == 1


def test_yelps_own_file_comes_first_where_it_is(server, tmp_path):
    found = data.load("yelp5", official(tmp_path), train=3, test=3, kind=SequenceSet)
    check(found)
    assert found.title == "Yelp-5"
    assert found.source == str(tmp_path / "yelp_academic_dataset_review.json")
    assert server.requests == []


def test_the_first_reviews_train_and_the_next_test(server, tmp_path):
    found = data.load("yelp5", official(tmp_path), train=2, test=1, kind=SequenceSet)
    assert found.train.targets.tolist() == [4, 0] and found.test.targets.tolist() == [2]
    found = data.load("yelp5", train=2, test=1, kind=SequenceSet)
    assert found.train.targets.tolist() == [4, 0] and found.test.targets.tolist() == [3]
    with pytest.raises(ValueError, match="train is 0 and test None: expected at least 1"):
        data.load("yelp5", train=0)


def test_too_few_reviews_are_named(server, tmp_path):
    with pytest.raises(DataError, match=r"json has no reviews to test on"):
        data.load("yelp5", official(tmp_path))
    with pytest.raises(DataError, match=r"json has 3 reviews to test on: expected 4"):
        data.load("yelp5", tmp_path, train=3, test=4)


def test_both_forms_are_the_same_reviews(server, tmp_path):
    one = data.load("yelp5", official(tmp_path), train=3, test=3)
    assert one.checksum == data.load("yelp5").checksum


def test_how_to_get_it_is_said(cache, tmp_path):
    with pytest.raises(
        DataError, match=r"yelp_review_full_csv\.tgz was not found in .*Accept Yelp's terms at http"
    ):
        data.load("yelp5", tmp_path, download=False)


def test_the_vocabulary_is_of_the_training_reviews_alone(server, tmp_path):
    tested = [(1, "spicy " * 200)] * 3
    official(tmp_path, as_json([*TRAIN, *tested]))
    found = data.load("yelp5", tmp_path, train=3, test=3, kind=SequenceSet)
    assert (found.test.inputs[:, :200] == yelp.OTHER).all()
    assert (found.test.inputs[:, 200:] == yelp.PADDING).all()


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"7",
        b'{"stars": 3}',
        b'{"stars": 0, "text": "x"}',
        b'{"stars": 2.5, "text": "x"}',
        b'{"stars": "3", "text": "x"}',
        b'{"stars": 3, "text": null}',
        b'{"stars": 3, "text": "\xff"}',
        b"[" * 200_000,
    ],
)
def test_a_line_that_is_no_review_is_named(server, tmp_path, line):
    official(tmp_path, as_json(TRAIN[:2]) + line + b"\n" + as_json(TEST))
    with pytest.raises(DataError, match=r"line 3 of .*review\.json is no review .* stars and text"):
        data.load("yelp5", tmp_path, train=3, test=3)


def test_no_more_of_a_long_line_is_read_than_of_a_review(server, tmp_path, monkeypatch):
    monkeypatch.setattr(yelp, "_LONGEST", 1000)
    official(tmp_path, as_json([*TRAIN, (3, "x" * 1000)]))
    with pytest.raises(DataError, match=r"line 4 of .*review\.json is no review"):
        data.load("yelp5", tmp_path, train=3, test=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zhang()[:-60], r"no \.tgz file, or is cut"),
        (b"<html>", r"sent a page"),
        (packed({}), r"does not contain yelp_review_full_csv/train\.csv: it is a different file"),
        (zhang(train=b'"1","a"\n"6","b"\n'), r"line 2 of .*train\.csv in .* no review \(it has 6"),
        (zhang(test=b'"1","a"\n"b"\n'), r"line 2 of .*test\.csv in .*csv\.tgz is no review"),
        (zhang(train=b'"1","\xff"\n'), r"of .*train\.csv in .* is no review"),
        (zhang(train=b""), "has no reviews to train on"),
    ],
    ids=["cut off", "no archive", "empty", "stars", "columns", "text", "none"],
)
def test_a_damaged_archive_is_named(server, content, message):
    server.files["yelp_review_full_csv.tgz"] = content
    with pytest.raises(DataError, match=message):
        data.load("yelp5")
