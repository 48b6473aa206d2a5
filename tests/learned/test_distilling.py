"""Learned starts and mixers: what they learn, and that nothing is switched on that does not pay."""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

import equilibria as eq
from equilibria.learned import (
    Contestant,
    Distillation,
    GramMixer,
    Learned,
    Outcome,
    PooledMixer,
    distill,
    initializer_for,
)
from equilibria.learned.training import _loss, make_untrained, solve, train


class Cell(nn.Module):
    def __init__(self, scale=0.8):
        super().__init__()
        self.linear = nn.Linear(24, 24)
        eq.nn.init.orthogonal_(self.linear.weight, scale)

    def forward(self, z, u):
        return torch.tanh(self.linear(z) + u)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.high, self.low = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))

    def forward(self, z, u):
        high, low = z
        pooled = nn.functional.avg_pool2d(u, 2)
        return (
            torch.tanh(0.5 * self.high(high) + u),
            torch.tanh(0.5 * self.low(low) + nn.functional.avg_pool2d(high, 2) + pooled),
        )

    def start(self, u):
        return torch.zeros_like(u), torch.zeros_like(u[:, :, ::2, ::2])


def layer_of(scale=0.8, **options):
    torch.manual_seed(0)
    return eq.DEQ(Cell(scale), solver=eq.Anderson(period=3, rtol=1e-2), **options).eval()


