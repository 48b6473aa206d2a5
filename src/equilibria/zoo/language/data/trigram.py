"""The baseline that a language model has to beat: interpolated trigrams of the same text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from equilibria.zoo.language.data.corpus import Corpus, TokenArray

_ORDER = 3
_BLOCK = 1 << 20
_HELD_OUT = 1 << 20  # tokens of the validation split that the weights are fitted to
_MOST = 1 << 24  # distinct n-grams of one order
_DENSE = 1 << 22
_STEPS = 100
_TOLERANCE = 1e-6
_COUNT_BUCKETS, _MEAN_BUCKETS = 20, 8


@dataclass(frozen=True)
class _Level:
    """How often each token follows each context of `order - 1` tokens in the training text.

    A context is one number, its tokens being the digits in base `size`; so is an n-gram.
    """

    order: int
    size: int
    grams: np.ndarray  # sorted (distinct n-grams,)
    counts: np.ndarray
    contexts: np.ndarray  # sorted (distinct contexts,)
    totals: np.ndarray
    buckets: np.ndarray  # of each context, from 1 on; 0 is for a context that never occurred

    @classmethod
    def count(cls, tokens: np.ndarray, order: int, size: int) -> _Level:
        grams, counts = _distinct(tokens, order, size)
        first = np.flatnonzero(np.diff(grams // size, prepend=-1))
        totals = np.add.reduceat(counts, first)
        types = np.diff(first, append=len(grams))
        # Equally frequent contexts differ in how informative they are, which the mean count of
        # the tokens that follow them shows (Chen and Goodman 1998, section 4.1.1).
        often = np.minimum(np.log2(totals).astype(np.int64), _COUNT_BUCKETS - 1)
        mean = np.minimum((2 * np.log2(totals / types)).astype(np.int64), _MEAN_BUCKETS - 1)
        buckets = 1 + often * _MEAN_BUCKETS + mean
        return cls(order, size, grams, counts, grams[first] // size, totals, buckets)

    def look_up(self, contexts: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The share of each token among those that follow its context, and the context's bucket.

        A context of -1, or one that never occurred, has share 0 and bucket 0.
        """
        place, known = _find(self.contexts, contexts)
        gram, seen = _find(self.grams, contexts * self.size + tokens)
        share = np.where(seen & known, self.counts[gram] / self.totals[place], 0.0)
        return share, np.where(known, self.buckets[place], 0)


