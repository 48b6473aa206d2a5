"""A split of a task that has no samples."""

import pytest
import torch

from equilibria.run.data import DataError


class Empty:
    """A split without samples."""

    targets = torch.zeros(0, dtype=torch.int64)

    def __len__(self):
        return 0

    def __getitem__(self, index):
        return torch.zeros(0, 1, 8, 8), self.targets


def test_a_split_without_samples_is_an_error_that_names_it(make):
    trainer, _ = make()
    trainer.task.samples["test"] = Empty()
    with pytest.raises(DataError, match="the test split of Digits is empty"):
        trainer.evaluate("test")
