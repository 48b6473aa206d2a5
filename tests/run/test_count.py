"""The counter of operations and host reads, on operations whose number is known."""

import pytest
import torch

from equilibria.run.bench.count import Calls, Spent, count

X = torch.arange(12.0).reshape(3, 4)

# What is done between two evaluations, the operations that compute or copy, the host reads.
KNOWN = [
    ("nothing", lambda z: z, 0, 0),
    ("views", lambda z: z.view(4, 3).t()[1:].unsqueeze(0).reshape(-1).expand(2, -1), 1, 0),
    ("views alone", lambda z: z.view(4, 3)[1:].unsqueeze(0).expand(2, -1, -1).detach(), 0, 0),
    ("room", lambda z: torch.empty_like(z), 0, 0),
    ("zeros", lambda z: torch.zeros(3), 1, 0),
    ("one sum", lambda z: z + z, 1, 0),
    ("two", lambda z: (z * 2).add_(1), 2, 0),
    ("a copy", lambda z: z.clone(), 1, 0),
    ("a copy for a view", lambda z: z.t().reshape(-1), 1, 0),
    ("an assignment", lambda z: torch.empty_like(z).copy_(z), 1, 0),
    ("item", lambda z: z.sum().item(), 1, 1),
    ("bool", lambda z: bool((z >= 0).all()), 2, 1),
    ("float", lambda z: float(z[0, 0]), 0, 1),
    ("equal", lambda z: torch.equal(z, z), 1, 1),
    ("tolist", lambda z: z.tolist(), 0, 1),
    ("numpy", lambda z: z.numpy(), 0, 1),
    ("a norm", lambda z: torch.linalg.vector_norm(z, dim=1), 1, 0),
    ("a product of matrices", lambda z: z @ z.t(), 1, 0),
]


@pytest.mark.parametrize(("act", "ops", "reads"), [k[1:] for k in KNOWN], ids=[k[0] for k in KNOWN])
def test_known_operations(act, ops, reads):
    def solve(f):
        f(X)
        act(X)
        f(X)

    counts = count(solve, lambda z: z.exp())
    assert (counts.between, counts.outside, counts.reads) == ([ops], 0, reads)
    assert counts.per_evaluation == ops


def test_f_itself_is_not_counted_and_the_median_is_taken():
    def f(z):
        return torch.tanh(z @ z.t() + 1).sum().expand(2).clone() + float(z[0, 0])

    def solve(f):
        z = X * 2  # before: 1
        f(z)
        z = z + 1
        f(z)
        for _ in range(5):
            z = z + 1
        f(z)
        z = z + 1
        f(z)
        return -z.abs()  # after: 2

    counts = count(solve, f)
    assert counts.between == [1, 5, 1]
    assert counts.per_evaluation == 1
    assert (counts.outside, counts.reads) == (3, 0)


def test_f_within_f_counts_once():
    counts = count(lambda f: f(f(X)), lambda z: z * 2)
    assert counts.between == [0]

    def solve(f):
        return f(X)

    assert count(solve, lambda z: z * 2).per_evaluation is None


def test_a_mask_that_picks_entries_is_a_read():
    def solve(f):
        f(X)
        X[X > 3]
        f(X)

    assert count(solve, lambda z: z).reads == 1


def test_calls_are_counted_with_their_samples_and_limited():
    calls = Calls(lambda z, y: z + y, limit=3)
    for samples in (3, 2, 2):
        calls(X[:samples], X[:samples])
    assert (calls.calls, calls.samples) == (3, 7)
    with pytest.raises(Spent, match="more than 3 evaluations"):
        calls(X, X)
    assert calls.calls == 3
