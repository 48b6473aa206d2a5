"""Ways to run f, the same for all."""

import functools

import pytest
import torch

from equilibria.run.bench.problems import build, in_mode


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
