"""Text from a sequence model, token by token."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.run.models.base import EquilibriumModel, Prediction
from equilibria.solve import Solution, Status
from equilibria.zoo.language.model.base import SequenceModel

PIECE = 128
"""Tokens of a prompt that are read at a time; those before are in the carry."""


class NotANumber(ValueError):
    """The model does not give probabilities: its weights or its states are not finite."""


class GeneratedToken(NamedTuple):
    """One token, and what the model did for it."""

    token: int
    log_prob: float
    """log p of the token, in nats, as the model gives it: before temperature and cuts."""
    evaluations: tuple[int, ...]
    """Evaluations of the cell in each solve: one for the token before, and for the first token
    those of the prompt, piece by piece; none of an explicit network."""
    statuses: tuple[Status, ...]
    """How each of these solves ended."""


def generate(
    model: SequenceModel,
    prompt: Sequence[int],
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    excluded: Sequence[int] = (),
    warm: bool = True,
) -> Iterator[GeneratedToken]:
    """Write on from a prompt, one token at a time.

    The prompt is read in segments and each new token is a segment of its own; what came before is
    in the carry. So a Transformer sees as many tokens back as its `eval_memory`. The equilibrium of
    a token is sought from that of the same token where it last stood, else from that of the token
    before it; where the cell has one equilibrium, it is the same from any start, to the tolerance.

    The model is put in eval mode. Texts of one seed are equal on one machine.

    Args:
        model: explicit or implicit.
        prompt: tokens, one at least.
        length: tokens to write.
        temperature: what log p is divided by; 0 takes the most probable token each time.
        top_k: choose among this many most probable tokens; None for all.
        top_p: choose among the fewest most probable tokens whose probabilities, as `temperature`
            makes them, sum to this or more; None for all.
        seed: of the choices.
        excluded: tokens that are never chosen.
        warm: start a solve at an earlier equilibrium; else where the layer starts.

    Yields:
        A `GeneratedToken` for each token, as soon as it is chosen.

    Raises:
        ValueError: at once, before the first token: the prompt is empty or has a token that is not
            in the vocabulary, a number is out of range, no token is left to choose. At the second
            token: the model has no memory of the first.
    """
    vocabulary = model.lexicon.vocabulary
    if not prompt:
        raise ValueError("the prompt is empty: give one token at least to write on from")
    for name, tokens in (("prompt", prompt), ("excluded", excluded)):
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise ValueError(f"{name}: token {token} is not in a vocabulary of {vocabulary}")
    if length < 1:
        raise ValueError(f"length is the number of tokens to write and must be 1 or more: {length}")
    _check_choice(temperature, top_k, top_p)
    if len(set(excluded)) == vocabulary:
        raise ValueError("all tokens are excluded, so none is left to choose")
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "excluded": excluded}
    return _steps(model, list(prompt), length, seed, warm, options)


def choose(
    log_probs: Tensor,
    generator: torch.Generator | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    excluded: Sequence[int] = (),
) -> int:
    """Draw a token by its probability; `generate` says what the options are.

    Args:
        log_probs: (vocabulary,), log p of each token.
        generator: source of randomness on the CPU; torch's global one by default.
    """
    _check_choice(temperature, top_k, top_p)
    scores = log_probs.detach().cpu().double().clone()
    if scores.isnan().any():
        raise NotANumber("the model's probabilities are not numbers: its states overflow")
    scores[list(excluded)] = -math.inf
    if temperature == 0 or top_k == 1:
        return int(scores.argmax())
    ranked, tokens = scores.sort(descending=True, stable=True)
    # The largest is 0 before the division: however small the temperature, the most probable token
    # has e^0, and none overflows.
    probabilities = torch.softmax((ranked[:top_k] - ranked[0]) / temperature, 0)
    if top_p is not None:
        # A token stays if those before it do not reach the sum yet: the first one always does.
        before = probabilities.cumsum(0) - probabilities
        probabilities = probabilities * (before < top_p)
    return int(tokens[torch.multinomial(probabilities, 1, generator=generator)])


def _steps(
    model: SequenceModel,
    prompt: list[int],
    length: int,
    seed: int,
    warm: bool,
    options: dict[str, Any],
) -> Iterator[GeneratedToken]:
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    carry: Any = None
    starts: dict[int, Any] = {}
    z0: Any = None
    pieces = [prompt[begin : begin + PIECE] for begin in range(0, len(prompt), PIECE)]
    for written in range(length):
        solutions: list[Solution] = []
        log_probs = torch.empty(0)
        for piece in pieces:
            start = starts.get(piece[0], z0) if len(piece) == 1 else None
            log_probs, prediction = _read(model, piece, carry, start)
            carry = prediction.carry
            solutions += prediction.solutions
            if warm and prediction.solutions:
                states = _states(prediction)
                starts.update(zip(piece, states, strict=True))
                z0 = states[-1]
        if carry is None and written + 1 < length:
            raise ValueError(
                f"{type(model).__name__} keeps no memory from one segment to the next, so it "
                "cannot write token by token: build it with an eval_memory of 1 or more"
            )
        token = choose(log_probs, generator, **options)
        yield GeneratedToken(
            token,
            float(log_probs[token]),
            tuple(int(solution.stats.evals[0]) for solution in solutions),
            tuple(Status(int(solution.status[0])) for solution in solutions),
        )
        pieces = [[token]]


@torch.no_grad()
def _read(model: SequenceModel, piece: list[int], carry: Any, z0: Any) -> tuple[Tensor, Prediction]:
    """Return log p (vocabulary,) of what follows the piece, and the prediction."""
    tokens = torch.tensor([piece], device=next(model.parameters()).device)
    if z0 is not None and isinstance(model, EquilibriumModel):
        prediction = model(tokens, carry=carry, z0=z0)
    else:
        prediction = model(tokens, carry=carry)
    return model.log_probs(prediction.output[0, -1]), prediction


def _states(prediction: Prediction) -> list[Any]:
    """Return the state (1, 1, ...) at the equilibrium of each token that was read."""
    states = []
    for solution in prediction.solutions:
        leaves, spec = pytree.tree_flatten(solution.value)
        times = zip(*(leaf.split(1, 1) for leaf in leaves), strict=True)
        states += [pytree.tree_unflatten([x.clone() for x in at], spec) for at in times]
    return states


def _check_choice(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature must be 0 (the most probable) or more, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is a number of tokens and must be 1 or more, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is a sum of probabilities and must be in (0, 1], got {top_p}")
