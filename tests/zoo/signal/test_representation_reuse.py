"""States from step to step: the cache, and training with one evaluation a step."""

import pytest
import torch
from small_representation import IMPLICIT, build, points

import equilibria as eq
from equilibria.run.models.reuse import Cache, reuse

KINDS = sorted(IMPLICIT)
TRUNCATED = eq.NeumannPhantom(steps=2, damping=1.0)


def target(x):
    return (3 * x[:, :1]).sin() * (2 * x[:, 1:]).cos()


def train(model, cache, steps, *, batches=None, seed=0):
    """Fit with Adam; the losses of all steps. The optimiser starts anew."""
    x = points(64)
    y = target(x)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(seed)
    losses, evals = [], []
    for _ in range(steps):
        index = None
        if batches is not None:
            index = torch.randperm(64, generator=generator)[:batches]
        here = x if index is None else x[index]
        there = y if index is None else y[index]
        prediction = reuse(model, here, cache, index)
        loss = (prediction.output - there).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        evals.append(int(prediction.solution.stats.evals.max()))
    return losses, evals


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_fixed_problem_the_cache_moves_to_the_solution(kind):
    model, x = build(kind, solver=eq.Picard(rtol=0.3, max_evals=3)), points(16)
    cache = Cache(16)
    residuals = []
    with torch.no_grad():
        before = reuse(model, x, cache).solution.value
        for _ in range(100):
            prediction = reuse(model, x, cache)
            assert prediction.solution.stats.evals.tolist() == [1] * 16
            assert not torch.equal(cache.read(), before)
            before = cache.read()
            residuals.append(float(prediction.solution.stats.overall))
            if residuals[-1] < 1e-12:
                break
        star = model(x, z0=torch.zeros(16, 8).double()).solution.value
        with eq.nn.using(model, solver=eq.Anderson(rtol=1e-12)):
            star = model(x).solution.value
    assert residuals[-1] < 1e-8 < residuals[0]
    torch.testing.assert_close(cache.read(), star, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_after_the_first_step_one_evaluation_is_enough(kind):
    model = build(kind, width=24, adjoint=TRUNCATED, solver=eq.Picard(rtol=1e-3))
    cache = Cache(64)
    losses, evals = train(model, cache, 200)
    assert evals[0] > 1 and set(evals[1:]) == {1}
    assert losses[-1] < 0.05 * losses[0]
    with torch.no_grad():
        solved = (model(points(64)).output - target(points(64))).square().mean()
    assert abs(solved.item() - losses[-1]) < 0.1 * losses[0]


def test_minibatches_solve_until_each_of_their_samples_is_known():
    model = build("fourier", adjoint=TRUNCATED, solver=eq.Picard(rtol=1e-3))
    cache = Cache(64)
    evals = train(model, cache, 60, batches=16)[1]
    assert evals[0] > 1 and evals[-1] == 1
    assert cache.known()


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_resumed_is_uninterrupted(tmp_path, dtype):
    model = build("gabor", adjoint=TRUNCATED)
    cache = Cache(64, dtype=dtype)
    train(model, cache, 5, batches=40)
    torch.save([model.state_dict(), cache.state_dict()], tmp_path / "state.pt")
    expected = train(model, cache, 5, batches=40, seed=1)

    weights, states = torch.load(tmp_path / "state.pt", weights_only=True)
    other, again = build("gabor", adjoint=TRUNCATED, seed=9), Cache(64, dtype=dtype)
    other.load_state_dict(weights)
    again.load_state_dict(states)
    assert train(other, again, 5, batches=40, seed=1) == expected
    assert torch.equal(cache.read(), again.read())


def test_a_sample_that_is_not_finite_is_forgotten():
    model, x = build("fourier", bound=None), points(4)
    cache = Cache(4)
    with torch.no_grad():
        reuse(model, x, cache)
        states = cache.read().clone()
        states[2] = torch.inf
        cache.write(states)
        prediction = reuse(model, x, cache)
        assert prediction.solution.status.tolist()[2] == eq.Status.NONFINITE
        assert not cache.known() and cache.known(torch.tensor([0, 1, 3]))
        assert torch.isfinite(cache.read()).all()
        solution = reuse(model, x, cache).solution
        assert (solution.status == 0).all() and cache.known()
        cache.write(states)
        reuse(model, x[[3, 2]], cache, torch.tensor([3, 2]))
    assert [cache.known(torch.tensor([i])) for i in range(4)] == [True, True, False, True]
    assert (cache.read()[2] == 0).all() and (cache.read()[1] != 0).any()


def test_the_full_batch_is_not_copied():
    cache, states = Cache(3), torch.randn(3, 2, requires_grad=True)
    cache.write(states)
    assert cache.read().data_ptr() == states.data_ptr() and not cache.read().requires_grad
    cache.write(torch.zeros(1, 2), torch.tensor([1]))  # now it is
    assert (states[1] != 0).all() and (cache.read()[1] == 0).all()
    cache.write(states)
    cache.forget(torch.tensor([0]))
    assert (states[0] != 0).all()


def test_states_by_number():
    cache = Cache(5)
    assert cache.empty and not cache.known() and cache.bytes == 5
    cache.write(torch.ones(2, 3), torch.tensor([3, 1]))
    assert not cache.known() and cache.known(torch.tensor([1, 3]))
    assert not cache.known(torch.tensor([1, 2]))
    assert cache.read().sum(1).tolist() == [0, 3, 0, 3, 0]
    assert cache.read(torch.tensor([1, 0]), dtype=torch.float64).dtype == torch.float64
    assert cache.bytes == 5 + 5 * 3 * 4
    cache.write(torch.ones(3, 3), torch.tensor([0, 2, 4]))
    assert cache.known()
    cache.forget(torch.tensor([2]))
    assert not cache.known() and cache.read().sum() == 12
    cache.forget()
    assert cache.empty and not cache.known(torch.tensor([0]))


def test_half_the_memory():
    wide, narrow = Cache(100), Cache(100, dtype=torch.bfloat16)
    states = torch.randn(100, 7)
    wide.write(states)
    narrow.write(states)
    assert wide.bytes - 100 == 2 * (narrow.bytes - 100) == 100 * 7 * 4
    back = narrow.read(dtype=torch.float32)
    torch.testing.assert_close(back, states, rtol=4e-3, atol=0)
    narrow.write(states[:2], torch.tensor([5, 6]))
    torch.testing.assert_close(narrow.read()[5:7].float(), states[:2], rtol=4e-3, atol=0)
    model, x = build("fourier").float(), points(100).float()
    cache = Cache(100, dtype=torch.bfloat16)
    reuse(model, x, cache)
    prediction = reuse(model, x, cache)
    assert prediction.solution.value.dtype == torch.float32
    assert prediction.solution.stats.residual.max() < 0.02


def test_a_cache_of_no_samples_or_of_no_state_is_refused():
    for samples in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="samples must be a positive whole number"):
            Cache(samples)
    for dtype in (torch.int8, "float32"):
        with pytest.raises(TypeError, match="floating-point dtype"):
            Cache(3, dtype=dtype)


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        ([0, 1], TypeError, "int64 tensor of sample numbers, got list"),
        (torch.tensor([0.0]), TypeError, "got torch.float32"),
        (torch.tensor([[0]]), ValueError, r"index must be \(batch,\)"),
        (torch.tensor([9]), IndexError, "out of range|out of bounds"),
    ],
)
def test_what_is_no_index_is_refused(index, error, words):
    cache = Cache(3)
    with pytest.raises(error, match=words):
        cache.known(index)
    with pytest.raises(error, match=words):
        cache.write(torch.zeros(1, 2), index)
    cache.write(torch.zeros(3, 2))
    with pytest.raises(error, match=words):
        cache.read(index)


