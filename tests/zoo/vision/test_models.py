"""Models of images: their solves, sizes, fields and inputs."""

import pytest
import torch

from equilibria.run import models
from equilibria.solve import Anderson, Implicit, JacobianFree, Picard
from equilibria.zoo.vision.model.explicit import BasicBlock
from small_models import ALL, images

SMALL = {name: ALL[name][1] for name in ("dense", "conv", "mdeq", "monotone", "monotone-dense")}
EXPLICIT = {
    name: ALL[name][1] for name in ("mdeq-unrolled", "resnet", "neural-ode", "augmented-neural-ode")
}


@pytest.fixture(params=SMALL)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    torch.manual_seed(0)
    return models.create(name, **SMALL[name], solver=Anderson(rtol=1e-5))


@pytest.fixture
def x():
    return images()


def test_the_value_is_a_fixed_point_of_the_cell(model, x):
    operands = model.inject(x)
    solution = model(x).solution
    assert (solution.stats.evals > 3).all()
    z = solution.value
    torch.testing.assert_close(model.deq.cell(z, *operands), z, rtol=0, atol=1e-4)


def test_states_are_read_out_as_the_solution_is(model, x):
    prediction = model.eval()(x, states=(1, 100))
    first, last = prediction.solution.states
    assert not torch.equal(model.readout(first), prediction.output)
    torch.testing.assert_close(model.readout(last), prediction.output)


def test_a_warm_start_takes_fewer_evaluations(model, x):
    cold = model(x).solution
    warm = model(x, warm=cold).solution
    assert (warm.stats.evals < cold.stats.evals).all()


@pytest.mark.parametrize("name", ["mdeq", *EXPLICIT])
def test_there_is_no_memory_to_carry(name):
    fields = {**SMALL, **EXPLICIT}[name]
    with pytest.raises(ValueError, match="takes no carry"):
        models.create(name, **fields)(torch.zeros(5, 1, 8, 8), carry=())


def test_options_of_the_layer_arrive(name):
    options = {"solver": Picard(), "eval_solver": Anderson(), "adjoint": JacobianFree()}
    deq = models.create(name, **SMALL[name], **options, drop_finished=True).deq
    assert (deq.solver, deq.eval_solver, deq.adjoint) == tuple(options.values())
    assert deq.drop_finished
    assert models.create(name, **SMALL[name]).deq.adjoint == Implicit()


def test_an_unknown_model_or_field_names_the_nearest():
    with pytest.raises(ValueError, match="no model 'dens'; did you mean 'dense'"):
        models.create("dens")
    with pytest.raises(TypeError, match="'dense' has no field 'widht'; did you mean 'width'"):
        models.create("dense", widht=3)


IMPOSSIBLE = [
    *(("dense", bad, "") for bad in ({"width": 0}, {"bound": 0.0}, {"scale": -1.0})),
    *(("conv", bad, "") for bad in ({"groups": 3}, {"stride": 0}, {"bound": -0.1})),
    ("monotone", {"m": 0.0}, "m must be positive"),
    *(("monotone", bad, "") for bad in ({"channels": ()}, {"squares": 0})),
    ("monotone", {"channels": (2, 2, 2, 2), "shape": (1, 4, 4)}, "8 x 8: take larger images, or"),
    ("monotone-dense", {"width": 0}, ""),
    ("monotone-dense", {"m": -1.0}, "m must be positive"),
    *(("resnet", bad, "") for bad in ({"widths": (8, 16, 32)}, {"blocks": (1, 0)})),
    *(("resnet", bad, "") for bad in ({"widths": (), "blocks": ()}, {"stem": "none"})),
    *(("neural-ode", bad, "") for bad in ({"filters": 0}, {"rtol": 0.0}, {"max_evals": 0})),
    ("neural-ode", {"augment": -1}, ""),
    ("augmented-neural-ode", {"augment": 0}, ""),
    ("mdeq", {"shape": (3, 3, 8), "channels": (4,) * 3, "head_channels": (2,) * 3}, "needs 4 x 4"),
    ("mdeq", {"shape": (3, 8, 8), "halvings": 3}, "needs 16 x 16"),
    ("mdeq", {"head_channels": (2,)}, "got 2 and 1"),
    ("mdeq", {"channels": (4, 5), "norm": "group"}, r"2 groups of \(4, 5\)"),
    ("mdeq", {"channels": ()}, "channels must be positive"),
    ("mdeq", {"dropout": 1.0}, r"\[0, 1\)"),
    *(("mdeq", bad, "") for bad in ({"halvings": -1}, {"initial": 0.0})),
    ("mdeq", {"final": 0}, "final must be positive; got 0"),
    ("mdeq", {"classes": 0}, "classes must be positive"),
    ("unet", {"shape": (3, 24, 32), "classes": 4, "widths": (4, 0)}, "widths must be positive"),
]