@dataclass(frozen=True)
class Trigram:
    """Trigrams, bigrams, unigrams and the uniform distribution, interpolated.

    With f_k(w | h) the share of w among the tokens that follow the context h of k - 1 tokens in
    the training text, and V tokens in the vocabulary,

        p_k(w | h) = l_k f_k(w | h) + (1 - l_k) p_{k-1}(w | h'),    p_0 = 1 / V,

    h' being h without its first token. The weight l_k depends on how often h occurs and on how
    often, in the mean, what follows it; it is 0 where h never occurs. The weights are those that
    make the validation text likeliest, found by expectation maximisation; each bucket of
    contexts starts from one observation at the weight of all contexts together, so that no token
    has probability 0.

    Of a long text with more than 16 million distinct n-grams of one order the rarest are not
    kept, as is usual; this bounds the memory to about two gigabytes. The text is counted in
    blocks, so that one that occurs once in many of them can be lost too, and f_k is the share
    among those that are kept.

    Source: Jelinek and Mercer 1980; buckets by mean count: Chen and Goodman 1998, section 4.1.1.

    Attributes:
        size: V, tokens in the vocabulary.
        weights: l_1, l_2, l_3 for each bucket, (3, buckets).
    """

    size: int
    weights: np.ndarray = field(repr=False)
    _levels: tuple[_Level, ...] = field(repr=False)

    @classmethod
    def fit(cls, corpus: Corpus) -> Trigram:
        """Count the training split of a corpus, and fit the weights to its validation split."""
        return cls.of(corpus.splits["train"], corpus.splits["valid"], corpus.vocabulary.size)

    @classmethod
    def of(cls, train: TokenArray, valid: TokenArray, size: int) -> Trigram:
        """Count one text and fit the weights to another.

        Args:
            train: The text to count.
            valid: The text to fit the weights to; of a long one the first million tokens serve.
            size: V; tokens are 0 to ``size - 1``.

        Raises:
            ValueError: If there are fewer than three tokens to count or two to fit to, or the
                vocabulary is so large that a trigram is no number of 64 bits.
        """
        if len(train) < _ORDER or len(valid) < 2:
            raise ValueError(
                f"{len(train)} tokens to count and {len(valid)} to fit the weights to: "
                f"expected {_ORDER} and 2 or more"
            )
        if size**_ORDER >= 1 << 63:
            raise ValueError(f"a vocabulary of {size} tokens: at most 2,097,151 can be counted")
        levels = tuple(_Level.count(train.array, order, size) for order in range(1, _ORDER + 1))
        tokens, contexts = next(_positions(valid.array, size, _HELD_OUT))
        found = [
            level.look_up(context, tokens) for level, context in zip(levels, contexts, strict=True)
        ]
        shares, buckets = (np.stack(parts) for parts in zip(*found, strict=True))
        return cls(size, _fit_weights(shares, buckets, size), levels)

    def log_probs(self, tokens: TokenArray) -> np.ndarray:
        """ln p of each token of a text but the first, given those before it, (count - 1,)."""
        parts = [self._log_probs(*block) for block in _positions(tokens.array, self.size, _BLOCK)]
        return np.concatenate(parts) if parts else np.empty(0)

    def bits(self, tokens: TokenArray) -> float:
        """Mean of -log2 p over the tokens of a text but the first: bits per token.

        Raises:
            ValueError: If there are fewer than two tokens.
        """
        if len(tokens) < 2:
            raise ValueError(f"{len(tokens)} tokens: expected 2 or more, the first is not judged")
        blocks = _positions(tokens.array, self.size, _BLOCK)
        total = math.fsum(self._log_probs(*block).sum() for block in blocks)
        return -total / (len(tokens) - 1) / math.log(2)

    def perplexity(self, tokens: TokenArray) -> float:
        """2 to the power of `bits`."""
        return 2 ** self.bits(tokens)

    def distribution(self, context: Sequence[int]) -> np.ndarray:
        """Probability of each token after a context, of which the last two tokens count, (V,)."""
        every = np.arange(self.size)
        last = [int(token) for token in context][-(_ORDER - 1) :]
        contexts = [
            np.full(self.size, _number(last[len(last) - k :], self.size) if k <= len(last) else -1)
            for k in range(_ORDER)
        ]
        return np.exp(self._log_probs(every, contexts))

    def _log_probs(self, tokens: np.ndarray, contexts: list[np.ndarray]) -> np.ndarray:
        mixed = np.full(len(tokens), 1 / self.size)
        for level, context, weights in zip(self._levels, contexts, self.weights, strict=True):
            share, bucket = level.look_up(context, tokens)
            weight = weights[bucket]
            mixed = weight * share + (1 - weight) * mixed
        return np.log(mixed)


def _number(tokens: Sequence[int], size: int) -> int:
    number = 0
    for token in tokens:
        number = number * size + token
    return number


