"""The deep equilibrium layer: starts, solvers, copies, and the derivatives of frozen cells."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from equilibria.nn import DEQ, VariationalDropout, spectral_norm, weight_norm
from equilibria.solve import (
    GMRES,
    Auto,
    Implicit,
    JacobianFree,
    Phantom,
    Picard,
    Status,
    Unrolled,
    shared,
)

TIGHT = Picard(rtol=1e-13, max_evals=1000)
EXACT = Implicit(linear=GMRES(rtol=1e-13, max_evals=300))
F64: Any = {"dtype": torch.float64}


class Cell(nn.Module):
    """z -> tanh(W drop(z) + U x), a contraction."""

    def __init__(self, inputs=3, width=5, p=0.0):
        super().__init__()
        self.recur = nn.Linear(width, width)
        self.inject = nn.Linear(inputs, width)
        self.drop = VariationalDropout(p)
        nn.init.orthogonal_(self.recur.weight, 0.45)
        self.calls = 0

    def forward(self, z, x):
        self.calls += 1
        return torch.tanh(self.recur(self.drop(z)) + self.inject(x))


def make(normalize=None, p=0.0, **options) -> Any:
    torch.manual_seed(0)
    cell = Cell(p=p).double()
    if normalize is not None:
        normalize(cell)
    return DEQ(cell, **{"init": zeros, "solver": TIGHT, "adjoint": EXACT} | options)


def zeros(x):
    return x.new_zeros(x.shape[0], 5)


def data(batch=4):
    return torch.linspace(-2, 2, 3 * batch, **F64).sin().mul(2).view(batch, 3)


def gradients(layer, *xs, seed=1):
    """Values and gradients of forwards that all precede the one backward."""
    torch.manual_seed(seed)
    xs = [x.clone().requires_grad_() for x in xs]
    values = [layer(x).value for x in xs]
    loss = (torch.stack(values) * torch.arange(1.0, 6, **F64)).sin().sum()
    return values, torch.autograd.grad(loss, [*xs, *layer.parameters()])


def assert_same(a, b):
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


# --------------------------------------------------------------------------------- derivatives

NORMALIZE = [None, weight_norm, lambda m: spectral_norm(m, 0.4)]


@pytest.mark.parametrize(
    ("normalize", "p", "drop_finished"),
    [
        *((normalize, 0.4, True) for normalize in NORMALIZE),
        (NORMALIZE[1], 0.4, False),
        (NORMALIZE[2], 0.0, True),
    ],
)
def test_gradients_are_those_of_unrolling(normalize, p, drop_finished):
    layer = make(normalize, p, drop_finished=drop_finished)
    unrolled = make(normalize, p, drop_finished=drop_finished, adjoint=Unrolled())
    for xs in ([data()], [data(), 3 * data()]):  # the layer called once, and twice
        values, got = gradients(layer, *xs)
        expected_values, expected = gradients(unrolled, *xs)
        assert_same(values, expected_values)
        assert_same(got, expected)


@pytest.mark.parametrize(
    ("normalize", "training"), [(NORMALIZE[1], False), (NORMALIZE[2], True), (NORMALIZE[2], False)]
)
def test_gradcheck(normalize, training):
    layer = make(normalize, p=0.3).train(training)
    names = [name for name, _ in layer.named_parameters()]

    def run(x, *values):
        torch.manual_seed(5)  # the same mask each time
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), x).value

    x = data(2).requires_grad_()
    parameters = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(run, (x, *parameters), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (x, *parameters), fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("adjoint", [Phantom(steps=3), JacobianFree(), Unrolled(checkpoint=True)])
def test_other_adjoints_see_the_same_mask(adjoint):
    layer, reference = make(weight_norm, p=0.4, adjoint=adjoint), make(weight_norm, p=0.4)
    torch.manual_seed(1)
    x = data().requires_grad_()
    sol = layer(x)
    torch.manual_seed(1)
    torch.testing.assert_close(reference(x).value, sol.value)
    layer(x)  # another forward between
    torch.autograd.grad(sol.value.sum(), [x, *layer.parameters()])
    torch.manual_seed(2)
    assert not torch.allclose(layer(x).value, sol.value)


def test_modes_may_change_between_forward_and_backward():
    layer = make(weight_norm, p=0.4)
    _, expected = gradients(layer, data())
    for change in (layer.eval, layer.train):
        torch.manual_seed(1)
        x = data().requires_grad_()
        if change == layer.train:
            layer.eval()
            _, expected = gradients(layer, data())
        value = layer(x).value
        change()
        loss = (value * torch.arange(1.0, 6, **F64)).sin().sum()
        assert_same(torch.autograd.grad(loss, [x, *layer.parameters()]), expected)


def test_samples_that_leave_take_their_masks_with_them():
    layer = make(p=0.5, drop_finished=True, solver=Picard(rtol=1e-12, max_evals=500))
    layer.cell.recur.weight.data.mul_(1.9)
    x = data(6) * torch.tensor([0, 0.01, 0.1, 1, 5, 30], **F64)[:, None]
    torch.manual_seed(3)
    sizes = []
    handle = layer.cell.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    sol = layer(x)
    assert len(set(sizes)) > 2 and sizes == sorted(sizes, reverse=True)
    handle.remove()
    layer.drop_finished = False
    torch.manual_seed(3)
    torch.testing.assert_close(layer(x).value, sol.value, rtol=0, atol=1e-14)


def test_a_mask_per_call_has_no_fixed_point():
    class Plain(Cell):
        def forward(self, z, x):
            return torch.tanh(self.recur(nn.functional.dropout(z, 0.4)) + self.inject(x))

    torch.manual_seed(0)
    plain = DEQ(Plain().double(), init=zeros, solver=Picard(rtol=1e-6))
    assert plain(data()).stats.residual.min() > 1e-2
    assert make(p=0.4, solver=Picard(rtol=1e-6))(data()).stats.residual.max() < 1e-6


class Counted(nn.Module):
    calls = 0

    def forward(self, weight):
        self.calls += 1
        return 0.9 * weight


@pytest.mark.parametrize("adjoint", [EXACT, Phantom(), Unrolled(), Unrolled(checkpoint=True)])
def test_weights_are_computed_once_per_forward(adjoint):
    layer = make(adjoint=adjoint)
    counter = Counted()
    parametrize.register_parametrization(layer.cell.recur, "weight", counter)
    counter.calls = 0
    first, second = layer(data()), layer(data())
    assert layer.cell.calls > 20 and counter.calls == 2
    (first.value.sum() + second.value.sum()).backward()
    assert counter.calls == 2
    with torch.no_grad():
        layer(data())
    assert counter.calls == 3
    twin = copy.deepcopy(layer)
    copied = twin.cell.recur.parametrizations.weight[0]
    before, evals = copied.calls, twin.cell.calls
    twin(data()).value.sum().backward()
    assert twin.cell.calls > evals + 5 and copied.calls == before + 1


# -------------------------------------------------------------------------- torch.func, autocast


def test_transforms_of_a_module():
    layer = make(weight_norm)
    x = data()
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, x).value.square().sum()

    got = torch.func.grad(loss)(parameters, x)
    layer(x).value.square().sum().backward()
    assert_same([got[name] for name in parameters], [p.grad for p in parameters.values()])

    other = {name: 0.7 * p.detach() for name, p in parameters.items()}
    got = torch.func.grad(loss)(other, x)  # backward comes after the module has its own back
    layer.load_state_dict(other)
    layer.zero_grad()
    layer(x).value.square().sum().backward()
    assert_same([got[name] for name in parameters], [p.grad for p in parameters.values()])

    drop_finished = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(other, x[:, None])
    assert_same([drop_finished[name].sum(0) for name in other], [got[name] for name in other])


def test_jacobian_under_a_mask():
    layer = make(p=0.4)
    x = data(2)

    def run(x):
        torch.manual_seed(5)
        return layer(x).value

    rows = torch.func.jacrev(run)(x)
    torch.testing.assert_close(rows, torch.autograd.functional.jacobian(run, x))
    torch.testing.assert_close(rows, torch.func.jacfwd(run, randomness="same")(x))


def test_autocast():
    cell: Any = spectral_norm(Cell(p=0.2), 0.5)
    adjoint = Implicit(linear=GMRES(rtol=1e-2))
    layer = DEQ(cell, init=nn.Linear(3, 5), solver=Picard(rtol=1e-2), adjoint=adjoint)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sol = layer(torch.randn(4, 3))
    assert sol.value.dtype == torch.float32 and (sol.status == Status.CONVERGED).all()
    sol.value.sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in cell.parameters())
    half = DEQ(lambda z, x: (0.5 * z + x).to(z.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert half(torch.ones(2, 3, dtype=torch.bfloat16)).value.dtype == torch.float32


# ------------------------------------------------------------------------- a layer inside a layer


class Outer(nn.Module):
    """z -> inner fixed point at (z + x) / 2, with a mask of its own."""

    def __init__(self, inner, p):
        super().__init__()
        self.inner = inner
        self.drop = VariationalDropout(p)

    def forward(self, z, x):
        return self.inner(self.drop(z) / 4 + x).value


@pytest.mark.parametrize(
    ("p", "drop_finished", "inside"), [(0.3, False, "module"), (0.3, True, "function")]
)
def test_a_layer_inside_a_layer(p, drop_finished, inside):
    def build(adjoint):
        torch.manual_seed(0)
        cell = weight_norm(Cell(5, 5, p).double())
        options = {"solver": TIGHT, "adjoint": adjoint, "drop_finished": drop_finished}
        outer = Outer(DEQ(cell, **options), p)
        return outer, DEQ(outer if inside == "module" else lambda z, x: outer(z, x), **options)

    results = []
    for adjoint in (EXACT, Unrolled()):
        outer, layer = build(adjoint)
        torch.manual_seed(4)
        x = torch.linspace(-1, 1, 15, **F64).view(3, 5) * torch.tensor([[20], [1], [0.1]], **F64)
        sol = layer(x.requires_grad_())
        assert (sol.status == Status.CONVERGED).all()
        assert sol.stats.evals.argmin() == 0 and len(sol.stats.evals.unique()) > 1
        results += [
            sol.value,
            *torch.autograd.grad(sol.value.sin().sum(), [x, *outer.parameters()]),
        ]
    half = len(results) // 2
    assert_same(results[:half], results[half:])


# ---------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("normalize", NORMALIZE)
def test_copies_compute_the_same(normalize):
    adjoint = Implicit(linear=GMRES(rtol=1e-5))
    layer = make(normalize, solver=Picard(rtol=1e-6), adjoint=adjoint).float()
    x = data().float()
    layer(x).value.sum().backward()  # after a use, too
    value = layer(x).value
    twin = copy.deepcopy(layer)
    assert twin.solver == layer.solver
    assert torch.equal(twin(x).value, value)

    fresh = make(normalize, solver=Picard(rtol=1e-6), adjoint=adjoint).float()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.mul_(0.3)
    assert not torch.allclose(fresh(x).value, value)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x).value, value)
    assert all(not key.startswith("solver") for key in layer.state_dict())

    wide = copy.deepcopy(layer).double()
    assert wide(x.double()).value.dtype == torch.float64
    torch.testing.assert_close(wide(x.double()).value.float(), value, rtol=1e-4, atol=1e-4)
    assert wide.to(torch.float32)(x).value.dtype == torch.float32


def test_an_average_of_a_training_run():
    layer = make(weight_norm, p=0.2)
    average = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        layer(data()).value.square().sum().backward()
        optimizer.step()
        average.update_parameters(layer)
    average.eval()
    layer.eval()
    value, own = average(data()).value, layer(data()).value
    assert not torch.allclose(value, own)
    layer.load_state_dict(average.module.state_dict())
    torch.testing.assert_close(layer(data()).value, value)


# -------------------------------------------------------------------------------- starts, solvers


def evals(sol):
    return sol.stats.evals.max().item()


def test_starts_take_precedence_in_order():
    layer = make(solver=Picard(rtol=1e-8), init=lambda x: 7 + zeros(x))
    first = layer(data(), states=(0,))
    assert (first.states[0] == 7).all()
    warm = layer(data(), warm=first, states=(0,))
    assert torch.equal(warm.states[0], first.value) and evals(warm) <= 2 < evals(first)
    both = layer(data(), warm=first, z0=3 + zeros(data()), states=(0,))
    assert (both.states[0] == 3).all()
    torch.testing.assert_close(both.value, first.value)


@pytest.mark.parametrize("start", ["warm", "z0 and warm"])
def test_warm_starts_the_backward_too(start):
    layer = make(solver=Picard(rtol=1e-8), adjoint=Implicit(linear=GMRES(rtol=1e-8)))
    first = layer(data())
    first.value.sum().backward()
    z0 = zeros(data()) if start == "z0 and warm" else None
    second = layer(data(), warm=first, z0=z0)
    second.value.sum().backward()
    assert evals(second.adjoint) < evals(first.adjoint)


def test_a_given_start_has_a_gradient_under_unrolled():
    layer = make(adjoint=Unrolled(), solver=Picard(rtol=1e-3))
    z0: Any = zeros(data()).requires_grad_()
    layer(data(), z0=z0, warm=layer(data())).value.sum().backward()
    assert z0.grad.abs().sum() > 0


def test_without_init_the_state_is_like_the_first_input():
    layer = DEQ(lambda z, x, y: (0.5 * z[0] + x[0], 0.5 * z[1] + x[1] + y))
    sol = layer((torch.ones(2, 3), torch.ones(2, 4)), torch.ones(2, 4), states=(0,))
    assert [tuple(leaf.shape) for leaf in sol.value] == [(2, 3), (2, 4)]
    assert all((leaf == 0).all() for leaf in sol.states[0])
    torch.testing.assert_close(sol.value[1], torch.full((2, 4), 4.0), rtol=1e-3, atol=0)


def test_a_learned_start_saves_evaluations():
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 5)).double()
    layer = make(solver=Picard(rtol=1e-4), init=start)
    assert set(start.parameters()) <= set(layer.parameters())
    optimizer = torch.optim.Adam(start.parameters(), lr=1e-2)
    x = data(64)
    before = layer(x)
    for _ in range(300):
        loss = (layer.init(x) - before.value.detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = layer(x)
    assert after.stats.evals.double().mean() < before.stats.evals.double().mean() - 1
    assert (after.status == Status.CONVERGED).all()


def test_the_gradient_reaches_a_learned_start_only_under_unrolled():
    for adjoint, reached in ((EXACT, False), (Unrolled(), True)):
        layer = make(adjoint=adjoint, solver=Picard(rtol=1e-2), init=nn.Linear(3, 5).double())
        layer(data()).value.sum().backward()
        assert (layer.init.weight.grad is not None) is reached


def test_init_and_cell_get_operands_unwrapped():
    seen = []

    def init(x, table):
        seen.append(table)
        return torch.zeros_like(x)

    table = torch.ones(7)
    layer = DEQ(lambda z, x, t: 0.1 * z + x + t.sum(), init=init)
    layer(torch.ones(2, 3), shared(table))
    assert seen == [table]


def test_solvers_of_the_two_modes():
    layer = make(solver=Picard(max_evals=3, rtol=0), eval_solver=Picard(max_evals=9, rtol=0))
    assert evals(layer(data())) == 3
    assert evals(layer.eval()(data())) == 9
    layer.eval_solver = None
    assert evals(layer(data())) == 3
    assert DEQ(Cell()).solver == Auto() and isinstance(DEQ(Cell()).adjoint, Implicit)


def test_options_of_a_call():
    layer = make(solver=Picard(max_evals=4, rtol=0))
    sol = layer(data(), trace=True, states=(1, 3))
    assert sol.stats.trace.shape == (4, 4) and len(sol.states) == 2


def test_a_layer_that_throws_unless_a_call_says_otherwise():
    layer = make(solver=Picard(max_evals=4, rtol=0), throw=True)
    assert "throw=True" in repr(layer) and "throw" not in repr(make())
    with pytest.raises(RuntimeError, match="fixed_point"):
        layer(data())
    assert (layer(data(), throw=False).status == Status.MAX_EVALS).all()
    layer.throw = False
    assert (layer(data()).status == Status.MAX_EVALS).all()
    with pytest.raises(RuntimeError, match="fixed_point"):
        layer(data(), throw=True)


def test_a_layer_that_throws_does_so_in_backward():
    hopeless = Implicit(linear=GMRES(max_evals=1, rtol=1e-13))
    sol = make(adjoint=hopeless, throw=True)(data())
    with pytest.raises(RuntimeError, match="did not converge"):
        sol.value.sum().backward()


def test_a_coupled_layer_mixes_samples():
    mix = torch.full((4, 4), 0.2, **F64)
    layer = DEQ(lambda z, x: mix @ z + x, solver=TIGHT, adjoint=EXACT, coupled=True)
    sol = layer(data().requires_grad_())
    assert sol.status.tolist() == [Status.CONVERGED]  # one, for all samples together
    torch.testing.assert_close(sol.value, torch.linalg.solve(torch.eye(4, **F64) - mix, data()))
    drop = VariationalDropout(0.5)
    layer = DEQ(lambda z, x: 0.4 * drop(mix @ z) + x, solver=TIGHT, adjoint=EXACT, coupled=True)
    x = data().requires_grad_()
    torch.autograd.grad(layer(x).value.sum(), x)


def test_a_method_is_a_cell():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = weight_norm(Cell(p=0.3).double())
            self.deq = DEQ(self.step, init=zeros, solver=TIGHT, adjoint=EXACT)

        def step(self, z, x):
            return self.cell(z, x)

    torch.manual_seed(0)
    model = Model()
    torch.manual_seed(1)
    value = model.deq(data()).value
    torch.manual_seed(1)
    torch.testing.assert_close(DEQ(model.cell, init=zeros, solver=TIGHT)(data()).value, value)
    value.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"cell": 3}, TypeError, "cell must be a callable"),
        ({"init": torch.zeros(3)}, TypeError, "init must be.*z0"),
        ({"drop_finished": True, "coupled": True}, ValueError, "exclude"),
        ({"solvr": Picard()}, TypeError, "solvr"),
    ],
)
def test_errors_when_built(options, error, words):
    with pytest.raises(error, match=words):
        DEQ(**{"cell": Cell()} | options)


@pytest.mark.parametrize("inputs", [(), (torch.zeros(2, 3, dtype=torch.int64),), (1.5,)])
def test_no_start(inputs):
    with pytest.raises(ValueError, match="init="):
        DEQ(lambda z, *x: z)(*inputs)


@pytest.mark.parametrize("z0", [torch.tensor(0.0), 3.0, (), torch.zeros(0, 0)])
def test_what_is_no_state(z0):
    with pytest.raises((TypeError, ValueError), match=r"state|batch"):
        DEQ(lambda z: 0.5 * z)(z0=z0)


def test_a_layer_with_dropout_inside_one_with_other_samples():
    inner = DEQ(Cell(5, 5, 0.5).double())
    outer = DEQ(
        lambda z, x: inner(z.repeat(2, 1) + x.repeat(2, 1)).value[:4], solver=Picard(max_evals=3)
    )
    with pytest.raises(ValueError, match="8 samples inside the cell of one with 4"):
        outer(zeros(data()))


@pytest.mark.device
@pytest.mark.parametrize("drop_finished", [False, True])
def test_on_a_gpu(drop_finished):
    layer = make(weight_norm, p=0.4, drop_finished=drop_finished).cuda()
    unrolled = make(weight_norm, p=0.4, drop_finished=drop_finished, adjoint=Unrolled()).cuda()
    x = data().cuda()
    weights = torch.arange(1.0, 6, device="cuda", **F64)
    results = []
    for each in (layer, unrolled):
        torch.manual_seed(1)
        first, second = each(x).value, each(2 * x).value
        loss = ((first + second) * weights).sin().sum()
        results.append([first, second, *torch.autograd.grad(loss, list(each.parameters()))])
    assert_same(*results)
