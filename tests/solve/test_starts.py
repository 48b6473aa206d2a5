"""Several starts for each sample: what they find, which is chosen, and that it is a solution."""

import itertools
import math
import pickle

import pytest
import torch
from problems import normal, with_norm
from references import gradients, loss
from torch.func import grad, jacfwd, vmap
from torch.utils import _pytree as pytree

import equilibria as eq
from equilibria import draws
from equilibria.solve import StartOutcomes
from equilibria.solve.derivative import Linearization

D = torch.float64
CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status
TIGHT = {"solver": eq.Picard(rtol=1e-12, max_evals=2000)}
EXACT = eq.Implicit(linear=eq.GMRES(rtol=1e-13, restart=60))


def solve(f, starts, *operands, select="residual", **options):
    """From a list of starts that are all known; the first is z0."""
    first, *further = starts
    each = eq.Starts(count=len(starts), draw=lambda z0: further.pop(0), select=select)
    return eq.fixed_point(f, first, *operands, starts=each, **(TIGHT | options))


# --- maps with several known roots ---------------------------------------------------------------


def root_of_tanh(gain):
    """The positive root of tanh(gain z) = z."""
    low, high = 0.1, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if math.tanh(gain * middle) > middle else (low, middle)
    return low


COUPLING = torch.tensor([[3.0, 0.5], [0.5, 3.0]], dtype=D)
UP, SAME, OPPOSITE = root_of_tanh(3), root_of_tanh(3.5), root_of_tanh(2.5)
CUBICS = torch.tensor([[-2.0, 0.5, 3.0], [1.0, 2.0, 4.0], [-1.0, 1.0, 10.0]], dtype=D)
GRID = [[x, y] for x in (-0.9, -0.3, 0.4, 1.2) for y in (-1.1, -0.2, 0.5, 0.8)]


def newton_of_cubic(z, roots):
    a, b, c = roots.split(1, 1)
    value = (z - a) * (z - b) * (z - c)
    return z - value / ((z - a) * (z - b) + (z - a) * (z - c) + (z - b) * (z - c))


def descend(z):
    """Gradient descent on (x^2 - 1)^2 + (y^2 - 1)^2: four wells, four saddles and a hill."""
    return z - 0.1 * z * (z.square() - 1)


# f; its operands; starts of each sample, z0 first; for each sample the roots that these lead to.
MAPS = {
    "tanh": (
        lambda z: torch.tanh(3 * z),
        (),
        [[0.0], [0.2], [-0.1], [5.0]],
        [[[0.0], [UP], [-UP]]],
    ),
    "coupled": (
        lambda z: torch.tanh(z @ COUPLING),
        (),
        GRID,
        [[[SAME, SAME], [-SAME, -SAME], [OPPOSITE, -OPPOSITE], [-OPPOSITE, OPPOSITE]]],
    ),
    "cubic": (
        newton_of_cubic,
        (CUBICS,),
        [[-5.0], [0.4], [1.1], [2.1], [9.5], [3.9], [20.0]],
        [[[root] for root in roots] for roots in CUBICS.tolist()],
    ),
    "wells": (
        descend,
        (),
        [[0.0, 0.0], [0.0, 0.5], *GRID],
        [[[0.0, 0.0], [0.0, 1.0], *itertools.product((-1.0, 1.0), repeat=2)]],
    ),
}


def known(name):
    """f, operands, starts `(batch, entries)` and the roots of each sample `(roots, entries)`."""
    f, operands, starts, roots = MAPS[name]
    starts = [torch.tensor([each] * len(roots), dtype=D) for each in starts]
    return f, operands, starts, [torch.tensor(each, dtype=D) for each in roots]


