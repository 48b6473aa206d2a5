"""A solver by name, in place of a network's own."""

import equilibria as eq
from equilibria.run.plugins import SOLVERS, change_solver


def test_another_method_has_the_same_limits():
    limits = {
        "rtol": 1e-2,
        "atol": 1e-5,
        "error": 0.1,
        "max_evals": 7,
        "patience": None,
        "per_row": True,
    }
    own = eq.Anderson(period=3, history=4, **limits)
    assert own.limits == limits
    for name in SOLVERS:
        other = change_solver(own, name)
        assert type(other).__name__ == name and other.limits == limits
    assert change_solver(own, "Picard", rtol=1e-3) == eq.Picard(**{**limits, "rtol": 1e-3})
    assert change_solver(own) == own == change_solver(own, "Anderson")
