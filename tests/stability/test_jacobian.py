"""Spectral radius and Jacobian norm against dense linear algebra."""

import math

import pytest
import torch

from equilibria.solve import shared
from equilibria.stability.jacobian import JacobianOperator, jacobian_norm, spectral_radius

WIDTH = 60


def gaussian():
    return torch.randn(WIDTH, WIDTH) / math.sqrt(WIDTH)


def orthogonal():
    return torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q


def with_eigenvalues(values):
    q = orthogonal()
    return q @ torch.diag(values) @ q.T


def rotation_pair():
    """The dominant eigenvalues are a complex pair: plain power iteration has no limit."""
    block = torch.diag(torch.linspace(0.0, 0.5, WIDTH))
    block[:2, :2] = torch.tensor([[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]])
    q = orthogonal()
    return q @ block @ q.T


def triangular():
    strict = torch.triu(torch.randn(WIDTH, WIDTH), 1) / math.sqrt(WIDTH)
    return strict + torch.diag(torch.linspace(-1.0, 1.0, WIDTH))


def nilpotent():
    return torch.diag(torch.ones(WIDTH - 1), 1)


# The last number is the relative error that the docstring promises for 40 products.
MATRICES = {
    "symmetric": (lambda: (lambda g: g + g.T)(gaussian()), 0.01),
    "semi-definite": (lambda: (lambda g: g @ g.T)(gaussian()), 0.01),
    "both signs": (
        lambda: with_eigenvalues(torch.cat([torch.tensor([1.0, -1.0]), torch.rand(WIDTH - 2) / 2])),
        1e-3,
    ),
    "orthogonal": (orthogonal, 0.01),
    "cyclic shift": (lambda: torch.roll(torch.eye(WIDTH), 1, 0), 0.01),
    "rotation pair": (rotation_pair, 1e-3),
    "Gaussian": (gaussian, 0.03),
    "triangular": (triangular, 0.1),
    "rank one": (lambda: torch.outer(torch.randn(WIDTH), torch.randn(WIDTH)), 0.01),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MATRICES)
def test_radius_agrees_with_dense_eigenvalues(name, dtype):
    torch.manual_seed(0)
    make, tolerance = MATRICES[name]
    matrices = torch.stack([scale * make() for scale in (0.1, 0.9, 3.0)]).to(dtype)
    expected = torch.linalg.eigvals(matrices.double()).abs().amax(1)
    z = torch.zeros(3, WIDTH, dtype=dtype)
    found = spectral_radius(lambda z, a: torch.einsum("bij,bj->bi", a, z), z, matrices)
    assert found.dtype == dtype and not found.requires_grad
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=0)


def test_far_from_normal_is_overestimated_never_missed():
    z = torch.zeros(1, WIDTH)
    found = spectral_radius(lambda z: z @ nilpotent().T, z)
    assert 0 < found < 1.01  # the radius is 0, but the shift passes 40 evaluations undamped


def test_radius_of_a_tanh_net_is_that_at_the_point():
    torch.manual_seed(1)
    weight = 2 * gaussian().double()
    z = torch.randn(4, WIDTH, dtype=torch.float64)

    def f(z, bias):
        return torch.tanh(z @ weight.T + bias)

    bias = torch.randn(WIDTH, dtype=torch.float64)
    dense = torch.stack([torch.func.jacrev(f)(row, bias) for row in z])
    expected = torch.linalg.eigvals(dense).abs().amax(1)
    found = spectral_radius(f, z, shared(bias), iterations=80)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0)
    norms = torch.linalg.matrix_norm(dense)
    torch.testing.assert_close(
        jacobian_norm(f, z, shared(bias), samples=400), norms, rtol=0.05, atol=0
    )


