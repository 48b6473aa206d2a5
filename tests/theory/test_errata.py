"""The list of the paper's errata: each names a test that is there, and the table can be read."""

import cmath
from pathlib import Path

import pytest
import torch
from linear_draws import WIDTH, weights

from equilibria.theory import ERRATA, Erratum, errata_table

TESTS = "\n".join(
    path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py"))
)


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda each: each.equation.replace(" ", "-"))
def test_erratum(erratum: Erratum) -> None:
    assert erratum.printed != erratum.right
    assert erratum.why.endswith(".")
    if erratum.check:
        assert f"def {erratum.check}(" in TESTS


def test_table() -> None:
    lines = errata_table().splitlines()
    assert len(lines) == 2 + len(ERRATA)
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}


def test_known_errata_are_listed() -> None:
    listed = " ".join(each.equation for each in ERRATA)
    for equation in ("7", "11", "14", "20", "25", "86", "93", "95", "124", "128"):
        assert equation in listed


def test_spectrum_of_goe_behind_hard_tanh() -> None:
    """Eq. 124 against tr (z - D W)^-1, D of zeros and ones; and the inverse of M at one point."""
    share, z = 0.6, 1.5 + 1j
    slope = (torch.arange(WIDTH) < share * WIDTH).double()
    product = slope[:, None] * next(weights("goe", 1.0))
    measured = complex((1 / (z - torch.linalg.eigvals(product))).mean())
    root = cmath.sqrt(z**2 - 4 * share)  # its branch is right at this z
    assert abs((1 - share) / z + (z - root) / 2 - measured) < 0.01
    assert abs((1 - share) / z - (z - root) / 2 - measured) > 0.3
    values = torch.linalg.eigvalsh(next(weights("goe", 1.0)))
    moment = float((values / (3 - values)).mean())  # M_W(3)
    assert moment**0.5 + moment**-0.5 == pytest.approx(3, abs=0.1)  # M is off by 1 / N or so
    assert abs((moment + 1 / moment) ** 0.5 - 3) > 0.3