def batches(count=8, size=32, seed=0):
    """Injections on a plane of few dimensions, so that a small start can learn equilibria."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(2, 24, generator=torch.Generator().manual_seed(9))
    return [(torch.randn(size, 2, generator=generator) @ directions,) for _ in range(count)]


QUICK = Distillation(start_steps=300, steps=5, budget=800)


@pytest.fixture(scope="module")
def distillation():
    """A layer, distilled, and what was said of it; to be read."""
    layer = layer_of().train()
    layer.cell.linear.eval()  # a part that is held fixed
    before = copy.deepcopy(layer.state_dict())
    return layer, before, distill(layer, batches(12), QUICK)


@pytest.fixture
def distilled(distillation):
    """The layer, to be changed."""
    return copy.deepcopy(distillation[0]).eval()


def test_what_pays_is_switched_on(distillation, distilled):
    layer, (_, before, outcome) = distilled, distillation
    assert outcome.worth and outcome.learned.mean <= 0.9 * outcome.classical.mean
    assert isinstance(layer.eval_solver, eq.NeuralSolver)
    assert layer.eval_solver.rtol == layer.solver.rtol
    assert "evaluations per sample, against" in str(outcome) and not str(outcome).startswith("Not")
    for name, value in before.items():
        assert torch.equal(layer.state_dict()[name], value)
    assert all(p.grad is None for p in layer.cell.parameters())
    x = batches(1, 100, seed=7)[0]
    learned = layer(*x)
    with eq.nn.using(layer, eval_solver=layer.solver):
        classical = layer(*x)
    assert learned.stats.evals.double().mean() <= 0.9 * classical.stats.evals.double().mean()
    torch.testing.assert_close(learned.value, classical.value, rtol=0, atol=0.2)


def test_what_does_not_pay_is_not():
    layer = layer_of()
    outcome = distill(layer, batches(4), Distillation(start_steps=1, steps=0, lr=1e-6))
    assert not outcome.worth and str(outcome).startswith("Not worth it")
    assert layer.neural is None and layer.eval_solver is None


def test_a_mixer_that_saves_nothing_is_dropped(distillation):
    layer, _, outcome = distillation
    assert not outcome.mixes and layer.neural.mixer is None
    assert {"start", "start and mixer", "Anderson", "Picard"} <= set(outcome.all)


def test_an_untrained_solver_is_the_layer():
    layer = layer_of()
    (pool,) = solve(layer, batches(1), eq.Anderson(rtol=1e-5))
    for mixer in ("gram", None):
        learned = make_untrained(layer, pool, Distillation(mixer=mixer))
        assert torch.equal(learned.start(pool.inputs, pool.own), pool.own)
        layer.neural = learned
        with eq.nn.using(layer, eval_solver=eq.NeuralSolver(rtol=1e-3)):
            mine = layer(*pool.inputs)
        with eq.nn.using(layer, eval_solver=eq.Anderson(history=5, rtol=1e-3)):
            classical = layer(*pool.inputs)
        assert (mine.stats.evals - classical.stats.evals).abs().max() <= 1


@pytest.mark.parametrize(
    ("loss", "mixer"), [("residual", "gram"), ("error", "pooled"), ("error", None)]
)
def test_each_loss_falls(loss, mixer):
    layer = layer_of()
    pool = solve(layer, batches(4), eq.Anderson(rtol=1e-5))
    options = {"loss": loss, "mixer": mixer, "budget": 800, "horizon": 4}
    how = Distillation(start_steps=20, steps=30, **options)
    learned, losses = make_untrained(layer, pool[0], how), []
    train(learned, layer, pool, how, lambda step, total, loss: losses.append((step, total, loss)))
    assert [step for step, *_ in losses] == list(range(1, 51)) and losses[0][1] == 50
    late = [loss for *_, loss in losses]
    assert sum(late[15:20]) < sum(late[:5])
    assert sum(late[45:]) < sum(late[20:25])


def test_steps_that_end_with_a_larger_loss_are_undone():
    layer = layer_of()
    pool = solve(layer, batches(4), eq.Anderson(rtol=1e-5))
    found = {}
    how = Distillation(start_steps=100, steps=0, budget=800, horizon=4)
    begin = make_untrained(layer, pool[0], how)
    train(begin, layer, pool, how)
    for steps, rate in ((0, 1.0), (20, 1e-2), (20, 30.0)):
        learned = copy.deepcopy(begin)
        train(learned, layer, pool, replace(how, start_steps=0, steps=steps, lr=rate))
        found[steps, rate] = torch.cat([p.flatten() for p in learned.parameters()])
    assert torch.equal(found[20, 30.0], found[0, 1.0])
    assert not torch.equal(found[20, 1e-2], found[0, 1.0])


def test_weights_sum_to_one():
    for weights in ("increasing", "uniform", "last"):
        how = Distillation(weights=weights, horizon=7)
        assert sum(how.weight(k) for k in range(8)) == pytest.approx(1)
    assert Distillation(weights="last", horizon=7).weight(7) == 1
    assert Distillation(horizon=7).weight(6) == pytest.approx(2 * Distillation(horizon=7).weight(3))


def test_an_image_state_of_two_resolutions_and_other_sizes():
    torch.manual_seed(0)
    cell = Convolution()
    layer = eq.DEQ(cell, init=cell.start, solver=eq.Anderson(rtol=1e-3)).eval()
    pool = solve(layer, [(torch.randn(4, 3, 8, 8),) for _ in range(2)], eq.Anderson(rtol=1e-5))
    how = Distillation(start_steps=30, steps=3, budget=300, mixer="pooled")
    learned = make_untrained(layer, pool[0], how)
    train(learned, layer, pool, how)
    layer.neural, layer.eval_solver = learned.requires_grad_(False), eq.NeuralSolver(rtol=1e-3)
    for side in (8, 12):
        sol = layer(torch.randn(5, 3, side, side))
        assert (sol.status == eq.Status.CONVERGED).all()
        assert [leaf.shape[2] for leaf in sol.value] == [side, side // 2]


def test_a_sequence_of_another_length_and_causality():
    x = torch.randn(2, 9, 6)
    initialiser = initializer_for((x,), torch.zeros(2, 9, 4), 500)
    for parameter in initialiser.parameters():
        nn.init.normal_(parameter)
    whole = initialiser((x,), torch.zeros(2, 9, 4))
    part = initialiser((x[:, :5],), torch.zeros(2, 5, 4))
    torch.testing.assert_close(whole[:, :5], part)


def test_a_dense_start_has_one_size():
    initialiser = initializer_for((torch.ones(2, 6),), torch.zeros(2, 4), 100)
    with pytest.raises(ValueError, match=r"expects 6 inputs, but was given \(7,\)"):
        initialiser((torch.ones(2, 7),), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="1 tensors, but the state has 2"):
        initialiser((torch.ones(2, 6),), (torch.zeros(2, 4), torch.zeros(2, 4)))


def test_the_budget_is_kept():
    u, z = torch.ones(2, 16, 8, 8), torch.zeros(2, 16, 8, 8)
    sizes = [
        sum(p.numel() for p in initializer_for((u,), (z, z), budget).parameters())
        for budget in (500, 1000, 4000)
    ]
    assert all(size <= limit + 64 for size, limit in zip(sizes, (500, 1000, 4000), strict=True))
    assert sizes[0] > 300 and sizes[2] > 3300


def test_states_without_a_learned_start_are_refused():
    with pytest.raises(ValueError, match=r"no learned initial guess for a state \(2, 3, 4, 5, 6\)"):
        initializer_for((torch.ones(2, 3),), torch.zeros(2, 3, 4, 5, 6), 100)
    with pytest.raises(ValueError, match="this layer was given none"):
        initializer_for((torch.ones(2, dtype=torch.long),), torch.zeros(2, 4), 100)


def test_samples_without_an_equilibrium_do_not_teach():
    layer = layer_of()
    teacher = eq.Anderson(rtol=1e-5, max_evals=8)
    easy = torch.full((30, 24), 20.0)  # tanh is flat there
    hard = batches(1, 10)[0][0]
    (pool,) = solve(layer, [(torch.cat([easy, hard]),)], teacher)
    assert pool.kept[:30].all() and not pool.kept[30:].any()
    with pytest.raises(ValueError, match="only 4 of 14 samples have an equilibrium"):
        solve(layer, [(torch.cat([easy[:4], hard]),)], teacher)
    with pytest.raises(ValueError, match="no batches"):
        solve(layer, [], teacher)


class Escaping(nn.Module):
    """Has an equilibrium for u < 1/4, z = 2 u / (1 + sqrt(1 - 4 u)), and overflows beyond."""

    def forward(self, z, u):
        return z * z + u


def test_samples_that_overflow_take_no_part_in_learning():
    layer = eq.DEQ(Escaping(), solver=eq.Anderson(rtol=1e-4)).eval()
    u = torch.linspace(0.02, 0.15, 30).unsqueeze(1).expand(-1, 4).clone()
    spoilt = u.clone()
    spoilt[::5] = 1e12
    spoilt = torch.cat([spoilt, torch.full_like(u[:10], 1e12)])
    hopeless = torch.full_like(u[:10], 1e12)
    teacher = eq.Anderson(rtol=1e-5)
    pool = solve(layer, [(spoilt,), (hopeless,), (u,)], teacher)
    assert pool[0].kept.sum() == 24 and not pool[1].kept.any() and pool[2].kept.all()
    how = Distillation(start_steps=100, steps=12, budget=100)
    learned, losses = make_untrained(layer, pool[0], how), []
    train(learned, layer, pool, how, lambda step, total, loss: losses.append(loss))
    assert torch.tensor(losses).isfinite().all()
    assert sum(losses[90:100]) < 0.5 * sum(losses[:10])
    assert all(p.isfinite().all() for p in learned.parameters())
    with pytest.raises(ValueError, match="none of the samples to learn from"):
        train(learned, layer, [pool[1]], how)


class Coarse(Cell):
    """Gets no nearer to an equilibrium than a ripple that is too fine to follow."""

    def forward(self, z, u):
        return super().forward(z, u) + 3e-3 * torch.sin(1e6 * z)


def test_where_the_usual_teacher_stalls_a_tenth_of_the_layers_tolerance_will_do():
    torch.manual_seed(0)
    layer = eq.DEQ(Coarse(0.5), solver=eq.Anderson(rtol=0.1)).eval()
    data = batches(4, 16)
    with pytest.warns(UserWarning, match=r"0 % .* 100 % to 0.01, a tenth of the layer's own"):
        pool = solve(layer, data, None)
    assert all(each.kept.all() for each in pool)
    with pytest.raises(ValueError, match="only 0 of 64 samples"):
        solve(layer, data, eq.Anderson(rtol=1e-4))
    layer.solver = eq.Anderson(rtol=1e-3)
    with pytest.raises(ValueError, match="only 0 of 64 samples"):
        solve(layer, data, None)


def test_how_many_taught_nothing_is_counted():
    layer = layer_of()
    easy = [torch.full((30, 24), 20.0) for _ in range(4)]  # tanh is flat there
    data = [(torch.cat([x, hard[:10]]),) for x, (hard,) in zip(easy, batches(4), strict=True)]
    how = replace(QUICK, start_steps=3, steps=1, teacher=eq.Anderson(rtol=1e-5, max_evals=8))
    outcome = distill(layer, data, how)
    assert (outcome.samples, outcome.dropped) == (160, 40)
    assert "40 of 160 samples have no equilibrium" in str(outcome)


def test_the_sentence_says_what_is_slower():
    found = Contestant(
        eq.Anderson(), None, torch.full((4,), 10), torch.zeros(4, dtype=torch.int8), 2.0
    )
    usual = {"Anderson": found, "Picard": replace(found, solver=eq.Picard(), seconds=1.0)}
    usual["Broyden"] = replace(found, seconds=0.1, status=torch.ones(4, dtype=torch.int8))
    for seconds, said in (
        (0.5, "and 0.50 times the time of the fastest classical solver, Picard;"),
        (1.5, "but 1.50 times the time of the fastest classical solver, Picard;"),
    ):
        new = replace(found, learned=Learned(), evals=torch.full((4,), 5), seconds=seconds)
        text = str(Outcome(found, new, False, True, {**usual, "start": new}))
        assert said in text and ("It saves evaluations, but not time." in text) == (seconds > 1)


def test_the_history_is_that_of_the_solver_compared():
    for mixer in ("gram", "pooled", None):
        how = Distillation(history=7, start_steps=2, steps=1, horizon=3, mixer=mixer, budget=300)
        outcome = distill(layer_of(), batches(2), how)
        assert outcome.all["start"].solver.history == 7
    assert outcome.all["start, period 3"].solver.history == 8


def test_a_solver_may_keep_more_than_its_mixer_knows():
    layer = layer_of()
    mixer = GramMixer(3)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter)
    layer.neural = Learned(None, mixer)
    sol = {}
    for history in (3, 6):
        with eq.nn.using(layer, eval_solver=eq.NeuralSolver(history=history, rtol=1e-4)):
            sol[history] = layer(*batches(1)[0], states=(4, 6))
    assert (sol[6].status == eq.Status.CONVERGED).all()
    torch.testing.assert_close(sol[6].states[0], sol[3].states[0])
    assert not torch.allclose(sol[6].states[1], sol[3].states[1])


def test_weights_of_another_cell_are_refused():
    u, z = torch.ones(2, 5, 6), torch.zeros(2, 5, 4)
    sequence = initializer_for((u,), z, 500)
    for other, state in ((torch.ones(2, 6), z), (u[..., :3], z), (u, z[..., :3]), (u, z[:, 0])):
        with pytest.raises(ValueError, match="it was distilled from another cell"):
            sequence((other,), state)


def test_what_cannot_be_distilled_is_refused():
    with pytest.raises(TypeError, match=r"this is a tensor of shape \(32, 24\)"):
        distill(layer_of(), [x for (x,) in batches(4)], QUICK)
    with pytest.raises(TypeError, match="expects a DEQ, but was given a Cell"):
        distill(layer_of().cell, batches(4), QUICK)
    with pytest.raises(ValueError, match=r"steps must not be negative, a whole number; got 2\.5"):
        Distillation(steps=2.5)
    with pytest.raises(TypeError, match="teacher must be a classical solver"):
        Distillation(teacher=eq.NeuralSolver())
    with pytest.raises(ValueError, match="at least 2 batches"):
        distill(layer_of(), batches(1), QUICK)
    with pytest.raises(ValueError, match="rows of this layer are coupled"):
        distill(layer_of(coupled=True), batches(2), QUICK)
    for options, message in (
        ({"horizon": 0}, "horizon must be at least 1; got 0"),
        ({"steps": -1}, "steps must not be negative"),
        ({"loss": "both"}, "loss must be residual or error; got both"),
        ({"weights": "falling"}, "weights must be increasing or uniform or last"),
        ({"mixer": "mean"}, "mixer must be gram, pooled or None"),
        ({"normalised": "sum"}, "normalised must be shift or softmax or none; got sum"),
        ({"predicts": "gamma"}, "predicts must be both or alpha or beta; got gamma"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"budget": 0}, "budget must be at least 1"),
        ({"mixed": -1.0}, "mixed must not be negative"),
        ({"initialiser": False, "mixer": None}, "nothing to learn"),
    ):
        with pytest.raises(ValueError, match=message):
            Distillation(**options)


def test_a_layer_with_weights_can_be_copied_and_loaded(distilled):
    layer = distilled
    twin = layer_of()
    with pytest.raises(RuntimeError, match="neural"):
        twin.load_state_dict(layer.state_dict())
    twin = copy.deepcopy(layer)
    (x,) = batches(1, seed=3)[0]
    assert torch.equal(layer(x).value, twin(x).value)


def losses_of(learned, layer, batch, how):
    said = []
    train(learned, layer, [batch], how, lambda step, total, loss: said.append(loss))
    return said


def test_the_loss_is_that_of_the_iterates():
    layer = layer_of()
    (pool,) = solve(layer, batches(1), eq.Anderson(rtol=1e-5))
    u, goal, K = pool.inputs[0], pool.value, 4
    states = [torch.zeros_like(u)]
    for _ in range(K):  # one difference kept, and no weight on it: plain iteration
        states.append(layer.cell(states[-1], u))
    relative = [(layer.cell(z, u) - z).norm(dim=1) / layer.cell(z, u).norm(dim=1) for z in states]
    errors = [(z - goal).norm(dim=1) / goal.norm(dim=1) for z in states]
    w = [2 * k / (K * (K + 1)) for k in range(K + 1)]
    weighted = {"start": 0.2, "error": 0.3, "mixed": 0.4, "horizon": K, "history": 1}

    class Plain(GramMixer):
        def mix(self, seen):
            return 0 * super().mix(seen)[0], None

    for loss in ("residual", "error"):
        how = Distillation(start_steps=0, steps=1, loss=loss, **weighted)
        learned = make_untrained(layer, pool, how)
        learned.mixer = Plain(history=1)
        said = losses_of(learned, layer, pool, how)
        want = 0.2 * errors[0].mean()
        if loss == "residual":
            want = want + sum(a * r.log().mean() for a, r in zip(w, relative, strict=True))
        else:
            want = want + 0.3 * sum(a * e.mean() for a, e in zip(w, errors, strict=True))
            mixed = [(layer.cell(z, u) - z).norm(dim=1) / goal.norm(dim=1) for z in states[1:K]]
            want = want + 0.4 * sum(each.mean() for each in mixed)
        assert said[0] == pytest.approx(float(want.detach()), rel=1e-4)


@pytest.mark.parametrize("mixed", [1e-4, 1e-9])
def test_the_weight_of_the_mixed_residual_falls(mixed):
    layer = layer_of()
    (pool,) = solve(layer, batches(1), eq.Anderson(rtol=1e-5))
    losses = {}
    for c in (mixed, 1.0, 0.0):
        fields = {"loss": "error", "mixer": "pooled", "error": 0.0, "mixed": c, "lr": 1e-30}
        how = Distillation(start_steps=0, steps=5, horizon=4, initialiser=False, **fields)
        losses[c] = torch.tensor(losses_of(make_untrained(layer, pool, how), layer, pool, how))
    assert not losses[0.0].any()
    want = mixed * torch.tensor([max(1 - step / 2, min(1.0, 5e-8 / mixed)) for step in range(5)])
    torch.testing.assert_close(losses[mixed] / losses[1.0][0], want, rtol=1e-3, atol=0)


def test_the_layer_is_left_as_it_was(distillation):
    layer = copy.deepcopy(distillation[0])
    assert layer.training and layer.cell.training and not layer.cell.linear.training
    begin = layer.neural
    before = copy.deepcopy(begin.state_dict())
    with torch.no_grad():  # it needs gradients of its own
        outcome = distill(layer, batches(4), replace(QUICK, start_steps=50), begin=begin)
    assert outcome.learned.learned is not begin
    assert all(torch.equal(value, before[name]) for name, value in begin.state_dict().items())
    wider = [(x.double(),) for (x,) in batches(4)]
    how = replace(QUICK, start_steps=50)
    outcome = distill(layer.double(), wider, how, begin=begin.float())
    assert outcome.all["start"].converged == 1


def test_gradients_are_those_of_the_equilibrium(distilled):
    layer = distilled.double()
    layer.neural.mixer = GramMixer().double()
    nn.init.normal_(layer.neural.mixer.out.weight)
    (x,) = batches(1, 8, seed=3)[0]
    layer.adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-10, max_evals=200))
    grads = []
    for solver in (eq.NeuralSolver(rtol=1e-10), eq.Anderson(rtol=1e-10)):
        u = x.double().requires_grad_()
        with eq.nn.using(layer, eval_solver=solver):
            sol = layer(u)
        assert (sol.status == eq.Status.CONVERGED).all()
        sources = [u, *layer.cell.parameters()]
        grads.append(torch.autograd.grad(sol.value.square().sum(), sources))
    for mine, classical in zip(*grads, strict=True):
        assert (mine - classical).norm() <= 1e-6 * classical.norm()


def test_a_sample_alone_is_the_sample_in_its_batch(distilled):
    layer = distilled
    (x,) = batches(1, 8, seed=3)[0]
    together = layer(x)
    for sample in range(8):
        alone = layer(x[sample : sample + 1])
        assert alone.status[0] == together.status[sample]
        assert (alone.stats.evals[0] - together.stats.evals[sample]).abs() <= 1
        torch.testing.assert_close(alone.value[0], together.value[sample], rtol=0, atol=1e-2)


def test_threads_do_not_disturb_each_other(distilled):
    layer = distilled
    layer.neural.mixer = GramMixer()
    nn.init.normal_(layer.neural.mixer.out.weight)
    inputs = [x for (x,) in batches(8, seed=4)]
    one_by_one = [layer(x) for x in inputs]
    with ThreadPoolExecutor(4) as threads:
        at_once = list(threads.map(layer, inputs))
    for one, other in zip(one_by_one, at_once, strict=True):
        assert torch.equal(one.status, other.status)
        assert (one.stats.evals - other.stats.evals).abs().max() <= 1
        torch.testing.assert_close(one.value, other.value, rtol=0, atol=1e-3)


def test_a_start_that_is_not_finite_is_the_layers_own():
    layer = layer_of()
    (pool,) = solve(layer, batches(1), eq.Anderson(rtol=1e-5))
    learned = Learned(initializer_for(pool.inputs, pool.own, 500))
    with torch.no_grad():
        for parameter in learned.parameters():
            parameter.fill_(torch.nan)
    layer.neural = learned
    with eq.nn.using(layer, eval_solver=eq.NeuralSolver(rtol=1e-3)):
        sol = layer(*pool.inputs)
    assert (sol.status == eq.Status.CONVERGED).all()


def test_a_start_of_ones_own_is_kept(distilled):
    layer = distilled
    (x,) = batches(1, seed=3)[0]
    z0 = torch.full((32, 24), 0.1)
    given = layer(x, z0=z0, states=(0,))
    assert torch.equal(given.states[0], z0)
    learned = layer(x, states=(0,))
    assert torch.equal(layer(x, warm=learned, states=(0,)).states[0], learned.value)
    layer.train()
    assert not layer(x, states=(0,)).states[0].any()  # in training the layer's own solver


def test_the_sizes_of_both_mixers():
    assert sum(p.numel() for p in GramMixer().parameters()) == 27 * 16 + 16 + 16 * 5 + 5
    assert sum(p.numel() for p in PooledMixer(8).parameters()) == 8 * 16 * 3 + 16 + 16 * 2 * 3 + 2


def test_a_cell_that_returns_something_beside_its_state():
    plain = layer_of()

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = copy.deepcopy(plain.cell)

        def forward(self, z, u):
            out = self.cell(z, u)
            return out, out.sum()

    pair = eq.DEQ(Pair(), solver=plain.solver, has_aux=True).eval()
    losses = []
    for layer in (plain, pair):
        (batch,), how = solve(layer, batches(1), None), Distillation(budget=2000)
        losses.append(_loss(make_untrained(layer, batch, how), layer, batch, how, 0.0))
    torch.testing.assert_close(*losses)