@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_every_root_that_the_starts_reach_is_found_and_no_other(name, drop_finished):
    f, operands, starts, roots = known(name)
    sol = solve(f, starts, *operands, drop_finished=drop_finished)
    assert (sol.starts.status == CONVERGED).all() and (sol.status == CONVERGED).all()
    assert sol.starts.count_distinct(atol=1e-9).tolist() == [len(each) for each in roots]
    same = sol.starts.distinct(atol=1e-9)
    for i, wanted in enumerate(roots):
        distance = (sol.starts.value[:, i, None] - wanted).abs().amax(2)
        assert (distance.amin(1) < 1e-9).all() and (distance.amin(0) < 1e-9).all()
        nearest = distance.argmin(1).tolist()
        assert same[:, i].tolist() == [nearest.index(each) for each in nearest]
    # Each start ends where it ends alone, after as many evaluations.
    for k, start in enumerate(starts):
        alone = eq.fixed_point(f, start, *operands, **TIGHT)
        assert torch.equal(sol.starts.evals[k], alone.stats.evals)
        torch.testing.assert_close(sol.starts.value[k], alone.value)


SOLVERS = [eq.Picard(), eq.Anderson(), eq.Broyden(), eq.NewtonKrylov(max_evals=500)]


@pytest.mark.parametrize(
    ("name", "solver"),
    [*((name, eq.Auto()) for name in MAPS), *(("coupled", solver) for solver in SOLVERS)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_from_noise_whatever_is_called_an_equilibrium_is_one(name, solver):
    f, operands, starts, _ = known(name)
    torch.manual_seed(0)
    sol = eq.fixed_point(f, starts[-1], *operands, solver=solver, starts=16)
    outcomes = sol.starts
    assert outcomes.status.shape == outcomes.residual.shape == (16, len(starts[0]))
    for z, solved, residual in zip(outcomes.value, outcomes.solved, outcomes.residual, strict=True):
        image = f(z, *operands)
        gap = (image - z).norm(dim=1) / image.norm(dim=1)
        gap[z.square().mean(1).sqrt() < outcomes.zero] = 0.0  # an equilibrium that is zero
        assert (gap[solved] <= solver.rtol).all()
        torch.testing.assert_close(residual[solved], gap[solved], rtol=1e-5, atol=1e-12)
    assert (sol.status == CONVERGED).all() and (outcomes.count_distinct() >= 1).all()


def test_noise_has_the_size_of_f_at_z0():
    seen = []

    def f(z, size):
        seen.append(z)
        return 0.5 * z + size[:, None]

    size = torch.tensor([0.0, 1e-30, 3.0, 1e30])
    torch.manual_seed(0)
    sol = eq.fixed_point(f, torch.zeros(4, 5000), size, starts=3)
    rms = seen[1].double().square().mean(1).sqrt().reshape(3, 4)
    assert (rms[0] == 0).all()
    wanted = torch.tensor([1.0, 1e-30, 3.0, 1e30], dtype=D).expand(2, 4)
    torch.testing.assert_close(rms[1:], wanted, rtol=0.05, atol=0)
    assert not torch.equal(seen[1][4:8], seen[1][8:]) and (sol.status == CONVERGED).all()


def test_noise_belongs_to_the_sample():
    def starts_of(rows):
        seen = []
        f = lambda z, x: seen.append(z) or torch.tanh(z + x)  # noqa: E731
        with draws.key_rows("step 3", slice(rows[0], rows[-1] + 1)):
            eq.fixed_point(f, torch.zeros(len(rows), 2), X[rows].float()[:, :2], starts=3)
        return seen[1].reshape(3, len(rows), 2)

    together = starts_of(range(4))
    torch.testing.assert_close(together[:, 1:3], starts_of(range(1, 3)))


# --- a solve from one start, from several that agree ----------------------------------------------

W = with_norm(0.7, 3, seed=1)
X = normal(4, 3, seed=2)


def contract(z, x, w=W):
    return torch.tanh(z @ w + x)


@pytest.mark.parametrize("solver", [eq.Anderson(), eq.Auto()], ids=["Anderson", "Auto"])
def test_one_start_is_no_starts(solver):
    x = X.clone().requires_grad_()
    plain = eq.fixed_point(contract, torch.zeros_like(X), x, solver=solver)
    for one in (1, eq.Starts(count=1, select="stability")):
        sol = eq.fixed_point(contract, torch.zeros_like(X), x, solver=solver, starts=one)
        for name in ("evals", "residual", "error", "reason"):
            assert torch.equal(getattr(sol.stats, name), getattr(plain.stats, name)), name
        if plain.stats.choices is not None:
            assert torch.equal(sol.stats.choices, plain.stats.choices)
        assert torch.equal(sol.value, plain.value) and torch.equal(sol.start_size, plain.start_size)
        assert (
            torch.equal(sol.starts.value[0], plain.value) and sol.starts.chosen.tolist() == [0] * 4
        )
        wanted = gradients(plain.value, x, retain_graph=True)
        torch.testing.assert_close(gradients(sol.value, x), wanted)
    assert plain.starts is None


@pytest.mark.parametrize("solver", [eq.Auto(rtol=1e-9), eq.Auto(rtol=1e-9, newton=eq.GMRES())])
def test_what_the_starts_cost_together(solver):
    calls = []

    def f(z, x):
        calls.append(len(z))
        return contract(z, x)

    with torch.no_grad():
        sol = eq.fixed_point(f, torch.zeros_like(X), X, solver=solver, starts=5)
    assert torch.equal(sol.stats.evals, sol.starts.evals.sum(0) + 1)
    assert torch.equal(sol.stats.choices.sum(1), sol.stats.evals)
    assert calls == [4] + [20] * int(sol.starts.evals.max())
    assert (sol.starts.count_distinct() == 1).all() and (sol.starts.distinct() == 0).all()
    assert (sol.stats.error < 1e-7).all()


def test_equilibria_that_are_zero_are_the_same():
    f = lambda z, rate: torch.tanh(rate * z)  # noqa: E731
    rate = torch.tensor([[0.5], [-0.3], [2.0]], dtype=D)
    torch.manual_seed(1)
    sol = eq.fixed_point(f, torch.ones(3, 1, dtype=D), rate, starts=8)
    assert (sol.status == CONVERGED).all()
    assert sol.starts.count_distinct().tolist() == [1, 1, 2]


# --- which start is chosen -----------------------------------------------------------------------


def test_the_smallest_residual_and_converged_before_not():
    def f(z, slow):  # from starts above 10 it goes on growing, from others it converges to 1
        return torch.where(z > 10, z * 1.01, 1 + slow * (z - 1))

    slow = torch.tensor([[0.5], [0.5], [0.0]], dtype=D)
    starts = [torch.tensor([[a], [b], [c]], dtype=D) for a, b, c in ((20, 2, 30), (3, 20, 40))]
    sol = solve(f, starts, slow, solver=eq.Picard(rtol=1e-3, max_evals=50))
    assert sol.starts.chosen[:2].tolist() == [1, 0]
    assert sol.status.tolist() == [CONVERGED, CONVERGED, sol.starts.status[:, 2].max()]
    assert sol.status[2] != CONVERGED
    torch.testing.assert_close(sol.value[:2], torch.ones(2, 1, dtype=D), rtol=2e-3, atol=0)
    best = sol.starts.residual.argmin(0)
    assert sol.starts.chosen[2] == best[2] and (sol.starts.distinct()[:, 2] == -1).all()
    assert sol.starts.count_distinct().tolist() == [1, 1, 0]


def test_stability_leaves_a_saddle():
    starts = [
        torch.zeros(2, 2, dtype=D),
        torch.full((2, 2), 0.3, dtype=D),
        torch.zeros(2, 2).double(),
    ]
    f = lambda z: torch.tanh(3 * z)  # noqa: E731  (zero is a saddle)
    chosen = {rule: solve(f, starts, select=rule) for rule in ("residual", "first", "stability")}
    assert chosen["residual"].starts.chosen.tolist() == [0, 0]
    assert chosen["first"].starts.chosen.tolist() == [0, 0]
    sol = chosen["stability"]
    assert sol.starts.solved.all() and sol.starts.chosen.tolist() == [1, 1]
    torch.testing.assert_close(sol.value, torch.full((2, 2), UP, dtype=D))


@pytest.mark.parametrize("radius", [0.3, 0.9, 1.5])
@pytest.mark.parametrize("angle", [0.0, 1.0, math.pi])
def test_the_growth_rate_is_the_spectral_radius(radius, angle):
    """Of a turn or a stretch in a skew basis, with a smaller eigenvalue beside."""
    c, s = radius * math.cos(angle), radius * math.sin(angle)
    spectrum = torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, radius / 3]], dtype=D)
    basis = torch.eye(3, dtype=D) + 0.3 * normal(3, 3, seed=5)
    jacobian = basis @ spectrum @ basis.inverse()
    graph = Linearization.at(lambda z, p: [z[0] @ jacobian.T], [normal(2, 3, seed=6)], [])
    found = graph.growth_rate(20)
    torch.testing.assert_close(found, torch.full((2,), radius, dtype=D), rtol=0.1, atol=0)
    nothing = Linearization.at(lambda z, p: [0 * z[0]], [normal(2, 3, seed=6)], [])
    assert nothing.growth_rate(20).tolist() == [0.0, 0.0]


