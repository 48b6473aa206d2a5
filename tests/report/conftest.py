"""What the tests of reports share."""

import pytest

from equilibria.report import plots, sections, svg


@pytest.fixture(scope="module")
def drawn_once():
    """Panels of the same figures are drawn once: matplotlib takes most of a page's time.

    It returns the drawings; empty it to have panels drawn again.
    """
    drawn = {}

    def inline(panel, *, wide=False):
        key = repr(panel), wide
        if key not in drawn:
            drawn[key] = svg.inline(panel, wide=wide)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "inline", inline)
        patch.setattr(sections, "inline", inline)
        yield drawn
