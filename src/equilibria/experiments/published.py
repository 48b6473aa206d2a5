"""What the papers print, table by table; figures whose values are lost are not made up.

papers: Agarwala and Schoenholz 2022 (Deep Equilibrium Networks are Sensitive to Initialization
Statistics), Bai et al. 2019 (Deep Equilibrium Models), Bai et al. 2021 (Stabilizing Equilibrium
Models by Jacobian Regularization), Bai 2022 (thesis; its chapter 3 is Bai et al. 2020, Multiscale
Deep Equilibrium Models).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "AGARWALA_2022",
    "BAI_2019",
    "BAI_2021",
    "BAI_2022",
    "CIFAR",
    "COPY_MEMORY",
    "COST",
    "ENSEMBLES",
    "IMAGENET",
    "IMAGES",
    "JACOBIAN",
    "PTB",
    "RUNTIME",
    "SIZES",
    "STOPPED",
    "WIKITEXT",
    "Classified",
    "Copied",
    "Cost",
    "Drawn",
    "Hastened",
    "Language",
    "Recognised",
    "Regularised",
    "Runtime",
]

AGARWALA_2022 = "Agarwala and Schoenholz 2022"
BAI_2019 = "Bai et al. 2019"
BAI_2021 = "Bai et al. 2021"
BAI_2022 = "Bai 2022 (thesis)"


@dataclass(frozen=True)
class Drawn:
    """A cell of Table 1 of Agarwala and Schoenholz 2022: WikiText-103, 10 seeds.

    Attributes:
        ensemble: by our name, "gaussian" for what the paper calls random.
        scale: sqrt(V).
        least: test perplexity of the best seed.
        mean: of all seeds.
    """

    ensemble: Literal["gaussian", "orthogonal", "goe"]
    scale: float
    least: float
    mean: float


ENSEMBLES = (
    Drawn("goe", 0.1, 68.1, 71.8),
    Drawn("goe", 0.3, 66.1, 69.8),
    Drawn("goe", 1.0, 66.3, 68.3),
    Drawn("orthogonal", 0.1, 60.7, 162.7),
    Drawn("orthogonal", 0.3, 60.5, 173.4),
    Drawn("orthogonal", 1.0, 57.4, 112.1),
    Drawn("gaussian", 0.1, 56.8, 153.9),
    Drawn("gaussian", 0.3, 56.3, 224.9),
    Drawn("gaussian", 1.0, 55.6, 481.5),
)
"""Table 1 of Agarwala and Schoenholz 2022."""


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


@dataclass(frozen=True)
class Classified:
    """A row of Table 3.1 of the thesis: CIFAR-10, test accuracy over five runs.

    Attributes:
        model: as the thesis names it.
        size: parameters.
        accuracy: in percent.
        deviation: standard deviation over the runs, in points.
        augmented: whether training images were changed at random.
    """

    model: str
    size: str
    accuracy: float
    deviation: float
    augmented: bool


@dataclass(frozen=True)
class Recognised:
    """A row of Table 3.2 of the thesis: ImageNet, accuracy in percent."""

    model: str
    size: str
    top1: float
    top5: float


@dataclass(frozen=True)
class Hastened:
    """A row of Table 2 of Bai et al. 2021, Table 4.2 of the thesis: images with the penalty.

    Attributes:
        data: CIFAR-10 or ImageNet.
        model: as the paper names it.
        size: parameters.
        accuracy: in percent; of ImageNet top-1.
        deviation: standard deviation over five runs, in points; None where there is one run.
        evals: evaluations at inference; None of an explicit network.
    """

    data: str
    model: str
    size: str
    accuracy: float
    deviation: float | None
    evals: int | None


@dataclass(frozen=True)
class Cost:
    """A group of bars of Figure 6 of Bai et al. 2021, whose numbers stand above them: CIFAR-10.

    Attributes:
        model: as the paper names it.
        error: in percent.
        memory: GB of training.
        time: run time, that of ResNet-101 being 1.
    """

    model: str
    error: float
    memory: float
    time: float


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

# Table 3.1 of the thesis, in its order
CIFAR = (
    Classified("Neural ODE", "172K", 53.7, 0.2, False),
    Classified("augmented Neural ODE", "172K", 60.6, 0.4, False),
    Classified("single-stream DEQ", "170K", 82.2, 0.3, False),
    Classified("ResNet-18", "170K", 81.6, 0.3, False),
    Classified("MDEQ-small", "170K", 87.1, 0.4, False),
    Classified("ResNet-18", "10M", 92.9, 0.2, True),
    Classified("MDEQ", "10M", 93.8, 0.3, True),
)

# Table 3.2 of the thesis
IMAGENET = (
    Recognised("AlexNet", "238M", 57.0, 80.3),
    Recognised("ResNet-18", "13M", 70.2, 89.9),
    Recognised("ResNet-34", "21M", 74.8, 91.1),
    Recognised("Inception-V2", "12M", 74.8, 92.2),
    Recognised("ResNet-50", "26M", 75.1, 92.5),
    Recognised("HRNet-W18-C", "21M", 76.8, 93.4),
    Recognised("single-stream DEQ, global pooling", "18M", 72.9, 91.0),
    Recognised("MDEQ-small", "18M", 75.5, 92.7),
    Recognised("ResNet-101", "52M", 77.1, 93.5),
    Recognised("W-ResNet-50", "69M", 78.1, 93.9),
    Recognised("DenseNet-264", "74M", 79.7, 94.8),
    Recognised("MDEQ-large", "63M", 77.5, 93.6),
    Recognised("MDEQ-large, 5 layers unrolled", "63M", 75.9, 93.0),
    Recognised("MDEQ-XL", "81M", 79.2, 94.5),
)

SIZES = {
    "mdeq-cifar10-tiny-paper": "170K",
    "mdeq-cifar10-large-paper": "10M",
    "mdeq-imagenet-small-paper": "18M",
    "mdeq-imagenet-large-paper": "63M",
    "mdeq-imagenet-xl-paper": "81M",
}
"""Size in Tables 3.1 and 3.2 of the thesis of the model that a recipe describes."""

# Table 2 of Bai et al. 2021, Table 4.2 of the thesis
IMAGES = (
    Hastened("CIFAR-10", "ResNet-18", "10M", 93.0, 0.1, None),
    Hastened("CIFAR-10", "ResNet-101", "40M", 93.8, 0.3, None),
    Hastened("CIFAR-10", "DenseNet-121", "8M", 95.0, 0.1, None),
    Hastened("CIFAR-10", "monotone DEQ", "1M", 89.4, 0.2, 24),
    Hastened("CIFAR-10", "MDEQ", "10M", 93.6, 0.2, 17),
    Hastened("CIFAR-10", "MDEQ, stopped early", "10M", 89.1, None, 6),
    Hastened("CIFAR-10", "MDEQ, regularised", "10M", 93.1, 0.3, 6),
    Hastened("ImageNet", "ResNet-18", "13M", 70.2, None, None),
    Hastened("ImageNet", "Inception-V2", "12M", 74.8, None, None),
    Hastened("ImageNet", "ResNet-50", "26M", 75.1, None, None),
    Hastened("ImageNet", "ResNet-101", "52M", 77.1, None, None),
    Hastened("ImageNet", "DenseNet-264", "74M", 79.7, None, None),
    Hastened("ImageNet", "MDEQ-small", "18M", 75.4, None, 27),
    Hastened("ImageNet", "MDEQ-large", "63M", 77.5, None, 30),
    Hastened("ImageNet", "MDEQ-small, regularised", "17M", 74.5, None, 14),
    Hastened("ImageNet", "MDEQ-large, regularised", "62M", 76.8, None, 15),
)

STOPPED = {
    0.1: (82.4, 89.7, 91.9, 92.3, 92.7, 92.9),
    0.6: (85.8, 91.5, 92.7, 93.0, 93.0, 93.1),
    1.2: (84.4, 89.6, 92.2, 92.6, 92.7, 92.7),
}
"""Table 3 of Bai et al. 2021: accuracy on CIFAR-10 in percent, stopped after 1 to 6 evaluations, by
gamma."""

# Figure 6 of Bai et al. 2021
COST = (
    Cost("ResNet-101", 6.2, 2.3, 1.0),
    Cost("DenseNet-121", 5.0, 2.5, 1.4),
    Cost("MDEQ", 6.4, 0.7, 2.8),
    Cost("MDEQ, regularised", 6.9, 1.1, 1.1),
)
