"""Where the doctor draws its lines, and that its advice fits the disease."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import equilibria as eq
from equilibria.stability import Examination, doctor
from equilibria.stability.examination import Backward, DepthPoint, Summary
from equilibria.stability.findings import findings


@pytest.fixture(scope="module")
def healthy() -> Examination:
    weight = torch.nn.Linear(6, 6)
    torch.manual_seed(0)
    torch.nn.init.orthogonal_(weight.weight, gain=0.5)

    class Cell(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.weight(z) + x

    return doctor(eq.DEQ(Cell()), torch.randn(5, 6))


def flat(value: float) -> Summary:
    return Summary(value, value, value, value)


def statuses(**shares: float) -> dict[str, float]:
    return {status.name: 0.0 for status in eq.Status} | shares


CASES: list[tuple[str, str, dict[str, Any], str, str, str]] = [
    # topic; part of the examination and what is changed in it; adjoint; severity; advice
    ("Convergence", "forward", {"status": statuses(CONVERGED=1.0)}, "", "healthy", ""),
    (
        "Convergence",
        "forward",
        {"status": statuses(CONVERGED=0.96, MAX_EVALS=0.04)},
        "",
        "watch",
        "Raise max_evals",
    ),
    (
        "Convergence",
        "forward",
        {"status": statuses(CONVERGED=0.94, STALLED=0.06), "residual": flat(2.5e-3)},
        "",
        "unhealthy",
        "bfloat16",
    ),
    (
        "Convergence",
        "forward",
        {"status": statuses(CONVERGED=0.94, STALLED=0.06), "residual": flat(0.3)},
        "",
        "unhealthy",
        "Broyden",
    ),
    (
        "Convergence",
        "forward",
        {"status": statuses(CONVERGED=0.98, MAX_EVALS=0.015, NONFINITE=0.005)},
        "",
        "unhealthy",
        "NaN",
    ),
    ("Contraction", "jacobian", {"spectral_radius": flat(0.89)}, "", "healthy", ""),
    ("Contraction", "jacobian", {"spectral_radius": flat(0.91)}, "", "watch", "spectral_norm"),
    ("Contraction", "jacobian", {"spectral_radius": flat(0.01)}, "", "watch", "ignores z"),
    (
        "Contraction",
        "jacobian",
        {"spectral_radius": flat(1.2), "expanding": 1.0},
        "",
        "watch",
        "Smaller",
    ),
    (
        "Contraction",
        "jacobian",
        {"spectral_radius": flat(1.2), "expanding": 1.0},
        "Implicit(linear=Neumann(rtol=0.001))",
        "unhealthy",
        "Implicit backward",
    ),
    ("Sensitivity", "jacobian", {"stretch": flat(0.99)}, "", "healthy", ""),
    ("Sensitivity", "jacobian", {"stretch": flat(1.01)}, "", "watch", "amplified"),
    ("Uniqueness", "starts", {"apart": 0.04, "distance": flat(0.5)}, "", "watch", "contraction"),
    ("Uniqueness", "starts", {"apart": 0.06, "distance": flat(0.5)}, "", "unhealthy", "begin"),
    ("Uniqueness", "starts", {"converged": 0.9}, "", "watch", "good start"),
    ("Gradient", "gradient", {"cosine": 0.991}, "", "healthy", ""),
    ("Gradient", "gradient", {"cosine": 0.991, "norm_ratio": 0.9}, "", "watch", "rtol"),
    ("Gradient", "gradient", {"cosine": 0.95}, "JacobianFree()", "watch", "NeumannPhantom"),
    ("Gradient", "gradient", {"cosine": 0.85}, "Phantom(steps=5)", "unhealthy", "more steps"),
    ("Gradient", "gradient", {"reference": 1e-3}, "", "unhealthy", "no fixed point"),
    ("Gradient", "gradient", {"cosine": float("nan")}, "", "unhealthy", "Convergence"),
    (
        "Backward solve",
        "gradient",
        {"backward": Backward(status=statuses(CONVERGED=0.96), evals=flat(9), residual=flat(0.1))},
        "",
        "watch",
        "max_evals",
    ),
    (
        "Depth",
        "depth",
        {"points": [DepthPoint(evals=1, distance=0.5, accuracy=0.96)], "accuracy": 0.969},
        "",
        "watch",
        "ordinary",
    ),
    (
        "Depth",
        "depth",
        {
            "points": [
                DepthPoint(evals=1, distance=0.5, accuracy=0.9),
                DepthPoint(evals=2, distance=0.1, accuracy=0.968),
            ],
            "accuracy": 0.97,
        },
        "",
        "healthy",
        "2 evaluations come within",
    ),
]


@pytest.mark.parametrize(("topic", "part", "changes", "adjoint", "severity", "advice"), CASES)
def test_severity_and_advice(
    healthy: Examination,
    topic: str,
    part: str,
    changes: dict[str, Any],
    adjoint: str,
    severity: str,
    advice: str,
) -> None:
    sick = replace(healthy, **{part: replace(getattr(healthy, part), **changes)})
    if adjoint:
        sick = replace(sick, adjoint=adjoint)
    found = {finding.topic: finding for finding in findings(sick)}[topic]
    assert found.severity == severity, found
    assert advice in found.advice and found.sentence.endswith(".")


def test_the_worst_comes_first(healthy: Examination) -> None:
    sick = replace(healthy, gradient=replace(healthy.gradient, cosine=0.5))
    sick = replace(sick, jacobian=replace(sick.jacobian, spectral_radius=flat(0.95)))
    severities = [finding.severity for finding in findings(sick)]
    assert severities[:3] == ["unhealthy", "watch", "healthy"]
