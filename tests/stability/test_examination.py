"""The doctor on layers whose condition is known."""

import copy
import json
import math

import pytest
import torch
from torch import nn

import equilibria as eq
from equilibria.nn import VariationalDropout
from equilibria.stability import Training, doctor
from equilibria.stability.examine import STAGES

WIDTH = 12


class Affine(nn.Module):
    """z -> scale Q z + x with Q orthogonal (or symmetric): every number about it is known."""

    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(scale * torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q)

    def forward(self, z, x):
        return z @ self.weight.T + x


class Elementwise(nn.Module):
    """z -> tanh(gain z + x): two attracting fixed points in each entry where gain > 1, x small."""

    def __init__(self, gain):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, z, x):
        return torch.tanh(self.gain * z + x)


class Classifier(nn.Module):
    def __init__(self, cell, **layer):
        super().__init__()
        self.stem = nn.Linear(5, WIDTH)
        self.middle = eq.DEQ(cell, **layer)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.middle(self.stem(x)).value)


def inputs(samples=6):
    return torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(1))


def severities(examination):
    return {finding.topic: finding.severity for finding in examination.findings}


def test_a_healthy_layer():
    layer = eq.DEQ(Affine(0.6), solver=eq.Picard(rtol=1e-5), adjoint=eq.Implicit())
    examination = doctor(layer, inputs())
    assert set(severities(examination).values()) == {"healthy"}
    assert (examination.samples, examination.entries, examination.layer) == (6, WIDTH, "")
    assert examination.forward.status["CONVERGED"] == 1
    assert examination.forward.residual.max <= 1e-5
    assert examination.jacobian.spectral_radius.max == pytest.approx(0.6, rel=0.01)
    assert examination.jacobian.norm.mean == pytest.approx(0.6 * math.sqrt(WIDTH), rel=1e-3)
    assert examination.jacobian.stretch.mean == pytest.approx(0.6, rel=1e-3)
    assert examination.starts.distance.max < 1e-5 and examination.starts.converged == 1
    assert examination.gradient.cosine > 0.99999
    assert examination.gradient.norm_ratio == pytest.approx(1, abs=1e-3)
    assert examination.gradient.reference < 1e-9
    assert examination.gradient.backward is not None


def test_trace_falls_by_the_radius():
    layer = eq.DEQ(Affine(0.6), solver=eq.Picard(rtol=1e-5))
    trace = doctor(layer, inputs()).forward.trace
    assert list(trace.evals) == list(range(1, len(trace.evals) + 1))
    for low, middle, high, worst in zip(trace.p10, trace.p50, trace.p90, trace.max, strict=True):
        assert low <= middle <= high <= worst
    assert trace.p50[7] / trace.p50[6] == pytest.approx(0.6, rel=0.05)


def test_gradient_of_a_truncated_adjoint_against_algebra():
    """JFB leaves (I - J)^-T out: for one sample the operand's gradient is the cotangent itself."""
    cell = Affine(0.6)
    x = inputs(1)
    cotangent = torch.linspace(-1, 1, WIDTH)
    examination = doctor(
        eq.DEQ(cell, solver=eq.Picard(rtol=1e-6), adjoint=eq.JacobianFree()),
        x,
        loss=lambda solution: (solution.value * cotangent).sum(),
    )
    inverse = torch.linalg.inv(torch.eye(WIDTH) - cell.weight.detach())
    exact = inverse.T @ cotangent
    expected = torch.cosine_similarity(exact, cotangent, dim=0)
    assert examination.gradient.sample_cosine == pytest.approx(float(expected), abs=1e-4)
    # dL/dW is the outer product of the adjoint with z*: the cosine and the ratio are the adjoint's.
    assert examination.gradient.cosine == pytest.approx(float(expected), abs=1e-4)
    ratio = float(cotangent.norm() / exact.norm())
    assert examination.gradient.norm_ratio == pytest.approx(ratio, rel=1e-3)
    assert examination.gradient.backward is None and examination.gradient.loss == "loss"


def test_several_answers():
    layer = eq.DEQ(Elementwise(3.0), solver=eq.Picard(max_evals=200))
    examination = doctor(layer, 0.1 * inputs(), starts=3)
    assert severities(examination)["Uniqueness"] == "unhealthy"
    assert examination.starts.apart == 1 and examination.starts.distance.p50 > 1


def test_no_fixed_point():
    class Drift(nn.Module):
        def forward(self, z, x):
            return z + 1 + x.square()

    examination = doctor(eq.DEQ(Drift(), solver=eq.Picard(max_evals=30)), inputs())
    assert severities(examination)["Convergence"] == "unhealthy"
    assert severities(examination)["Gradient"] == "unhealthy"
    assert examination.starts.converged == 0
    json.dumps(examination.json(), allow_nan=False)
    print(examination)


