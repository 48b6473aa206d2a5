"""Random normal matrices have the spectrum that they are given, and Haar eigenvectors."""

import pytest
import torch

from equilibria.nn.init import normal_
from equilibria.nn.init.normal import disk


def draw(n, scale=1.0, seed=0, spectrum=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return normal_(torch.empty(n, n, dtype=dtype), scale, generator, spectrum)


def ordered(values):
    """By real part, then by imaginary part, to 9 digits."""
    pairs = [(round(v.real, 9), round(v.imag, 9)) for v in values.tolist()]
    return torch.tensor(sorted(pairs), dtype=torch.float64)


SPECTRA = {
    "pairs and reals": torch.tensor([0.5 + 1j, -2.0, 0.5 - 1j, 0.25, 3j, -3j]),
    "all real": torch.linspace(-1, 1, 7),
    "twice the same": torch.tensor([1j, 1j, -1j, -1j, 2.0, 2.0]),
    "one": torch.tensor([0.3]),
    "of a matrix": torch.linalg.eigvals(
        torch.randn(21, 21, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    ),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_the_spectrum_is_the_one_given(name):
    spectrum = SPECTRA[name].to(torch.complex128)
    weight = draw(len(spectrum), 0.5, spectrum=spectrum)
    spectrum = spectrum / spectrum.abs().square().mean().sqrt()
    torch.testing.assert_close(weight @ weight.T, weight.T @ weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        ordered(torch.linalg.eigvals(weight)), ordered(0.5 * spectrum), rtol=0, atol=1e-8
    )
    torch.testing.assert_close(
        torch.linalg.svdvals(weight).sort().values, 0.5 * spectrum.abs().sort().values
    )


def test_a_list_and_a_function_are_spectra_too():
    listed = draw(3, spectrum=[1, 2j, -2j])
    assert listed.square().sum().item() / 3 == pytest.approx(1)
    assert torch.equal(listed, draw(3, spectrum=torch.tensor([1, 2j, -2j], dtype=torch.complex128)))
    asked = []

    def ring(n, generator):
        asked.append((n, generator.initial_seed()))
        return torch.polar(torch.ones(n), torch.arange(n) * 2 * torch.pi / n)

    weight = draw(8, 0.7, seed=5, spectrum=ring)
    assert asked == [(8, 5)]
    torch.testing.assert_close(  # orthogonal
        weight @ weight.T, 0.49 * torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("n", [1, 2, 400, 401])
def test_the_usual_spectrum_is_a_disk_of_mean_square_one(n):
    values = disk(n, torch.Generator().manual_seed(0))
    assert values.shape == (n,) and values.abs().max() <= 2**0.5
    assert values.sum().imag.abs() < 1e-12
    if n > 2:
        modulus = values.abs()
        assert modulus.square().mean().item() == pytest.approx(1, rel=0.06)
        assert modulus.pow(4).mean().item() == pytest.approx(4 / 3, rel=0.12)
        weight = draw(n, 0.5)
        assert weight.square().sum().item() / n == pytest.approx(0.25, rel=0.06)


@pytest.mark.parametrize("factor", [1e-200, 1e-3, 40.0, 1e200])
def test_a_spectrum_is_given_up_to_a_factor(factor):
    spectrum = torch.tensor([1, 0.5 + 2j, 0.5 - 2j, 0], dtype=torch.complex128)
    found = draw(4, 0.7, spectrum=factor * spectrum)
    torch.testing.assert_close(found, draw(4, 0.7, spectrum=spectrum), rtol=1e-9, atol=0)
    assert found.square().sum().item() / 4 == pytest.approx(0.49)
    drawn = draw(4, 0.7, spectrum=lambda n, generator: factor * spectrum)
    torch.testing.assert_close(drawn, found)


def test_eigenvectors_are_haar():
    # With the spectrum (1, -1, 0, 0), of mean square 1/2, W_11 = sqrt(2) (q_1^2 - q_2^2) for a
    # uniform unit vector q, of mean square 4 E q_1^4 - 4 E q_1^2 q_2^2 = 4 (3 - 1) / (n (n + 2)).
    spectrum = torch.tensor([1.0, -1.0, 0.0, 0.0])
    weights = torch.stack([draw(4, seed=s, spectrum=spectrum) for s in range(800)])
    assert weights.mean(0).abs().max().item() < 0.04
    assert weights.square().mean(0).diagonal().mean().item() == pytest.approx(8 / 24, rel=0.12)
    # Of a pair, the plane is Haar-distributed and so is the sense of its turn.
    turns = torch.stack([draw(4, seed=s, spectrum=[1j, -1j, 0, 0])[0, 1] for s in range(800)])
    assert turns.mean().abs().item() < 0.06
    assert turns.square().mean().item() == pytest.approx(4 / 12, rel=0.12)


def test_without_a_device_of_values():
    assert normal_(torch.empty(4, 4, device="meta")).shape == (4, 4)


@pytest.mark.parametrize(
    ("shape", "spectrum", "words"),
    [
        ((3, 4), None, "3 x 4 as a matrix"),
        ((4, 4, 3), None, "4 x 12 as a matrix"),
        ((3, 3), torch.ones(2), r"has 3 eigenvalues, and the spectrum has shape \(2,\)"),
        ((3, 3), torch.ones(3, 1), r"shape \(3, 1\)"),
        ((3, 3), [1, 1j, 1j], "conjugate"),
        ((3, 3), [1, 1j, -2j], "conjugate"),
        ((4, 4), [1j, 1j, -1j, -2j], "conjugate"),
        ((3, 3), [1j, 1, 1], "conjugate"),
        ((2, 2), [0, 0], "all eigenvalues of this one are zero"),
        ((2, 2), [1, float("nan")], "not finite"),
        ((2, 2), [1, complex(0, float("inf"))], "not finite"),
    ],
)
def test_errors(shape, spectrum, words):
    weight = torch.ones(shape)
    with pytest.raises(ValueError, match=words):
        normal_(weight, spectrum=spectrum)
    assert torch.equal(weight, torch.ones(shape))
