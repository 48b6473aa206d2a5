"""What plain iteration does, on maps where that is known, and what the doctor advises then."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import equilibria as eq
from equilibria.stability import doctor
from equilibria.stability.examination import PlainIteration, Summary, Training
from equilibria.stability.examine import _iterate_plainly
from equilibria.stability.examined import Patient
from equilibria.stability.findings import findings
from equilibria.stability.fixed_points import Settled
from equilibria.stability.plain_iteration import (
    BUDGET,
    GROWTH,
    KINDS,
    Behaviour,
    PlainPath,
    classify,
    record_path,
)

WIDTH = 60


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def chain(width: int, gain: float = 1.0) -> Tensor:
    """All eigenvalues are 0: what enters leaves at the other end."""
    return gain * torch.diag(torch.ones(width - 1, dtype=torch.float64), 1)


def linear(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    c = draw(3, len(matrix))
    return lambda z: z @ matrix + c


TURN = torch.linalg.qr(draw(WIDTH, WIDTH, seed=1))[0]
EYE = torch.eye(WIDTH, dtype=torch.float64)
ONE = torch.zeros(3, 600, dtype=torch.float64).index_fill_(1, torch.tensor([0]), 1.0)
SYMMETRIC = TURN @ torch.diag(torch.linspace(-0.6, 0.6, WIDTH, dtype=torch.float64)) @ TURN.T


def rotation(angle: float, radius: float) -> Callable[[Tensor], Tensor]:
    cos, sin = radius * math.cos(angle), radius * math.sin(angle)
    matrix = torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
    return lambda z: z @ matrix + 1.0


def logistic(r: float) -> Callable[[Tensor], Tensor]:
    return lambda z: r * (z + 0.3) * (0.7 - z) - 0.3


FAST, FRONT, SLOW, DRIFTS, WANDERS, DIVERGES = map(
    Behaviour, ("converges", "front", "slow", "drifts", "wanders", "diverges")
)
MAPS = [
    # what, its width, the map, what it does
    ("shift", WIDTH, linear(chain(WIDTH)), Behaviour("front", evals=61)),
    ("growing shift", WIDTH, linear(chain(WIDTH, 1.2)), Behaviour("front", evals=61)),
    ("turned shift", WIDTH, linear(TURN @ chain(WIDTH) @ TURN.T), Behaviour("front", evals=61)),
    ("longer shift", 600, linear(chain(600)), FRONT),
    ("single signal", 600, lambda z: z @ chain(600) + ONE, FRONT),
    ("flip", WIDTH, linear(-1.0001 * EYE), Behaviour("cycle", period=2)),
    ("rotation", 2, rotation(2 * math.pi / 5, 1.0001), Behaviour("cycle", period=5)),
    ("between 12 and 13", 2, rotation(2 * math.pi / 12.3, 1.0), Behaviour("cycle", period=12)),
    ("logistic 2", 5, logistic(3.2), Behaviour("cycle", period=2)),
    ("logistic 4", 5, logistic(3.5), Behaviour("cycle", period=4)),
    ("logistic chaos", 5, logistic(3.9), WANDERS),
    ("saturated chaos", WIDTH, lambda z: (40 * z @ TURN + 0.3).tanh(), WANDERS),
    ("sawtooth chaos", WIDTH, lambda z: (1.9 * z @ TURN + 0.1).frac(), WANDERS),
    ("radius 1.3", WIDTH, linear(1.3 * EYE), DIVERGES),
    ("rotation 1.3", WIDTH, linear(1.3 * TURN), DIVERGES),
    ("radius 1.02", WIDTH, linear(1.02 * EYE), DIVERGES),
    ("not finite", WIDTH, lambda z: z.exp().exp() + 1, DIVERGES),
    ("drift", 5, lambda z: z + 1.0, DRIFTS),
    ("drift that grows", 5, lambda z: 1.0001 * z + 1.0, DRIFTS),
    ("drift with a turn", 2, lambda z: z + torch.tensor([1.0, 0.0]) + 0.05 * z.sin(), DRIFTS),
    ("radius .999", WIDTH, linear(0.999 * EYE), SLOW),
    ("radius -.995", WIDTH, linear(-0.995 * EYE), SLOW),
    ("radius .99 turning", WIDTH, linear(0.99 * TURN), SLOW),
    ("radius .5", WIDTH, linear(0.5 * EYE), Behaviour("converges", evals=14)),
    ("symmetric", WIDTH, linear(SYMMETRIC), FAST),
]


def run(f: Callable[[Tensor], Tensor], z: Tensor, **options: float) -> PlainPath:
    layer = eq.DEQ(lambda z: f(z))
    nobody = torch.zeros(len(z), dtype=torch.bool)
    return record_path(Settled(layer, z, (), nobody), **{"rtol": 1e-4, **options})


@pytest.mark.parametrize(("name", "width", "f", "expected"), MAPS, ids=[each[0] for each in MAPS])
def test_each_map_is_told_from_the_others(name, width, f, expected):
    path = run(
        f,
        0.1 * draw(3, width, seed=2)
        if "chaos" in name or "log" in name
        else torch.zeros(3, width, dtype=torch.float64),
    )
    for found in classify(path):
        assert found.kind == expected.kind, found
        if expected is not FAST:
            assert found.period == expected.period
            assert expected.evals is None or found.evals == expected.evals
    assert path.step.shape == path.size.shape == path.distance.shape == path.arrived.shape
    assert len(path.gap) == len(path.step) <= BUDGET


def test_samples_are_told_apart_by_themselves():
    radius = torch.tensor([[0.5], [0.999], [1.3], [-1.0]], dtype=torch.float64)
    found = classify(run(lambda z: radius * z + 1.0, torch.zeros(4, 7, dtype=torch.float64)))
    assert [each.kind for each in found] == ["converges", "slow", "diverges", "cycle"]


def test_a_path_ends_with_its_last_sample():
    radius = torch.tensor([[0.5], [0.8]], dtype=torch.float64)
    path = run(lambda z: radius * z + 1.0, torch.zeros(2, 7, dtype=torch.float64))
    evals = [each.evals for each in classify(path)]
    assert evals[0] < evals[1] == len(path.step) < 60
    path = run(lambda z: 10.0 * z + 1.0, torch.zeros(2, 7, dtype=torch.float64))
    top = GROWTH * path.step[0]
    assert (path.step[-2] <= top).all() and (path.step[-1] > top).all()
    assert len(run(lambda z: -z + 1.0, torch.zeros(1, 7), budget=33).step) == 33


def test_batch_mates_do_not_matter():
    """Not how long they take, nor what rounding does to a sample after its end."""
    matrices = torch.stack([0.5 * EYE, 0.999 * EYE, chain(WIDTH), 1.3 * TURN, -EYE, EYE])
    u = draw(1, WIDTH)

    def at(matrices: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda z: (z[:, None] @ matrices)[:, 0] + u

    together = classify(run(at(matrices), torch.zeros(6, WIDTH, dtype=torch.float64)))
    alone = [
        classify(run(at(each[None]), torch.zeros(1, WIDTH, dtype=torch.float64)))[0]
        for each in matrices
    ]
    assert together == alone
    kinds = ["converges", "slow", "front", "diverges", "cycle", "drifts"]
    assert [each.kind for each in together] == kinds
    # The shares that have arrived are counted up to a sample's own end.
    shift, whole = matrices[2:3], run(at(matrices), torch.zeros(6, WIDTH, dtype=torch.float64))
    short = run(at(shift), torch.zeros(1, WIDTH, dtype=torch.float64))
    end = int(short.evals[0])
    assert torch.equal(short.arrived[:end, 0], whole.arrived[:end, 2])


def test_distances_are_to_iterates_of_longer_and_longer_ago():
    path = run(lambda z: z + 1.0, torch.zeros(1, 1, dtype=torch.float64), budget=10)
    assert path.gap.tolist() == [1, 1, 2, 1, 2, 3, 4, 1, 2, 3]
    assert torch.equal(path.distance[:, 0], path.gap.double())


def test_what_comes_to_rest_is_counted_as_it_does():
    path = run(linear(chain(100)), torch.zeros(3, 100, dtype=torch.float64))
    shares = path.arrived
    assert (shares.diff(dim=0) >= 0).all() and (shares[:21] == 0).all()
    assert (shares[-1] > 0.3).all() and (shares[-1] < 1).all()


def test_trees_and_coupled_samples_are_iterated_too():
    layer = eq.DEQ(lambda z: (z[1], -z[0]), coupled=True)
    z = draw(4, 3), draw(4, 3, seed=5)
    path = record_path(Settled(layer, z, (), torch.zeros(1, dtype=torch.bool)), 1e-4)
    assert path.step.shape[1] == 1
    assert classify(path) == [Behaviour("cycle", period=4)]


# --- the doctor -----------------------------------------------------------------------------------


class Cell(nn.Module):
    def __init__(self, matrix: Tensor, tanh: bool = False) -> None:
        super().__init__()
        self.matrix = nn.Parameter(matrix.float())
        self.tanh = tanh

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        image = z @ self.matrix + x
        return image.tanh() if self.tanh else image


def find(examination, topic="Convergence"):
    return next(each for each in findings(examination) if each.topic == topic)


EXAMINED = [
    # the matrix of the cell, whether bounded; the solver; kind, what is said, what is advised
    (
        chain(100),
        False,
        eq.Anderson(),
        "front",
        "through the state",
        "Picard(patience=None, max_ev",
    ),
    (-1.5 * EYE, True, eq.Picard(), "cycle", "in a cycle", "Anderson(), or Picard(damping=0.5)"),
    (1.3 * EYE, False, eq.Picard(), "diverges", "drives the state apart", "NewtonKrylov(), or Pic"),
    (EYE, False, eq.Picard(), "drifts", "in one direction without end", "has no fixed point"),
    (0.999 * EYE, False, eq.Picard(), "slow", "converges slowly", "Raise max_evals, take Anderson"),
    (
        0.9 * EYE,
        False,
        eq.Picard(max_evals=9),
        "converges",
        "converges in",
        "max_evals to 101",
    ),
]


@pytest.mark.parametrize(("matrix", "tanh", "solver", "kind", "said", "advice"), EXAMINED)
@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")
def test_the_doctor_says_what_the_path_does(matrix, tanh, solver, kind, said, advice):
    examination = doctor(eq.DEQ(Cell(matrix, tanh), solver=solver), draw(4, len(matrix)).float())
    assert examination.plain.kinds[kind] == 1.0 and examination.plain.samples == 4
    found = find(examination)
    assert found.severity == "unhealthy" and said in found.sentence and advice in found.advice
    assert {*examination.json()["plain"]["kinds"]} == {*KINDS}


def test_where_all_converged_no_path_is_looked_at():
    examination = doctor(eq.DEQ(Cell(0.5 * EYE)), draw(4, WIDTH).float())
    assert examination.plain is None


def test_only_what_failed_is_iterated():
    sizes = []

    def cell(z: Tensor, x: Tensor) -> Tensor:
        sizes.append(len(z))
        return x * z + 1.0

    x = torch.tensor([0.5, 0.2, -1.0, 0.3]).expand(7, 4).T
    patient = Patient.admit(eq.DEQ(cell, solver=eq.Picard()), (x,))
    with torch.no_grad():
        found = _iterate_plainly(patient, patient.call().solution)
    assert found is not None and found.samples == 1 and found.kinds["cycle"] == 1.0
    assert sizes[-BUDGET:] == [1] * BUDGET


def test_a_nilpotent_layer_has_depth():
    solver = eq.Picard(patience=None, max_evals=200)
    examination = doctor(eq.DEQ(Cell(chain(20)), solver=solver), draw(4, 20).float())
    found = find(examination, "Contraction")
    assert found.severity == "healthy" and "A signal travels" in found.sentence
    short = replace(examination.forward, evals=Summary(2, 2, 2, 2))
    found = find(replace(examination, forward=short), "Contraction")
    assert found.severity == "watch" and "ignores z" in found.advice


def test_advice_is_given_for_what_most_samples_do():
    layer = eq.DEQ(Cell(1.3 * EYE), solver=eq.Picard())
    examination = doctor(layer, draw(4, WIDTH).float())
    nan, ten = Summary(*[math.nan] * 4), Summary(10, 10, 10, 10)

    def say(status, training=None, residual=0.3, **kinds):
        plain = PlainIteration(
            samples=4,
            budget=400,
            kinds=kinds,
            evals=ten if "converges" in kinds else nan,
            period=ten,
        )
        shares = {each.name: float(each.name == status) for each in eq.Status}
        worst = Summary(*[residual] * 4)
        forward = replace(examination.forward, status=shares, residual=worst)
        changed = replace(examination, plain=plain, forward=forward, training=training)
        return find(changed)

    few = say("MAX_EVALS", front=0.25, cycle=0.75)
    assert "runs in a cycle in 75 %, carries a signal" in few.sentence
    assert "returns to where it was after 10 evaluations" in few.advice
    assert "max_evals=1600" in say("MAX_EVALS", front=1.0).advice
    recipe = say("STALLED", Training(), front=1.0).advice
    assert "solver.name: Picard, solver.patience: null, solver.max_evals: 1600" in recipe
    assert "max_evals=15" in say("STALLED", converges=1.0).advice
    assert "Try Broyden" in say("STALLED", wanders=1.0).advice
    assert "Raise max_evals, or" in say("MAX_EVALS", wanders=1.0).advice
    assert "bfloat16" in say("STALLED", residual=2.5e-3, cycle=1.0).advice
    assert "The cell returned NaN" in say("NONFINITE", cycle=1.0).advice
