"""Networks for optical flow: sizes, gradients, what a pair of images may be, what is the same."""

import pytest
import torch

import equilibria as eq
from equilibria.solve import JacobianFree, Picard, Status, Unrolled
from equilibria.zoo.flow.model.cell import Aggregate, ContextAttention
from equilibria.zoo.flow.model.encoders import BilinearUpsampling, ConvexUpsampling
from flow_tree import MINI
from small_models import ALL, pair

DEQS = ["deq-raft", "deq-gma", "deq-raft-small"]
UNROLLED = ["raft", "gma", "raft-small"]
SMALL = {name: {**ALL[name][1], "context_norm": "none"} for name in [*DEQS, *UNROLLED]}
FEW = {"solver": Picard(max_evals=6), "adjoint": Unrolled()}
"""Some refinements, as an unrolled network makes them: no untrained one has an equilibrium."""


def build(name, **changes):
    torch.manual_seed(0)
    layer = FEW if name in DEQS else {}
    model = eq.models.create(name, **{**SMALL[name], **layer, **changes})
    for module in model.modules():
        if isinstance(module, Aggregate):
            torch.nn.init.constant_(module.gamma, 0.5)
    return model


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("raft", {}, 5_257_536),
        ("raft-small", {}, 990_162),
        ("gma", {}, 5_798_209),
        ("deq-raft", {"weight_norm": False}, 5_241_024),
        ("deq-raft", {}, 5_241_024 + 1_792),
        ("deq-raft", {"size": "B", "start": "context", "weight_norm": False}, 5_257_536),
        ("deq-raft", {"size": "L", "weight_norm": False}, 8_447_360),
        ("deq-raft", {"size": "H", "weight_norm": False}, 12_796_480),
        ("deq-raft", {"size": "H", "head": 512, "weight_norm": False}, 13_391_168),
        ("deq-gma", {"weight_norm": False}, 5_781_697),
    ],
)
def test_sizes_of_the_released_networks(name, options, count):
    with torch.device("meta"):
        model = eq.models.create(name, **options)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("name", SMALL)
def test_both_forms_of_correlation_give_the_same(name):
    models = [build(name, correlation=form).double() for form in ("all-pairs", "on-demand")]
    outputs = [model(pair()).output for model in models]
    torch.testing.assert_close(*outputs)
    grads = [
        torch.autograd.grad(output.square().sum(), list(model.parameters()))
        for model, output in zip(models, outputs, strict=True)
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", SMALL)
def test_batch_mates_change_nothing(name):
    model = build(name).eval()
    first, second = pair(3)
    with torch.no_grad():
        together = model((first, second)).output
        alone = model((first[1:2], second[1:2])).output
    torch.testing.assert_close(together[1:2], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["raft", "deq-raft"])
def test_any_size_is_padded_by_its_edges_and_cut_again(name):
    model = build(name).eval()
    first, second = pair(1, 37, 43)
    padded = [torch.nn.functional.pad(x, (2, 3, 1, 2), mode="replicate") for x in (first, second)]
    with torch.no_grad():
        found = model((first, second)).output
        expected = model(tuple(padded)).output[:, :, 1:-2, 2:-3]
    assert found.shape == (1, 2, 37, 43)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["raft", "deq-raft"])
def test_bytes_are_images_too(name):
    model = build(name).eval()
    images = tuple(each.to(torch.uint8) for each in pair())
    with torch.no_grad():
        found = model(images).output
        assert torch.equal(found, model(tuple(each.float() for each in images)).output)


@pytest.mark.parametrize("name", UNROLLED)
def test_a_network_of_unrolled_weights_takes_the_same_steps(name):
    model = build(name, steps=6).eval()
    expected = model(pair()).output
    options = {"solver": Picard(), "adjoint": Unrolled(max_evals=6)}
    twin = build(f"deq-{name}", start="context", weight_norm=False, **options).eval()
    twin.load_state_dict(
        {key.replace("cell.", "deq.cell.", 1): value for key, value in model.state_dict().items()}
    )
    torch.testing.assert_close(twin(pair()).output, expected)
    operands = twin.inject(pair())
    start = twin.deq.init(*operands)
    assert start[0].abs().max() <= 1 and start[0].abs().sum() > 0
    solution = twin.deq(*operands, z0=start)
    torch.testing.assert_close(twin.answer(solution.value, pair()), expected)