def test_trees_count_as_one_state():
    torch.manual_seed(2)
    matrix = gaussian().double()
    cut = 24

    def whole(z):
        return z @ matrix.T

    def split(z):
        out = whole(torch.cat([z["a"].flatten(1), z["b"]], 1))
        return {"a": out[:, :cut].reshape(-1, 4, 6), "b": out[:, cut:]}

    z = torch.randn(2, WIDTH, dtype=torch.float64)
    tree = {"a": z[:, :cut].reshape(-1, 4, 6), "b": z[:, cut:]}
    torch.testing.assert_close(spectral_radius(split, tree), spectral_radius(whole, z))
    torch.testing.assert_close(jacobian_norm(split, tree), jacobian_norm(whole, z))


def test_a_small_state_is_exact():
    matrix = torch.tensor([[0.0, 2.0], [-0.5, 0.0]], dtype=torch.float64)  # eigenvalues +-i
    z = torch.zeros(1, 2, dtype=torch.float64)
    found = spectral_radius(lambda z: z @ matrix.T, z, iterations=8)
    torch.testing.assert_close(found, torch.ones(1, dtype=torch.float64))


def test_samples_do_not_meet():
    z = torch.randn(3, 5)
    scales = torch.tensor([[0.2], [float("nan")], [0.0]])
    found = spectral_radius(lambda z, s: s * z, z, scales)
    torch.testing.assert_close(found, torch.tensor([0.2, float("nan"), 0.0]), equal_nan=True)


def test_a_constant_map_has_radius_zero():
    z = torch.randn(3, 5)
    assert (spectral_radius(lambda z, x: x, z, torch.ones(3, 5)) == 0).all()
    assert (jacobian_norm(lambda z, x: x, z, torch.ones(3, 5)) == 0).all()


def test_a_leaf_that_f_ignores():
    z = (torch.randn(2, 3), torch.randn(2, 3))
    found = spectral_radius(lambda z: (0.5 * z[0], torch.ones(2, 3)), z)
    torch.testing.assert_close(found, torch.full((2,), 0.5))


def test_coupled_batch_is_one_sample():
    torch.manual_seed(3)
    mix = with_eigenvalues(torch.linspace(0.0, 0.8, WIDTH))
    z = torch.randn(WIDTH, 2)
    found = spectral_radius(lambda z: mix @ z, z, coupled=True)
    assert found.shape == (1,)
    torch.testing.assert_close(found, torch.tensor([0.8]), rtol=0.01, atol=0)


def test_global_random_state_is_untouched():
    before = torch.get_rng_state()
    spectral_radius(lambda z: z, torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: spectral_radius(lambda z: z, z, iterations=3), "iterations is 3"),
        (lambda z: jacobian_norm(lambda z: z, z, samples=0), "samples is 0"),
        (lambda z: spectral_radius(lambda z: z[:, :1], z), "returned shapes"),
        (lambda z: spectral_radius(lambda z: (z, z), z), "returned shapes"),
    ],
)
def test_misuse_is_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.ones(2, 3))


@pytest.mark.parametrize("made", [False, True], ids=["given", "made there"])
def test_inference_mode_does_not_matter(made):
    torch.manual_seed(4)
    weight = gaussian()
    with torch.inference_mode(made):
        z, bias = torch.randn(3, WIDTH), torch.randn(3, WIDTH)

    def f(z, bias):
        return torch.tanh(z @ weight.T + bias) * bias

    expected = spectral_radius(f, z, bias), jacobian_norm(f, z, bias)
    assert min(map(torch.min, expected)) > 0.1
    with torch.inference_mode():
        assert torch.equal(spectral_radius(f, z, bias), expected[0])
        assert torch.equal(jacobian_norm(f, z, bias), expected[1])
        operator = JacobianOperator(f, z, (bias,), coupled=False)
        v, u = torch.randn(2, 3, WIDTH).unbind(0)
        product = (operator.direct(v) * u).sum(1)
        torch.testing.assert_close(product, (v * operator.apply_transpose(u)).sum(1))
        assert torch.is_inference_mode_enabled()


def test_a_weight_made_in_inference_mode_is_refused():
    with torch.inference_mode():
        weight = gaussian()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        spectral_radius(lambda z: z @ weight.T, torch.ones(2, WIDTH))
