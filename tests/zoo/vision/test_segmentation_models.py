"""Networks for segmentation: heads, sizes, windows, scales."""

import itertools
from dataclasses import replace

import pytest
import torch

import equilibria as eq
from equilibria.zoo.vision.model.mdeq import MDEQ
from equilibria.zoo.vision.model.segmentation import MDEQSegmentationConfig, MultiScale, Tiled

SMALL = MDEQSegmentationConfig(
    channels=(8, 16), expansion=2, groups=4, shape=(3, 24, 32), classes=5, projection=False
)
CALM = replace(SMALL, norm="none", initial=0.05)
"""A cell that converges before it is trained."""
IMAGES = torch.rand(2, 3, 24, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize(
    ("channels", "expansion", "millions"),
    [
        ((32, 64, 128, 256), 5, 8.97),
        ((80, 160, 320, 640), 5, 55.96),
        ((88, 176, 352, 704), 6, 79.55),
    ],
)
def test_sizes_of_the_released_models(channels, expansion, millions):
    options = {"channels": channels, "expansion": expansion, "halvings": 2, "affine": True}
    with torch.device("meta"):
        model = MDEQSegmentationConfig(shape=(3, 512, 1024), classes=19, **options).build()
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == millions


@pytest.mark.parametrize("halvings", [0, 1])
def test_logits_are_as_fine_as_the_highest_resolution(halvings):
    config = replace(SMALL, halvings=halvings, shape=(3, 23, 31))
    model = config.build().eval()
    prediction = model(torch.rand(2, 3, 23, 31))
    sizes = config.sizes(23, 31)
    assert prediction.output.shape == (2, 5, *sizes[0])
    assert [z.shape[2:] for z in prediction.solution.value] == sizes


def test_the_head_of_the_highest_resolution_reads_it_alone():
    for resolutions, reads in (("all", True), ("highest", False)):
        head = replace(SMALL, resolutions=resolutions).build().eval().head
        z = [torch.rand(1, 8, 6, 8), torch.rand(1, 16, 3, 4)]
        other = [z[0], z[1] + torch.rand(1, 16, 3, 4)]
        assert bool((head(z) != head(other)).any()) is reads


def test_several_heads_read_one_equilibrium():
    model = replace(SMALL, heads=("masks", "presence")).build().eval()
    prediction = model(IMAGES)
    assert len(prediction.solutions) == 1
    states = prediction.solution.value
    assert prediction.output["presence"].shape == (2, 5)
    assert prediction.output["masks"].shape == (2, 5, 24, 32)
    for name, value in prediction.output.items():
        assert torch.equal(value, model.head.get_submodule(name)(states))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": ("masks", "masks")}, "heads must be masks, presence or both"),
        ({"heads": ()}, "heads must be"),
        ({"heads": ("boxes",)}, "boxes"),
        ({"resolutions": "lowest"}, "'all' or 'highest'"),
        ({"head_channels": (2, 2, 2)}, "head_channels have a number for each resolution"),
    ],
)
def test_impossible_heads_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        replace(SMALL, **options)


@pytest.mark.parametrize("name", ["unet", "mdeq-segmentation-unrolled"])
def test_explicit_networks_take_any_size(name):
    options = {"unet": {"widths": (4, 8, 16)}, "mdeq-segmentation-unrolled": {"layers": 2}}[name]
    model = eq.models.create(name, shape=(3, 24, 32), classes=4, **options).eval()
    for size in ((24, 32), (17, 29)):
        assert model(torch.rand(1, 3, *size)).output.shape == (1, 4, *size)
    with pytest.raises(ValueError, match="takes no carry"):
        model(torch.rand(1, 3, 24, 32), carry=())


def test_windows_agree_with_the_whole_image_where_the_receptive_field_is_smaller():
    # Two applications of a block of two 3x3 convolutions behind a stem of two see 6 pixels; the
    # fusion with the lower resolution, once in each, some more.
    model = eq.models.create(
        "mdeq-segmentation-unrolled",
        channels=(8, 8),
        expansion=2,
        layers=2,
        norm="none",
        initial=0.2,
        shape=(3, 32, 32),
        classes=4,
        projection=False,
    ).eval()
    images = torch.rand(1, 3, 96, 120, generator=torch.Generator().manual_seed(1))
    whole = model(images).output
    tiled = Tiled(model, size=(88, 88), overlap=72)(images).output
    narrow = Tiled(model, size=(24, 24), overlap=4)(images).output
    scale = whole.abs().max()
    assert (tiled - whole).abs().max() < 1e-5 * scale
    assert (narrow - whole).abs().max() > 1e-3 * scale