def test_in_training_the_earlier_flows_are_told_oldest_first():
    model = build("raft", steps=3, eval_steps=5)
    prediction = model(pair())
    assert len(prediction.auxiliary) == 2 and prediction.solutions == ()
    for steps, flow in enumerate((*prediction.auxiliary, prediction.output), 1):
        torch.testing.assert_close(build("raft", steps=steps)(pair()).output, flow)
    model.eval()
    with torch.no_grad():
        later = model(pair())
        expected = build("raft", steps=5).eval()(pair()).output
    assert later.auxiliary == ()
    torch.testing.assert_close(later.output, expected)


def test_gradients_pass_from_step_to_step_by_the_hidden_state_alone():
    model = build("raft", steps=2)
    begin = torch.zeros(2, 2, 4, 5, requires_grad=True)
    prediction = model(pair(), flow=begin)
    (gradient,) = torch.autograd.grad(prediction.output.sum(), begin, allow_unused=True)
    assert gradient is None
    moved = model(pair(), flow=begin + 1.0).output
    assert not torch.allclose(moved, prediction.output)


def test_a_solve_starts_from_nothing_or_from_the_frame_before():
    model = build("deq-raft", solver=Picard(max_evals=1), adjoint=JacobianFree()).eval()
    with torch.no_grad():
        hidden, flow = model(pair()).solution.value
        assert hidden.shape == (2, 8, 4, 5) and flow.shape == (2, 2, 4, 5)
        assert not hidden.any() and not flow.any()
        before = torch.randn(2, 8, 4, 5), torch.randn(2, 2, 4, 5)
        prediction = model(pair(), z0=before)
        torch.testing.assert_close(prediction.solution.value, before)
        torch.testing.assert_close(prediction.output, model.readout(before))


def settling(name, **changes):
    """A network whose refinement contracts: the flow is pulled back to a place that h says."""
    solver = eq.Anderson(rtol=1e-5, max_evals=200)
    model = build(name, solver=solver, adjoint=eq.Implicit(), **changes)
    model.deq.cell.register_forward_hook(lambda _, __, z: (z[0], 0.5 * z[1]))
    with torch.no_grad():
        for weight in model.deq.cell.head.parameters():
            weight.mul_(0.1)
    return model


@pytest.mark.parametrize("name", DEQS)
def test_an_equilibrium_is_found_where_there_is_one(name):
    model = settling(name)
    prediction = model(pair(), trace=True, states=(3,))
    solution = prediction.solution
    assert (solution.status == Status.CONVERGED).all()
    after = model.deq.cell(solution.value, *model.inject(pair()))
    torch.testing.assert_close(after, solution.value, rtol=0, atol=1e-3)
    assert model.answer(solution.states[0], pair()).shape == prediction.output.shape
    penalty = eq.stability.jacobian_penalty(solution)
    (prediction.output.square().mean() + penalty).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
    again = model(pair(), z0=solution.value).solution
    assert (again.stats.evals < solution.stats.evals).all()


@pytest.mark.parametrize("form", ["all-pairs", "on-demand"])
def test_samples_that_have_finished_may_leave(form):
    images = pair(3)
    images[0][1] = images[1][1] = 0  # nothing to see: this one has another depth
    with torch.no_grad():
        stay = settling("deq-gma", correlation=form)(images).solution
        leave = settling("deq-gma", correlation=form, drop_finished=True)(images).solution
    assert len(set(stay.stats.evals.tolist())) > 1
    torch.testing.assert_close(leave.value, stay.value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", SMALL)
def test_under_autocast_flows_keep_their_digits(name):
    model = build(name)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        found = model(pair()).output
    with torch.no_grad():
        expected = model(pair()).output
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.2)


