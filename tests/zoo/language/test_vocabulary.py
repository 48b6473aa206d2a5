"""A vocabulary is a bijection between tokens and numbers, the frequent ones first."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equilibria.run.data import DataError
from equilibria.zoo.io import vocabulary
from equilibria.zoo.io.vocabulary import END, UNKNOWN, most_frequent, tokenize
from equilibria.zoo.language.data import Vocabulary

FEW = settings(max_examples=60, derandomize=True, deadline=None, database=None)

texts = st.text(max_size=60)
# Few letters, so that words repeat; all kinds of white space.
prose = st.text("ab \n\t\r\u00a0\u3000\x1cé", max_size=80)


def of(text: str, unit: str = "words", **limits: int) -> Vocabulary:
    tokens = tokenize(text) if unit == "words" else list(text)
    return most_frequent(Counter(tokens).items(), unit, total=len(tokens), **limits)


@FEW
@given(texts)
def test_characters_come_back(text):
    found = of(text, "characters")
    numbers = found.encode(text)
    assert len(numbers) == len(text)
    assert found.decode(numbers) == text
    assert UNKNOWN in found.tokens


@FEW
@given(prose, prose)
def test_words_come_back(text, other):
    found = of(text)
    assert found.decode(found.encode(text)).split() == text.split()
    assert found.decode(found.encode(text)).count("\n") == text.count("\n")
    numbers = found.encode(other)  # some of it unknown
    assert found.encode(found.decode(numbers)) == numbers


@FEW
@given(prose, st.integers(0, 80))
def test_a_longer_list_goes_on_from_a_shorter_one(text, cut):
    found = of(text)
    numbers = found.encode(text)
    assert found.decode(numbers).startswith(found.decode(numbers[:cut]))


@pytest.mark.parametrize("unit", ["words", "characters"])
@FEW
@given(prose)
def test_sorted_by_frequency(unit, text):
    found = of(text, unit)
    assert list(found.counts) == sorted(found.counts, reverse=True)
    assert sum(found.counts) == len(tokenize(text) if unit == "words" else text)
    # The order in which the text brings its words does not matter.
    assert found == of("\n".join(reversed(text.split("\n"))), unit)


def test_what_is_not_in_the_training_text_is_unknown():
    words = of("a b a\n")
    assert words.tokens == ("a", "<eos>", "b", "<unk>")
    assert words.counts == (2, 1, 1, 0)
    assert words.encode("a c\n") == [0, words.unknown, words.end]
    assert words.decode([0, words.unknown, words.end, 2]) == "a <unk>\nb"
    characters = of("aab", "characters")
    assert characters.tokens == ("a", "b", "<unk>")
    assert characters.decode(characters.encode("ac\n")) == "a" + 2 * "\N{REPLACEMENT CHARACTER}"
    assert characters.encode("\ud800") == [characters.unknown]  # a lone surrogate, from a prompt


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({}, ("a", "<eos>", "b", "c", "<unk>")),
        ({"min_count": 2}, ("a", "<eos>", "b", "<unk>")),
        ({"min_count": 3}, ("a", "<eos>", "<unk>")),
        ({"max_size": 4}, ("a", "<eos>", "b", "<unk>")),
        ({"max_size": 3}, ("a", "<eos>", "<unk>")),
    ],
)
def test_limits(limits, tokens):
    found = of("a a a a b b c\n\n\n", **limits)
    assert found.tokens == tokens
    assert sum(found.counts) == 10
    assert found.counts[found.unknown] == 10 - sum(
        {"a": 4, "<eos>": 3, "b": 2, "c": 1}.get(token, 0) for token in tokens
    )


def test_words_that_look_like_special_ones_are_those():
    found = of("<unk> a <eos> <unk>")
    assert found.tokens == ("<unk>", "<eos>", "a")
    assert found.decode(found.encode("a <eos> <unk>")) == "a\n<unk>"


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_saved_and_loaded(tmp_path, unit):
    found = of('ein "Wort" \u2028 \\n 語 \U0001f600\n', unit)
    found.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded == found
    assert loaded.unit == unit


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a vocabulary"),
        ("[]", "not a vocabulary"),
        ('{"unit": "words"}', "tokens must be there"),
        (
            '{"unit": "words", "tokens": ["<unk>", "<eos>", 3], "counts": [0, 0, 0]}',
            "must be a text; got 3",
        ),
        ('{"unit": "words", "tokens": ["<unk>", "<unk>"], "counts": [0, 0]}', "distinct"),
        ('{"unit": "words", "tokens": ["<unk>"], "counts": [0]}', "needs the token <eos>"),
        ('{"unit": "characters", "tokens": ["a"], "counts": [0]}', "needs the token <unk>"),
        ('{"unit": "bytes", "tokens": ["<unk>"], "counts": [0]}', "got 'bytes'"),
        ('{"unit": "characters", "tokens": ["<unk>"], "counts": []}', "1 tokens and 0 counts"),
    ],
    ids=range(9),
)
def test_what_is_no_vocabulary(tmp_path, content, message):
    (tmp_path / "file").write_text(content)
    with pytest.raises(DataError, match=message):
        Vocabulary.load(tmp_path / "file")


def test_a_missing_vocabulary(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Vocabulary.load(tmp_path / "file")


@pytest.mark.parametrize("number", [-1, 4])
def test_a_number_outside(number):
    with pytest.raises(IndexError, match=f"token {number} of a vocabulary of 4"):
        of("a b\n").decode([0, number])


# --- counting what does not fit ------------------------------------------------------------------


def count(parts: list[str], tmp_path: Path, unit: str = "words", **limits: int) -> Vocabulary:
    limits = {"min_count": 1, "max_size": None, **limits}
    return vocabulary.build_vocabulary(iter(parts), unit, tmp_path, **limits)


@FEW
@given(prose, st.lists(st.integers(0, 80)))
def test_words_wherever_the_parts_end(text, cuts):
    places = sorted([0, *cuts, len(text)])
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    found = [word for part in vocabulary.iterate_words(parts) for word in part]
    assert found == tokenize(text)


def test_a_word_that_is_too_long_is_unknown():
    long = "x" * (vocabulary.LONGEST + 1)
    for parts in ([f"a {long} b"], ["a ", *long, " b"], [f"a {long[:200]}", f"{long[200:]} b"]):
        assert [w for part in vocabulary.iterate_words(parts) for w in part] == ["a", UNKNOWN, "b"]
    fits = long[1:]
    assert [w for part in vocabulary.iterate_words(["a ", *fits]) for w in part] == ["a", fits]


@pytest.mark.parametrize("limits", [{}, {"min_count": 3}, {"max_size": 6}], ids=str)
def test_counts_that_went_to_the_disk_are_exact(tmp_path, monkeypatch, limits):
    parts = ["a b é d \n", "c c a d\n a", "a e f g ", "h a <unk> h ü", " h d <eos>"]
    whole = count(parts, tmp_path, **limits)
    monkeypatch.setattr(vocabulary, "_IN_MEMORY", 3)
    assert count(parts, tmp_path, **limits) == whole == of("".join(parts), **limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spilled", [False, True])
def test_too_many_words(tmp_path, monkeypatch, spilled):
    monkeypatch.setattr(vocabulary, "MOST", 5)
    if spilled:
        monkeypatch.setattr(vocabulary, "_IN_MEMORY", 1)
    assert count(["a b c\n"], tmp_path).size == 5
    with pytest.raises(DataError, match=r"has 6 distinct words, .* at most 5: .*max_size"):
        count(["a b ", "c d"], tmp_path)
    assert count(["a b ", "c d"], tmp_path, max_size=5).tokens == ("<unk>", "a", "b", "c", END)
    assert count(["a b ", "c d d"], tmp_path, min_count=2).tokens == ("<unk>", "d", END)


def test_the_json_is_readable(tmp_path):
    of("ß a", "characters").save(tmp_path / "file")
    assert json.loads((tmp_path / "file").read_text())["tokens"] == [" ", "a", "ß", "<unk>"]
