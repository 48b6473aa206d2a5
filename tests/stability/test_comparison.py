"""Every adjoint on a layer of known Jacobian: cosines that can be computed densely, advice."""

import math
import multiprocessing
import os

import pytest
import torch
from torch import nn

import equilibria as eq
from applications import needs
from equilibria.stability import compare_adjoints, comparison

WIDTH = 12


class Linear(nn.Module):
    """z <- J z + x, J symmetric, so that everything is known."""

    def __init__(self, radius, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        turned = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator))[0]
        values = radius * torch.linspace(-1.0, 1.0, WIDTH)
        self.weight = nn.Parameter(turned @ torch.diag(values) @ turned.T)

    def forward(self, z, x):
        return z @ self.weight.T + x


def layer(radius, **options):
    solver = eq.Anderson(rtol=1e-6, max_evals=3000)
    return eq.DEQ(Linear(radius), solver=options.pop("solver", solver), **options)


def inputs():
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))


def dense(radius, kind, steps, damping):
    """The cosine of the weight's gradient, in float64, from the matrix itself."""
    j = Linear(radius).weight.detach().double()
    x = inputs().double()
    z = torch.linalg.solve(torch.eye(WIDTH, dtype=torch.float64) - j, x.T).T
    g = 2 * z
    exact = torch.linalg.solve((torch.eye(WIDTH, dtype=torch.float64) - j).T, g.T).T
    b = damping * j + (1 - damping) * torch.eye(WIDTH, dtype=torch.float64)
    terms = [damping * torch.linalg.matrix_power(b.T, k) for k in range(steps)]
    u = (sum(terms) @ g.T).T
    assert kind in ("npg", "upg")  # at z* they are one
    one, two = (u.T @ z).flatten(), (exact.T @ z).flatten()
    return float(one @ two / (one.norm() * two.norm()))


@pytest.fixture(autouse=True)
def _unweighed(monkeypatch):
    """Without bytes, which take the profiler a third of a second for each adjoint."""
    monkeypatch.setattr(comparison, "peak_bytes", lambda step, device: 0)


@pytest.fixture
def few_settings(monkeypatch):
    monkeypatch.setattr(comparison, "SETTINGS", ((1, 1.0), (10, 1.0), (5, 0.5)))


@pytest.mark.parametrize("radius", [0.5, 0.9])
def test_cosines_are_those_of_the_matrix(radius):
    adjoints = [
        eq.JacobianFree(),
        eq.NeumannPhantom(steps=3, damping=1.0),
        eq.NeumannPhantom(steps=5, damping=0.5),
        eq.Phantom(steps=3, damping=1.0),
        eq.Phantom(steps=5, damping=0.5),
        eq.Implicit(linear=eq.GMRES(rtol=1e-6)),
    ]
    found = compare_adjoints(
        layer(radius), inputs(), loss=lambda s: s.value.square().sum(), adjoints=adjoints, repeats=1
    )
    expected = [
        dense(radius, "npg", 1, 1.0),
        dense(radius, "npg", 3, 1.0),
        dense(radius, "npg", 5, 0.5),
        dense(radius, "upg", 3, 1.0),
        dense(radius, "upg", 5, 0.5),
        1.0,
    ]
    for row, cosine in zip(found.rows, expected, strict=True):
        assert row.cosine == pytest.approx(cosine, abs=0.01), row.adjoint
    assert found.compared
    assert found.samples == 6


def test_a_contraction_gets_a_cheap_adjoint():
    found = compare_adjoints(layer(0.5), inputs(), floor=0.99, repeats=1)
    best = found.recommended
    assert not best.exact
    assert best.cost <= 5 and best.cosine >= 0.99
    cheaper = [row for row in found.rows if row.cost < best.cost]
    assert all(row.cosine < 0.99 or not 0.5 <= row.norm_ratio <= 2 for row in cheaper)
    assert best.line in str(found.recipe_line)


