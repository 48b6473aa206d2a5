"""Auto: each sample goes its own way, says which, and arrives wherever another solver does."""

import pytest
import torch
from problems import PROBLEMS, column, normal, orthogonal, spread, with_norm, with_spectrum
from references import Counted, from_zero, tight

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status
PLAIN, ACCELERATED, NEWTON = range(3)
KRYLOV = eq.GMRES(rtol=1e-6, restart=100)


def auto(**options):
    """With all its phases."""
    return eq.Auto(newton=KRYLOV, **options)


def solve(f, x, *operands, kind=auto, **options):
    solver = kind(**options)
    return from_zero(f, x, *operands, solver=solver)


def test_converges_wherever_another_does() -> None:
    """The samples that any one of the others solves, within three times its evaluations."""
    for problem in PROBLEMS:
        check_convergence(problem)


def check_convergence(problem) -> None:

    def status(solver):
        return problem.solve(solver=solver).status == CONVERGED

    options = {"rtol": 1e-6, "max_evals": 100}
    found = status(auto(rtol=1e-6, max_evals=300))
    for kind in (eq.Picard, eq.Anderson, eq.Broyden):
        if not found.all():  # else there is nothing to miss
            assert (found | ~status(kind(**options))).all(), problem.name


def test_stays_plain_where_that_is_fast() -> None:
    """A thirtieth at each step: the evaluations of plain iteration, and none in another phase."""
    x = normal(3, 8, seed=1)
    f = lambda z, x: 0.03 * torch.sin(z) + x  # noqa: E731
    sol = solve(f, x, rtol=1e-6)
    plain = from_zero(f, x, solver=eq.Picard(rtol=1e-6))
    assert torch.equal(sol.value, plain.value)
    assert torch.equal(sol.stats.evals, plain.stats.evals)
    assert torch.equal(sol.stats.choices[:, PLAIN], sol.stats.evals)


def test_accelerates_where_plain_iteration_is_slow() -> None:
    a, x = with_spectrum(spread(0.0, 0.95, 40), seed=2), normal(3, 40, seed=3)
    f = lambda z, x: z @ a.T + x  # noqa: E731
    sol = solve(f, x, rtol=1e-6)
    assert (sol.status == CONVERGED).all()
    assert (sol.stats.choices[:, NEWTON] == 0).all()
    assert (sol.stats.choices[:, ACCELERATED] > 0).all()
    plain = from_zero(f, x, solver=eq.Picard(rtol=1e-6, max_evals=400))
    assert (3 * sol.stats.evals < plain.stats.evals).all()


def test_extrapolates_at_once_where_plain_steps_lead_away() -> None:
    """z = 6 - 5 z in one extrapolation; a few eigenvalues of any size in a few."""
    sol = solve(lambda z, x: 6 - 5 * z, column(1.0, 2.0))
    assert (sol.status == CONVERGED).all() and (sol.stats.evals <= 4).all()
    a, x = (
        with_spectrum(torch.tensor([-9.0, -3.0, 0.5, 4.0]).double(), seed=4),
        normal(3, 4, seed=5),
    )
    sol = solve(lambda z, x: z @ a.T + x, x, rtol=1e-8)
    assert (sol.status == CONVERGED).all() and (sol.stats.evals <= 12).all()


def test_falls_back_to_newton() -> None:
    """Thirty eigenvalues on both sides of one: no history of five suffices."""
    a, x = with_spectrum(spread(-2.0, 2.0, 30), seed=6), normal(3, 30, seed=7)
    f = Counted(lambda z, x: z @ a.T + x)
    sol = solve(f, x, rtol=1e-8, max_evals=300)
    assert (sol.status == CONVERGED).all()
    assert (sol.stats.choices[:, NEWTON] > 0).all()
    anderson = from_zero(f, x, solver=eq.Anderson(rtol=1e-8, max_evals=300))
    assert (anderson.status != CONVERGED).all()


def test_phases_add_up_whoever_is_in_the_batch() -> None:
    """One batch, all three phases; the table is each sample's own, and sums to its evaluations."""
    a = with_spectrum(spread(-2.0, 2.0, 30), seed=6)
    scale = column(0.01, 0.49, 1.0, 0.0, 0.3)
    x = normal(5, 30, seed=7)

    def f(z, x, scale):
        return scale * (z @ a.T) + x

    for drop_finished in (False, True):
        sol = from_zero(f, x, scale, solver=auto(max_evals=300), drop_finished=drop_finished)
        assert (sol.status == CONVERGED).all()
        choices = sol.stats.choices
        assert torch.equal(choices.sum(1), sol.stats.evals)
        assert (choices[[0, 3], 1:] == 0).all() and choices[1, ACCELERATED] > 0
        assert choices[1, NEWTON] == 0 and choices[2, NEWTON] > 0
        for i in range(5):
            one = slice(i, i + 1)
            alone = eq.fixed_point(
                f, torch.zeros_like(x[one]), x[one], scale[one], solver=auto(max_evals=300)
            )
            assert (alone.status == CONVERGED).all()
            if i == 2:  # no contraction: its mates' rounding may lead it another way
                assert alone.stats.choices[0, NEWTON] > 0
                continue
            assert torch.equal(alone.stats.choices[0] > 0, choices[i] > 0)
            assert abs(int(alone.stats.evals[0]) - int(sol.stats.evals[i])) <= 1