def test_a_function_of_the_outcomes_chooses():
    seen = []

    def lowest(found):
        assert isinstance(found, StartOutcomes) and not torch.is_grad_enabled()
        seen.append(found)
        return found.value[..., 0]

    starts = [torch.full((3, 1), start, dtype=D) for start in (0.2, -0.2, 0.0)]
    sol = solve(lambda z: torch.tanh(3 * z), starts, select=lowest)
    assert sol.starts.chosen.tolist() == [1, 1, 1] and len(seen) == 1
    # Scores that are not finite win nowhere; where there are none the residual decides.
    score = torch.tensor(
        [[math.nan, math.inf, 2.0], [5.0, math.nan, -math.inf], [7.0, math.inf, 1.0]]
    )
    sol = solve(lambda z: torch.tanh(3 * z), starts, select=lambda found: score)
    assert sol.starts.chosen.tolist() == [1, 2, 2]
    assert sol.starts.residual[2, 1] == 0
    sol = solve(lambda z: torch.tanh(3 * z), starts, select=lambda found: -found.evals)
    assert torch.equal(sol.starts.chosen, sol.starts.evals.argmax(0))


def test_status_and_reason_are_those_of_the_chosen():
    f = lambda z, x: z + x  # noqa: E731
    x = torch.tensor([[0.0], [1.0], [math.nan]], dtype=D)
    starts = [torch.full((3, 1), start, dtype=D) for start in (1.0, 2.0)]
    sol = solve(f, starts, x, solver=eq.Picard(rtol=0.05, max_evals=60))
    assert sol.status.tolist() == [CONVERGED, sol.starts.status[0, 1], NONFINITE]
    assert sol.status[1] != CONVERGED and sol.stats.reason[1] == eq.Reason.GROWTH


