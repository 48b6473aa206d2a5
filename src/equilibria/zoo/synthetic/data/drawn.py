"""Tasks that are drawn: adding two of many numbers, and telling which of two symbols came first."""

from __future__ import annotations

import torch

from equilibria.run.data.dataset import Split
from equilibria.zoo.io.remote import Entry
from equilibria.zoo.io.sequences import Sequences

# --- copy memory ----------------------------------------------------------------------------------

# Copy memory: ten symbols to be recalled after a long gap.


SYMBOLS = 8
RECALLED = 10
DELIMITER = 9
VOCABULARY = 10
"""Tokens 0 (silence), 1 to 8 (symbols) and 9 (delimiter)."""


def draw_copy_memory(delay: int, samples: int, *, seed: int, delimiters: int = 1) -> Split:
    """Draw samples of the copy memory task.

    Each input begins with ten symbols, drawn from 1 to 8 with repetition; then come
    ``delay - 1`` zeros, the delimiter 9 and ten zeros. The target is zero until the delimiter,
    and repeats the ten symbols after it:

        x_0 ... x_9 from {1, ..., 8},  x_{T+9} = 9,  y_{T+10} ... y_{T+19} = x_0 ... x_9,

    all other x and y being zero, where T is `delay` and a sample is T + 20 tokens long. A
    network without memory can at best guess the ten symbols, with a mean loss of
    10 ln(8) / (T + 20) nats.

    Args:
        delay: T, the steps from the symbols to their repetition.
        samples: How many to draw.
        seed: The same delay, samples and seed give the same split on every machine.
        delimiters: How many of the last eleven inputs are 9, from the first on. 11 is the
            variant of Bai et al. 2018, in which the network need not count what it has recalled.

    Returns:
        Inputs and targets, int64, (samples, delay + 20).

    Raises:
        ValueError: If there is no sample, no delay, or `delimiters` is not between 1 and 11.

    Source: Bai et al. 2019, appendix F.
    """
    if delay < 1 or samples < 1:
        raise ValueError(f"delay is {delay} and samples {samples}: expected 1 or more of each")
    if not 1 <= delimiters <= RECALLED + 1:
        raise ValueError(f"delimiters is {delimiters}: expected 1 to {RECALLED + 1}")
    generator = torch.Generator().manual_seed(seed)
    symbols = torch.randint(1, SYMBOLS + 1, (samples, RECALLED), generator=generator)
    inputs = torch.zeros(samples, delay + 2 * RECALLED, dtype=torch.int64)
    targets = torch.zeros_like(inputs)
    inputs[:, :RECALLED] = symbols
    first = delay + RECALLED - 1
    inputs[:, first : first + delimiters] = DELIMITER
    targets[:, -RECALLED:] = symbols
    return Split(inputs, targets)


COPY_MEMORY = Entry(
    name="copy-memory",
    title="Copy memory",
    read=lambda files, **options: draw_copy_memory(**options),
)


# --- drawn ----------------------------------------------------------------------------------------


def draw_adding(length: int, samples: int, seed: int) -> Sequences:
    """Draw samples of the adding problem.

    The first channel has numbers, uniform in [0, 1), and the second is 1 at two steps, one in the
    first half and one in the second, and 0 elsewhere. The target is the sum of the two numbers at
    these steps; to answer with its mean, 1, is a mean squared error of 1/6.

    Args:
        length: Steps, T.
        samples: How many to draw.
        seed: The same length, samples and seed give the same samples on every machine.

    Returns:
        Inputs ``(samples, length, 2)`` and targets ``(samples, 1)``, both float32.

    Raises:
        ValueError: If there is no sample, or fewer than two steps.

    Source: Hochreiter and Schmidhuber 1997, as in Arjovsky et al. 2016, section 4.2.
    """
    _check(length, samples, least=2)
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(samples, length, generator=generator)
    half = length // 2
    first = torch.randint(half, (samples, 1), generator=generator)
    second = torch.randint(half, length, (samples, 1), generator=generator)
    places = torch.cat([first, second], dim=1)
    marks = torch.zeros_like(values).scatter_(1, places, 1.0)
    targets = values.gather(1, places).sum(dim=1, keepdim=True)
    return Sequences(torch.stack([values, marks], dim=2), targets)


def draw_order(
    length: int, samples: int, seed: int, *, symbols: int = 4, parity: bool = False
) -> Sequences:
    """Draw samples of a temporal-order problem: which of two symbols came first.

    All steps have one of `symbols` distractors, except two, one in each half, which have the
    symbols A and B in either order; the class is 0 where A comes first and 1 where B does. All
    symbols are one-hot, A and B the last two.

    With `parity`, A and B are both on even steps (counted from 0), so that one of the two orders
    becomes the other by a permutation of the even steps alone. A network whose state is a sum over
    steps with signs that alternate gives both the same answer.

    Args:
        length: Steps, T.
        samples: How many to draw; the classes are equally likely.
        seed: The same arguments give the same samples on every machine.
        symbols: Number of distractors.
        parity: Whether both symbols are on even steps.

    Returns:
        Inputs ``(samples, length, symbols + 2)``, float32, and classes ``(samples,)``, int64.

    Raises:
        ValueError: If there is no sample, no distractor, or too few steps: two, or with `parity`
            three.

    Source: after Hochreiter and Schmidhuber 1997, section 5.6.
    """
    _check(length, samples, least=3 if parity else 2)
    if symbols < 1:
        raise ValueError(f"symbols is {symbols}: expected at least 1")
    generator = torch.Generator().manual_seed(seed)
    stride = 2 if parity else 1
    usable = (length + stride - 1) // stride
    tokens = torch.randint(symbols, (samples, length), generator=generator)
    targets = torch.randint(2, (samples,), generator=generator)
    half = usable // 2
    first = torch.randint(half, (samples, 1), generator=generator)
    second = torch.randint(half, usable, (samples, 1), generator=generator)
    pair = torch.stack([symbols + targets, symbols + 1 - targets], dim=1)
    tokens.scatter_(1, stride * torch.cat([first, second], dim=1), pair)
    return Sequences(torch.nn.functional.one_hot(tokens, symbols + 2).float(), targets)


def _check(length: int, samples: int, least: int) -> None:
    if length < least or samples < 1:
        raise ValueError(
            f"length is {length} and samples {samples}: expected at least {least} steps and one "
            "sample"
        )