def test_ends_at_once_and_says_so() -> None:
    sol = eq.fixed_point(lambda z: z.clone(), normal(2, 3, seed=1), solver=eq.Auto())
    assert sol.stats.evals.tolist() == [1, 1] and sol.stats.choices.tolist() == [[1, 0, 0]] * 2


@pytest.mark.parametrize("budget", [1, 2, 4, 19, 20, 21, 40])
def test_the_budget_holds(budget: int) -> None:
    a, x = 1.3 * orthogonal(40, seed=8), normal(3, 40, seed=9)
    sol = solve(lambda z, x: z @ a.T + x, x, rtol=1e-13, max_evals=budget)
    assert (sol.stats.evals <= budget).all()
    assert torch.equal(sol.stats.choices.sum(1), sol.stats.evals)


def test_scale_changes_nothing() -> None:
    """By powers of two: the same evaluations in the same phases, in all three."""
    for norm, width in ((0.3, 6), (1.4, 20), (8.0, 12)):
        w, x = with_norm(norm, width, seed=10), normal(4, width, seed=11)
        runs = []
        for unit in (1.0, 2.0**40, 2.0**-40):
            f = lambda z, x, u=unit, w=w: u * torch.tanh(z / u @ w.T + x / u)  # noqa: E731
            runs.append(solve(f, x * unit, rtol=1e-8, max_evals=200))
        for other in runs[1:]:
            assert torch.equal(runs[0].stats.choices, other.stats.choices)
            assert torch.equal(runs[0].status, other.status)


def test_unrolled_has_the_first_two_phases() -> None:
    """The gradient of the path: that of the solution, as it converges."""
    w, x = with_norm(0.9, 6, seed=12), normal(3, 6, seed=13).requires_grad_()
    f = lambda z, x: torch.tanh(z @ w.T + x)  # noqa: E731
    zeros = torch.zeros(3, 6, dtype=torch.float64)
    path = eq.fixed_point(f, zeros, x, solver=eq.Auto(rtol=1e-11), adjoint=eq.Unrolled())
    exact = eq.fixed_point(f, zeros, x, **tight())
    (got,) = torch.autograd.grad(path.value.square().sum(), x)
    (wanted,) = torch.autograd.grad(exact.value.square().sum(), x)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-8)
    many = torch.stack([x.detach(), -x.detach()])

    def unrolled(x):
        solver, adjoint = eq.Auto(rtol=1e-11), eq.Unrolled()
        return eq.fixed_point(f, zeros, x, solver=solver, adjoint=adjoint).value

    alone = torch.stack([unrolled(x) for x in many])
    torch.testing.assert_close(torch.vmap(unrolled)(many), alone, rtol=1e-8, atol=1e-9)


def test_traces_have_ritz_values() -> None:
    a, x = with_spectrum(torch.tensor([0.9, -0.8, 0.1]).double(), seed=14), normal(2, 3, seed=15)
    sol = from_zero(lambda z, x: z @ a.T + x, x, solver=eq.Auto(rtol=1e-9), trace=True)
    assert sol.stats.ritz is not None
    torch.testing.assert_close(
        sol.stats.ritz[:, 0].abs(), torch.full((2,), 0.9).double(), rtol=0.05, atol=0
    )


def dense(width, radius, seed=1):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(width, width, generator=generator) * (radius / width**0.5)
    x = 0.3 * torch.randn(4, width, generator=generator)
    return lambda z, x: torch.tanh(z @ w + x), x


def test_a_small_sample_stays_plain_where_a_large_one_is_accelerated() -> None:
    for width, accelerated in ((64, False), (1024, True)):
        f, x = dense(width, 0.8)
        choices = solve(f, x, kind=eq.Auto).stats.choices
        assert ((choices[:, ACCELERATED] > 0) == accelerated).all()
        assert not accelerated or (choices[:, PLAIN] == 2).all()


