"""The page's pairs of a network for optical flow."""

import io
import re
from typing import Any

from PIL import Image

from equilibria.run.report import page


def png(color: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), color).save(buffer, "PNG")
    return buffer.getvalue()


def solve(status: str = "CONVERGED", evals: int = 9) -> dict[str, Any]:
    return {"evals": evals, "status": status}


def drives(*maps: str) -> dict[str, Any]:
    names = ("image", "second", "truth", "told", "error", *maps)
    pair = {"name": "pair 25", "epe": 1.234, "zero": 7.5, "files": dict.fromkeys(names, png())}
    solved = solve(evals=12) if maps else None
    return {
        "kind": "flow",
        "split": "test",
        "count": 200,
        "seen": 1,
        "pixels": 14.3,
        "rtol": 1e-2,
        "scale": None,
        "pictures": [pair | {"solve": solved}],
    }


def run(**more: Any) -> dict[str, Any]:
    metrics = [{"epoch": 1, "seconds": 1.0, "train": {"loss": 1.0}, "test": {"loss": 1.0}}]
    return {"name": "a run", "metrics": metrics, **more}


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_flow_stands_beside_its_error_and_what_still_moves():
    html = page([run(gallery=drives("moves"))])
    assert html.count("<img ") == 6 and "--columns: 3" in html
    said = text(html)
    for words in (
        "1 of 200 test pairs",
        "beyond 14.3 pixels",
        "error 1.23 px, of zero flow 7.50 px",
        "12 evaluations",
        "next image",
        "still moves",
    ):
        assert words in said
    assert "no map" not in said
    refined = text(page([run(gallery=drives())]))
    assert "still moves" not in refined and "12 evaluations" not in refined
