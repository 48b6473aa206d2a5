"""Log-mel features of sound, one vector every hundredth of a second."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

RATE = 16_000
"""Samples per second."""

WINDOW = 400
"""Samples of a window: 25 ms."""

STEP = 160
"""Samples from one window to the next: 10 ms."""

FILTERS = 32
"""Features of a step."""

FLOOR = 1e-8
"""Least energy of a filter. Rounding to 16 bits leaves 1.2e-8 in each frequency,
``sum(w^2) 2^-30 / 12``: without a floor, digital silence would lie at minus infinity."""

_POINTS = 512  # of the Fourier transform: the first power of two that holds a window


def steps(samples: int) -> int:
    """How many windows cover some samples, the last one filled up with zeros: 99 for a second."""
    return 1 + max(0, -(-(samples - WINDOW) // STEP))


def log_mel(waves: Tensor) -> Tensor:
    """Logarithms of the energy in 32 bands of frequency.

        y_tm = log(max(FLOOR, sum_k F_mk abs(X_tk)^2))
        X_tk = sum_n w_n x_{160 t + n} exp(-2 pi i k n / 512)

    w is a Hamming window of 400 samples, F the triangles of `filters`. There is no pre-emphasis:
    it would add a constant to each feature, which standardising takes away.

    Args:
        waves: Sound at 16 kHz in [-1, 1), ``(..., samples)``.

    Returns:
        ``(..., steps(samples), 32)``.

    Raises:
        ValueError: If there is no sample.

    papers: Davis and Mermelstein 1980; Kusupati et al. 2018 for the numbers.
    """
    if waves.shape[-1] == 0:
        raise ValueError("there is no sample: expected sound of at least one")
    count = steps(waves.shape[-1])
    # `stft` puts the window in the middle of the points: the first one begins at the first sample.
    before = (_POINTS - WINDOW) // 2
    after = (count - 1) * STEP + _POINTS - before - waves.shape[-1]
    flat = F.pad(waves.reshape(-1, waves.shape[-1]), (before, after))
    window = torch.hamming_window(WINDOW, periodic=False, dtype=waves.dtype, device=waves.device)
    spectrum = torch.stft(
        flat, _POINTS, STEP, WINDOW, window, center=False, onesided=True, return_complex=True
    )
    energy = spectrum.abs().square().mT @ filters().to(waves)
    return energy.clamp_min(FLOOR).log().reshape(*waves.shape[:-1], count, FILTERS)


@functools.cache
def filters() -> Tensor:
    """Weight of each frequency in each filter, ``(257, 32)``.

    Filter m rises linearly from 0 at f_{m-1} hertz to 1 at f_m and falls to 0 at f_{m+1}; f_0 = 0
    to f_33 = 8000 are evenly spaced in mel,

        mel(f) = 2595 log10(1 + f / 700).

    papers: Young et al. 2006, The HTK Book 3.4, section 5.4.
    """
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    mels = torch.linspace(0, top, FILTERS + 2, dtype=torch.float64)
    edges = 700 * (10 ** (mels / 2595) - 1)
    hertz = torch.linspace(0, RATE / 2, _POINTS // 2 + 1, dtype=torch.float64)[:, None]
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp_min(0).float()