@pytest.mark.parametrize(("name", "bad", "words"), IMPOSSIBLE, ids=str)
def test_an_impossible_field_is_refused(name, bad, words):
    with pytest.raises(ValueError, match=words or next(iter(bad))):
        models.create(name, **{**{**SMALL, **EXPLICIT}.get(name, {}), **bad})


SIZES = [
    # He et al. 2016 as torchvision builds it, Dupont et al. 2019, who name 172K for both networks,
    # and the usual U-Net; the others as documented.
    ("resnet", {"stem": "imagenet", "shape": (3, 224, 224), "classes": 1000}, 11_689_512),
    ("resnet", {"shape": (3, 32, 32)}, 11_173_962),
    ("resnet", {"shape": (3, 32, 32), "widths": (8, 16, 32, 64)}, 176_402),
    ("resnet", {"widths": (8, 16, 32), "blocks": (2, 2, 2)}, 44_370),
    ("neural-ode", {"shape": (3, 32, 32), "filters": 125}, 173_611),
    ("neural-ode", {}, 45_712),
    ("augmented-neural-ode", {"shape": (3, 32, 32), "filters": 64, "augment": 10}, 172_452),
    ("augmented-neural-ode", {}, 43_748),
    ("monotone", {"channels": (48,)}, 50_508),
    ("monotone", {"channels": (16, 32)}, 40_432),
    ("monotone-dense", {"width": 60}, 53_952),
    ("unet", {"shape": (3, 64, 64), "classes": 2}, 31_037_698),
]


@pytest.mark.parametrize(("name", "config", "count"), SIZES)
def test_it_has_the_documented_number_of_parameters(name, config, count):
    with torch.device("meta"):
        model = models.create(name, **{"shape": (3, 16, 16), "classes": 10, **config})
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [7, 8, 28])
def test_the_grid_is_what_the_stem_makes_of_an_image(size, stride):
    model = models.create("conv", shape=(1, size, size), stride=stride, channels=8)
    (u,) = model.inject(torch.zeros(2, 1, size, size))
    assert u.shape[2:] == model.config.grid


def test_the_dense_cell_contracts_whatever_its_weights():
    model = models.create("dense", width=16, bound=0.9)
    with torch.no_grad():
        for weight in model.deq.cell.parameters():
            weight.mul_(100.0)
    assert torch.linalg.matrix_norm(model.deq.cell.linear.weight, 2) <= 0.9 + 1e-5


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(2, 4, 8, 8), torch.zeros(3, 8, 8), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)],
    ids=["channels", "one-image", "bytes"],
)
@pytest.mark.parametrize("name", ["mdeq", *EXPLICIT, "monotone", "monotone-dense"])
def test_what_is_no_batch_of_images_is_refused(name, wrong):
    model = models.create(name, **{**{**SMALL, **EXPLICIT}[name], "shape": (3, 8, 8)})
    with pytest.raises(ValueError, match=r"expected images \(batch, 3, height, width\)"):
        model(wrong)


def test_an_explicit_network_has_no_solution():
    prediction = models.create("resnet", **EXPLICIT["resnet"])(torch.zeros(2, 1, 8, 8))
    with pytest.raises(ValueError, match="solves for nothing"):
        _ = prediction.solution


# --- ResNet ---------------------------------------------------------------------------------------


RESNET = {"classes": 3, "widths": (4, 8), "blocks": (1, 2)}


@pytest.mark.parametrize(
    ("stem", "size", "places"),
    [
        ("cifar", (1, 1), (1, 1)),
        ("cifar", (8, 8), (4, 4)),
        ("cifar", (7, 9), (4, 5)),
        ("imagenet", (32, 32), (4, 4)),
        ("imagenet", (1, 5), (1, 1)),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "x".join(map(str, value)),
)
def test_the_grid_halves_as_it_should_at_any_size(stem, size, places):
    model = models.create("resnet", shape=(3, *size), stem=stem, **RESNET).eval()
    x = torch.randn(2, 3, *size)
    assert model.body(model.stem(x)).shape == (2, 8, *places)
    prediction = model(x)
    assert prediction.output.shape == (2, 3) and prediction.solutions == ()


def test_a_block_with_silent_convolutions_is_its_shortcut():
    block = BasicBlock(4, 4, 1).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.rand(2, 4, 5, 5)
    torch.testing.assert_close(block(x), x)


@pytest.mark.parametrize(("side", "last"), [(32, True), (64, False)])
def test_few_channels_on_many_places_lie_where_backward_is_safe(side, last):
    """Kernels of 8 channels: oneDNN's backward with channels last ends the process at 48 x 48."""
    model = models.create("resnet", shape=(3, 32, 32), classes=3, widths=(8, 16), blocks=(1, 1))
    seen = []
    model.stem.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs))
    model(torch.rand(2, 3, side, side)).output.sum().backward()
    assert seen[0].is_contiguous(memory_format=torch.channels_last) is last
    assert all(bool(torch.isfinite(each.grad).all()) for each in model.parameters())