def test_a_large_sample_takes_the_evaluations_of_anderson() -> None:
    f, x = dense(1024, 0.95)
    for rtol in (1e-2, 1e-3, 1e-4):
        others = [
            from_zero(f, x, solver=kind(rtol=rtol)).stats.evals
            for kind in (eq.Picard, eq.Anderson, eq.Broyden)
        ]
        best = torch.stack(others).amin(0)
        found = solve(f, x, kind=eq.Auto, rtol=rtol)
        assert (found.status == CONVERGED).all() and (found.stats.evals <= best + 1).all()


def test_the_adjoint_chooses_alike() -> None:
    """As many products as GMRES, which measures its answer by one more."""
    f, x = dense(1024, 0.95)
    layer, products = torch.zeros_like(x), {}
    for linear in (eq.GMRES(), eq.Fallback()):
        operand = x.clone().requires_grad_()
        sol = eq.fixed_point(f, layer, operand, adjoint=eq.Implicit(linear=linear))
        sol.value.sin().sum().backward()
        products[type(linear)] = sol.adjoint.stats.evals
    assert (products[eq.Fallback] <= products[eq.GMRES]).all()


def shift(n, gain=1.0):
    """z_i = gain z_{i-1} u_i: n evaluations carry a signal from one end to the other."""
    u = torch.sign(normal(3, n, seed=16))
    return lambda z, u: torch.cat([u[:, :1], gain * z[:, :-1] * u[:, 1:]], 1), u


@pytest.mark.parametrize("n", [80, 2000])
def test_a_front_that_travels_is_let_go(n: int) -> None:
    """Within the default budget, or one of any length; no sample is accelerated."""
    f, u = shift(n)
    sol = solve(f, u, kind=eq.Auto, max_evals=max(100, n + 20))
    assert (sol.status == CONVERGED).all() and (sol.stats.evals == n + 1).all()
    torch.testing.assert_close(sol.value, u.cumprod(1))


def test_a_front_in_the_adjoint_is_let_go() -> None:
    f, u = shift(80)
    u.requires_grad_()
    sol = from_zero(f, u)
    (found,) = torch.autograd.grad(sol.value[:, -1].sum(), u)
    torch.testing.assert_close(found, (u.prod(1, keepdim=True) / u).detach())
    assert (sol.adjoint.status == CONVERGED).all()


