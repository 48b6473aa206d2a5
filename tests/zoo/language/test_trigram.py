"""The trigram baseline: the mixture that its docstring says, fitted as well as it can be."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equilibria.zoo.language import data as text
from equilibria.zoo.language.data import TokenArray, Trigram, trigram

FEW = settings(max_examples=40, derandomize=True, deadline=None, database=None)


def tokens(values: list[int]) -> TokenArray:
    return TokenArray(np.array(values, dtype=np.uint8))


def markov(count: int, seed: int, size: int = 6) -> TokenArray:
    """A text in which the last two tokens tell much about the next."""
    random = np.random.default_rng(seed)
    law = np.random.default_rng(99).dirichlet(np.full(size, 0.3), size=(size, size))
    found = [0, 1]
    for _ in range(count - 2):
        found.append(int(random.choice(size, p=law[found[-2], found[-1]])))
    return tokens(found)


class Reference:
    """The same model from dictionaries, a token at a time."""

    def __init__(self, train: list[int], size: int) -> None:
        self.size = size
        self.follow: dict[tuple[int, ...], Counter[int]] = {}
        for order in (1, 2, 3):
            for i in range(len(train) - order + 1):
                *context, token = train[i : i + order]
                self.follow.setdefault(tuple(context), Counter())[token] += 1

    def bucket(self, context: tuple[int, ...]) -> int:
        if context not in self.follow:
            return 0
        counts = self.follow[context].values()
        often = min(int(math.log2(sum(counts))), trigram._COUNT_BUCKETS - 1)
        mean = min(int(2 * math.log2(sum(counts) / len(counts))), trigram._MEAN_BUCKETS - 1)
        return 1 + often * trigram._MEAN_BUCKETS + mean

    def chain(self, history: list[int], token: int, weights: list[dict[int, float]]):
        """p_k, l_k f_k and the bucket of each level, from the unigram up."""
        mixed = 1 / self.size
        for k in range(3):
            context = tuple(history[len(history) - k :]) if len(history) >= k else (-1,)
            bucket = self.bucket(context)
            counts = self.follow.get(context, Counter())
            share = counts[token] / max(1, sum(counts.values()))
            weight = weights[k].get(bucket, 0.0) if bucket else 0.0
            own = weight * share
            mixed = own + (1 - weight) * mixed
            yield bucket, own, mixed

    def step(self, valid: list[int], weights, prior):
        """One step of expectation maximisation."""
        used: list[Counter[int]] = [Counter() for _ in range(3)]
        reached: list[Counter[int]] = [Counter() for _ in range(3)]
        for i in range(1, len(valid)):
            down = 1.0
            for k, (bucket, own, mixed) in reversed(
                list(enumerate(self.chain(valid[:i], valid[i], weights)))
            ):
                reached[k][bucket] += down
                used[k][bucket] += down * own / mixed
                down -= down * own / mixed
        return [
            {b: (used[k][b] + prior[k][b]) / (reached[k][b] + 1) for b in prior[k]}
            for k in range(3)
        ]


def as_dictionaries(weights: np.ndarray) -> list[dict[int, float]]:
    return [{b: float(w) for b, w in enumerate(row) if b} for row in weights]


@FEW
@given(
    st.lists(st.integers(0, 4), min_size=3, max_size=40),
    st.lists(st.integers(0, 4), min_size=2, max_size=20),
    st.lists(st.integers(0, 4), min_size=2, max_size=20),
)
def test_against_dictionaries(train, valid, test):
    model = Trigram.of(tokens(train), tokens(valid), 5)
    reference, weights = Reference(train, 5), as_dictionaries(model.weights)
    expected = [
        math.log(list(reference.chain(test[:i], test[i], weights))[-1][2])
        for i in range(1, len(test))
    ]
    assert model.log_probs(tokens(test)) == pytest.approx(expected, rel=1e-12)
    assert model.bits(tokens(test)) == pytest.approx(-np.mean(expected) / math.log(2), rel=1e-12)
    assert model.perplexity(tokens(test)) == pytest.approx(math.exp(-np.mean(expected)))


def test_the_weights_are_those_of_expectation_maximisation(monkeypatch):
    monkeypatch.setattr(trigram, "_STEPS", 3)
    monkeypatch.setattr(trigram, "_TOLERANCE", -math.inf)
    train, valid = markov(300, 1), markov(120, 2)
    model = Trigram.of(train, valid, 6)
    reference = Reference(train.array.tolist(), 6)
    known = range(1, model.weights.shape[1])

    # All contexts together first: `bucket` knows only whether a context occurred.
    bucket = reference.bucket
    monkeypatch.setattr(reference, "bucket", lambda context: min(bucket(context), 1))
    prior = weights = [{1: 0.5} for _ in range(3)]
    for _ in range(3):
        weights = reference.step(valid.array.tolist(), weights, prior)
    monkeypatch.setattr(reference, "bucket", bucket)
    prior = weights = [dict.fromkeys(known, found[1]) for found in weights]
    for _ in range(3):
        weights = reference.step(valid.array.tolist(), weights, prior)
    expected = [[0.0, *(found[b] for b in known)] for found in weights]
    assert model.weights == pytest.approx(np.array(expected), rel=1e-9)


@FEW
@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=60),
    st.lists(st.integers(0, 6), min_size=2, max_size=20),
    st.lists(st.integers(0, 6), max_size=4),
)
def test_probabilities_sum_to_one(train, valid, context):
    model = Trigram.of(tokens(train), tokens(valid), 7)
    found = model.distribution(context)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (found > 0).all()  # a token that never occurred costs much, not everything
    if context:
        spoken = [math.log(p) for p in found]
        heard = [model.log_probs(tokens([*context, w]))[-1] for w in range(7)]
        assert heard == pytest.approx(spoken, rel=1e-12)


@pytest.mark.parametrize("dense", [0, trigram._DENSE])
def test_blocks_change_nothing(monkeypatch, dense):
    train, valid, test = (markov(count, seed) for seed, count in enumerate((500, 200, 100)))
    whole = Trigram.of(train, valid, 6)
    expected = whole.log_probs(test)
    monkeypatch.setattr(trigram, "_DENSE", dense)
    for block in (1, 2, 3, 7, 64):
        monkeypatch.setattr(trigram, "_BLOCK", block)
        parts = Trigram.of(train, valid, 6)
        assert (parts.weights == whole.weights).all()
        assert (parts.log_probs(test) == expected).all()
        assert parts.bits(test) == pytest.approx(whole.bits(test), rel=1e-14)


def test_the_rarest_are_dropped_from_a_long_text(monkeypatch):
    train, valid, test = (markov(count, seed) for seed, count in enumerate((4000, 500, 500)))
    whole = Trigram.of(train, valid, 6)
    monkeypatch.setattr(trigram, "_BLOCK", 500)
    monkeypatch.setattr(trigram, "_DENSE", 0)
    monkeypatch.setattr(trigram, "_MOST", 100)
    pruned = Trigram.of(train, valid, 6)
    assert [len(level.grams) for level in pruned._levels] <= [100] * 3
    assert len(pruned._levels[2].grams) < len(whole._levels[2].grams)
    assert pruned.distribution([1, 2]).sum() == pytest.approx(1, abs=1e-12)
    assert pruned.bits(test) == pytest.approx(whole.bits(test), abs=0.1)


def test_no_single_weights_do_better():
    train, valid = markov(3000, 1), markov(2000, 2)
    model = Trigram.of(train, valid, 6)
    reference = Reference(train.array.tolist(), 6)
    best = math.inf
    values = valid.array.tolist()
    for three in (0.3, 0.5, 0.7, 0.9):
        for two in (0.1, 0.5, 0.9):
            weights = [dict.fromkeys(range(1, 200), w) for w in (0.99, two, three)]
            total = sum(
                math.log(
                    list(reference.chain(values[max(0, i - 2) : i], values[i], weights))[-1][2]
                )
                for i in range(1, 400)
            )
            best = min(best, -total / 399 / math.log(2))
    assert model.bits(tokens(values[:400])) <= best + 0.01


def test_it_learns_what_two_tokens_tell():
    train, valid, test = markov(20_000, 1), markov(4000, 2), markov(4000, 3)
    law = np.random.default_rng(99).dirichlet(np.full(6, 0.3), size=(6, 6))
    values = test.array
    entropy = -np.log2(law[values[:-2], values[1:-1], values[2:]]).mean()
    assert Trigram.of(train, valid, 6).bits(test) < entropy + 0.02


def test_too_little_or_too_large():
    with pytest.raises(ValueError, match="2 tokens to count and 5 to fit"):
        Trigram.of(tokens([1, 2]), tokens([0] * 5), 5)
    with pytest.raises(ValueError, match="3 tokens to count and 1 to fit"):
        Trigram.of(tokens([1, 2, 3]), tokens([0]), 5)
    with pytest.raises(ValueError, match="a vocabulary of 2097152 tokens"):
        Trigram.of(tokens([1, 2, 3]), tokens([0, 1]), 1 << 21)
    model = Trigram.of(tokens([1, 2, 3]), tokens([0, 1]), 5)
    with pytest.raises(ValueError, match="1 tokens: expected 2 or more"):
        model.bits(tokens([1]))
    assert len(model.log_probs(tokens([1]))) == 0


def test_of_a_corpus(cache, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abc abd abc abe " * 200)
    corpus = text.load(file=path)
    model = text.Trigram.fit(corpus)
    # Only the letter after "ab" is open, half of the time a c.
    assert model.bits(corpus.splits["test"]) == pytest.approx(1.5 / 4, abs=0.05)


def test_a_large_vocabulary_overflows_nothing():
    size = (1 << 21) - 1
    random = np.random.default_rng(0)
    values = random.choice(np.array([0, 1, size - 2, size - 1]), 2000).astype(np.int32)
    model = Trigram.of(TokenArray(values[:1500]), TokenArray(values[1500:]), size)
    assert model.bits(TokenArray(values[1500:])) == pytest.approx(2, abs=0.1)


@pytest.mark.data
def test_characters_of_a_real_text(real):
    file = real / "wikitext2" / "valid.txt"
    if not file.is_file():
        pytest.skip("EQUILIBRIA_DATA names no folder with WikiText-2")
    corpus = text.load(file=file)
    assert 2.6 < text.Trigram.fit(corpus).bits(corpus.splits["test"]) < 2.8
