"""Images of many makes."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

RGB = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3) * 5 // 8 * 2


GRAY = RGB[..., 0]


DEEP = ("I", "I;16", "F")


def image(form: str, mode: str) -> bytes:
    if mode in DEEP:
        kind = {"I": np.int32, "I;16": np.uint16, "F": np.float32}[mode]
        made = Image.fromarray(GRAY.astype(kind) * 257)
    else:
        made = Image.fromarray(RGB).convert(mode)
    content = io.BytesIO()
    made.save(content, form, **({"sizes": [(8, 6)]} if form == "ICO" else {}))
    return content.getvalue()