def test_windows_of_an_equilibrium_agree_within_the_tolerance():
    model = CALM.build(solver=eq.Anderson(rtol=1e-5, max_evals=100)).eval()
    images = torch.rand(1, 3, 64, 80, generator=torch.Generator().manual_seed(2))
    whole = model(images)
    tiled = Tiled(model, size=(56, 64), overlap=48)(images)
    assert bool((whole.solution.status == eq.Status.CONVERGED).all())
    assert len(tiled.solutions) > 1
    assert (tiled.output - whole.output).abs().max() < 1e-3 * whole.output.abs().max()


@pytest.mark.parametrize(
    ("length", "window", "overlap", "stride"),
    [(100, 32, 8, 4), (33, 32, 16, 8), (64, 64, 0, 1), (1001, 97, 13, 8), (40, 64, 8, 8)],
)
def test_weights_of_windows_are_one_everywhere(length, window, overlap, stride):
    tiled = Tiled(SMALL.build(), size=(window, window), overlap=overlap, stride=stride)
    spans = tiled.spans(length, window)
    total = torch.zeros(length, dtype=torch.float64)
    for (begin, end), weight in zip(spans, tiled.weights(spans, length), strict=True):
        total[begin:end] += weight
    assert torch.allclose(total, torch.ones_like(total))
    assert all(begin % stride == 0 for begin, _ in spans)
    assert all(window <= end - begin < window + stride or length < window for begin, end in spans)
    assert all(end - begin >= overlap for (_, end), (begin, _) in itertools.pairwise(spans))
    assert spans[0][0] == 0 and spans[-1][1] == length


def test_windows_that_cannot_overlap_are_refused():
    with pytest.raises(
        ValueError, match=r"cannot overlap by 16 .* or an overlap between 0 and \d+$"
    ):
        Tiled(SMALL.build(), size=(16, 16), overlap=16)
    with pytest.raises(
        ValueError, match=r"cannot overlap by 0 .* take windows of at least (\d+) x \1$"
    ):
        Tiled(SMALL.build(), size=(1, 1), overlap=0)


def test_one_scale_is_the_network_itself():
    model = SMALL.build().eval()
    plain, scaled = model(IMAGES).output, MultiScale(model)(IMAGES).output
    assert torch.allclose(scaled, plain.log_softmax(1), atol=1e-5)


def test_mirrored_images_make_the_answer_symmetric():
    model = MultiScale(CALM.build().eval(), scales=(0.5, 1.0), mirrored=True, warm=False)
    one, other = model(IMAGES), model(IMAGES.flip(-1))
    assert len(one.solutions) == 4
    assert torch.allclose(one.output, other.output.flip(-1), atol=1e-4)


def test_a_coarser_scale_starts_the_next():
    solver = eq.Anderson(rtol=1e-4, max_evals=100)
    model = CALM.build(solver=solver).eval()
    assert isinstance(model, MDEQ)
    found = {}
    for warm in (False, True):
        found[warm] = MultiScale(model, scales=(1.0, 1.01), mirrored=True, warm=warm)(IMAGES)
    evals = {warm: sum(int(s.stats.evals.sum()) for s in p.solutions) for warm, p in found.items()}
    assert evals[True] < evals[False]
    assert torch.allclose(found[True].output, found[False].output, atol=1e-2)


@pytest.mark.parametrize("windows", [False, True])
def test_no_scale_is_too_small_for_the_network(windows):
    model = eq.models.create("unet", shape=(3, 8, 8), classes=2, widths=(4, 8)).eval()
    inner = Tiled(model, size=(8, 8), overlap=2) if windows else model
    found = MultiScale(inner, scales=(0.01, 1.0))(torch.rand(1, 3, 20, 20)).output
    assert found.shape == (1, 2, 20, 20) and found.isfinite().all()


def test_scales_are_checked():
    with pytest.raises(ValueError, match="scales must be positive"):
        MultiScale(SMALL.build(), scales=(0.5, 0.0))