def relay(n, lag, dtype):
    """A signal that each place hands on, towards which it moves by a share 1 - lag an evaluation:
    behind the front entries grow quiet, and take long to rest."""
    u = torch.sign(normal(3, n, seed=16)).to(dtype)

    def f(z, u):
        told = torch.cat([u[:, :1], z[:, :-1] * u[:, 1:]], 1)
        return lag * z + (1 - lag) * torch.tanh(20 * told)

    return f, u


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lag", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("kind", [eq.Picard, eq.Auto])
def test_a_front_with_a_slow_wake_is_not_stalled(kind, lag: float, dtype) -> None:
    f, u = relay(300, lag, dtype)
    noise = normal(3, 300, seed=1).to(dtype)
    plain = eq.fixed_point(f, noise, u, solver=eq.Picard(max_evals=2000, patience=None))
    sol = eq.fixed_point(f, noise, u, solver=kind(max_evals=2000))
    assert (sol.status == CONVERGED).all()
    assert (sol.stats.evals <= 1.2 * plain.stats.evals + 60).all()
    torch.testing.assert_close(sol.value, plain.value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", [eq.Picard, eq.Auto])
def test_a_slow_front_through_chaos_is_not_stalled(kind) -> None:
    """A marker takes 8 evaluations a place. Where it has passed, the other entries of a place come
    to rest in about 70; before it they are chaotic, so that few fewer of many are loud."""
    target = normal(15, 512, seed=5)

    def f(z):
        marker, rest = z[:, :1], z[:, 1:]
        here = torch.cat([torch.ones_like(marker[..., :1]), marker[..., :-1]], 2) >= 1
        moved = (marker + 0.125 * here).clamp(max=1)
        rest = torch.where(here, 0.85 * rest + 0.15 * target, (5 * rest).cos())
        return torch.cat([moved, rest], 1)

    start = torch.cat([torch.zeros(2, 1, 512).double(), normal(2, 15, 512, seed=6)], 1)
    start[:, 0, :40] = 1  # a front that has been on its way for long
    start[:, 1:, :40] = target[:, :40] * (1 + 10 ** (-torch.arange(40) / 10))
    sol = eq.fixed_point(f, start, solver=kind(max_evals=6000))
    assert (sol.status == CONVERGED).all()
    arrived = sol.value[:, 1:, :480]  # the last places are as near as the tolerance asks
    torch.testing.assert_close(arrived, target[:, :480].expand_as(arrived), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n", [4, 64, 4096])
@pytest.mark.parametrize("kind", [eq.Picard, eq.Auto])
def test_a_cycle_is_stalled_whatever_moves_in_it(kind, n: int) -> None:
    """Each pair of entries turns, by angles of its own."""
    angle = torch.linspace(0.3, 2.8, n // 2).double()
    cos, sin = angle.cos(), angle.sin()

    def f(z):
        x, y = z.unflatten(1, (-1, 2)).unbind(2)
        turned = torch.stack([cos * x - sin * y, sin * x + cos * y], 2)
        return (turned / turned.norm(dim=2, keepdim=True)).flatten(1)

    sol = eq.fixed_point(f, normal(2, n, seed=4), solver=kind(max_evals=400))
    assert (sol.status == STALLED).all() and (sol.stats.evals <= 241).all()


@pytest.mark.parametrize("lag", [0.3, 0.6, 0.7])
@pytest.mark.parametrize("n", [64, 256])
def test_a_front_into_rest_is_not_stalled(n: int, lag: float) -> None:
    """From zeros: what lies before the front is at rest, and as many entries wake as settle."""

    def f(z):
        told = torch.cat([torch.ones_like(z[:, :1]), z[:, :-1]], 1)
        return lag * z + (1 - lag) * torch.tanh(2 * told)

    sol = eq.fixed_point(f, torch.zeros(2, n), solver=eq.Auto(max_evals=40 * n))
    assert (sol.status == CONVERGED).all()
    torch.testing.assert_close(f(sol.value), sol.value, rtol=1e-3, atol=1e-3)


def test_a_mate_that_stalls_takes_no_look_from_another() -> None:
    """The look after six evaluations, where patience ends too: alone and beside a cycle."""
    slope = torch.linspace(0.5, 0.985, 40).double()

    def f(z, turns):
        return torch.where(turns, 2 - z, slope * z + 1)

    turns = torch.tensor([[False], [True]])
    options = {"solver": eq.Auto(max_evals=200, patience=5)}
    alone = eq.fixed_point(f, torch.zeros(1, 40).double(), turns[:1], **options)
    both = eq.fixed_point(f, torch.zeros(2, 40).double(), turns, **options)
    assert both.status[0] == alone.status[0] == CONVERGED
    assert both.stats.evals[0] == alone.stats.evals[0]


def test_a_front_is_not_stalled() -> None:
    f, u = shift(600)
    for solver in (eq.Picard(max_evals=700), eq.Auto(max_evals=700)):
        sol = from_zero(f, u, solver=solver)
        assert (sol.status == CONVERGED).all()
    still = lambda z: torch.where(z > 0, 5 - z, z)  # noqa: E731
    sol = eq.fixed_point(still, normal(2, 50, seed=17), solver=eq.Picard())
    assert (sol.status == STALLED).all()  # what rests, rested from the beginning


def test_a_mate_at_rest_makes_no_front() -> None:
    """An entry that pauses for one step beside a mate that f does not change."""
    turn = torch.linalg.qr(normal(6, 6, seed=18))[0]
    jacobian, start = 0.95 * turn, normal(6, seed=19)
    start[2] = 0  # of the difference between the fourth iterate and the fifth
    for _ in range(4):
        start = torch.linalg.solve(jacobian, start)
    b = torch.stack([start / start.norm(), torch.ones(6).double()])
    moves = torch.tensor([[1.0], [0.0]]).double()

    def f(z, b, moves):
        return moves * (z @ jacobian.T) + b

    def choices(n):
        sol = eq.fixed_point(f, torch.zeros(n, 6).double(), b[:n], moves[:n])
        return sol.stats.choices[0].tolist()

    assert choices(1) == choices(2)


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_entries_that_f_does_not_change_make_no_front(share: float) -> None:
    n = 2048
    slope = torch.linspace(0.9, 0.97, n).double()
    slope[torch.randperm(n, generator=torch.Generator().manual_seed(0))[: int(share * n)]] = 0
    x = normal(2, n, seed=20)
    sol = from_zero(lambda z, x: slope * z + x, x)
    assert (sol.stats.choices[:, PLAIN] <= 3).all()


def test_a_front_that_begins_late_is_let_go() -> None:
    """Before it, nothing comes to rest."""
    n = 150
    f, u = shift(n)

    def late(z, u):
        slow, rest = z[:, :1], z[:, 1:]
        ready = (slow > 0.9).to(z.dtype)
        return torch.cat([0.7 * slow + 0.3, ready * f(rest, u[:, 1:])], 1)

    u = torch.cat([u[:, :1], u], 1)
    sol = solve(late, u, kind=eq.Auto, max_evals=400)
    assert (sol.status == CONVERGED).all() and (sol.stats.evals <= 1.2 * n + 60).all()
