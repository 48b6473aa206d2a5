"""The weight ensembles have the statistics that Agarwala and Schoenholz 2022 give them."""

import math

import pytest
import torch
from torch import nn

from equilibria.nn.init import antisymmetric_, gaussian_, goe_, normal_, orthogonal_

ENSEMBLES = [gaussian_, orthogonal_, goe_]
FILLS = [*ENSEMBLES, antisymmetric_, normal_]


def draw(fill, *shape, scale=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return fill(torch.empty(*shape, dtype=dtype), scale, generator)


def spectral_radius(weight):
    return torch.linalg.eigvals(weight).abs().max().item()


@pytest.mark.parametrize(
    ("fill", "radius", "slack"), [(gaussian_, 1, 0.05), (orthogonal_, 1, 1e-10), (goe_, 2, 0.04)]
)
def test_spectral_radius(fill, radius, slack):
    radii = [spectral_radius(draw(fill, 200, 200, scale=0.7, seed=s)) for s in range(5)]
    assert sum(radii) / 5 == pytest.approx(radius * 0.7, rel=slack)


@pytest.mark.parametrize("fill", ENSEMBLES)
def test_normalised_trace_is_v(fill):
    # V = tr(W^T W), tr the average eigenvalue; for GOE up to the diagonal's O(1 / N).
    weight = draw(fill, 500, 500, scale=0.7)
    assert weight.square().sum().item() / 500 == pytest.approx(0.49, rel=0.02)


@pytest.mark.parametrize("fill", [gaussian_, goe_])
def test_entries_have_the_variances_of_the_ensemble(fill):
    n, weights = 20, torch.stack([draw(fill, 20, 20, scale=1.5, seed=s) for s in range(600)])
    variances = weights.var(0) * n / 1.5**2
    diagonal = 2 if fill is goe_ else 1
    assert variances.diagonal().mean().item() == pytest.approx(diagonal, rel=0.05)
    off = variances[~torch.eye(n, dtype=torch.bool)]
    assert off.mean().item() == pytest.approx(1, rel=0.02)
    assert weights.mean().abs().item() < 0.01
    assert weights[:, 0, 1].pow(4).mean() / weights[:, 0, 1].pow(2).mean() ** 2 == pytest.approx(
        3, rel=0.25
    )


@pytest.mark.parametrize("shape", [(30, 30), (12, 30), (30, 12), (8, 3, 3, 3), (40, 2, 5)])
def test_orthogonal_has_equal_singular_values(shape):
    matrix = draw(orthogonal_, *shape, scale=0.8).flatten(1)
    torch.testing.assert_close(
        torch.linalg.svdvals(matrix), torch.full((min(matrix.shape),), 0.8, dtype=torch.float64)
    )


def test_orthogonal_is_haar():
    # Of a Haar matrix E tr(O)^2 = 1 and E tr(O) = 0; without the sign fix the diagonal is biased.
    traces = torch.stack([draw(orthogonal_, 8, 8, seed=s).trace() for s in range(3000)])
    assert traces.mean().abs().item() < 0.06
    assert traces.square().mean().item() == pytest.approx(1, abs=0.1)
    firsts = torch.stack([draw(orthogonal_, 5, 5, seed=s)[0, 0] for s in range(3000)])
    assert firsts.square().mean().item() == pytest.approx(1 / 5, rel=0.1)


def test_goe_is_symmetric_with_a_semicircle():
    weight = draw(goe_, 600, 600, scale=0.5)
    assert torch.equal(weight, weight.T)
    eigenvalues = torch.linalg.eigvalsh(weight)
    # The semicircle of radius 1: second moment 1/4, fourth moment 1/8.
    assert eigenvalues.square().mean().item() == pytest.approx(1 / 4, rel=0.02)
    assert eigenvalues.pow(4).mean().item() == pytest.approx(1 / 8, rel=0.03)


@pytest.mark.parametrize(("fill", "critical"), [(gaussian_, 1), (orthogonal_, 1), (goe_, 1 / 4)])
def test_linear_network_is_stable_below_the_critical_v(fill, critical):
    for ratio, stable in [(0.8, True), (1.25, False)]:
        weight = draw(fill, 200, 200, scale=math.sqrt(ratio * critical), seed=3)
        assert (spectral_radius(weight) < 1) is stable


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_in_place_seeded_and_of_any_dtype(fill, dtype):
    weight = nn.Parameter(torch.zeros(6, 6, dtype=dtype))
    result = fill(weight, 0.5, torch.Generator().manual_seed(1))
    assert result is weight and weight.requires_grad and weight.grad_fn is None
    assert weight.dtype == dtype and weight.isfinite().all() and weight.abs().sum() > 0
    again = fill(torch.zeros(6, 6, dtype=dtype), 0.5, torch.Generator().manual_seed(1))
    assert torch.equal(weight, again)
    assert not torch.equal(weight, fill(torch.zeros(6, 6, dtype=dtype), 0.5))


@pytest.mark.parametrize("fill", FILLS)
def test_scale_zero_gives_zeros(fill):
    assert torch.equal(draw(fill, 4, 4, scale=0.0), torch.zeros(4, 4, dtype=torch.float64))


def test_convolutions():
    conv = nn.Conv2d(16, 32, 3)
    gaussian_(conv.weight, 1.0, torch.Generator().manual_seed(0))
    assert conv.weight.var().item() == pytest.approx(1 / (16 * 9), rel=0.05)
    place = nn.Conv2d(8, 8, 1)
    goe_(place.weight)
    assert torch.equal(place.weight, place.weight.transpose(0, 1))
    normal_(place.weight, 0.5, torch.Generator().manual_seed(1))
    matrix = draw(normal_, 8, 8, scale=0.5, seed=1, dtype=torch.float32)
    assert torch.equal(place.weight[..., 0, 0], matrix)


@pytest.mark.parametrize(
    ("fill", "weight", "scale", "error", "words"),
    [
        (goe_, torch.empty(3, 4), 1.0, ValueError, r"\(3, 4\)"),
        (goe_, torch.empty(4, 4, 2, 2), 1.0, ValueError, r"\(4, 4, 2, 2\)"),
        (gaussian_, torch.empty(3), 1.0, ValueError, "bias"),
        (orthogonal_, torch.empty(0, 3), 1.0, ValueError, r"\(0, 3\)"),
        (orthogonal_, torch.empty(3, 3), -1.0, ValueError, "-1.0"),
        (gaussian_, torch.empty(3, 3), math.nan, ValueError, "nan"),
        (gaussian_, torch.zeros(3, 3, dtype=torch.int64), 1.0, TypeError, "int64"),
        (orthogonal_, torch.zeros(3, 3, dtype=torch.complex64), 1.0, TypeError, "complex64"),
    ],
)
def test_errors(fill, weight, scale, error, words):
    with pytest.raises(error, match=words):
        fill(weight, scale)


def test_a_computed_weight_is_an_error():
    weight = torch.ones(3, 3, requires_grad=True) * 2
    for computed in (weight, weight[:2], weight.T):
        with pytest.raises(ValueError, match="before normalising"):
            orthogonal_(computed)


@pytest.mark.parametrize("fill", FILLS)
def test_a_part_of_a_parameter_is_filled_as_the_whole_is(fill):
    attention = nn.MultiheadAttention(6, 2)
    before = attention.in_proj_weight.detach().clone()
    _, keys, _ = attention.in_proj_weight.chunk(3)
    for part, rows in ((attention.in_proj_weight[:6], slice(0, 6)), (keys, slice(6, 12))):
        fill(part, 0.5, torch.Generator().manual_seed(1))
        expected = fill(torch.empty(6, 6), 0.5, torch.Generator().manual_seed(1))
        assert torch.equal(attention.in_proj_weight[rows], expected)
    assert torch.equal(attention.in_proj_weight[12:], before[12:])
    assert attention.in_proj_weight.is_leaf and attention.in_proj_weight.requires_grad
