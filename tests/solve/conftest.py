"""The tests of the solver core are thousands of small operations.

A second thread only makes them wait for each other, by a factor of up to thirty on a busy machine.
`OMP_NUM_THREADS` decides where it is set: `tests/settings.py` runs them with two.
"""

import os

import pytest
import torch
from hypothesis import configuration

if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _hypothesis_outside_the_checkout(tmp_path_factory):
    """It notes the constants of the source that it finds."""
    configuration.set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))