def test_throw_speaks_of_the_chosen_alone():
    f = lambda z: torch.where(z > 1, z * 2, 0.5 * z + 0.3)  # noqa: E731
    near, far = torch.full((2, 1), 0.1, dtype=D), torch.full((2, 1), 3.0, dtype=D)
    sol = solve(f, [far, near], throw=True)
    assert sol.starts.status[0].ne(CONVERGED).all() and sol.starts.chosen.tolist() == [1, 1]
    far[0] = 0.2
    with pytest.raises(eq.SolveError, match=r"fixed_point: 1 of 2 samples.*\n.*samples 1 \["):
        solve(f, [far, far + 0.1], throw=True)


# --- gradients -----------------------------------------------------------------------------------

ADJOINTS = [EXACT, eq.JacobianFree(), eq.NeumannPhantom(), eq.Phantom(steps=3)]
STEEP = torch.tensor([[3.0, 0.4], [-0.2, 2.5]], dtype=D)


def steep(z, x, w=STEEP):
    return torch.tanh(z @ w + x)


def inputs():
    x = (0.1 * normal(5, 2, seed=3)).requires_grad_()
    return x, STEEP.clone().requires_grad_()


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=lambda adjoint: type(adjoint).__name__)
def test_gradients_are_those_of_a_solve_from_the_chosen_start(adjoint):
    x, w = inputs()
    starts = [0.5 * normal(5, 2, seed=seed) for seed in range(10, 16)]
    f = lambda z, x: steep(z, x, w)  # noqa: E731
    sol = solve(f, starts, x, adjoint=adjoint, select=lambda found: found.value.sum(2))
    assert len(sol.starts.chosen.unique()) > 1 and (sol.status == CONVERGED).all()
    begin = torch.stack(starts)[sol.starts.chosen, torch.arange(5)]
    alone = eq.fixed_point(f, begin, x, adjoint=adjoint, **TIGHT)
    torch.testing.assert_close(sol.value, alone.value)
    assert sol.starts.value.grad_fn is None
    of = first_and_second if adjoint is EXACT else (lambda sol, *p: gradients(sol.value, p))
    for a, b in zip(of(sol, x, w), of(alone, x, w), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def first_and_second(sol, x, w):
    first = torch.autograd.grad(loss(sol.value), (x, w), create_graph=True)
    return *first, *torch.autograd.grad(sum(each.square().sum() for each in first), (x, w))


def test_phantom_takes_its_steps_from_the_chosen():
    starts = [torch.zeros(2, 2, dtype=D), torch.full((2, 2), 0.5, dtype=D)]
    phantom = eq.Phantom(steps=2, damping=0.5)
    sol = solve(descend, starts, select="stability", adjoint=phantom, solver=eq.Picard(rtol=1e-3))
    wanted = sol.starts.value[1]
    for _ in range(2):
        wanted = (wanted + descend(wanted)) / 2
    torch.testing.assert_close(sol.value, wanted)
    assert torch.equal(sol.stats.evals, sol.starts.evals.sum(0) + 1 + 3)
    assert (sol.stats.residual < sol.starts.residual[1]).all()


def test_forward_derivatives():
    x, _ = inputs()
    starts = [0.5 * normal(5, 2, seed=seed) for seed in range(10, 14)]
    sol = solve(steep, starts, x, adjoint=EXACT, select="stability")
    begin = torch.stack(starts)[sol.starts.chosen, torch.arange(5)]
    of = lambda x: solve(steep, starts, x, adjoint=EXACT, select="stability").value  # noqa: E731
    plain = lambda x: eq.fixed_point(steep, begin, x, adjoint=EXACT, **TIGHT).value  # noqa: E731
    torch.testing.assert_close(jacfwd(of)(x.detach()), jacfwd(plain)(x.detach()))


@pytest.mark.parametrize("select", ["stability", lambda found: -found.value["z"].sum(2)])
def test_mapped(select):
    xs = 0.1 * normal(3, 5, 2, seed=4)
    tree = {"z": torch.zeros(5, 2, dtype=D)}
    starts = [{"z": 0.5 * normal(5, 2, seed=seed)} for seed in range(10, 13)]
    scale = torch.tensor(0.9, dtype=D)

    def f(z, x, scale):
        return {"z": scale * steep(z["z"], x)}

    def draw(z0):
        assert z0.keys() == tree.keys()
        each = further.pop(0)["z"]
        return {"z": each.repeat(len(z0["z"]) // 5, 1)}

    def of(x):
        further[:] = starts
        given = eq.Starts(count=4, draw=draw, select=select)
        return eq.fixed_point(f, tree, x, eq.shared(scale), adjoint=EXACT, starts=given, **TIGHT)

    further = []
    alone = [of(x) for x in xs]
    mapped = vmap(lambda x: of(x).value["z"])(xs)
    torch.testing.assert_close(mapped, torch.stack([sol.value["z"] for sol in alone]))
    found = vmap(grad(lambda x: loss(of(x).value)))(xs)
    torch.testing.assert_close(
        found, torch.stack([grad(lambda x: loss(of(x).value))(x) for x in xs])
    )
    evals = vmap(lambda x: of(x).stats.evals)(xs)
    assert torch.equal(evals, torch.stack([sol.stats.evals for sol in alone]))
    seen = []
    vmap(lambda x: seen.append(of(x).starts) or x)(xs)
    assert seen == [None]


# --- operands, trees and samples -----------------------------------------------------------------


@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 1], [2]])
def test_batch_mates_change_nothing(order, drop_finished):
    x, _ = inputs()
    starts = [0.5 * normal(5, 2, seed=seed) for seed in range(10, 14)]
    options = {"select": "stability", "drop_finished": drop_finished}
    whole = solve(steep, starts, x, **options)
    some = solve(steep, [each[order] for each in starts], x[order], **options)
    assert torch.equal(some.starts.chosen, whole.starts.chosen[order])
    assert torch.equal(some.starts.status, whole.starts.status[:, order])
    torch.testing.assert_close(some.value, whole.value[order], rtol=1e-9, atol=1e-11)
    assert (some.starts.evals - whole.starts.evals[:, order]).abs().max() <= 1