def test_detached_lookups_change_a_gradient_of_many_steps_alone():
    for adjoint, same in ((JacobianFree(), True), (eq.Phantom(steps=3), False)):
        grads = []
        for detached in (False, True):
            model = build("deq-raft", detach_lookup=detached, adjoint=adjoint)
            loss = model(pair()).output.square().mean()
            grads.append(torch.autograd.grad(loss, model.deq.cell.head.get_parameter("0.bias")))
        assert torch.allclose(*(each for (each,) in grads)) == same


def test_every_second_solve_of_training_begins_anywhere():
    torch.manual_seed(0)
    model = eq.models.create("deq-raft", **MINI, start_noise=16.0)
    x = pair(batch=8)
    (operands,) = model.inject(x)
    hidden, flow = model.deq.init(operands)
    assert not hidden[::2].any() and not flow[::2].any()
    assert hidden[1::2].abs().amax() <= 1 and hidden[1::2].std() > 0.5
    # 16 pixels are 2 at an eighth of the size: of the whole image, and at each place.
    assert flow[1::2].std((2, 3)).mean() == pytest.approx(2, rel=0.3)
    assert flow[1::2].mean((2, 3)).abs().max() > 0.5
    model.eval()
    assert not any(each.any() for each in model.deq.init(operands))
    plain = eq.models.create("deq-raft", **MINI)
    assert not any(each.any() for each in plain.deq.init(operands))


def test_frozen_batch_normalisation_keeps_its_statistics():
    for frozen in (False, True):
        model = build("raft", context_norm="batch", freeze_norm=frozen).train()
        before = model.scene.context.norm.running_mean.clone()
        model(pair())
        assert torch.equal(model.scene.context.norm.running_mean, before) == frozen
        assert model.scene.context.norm.weight.requires_grad


@pytest.mark.parametrize("name", DEQS)
@pytest.mark.parametrize("form", ["all-pairs", "on-demand"])
def test_memory_of_what_is_computed_once_is_known_before(name, form):
    model = build(name, correlation=form)
    (operands,) = model.inject(pair(2, 37, 43))
    held = sum(each.nbytes for each in operands["correlation"])
    assert model.config.correlation_bytes(2, 37, 43) == held
    attention = operands["attention"].nbytes if name == "deq-gma" else 0
    assert model.config.attention_bytes(2, 37, 43) == attention


IMAGE = torch.zeros(1, 3, 32, 40)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (IMAGE, "of two images: expected a pair .* got Tensor"),
        ((IMAGE,), "of two images"),
        ((IMAGE, "b.png"), "of two images: .* got Tensor and str"),
        ((IMAGE, IMAGE[:, :, :, :-1]), r"same size; got \(1, 3, 32, 40\) and \(1, 3, 32, 39\)"),
        ((IMAGE[:, :1], IMAGE[:, :1]), "RGB images .* repeat a grey channel"),
        ((IMAGE.repeat(1, 2, 1, 1)[:, :4],) * 2, "RGB images .* leave out alpha"),
        ((IMAGE[0], IMAGE[0]), r"\(batch, 3, height, width\), got \(3, 32, 40\)"),
        ((IMAGE.to(torch.uint16),) * 2, "uint8 or floating-point .* got torch.uint16: .* by 257"),
        ((IMAGE.long(), IMAGE.long()), "got torch.int64"),
        ((IMAGE[:0], IMAGE[:0]), "batch is empty"),
        ((IMAGE[:, :, :24],) * 2, "images of 24 x 40 pixels are too small: .* 32 x 32 at least"),
    ],
)
@pytest.mark.parametrize("name", ["raft", "deq-raft"])
def test_what_is_no_pair_of_images_is_refused(name, wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build(name)(wrong)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": "XL"}, "size must be B, L or H; got 'XL'"),
        ({"size": "B", "hidden": 48}, "both say how wide"),
        ({"hidden": 7}, "even number of at least 4; got 7"),
        ({"encoder": "large"}, "encoder must be one of basic, small; got 'large'"),
        ({"context_norm": "group"}, "context_norm must be one of None, batch"),
        ({"upsampling": "nearest"}, "upsampling must be one of convex, bilinear"),
        ({"encoder": "small", "stages": (6, 8, 8)}, "multiples of 4"),
        ({"stages": (8, 8)}, "stages must be three widths"),
        ({"correlation": "none"}, "correlation must be 'all-pairs' or 'on-demand'"),
        ({"levels": 0}, "levels must be at least 1"),
        ({"features": 0}, "features must be positive"),
        ({"start": "random"}, "start must be 'zeros' or 'context'"),
        ({"start_noise": -1.0}, "start_noise must not be negative; got -1"),
    ],
)
def test_an_impossible_field_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        eq.models.create("deq-raft", **fields)
    if not fields.keys() & {"start", "start_noise"}:
        with pytest.raises(ValueError, match=message):
            eq.models.create("raft", **fields)


