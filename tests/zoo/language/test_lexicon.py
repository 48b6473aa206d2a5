"""Embedding and softmax: probabilities that add up, and those of a dense softmax."""

import math

import pytest
import torch
import torch.nn.functional as F

from equilibria.zoo.language.model.base import Lexicon

VOCABULARY, WIDTH = 23, 8
KINDS = {
    "plain": {},
    "own tables": {"tied": False},
    "other features": {"features": 6},
    "own tables, other features": {"features": 6, "tied": False},
    "two clusters": {"cutoffs": (9,)},
    "adaptive": {"cutoffs": (5, 11), "division": 2},
    "adaptive, own tables": {"cutoffs": (5, 11), "division": 2, "tied": False},
    "adaptive, other features": {"cutoffs": (5, 11), "division": 2, "features": 6},
    "adaptive, one a token": {"cutoffs": (1, 22), "division": 2, "features": 12, "tied": False},
}


@pytest.fixture(params=KINDS, ids=str)
def lexicon(request):
    torch.manual_seed(1)
    made = Lexicon(VOCABULARY, WIDTH, initial=0.7, **KINDS[request.param]).double()
    for bias in made.biases:
        bias.data.normal_()
    return made


def dense(lexicon, features):
    """log p of all tokens from one table over the whole vocabulary: another way to the same."""
    tied, division = lexicon.tied, lexicon.division
    tables = list(lexicon.tables if tied else lexicon.output_tables)
    if division > 1:
        maps = list(lexicon.output_projections)
        if tied:
            maps += list(lexicon.projections)[1:]
        tables = [table @ p.T for table, p in zip(tables, maps, strict=True)]
    if lexicon.adapter is not None:
        features = features @ lexicon.adapter.T
    tokens = features @ torch.cat(tables).T
    if not lexicon.cutoffs:
        return F.log_softmax(tokens + lexicon.biases[0], -1)
    first = lexicon.cutoffs[0]
    clusters = lexicon.clusters
    if division > 1:
        clusters = clusters @ lexicon.output_projections[0].T
    biases = torch.cat([lexicon.biases[0][:first], *list(lexicon.biases)[1:]])
    tokens = (tokens + biases).exp()
    shares = (features @ clusters.T + lexicon.biases[0][first:]).exp()
    total = tokens[..., :first].sum(-1, keepdim=True) + shares.sum(-1, keepdim=True)
    parts = [tokens[..., :first] / total]
    edges = (*lexicon.cutoffs, VOCABULARY)
    for i in range(len(lexicon.cutoffs)):
        inside = tokens[..., edges[i] : edges[i + 1]]
        inside = inside / inside.sum(-1, keepdim=True)
        parts.append(shares[..., i : i + 1] / total * inside)
    return torch.cat(parts, -1).log()


def batch(lexicon):
    """Features, and targets in which each token occurs."""
    targets = torch.randperm(VOCABULARY + 1)[:VOCABULARY].clamp(max=VOCABULARY - 1)
    targets = torch.cat([targets, torch.arange(VOCABULARY)]).reshape(2, VOCABULARY)
    features = torch.randn(2, VOCABULARY, lexicon.features, dtype=torch.float64)
    return features.requires_grad_(), targets


def test_probabilities_sum_to_one_and_losses_are_theirs(lexicon):
    features, targets = batch(lexicon)
    log_probs = lexicon.log_probs(features)
    assert log_probs.shape == (2, VOCABULARY, VOCABULARY)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(2, VOCABULARY).double())
    at_target = log_probs.gather(-1, targets[..., None]).squeeze(-1)
    torch.testing.assert_close(lexicon.losses(features, targets), -at_target)


