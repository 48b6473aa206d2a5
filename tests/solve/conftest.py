"""The tests of the solver core are thousands of small operations.

A second thread only makes them wait for each other, by a factor of up to thirty on a busy machine.
"""

import torch

torch.set_num_threads(1)