def tree_of(seed, batch=3):
    z = normal(batch, 2, seed=seed)
    return {"a": z, "b": [normal(batch, 2, 2, seed=seed + 1), z[:, 0].clone()]}


@pytest.mark.parametrize("select", ["residual", "stability"])
def test_trees_shared_operands_and_what_is_no_tensor(select):
    scale = torch.tensor([2.0, 0.5], dtype=D, requires_grad=True)
    offset = {"x": normal(3, 2, seed=7).requires_grad_(), "name": "offset"}

    def f(z, offset, scale, flag):
        assert offset["name"] == "offset" and flag is True
        a = torch.tanh(scale * z["a"] + 0.1 * offset["x"])
        return {"a": a, "b": [0.3 * z["b"][0].sin() + a[:, :, None], 0.5 * z["b"][1] + a.sum(1)]}

    operands = (offset, eq.shared(scale), True)
    starts = [tree_of(seed) for seed in (20, 30, 40)]
    sol = solve(f, starts, *operands, select=select, adjoint=EXACT)
    assert (sol.status == CONVERGED).all()
    found = sol.starts.value
    assert found["b"][0].shape == (3, 3, 2, 2) and found["b"][1].shape == (3, 3)
    rows = torch.arange(3)
    begin = pytree.tree_map(lambda *x: torch.stack(x)[sol.starts.chosen, rows], *starts)
    alone = eq.fixed_point(f, begin, *operands, adjoint=EXACT, **TIGHT)
    for a, b in zip(pytree.tree_leaves(sol.value), pytree.tree_leaves(alone.value), strict=True):
        torch.testing.assert_close(a, b)
    of = (offset["x"], scale)
    torch.testing.assert_close(gradients(sol.value, of), gradients(alone.value, of))
    with torch.no_grad():
        noisy = eq.fixed_point(f, starts[0], *operands, starts=3)
    assert noisy.starts.value["b"][0].shape == (3, 3, 2, 2)


