"""Copy memory: repeat ten symbols after a long wait."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import Tensor
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.metric import ACCURACY
from equilibria.run.data.dataset import digest
from equilibria.run.models import Model, ModelConfig
from equilibria.run.tasks.base import SampleTask, TaskConfig, right
from equilibria.zoo.io.tasks import Predicts, complete_vocabulary
from equilibria.zoo.synthetic.data import drawn


@dataclass(frozen=True, kw_only=True)
class CopyMemory(TaskConfig):
    """Repeat ten symbols that were shown T steps ago. Trained with cross-entropy, at all positions.

    papers: Bai et al. 2019, appendix F.

    Args:
        delay: T, the steps that the symbols are to be remembered for.
        train: samples to learn from.
        test: samples to evaluate on.
        data_seed: of the samples.
    """

    delay: int = 400
    train: int = 20_000
    test: int = 2_000
    data_seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "delay", "train", "test")

    @override
    def load(self, data_dir: Path | None = None) -> CopyTask:
        return CopyTask(self)


class CopyTask(SampleTask):
    """Sequences (n, T + 20) with targets of the same shape."""

    metrics = (ACCURACY,)

    def __init__(self, config: CopyMemory) -> None:
        self.config = config
        seeds = {"train": 2 * config.data_seed, "test": 2 * config.data_seed + 1}
        samples = {
            name: drawn.draw_copy_memory(config.delay, getattr(config, name), seed=seed)
            for name, seed in seeds.items()
        }
        super().__init__(samples, digest(*samples.values()))
        self.source = f"copy memory, T = {config.delay}"

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        return complete_vocabulary(config, drawn.VOCABULARY, "copy memory")

    @override
    def loss(self, model: Model, output: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over the samples of the mean over their positions."""
        return cast(Predicts, model).losses(output, targets).mean(1).sum()

    @override
    def sums(self, model: Model, output: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return how many symbols are to be recalled, and how many are."""
        output, asked = (x[:, -drawn.RECALLED :] for x in (output, targets))
        return right(cast(Predicts, model).log_probs(output).argmax(-1) == asked)