@pytest.mark.parametrize(
    ("states", "index", "error", "words"),
    [
        (torch.zeros(2, 4), None, ValueError, "do not fit 3 samples"),
        (torch.zeros(3, 4), torch.tensor([0, 1]), ValueError, "do not fit 2 samples"),
        ((torch.zeros(3, 4),), None, TypeError, "got tuple"),
        (torch.zeros(3, 5), None, ValueError, r"holds states of the shape \(4,\), got \(5,\)"),
    ],
)
def test_states_that_do_not_fit_are_refused(states, index, error, words):
    cache = Cache(3)
    with pytest.raises(KeyError, match="the cache is empty"):
        cache.read()
    cache.write(torch.zeros(3, 4))
    with pytest.raises(error, match=words):
        cache.write(states, index)
    with pytest.raises(ValueError, match="of 3 samples and the batch has 5"):
        reuse(build("fourier"), points(5), cache)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {},
        lambda s: {**s, "known": s["known"][:2]},
        lambda s: {"known": s["known"]},
        lambda s: {**s, "states": s["states"][:2]},
        lambda s: {**s, "states": s["states"].double()},
    ],
)
def test_the_state_of_another_cache_is_refused(change):
    cache = Cache(3, dtype=torch.float32)
    cache.write(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"expected|the cache keeps"):
        Cache(3, dtype=torch.float32).load_state_dict(change(cache.state_dict()))


@pytest.mark.parametrize("terms", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_has_the_gradient_of_the_series_at_its_state(kind, terms):
    model = build(kind, adjoint=eq.NeumannPhantom(steps=terms + 1, damping=1.0))
    x, z = points(6), torch.randn(6, 8, dtype=torch.float64)
    wanted = list(model.parameters())[:-2]  # less the readout's, whose values are of y
    g = torch.randn(6, 8, dtype=torch.float64)
    with eq.nn.using(model, solver=eq.Picard(max_evals=1)):
        solved = model(x, z0=z).solution.value
    assert torch.equal(solved, z)
    expected = torch.autograd.grad(solved, wanted, g)
    step = model.advance(x, z).solution.value
    assert torch.equal(step, model.deq.cell(z, *model.inject(x)))
    found = torch.autograd.grad(step, wanted, g)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_batch_with_new_samples_begins_at_what_is_known():
    model = build("fourier", solver=eq.Picard(rtol=1e-6, max_evals=200))
    x, cache = points(4), Cache(4)
    with torch.no_grad():
        reuse(model, x[:2], cache, torch.tensor([0, 1]))
        evals = reuse(model, x, cache).solution.stats.evals
    assert evals[:2].tolist() == [1, 1] and (evals[2:] > 1).all()


def test_a_loaded_cache_writes_to_its_own_memory():
    given = {"known": torch.ones(3, dtype=torch.bool), "states": torch.ones(3, 2)}
    cache = Cache(3)
    cache.load_state_dict(given)
    cache.write(torch.zeros(1, 2), torch.tensor([1]))
    cache.forget(torch.tensor([2]))
    assert (given["states"] == 1).all() and given["known"].all()


def test_states_of_narrow_parameters_are_read_in_float32():
    model = build("fourier").to(torch.bfloat16)
    x, cache = points(4).to(torch.bfloat16), Cache(4, dtype=torch.bfloat16)
    cache.write(torch.zeros(4, 8))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        value = reuse(model, x, cache).solution.value
    assert value.dtype == torch.float32


def test_an_index_of_another_length_is_refused_before_the_solve():
    model, cache = build("fourier"), Cache(4)
    with pytest.raises(ValueError, match="the index is of 2 and the batch has 3"):
        reuse(model, points(3), cache, torch.tensor([0, 1]))
    assert cache.empty