def test_aux_is_that_of_the_chosen():
    x, _ = inputs()
    starts = [0.5 * normal(5, 2, seed=seed) for seed in range(10, 13)]
    sol = solve(lambda z, x: (steep(z, x), {"sum": z.sum(1) * x[:, 0]}), starts, x, has_aux=True)
    torch.testing.assert_close(sol.aux["sum"], sol.value.sum(1) * x[:, 0])
    assert gradients(sol.aux, x)[0].abs().min() > 0


@pytest.mark.parametrize("power", [-120, 0, 120])
def test_the_state_has_no_unit(power):
    unit = 2.0**power
    f = lambda z: unit * torch.tanh(3 * z / unit)  # noqa: E731
    torch.manual_seed(0)
    sol = eq.fixed_point(f, torch.full((3, 2), 0.4 * unit), starts=8, solver=eq.Picard())
    torch.manual_seed(0)
    plain = eq.fixed_point(
        lambda z: torch.tanh(3 * z), torch.full((3, 2), 0.4), starts=8, solver=eq.Picard()
    )
    assert torch.equal(sol.starts.evals, plain.starts.evals)
    assert torch.equal(sol.starts.value, plain.starts.value * unit)
    assert torch.equal(sol.starts.distinct(), plain.starts.distinct())


def test_under_autocast():
    x, w = X.float(), W.float()
    with torch.autocast("cpu", torch.bfloat16):
        sol = eq.fixed_point(
            lambda z, x: torch.tanh(z @ w + x),
            torch.zeros_like(x),
            x,
            starts=eq.Starts(count=3, select="stability"),
        )
    assert (sol.status == CONVERGED).all() and sol.value.dtype == torch.float32
    assert sol.starts.count_distinct(rtol=0.05).tolist() == [1] * 4


