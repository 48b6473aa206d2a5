"""The list of the paper's errata: each names a test that is there, and the table can be read."""

import cmath
import re
from pathlib import Path

import pytest
import torch
from linear_draws import WIDTH, weights

from equilibria.theory import ERRATA, errata_table

TESTS = "\n".join(
    path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py"))
)


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda each: each.equation.replace(" ", "-"))
def test_erratum(erratum):
    assert erratum.printed != erratum.right
    assert erratum.why.endswith(".")
    if erratum.check:
        assert f"def {erratum.check}(" in TESTS


def test_table():
    lines = errata_table().splitlines()
    assert len(lines) == 2 + len(ERRATA)
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}


def numbers(equation):
    """Those of the equations that a row is about; sections, as 2.2.3 or A.4, are none."""
    found = set()
    for first, last in re.findall(r"(?<![\w.])(\d+)(?:-(\d+))?(?![\w.])", equation):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_equation_numbers():
    assert numbers("11, 64-66") == {11, 64, 65, 66}
    assert numbers("section 2.2.3, A.4.1") == set()
    assert numbers("before 11") == {11}


def test_known_errata_are_listed():
    listed = set().union(*(numbers(each.equation) for each in ERRATA))
    assert listed >= {7, 11, 12, 14, 20, 25, *range(38, 41), *range(42, 49), 51, 66, 68, 80, 86}
    assert listed >= {93, 95, 108, 124, 128}
    assert not listed & {8, 15, 18, 19, 57, 58, 61, 77, 117, 148}  # those that are right


def test_one_unit_has_its_share_of_the_error():
    """Lemma A.1: the error of one unit after t steps does not grow with N, as eq. 40 does."""
    V, steps = 0.5, 3
    errors, bounds = [], []
    for width in (50, 200):
        drawn, identity = weights("gaussian", V, width), torch.eye(width, dtype=torch.float64)
        x = torch.ones(width, dtype=torch.float64)
        found = []
        for _ in range(60):
            w = next(drawn)
            z = torch.linalg.solve(identity - w, x)
            found.append(torch.linalg.matrix_power(w, steps) @ z)
        error = torch.stack(found)
        errors.append(float(error.square().median(0).values.mean()))
        bounds.append(float(error.square().sum(1).median()))
    assert bounds[1] / bounds[0] == pytest.approx(4, rel=0.2)
    assert errors[1] / errors[0] == pytest.approx(1, rel=0.2)


def test_spectrum_of_goe_behind_hard_tanh():
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
