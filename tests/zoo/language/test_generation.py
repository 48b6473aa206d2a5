"""Text token by token: that of the whole context at once, and cheaper from a warm start."""

import math

import pytest
import torch

import equilibria as eq
from equilibria.zoo.language.model import generation
from equilibria.zoo.language.model.architectures import (
    DEQTransformerConfig,
    DEQTrellisNetConfig,
    TransformerXLConfig,
)
from equilibria.zoo.language.model.generation import choose, generate
from equilibria.zoo.language.model.recurrent import GRUConfig, LSTMConfig

VOCABULARY = 13
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
SHARED = {"vocabulary": VOCABULARY, "embedding_initial": 0.5}
# So strong an injection leaves one equilibrium, which the solver finds from any start.
STRONG = {"injection_scale": 1.0}
TRANSFORMER = {
    **SHARED,
    "scale": 0.1,
    "embedding_initial": 0.2,
    "width": 16,
    "heads": 2,
    "inner": 32,
    "eval_memory": 100,
}
KINDS = {
    "deq-transformer": lambda: DEQTransformerConfig(**TRANSFORMER, **STRONG),
    "deq-trellisnet": lambda: DEQTrellisNetConfig(**SHARED, width=8, hidden=4, scale=0.3),
    "transformer-xl": lambda: TransformerXLConfig(**TRANSFORMER, layers=3, tied=False),
    "lstm": lambda: LSTMConfig(**SHARED, width=8, hidden=8),
    "gru": lambda: GRUConfig(**SHARED, width=8, hidden=8, layers=2),
}


def build(kind, **options):
    torch.manual_seed(5)
    config = KINDS[kind]()
    layer = {"solver": eq.Anderson(**{"rtol": 1e-9, "max_evals": 300, **options})}
    model = config.build(**(layer if config.implicit else {})).double()
    for bias in model.lexicon.biases:
        bias.data.normal_()  # a text that is not one token again and again
    return model


def tokens(steps):
    return [step.token for step in steps]


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_the_whole_context_read_at_once(kind):
    model = build(kind)
    written = list(generate(model, PROMPT, 12, seed=1))
    text = PROMPT + tokens(written)
    assert len(set(text[len(PROMPT) :])) > 2
    with torch.no_grad():
        log_probs = model.log_probs(model(torch.tensor([text])).output[0])
    for place, step in enumerate(written, start=len(PROMPT) - 1):
        assert step.log_prob == pytest.approx(float(log_probs[place, step.token]), abs=1e-6)
    implicit = kind.startswith("deq")
    assert all(len(step.evaluations) == implicit for step in written)
    assert all(status == eq.Status.CONVERGED for step in written for status in step.statuses)


@pytest.mark.parametrize("kind", ["deq-transformer", "deq-trellisnet"])
def test_a_warm_start_writes_the_same_with_fewer_evaluations(kind):
    model = build(kind)
    warm, cold = (list(generate(model, PROMPT, 12, temperature=0, warm=w)) for w in (True, False))
    assert tokens(warm) == tokens(cold)
    for a, b in zip(warm, cold, strict=True):
        assert a.log_prob == pytest.approx(b.log_prob, abs=1e-6)
    spent, needed = (sum(sum(s.evaluations) for s in steps[1:]) for steps in (warm, cold))
    assert spent < needed


def test_a_start_is_the_equilibrium_of_the_same_token_or_of_the_last():
    model = build("deq-transformer")
    starts, forward = [], model.forward
    model.forward = lambda x, **options: (starts.append(options), forward(x, **options))[1]
    excluded = [token for token in range(VOCABULARY) if token not in (3, 7)]
    steps = list(generate(model, PROMPT, 12, excluded=excluded, seed=2))
    assert starts[0].get("z0") is None
    with torch.no_grad():
        states = forward(torch.tensor([PROMPT + tokens(steps)])).solution.value
    text = PROMPT + tokens(steps)
    assert 3 in text[len(PROMPT) : -1] and 7 in text[len(PROMPT) : -1]
    for place, options in enumerate(starts[1:], start=len(PROMPT)):
        same = [i for i in range(place) if text[i] == text[place]]
        nearest = same[-1] if same else place - 1
        torch.testing.assert_close(options["z0"], states[:, nearest : nearest + 1])