def _positions(
    tokens: np.ndarray, size: int, block: int
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """The tokens from the second on, block by block, and their contexts of 0, 1 and 2 tokens."""
    for start in range(1, len(tokens), block):
        stop = min(start + block, len(tokens))
        before = max(0, start - _ORDER + 1)
        part = np.asarray(tokens[before:stop], dtype=np.int64)
        contexts = [np.zeros(stop - start, dtype=np.int64)]
        for k in range(1, _ORDER):
            context = np.full(stop - start, -1, dtype=np.int64)
            lacking = max(0, k - start)  # positions with fewer than k tokens before them
            number = np.zeros(stop - start - lacking, dtype=np.int64)
            for back in range(k, 0, -1):
                at = start - before + lacking - back
                number = number * size + part[at : at + len(number)]
            context[lacking:] = number
            contexts.append(context)
        yield part[start - before :], contexts


def _find(table: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where keys stand in a sorted table, and whether they do."""
    place = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return place, table[place] == keys


# --- counting ------------------------------------------------------------------------------------


def _distinct(tokens: np.ndarray, order: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct n-grams of a text, sorted, and how often each occurs.

    The text is counted in blocks. Where not all n-grams that there can be find room, two tables
    are merged as soon as they are about as large, so that an n-gram is merged no more often than
    the logarithm of the number of blocks.
    """
    if size**order <= _DENSE:
        every = np.zeros(size**order, dtype=np.int64)
        for grams in _grams(tokens, order, size):
            every += np.bincount(grams, minlength=len(every))
        keys = np.flatnonzero(every)
        return keys, every[keys]
    tables: list[tuple[np.ndarray, np.ndarray]] = []
    for grams in _grams(tokens, order, size):
        tables.append(np.unique(grams, return_counts=True))
        while len(tables) > 1 and len(tables[-2][0]) <= 2 * len(tables[-1][0]):
            tables.append(_prune(*_merge(tables.pop(), tables.pop())))
    while len(tables) > 1:
        tables.append(_prune(*_merge(tables.pop(), tables.pop())))
    return tables[0]


def _grams(tokens: np.ndarray, order: int, size: int) -> Iterator[np.ndarray]:
    """All n-grams of a text as numbers, block by block."""
    for start in range(0, len(tokens) - order + 1, _BLOCK):
        part = np.asarray(tokens[start : start + _BLOCK + order - 1], dtype=np.int64)
        count = len(part) - order + 1
        number = np.zeros(count, dtype=np.int64)
        for place in range(order):
            number = number * size + part[place : place + count]
        yield number


def _prune(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop what occurred once, then what occurred twice and so on, until `_MOST` are left.

    Blocks of the text are pruned before the next are merged with them, so an n-gram that occurs
    once in each of many blocks can be lost, although the whole text has it often. Totals of
    contexts are of what survived: shares are those among the n-grams that are kept.
    """
    fewest = 1
    while len(keys) > _MOST:
        kept = counts > fewest
        keys, counts = keys[kept], counts[kept]
        fewest += 1
    return keys, counts


def _merge(
    one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    keys = np.concatenate([one[0], other[0]])
    order = np.argsort(keys, kind="stable")  # two sorted runs: a merge
    keys, counts = keys[order], np.concatenate([one[1], other[1]])[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.add.reduceat(counts, first)


# --- weights -------------------------------------------------------------------------------------


def _fit_weights(shares: np.ndarray, buckets: np.ndarray, size: int) -> np.ndarray:
    """Weights of each level and bucket, (levels, buckets), by expectation maximisation.

    Args:
        shares: f_k of each token to fit to, (levels, count).
        buckets: Bucket of its context at each level, (levels, count).
        size: V.
    """
    number = 1 + _COUNT_BUCKETS * _MEAN_BUCKETS
    known = np.arange(number) > 0
    together = np.minimum(buckets, 1)
    start = np.where(np.arange(2) > 0, 0.5, 0.0) * np.ones((len(shares), 1))
    pooled = _maximize(shares, together, start, size)[:, 1:]
    return _maximize(shares, buckets, np.where(known, pooled, 0.0), size)


def _maximize(shares: np.ndarray, buckets: np.ndarray, prior: np.ndarray, size: int) -> np.ndarray:
    """The likeliest weights, one observation at the prior's weight being added to each."""
    weights, before = prior, -math.inf
    reached = np.ones(shares.shape)
    for _ in range(_STEPS):
        # Down the levels: the probability up to each level, and what its own share makes of it.
        mixed = np.full(shares.shape[1], 1 / size)
        used = np.empty(shares.shape)
        for k, share in enumerate(shares):
            weight = weights[k, buckets[k]]
            own = weight * share
            mixed = own + (1 - weight) * mixed
            used[k] = own / mixed
        # Up again: how likely a token came down to a level, and was drawn from its share there.
        down = np.ones(shares.shape[1])
        for k in reversed(range(len(shares))):
            reached[k] = down
            used[k] *= down
            down = down - used[k]
        weights = np.stack(
            [
                (_sums(used[k], buckets[k], prior[k]) + prior[k])
                / (_sums(reached[k], buckets[k], prior[k]) + 1)
                for k in range(len(shares))
            ]
        )
        # A context that never occurred has no share of its own.
        weights[:, 0] = 0.0
        likelihood = float(np.log(mixed).mean())
        if likelihood - before < _TOLERANCE:
            break
        before = likelihood
    return weights


def _sums(values: np.ndarray, buckets: np.ndarray, like: np.ndarray) -> np.ndarray:
    return np.bincount(buckets, values, minlength=len(like))