def test_nan_in_one_sample_stays_there():
    x = inputs()
    x[2, 0] = math.nan
    examination = doctor(eq.DEQ(Affine(0.5)), x)
    assert examination.forward.status["NONFINITE"] == pytest.approx(1 / 6)
    assert severities(examination)["Convergence"] == "unhealthy"
    assert examination.jacobian.spectral_radius.max == pytest.approx(0.5, rel=0.01)
    json.dumps(examination.json(), allow_nan=False)


def test_expanding_layer_with_a_truncated_adjoint():
    layer = eq.DEQ(Affine(1.3), solver=eq.Broyden(rtol=1e-5), adjoint=eq.NeumannPhantom())
    examination = doctor(layer, inputs())
    found = severities(examination)
    assert examination.jacobian.expanding == 1
    assert found["Convergence"] == "healthy" and found["Contraction"] == "unhealthy"
    layer.adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-5))
    assert severities(doctor(layer, inputs()))["Contraction"] == "watch"
    assert severities(doctor(layer, inputs()))["Gradient"] == "healthy"


def test_a_model_with_accuracy():
    torch.manual_seed(3)
    model = Classifier(Affine(0.9), solver=eq.Picard(rtol=1e-4, max_evals=200))
    x, y = torch.randn(40, 5), torch.randint(3, (40,))
    with torch.no_grad():
        settled = model.eval()(x).argmax(1)
        shallow = model.head(model.stem(x)).argmax(1)  # one evaluation from zero gives x itself
    model.train()
    examination = doctor(
        model,
        x,
        loss=lambda logits: nn.functional.cross_entropy(logits, y),
        figure=lambda logits: float((logits.argmax(1) == settled).double().mean()),
    )
    assert examination.layer == "middle"
    assert examination.depth.figure == 1
    first = examination.depth.points[0]
    assert first.evals == 1
    assert first.figure == pytest.approx(float((shallow == settled).double().mean()))
    assert first.distance > examination.depth.points[-1].distance
    assert examination.gradient.cosine > 0.999


@pytest.mark.parametrize("adjoint", [eq.Phantom(steps=40), eq.Unrolled(), eq.Implicit()])
def test_adjoints_that_come_close(adjoint):
    layer = eq.DEQ(Affine(0.5), solver=eq.Picard(rtol=1e-6), adjoint=adjoint)
    examination = doctor(layer, inputs())
    assert examination.gradient.cosine > 0.9999
    assert severities(examination)["Gradient"] == "healthy"


def test_the_module_stays_as_it_is():
    torch.manual_seed(0)
    model = Classifier(Affine(0.7), eval_solver=eq.Broyden())
    model.middle.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    doctor(model, torch.ones(4, 5))
    assert model.training and model.middle.eval_solver == eq.Broyden()
    assert not any(p.requires_grad for p in model.middle.parameters())
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not model.middle._forward_hooks and not model.middle._forward_pre_hooks
    assert torch.equal(random, torch.get_rng_state())


def test_the_same_seed_gives_the_same_numbers():
    layer = eq.DEQ(Elementwise(3.0), solver=eq.Picard(max_evals=200))
    first = doctor(layer, 0.1 * inputs(), seed=5).json()
    assert first == doctor(layer, 0.1 * inputs(), seed=5).json()
    assert first != doctor(layer, 0.1 * inputs(), seed=6).json()


def test_dropout_is_off():
    class Dropped(Affine):
        def __init__(self):
            super().__init__(0.5)
            self.dropout = VariationalDropout(0.5)

        def forward(self, z, x):
            return self.dropout(super().forward(z, x))

    layer = eq.DEQ(Dropped(), drop_finished=True).train()
    examination = doctor(layer, inputs())
    assert examination.jacobian.spectral_radius.max == pytest.approx(0.5, rel=0.01)
    assert examination.gradient.cosine > 0.999


def test_trees_shared_operands_and_coupled_samples():
    mix = 0.5 * torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0))).Q

    class Pair(nn.Module):
        def forward(self, z, x, a):
            return {"u": a @ z["v"] + x["u"], "v": 0.5 * z["u"] + x["v"]}

    x = {"u": torch.ones(4, 3), "v": torch.zeros(4, 3)}
    layer = eq.DEQ(Pair(), coupled=True, solver=eq.Picard(rtol=1e-6, max_evals=200))
    examination = doctor(layer, x, eq.shared(mix))
    assert (examination.samples, examination.entries) == (1, 24)
    assert examination.jacobian.spectral_radius.max == pytest.approx(0.5, rel=0.01)
    assert examination.gradient.cosine > 0.999 and examination.gradient.sample_cosine > 0.999


