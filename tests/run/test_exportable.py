"""Modules of one's own that hold a DEQ, for torch.export and torch.onnx.export."""

import re

import pytest
import torch
from torch import nn

import equilibria as eq
from equilibria.run.export import ExportError, export, exportable, find_evals
from equilibria.run.models import Model, Prediction
from tasks_in_memory import Drawn, need_onnx


class Cell(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.linear = eq.nn.spectral_norm(nn.Linear(width, width), bound=0.8)

    def forward(self, z, x):
        return torch.tanh(self.linear(z) + x)


class Tree(nn.Module):
    """A state of two tensors of unlike shapes."""

    def __init__(self):
        super().__init__()
        self.cell = Cell()

    def forward(self, z, x):
        a, b = z
        return self.cell(a, x + 0.1 * b.sum(1)), 0.5 * b + a[:, None] / 3


class Own(nn.Module):
    """What a user writes: ordinary layers, a DEQ, and ordinary layers."""

    def __init__(self, layer):
        super().__init__()
        self.before, self.layer, self.after = nn.Linear(5, 8), layer, nn.Linear(8, 3)

    def forward(self, x):
        z = self.layer(self.before(x)).value
        return self.after(z[0] if isinstance(z, tuple) else z)


class Start(nn.Module):
    def __init__(self):
        super().__init__()
        self.guess = nn.Linear(8, 8)

    def forward(self, x):
        return self.guess(x)


class Twice(Own):
    """One layer under two names, and a second inside a container."""

    def __init__(self, layer):
        super().__init__(layer)
        self.again, self.more = self.layer, nn.ModuleList([eq.DEQ(Cell())])

    def forward(self, x):
        return self.after(self.more[0](self.again(self.before(x)).value).value)


def zeros(x):
    return torch.zeros_like(x), x.new_zeros(x.shape[0], 4, 8)


MODELS = {
    "zeros": lambda: Own(eq.DEQ(Cell())),
    "learned start": lambda: Own(eq.DEQ(Cell(), init=Start())),
    "a tree": lambda: Own(eq.DEQ(Tree(), init=zeros)),
    "two layers": lambda: Twice(eq.DEQ(Cell())),
}


@pytest.fixture
def x():
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(1))


def model_of(name):
    torch.manual_seed(0)
    return MODELS[name]().eval()


@torch.no_grad()
def by(solver, model, x):
    with eq.nn.using(model, solver=solver):
        return model(x)


@pytest.mark.parametrize("name", MODELS)
def test_torch_export_takes_a_model_of_ones_own_and_gives_what_it_gives(name, x):
    model = model_of(name)
    program = torch.export.export(
        exportable(model, evals=6, method="picard"),
        (x,),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        strict=False,
    ).module()
    # A solver returns a state that it has evaluated: after 6 evaluations, the seventh is of it.
    picard = eq.Picard(rtol=0.0, max_evals=7, patience=None)
    for rows in (x, x[:2]):
        assert torch.allclose(program(rows), by(picard, model, rows), atol=1e-5)
    assert isinstance(model.layer, eq.DEQ)  # it is a copy that was changed


def test_with_enough_evaluations_it_is_the_solution(x):
    model = model_of("zeros")
    tight = by(eq.Anderson(rtol=1e-6), model, x)
    with torch.no_grad():
        few, many = (exportable(model, evals=evals)(x) for evals in (2, 40))
    assert float((few - tight).abs().max()) > 1e-2
    assert torch.allclose(many, tight, atol=1e-5)


def test_onnx_takes_it_too(x):
    need_onnx()
    runtime = pytest.importorskip("onnxruntime")
    model = model_of("zeros")
    plain = exportable(model, evals=12)
    program = torch.onnx.export(plain, (x,), dynamo=True, verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(found), plain(x), atol=1e-5)


def test_a_layer_alone_can_be_exported(x):
    layer, u = eq.DEQ(Cell()).eval(), torch.randn(4, 8)
    plain = exportable(layer, evals=40)
    with torch.no_grad():
        assert torch.allclose(plain(u).value, layer(u).value, atol=1e-2)


def test_the_error_of_torch_export_names_what_can_be_exported(x):
    with pytest.raises(
        RuntimeError, match=r"equilibria\.run\.export\.exportable\(model, evals="
    ) as found:
        torch.export.export(model_of("zeros"), (x,), strict=False)
    advice = re.search(r"equilibria\.run\.export\.exportable\((.*?)\)", str(found.value))
    plain = eval(
        advice[0], {"equilibria": __import__("equilibria.run.export"), "model": Own(eq.DEQ(Cell()))}
    )
    assert plain(x).shape == (4, 3)


def test_what_an_exportable_copy_cannot_do_is_said(x):
    model = model_of("zeros")
    for wrong in (0, 2.5, True):
        with pytest.raises(ValueError, match="evals: expected a whole number >= 1"):
            exportable(model, evals=wrong)
    with pytest.raises(ValueError, match="method: expected 'anderson' or 'picard', got 'broyden'"):
        exportable(model, evals=3, method="broyden")
    with pytest.raises(ExportError, match="method='picard'"):
        exportable(Own(eq.DEQ(Cell(), coupled=True)), evals=3)
    with pytest.raises(AttributeError, match="'status' of a solution is not known"):
        exportable(model, evals=3).layer(torch.zeros(2, 8)).status  # noqa: B018


class Centred(nn.Module):
    """What is subtracted is a function of its weight, and a number once it is exported."""

    def __init__(self):
        super().__init__()
        self.weight, self.held = nn.Parameter(torch.arange(5.0)), None

    def forward(self, x):
        return x - (self.weight.tanh() if self.held is None else self.held)

    def prepare_export(self):
        self.held = self.weight.tanh()
        del self.weight


def test_a_module_of_ones_own_prepares_its_copy(x):
    model = nn.Sequential(Centred(), model_of("zeros"))
    copy = exportable(model, evals=40)
    assert model[0].held is None and not hasattr(copy[0], "weight")
    torch.export.export(copy, (x,), strict=False)
    with torch.no_grad():
        assert torch.allclose(copy(x), model(x), atol=1e-2)


class Halved:
    def apply(self, x):
        return x / 2


class HalfSamples:
    """Samples that are halved as they are given out."""

    statistics = Halved()

    def __init__(self, x):
        self.raw = torch.utils.data.TensorDataset(x, torch.arange(len(x)) % 2)

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, index):
        x, targets = self.raw[index]
        return x / 2, targets


class Plain(Model):
    """A model of one's own, and why it cannot be exported."""

    why = ""

    def __init__(self):
        super().__init__()
        self.inner = Own(eq.DEQ(Cell()))

    def forward(self, x, *, carry=None):
        return Prediction(self.inner(x), ())

    def refuses_export(self):
        return self.why


def test_a_model_and_a_task_of_ones_own_say_what_is_exported(x, monkeypatch):
    model, task = Plain().eval(), Drawn(dict.fromkeys(("train", "test"), HalfSamples(x)), "")
    made = export(model, task, format="pt2", evals=40)
    with torch.no_grad():
        assert torch.allclose(made.logits([x]), model(x / 2).output, atol=1e-2)
    monkeypatch.setattr(Plain, "why", "it is too large")
    with pytest.raises(ExportError, match="it is too large"):
        export(model, task, format="pt2")
    monkeypatch.setattr(Drawn, "refuses_export", lambda task: "its samples are secret")
    with pytest.raises(ExportError, match="its samples are secret"):
        export(model, task, format="pt2")
    with pytest.raises(ExportError, match="its samples are secret"):
        find_evals(model, task, "picard")
