"""Cells that reason, the networks around them, and training that makes the path not matter."""

from __future__ import annotations

import pytest
import torch

import equilibria as eq
from equilibria.run import recipe as recipes
from equilibria.run.models import create
from equilibria.run.path import PathHook, RandomPath
from equilibria.zoo.reasoning.model.cells import LinearRecurrence, normalize, scan
from equilibria.zoo.reasoning.model.reasoner import FixedDepthConfig, ReasonerConfig

CELLS = [
    ("convolution", (2, 11)),
    ("convolution", (3, 5, 7)),
    ("attention", (4, 3, 3)),
    ("diagonal", (2, 11)),
    ("dense", (2, 11)),
]


def make(cell: str, shape: tuple[int, ...], **options) -> ReasonerConfig:
    return ReasonerConfig(cell=cell, shape=shape, classes=5, width=16, **options)


@pytest.mark.parametrize(("cell", "shape"), CELLS)
def test_a_reasoner_answers_at_every_place(cell: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = make(cell, shape).build(adjoint=eq.Unrolled(max_evals=5))
    prediction = model(torch.randn(3, *shape))
    assert prediction.output.shape == (3, 5, *shape[1:])
    state = prediction.solution.value
    assert state.shape == (3, 16, *shape[1:])
    ones = torch.ones(3, *shape[1:])
    torch.testing.assert_close(state.square().mean(1), ones, atol=1e-3, rtol=0)
    prediction.output.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("cell", "shape"), [c for c in CELLS if c[0] != "attention"])
def test_an_instance_may_have_any_size(cell: str, shape: tuple[int, ...]) -> None:
    model = make(cell, shape).build(solver=eq.Picard(max_evals=3, patience=None))
    larger = (shape[0], *(2 * size for size in shape[1:]))
    assert model(torch.randn(2, *larger)).output.shape == (2, 5, *larger[1:])


def test_the_parity_recipe_has_8546_parameters() -> None:
    config = ReasonerConfig(shape=(1, 16), classes=2)
    assert sum(p.numel() for p in config.build().parameters()) == 8_546


def test_k_evaluations_see_k_places_to_either_side() -> None:
    """What bounds any network of fixed depth on parities: a bit farther away has no influence."""
    torch.manual_seed(0)
    length, k = 40, 6
    model = make("convolution", (1, length)).build()
    x = torch.randn(1, 1, length)
    other = x.clone()
    other[..., 20] += 1.0
    states = [model(each, states=[k]).solution.states[0] for each in (x, other)]
    changed = (states[0] - states[1]).abs().amax((0, 1)) > 0
    assert changed.nonzero().flatten().tolist() == list(range(20 - k, 20 + k + 1))


# --- linear recurrences ---------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_a_scan_is_the_recurrence(block: int, length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    a = torch.randn(2, length, 4, block, block, generator=generator, dtype=torch.float64)
    b = torch.randn(2, length, 4, block, 1, generator=generator, dtype=torch.float64)
    h, expected = torch.zeros_like(b[:, 0]), []
    for time in range(length):
        h = a[:, time] @ h + b[:, time]
        expected.append(h)
    torch.testing.assert_close(scan(a, b), torch.stack(expected, 1))


@pytest.mark.parametrize("dense", [False, True], ids=["diagonal", "dense"])
def test_the_fixed_point_is_the_network_that_goes_through_the_sequence(dense: bool) -> None:
    torch.manual_seed(1)
    cell = LinearRecurrence(16, dense=dense).double()
    u = torch.randn(2, 16, 12, dtype=torch.float64)
    explicit = cell.run(u)
    torch.testing.assert_close(cell(explicit, u), explicit)
    z = torch.randn(2, 16, 12, dtype=torch.float64)
    for k in range(1, 13):  # one more place is that of the fixed point, from any start
        z = cell(z, u)
        torch.testing.assert_close(z[..., :k], explicit[..., :k])


@pytest.mark.parametrize("cell", ["diagonal", "dense"])
def test_a_sequential_network_is_the_equilibrium_network(cell: str) -> None:
    torch.manual_seed(0)
    config = FixedDepthConfig(cell=cell, shape=(2, 9), classes=5, width=16, sequential=True)
    sequential, x = config.build(), torch.randn(3, 2, 9)
    solver = eq.Picard(max_evals=20, rtol=1e-7, patience=None)
    reasoner = make(cell, (2, 9)).build(
        solver=solver, adjoint=eq.Implicit(linear=eq.GMRES(rtol=1e-7))
    )
    names = {key.replace("cells.0.", "deq.cell."): x for key, x in sequential.state_dict().items()}
    reasoner.load_state_dict(names)
    outputs = [model(x).output for model in (sequential, reasoner)]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    for output in outputs:
        output.square().sum().backward()
    for name, parameter in sequential.named_parameters():
        other = reasoner.get_parameter(name.replace("cells.0.", "deq.cell."))
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-3, atol=1e-4)


def test_a_recurrence_needs_a_sequence() -> None:
    with pytest.raises(ValueError, match="no sequences"):
        make("dense", (3, 5, 5)).build()


