"""Where the doctor draws its lines, and that its advice fits the disease."""

from dataclasses import replace

import pytest
import torch

import equilibria as eq
from equilibria.stability import doctor
from equilibria.stability.examination import BackwardSolves, Bound, DepthPoint, Summary, Training
from equilibria.stability.findings import findings


@pytest.fixture(scope="module")
def healthy():
    weight = torch.nn.Linear(6, 6)
    torch.manual_seed(0)
    torch.nn.init.orthogonal_(weight.weight, gain=0.5)

    class Cell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, z, x):
            return self.weight(z) + x

    return doctor(eq.DEQ(Cell()), torch.randn(5, 6))


def flat(value):
    return Summary(value, value, value, value)


def ended(**shares):
    return {status.name: 0.0 for status in eq.Status} | shares


def radii(radius):
    """What a Jacobian has where every sample has this spectral radius."""
    everywhere = flat(radius)
    return {"spectral_radius": everywhere, "solved": everywhere, "expanding": float(radius >= 1)}


def bound(adjoint, lipschitz, forward, sigma):
    error = (adjoint + lipschitz * forward) / sigma
    found = Bound(
        forward=forward,
        adjoint=adjoint,
        sigma_min=flat(sigma),
        lipschitz=flat(lipschitz),
        error=flat(error),
        measured=flat(error / 10),
    )
    return {"bound": found}


def depth(figure, *points):
    """A readout that gives this figure in the end, and these after one evaluation and more."""
    rows = [
        DepthPoint(evals=k, distance=0.5 / k, figure=each) for k, each in enumerate(points, start=1)
    ]
    return {"points": rows, "figure": figure}


def case(topic, severity, advice="", adjoint="", **parts):
    """A topic, how severe it is, what is advised; the adjoint; what is changed in which part."""
    return pytest.param(
        topic, severity, advice, adjoint, parts, id=f"{topic}: {advice or severity}"
    )