def test_an_error_that_is_limited_and_the_last_iterate():
    sol = eq.fixed_point(contract, torch.zeros_like(X), X, starts=3, solver=eq.Anderson(error=1e-6))
    assert (sol.status == CONVERGED).all() and (sol.stats.error < 5e-7).all()
    last = solve(
        lambda z: 2 - z,
        [torch.zeros(1, 1), torch.ones(1, 1)],
        returns="last",
        solver=eq.Picard(max_evals=5),
    )
    assert last.value.item() == 1 and last.starts.value[0].item() == 0


def test_detached_and_sent():
    x, _ = inputs()
    sol = eq.fixed_point(steep, torch.zeros(5, 2).double(), x, starts=3)
    for each in (sol.detach(), pickle.loads(pickle.dumps(sol))):
        assert torch.equal(each.starts.value, sol.starts.value)
        assert torch.equal(each.starts.distinct(), sol.starts.distinct())
    assert eq.fixed_point(steep, sol.value, x, warm=sol).stats.evals.max() <= 3
    with torch.inference_mode():
        sol = eq.fixed_point(
            steep, torch.zeros(5, 2).double(), x, starts=eq.Starts(select="stability")
        )
    assert (sol.status == CONVERGED).all()


def test_an_empty_batch():
    x = torch.zeros(0, 2, dtype=D, requires_grad=True)
    sol = eq.fixed_point(steep, torch.zeros(0, 2, dtype=D), x, starts=3)
    assert sol.starts.value.shape == (3, 0, 2) and sol.starts.chosen.shape == (0,)
    assert sol.starts.distinct().shape == (3, 0) and sol.starts.count_distinct().shape == (0,)


def test_roots_of_cubics():
    a = CUBICS[:, 1:2].clone().requires_grad_()
    torch.manual_seed(0)
    sol = eq.root_find(
        lambda z, a: z * (z - a) * (z + 1), torch.ones_like(a) * 3, a, starts=8, adjoint=EXACT
    )
    value = sol.starts.value[:, :, 0].T
    for z, wanted in zip(value, a.detach()[:, 0], strict=True):
        roots = torch.stack([torch.zeros_like(wanted), wanted, -torch.ones_like(wanted)])
        assert ((z[:, None] - roots).abs().amin(1) < 1e-4).all()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inside_a_compiled_program(backend):
    x, _ = inputs()
    starts = [0.5 * normal(5, 2, seed=seed) for seed in range(10, 13)]
    wanted = solve(steep, starts, 2 * x)
    program = torch.compile(lambda x: 3 * solve(steep, starts, 2 * x).value, backend=backend)
    torch.testing.assert_close(program(x), 3 * wanted.value)


# --- what is refused -----------------------------------------------------------------------------