# --- fixed depth ----------------------------------------------------------------------------------


def test_a_tied_network_is_the_equilibrium_network_cut_off() -> None:
    torch.manual_seed(0)
    options = {"shape": (1, 12), "classes": 2, "width": 8}
    fixed = FixedDepthConfig(**options, depth=4, test_depth=9).build()
    solver = eq.Picard(max_evals=50, rtol=1e-9, patience=None)
    reasoner = ReasonerConfig(**options).build(solver=solver)
    names = {key.replace("cells.0.", "deq.cell."): x for key, x in fixed.state_dict().items()}
    reasoner.load_state_dict(names)
    x = torch.randn(3, 1, 12)
    path = reasoner(x, states=[4, 9]).solution.states
    for training, state in zip((True, False), path, strict=True):
        answer = fixed.train(training)(x).output
        torch.testing.assert_close(answer, reasoner.readout(state), rtol=1e-4, atol=1e-5)


def test_progressive_training_reads_a_later_part_of_the_path_too() -> None:
    torch.manual_seed(0)
    config = FixedDepthConfig(shape=(1, 12), classes=2, depth=6, progressive=True)
    model, x = config.build(), torch.randn(3, 1, 12)
    (auxiliary,) = model.train()(x).auxiliary
    assert auxiliary.shape == (3, 2, 12) and auxiliary.requires_grad
    assert model.eval()(x).auxiliary == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tied": False, "test_depth": 16}, "leave out test_depth"),
        ({"tied": False, "progressive": True}, "leave out test_depth"),
        ({"depth": 0}, "depth"),
        ({"cell": "attention", "width": 30}, "heads"),
        ({"cell": "dense", "width": 30}, "blocks of 8"),
        ({"hidden": -4}, "hidden"),
        ({"hidden": 0}, "hidden"),
        ({"test_depth": 0}, "test_depth"),
        ({"test_depth": -1}, "test_depth"),
        ({"sequential": True}, "choose diagonal or dense"),
        ({"sequential": True, "cell": "dense", "progressive": True}, "leave out tied"),
    ],
    ids=str,
)
def test_impossible_networks_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FixedDepthConfig(**options)


def test_untied_weights_are_counted_once_a_layer() -> None:
    sizes = [
        sum(
            p.numel()
            for p in FixedDepthConfig(shape=(1, 8), classes=2, **each).build().parameters()
        )
        for each in ({"tied": True}, {"tied": False, "depth": 3})
    ]
    assert sizes == [8_546, 3 * (8_546 - 66) + 66]


def test_an_lstm_answers_at_every_place() -> None:
    model = create("sequence-lstm", shape=(6, 10), classes=6)
    assert model(torch.randn(2, 6, 10)).output.shape == (2, 6, 10)
    with pytest.raises(ValueError, match="sequences"):
        create("sequence-lstm", shape=(3, 9, 9), classes=2)


def test_a_normalized_state_forgets_its_length() -> None:
    z = torch.randn(2, 8, 5)
    torch.testing.assert_close(normalize(100 * z), normalize(z), rtol=1e-4, atol=1e-4)


# --- random paths ---------------------------------------------------------------------------------


def count_evaluations(config: RandomPath, step: int) -> tuple[int, torch.Tensor]:
    torch.manual_seed(0)
    model = make("convolution", (1, 9)).build(solver=eq.Picard(max_evals=3, patience=None))
    hook, calls = PathHook(config, model, seed=0), []
    model.deq.cell.register_forward_pre_hook(lambda *_: calls.append(1))
    with hook.around(step):
        output = model(torch.randn(4, 1, 9), **hook.options()).output
    return len(calls), output


@pytest.mark.parametrize("gradient", ["phantom", "unrolled"])
def test_a_random_path_is_as_long_as_its_budget_allows(gradient: str) -> None:
    config = RandomPath(budget=(0, 6), steps=2, gradient=gradient)
    lengths = [count_evaluations(config, step)[0] for step in range(30)]
    extra = 2 if gradient == "phantom" else 0  # two measure residuals
    assert min(lengths) == 2 + extra and max(lengths) == 8 + extra and len(set(lengths)) >= 6
    assert lengths == [count_evaluations(config, step)[0] for step in range(30)]


def test_exact_gradients_leave_the_solve_to_the_recipe() -> None:
    assert count_evaluations(RandomPath(gradient="exact"), 0)[0] <= 4


def test_a_share_of_the_starts_is_noise() -> None:
    model = make("convolution", (1, 9)).build()
    hook = PathHook(RandomPath(noise=0.25), model, seed=0)
    torch.manual_seed(0)
    drawn = hook.options()["z0"](torch.zeros(400, 16, 9))
    noisy = drawn.flatten(1).any(1)
    assert 70 <= noisy.sum() <= 130
    assert abs(drawn[noisy].std() - 1) < 0.05
    assert PathHook(RandomPath(), model, seed=0).options() == {}


def test_an_explicit_network_has_no_path() -> None:
    with pytest.raises(recipes.ConfigError, match="path"):
        recipes.load("parity", ["--model.name", "fixed-depth"])