def test_values_and_gradients_are_those_of_a_dense_softmax(lexicon):
    features, targets = batch(lexicon)
    leaves = [features, *lexicon.parameters()]
    weights = torch.randn(2, VOCABULARY, dtype=torch.float64)
    got = lexicon.losses(features, targets)
    wanted = -dense(lexicon, features).gather(-1, targets[..., None]).squeeze(-1)
    torch.testing.assert_close(got, wanted)
    got, wanted = (
        torch.autograd.grad((losses * weights).sum(), leaves, materialize_grads=True)
        for losses in (got, wanted)
    )
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_an_embedding_is_its_row_projected_and_scaled(lexicon):
    tokens = torch.randperm(VOCABULARY)[:20].reshape(4, 5)
    x = lexicon.embed(tokens)
    assert x.shape == (4, 5, WIDTH)
    rows = [
        table @ lexicon.projections[i].T if lexicon.division > 1 else table
        for i, table in enumerate(lexicon.tables)
    ]
    torch.testing.assert_close(x, math.sqrt(WIDTH) * torch.cat(rows)[tokens])
    probe = torch.randn_like(x)
    got, wanted = (
        torch.autograd.grad((y * probe).sum(), list(lexicon.tables))
        for y in (x, math.sqrt(WIDTH) * torch.cat(rows)[tokens])
    )
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_a_target_below_zero_costs_nothing_and_moves_nothing(lexicon):
    features, targets = batch(lexicon)
    left_out = torch.rand(targets.shape) < 0.5
    losses = lexicon.losses(features, targets.masked_fill(left_out, -1))
    whole = lexicon.losses(features, targets)
    torch.testing.assert_close(losses, whole.masked_fill(left_out, 0.0))
    assert (losses[left_out] == 0).all()
    leaves = [features, *lexicon.parameters()]
    got = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
    assert (got[0][left_out] == 0).all()
    kept = torch.autograd.grad(whole[~left_out].sum(), leaves, allow_unused=True)
    for a, b in zip(got, kept, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
    nothing = lexicon.losses(features, torch.full_like(targets, -7))
    assert torch.autograd.grad(nothing.sum(), features)[0].count_nonzero() == 0


def test_every_parameter_gets_a_gradient_though_no_token_is_rare():
    # Otherwise DistributedDataParallel waits for ever for the tables that a batch left alone.
    lexicon = Lexicon(VOCABULARY, WIDTH, cutoffs=(5, 11), division=2)
    tokens = torch.zeros(2, 3, dtype=torch.long)
    lexicon.losses(lexicon.embed(tokens), tokens).sum().backward()
    assert all(parameter.grad is not None for parameter in lexicon.parameters())


def test_tokens_of_a_cluster_alone_go_through_it():
    lexicon = Lexicon(VOCABULARY, WIDTH, cutoffs=(5, 11), division=2)
    seen = dict.fromkeys(range(3), 0)
    logits = lexicon._logits
    lexicon._logits = lambda flat, i: (seen.update({i: len(flat)}), logits(flat, i))[1]
    lexicon.losses(torch.randn(1, 6, WIDTH), torch.tensor([[0, 5, 10, 22, 4, -1]]))
    assert seen == {0: 6, 1: 2, 2: 1}


def test_word_dropout_takes_a_word_everywhere_in_training_only():
    lexicon = Lexicon(VOCABULARY, WIDTH, cutoffs=(5,), division=2, dropout=0.4)
    tokens = torch.arange(VOCABULARY).repeat(2, 3)
    whole = lexicon.eval().embed(tokens)
    assert torch.equal(whole, lexicon.embed(tokens))
    torch.manual_seed(3)
    lexicon.train()
    dropped = 0
    for _ in range(40):
        x = lexicon.embed(tokens)
        gone = (x == 0).all(-1)
        assert torch.equal(gone, gone[:1, :VOCABULARY].repeat(2, 3))
        torch.testing.assert_close(x, (whole / 0.6).masked_fill(gone[..., None], 0.0))
        dropped += int(gone[0, :VOCABULARY].sum())
    assert dropped / (40 * VOCABULARY) == pytest.approx(0.4, abs=0.06)


def test_starts_at_the_given_deviation():
    lexicon = Lexicon(5000, 64, cutoffs=(1000,), division=4)
    for name, parameter in lexicon.named_parameters():
        if name.startswith("biases"):
            assert parameter.count_nonzero() == 0
        elif parameter.numel() > 1000:
            assert parameter.std().item() == pytest.approx(0.01, rel=0.1), name


def test_the_papers_vocabulary_has_their_number_of_parameters_without_memory():
    # Bai et al. 2021: 98M parameters in all, of which the cell has 71.6M.
    with torch.device("meta"):
        lexicon = Lexicon(267735, 700, cutoffs=(20000, 40000, 200000), division=4)
    tables = 20000 * 700 + 20000 * 175 + 160000 * 43 + 67735 * 10
    projections = 700 * (700 + 175 + 43 + 10)
    assert sum(p.numel() for p in lexicon.tables) == tables
    assert sum(p.numel() for p in lexicon.projections) == projections
    total = sum(p.numel() for p in lexicon.parameters())
    assert total == tables + projections + 700 * 700 + 3 * 700 + 267735 + 3
    assert all(p.is_meta for p in lexicon.parameters())


@pytest.mark.parametrize(
    ("vocabulary", "width", "options", "words"),
    [
        (0, 8, {}, "must be positive"),
        (10, 8, {"features": 0}, "must be positive"),
        (10, 8, {"cutoffs": (4, 4)}, "must increase"),
        (10, 8, {"cutoffs": (10,)}, "vocabulary of 10"),
        (10, 8, {"cutoffs": (0,)}, "must increase"),
        (10, 8, {"division": 2}, "without cutoffs"),
        (10, 8, {"cutoffs": (2, 4), "division": 3}, "no column: width is only 8"),
        (10, 9, {"cutoffs": (2, 4), "division": 3, "features": 8, "tied": False}, "features is"),
        (10, 8, {"dropout": 1.0}, "dropout"),
        (10, 8, {"initial": -1.0}, "initial"),
    ],
)
def test_what_cannot_be_is_refused(vocabulary, width, options, words):
    with pytest.raises(ValueError, match=words):
        Lexicon(vocabulary, width, **options)


@pytest.mark.parametrize("cutoffs", [(), (5, 11)], ids=str)
def test_a_token_outside_the_vocabulary_is_an_error(cutoffs):
    lexicon = Lexicon(VOCABULARY, WIDTH, cutoffs=cutoffs)
    with pytest.raises(IndexError):
        lexicon.embed(torch.tensor([[VOCABULARY]]))
    with pytest.raises(IndexError):
        lexicon.losses(torch.randn(1, 1, WIDTH), torch.tensor([[VOCABULARY]]))