SOLVES = BackwardSolves(status=ended(CONVERGED=0.96), evals=flat(9), residual=flat(0.1))
ERROR = {"rtol": 1e-3, "error": flat(0.016)}
CASES = [
    case("Convergence", "healthy", forward={"status": ended(CONVERGED=1.0)}),
    case("Error of the state", "healthy", forward=ERROR | {"error": flat(0.014)}),
    case("Error of the state", "watch", "longest one that is stable", forward=ERROR),
    case("Error of the state", "healthy", forward=ERROR | {"limit": 0.1}),
    case("Error of the state", "healthy", forward=ERROR | {"rtol": 0.0}),
    case(
        "Convergence",
        "watch",
        "Raise max_evals",
        forward={"status": ended(CONVERGED=0.96, MAX_EVALS=0.04)},
    ),
    *(
        case(
            "Convergence",
            "unhealthy",
            advice,
            forward={"status": ended(CONVERGED=0.94, STALLED=0.06), "residual": flat(residual)},
        )
        for residual, advice in ((2.5e-3, "bfloat16"), (0.3, "Broyden"))
    ),
    case(
        "Convergence",
        "unhealthy",
        "NaN",
        forward={"status": ended(CONVERGED=0.98, MAX_EVALS=0.015, NONFINITE=0.005)},
    ),
    case("Contraction", "healthy", jacobian=radii(0.89)),
    case("Contraction", "watch", "spectral_norm", jacobian=radii(0.91)),
    case("Contraction", "watch", "ignores z", jacobian=radii(0.01), forward={"evals": flat(3)}),
    case("Contraction", "watch", "jacobian_penalty", jacobian=radii(1.2)),
    case(
        *("Contraction", "unhealthy", "Implicit backward", "Implicit(linear=Neumann(rtol=0.001))"),
        jacobian=radii(1.2),
    ),
    case(
        "Cost",
        "watch",
        "Raise max_evals",
        forward={"status": ended(CONVERGED=1.0), "evals": flat(41), "max_evals": 50},
    ),
    *(
        case("Gradient's bound", severity, advice, gradient=bound(*parts))
        for severity, advice, parts in (
            ("healthy", "", (1e-3, 1, 1e-3, 0.5)),
            ("healthy", "adjoint's rtol could be 3e-3 instead of 0.0001", (1e-4, 10, 1e-3, 0.5)),
            ("healthy", "an adjoint tolerance of 1e-2", (1e-3, 0.01, 1e-3, 0.5)),
            ("watch", "rtol of the adjoint's solver to 1e-2", (0.1, 1, 1e-3, 0.5)),
            ("watch", "rtol of the forward solver to 2e-3", (1e-4, 10, 1e-2, 0.5)),
            ("watch", "close to singular", (1e-3, 1, 1e-3, 0.01)),
            ("watch", "jacobian_penalty", (1e-3, 1, 1e-3, float("nan"))),
        )
    ),
    case("Sensitivity", "healthy", jacobian={"stretch": flat(0.99)}),
    case("Sensitivity", "watch", "amplified", jacobian={"stretch": flat(1.01)}),
    case("Uniqueness", "watch", "contraction", starts={"apart": 0.04, "distance": flat(0.5)}),
    case("Uniqueness", "unhealthy", "begin", starts={"apart": 0.06, "distance": flat(0.5)}),
    case("Uniqueness", "watch", "good start", starts={"converged": 0.9}),
    case("Gradient", "healthy", gradient={"cosine": 0.991}),
    case("Gradient", "watch", "rtol", gradient={"cosine": 0.991, "norm_ratio": 0.9}),
    case("Gradient", "watch", "NeumannPhantom", "JacobianFree()", gradient={"cosine": 0.95}),
    case(
        *("Gradient", "watch", "equilibria gradients", "AdaptiveAdjoint(min_cosine=0.5)"),
        gradient={"cosine": 0.9},
    ),
    case("Gradient", "unhealthy", "more steps", "Phantom(steps=5)", gradient={"cosine": 0.85}),
    case("Gradient", "unhealthy", "no fixed point", gradient={"reference": 1e-3}),
    case("Gradient", "unhealthy", "Convergence", gradient={"cosine": float("nan")}),
    case("Backward solve", "watch", "max_evals", gradient={"backward": SOLVES}),
    case("Depth", "watch", "ordinary", depth=depth(0.969, 0.96)),
    case("Depth", "healthy", "stop after 2 evaluations", depth=depth(0.97, 0.9, 0.968)),
]


@pytest.mark.parametrize(("topic", "severity", "advice", "adjoint", "parts"), CASES)
def test_severity_and_advice(healthy, topic, severity, advice, adjoint, parts):
    changed = {part: replace(getattr(healthy, part), **new) for part, new in parts.items()}
    found = find(replace(healthy, **changed, adjoint=adjoint or healthy.adjoint))[topic]
    assert found.severity == severity, found
    assert advice in found.advice and found.sentence.endswith(".")


def test_the_worst_comes_first(healthy):
    sick = replace(healthy, gradient=replace(healthy.gradient, cosine=0.5))
    sick = replace(sick, jacobian=replace(sick.jacobian, **radii(0.95)))
    severities = [finding.severity for finding in findings(sick)]
    assert severities[:3] == ["unhealthy", "watch", "healthy"]


ADVICE = [
    # how it was trained; spectral radius; what is advised
    (None, 1.2, "add eq.stability.jacobian_penalty(sol) to the loss"),
    (Training(), 1.2, "regularizer.name: JacobianPenalty, regularizer.gamma: 1"),
    (Training(gamma=2.0), 1.2, "regularizer.gamma from 2 to 4,"),
    (Training(gamma=2.0), 0.95, "regularizer.gamma from 2 to 3,"),
    (Training(gamma=2.0, probability=0.3), 0.95, "or regularizer.probability from 0.3 to 0.6"),
]


@pytest.mark.parametrize(("training", "radius", "advice"), ADVICE)
def test_the_advice_fits_the_training(healthy, training, radius, advice):
    jacobian = replace(healthy.jacobian, **radii(radius))
    told = find(replace(healthy, jacobian=jacobian, training=training))["Contraction"]
    assert told.severity == "watch" and advice in told.advice


