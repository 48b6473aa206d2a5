"""The tests of the solver core are thousands of small operations.

A second thread only makes them wait for each other, by a factor of up to thirty on a busy machine.
`OMP_NUM_THREADS` decides where it is set: `tests/settings.py` runs them with two.
"""

import os

import torch

if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)
