"""The multiscale equilibrium network: its equations, its state, its gradients, its refusals."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import equilibria as eq
from equilibria.nn import VariationalDropout
from equilibria.run.models import create
from equilibria.zoo.vision.model.mdeq import (
    MDEQ,
    AuxiliaryHeads,
    BatchNorm2d,
    Fusion,
    MultiscaleCell,
    ResidualBlock,
)

SMALL = {
    "shape": (3, 8, 8),
    "classes": 4,
    "channels": (4, 8),
    "head_channels": (2, 3),
    "final": 6,
    "expansion": 2,
    "groups": 2,
}
CONTRACTION = {**SMALL, "norm": "none", "initial": 0.1, "weight_norm": False}
"""Kernels small enough, with no norm to make them large again, for plain iteration to converge."""


def small(**fields):
    torch.manual_seed(0)
    model = create("mdeq", **{**SMALL, **fields})
    assert isinstance(model, MDEQ)
    return model


def cell_of(model):
    assert isinstance(model.deq.cell, MultiscaleCell)
    return model.deq.cell


def unroll(model, **fields):
    """The explicit network with a model's weights, and pairs of parameters of both."""
    unrolled = create("mdeq-unrolled", **fields).to(next(model.parameters()).dtype)
    named = {key.replace("deq.cell", "cell"): each for key, each in model.named_parameters()}
    state = {key.replace("deq.cell", "cell"): each for key, each in model.state_dict().items()}
    unrolled.load_state_dict(state)
    return unrolled, [(each, unrolled.get_parameter(key)) for key, each in named.items()]


def images(count=3, shape=(3, 8, 8), seed=1):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


# --- the equations -------------------------------------------------------------------------------


@pytest.mark.parametrize("injected", [True, False])
def test_block_is_equation_3_1(injected):
    torch.manual_seed(0)
    block = ResidualBlock(4, expansion=3, groups=2, dropout=0.0, norm="group")
    for norm in (block.norm1, block.norm2, block.norm3):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    z, x = torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 6)

    def gn(norm, y):
        return functional.group_norm(y, 2, norm.weight, norm.bias, norm.eps)

    def conv(kernel, y):
        return functional.conv2d(y, kernel, padding=1)

    first = gn(block.norm1, conv(block.conv1.weight, z))
    second = conv(block.conv2.weight, torch.relu(first)) + (x if injected else 0)
    expected = gn(block.norm3, torch.relu(gn(block.norm2, second) + z))
    torch.testing.assert_close(block(z, x if injected else None), expected)


def test_fusion_sums_what_the_other_resolutions_send():
    torch.manual_seed(0)
    fusion = Fusion((4, 6, 2), groups=2, norm="group")
    states = [torch.randn(2, 4, 7, 9), torch.randn(2, 6, 4, 5), torch.randn(2, 2, 2, 3)]
    sent = fusion.resample

    def up(y, like):
        rows = torch.arange(like.shape[2]) * y.shape[2] // like.shape[2]
        columns = torch.arange(like.shape[3]) * y.shape[3] // like.shape[3]
        return y[:, :, rows][..., columns]

    totals = [
        states[0] + up(sent["1to0"](states[1]), states[0]) + up(sent["2to0"](states[2]), states[0]),
        states[1] + sent["0to1"](states[0]) + up(sent["2to1"](states[2]), states[1]),
        states[2] + sent["0to2"](states[0]) + sent["1to2"](states[1]),
    ]
    for fused, after, total in zip(fusion(states), fusion.after, totals, strict=True):
        _, kernel, norm = after.children()
        assert isinstance(kernel, nn.Conv2d) and isinstance(norm, nn.GroupNorm)
        assert norm.weight is None and norm.num_groups == 1  # half as many groups, not learnt
        expected = functional.group_norm(functional.conv2d(torch.relu(total), kernel.weight), 1)
        torch.testing.assert_close(fused, expected)


def test_downward_path_has_a_strided_convolution_a_level():
    path = list(Fusion((4, 6, 2), groups=2, norm="group").resample["0to2"].children())
    kinds = [type(layer).__name__ for layer in path]
    assert kinds == ["Conv2d", "GroupNorm", "ReLU", "Conv2d", "GroupNorm"]
    convolutions = [layer for layer in path if isinstance(layer, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.stride) for c in convolutions] == [
        (4, 4, (2, 2)),
        (4, 2, (2, 2)),
    ]


def test_input_is_injected_at_the_highest_resolution_alone():
    model = small().eval()
    (u,) = model.inject(images())
    zeros = cell_of(model).start(u)
    blocks, fusion = cell_of(model).blocks, cell_of(model).fusion
    assert fusion is not None
    after = [blocks[0](zeros[0], u), blocks[1](zeros[1])]
    for got, expected in zip(cell_of(model)(zeros, u), fusion(after), strict=True):
        assert torch.equal(got, expected)