def test_a_long_prompt_is_read_in_pieces(monkeypatch):
    model = build("deq-transformer")
    whole = list(generate(model, PROMPT, 8))
    monkeypatch.setattr(generation, "PIECE", 4)
    pieces = list(generate(model, PROMPT, 8))
    assert tokens(pieces) == tokens(whole)
    assert [len(step.evaluations) for step in pieces] == [3] + [1] * 7
    assert [len(step.statuses) for step in whole] == [1] * 8


def test_a_seed_is_a_text_and_a_shorter_one_is_its_beginning():
    model = build("lstm")
    first = tokens(generate(model, PROMPT, 40, seed=3))
    assert first == tokens(generate(model, PROMPT, 40, seed=3))
    assert first != tokens(generate(model, PROMPT, 40, seed=4))
    assert first[:9] == tokens(generate(model, PROMPT, 9, seed=3))
    greedy = tokens(generate(model, PROMPT, 40, temperature=0, seed=3))
    assert greedy == tokens(generate(model, PROMPT, 40, top_k=1, seed=4))
    kept = tokens(generate(model, PROMPT, 60, excluded=range(0, VOCABULARY, 2)))
    assert all(token % 2 for token in kept)


def test_a_budget_that_is_too_small_is_told_token_by_token():
    model = build("deq-transformer", max_evals=2)
    steps = list(generate(model, PROMPT, 3))
    assert all(step.statuses == (eq.Status.MAX_EVALS,) for step in steps)
    assert all(step.evaluations == (2,) for step in steps)


def test_without_memory_there_is_one_token_and_then_an_error():
    torch.manual_seed(5)
    model = DEQTransformerConfig(**{**TRANSFORMER, "eval_memory": 0}).build()
    assert len(list(generate(model, PROMPT, 1))) == 1
    steps = generate(model, PROMPT, 2)
    with pytest.raises(ValueError, match="no memory"):
        list(steps)


def frequencies(**options):
    log_probs = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2], dtype=torch.float64).log()
    generator = torch.Generator().manual_seed(0)
    drawn = [choose(log_probs, generator, **options) for _ in range(1000)]
    return [round(drawn.count(token) / 1000, 2) for token in range(5)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [0.1, 0.4, 0.05, 0.25, 0.2]),
        ({"top_k": 2}, [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        ({"top_k": 99}, [0.1, 0.4, 0.05, 0.25, 0.2]),
        ({"top_p": 0.65}, [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        ({"top_p": 0.66}, [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85]),
        ({"top_p": 0.01}, [0, 1, 0, 0, 0]),
        ({"top_p": 1.0}, [0.1, 0.4, 0.05, 0.25, 0.2]),
        ({"temperature": 0.5}, [p**2 / 0.275 for p in (0.1, 0.4, 0.05, 0.25, 0.2)]),
        ({"temperature": 0.0}, [0, 1, 0, 0, 0]),
        ({"temperature": 1e-310}, [0, 1, 0, 0, 0]),
        ({"temperature": 5e-324, "top_p": 0.9, "excluded": (1,)}, [0, 0, 0, 1, 0]),
        ({"temperature": 0.0, "excluded": (1,)}, [0, 0, 0, 1, 0]),
        ({"excluded": (1, 3)}, [0.1 / 0.35, 0, 0.05 / 0.35, 0, 0.2 / 0.35]),
        ({"temperature": 2.0, "top_k": 2, "top_p": 0.5}, [0, 1, 0, 0, 0]),
    ],
)
def test_tokens_are_drawn_by_their_probability(options, wanted):
    got = frequencies(**options)
    assert got == pytest.approx(wanted, abs=0.05)
    assert [a == 0 for a in got] == [b == 0 for b in wanted]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [1, VOCABULARY]}, "token 13 is not in a vocabulary of 13"),
        ({"prompt": [-1]}, "token -1"),
        ({"length": 0}, "length"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"excluded": range(VOCABULARY)}, "none is left"),
        ({"excluded": [99]}, "excluded: token 99"),
    ],
)
def test_a_mistake_is_told_before_the_first_token(options, words):
    options = {"prompt": PROMPT, "length": 2, **options}
    with pytest.raises(ValueError, match=words):
        generate(build("lstm"), **options)


def test_probabilities_that_are_no_numbers_are_an_error():
    with pytest.raises(ValueError, match="not numbers"):
        choose(torch.tensor([0.0, math.nan]))
