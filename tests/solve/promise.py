"""What a solve promises of a sample and its batch mates, as one assertion.

No number of one sample enters another's arithmetic. Batch mates, threads and finished neighbours
change a result only through rounding inside batched kernels, so on a contraction with the Lipschitz
constant L a sample ends with the same status, after as many evaluations give or take one, with a
value within 10 rtol / (1 - L); bit for bit where f and the method are elementwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def outcome(run: Any, i: int) -> tuple[Tensor, int, int]:
    """Value, status and count of a sample of a solution, or of a linear solver's run."""
    value = torch.cat([leaf[i].detach().reshape(-1) for leaf in pytree.tree_leaves(run.value)])
    return value, int(run.status[i]), int(getattr(run, "stats", run).evals[i])


def assert_as_promised(
    got: Any, i: int, wanted: Any, j: int, *, rtol: float, lipschitz: float, exact: bool = False
) -> None:
    """Sample `i` of one solve is sample `j` of another; `exact` where no kernel is batched."""
    value, status, evals = outcome(got, i)
    other, other_status, other_evals = outcome(wanted, j)
    assert status == other_status, f"status {status}, elsewhere {other_status}"
    slack = 0 if exact else 1
    assert abs(evals - other_evals) <= slack, f"{evals} evaluations, elsewhere {other_evals}"
    if exact:
        assert torch.equal(value, other), "other bits"
        return
    assert 0 <= lipschitz < 1
    apart = (value - other).double().norm()
    bound = 10 * rtol / (1 - lipschitz) * other.double().norm()
    assert apart <= bound, f"{float(apart):.3g} apart, at most {float(bound):.3g} promised"