@pytest.mark.usefixtures("few_settings")
def test_near_radius_one_only_the_exact_adjoint_will_do():
    found = compare_adjoints(layer(0.99), inputs(), repeats=1)
    best = found.recommended
    assert best.exact
    assert all(row.cosine < 0.99 for row in found.rows if not row.exact)
    assert "Only the exact" in found.sentence
    assert "but not the length" not in found.sentence


@pytest.mark.usefixtures("few_settings")
def test_a_gradient_in_the_right_direction_may_be_far_too_short():
    """A loss whose gradient lies along the slow direction."""
    found = compare_adjoints(
        layer(0.99), inputs(), loss=lambda s: s.value.square().sum(), repeats=1
    )
    best = found.recommended
    assert best.exact
    free = next(row for row in found.rows if row.name == "JacobianFree")
    assert free.cosine >= 0.99 and free.norm_ratio < 0.05
    assert "but not the length" in found.sentence


def test_a_gradient_in_the_right_direction_may_be_far_too_long():
    """With df/dz = -3 the exact gradient is a quarter of the Jacobian-free one."""

    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([[-3.0]]))

        def forward(self, z, x):
            return z @ self.weight + x

    module = eq.DEQ(Steep(), solver=eq.Broyden(rtol=1e-6))
    adjoints = [eq.JacobianFree(), eq.Implicit()]
    found = compare_adjoints(module, torch.ones(4, 1), adjoints=adjoints, repeats=1)
    free, exact = found.rows
    assert free.cosine == pytest.approx(1.0) and free.norm_ratio == pytest.approx(4.0, rel=1e-3)
    assert not free.passes(0.99) and exact.passes(0.99)
    assert found.recommended is exact


def test_an_exact_adjoint_may_be_the_cheapest_without_being_the_only_one():
    adjoints = [eq.Phantom(steps=40, damping=1.0), eq.Implicit(linear=eq.GMRES(rtol=1e-6))]
    found = compare_adjoints(layer(0.5), inputs(), adjoints=adjoints, repeats=1)
    best = found.recommended
    assert best.exact and found.rows[0].passes(0.99)
    assert "Only the exact" not in found.sentence and "The cheapest" in found.sentence


def test_an_audited_adjoint_is_compared_as_the_one_it_has_in_use():
    found = compare_adjoints(
        layer(0.5),
        inputs(),
        adjoints=[eq.AdaptiveAdjoint(level=2), eq.AdaptiveAdjoint(level=3)],
        repeats=1,
    )
    assert [row.name for row in found.rows] == ["Phantom(5, 0.5)", "Implicit"]
    assert [row.exact for row in found.rows] == [False, True]
    assert found.rows[0].cost == 11.0


@pytest.mark.usefixtures("few_settings")
def test_where_nothing_is_to_be_learned_the_output_is_compared():
    found = compare_adjoints(layer(0.5), inputs(), loss=lambda s: 0.0 * s.value.sum(), repeats=1)
    expected = compare_adjoints(layer(0.5), inputs(), repeats=1)
    assert found.vanished == 0.0
    assert [row.cosine for row in found.rows] == [row.cosine for row in expected.rows]
    assert found.recommended.name == expected.recommended.name


@needs("graph")
def test_a_sample_of_a_batch_of_graphs_is_a_graph():
    """Not a node, whose gradient may vanish, nor the whole batch."""
    torch.manual_seed(0)
    ring = torch.stack([torch.arange(4), torch.arange(4).roll(1)])
    layer = eq.models.graph.IGNN(3, 5, layer={"solver": eq.Anderson(period=3, rtol=1e-6)})
    graphs = [torch.randn(4, 3) for _ in range(3)]
    options = {
        "loss": lambda z: z.square().sum(),
        "adjoints": [eq.JacobianFree(), eq.NeumannPhantom(steps=3)],
        "repeats": 1,
    }
    edges, batch = (
        torch.cat([ring + 4 * k for k in range(3)], 1),
        torch.arange(3).repeat_interleave(4),
    )
    found = compare_adjoints(layer, torch.cat(graphs), edges, None, batch, **options)
    alone = [compare_adjoints(layer, x, ring, **options) for x in graphs]
    assert found.samples == 3 and all(each.samples == 1 for each in alone)
    for k, row in enumerate(found.rows):
        worst = min(each.rows[k].sample_cosine for each in alone)
        assert row.sample_cosine == pytest.approx(worst, abs=1e-5)