Z0 = torch.zeros(4, 3, dtype=D)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"starts": 0}, ValueError, r"Starts\(count=...\): expected a whole number >= 1, got 0"),
        ({"starts": True}, TypeError, r"Starts\(count=...\): expected a whole number, got True"),
        ({"starts": 2.0}, TypeError, r"starts: expected a number or eq.Starts\(...\), got 2.0"),
        ({"starts": [Z0, Z0]}, TypeError, r"starts: expected a number or eq.Starts"),
        ({"states": (1,)}, ValueError, "starts and states exclude each other: solve again"),
        ({"trace": True}, ValueError, "starts and trace exclude each other: solve again"),
        ({"coupled": True}, ValueError, "starts and coupled exclude each other"),
        ({"coupled": torch.tensor([0, 0, 1, 1])}, ValueError, "starts and coupled exclude"),
        (
            {"adjoint": eq.Unrolled()},
            TypeError,
            r"starts cannot be used with Unrolled.*eq.Implicit",
        ),
        ({"adjoint": eq.Shine(), "solver": eq.Broyden()}, TypeError, "cannot be used with Shine"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_options_that_exclude_each_other(options, error, text):
    with pytest.raises(error, match=text):
        eq.fixed_point(contract, Z0, X, **({"starts": 2} | options))


def test_a_warm_start_is_refused():
    warm = eq.fixed_point(contract, Z0, X)
    with pytest.raises(
        ValueError, match="starts and warm exclude each other: pass its value as z0"
    ):
        eq.fixed_point(contract, Z0, X, warm=warm, starts=2)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"draw": 3}, TypeError, r"Starts\(draw=...\): expected a function of z0, got 3"),
        (
            {"select": "best"},
            ValueError,
            r'expected "residual", "first", "stability" or a function',
        ),
        ({"number": 3}, TypeError, "Starts has no option 'number'"),
        ({"count": None}, TypeError, r"Starts\(count=...\): expected a whole number"),
    ],
)
def test_starts_are_checked_when_they_are_built(given, error, text):
    with pytest.raises(error, match=text):
        eq.Starts(**given)


@pytest.mark.parametrize(
    "drawn", [Z0[:2], Z0.float(), (Z0, Z0), None, {"z": Z0}, 1.0], ids=lambda x: str(type(x))
)
def test_starts_unlike_z0_are_refused(drawn):
    with pytest.raises(ValueError, match=r"Starts\(draw=...\) returned .* where z0 is"):
        eq.fixed_point(contract, Z0, X, starts=eq.Starts(draw=lambda z0: drawn))


def test_starts_that_run_out_are_named():
    further = iter([Z0, Z0])
    given = eq.Starts(count=3, draw=lambda z0: next(further))
    eq.fixed_point(contract, Z0, X, starts=given)
    with pytest.raises(ValueError, match="has run out of starts: each solve takes 2"):
        eq.fixed_point(contract, Z0, X, starts=given)


@pytest.mark.parametrize("scores", [None, 1.0, torch.zeros(2), torch.zeros(4, 2)])
def test_scores_of_other_shapes_are_refused(scores):
    given = eq.Starts(count=2, select=lambda found: scores)
    with pytest.raises(
        ValueError, match=r"Starts\(select=...\) returned .*: expected scores \(2, 4\)"
    ):
        eq.fixed_point(contract, Z0, X, starts=given)


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize(
    ("f", "text"),
    [
        (
            lambda z: torch.tanh(0.1 * z + X),
            "12 rows, 3 starts of 4 samples, and failed, though not",
        ),
        (lambda z: 0.1 * z + torch.stack([X, X], 1)[torch.arange(4), 0], "failed, though not"),
        (lambda z: torch.ones_like(X), "failed, though not on the 4 samples alone"),
        (
            lambda z: 0.1 * (z - z.mean(0)) + 1 + z.std(0),
            "its values at z0 are others than on the 4 samples",
        ),
        (lambda z: torch.rand_like(z), "or draw random numbers"),
    ],
    ids=["adds", "indexes", "returns", "mixes", "random"],
)
def test_a_function_of_its_batch_is_refused(f, text, grad_mode):
    z0 = normal(4, 3, seed=9)
    with torch.set_grad_enabled(grad_mode), pytest.raises(ValueError, match=text) as caught:
        eq.fixed_point(f, z0, starts=3)
    assert "as an operand, or leave starts out" in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("own"),
        eq.SolveError("own"),
        NotImplementedError("own"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_another_kind_pass(error):
    def f(z):
        if len(z) > 4:
            raise error
        return 0.5 * z

    with pytest.raises(type(error)) as caught:
        eq.fixed_point(f, Z0, starts=2)
    assert caught.value is error
