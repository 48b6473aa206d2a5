"""`NeuralSolver`: whatever its weights say, it solves as Anderson does, or better."""

import math

import pytest
import torch

import equilibria as eq
from equilibria.learned import GramMixer, Learned, PooledMixer

SAMPLES, SIZE = 60, 20


def problem(scale, samples=SAMPLES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(samples, SIZE, SIZE, generator=generator, dtype=torch.float64)
    shift = torch.randn(samples, SIZE, generator=generator, dtype=torch.float64)
    return torch.zeros_like(shift), weights * scale / SIZE**0.5, shift


def f(z, weights, shift):
    return torch.tanh(torch.einsum("nij,nj->ni", weights, z) + shift)


def mixer_of(kind, size):
    torch.manual_seed(0)
    mixer = (GramMixer() if kind == "gram" else PooledMixer(SIZE)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(size * torch.randn_like(parameter))
    return mixer


def solver_of(mixer, guessed=False, **options):
    return eq.NeuralSolver(**{"rtol": 1e-5, **options}).with_weights(mixer, guessed=guessed)


def solve(solver, z0, *operands, **options):
    return eq.fixed_point(f, z0, *operands, solver=solver, **options)


def anderson(**options):
    return eq.Anderson(**{"history": 5, "rtol": 1e-5, **options})


def true_residual(sol, *operands):
    image = f(sol.value, *operands)
    return (image - sol.value).norm(dim=1) / image.norm(dim=1)


@pytest.mark.parametrize("scale", [0.5, 0.9])
def test_untrained_it_is_anderson(scale):
    z0, *operands = problem(scale)
    torch.manual_seed(0)
    for mixer in (GramMixer().double(), None):
        sol, classical = (solve(s, z0, *operands) for s in (solver_of(mixer), anderson()))
        assert torch.equal(sol.status, classical.status)
        assert (sol.stats.evals - classical.stats.evals).abs().max() <= 1
        torch.testing.assert_close(sol.value, classical.value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["gram", "pooled"])
@pytest.mark.parametrize("size", [1.0, 100.0, math.nan])
def test_no_weights_cost_more_than_four_evaluations(kind, size):
    mixer = mixer_of(kind, size)
    for scale in (0.5, 0.9):  # 400 solves
        z0, *operands = problem(scale, samples=200)
        sol, classical = (solve(s, z0, *operands) for s in (solver_of(mixer), anderson()))
        assert torch.equal(sol.status, classical.status)
        assert (sol.stats.evals - classical.stats.evals).max() <= 4
        assert true_residual(sol, *operands).max() <= 1.001e-5


@pytest.mark.parametrize("kind", ["gram", "pooled"])
def test_nothing_is_said_to_have_converged_that_has_not(kind):
    for scale, size in ((1.5, 1.0), (2.0, 100.0)):  # 400 solves of chaotic maps
        z0, *operands = problem(scale, samples=200)
        sol = solve(solver_of(mixer_of(kind, size)), z0, *operands)
        said = sol.status == eq.Status.CONVERGED
        assert true_residual(sol, *operands)[said].max() <= 1.001e-5
        assert said.any() and not said.all()


class Worse:
    """Mixes so that the residual grows: the oldest iterate, over and over."""

    def pool(self, residual, layout):
        return None

    def mix(self, seen):
        return torch.full_like(seen.gamma, 3.0), None


def test_a_sample_without_progress_goes_back_to_its_best_iterate():
    z0, *operands = problem(0.9)
    free = solver_of(Worse(), trust=None)
    sol = solve(free, z0, *operands, states=tuple(range(12)))
    learned, own = sol.stats.choices.T
    assert torch.equal(learned + own, sol.stats.evals)
    assert (sol.status == eq.Status.CONVERGED).all()
    assert (own > 0).all() and (learned <= 10).all()
    sizes = torch.stack([true_residual_at(z, *operands) for z in sol.states])
    for sample in range(5):
        end = int(learned[sample])  # the state after so many evaluations is the best before
        best = sizes[:end, sample].min()
        assert sizes[end, sample] == pytest.approx(float(best), rel=1e-9)


def true_residual_at(z, *operands):
    return (f(z, *operands) - z).norm(dim=1)


def test_the_mixed_residual_stays_within_the_trust():
    seen_by = []

    class Watched(Worse):
        def mix(self, seen):
            seen_by.append(seen)
            return super().mix(seen)

    z0, *operands = problem(0.9)
    for trust in (0.5, 0.0):
        seen_by.clear()
        sol = solve(solver_of(Watched(), trust=trust), z0, *operands)
        assert seen_by and (sol.status == eq.Status.CONVERGED).all()
        classical = solve(anderson(), z0, *operands)
        assert (sol.stats.evals - classical.stats.evals).max() <= (4 if trust else 1)


def test_what_a_mixer_is_shown_is_of_the_newest_evaluations():
    z0, *operands = problem(0.9, samples=3)
    shown = []

    class Watched(Worse):
        def mix(self, seen):
            shown.append(seen)
            return seen.gamma, None

    steps = range(9)
    sol = solve(solver_of(Watched(), max_evals=9), z0, *operands, states=tuple(steps))
    for k, seen in enumerate(shown, start=1):  # after the first evaluation there is no difference
        residuals = [f(z, *operands) - z for z in sol.states[: k + 1]]
        count = min(k, 5)
        differences = [residuals[k - j] - residuals[k - j - 1] for j in range(count)]
        matrix = torch.stack(differences, 2)
        gamma = torch.linalg.lstsq(matrix, residuals[k].unsqueeze(2)).solution.squeeze(2)
        torch.testing.assert_close(seen.gamma, gamma, rtol=1e-3, atol=1e-5)
        left = (residuals[k] - (matrix @ gamma.unsqueeze(2)).squeeze(2)).norm(dim=1)
        torch.testing.assert_close(seen.left, left, rtol=1e-3, atol=1e-9)
        torch.testing.assert_close(seen.lengths, matrix.norm(dim=1), rtol=1e-6, atol=0)
        torch.testing.assert_close(seen.size, residuals[k].norm(dim=1))
        fall = (residuals[k].norm(dim=1) / residuals[0].norm(dim=1)).log()
        torch.testing.assert_close(seen.fall, fall)


def test_pooled_weights_are_those_of_the_iterates():
    torch.manual_seed(0)
    mixer = mixer_of("pooled", 1.0)
    alpha, beta = torch.tensor([0.5, 0.2, 0.3]).double(), 0.7
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.zero_()

    class Fixed(PooledMixer):
        def mix(self, seen):
            if seen.gamma.shape[1] != 2:
                return seen.gamma, None
            gamma = alpha.flip(0).cumsum(0).flip(0)[1:].expand(len(seen.size), -1)
            return gamma, torch.full_like(seen.size, beta)

    z0, *operands = problem(0.9, samples=4)
    fixed = Fixed(SIZE).double()
    sol = solve(solver_of(fixed, trust=None, max_evals=4), z0, *operands, states=(0, 1, 2, 3))
    newest_first = [sol.states[k] for k in (2, 1, 0)]
    want = sum(a * z for a, z in zip(alpha, newest_first, strict=True))
    want = want + beta * sum(
        a * (f(z, *operands) - z) for a, z in zip(alpha, newest_first, strict=True)
    )
    torch.testing.assert_close(sol.states[3], want)


@pytest.mark.parametrize("normalised", ["shift", "softmax", "none"])
def test_an_untrained_paper_mixer_takes_the_mean(normalised):
    mixer = PooledMixer(SIZE, normalised=normalised).double()
    z0, *operands = problem(0.9, samples=4)
    sol = solve(solver_of(mixer, trust=None, max_evals=4), z0, *operands, states=(0, 1, 2, 3))
    images = [f(z, *operands) for z in sol.states[:3]]
    want = sum(images) / 3 if normalised != "none" else images[2]
    torch.testing.assert_close(sol.states[3], want)


def test_a_bad_start_is_dropped_for_zeros():
    z0, *operands = problem(0.9)
    far = torch.full_like(z0, 50.0)
    far[::2] = 0.01
    sol = solve(solver_of(None, guessed=True), far, *operands, states=(1,))
    assert not sol.states[0][1::2].any() and sol.states[0][::2].any()
    classical = solve(anderson(), z0, *operands)
    assert (sol.stats.evals - classical.stats.evals)[1::2].max() <= 3
    assert torch.equal(sol.status, classical.status)


@pytest.mark.parametrize("kind", ["gram", "pooled"])
def test_a_sample_alone_is_the_sample_in_its_batch(kind):
    z0, *operands = problem(0.9, samples=9)
    operands[1][8] = math.nan  # a batch mate that comes to nothing
    solver = solver_of(mixer_of(kind, 1.0))
    together = solve(solver, z0, *operands)
    assert together.status[8] == eq.Status.NONFINITE
    for sample in range(8):
        one = slice(sample, sample + 1)
        alone = solve(solver, z0[one], *(x[one] for x in operands))
        assert alone.status[0] == together.status[sample]
        assert (alone.stats.evals[0] - together.stats.evals[sample]).abs() <= 1
        torch.testing.assert_close(alone.value[0], together.value[sample], rtol=0, atol=1e-4)


def test_samples_that_leave_change_nothing():
    z0, *operands = problem(0.9)
    solver = solver_of(mixer_of("pooled", 1.0))
    stay = solve(solver, z0, *operands)
    leave = solve(solver, z0, *operands, drop_finished=True)
    assert torch.equal(stay.status, leave.status)
    assert (stay.stats.evals - leave.stats.evals).abs().max() <= 1
    torch.testing.assert_close(stay.value, leave.value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["gram", "pooled"])
@pytest.mark.parametrize("exponent", [-40, 40])
def test_the_scale_of_the_state_changes_nothing(kind, exponent):
    scale = 2.0**exponent
    z0, *operands = problem(0.9)
    solver = solver_of(mixer_of(kind, 1.0))
    plain = solve(solver, z0, *operands)
    scaled = eq.fixed_point(
        lambda z, *operands: scale * f(z / scale, *operands), z0, *operands, solver=solver
    )
    assert torch.equal(scaled.status, plain.status)
    assert torch.equal(scaled.stats.evals, plain.stats.evals)
    assert torch.equal(scaled.stats.choices, plain.stats.choices)
    torch.testing.assert_close(scaled.value / scale, plain.value)


@pytest.mark.parametrize("kind", ["gram", "pooled"])
def test_after_the_horizon_anderson_goes_on_with_the_history(kind):
    z0, *operands = problem(0.9, samples=6)
    last, horizon = 9, 4
    solver = solver_of(mixer_of(kind, 1.0), horizon=horizon, rtol=0.0, max_evals=last)
    states = solve(solver, z0, *operands, states=tuple(range(last))).states
    images = [f(z, *operands) for z in states]
    residuals = [image - z for image, z in zip(images, states, strict=True)]

    def next_of(k):
        pairs = range(max(0, k - 5), k)
        dg = torch.stack([residuals[j + 1] - residuals[j] for j in pairs], 2)
        df = torch.stack([images[j + 1] - images[j] for j in pairs], 2)
        gamma = torch.linalg.lstsq(dg, residuals[k].unsqueeze(2)).solution
        return images[k] - (df @ gamma).squeeze(2)

    # states[k] is evaluated as number k + 1: the step from states[horizon - 1] is Anderson's.
    for k in range(horizon - 1, last - 1):
        torch.testing.assert_close(states[k + 1], next_of(k), rtol=1e-4, atol=1e-6)
    apart = (states[horizon - 1] - next_of(horizon - 2)).norm(dim=1)
    assert (apart > 1e-2 * (states[horizon - 1] - states[horizon - 2]).norm(dim=1)).all()


def test_a_learned_beta_multiplies_the_damping():
    class Damps(Worse):
        def mix(self, seen):
            return seen.gamma, torch.full_like(seen.size, 0.5)

    z0, *operands = problem(0.9, samples=4)
    found = [
        solve(solver, z0, *operands, states=(0, 1, 2)).states
        for solver in (
            solver_of(Damps(), damping=0.6, max_evals=3),
            anderson(damping=0.3, max_evals=3),
        )
    ]
    z, after = found[0][:2]  # a first step, of which no mixer is asked, is damped by 0.6 alone
    torch.testing.assert_close(after, z + 0.6 * (f(z, *operands) - z))
    residuals = [f(x, *operands) - x for x in found[0][:2]]
    dz, dg = after - z, residuals[1] - residuals[0]
    gamma = ((dg * residuals[1]).sum(1) / dg.square().sum(1)).unsqueeze(1)
    want = after - gamma * dz + 0.3 * (residuals[1] - gamma * dg)
    torch.testing.assert_close(found[0][2], want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize("kind", ["gram", "pooled"])
def test_a_state_of_several_tensors(kind, drop_finished, dtype):
    _, weights, shift = (x.to(dtype) for x in problem(0.9, samples=12))
    mixer = mixer_of(kind, 1.0).to(dtype)

    def both(z, weights, shift):
        low, high = z["low"].flatten(1), z["high"]
        joined = f(torch.cat([low, high], 1), weights, shift)
        return {"low": joined[:, :8].reshape(-1, 8, 1, 1), "high": joined[:, 8:]}

    z0 = {"low": shift.new_zeros(12, 8, 1, 1), "high": shift.new_zeros(12, SIZE - 8)}
    sol = eq.fixed_point(
        both, z0, weights, shift, solver=solver_of(mixer, rtol=1e-3), drop_finished=drop_finished
    )
    one = solve(solver_of(mixer, rtol=1e-3), torch.zeros_like(shift), weights, shift)
    assert torch.equal(sol.status, one.status)
    assert (sol.stats.evals - one.stats.evals).abs().max() <= 1
    joined = torch.cat([sol.value["low"].flatten(1), sol.value["high"]], 1)
    assert joined.dtype == dtype
    torch.testing.assert_close(joined, one.value, rtol=0, atol=1e-2)


def test_coupled_rows_are_mixed_as_one_sample():
    z0, *operands = problem(0.5, samples=5)
    for coupled in (True, torch.tensor([0, 0, 1, 1, 1])):
        sol = solve(solver_of(mixer_of("gram", 1.0)), z0, *operands, coupled=coupled)
        assert (sol.status == eq.Status.CONVERGED).all()
        assert len(sol.status) == (1 if coupled is True else 2)
        with pytest.raises(ValueError, match="use a GramMixer"):
            solve(solver_of(mixer_of("pooled", 1.0)), z0, *operands, coupled=coupled)


@pytest.mark.parametrize("kind", ["gram", "pooled"])
def test_under_transforms_it_is_the_same(kind):
    z0, weights, shift = problem(0.9, samples=4)
    solver = solver_of(mixer_of(kind, 1.0), rtol=1e-9)

    def value(shift):
        return solve(solver, z0, weights, shift).value

    shifts = torch.stack([shift, 2 * shift])
    each = torch.stack([value(x) for x in shifts])
    torch.testing.assert_close(torch.vmap(value)(shifts), each, rtol=0, atol=1e-7)
    tangent = torch.ones_like(shift)
    step = 1e-5
    slope = (value(shift + step * tangent) - value(shift - step * tangent)) / (2 * step)
    forward = torch.func.jvp(value, (shift,), (tangent,))[1]
    torch.testing.assert_close(forward, slope, rtol=1e-3, atol=1e-3)
    grad = torch.func.grad(lambda x: value(x).sum())(shift)
    torch.testing.assert_close((grad * tangent).sum(), slope.sum(), rtol=1e-3, atol=1e-3)


def test_gradients_are_those_of_the_fixed_point():
    z0, weights, shift = problem(0.9)
    grads = []
    for solver in (solver_of(mixer_of("gram", 1.0), rtol=1e-10), anderson(rtol=1e-10)):
        operands = [x.clone().requires_grad_() for x in (weights, shift)]
        adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-10, max_evals=200))
        sol = solve(solver, z0, *operands, adjoint=adjoint)
        grads.append(torch.autograd.grad(sol.value.square().sum(), operands))
    for mine, classical in zip(*grads, strict=True):
        assert (mine - classical).norm() <= 1e-6 * classical.norm()


def test_numbers_that_mean_nothing_are_refused():
    wrong = {"horizon": 0, "fallback": 0, "history": None, "trust": -1.0}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=rf"NeuralSolver\({name}=...\)"):
            eq.NeuralSolver(**{name: value})
    with pytest.raises(ValueError, match="shift, softmax or none"):
        PooledMixer(3, normalised="sum")


def test_without_a_layer_it_says_where_weights_come_from():
    z0, *operands = problem(0.5)
    with pytest.raises(TypeError, match="distil"):
        solve(eq.NeuralSolver(), z0, *operands)
    layer = eq.DEQ(lambda z, x: z / 2 + x, solver=eq.NeuralSolver())
    with pytest.raises(ValueError, match="this layer has none"):
        layer(torch.ones(2, 3))
    layer.neural = Learned()
    assert torch.equal(layer(torch.ones(2, 3)).status, torch.zeros(2, dtype=torch.int8))
