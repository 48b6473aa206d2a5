"""Correlation of features: its values, its two forms, its derivatives, its limits."""

import math

import pytest
import torch
from torch.func import jvp, vmap

from equilibria.zoo.flow.model.correlation import AllPairs, OnDemand, correlation, products

FORMS = [AllPairs, OnDemand]


def drawn(*shape, seed=0, scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=dtype)


def features(batch=2, channels=5, height=9, width=8, dtype=torch.float64):
    shape = batch, channels, height, width
    return drawn(*shape, seed=1, dtype=dtype), drawn(*shape, seed=2, dtype=dtype)


def sampled(image, x, y):
    """The bilinear value of an image (height, width) at a place, 0 outside."""
    total = 0.0
    for j in (math.floor(y), math.floor(y) + 1):
        for i in (math.floor(x), math.floor(x) + 1):
            if 0 <= j < image.shape[0] and 0 <= i < image.shape[1]:
                total += float(image[j, i]) * (1 - abs(x - i)) * (1 - abs(y - j))
    return total


@pytest.mark.parametrize("form", FORMS)
def test_a_lookup_is_what_the_equation_says(form):
    first, second = features()
    method = form(levels=2, radius=1)
    flow = drawn(2, 2, 9, 8, seed=3, scale=3.0)
    found = method.lookup(method.pyramid(first, second), flow)
    assert found.shape == (2, 18, 9, 8)
    for sample, row, column in [(0, 0, 0), (1, 8, 7), (0, 4, 5), (1, 3, 2)]:
        x, y = column + flow[sample, 0, row, column], row + flow[sample, 1, row, column]
        channel = 0
        for level in range(2):
            image = torch.nn.functional.avg_pool2d(second[sample], 2**level)
            image = torch.einsum("c,cij->ij", first[sample, :, row, column], image) / 5**0.5
            for right in (-1, 0, 1):
                for down in (-1, 0, 1):
                    expected = sampled(image, x / 2**level + right, y / 2**level + down)
                    assert float(found[sample, channel, row, column]) == pytest.approx(expected)
                    channel += 1


@pytest.mark.parametrize("levels", [1, 3])
def test_both_forms_have_the_same_values_and_gradients(levels):
    first, second = features(height=11, width=9)
    flow, weight = drawn(2, 2, 11, 9, seed=3, scale=4.0), None
    results = []
    for form in FORMS:
        inputs = [each.clone().requires_grad_() for each in (first, second, flow)]
        method = form(levels=levels, radius=2)
        found = method.lookup(method.pyramid(*inputs[:2]), inputs[2])
        weight = drawn(*found.shape, seed=4)
        once = torch.autograd.grad((found * weight).sum(), inputs, create_graph=True)
        twice = torch.autograd.grad(sum(g.square().sum() for g in once), inputs)
        results.append([found, *once, *twice])
    for all_pairs, on_demand in zip(*results, strict=True):
        torch.testing.assert_close(on_demand, all_pairs)
        assert all_pairs.abs().sum() > 0


def test_both_forms_agree_in_single_precision():
    first, second = features(1, 256, 20, 24, dtype=torch.float32)
    flow = drawn(1, 2, 20, 24, seed=3, scale=6.0, dtype=torch.float32)
    values = [m.lookup(m.pyramid(first, second), flow) for m in (AllPairs(), OnDemand())]
    torch.testing.assert_close(*values, rtol=0, atol=1e-4)
    assert values[0].shape[1] == AllPairs().channels == 324


@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_is_that_of_finite_differences(form):
    first, second = features(1, 3, 4, 4)
    flow = drawn(1, 2, 4, 4, seed=3)
    method = form(levels=2, radius=1)
    inputs = tuple(each.requires_grad_() for each in (first, second, flow))
    assert torch.autograd.gradcheck(
        lambda u, v, f: method.lookup(method.pyramid(u, v), f), inputs, fast_mode=True
    )


@pytest.mark.parametrize("form", FORMS)
def test_forward_derivatives_and_vmap(form):
    first, second = features(1, 3, 5, 4)
    method = form(levels=2, radius=1)
    flow, along = drawn(1, 2, 5, 4, seed=3), drawn(1, 2, 5, 4, seed=4)

    def looked(u, v, f):
        return method.lookup(method.pyramid(u, v), f).sin()

    inputs, tangents = (first, second, flow), (second, first, along)
    value, change = jvp(looked, inputs, tangents)
    assert torch.equal(value, looked(*inputs))
    small = 1e-6
    ahead = looked(*(a + small * b for a, b in zip(inputs, tangents, strict=True)))
    torch.testing.assert_close(change, (ahead - value) / small, rtol=1e-4, atol=1e-4)
    stacked = vmap(looked, in_dims=(None, None, 0))(first, second, torch.stack([flow, along]))
    torch.testing.assert_close(stacked[1], looked(first, second, along))


