"""What the tests of commands share: a trained run, and what keeps commands short."""

from pathlib import Path

import pytest
import tiny_run


@pytest.fixture(scope="session")
def digits_run(built_once) -> Path:
    """A folder with the run `digits`, trained as `tiny_run` says; only to be read."""
    return built_once("cli-digits", lambda folder: tiny_run.train(folder / "digits")) / "digits"


@pytest.fixture(scope="module")
def drawn_once():
    """Panels of the same figures are drawn once: matplotlib takes most of a page's time."""
    from equilibria.report import plots, sections, svg

    drawn = {}

    def inline(panel, *, wide=False):
        key = repr(panel), wide
        if key not in drawn:
            drawn[key] = svg.inline(panel, wide=wide)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "inline", inline)
        patch.setattr(sections, "inline", inline)
        yield


@pytest.fixture(scope="module")
def shallow():
    """The memory of a step is measured at two depths: at five it takes several seconds."""
    from equilibria.train import memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "DEPTHS", (2, 4))
        patch.setattr(memory, "LONG", (2, 4))
        yield


@pytest.fixture
def unsaved(monkeypatch):
    """Charts are drawn on axes, and not written out, which takes the most time of drawing."""
    from equilibria.report import svg

    monkeypatch.setattr(svg, "_saved", lambda figure: '<svg viewBox="0 0 1 1"></svg>')
