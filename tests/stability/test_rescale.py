"""`set_radius` makes the spectral radius at the fixed points what is asked, or says what can be."""

import math

import pytest
import torch
from torch import nn

import equilibria as eq
from applications import needs
from equilibria.nn import spectral_norm, weight_norm
from equilibria.nn.init import initialize
from equilibria.run import models
from equilibria.stability import UnreachableRadiusError, set_radius, spectral_radius


class Cell(nn.Module):
    """f(z; x) = phi(W z + U x)."""

    def __init__(self, width=24, phi=torch.tanh, scale=1.0):
        super().__init__()
        self.w = nn.Linear(width, width, bias=False)
        self.u = nn.Linear(width, width, bias=False)
        self.phi = phi
        generator = torch.Generator().manual_seed(0)
        eq.nn.init.orthogonal_(self.w.weight, scale, generator)
        eq.nn.init.orthogonal_(self.u.weight, 0.5, generator)

    def forward(self, z, x):
        return self.phi(self.w(z) + self.u(x))


def batch(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def measured(model, *inputs):
    """The largest spectral radius at fixed points that are solved for here."""
    layer = next(m for m in model.modules() if isinstance(m, eq.DEQ))
    kept = []
    hook = layer.register_forward_hook(lambda _, args, sol: kept.append((args, sol)))
    layer.solver, layer.eval_solver = eq.Broyden(rtol=1e-6, max_evals=300), None
    with torch.no_grad():
        model.eval()(*inputs)
    hook.remove()
    ((operands, sol),) = kept
    assert (sol.status == eq.Status.CONVERGED).all()
    return spectral_radius(layer.cell, sol.value, *operands, coupled=layer.coupled).max().item()


def snapshot(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def same(model, before):
    return all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def refused(layer, x, match, **options):
    """The error where no radius will do, which leaves the weights as they were."""
    before = snapshot(layer)
    with pytest.raises(UnreachableRadiusError, match=match) as caught:
        set_radius(layer, x, **options)
    assert same(layer, before)
    return caught.value


@pytest.mark.parametrize(
    ("ensemble", "radius"), [("gaussian", 0.3), ("goe", 0.6), ("antisymmetric", 0.9)]
)
def test_the_radius_is_reached(ensemble, radius):
    torch.manual_seed(0)
    model = models.create("dense", shape=(1, 4, 4), width=32, bound=None)
    initialize(model, ensemble, 3.0 if radius == 0.3 else 0.2)
    start = model.deq.cell.linear.weight.detach().clone()
    x = batch(6, 1, 4, 4)
    done = set_radius(model, x, radius=radius)
    assert abs(done.radius - radius) <= 0.02
    assert torch.equal(model.deq.cell.linear.weight, done.factor * start)
    assert measured(model, x) == pytest.approx(done.radius, abs=2e-3)


def test_a_linear_network_takes_the_factor_that_it_needs():
    layer = eq.DEQ(Cell(phi=lambda h: h, scale=2.0))
    done = set_radius(layer, batch(2, 24), radius=0.5, tolerance=0.005)
    assert done.factor == pytest.approx(0.25, rel=0.02)
    factors = [m.factor for m in done.measured]
    assert factors == sorted(factors) and {1.0, done.factor} <= set(factors)
    assert all(m.radius == pytest.approx(2 * m.factor, rel=0.02) for m in done.measured if m.known)
    (row,) = done.rows
    assert (row.path, row.shape) == ("cell.w.weight", (24, 24))
    assert row.before == pytest.approx(2.0) and row.after == pytest.approx(2 * done.factor)
    text = str(done)
    assert "asked for 0.5" in text and "largest of 2 samples" in text
    assert "cell.w.weight (24 x 24): gain 2 -> 0.5" in text


def test_what_is_right_already_stays():
    layer = eq.DEQ(Cell(phi=lambda h: h, scale=0.7))
    before = snapshot(layer)
    done = set_radius(layer, batch(2, 24), radius=0.7)
    assert done.factor == 1.0 and len(done.measured) == 1 and same(layer, before)


def test_a_weight_for_the_input_stays_without_being_declared():
    layer = eq.DEQ(Cell())
    before = snapshot(layer)
    done = set_radius(layer, batch(4, 24), radius=0.4)
    assert [row.path for row in done.rows] == ["cell.w.weight"]
    assert torch.equal(layer.cell.u.weight, before["cell.u.weight"])


def test_nothing_else_changes():
    layer = eq.DEQ(Cell(), solver=eq.Picard(max_evals=7))
    model = nn.Sequential(nn.Dropout(0.5), layer).train()
    solver, before = layer.solver, snapshot(model)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    with torch.no_grad():
        set_radius(model, batch(4, 24), radius=0.6)
    assert torch.equal(torch.get_rng_state(), state)
    assert layer.solver is solver and layer.eval_solver is None and model.training
    assert torch.is_grad_enabled() and layer.cell.w.weight.grad is None
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"1.cell.w.weight"}
    assert layer.cell.w.weight.requires_grad and layer.cell.w.weight.grad_fn is None


def test_a_normalised_weight():
    cell = Cell(scale=0.5)
    weight_norm(cell.w)
    start = cell.w.weight.detach().clone()
    done = set_radius(eq.DEQ(cell), batch(4, 24), radius=0.6)
    torch.testing.assert_close(cell.w.weight.detach(), done.factor * start)


def test_some_layers():
    class Two(Cell):
        def __init__(self):
            super().__init__(scale=0.5)
            self.v = nn.Linear(24, 24)

        def forward(self, z, x):
            return torch.tanh(self.w(z) + 0.1 * self.v(z) + x)

    layer = eq.DEQ(Two())
    before = snapshot(layer)
    done = set_radius(layer, batch(2, 24), radius=0.7, layers=["*w.weight"])
    assert [row.path for row in done.rows] == ["cell.w.weight"]
    assert torch.equal(layer.cell.v.weight, before["cell.v.weight"])


class Tree(nn.Module):
    """A state of two tensors, of which each feeds the other."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)

    def forward(self, z, x):
        return {"a": torch.tanh(self.b(z["b"]) + x["a"]), "b": torch.tanh(self.a(z["a"]) + x["b"])}


def test_a_tree():
    torch.manual_seed(0)
    layer = eq.DEQ(Tree())
    x = {"a": batch(3, 8), "b": batch(3, 12)}
    done = set_radius(layer, x, radius=0.5)
    assert len(done.rows) == 2 and measured(layer, x) == pytest.approx(0.5, abs=0.02)


def test_a_batch_that_is_one_sample():
    class Mixed(Cell):
        def forward(self, z, x):
            return torch.tanh(self.w(z - 0.5 * z.mean(0)) + x)

    torch.manual_seed(0)
    layer = eq.DEQ(Mixed(), coupled=True)
    done = set_radius(layer, batch(3, 24), radius=0.5)
    assert done.measured[0].samples == 1
    assert measured(layer, batch(3, 24)) == pytest.approx(0.5, abs=0.02)


@needs("language")
def test_a_sequence_model():
    torch.manual_seed(0)
    model = models.create("deq-trellisnet", vocabulary=11, width=6, hidden=4, initial="orthogonal")
    tokens = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(1))
    done = set_radius(model, tokens, radius=0.4)
    assert [row.path for row in done.rows] == ["deq.cell.gates.weight"]
    assert measured(model, tokens) == pytest.approx(0.4, abs=0.03)


def test_a_radius_that_a_bound_forbids():
    cell = Cell(scale=0.3)
    spectral_norm(cell.w, bound=0.5)
    layer = eq.DEQ(cell)
    error = refused(layer, batch(2, 24), r"0.9 \+- 0.02: measured were", radius=0.9)
    table = error.measured
    largest = max(m.radius for m in table)
    assert isinstance(error, ValueError)
    assert largest < 0.52 and f"to {largest:.3g} (factor" in str(error)
    assert min(m.factor for m in table) < 1e-2 and max(m.factor for m in table) > 1e2


def test_a_radius_that_the_weights_have_no_effect_on():
    class Normalized(Cell):
        def forward(self, z, x):
            h = self.w(z + x)
            return 0.5 * h / h.norm(dim=1, keepdim=True)

    refused(eq.DEQ(Normalized()), batch(2, 24), "no effect", radius=0.9, limit=5.0)


def test_fixed_points_that_are_not_found_are_no_measurement():
    class Lost(Cell):
        def forward(self, z, x):
            # Without a fixed point where W is larger than at the start, for the first sample.
            big = self.w.weight.norm() > 0.5 * 24**0.5 + 1e-3
            shift = torch.where(big & (x[:, :1] > 0), torch.nan, 0.0)
            return torch.tanh(self.w(z) + x) * 0.5 + shift

    layer = eq.DEQ(Lost(scale=0.5), solver=eq.Anderson(max_evals=20))
    x = batch(3, 24)
    x[:, 0] = torch.tensor([1.0, -1.0, -1.0])
    error = refused(layer, x, "at best 2 of 3 samples", radius=0.9, limit=3.0)
    lost = [m for m in error.measured if not m.known]
    assert lost and all(m.factor > 1 and m.solved == 2 and math.isinf(m.radius) for m in lost)


def test_a_curve_that_falls_again():
    class Bump(Cell):
        """tanh is flat where W and the input are large: the radius rises and falls."""

        def forward(self, z, x):
            gain = self.w.weight.norm() / 24**0.5
            return torch.tanh(self.w(z) * torch.exp(-gain) + x)

    layer = eq.DEQ(Bump(scale=4.0))
    done = set_radius(layer, 0.1 * batch(2, 24), radius=0.3)
    assert measured(layer, 0.1 * batch(2, 24)) == pytest.approx(0.3, abs=0.02)
    # The crossing on the near side, above the peak at a gain of 1.
    assert done.factor > 0.25


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"radius": 1.0}, r"radius must lie in \(0, 1\)"),
        ({"radius": 1.5}, "without bound"),
        ({"radius": 0.0}, "got 0.0"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"limit": 1.0}, "limit must be finite and above 1"),
        ({"layers": ["*v*"]}, "there are: cell.w.weight, cell.u.weight"),
        ({"layers": ["*u*"]}, "none of cell.u.weight is applied to the state"),
    ],
)
def test_errors(keywords, words):
    layer = eq.DEQ(Cell())
    before = snapshot(layer)
    with pytest.raises(ValueError, match=words):
        set_radius(layer, batch(2, 24), **keywords)
    assert same(layer, before)


def test_a_module_without_a_layer_or_with_two():
    layers = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="found none"):
        set_radius(layers, batch(2, 4))
    with pytest.raises(ValueError, match="one equilibrium layer"):
        set_radius(nn.ModuleList([eq.DEQ(Cell()), eq.DEQ(Cell())]), batch(2, 24))


@pytest.mark.parametrize(("needed", "limit"), [(70, 100.0), (1 / 70, 100.0), (1.45, 1.5)])
def test_all_factors_up_to_the_limit_are_tried(needed, limit):
    layer = eq.DEQ(Cell(phi=lambda h: h, scale=0.5 / needed))
    done = set_radius(layer, batch(2, 24), radius=0.5, tolerance=0.01, limit=limit)
    assert done.factor == pytest.approx(needed, rel=0.03)
    factors = [m.factor for m in done.measured]
    assert 1 / limit <= min(factors) and max(factors) <= limit


@pytest.mark.parametrize("limit", [1.5, 7.0])
def test_the_last_factor_is_the_limit(limit):
    layer = eq.DEQ(Cell(phi=lambda h: h, scale=0.01))
    error = refused(layer, batch(2, 24), "", radius=0.5, limit=limit)
    assert (error.measured[0].factor, error.measured[-1].factor) == (1 / limit, limit)
    assert "no effect" not in str(error)


class Broken(Cell):
    """What is wrong where W is other than at the start."""

    def __init__(self, wrong):
        super().__init__(scale=0.5)
        self.wrong, self.start = wrong, self.w.weight.detach().norm()

    def forward(self, z, x):
        out = 0.5 * torch.tanh(self.w(z) + x)
        other = (self.w.weight.norm() - self.start).abs() > 1e-3 * self.start
        return self.wrong(out, z) if other else out


def test_one_measurement_does_not_tell_that_weights_have_no_effect():
    layer = eq.DEQ(Broken(lambda out, z: out + torch.nan))
    error = refused(layer, batch(2, 24), "with 22 of 25 .* 0 of 2", radius=0.9, limit=4.0)
    assert "no effect" not in str(error)


def test_a_jacobian_that_is_not_finite_is_said_to_be():
    layer = eq.DEQ(Broken(lambda out, z: out + (z - z).square().sum(1, keepdim=True).sqrt()))
    error = refused(layer, batch(2, 24), "df/dz is not finite there", radius=0.9, limit=4.0)
    assert "not found" not in str(error) and "no effect" not in str(error)
    lost = [m for m in error.measured if not m.known]
    assert lost and all(m.solved == m.samples for m in lost)


class Deep(Cell):
    """f(z; x) = A tanh(W z + U x)."""

    def __init__(self):
        super().__init__(scale=0.5)
        self.a = nn.Linear(24, 24, bias=False)
        eq.nn.init.orthogonal_(self.a.weight, 0.5, torch.Generator().manual_seed(1))

    def forward(self, z, x):
        return self.a(super().forward(z, x))


def test_weights_that_are_zero_are_named():
    layer = eq.DEQ(Cell())
    nn.init.zeros_(layer.cell.w.weight)
    with pytest.raises(ValueError, match=r"zero: no factor changes cell.w.weight. Fill"):
        set_radius(layer, batch(2, 24))
    deep = eq.DEQ(Deep())
    nn.init.zeros_(deep.cell.w.weight)
    words = r"of 2 recurrent weights. No factor changes cell.w.weight, zero as yet"
    refused(deep, batch(2, 24), words, limit=4.0)
    nn.init.eye_(deep.cell.w.weight)
    nn.init.zeros_(deep.cell.u.weight)
    assert len(set_radius(deep, batch(2, 24), radius=0.4).rows) == 2


@pytest.mark.parametrize("made", [False, True], ids=["called", "made and called"])
@pytest.mark.parametrize("dress", [lambda m: m, weight_norm], ids=["plain", "normalised"])
def test_inference_mode_does_not_matter(made, dress):
    with torch.inference_mode(made):
        layer, x = eq.DEQ(Cell()), batch(2, 24)
        dress(layer.cell.w)
    expected = eq.DEQ(Cell())
    dress(expected.cell.w)
    done = set_radius(expected, batch(2, 24), radius=0.4)
    with torch.inference_mode():
        assert set_radius(layer, x, radius=0.4) == done
    with torch.no_grad():
        torch.testing.assert_close(layer.cell.w.weight, expected.cell.w.weight)
    if not made:
        layer(x).value.sum().backward()
        assert all(p.grad is not None for p in layer.cell.w.parameters())


def test_autocast_does_not_matter():
    layer, twin = eq.DEQ(Cell()), eq.DEQ(Cell())
    done = set_radius(twin, batch(2, 24), radius=0.4)
    with torch.autocast("cpu", torch.bfloat16):
        assert set_radius(layer, batch(2, 24), radius=0.4) == done
