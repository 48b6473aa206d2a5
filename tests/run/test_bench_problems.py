"""The problems are what their names say, in each way to run f."""

import functools

import pytest
import torch

from equilibria.run.bench.problems import PROBLEMS, build, in_mode, usual

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


# --- ways to run f, the same for all --------------------------------------------------------------


@pytest.fixture(scope="module")
def problem():
    return build("tanh-128x8", device="cpu", dtype=torch.float32)


def test_autocast_stays_inside_f(problem):
    z = problem.z0 + 0.1
    rounded = in_mode(problem, "eager", torch.bfloat16).image(z)
    assert rounded.dtype == torch.float32
    difference = (rounded - problem.image(z)).abs().max()
    assert 0 < difference < 0.05


def test_eager_is_f_itself(problem):
    assert in_mode(problem, "eager").f is problem.f


def test_what_cannot_be_is_refused(problem):
    with pytest.raises(ValueError, match="need a CUDA device; the problem is on cpu"):
        in_mode(problem, "graphs")
    with pytest.raises(ValueError, match="unknown mode 'fast'; there are eager, compiled, graphs"):
        in_mode(problem, "fast")


@pytest.mark.device
def test_a_graph_of_f_is_f():
    problem = build("tanh-128x8", device="cuda", dtype=torch.float32)
    graphed = in_mode(problem, "graphs")
    with torch.no_grad():
        first, second = problem.z0 + 0.1, problem.z0 - 0.2
        images = [graphed.image(first), graphed.image(second)]
        torch.testing.assert_close(images, [problem.image(first), problem.image(second)])
        part = graphed.f(first[:3], problem.operands[0][:3])
        torch.testing.assert_close(part, problem.image(first)[:3])


def test_each_problem_is_compiled_for_its_own_size(monkeypatch):
    sizes = []

    def backend(graph, inputs):
        sizes.extend(each for each in inputs if not isinstance(each, torch.Tensor))
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    for batch in (8, 64, 256):
        problem = build(f"tanh-128x{batch}", device="cpu", dtype=torch.float32)
        compiled = in_mode(problem, "compiled")
        torch.testing.assert_close(compiled.image(problem.z0), problem.image(problem.z0))
    assert not sizes  # else a graph takes sizes as inputs