def test_steps_are_positive_and_an_unrolled_network_solves_nothing():
    with pytest.raises(ValueError, match="steps must be positive"):
        eq.models.create("raft", steps=0)
    with pytest.raises(TypeError, match="no equilibrium layer to take solver"):
        eq.models.create("raft", **MINI, solver=Picard())


def test_attention_brings_the_motion_of_pixels_that_look_alike():
    attention = ContextAttention(2)
    torch.nn.init.dirac_(attention.query_key.weight[:2].data)
    torch.nn.init.dirac_(attention.query_key.weight[2:].data)
    context = torch.zeros(1, 2, 2, 2)
    context[0, 0, 0, 0] = context[0, 0, 1, 1] = context[0, 1, 0, 1] = context[0, 1, 1, 0] = 20.0
    weights = attention(context)
    expected = torch.tensor(
        [[0.5, 0, 0, 0.5], [0, 0.5, 0.5, 0], [0, 0.5, 0.5, 0], [0.5, 0, 0, 0.5]]
    )
    torch.testing.assert_close(weights[0], expected)
    aggregate = Aggregate(2)
    x = torch.randn(1, 2, 2, 2)
    assert torch.equal(aggregate(x, weights), x)
    torch.nn.init.ones_(aggregate.gamma)
    brought = aggregate.value((x + x.flip(2, 3)) / 2)
    torch.testing.assert_close(aggregate(x, weights), x + brought)


def test_upsampling_keeps_a_motion_that_is_the_same_everywhere():
    flow = torch.tensor([1.5, -2.0])[None, :, None, None].expand(2, 2, 5, 6)
    hidden = torch.randn(2, 4, 5, 6)
    convex = ConvexUpsampling(4, 8)(hidden, flow)
    bilinear = BilinearUpsampling()(hidden, flow)
    assert convex.shape == bilinear.shape == (2, 2, 40, 48)
    expected = 8 * flow[:, :, :1, :1].expand(2, 2, 40, 48)
    torch.testing.assert_close(bilinear, expected)
    # At the edges, what lies beyond counts as no motion.
    torch.testing.assert_close(convex[:, :, 8:-8, 8:-8], expected[:, :, 8:-8, 8:-8])


def test_convex_upsampling_lays_each_block_where_its_pixel_is():
    upsampling = ConvexUpsampling(1, 2)
    with torch.no_grad():
        upsampling.mask[2].weight.zero_()
        upsampling.mask[2].bias.copy_(torch.eye(9)[4].repeat_interleave(64) * 400)
    flow = torch.arange(2.0 * 3 * 4).reshape(1, 2, 3, 4)
    fine = upsampling(torch.zeros(1, 1, 3, 4), flow)
    expected = 8 * flow.repeat_interleave(8, 2).repeat_interleave(8, 3)
    torch.testing.assert_close(fine, expected)
