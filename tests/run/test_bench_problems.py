"""The problems are what their names say."""

import pytest
import torch

from equilibria.run.bench.problems import PROBLEMS, build, usual

SMALL = [n for n in PROBLEMS if not n.startswith("large-") and "2048" not in n and "64x32" not in n]


def made(name):
    return build(name, device="cpu", dtype=torch.float64)


@pytest.mark.parametrize("name", SMALL)
def test_a_problem_is_the_same_each_time_and_keeps_its_samples_apart(name):
    problem, again = made(name), made(name)
    assert problem.name == name
    torch.manual_seed(0)
    z = torch.rand_like(problem.z0) - 0.5
    image = problem.image(z)
    assert image.shape == z.shape
    assert torch.equal(image, again.image(z))
    part = slice(1, 3)
    alone = problem.f(z[part], *(x[part] for x in problem.operands))
    torch.testing.assert_close(alone, image[part])


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("linear-")])
def test_linear_maps_have_the_radius_and_the_kind_they_are_named_after(name):
    problem = made(name)
    _, kind, radius = name.split("-")
    (b,) = problem.operands
    zero = torch.zeros(b.shape[1], b.shape[1], dtype=torch.float64)
    a = problem.f(torch.eye(b.shape[1], dtype=torch.float64), zero).T
    eigenvalues = torch.linalg.eigvals(a)
    assert float(eigenvalues.abs().max()) == pytest.approx(float(radius), rel=1e-3)
    normal = torch.allclose(a @ a.T, a.T @ a, atol=1e-10)
    symmetric = torch.allclose(a, a.T, atol=1e-12)
    square = torch.eye(len(a), dtype=torch.float64) * float(radius) ** 2
    assert symmetric == (kind in ("symmetric", "semidefinite"))
    assert normal == (kind != "nonnormal")
    assert torch.allclose(a @ a.T, square, atol=1e-10) == (kind == "orthogonal")
    assert (float(eigenvalues.real.min()) > -1e-10) == (kind == "semidefinite")


@pytest.mark.parametrize("hard", [1, 8, 32])
def test_so_many_samples_are_hard(hard):
    problem = made(f"hard-{hard}-of-64")
    _, radius = problem.operands
    assert problem.drop_finished
    assert int((radius > 0.9).sum()) == hard


def test_large_problems_are_for_a_gpu():
    assert not any(name.startswith("large-") for name in usual("cpu"))
    assert usual("cuda") == list(PROBLEMS)