def test_products_are_gathered_in_parts(monkeypatch):
    a, b = drawn(7, 3, seed=1).requires_grad_(), drawn(5, 3, seed=2).requires_grad_()
    index = torch.randint(5, (7, 4), generator=torch.Generator().manual_seed(0))
    whole = torch.autograd.grad(products(a, b, index).square().sum(), (a, b))
    monkeypatch.setattr("equilibria.zoo.flow.model.correlation._NUMBERS", {"cpu": 30})
    value = products(a, b, index)
    torch.testing.assert_close(value, torch.einsum("ic,ikc->ik", a, b[index]))
    torch.testing.assert_close(torch.autograd.grad(value.square().sum(), (a, b)), whole)
    assert torch.autograd.gradgradcheck(lambda a, b: products(a, b, index), (a, b))


@pytest.mark.parametrize("form", FORMS)
def test_far_outside_there_is_nothing_and_what_is_not_finite_stays_so(form):
    first, second = features()
    method = form(levels=2, radius=1)
    pyramid = method.pyramid(first, second)
    flow = torch.zeros(2, 2, 9, 8, dtype=torch.float64)
    flow[0, 0, 0, 0], flow[0, 1, 1, 0], flow[0, 0, 2, 0] = 1e30, -1e6, math.nan
    found = method.lookup(pyramid, flow)
    assert (found[0, :, 0, 0] == 0).all() and (found[0, :, 1, 0] == 0).all()
    assert found[0, :, 2, 0].isnan().all()
    assert found[0, :, 3:].isfinite().all() and found[1].isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_samples_do_not_meet(form):
    first, second = features(3)
    method, flow = form(levels=2, radius=2), drawn(3, 2, 9, 8, seed=3, scale=2.0)
    together = method.lookup(method.pyramid(first, second), flow)
    alone = method.lookup(method.pyramid(first[1:2], second[1:2]), flow[1:2])
    torch.testing.assert_close(together[1:2], alone)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("levels", "height", "width"), [(4, 16, 23), (3, 8, 9), (1, 2, 2)])
def test_memory_is_known_before(form, levels, height, width):
    method = form(levels=levels, radius=3)
    pyramid = method.pyramid(*features(2, 6, height, width, torch.float32))
    assert method.bytes(2, height, width, 6) == sum(each.nbytes for each in pyramid)


def test_memory_of_a_film_frame():
    assert AllPairs().bytes(1, 135, 240, 256) == pytest.approx(5.6e9, rel=0.01)
    assert OnDemand().bytes(1, 135, 240, 256) < 1e8


@pytest.mark.parametrize("form", FORMS)
def test_a_coarsest_level_under_2_pixels_is_refused(form):
    with pytest.raises(ValueError, match=r"coarsest of 4 .* 15 x 40 .* 1 x 5 pixels, and needs 2"):
        form().pyramid(torch.zeros(1, 2, 15, 40), torch.zeros(1, 2, 15, 40))
    form().pyramid(torch.zeros(1, 2, 16, 16), torch.zeros(1, 2, 16, 16))


def test_what_is_no_correlation_is_refused():
    with pytest.raises(ValueError, match="'all-pairs' or 'on-demand'; got 'sparse'"):
        correlation("sparse", 4, 4)
    with pytest.raises(ValueError, match="levels must be at least 1; got 0"):
        correlation("all-pairs", 0, 4)
    with pytest.raises(ValueError, match="radius must not be negative; got -1"):
        correlation("on-demand", 1, -1)
    with pytest.raises(ValueError, match="same shape"):
        AllPairs().pyramid(torch.zeros(1, 2, 16, 16), torch.zeros(1, 2, 16, 17))


def test_half_precision_features_are_correlated_in_full():
    first, second = features(1, 8, 4, 4, torch.float32)
    method = AllPairs(levels=2, radius=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pyramid = method.pyramid(first.bfloat16(), second.bfloat16())
        found = method.lookup(pyramid, torch.zeros(1, 2, 4, 4))
    expected = method.pyramid(first.bfloat16().float(), second.bfloat16().float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(pyramid, expected)