def test_without_an_exact_gradient_nothing_is_recommended():
    found = compare_adjoints(
        eq.DEQ(lambda z, x: z + x, solver=eq.Picard(max_evals=5)),
        inputs(),
        adjoints=[eq.JacobianFree()],
    )
    assert not found.compared
    assert found.recommended is None and found.recipe_line is None
    assert "Nothing is recommended" in str(found)


def test_the_recipe_line_is_read_back():
    yaml = pytest.importorskip("yaml")
    adjoints = [
        eq.NeumannPhantom(steps=2, damping=1.0),
        eq.Implicit(linear=eq.GMRES(rtol=1e-3, max_evals=50)),
        eq.Implicit(linear=eq.GMRES(rtol=1.25e-5, atol=1e-7)),
    ]
    found = compare_adjoints(layer(0.5), inputs(), adjoints=adjoints, repeats=1)
    lines = [yaml.safe_load(row.line) for row in found.rows]
    assert lines[0] == {"name": "NeumannPhantom", "steps": 2, "damping": 1}
    assert lines[1]["linear"] == {"name": "GMRES", "rtol": 1e-3, "max_evals": 50}
    assert lines[2]["linear"] == {"name": "GMRES", "rtol": 1.25e-5, "atol": 1e-7}


def test_shine_is_tried_where_broyden_solves_and_the_adjoint_in_use_comes_first(monkeypatch):
    monkeypatch.setattr(comparison, "SETTINGS", ((2, 1.0),))
    own = eq.Phantom(steps=4, damping=0.7)
    solver = eq.Broyden(rtol=1e-6)
    found = compare_adjoints(layer(0.5, solver=solver, adjoint=own), inputs(), repeats=1)
    names = [row.adjoint.partition("(")[0] for row in found.rows]
    assert found.rows[0].adjoint == repr(own)
    assert "Shine" in names and "Implicit" in names
    assert all(math.isfinite(row.step_ms) for row in found.rows)


def test_the_module_is_left_as_it_is():
    module = layer(0.5).train()
    before = module.cell.weight.detach().clone()
    compare_adjoints(module, inputs(), adjoints=[eq.JacobianFree()], repeats=1)
    assert module.training and torch.equal(module.cell.weight, before)
    assert module.cell.weight.grad is None


@pytest.mark.parametrize(
    "option", [{"floor": 0.0}, {"floor": 1.5}, {"repeats": 0}, {"adjoints": []}]
)
def test_impossible_options(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        compare_adjoints(layer(0.5), inputs(), **option)


def weighed(said):
    """Compare one adjoint with memory, as the first profile of a process; all output is kept."""
    with said.open("w") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    os.environ.pop("KINETO_LOG_LEVEL", None)
    one = [eq.JacobianFree()]
    found = compare_adjoints(
        eq.DEQ(lambda z, x: 0.5 * z + x), torch.ones(2, 3), adjoints=one, repeats=1
    )
    assert found.rows[0].bytes > 0


def test_memory_is_measured_by_a_profiler_that_logs_nothing(tmp_path):
    # Forked from a process that has imported torch, where other tests have begun one.
    forks = multiprocessing.get_context("forkserver")
    process = forks.Process(target=weighed, args=(tmp_path / "said",))
    process.start()
    process.join()
    assert process.exitcode == 0 and (tmp_path / "said").read_text() == ""
