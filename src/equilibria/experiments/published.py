"""What the papers print, table by table; figures whose values are lost are not made up.

papers: Bai et al. 2019 (Deep Equilibrium Models), Bai et al. 2021 (Stabilizing Equilibrium Models
by Jacobian Regularization).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BAI_2019",
    "BAI_2021",
    "COPY_MEMORY",
    "JACOBIAN",
    "PTB",
    "RUNTIME",
    "WIKITEXT",
    "Copied",
    "Language",
    "Regularised",
    "Runtime",
]

BAI_2019 = "Bai et al. 2019"
BAI_2021 = "Bai et al. 2021"


@dataclass(frozen=True)
class Copied:
    """A row of Table 1 of Bai et al. 2019: copy memory, T = 400."""

    model: str
    size: str
    loss: float


@dataclass(frozen=True)
class Language:
    """A row of Tables 2 and 3 of Bai et al. 2019: word-level language modelling.

    Attributes:
        model: as the paper names it.
        size: parameters.
        core: parameters without the embedding; None where the paper has a dash.
        perplexity: on the test set.
        memory: GB of a training step at length 150, batch 15, without embeddings, or None.
    """

    model: str
    size: str
    core: str | None
    perplexity: float
    memory: float | None


@dataclass(frozen=True)
class Runtime:
    """A column of Table 4 of Bai et al. 2019: times as long as the explicit network."""

    against: str
    training: float
    inference: float


@dataclass(frozen=True)
class Regularised:
    """A row of Table 5 of Bai et al. 2021, a longer Table 1: WikiText-103.

    Attributes:
        model: as the paper names it.
        size: parameters.
        perplexity: None where the training diverged.
        time: training time, the 18-layer Transformer-XL being 1; None where there is none.
        train: evaluations in training.
        valid: evaluations in validation.
        memory: GB of a training step at batch 15, without embeddings.
    """

    model: str
    size: str
    perplexity: float | None
    time: float | None
    train: int | None
    valid: int | None
    memory: float | None


# Table 1
COPY_MEMORY = (
    Copied("DEQ-Transformer", "14K", 3.5e-6),
    Copied("TCN", "16K", 2.7e-5),
    Copied("LSTM", "14K", 0.0501),
    Copied("GRU", "14K", 0.0491),
)

# Table 2
PTB = (
    Language("Variational LSTM", "66M", None, 73.4, None),
    Language("NAS Cell", "54M", None, 62.4, None),
    Language("NAS (w/ black-box tuner)", "24M", "20M", 59.7, None),
    Language("AWD-LSTM", "24M", "20M", 58.8, None),
    Language("DARTS (second order)", "23M", "20M", 55.7, None),
    Language("60-layer TrellisNet (auxiliary loss)", "24M", "20M", 57.0, 8.5),
    Language("DEQ-TrellisNet", "24M", "20M", 57.1, 1.2),
)

# Table 3
WIKITEXT = (
    Language("Generic TCN", "150M", "34M", 45.2, None),
    Language("Gated Linear ConvNet", "230M", None, 37.2, None),
    Language("AWD-QRNN", "159M", "51M", 33.0, 7.1),
    Language("Relational Memory Core", "195M", "60M", 31.6, None),
    Language("Transformer-XL (X-large, adaptive, TPU)", "257M", "224M", 18.7, 12.0),
    Language("70-layer TrellisNet (auxiliary loss)", "180M", "45M", 29.2, 24.7),
    Language("70-layer TrellisNet, checkpointed", "180M", "45M", 29.2, 5.2),
    Language("DEQ-TrellisNet", "180M", "45M", 29.0, 3.3),
    Language("Transformer-XL (medium, 16 layers)", "165M", "44M", 24.3, 8.5),
    Language("DEQ-Transformer (medium)", "172M", "43M", 24.2, 2.7),
    Language("Transformer-XL (medium, 18 layers, adaptive)", "110M", "72M", 23.6, 9.0),
    Language("DEQ-Transformer (medium, adaptive)", "110M", "70M", 23.2, 3.7),
    Language("Transformer-XL (small, 4 layers)", "139M", "4.9M", 35.8, 4.8),
    Language("Transformer-XL (small, weight-tied 16 layers)", "138M", "4.5M", 34.9, 6.8),
    Language("DEQ-Transformer (small)", "138M", "4.5M", 32.4, 1.1),
)

# Table 4. The thesis of 2022 prints 3.24 and 2.56 for the Transformer (its Table 2.4).
RUNTIME = (
    Runtime("18-layer Transformer", 2.82, 1.76),
    Runtime("70-layer TrellisNet", 2.40, 1.64),
)

# Table 5 of Bai et al. 2021; Table 1 has the same rows without the memory
JACOBIAN = (
    Regularised("AWD-Quasi RNN", "159M", 33.0, None, None, None, 7.1),
    Regularised("Relational Memory Core", "195M", 31.6, None, None, None, None),
    Regularised("Megatron-LM", "8300M", 10.8, None, None, None, None),
    Regularised("Transformer-XL (18 layers)", "110M", 24.1, 1.0, None, None, 9.0),
    Regularised("DEQ, pre-LN", "98M", None, None, 30, None, None),
    Regularised("DEQ, post-LN", "98M", 24.0, 3.1, 30, 30, 3.9),
    Regularised("DEQ, post-LN, stopped early", "98M", 29.2, 3.1, 30, 12, 3.9),
    Regularised("DEQ, post-LN, 20 evaluations", "98M", 26.0, 2.2, 20, 20, 3.6),
    Regularised("DEQ, post-LN, 15 evaluations", "98M", None, None, 15, None, 3.6),
    Regularised("DEQ, pre-LN, regularised", "98M", 24.5, 1.5, 14, 14, 4.8),
    Regularised("DEQ, post-LN, regularised", "98M", 24.9, 1.4, 13, 12, 4.8),
    Regularised("DEQ, post-LN, regularised, length 300", "98M", 23.8, 2.2, 13, 13, 6.5),
)