def test_a_method_as_the_cell():
    class Owner(nn.Module):
        def __init__(self):
            super().__init__()
            self.affine = Affine(0.5)
            self.deq = eq.DEQ(self.step)

        def step(self, z, x):
            return self.affine(z, x)

        def forward(self, x):
            return self.deq(x).value

    owner = Owner()
    assert doctor(owner, inputs()).gradient.cosine > 0.999
    assert doctor(owner.deq, inputs()).gradient.cosine > 0.999
    assert owner.affine.weight.dtype == torch.float32


def test_json_and_text():
    examination = doctor(eq.DEQ(Affine(0.5)), inputs())
    stored = json.loads(json.dumps(examination.json(), allow_nan=False))
    assert stored["jacobian"]["expanding"] == 0
    assert len(stored["forward"]["trace"]["p50"]) == len(stored["forward"]["trace"]["evals"])
    text = str(examination)
    for finding in examination.findings:
        assert f"{finding.severity}  {finding.topic}: " in text
    assert max(map(len, text.splitlines())) <= 100


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.deq = eq.DEQ(Affine(0.5))

    def forward(self, x):
        return self.deq(self.deq(x).value).value


def closed_over():
    weight = 0.5 * torch.eye(WIDTH)
    return eq.DEQ(lambda z, x: z @ weight + x)


@pytest.mark.parametrize(
    ("module", "options", "error", "message"),
    [
        (lambda: nn.Linear(WIDTH, 2), {}, ValueError, "found none"),
        (
            lambda: nn.Sequential(eq.DEQ(Affine(0.5)), eq.DEQ(Affine(0.5))),
            {},
            ValueError,
            "found 0, 1",
        ),
        (Twice, {}, ValueError, "called 2 times"),
        (lambda: eq.DEQ(Affine(0.5)), {"starts": 0}, ValueError, "starts is 0"),
        (lambda: eq.DEQ(Affine(0.5)), {"loss": lambda s: s.value}, ValueError, "a scalar"),
        (closed_over, {}, TypeError, "float64"),
    ],
)
def test_misuse_is_explained(module, options, error, message):
    with pytest.raises(error, match=message):
        doctor(module(), inputs(), **options)


def test_a_layer_inside_the_cell_of_another_belongs_to_it():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = eq.DEQ(Elementwise(0.3), solver=eq.Picard(rtol=1e-6))

        def forward(self, z, x):
            return 0.5 * self.inner(z + x).value

    examination = doctor(eq.DEQ(Nested()), inputs())
    assert examination.layer == "" and examination.gradient.cosine > 0.999


def test_ritz_values_of_the_solve_stand_beside_the_radius(monkeypatch):
    layer = eq.DEQ(Affine(0.6), solver=eq.Anderson(rtol=1e-5))
    plain = doctor(layer, inputs(3)).jacobian.ritz
    assert 0.3 < plain.max < 0.65
    assert doctor(eq.DEQ(Affine(0.6), solver=eq.Picard()), inputs(3)).jacobian.ritz is None
    forward = eq.DEQ.forward

    def with_ritz(*args, **keywords):
        sol = forward(*args, **keywords)
        values = torch.tensor([[0.5j, 0.1], [-0.4, math.nan], [math.nan, math.nan]])
        object.__setattr__(sol.stats, "ritz", values.to(torch.complex64))
        return sol

    monkeypatch.setattr(eq.DEQ, "forward", with_ritz)
    ritz = doctor(layer, inputs(3)).jacobian.ritz
    assert ritz.max == pytest.approx(0.5) and ritz.mean == pytest.approx(0.45)


def test_the_training_that_is_told_is_kept_and_stored():
    training = Training(gamma=2.0, probability=0.5, budget=9.0, precision="bf16")
    examination = doctor(eq.DEQ(Affine(0.5)), inputs(), training=training)
    assert examination.training == training
    assert examination.json()["training"] == {
        "gamma": 2.0,
        "probability": 0.5,
        "budget": 9.0,
        "precision": "bf16",
        "status": {},
    }


def test_progress_is_told_each_stage_as_it_begins():
    told: list[str] = []
    doctor(eq.DEQ(Affine(0.5)), inputs(), progress=told.append)
    assert tuple(told) == STAGES
    told.clear()
    broken = doctor(eq.DEQ(Affine(math.nan)), inputs(), progress=told.append)
    assert tuple(told) == STAGES[:1] and broken.severity == "unhealthy"
