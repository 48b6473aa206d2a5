"""Copy memory: ten symbols to be recalled after a long gap."""

import torch

from equilibria.run.data.dataset import Split
from equilibria.zoo.io.remote import Entry

SYMBOLS = 8
RECALLED = 10
DELIMITER = 9
VOCABULARY = 10
"""Tokens 0 (silence), 1 to 8 (symbols) and 9 (delimiter)."""


def split(delay: int, samples: int, *, seed: int, delimiters: int = 1) -> Split:
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
    name="copy-memory", title="Copy memory", read=lambda files, **options: split(**options)
)
