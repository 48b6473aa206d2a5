"""Recordings of many makes."""

from __future__ import annotations

import io

import numpy as np
import soundfile

TONE = 0.6 * np.sin(np.arange(1600) * 0.07)


def made(form: str = "WAV", kind: str = "PCM_16", channels: int = 1) -> bytes:
    content = io.BytesIO()
    tones = TONE[:, None] * np.array([1.0, 0.5])[:channels]
    soundfile.write(content, tones, 8000, kind, format=form)
    return content.getvalue()