@pytest.mark.parametrize(("mean", "said"), [(10.9, False), (11.1, True)])
def test_a_budget_that_was_not_held(healthy, mean, said):
    forward = replace(healthy.forward, evals=flat(mean), max_evals=100)
    found = find(replace(healthy, forward=forward, training=Training(gamma=1.0, budget=10.0)))
    assert ("Cost" in found) == said
    assert not said or "over the budget of 10" in found["Cost"].sentence


def test_where_nothing_converged_no_solution_is_spoken_of(healthy):
    forward = replace(healthy.forward, status=ended(MAX_EVALS=1.0), residual=flat(0.3))
    gradient = replace(healthy.gradient, reference=0.1)
    shallow = replace(healthy.depth, **depth(0.9, 0.5))
    found = find(replace(healthy, forward=forward, gradient=gradient, depth=shallow))
    said = {topic: f"{finding.sentence} {finding.advice}" for topic, finding in found.items()}
    assert said["Convergence"].startswith("0 of 5 samples reached")
    assert "No solve converged" in said["Contraction"]
    assert found["Contraction"].severity == "watch"
    assert "attracts" not in said["Contraction"]
    assert "where the solver stops" in said["Depth"]
    assert "no exact gradient" in said["Gradient"] and "cosine" not in said["Gradient"]
    assert not any("at the solution" in text for text in said.values())


def test_some_of_the_samples_are_spoken_of_as_some(healthy):
    forward = replace(healthy.forward, status=ended(CONVERGED=0.4, STALLED=0.6))
    jacobian = replace(healthy.jacobian, spectral_radius=flat(0.8), solved=flat(0.4))
    found = find(replace(healthy, forward=forward, jacobian=jacobian))
    said = found["Contraction"].sentence
    assert "At the solutions of the 40 % of the samples that converged" in said
    assert "0.40 on average" in said and "over all samples" in said and "0.80 on average" in said
    assert found["Convergence"].sentence.startswith("2 of 5 samples reached")


def test_weights_that_are_no_numbers_are_all_there_is_to_say(healthy):
    found = findings(replace(healthy, broken=["a", "b", "c", "d", "e"]))
    assert [each.topic for each in found] == ["Weights"] and found[0].severity == "unhealthy"
    assert "(a, b, c and 2 more)" in found[0].sentence


@pytest.mark.parametrize(
    ("precision", "rtol", "stalled", "said"),
    [
        ("bf16", 1e-3, 0.75, True),
        ("bf16", 5e-3, 0.75, False),
        ("bf16", 1e-3, 0.0, False),
        ("fp16", 1e-4, 0.1, True),
        ("float32", 1e-3, 0.75, False),
    ],
)
def test_a_tolerance_below_the_rounding_of_training_is_named(
    healthy, precision, rtol, stalled, said
):
    status = ended(CONVERGED=1 - stalled, STALLED=stalled)
    training = Training(precision=precision, status=status)
    forward = replace(healthy.forward, rtol=rtol)
    found = find(replace(healthy, forward=forward, training=training))
    assert ("Precision" in found) == said
    if said:
        sentence, advice = found["Precision"].sentence, found["Precision"].advice
        assert "ended short" in sentence and f"{rtol:g}" in sentence
        assert "solver.rtol" in advice and "precision to float32" in advice


@pytest.mark.parametrize(
    ("first", "final", "chance", "said", "advised"),
    [
        (0.0, 0.0, 0.0, "no better than", "Train it further"),
        (0.11, 0.11, 0.12, "no better than", "Train it further"),
        (0.9, 0.901, 0.1, "hardly uses its depth", "an ordinary layer would do as well"),
        (0.9, 0.6, 0.1, "make it worse", "the solver and the tolerance in use"),
        (0.5, 0.9, 0.1, "the depth is used", ""),
    ],
)
def test_what_is_said_of_depth_depends_on_what_was_learnt(
    healthy, first, final, chance, said, advised
):
    learnt = replace(healthy.depth, **depth(final, first), chance=chance)
    found = find(replace(healthy, depth=learnt))["Depth"]
    assert said in found.sentence and advised in found.advice
    assert ("ordinary" in found.advice) == ("ordinary" in advised)


def find(examination):
    return {finding.topic: finding for finding in findings(examination)}