def test_lower_resolutions_learn_of_the_input_at_the_equilibrium():
    three = {**CONTRACTION, "channels": (4, 4, 4), "head_channels": (2, 2, 2)}
    model = small(**three).eval()
    x = images().requires_grad_()
    for state in model.deq(*model.inject(x)).value:
        (slope,) = torch.autograd.grad(
            (state * torch.randn_like(state)).sum(), x, retain_graph=True
        )
        assert slope.abs().amax() > 1e-6


# --- any number of resolutions, any size ---------------------------------------------------------


@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")
@pytest.mark.parametrize(
    ("resolutions", "size"), [(1, (8, 8)), (2, (9, 13)), (3, (16, 10)), (4, (9, 13)), (4, (8, 8))]
)
def test_any_number_of_resolutions_and_size(resolutions, size):
    shape = (1, *size)
    per_level = {"channels": (4,) * resolutions, "head_channels": (2,) * resolutions}
    model = small(shape=shape, solver=eq.Picard(max_evals=3), **per_level).eval()
    prediction = model(images(2, shape))
    height, width = size
    for state in prediction.solution.value:
        assert state.shape == (2, 4, height, width)
        height, width = (height + 1) // 2, (width + 1) // 2
    assert prediction.output.shape == (2, 4)


@pytest.mark.parametrize("halvings", [0, 1, 2, 3])
def test_stem_halves(halvings):
    model = small(shape=(3, 32, 20), halvings=halvings).eval()
    (u,) = model.inject(images(2, (3, 32, 20)))
    assert u.shape == (2, 4, -(-32 // 2**halvings), -(-20 // 2**halvings))


def test_one_resolution_is_the_block_alone():
    model = small(channels=(4,), head_channels=(2,)).eval()
    (u,) = model.inject(images())
    z = torch.randn_like(u)
    assert torch.equal(cell_of(model)((z,), u)[0], cell_of(model).blocks[0](z, u))


def test_other_image_sizes_than_the_config_names():
    model = small().eval()
    assert model(images(2, (3, 12, 20))).output.shape == (2, 4)


# --- the solve -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")
@pytest.mark.parametrize(
    ("solver", "last"),
    [
        (eq.Picard(max_evals=12), False),
        (eq.Picard(max_evals=12), None),
        (eq.Anderson(max_evals=12), True),
        (eq.Broyden(memory=5, max_evals=12), True),
        (eq.Auto(max_evals=30), False),
        (eq.Auto(max_evals=30), True),
    ],
)
def test_layout_stays_through_the_solver(last, solver):
    model = small(solver=solver, channels_last=last)
    layout = torch.channels_last if last else torch.contiguous_format
    seen: list[bool] = []

    def look(_, inputs):
        states, u = inputs
        assert isinstance(states, tuple) and len(states) == 2
        seen.extend(
            x.is_contiguous(memory_format=layout) and (x.stride(1) == 1) == bool(last)
            for x in (*states, u)
        )

    cell_of(model).register_forward_pre_hook(look)
    prediction = model(images())
    prediction.output.sum().backward()
    assert len(seen) > 9 and all(seen)
    for state in prediction.solution.value:
        assert state.is_contiguous(memory_format=layout)


def test_samples_do_not_depend_on_their_batch():
    model = small(solver=eq.Anderson(rtol=1e-6, max_evals=100)).eval().double()
    x = images().double()
    whole = model(x)
    for i in range(len(x)):
        alone = model(x[i : i + 1])
        torch.testing.assert_close(alone.output, whole.output[i : i + 1], rtol=1e-9, atol=1e-12)
        assert alone.solution.stats.evals == whole.solution.stats.evals[i]


def test_gradient_is_that_of_the_unrolled_network_in_the_limit():
    solver, linear = eq.Anderson(rtol=1e-12, max_evals=300), eq.GMRES(rtol=1e-12)
    model = small(**CONTRACTION, solver=solver, adjoint=eq.Implicit(linear=linear)).double()
    unrolled, pairs = unroll(model, **CONTRACTION, layers=80)
    x = images().double()
    weights = torch.randn(3, 4, dtype=torch.float64)
    for network in (model, unrolled):
        (network(x).output * weights).sum().backward()
    for one, other in pairs:
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-9)


def test_gradient_is_that_of_finite_differences():
    solver, linear = eq.Broyden(rtol=1e-11, max_evals=400), eq.GMRES(rtol=1e-10, max_evals=400)
    model = small(solver=solver, adjoint=eq.Implicit(linear=linear)).double()
    for name, parameter in cell_of(model).named_parameters():
        if name.endswith("norm3.weight"):
            nn.init.constant_(parameter, 0.3)  # a feedback weak enough for Broyden from zeros
    x, weights = images(2).double(), torch.randn(2, 4, dtype=torch.float64)
    z0 = tuple(z.detach() for z in model(x).solution.value)

    def loss():
        solution = model.deq(*model.inject(x), z0=z0)
        assert bool((solution.status == eq.Status.CONVERGED).all())
        return (model.readout(solution.value) * weights).sum()

    loss().backward()
    cell = list(model.deq.parameters())
    direction = [p.detach() * torch.randn_like(p) for p in cell]
    pairs = [(p.grad, v) for p, v in zip(cell, direction, strict=True) if p.grad is not None]
    slope = sum(((g * v).sum() for g, v in pairs), torch.zeros((), dtype=torch.float64))
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for p, v in zip(cell, direction, strict=True):
                p += step * v
            values.append(loss())
    torch.testing.assert_close((values[0] - values[1]) / 2e-6, slope, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_unrolled_network_is_so_many_plain_steps(checkpoint):
    layers = 4
    options = {"solver": eq.Picard(), "adjoint": eq.Unrolled(max_evals=layers)}
    model = small(**options, dropout=0.3)
    unrolled, pairs = unroll(model, **SMALL, dropout=0.3, layers=layers, checkpoint=checkpoint)
    outputs = []
    for network in (model, unrolled):
        torch.manual_seed(5)  # of the dropout masks
        outputs.append(network(images()).output)
        outputs[-1].square().sum().backward()
    assert torch.equal(*outputs)
    for one, other in pairs:
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_a_dropout_mask_holds_for_a_whole_forward():
    model = small(**{**CONTRACTION, "dropout": 0.5}, solver=eq.Anderson(rtol=1e-5))
    prediction = model(images())
    assert bool((prediction.solution.status == eq.Status.CONVERGED).all())
    z = prediction.solution.value
    other = model(images()).solution.value
    assert not torch.allclose(z[0], other[0], atol=1e-3)  # the next forward has another mask
    assert sum(isinstance(m, VariationalDropout) for m in model.modules()) == 2


def test_weights_are_normalised_in_blocks_and_after_fusion():
    names = {
        name.split(".parametrizations")[0]
        for name, _ in cell_of(small()).named_parameters()
        if "parametrizations" in name
    }
    assert names == {
        *(f"blocks.{level}.conv{i}" for level in (0, 1) for i in (1, 2)),
        *(f"fusion.after.{level}.1" for level in (0, 1)),
    }
    plain = cell_of(small(weight_norm=False))
    assert not any("parametrizations" in name for name, _ in plain.named_parameters())


# --- heads ---------------------------------------------------------------------------------------


def test_head_reads_every_resolution():
    model = small(channels=(4, 4, 4), head_channels=(2, 2, 2)).eval()
    states = [s.detach().requires_grad_() for s in model(images()).solution.value]
    slopes = torch.autograd.grad(model.readout(states).square().sum(), states)
    assert all(slope.abs().amax() > 0 for slope in slopes)


def test_auxiliary_heads_answer_in_training_only():
    model = small(auxiliary=True)
    prediction = model(images())
    assert [part.shape for part in prediction.auxiliary] == [(3, 4), (3, 4)]
    functional.cross_entropy(prediction.auxiliary[1], torch.tensor([0, 1, 2])).backward()
    assert isinstance(model.auxiliary, AuxiliaryHeads)
    assert model.auxiliary[0].weight.grad is None
    # The other resolutions' blocks have a part in the joint equilibrium, hence a gradient.
    assert cell_of(model).blocks[0].norm1.weight.grad.abs().amax() > 0
    assert model.eval()(images()).auxiliary == ()
    assert small()(images()).auxiliary == ()


# --- refusals ------------------------------------------------------------------------------------


def test_shape_is_wanted_where_there_are_no_data():
    with pytest.raises(ValueError, match="shape or classes is None"):
        create("mdeq")


# --- batch normalisation --------------------------------------------------------------------------


def batches(count):
    generator = torch.Generator().manual_seed(0)
    return [5.0 + 0.1 * torch.randn(64, 3, 4, 4, generator=generator) for _ in range(count)]


def test_after_a_few_batches_an_evaluation_is_normalised():
    for count in (1, 3, 20):
        norm, torchs = BatchNorm2d(3), nn.BatchNorm2d(3)
        for batch in batches(count):
            assert torch.equal(norm(batch), torchs(batch))  # in training it is torch's
        found = norm.eval()(batches(1)[0])
        assert found.mean().abs() < 0.2 and 0.8 < found.std() < 1.2
        assert torchs.eval()(batches(1)[0]).mean().abs() > 0.5
        assert all(map(torch.equal, norm.state_dict().values(), torchs.state_dict().values()))


def test_before_a_batch_and_after_many_it_is_torchs():
    norm, torchs = BatchNorm2d(3).eval(), nn.BatchNorm2d(3).eval()
    batch = batches(1)[0]
    assert torch.equal(norm(batch), torchs(batch))
    for each in (norm, torchs):
        each.train()
        for k in range(300):
            each(batch * (1 + k % 2))
        each.eval()
    assert torch.equal(norm(batch), torchs(batch))


def test_a_channel_that_is_always_zero_stays_zero():
    norm = BatchNorm2d(3)
    for _ in range(3):
        norm(torch.zeros(4, 3, 2, 2))
    assert norm.eval()(torch.zeros(4, 3, 2, 2)).abs().max() < 1e-2
