"""How to start a network: what is measured over ensembles and scales, and what is chosen."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from equilibria.nn import DEQ
from equilibria.nn.init import Elementwise
from equilibria.solve import Anderson, Picard
from equilibria.stability.ensembles import (
    Start,
    Sweep,
    Trial,
    recommend,
    recommendation,
    sweep,
    tabulate,
)


class Cell(nn.Module):
    """phi(W z + u), or phi(W z) + u, with a bias that belongs to neither."""

    def __init__(self, width, activation="tanh", injection="inside", declared=True):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.outside = injection == "outside"
        self.phi = getattr(torch, activation)
        nn.init.zeros_(self.linear.bias)
        if declared:
            self.theory = Elementwise(activation=activation, injection=injection)

    def forward(self, z, u):
        h = self.linear(z)
        return self.phi(h) + u if self.outside else self.phi(h + u)


class Maps(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.round = nn.Linear(6, 9), nn.Linear(9, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, z, u):
        return self.norm(torch.tanh(self.down(torch.relu(self.up(self.round(z))))) + u)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("injection", ["inside", "outside"])
def test_measured_is_as_predicted(injection):
    layer = DEQ(Cell(300, injection=injection), solver=Anderson(rtol=1e-4))
    found = sweep(layer, 0.5 + normal(8, 300), scales=[0.4], draws=1)
    assert found.theory == ("tanh(W z) + u" if injection == "outside" else "tanh(W z + u)")
    assert found.input_mean == pytest.approx(0.5, abs=0.1)
    assert found.input_variance == pytest.approx(1, rel=0.1)
    for start in found.starts:
        assert start.radius == pytest.approx(start.predicted, rel=0.08), start


def test_theory_takes_the_variance_within_a_sample():
    """Samples of different means are different inputs, and not one that varies more."""
    u = 0.5 * normal(4, 200) + torch.tensor([[-3.0], [-1.0], [1.0], [3.0]])
    found = sweep(DEQ(Cell(200)), u, ensembles=["goe"], scales=[0.1], draws=1)
    assert found.input_variance == pytest.approx(0.25, rel=0.1)


def test_the_model_stays_as_it_is_and_the_same_seed_gives_the_same():
    layer = DEQ(Cell(12), solver=Anderson(rtol=1e-3))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    state = torch.random.get_rng_state()
    options = {"ensembles": ["gaussian"], "scales": [0.5, 2.0], "draws": 2}
    one, two = (sweep(layer, normal(3, 12), **options, seed=3) for _ in range(2))
    assert one.json() == two.json() and layer.training and layer.eval_solver is None
    assert one.json() != sweep(layer, normal(3, 12), **options, seed=4).json()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())


def test_each_solve_is_told():
    told = []
    options = {"ensembles": ["goe", "goe"], "scales": [0.2, 0.1], "draws": 2}
    found = sweep(
        DEQ(Cell(5)), normal(2, 5), **options, progress=lambda done, of: told.append((done, of))
    )
    assert told == [(i, 8) for i in range(1, 5)]  # all are workable: there is no edge to look for
    assert [start.scale for start in found.starts] == [0.1, 0.2]


def test_the_solver_of_training_decides_and_plain_iteration_has_as_many():
    layer = DEQ(Cell(40), solver=Anderson(rtol=1e-3, max_evals=9), eval_solver=Picard())
    found = sweep(layer, normal(4, 40), ensembles=["goe"], scales=[0.1, 0.5, 5.0], draws=1)
    assert (found.solver, found.max_evals) == ("Anderson", 9)
    assert max(start.evals for start in found.starts) <= 9
    assert max(start.plain_evals for start in found.starts) <= 9
    assert found.of("goe")[0].workable and not found.of("goe")[-1].workable
    assert math.isnan(found.of("goe")[-1].radius) or found.of("goe")[-1].converged > 0
    assert len(found.starts) == 5  # two more between the last that works and the next


def test_a_cell_without_a_theory_says_why():
    layer = DEQ(Maps())
    found = sweep(layer, normal(3, 6), scales=[0.2], draws=1)
    assert found.theory == "" and "Maps declares no elementwise" in found.reason
    assert found.maps == 3 and found.replaced == {"gaussian": 0, "orthogonal": 0, "goe": 2}
    assert found.normalizations == ("LayerNorm",)
    assert all(math.isnan(start.predicted) for start in found.starts)
    assert "no prediction" in warned(found) and "rows of goe have Gaussian" in warned(found)
    assert "theory" not in tabulate(found)[0]
    del layer.cell.round  # no map is square now
    layer.cell.round = nn.Identity()
    found = sweep(layer, normal(3, 6), scales=[0.2], draws=1)
    assert list(found.impossible) == ["goe"] and found.ensembles == ("gaussian", "orthogonal")
    assert "goe was left out: " in warned(found)
    with pytest.raises(ValueError, match="can be a member of 'goe'"):
        sweep(layer, normal(3, 6), ensembles=["goe"], scales=[0.2], draws=1)
    undeclared = sweep(DEQ(Cell(6, declared=False)), normal(3, 6), scales=[0.2], draws=1)
    assert undeclared.theory == "" and "Cell declares no" in undeclared.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ensembles": ["gausian"]}, "did you mean 'gaussian'"),
        ({"ensembles": []}, "at least one scale and one ensemble"),
        ({"scales": []}, "at least one scale"),
        ({"scales": [0.5, 0.0]}, "positive and finite; got 0"),
        ({"scales": [math.nan]}, "positive and finite; got nan"),
        ({"draws": 0}, "draws must be 1 or more; got 0"),
        ({"layers": ["*other*"]}, "no recurrent weight matches"),
    ],
    ids=str,
)
def test_what_cannot_be_swept(options, message):
    with pytest.raises(ValueError, match=message):
        sweep(DEQ(Cell(4)), normal(2, 4), **options)


# --- what is chosen -------------------------------------------------------------------------------


def trial(radius=0.6, converged=1.0, evals=8.0, gain=1.0, above=1.0):
    radius = radius if converged else math.nan
    return Trial(
        gain=gain,
        converged=converged,
        evals=evals,
        plain_converged=converged,
        plain_evals=2 * evals,
        radius=radius,
        largest=above * radius,
    )


def starts(name, rows, held=math.inf):
    """Starts of an ensemble from (scale, radius, share that converges, evaluations)."""
    return [
        Start(ensemble=name, scale=s, trials=(trial(r, c, e, min(s, held)),) * 2)
        for s, r, c, e in rows
    ]


def made_up(*rows, own=None, **changes):
    """A sweep that found these starts."""
    rows = tuple(itertools.chain(*rows))
    told = {
        "solver": "Anderson",
        "rtol": 1e-3,
        "max_evals": 40,
        "samples": 8,
        "entries": 16,
        "weights": ("deq.cell.linear.weight",),
        "maps": 1,
        "own": own or trial(0.1),
        "starts": rows,
        "replaced": {start.ensemble: 0 for start in rows},
        "reason": "nobody has made one",
    }
    return Sweep(**told | changes)


def line(name, slope, end, evals=8.0, top=4.0):
    """Radii that grow with the scale, and nothing that converges beyond `end`."""
    scales = [0.1, 0.2, 0.5, 1.0, 2.0, top]
    return starts(name, [(s, slope * s, float(s <= end), evals) for s in scales])


def warned(found):
    return " ".join(recommend(found).warnings)


def width(rows):
    """The ratio of gains with radii of .3 to .9, and whether it is at least that."""
    return recommendation.width(rows, [start for start in rows if start.workable])


def decided(found):
    return recommend(found).decided


def test_the_widest_range_wins():
    found = made_up(line("gaussian", 0.6, 1.0), line("orthogonal", 0.6, 2.0))
    advice = recommend(found)
    assert (advice.ensemble, advice.scale) == ("orthogonal", 1.0)
    assert str(advice) == "Recommended: orthogonal at scale 1 (the widest range of scales)"
    # the radius passes .3 at scale .5 and .9 at 1.5, beyond which nobody wants to start
    assert width(found.of("gaussian")) == (pytest.approx(2), False)
    assert width(found.of("orthogonal")) == (pytest.approx(3), False)


def test_of_a_range_that_ends_with_the_scales_tried_no_width_is_claimed():
    """Both have workable scales in a row, and nobody knows where the first would end."""
    short = starts("gaussian", [(s, 0.6 * s, 1.0, 8.0) for s in (0.1, 0.5, 0.8)])
    found = made_up(short, line("orthogonal", 0.6, 2.0))
    advice = recommend(found)
    assert width(short) == (pytest.approx(1.6), True)
    assert advice.decided == "order"
    late = starts("gaussian", [(s, 0.6 * s, float(s < 1.4), 8.0) for s in (0.7, 1.0, 1.4)])
    assert width(late)[1]  # smaller scales might be workable, too


@pytest.mark.parametrize("unit", [0.6, 0.9, 0.95, 1.0, 1.3])
def test_evaluations_are_compared_at_the_same_radius(unit):
    """Where they follow from the radius alone, the grid of scales does not decide."""

    def of(name, slope):
        rows = []
        for scale in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0):
            radius = slope * scale
            needed = 4 + math.log(1e-3) / math.log(min(radius, 0.97))
            rows.append((scale, radius, float(radius <= 1), needed))
        return starts(name, rows)

    found = made_up(of("gaussian", unit), of("goe", 1.0), of("orthogonal", 0.95))
    assert recommend(found).ensemble == "orthogonal"
    assert decided(found) == "order"


def test_where_no_start_has_the_middle_radius_the_nearest_that_all_have_is_compared():
    flat = starts("gaussian", [(0.1, 0.8, 1.0, 8.0), (1.0, 0.85, 1.0, 10.0)])
    other = starts("orthogonal", [(0.1, 0.7, 1.0, 3.0), (1.0, 0.85, 1.0, 12.0)])
    advice = recommend(made_up(flat, other))  # 8.0 at a radius of 0.8, and about 8.4
    assert (advice.ensemble, advice.decided) == ("orthogonal", "order")


def test_of_ranges_as_wide_the_fewest_evaluations_win_in_any_order():
    rows = [line("gaussian", 0.6, 2.0, 9.0), line("goe", 1.2, 1.0, 7.0)]
    for order in itertools.permutations(rows):
        advice = recommend(made_up(*order))
        assert (advice.ensemble, advice.decided) == ("goe", "evals")


def test_a_few_per_cent_of_evaluations_are_chance():
    """Then the worst draw decides, and after it a fixed order."""
    few, more = line("gaussian", 0.6, 2.0, 8.0), line("orthogonal", 0.6, 2.0, 8.6)
    for order in itertools.permutations([few, more]):
        assert recommend(made_up(*order)).ensemble == "orthogonal"
    unsure = [
        Start(ensemble=s.ensemble, scale=s.scale, trials=(trial(0.6, 0.96), trial(0.6)))
        if s.scale == 1.0
        else s
        for s in more
    ]
    assert recommend(made_up(few, unsure)).ensemble == "gaussian"
    assert decided(made_up(few, unsure)) == "worst"


def test_a_radius_just_outside_the_aim_is_as_good_as_one_just_inside():
    inside = starts("gaussian", [(0.1, 0.89, 1.0, 8.0)])
    just, far = (starts("orthogonal", [(0.1, radius, 1.0, 8.0)]) for radius in (0.92, 0.97))
    assert recommend(made_up(inside, just)).ensemble == "orthogonal"
    assert recommend(made_up(inside, far)).ensemble == "gaussian"
    assert decided(made_up(inside, far)) == "radius"
    unknown = made_up(starts("goe", [(0.1, math.nan, 1.0, 8.0)]))
    assert recommend(unknown).ensemble == "goe" and "could not be measured" in warned(unknown)


def test_the_largest_radius_counts():
    """A mean of .6 is no good start where some sample has 1.2."""
    rows = [
        Start(ensemble="goe", scale=s, trials=(trial(0.6 * s, above=2.0, gain=s),))
        for s in (0.1, 0.5, 1.0)
    ]
    advice = recommend(made_up(rows))
    assert advice.scale == 0.5 and "radius" not in warned(made_up(rows))
    assert "1.2, is above 0.9: solves are long" in warned(made_up(rows[2:]))
    assert "is below 0.3: the network is hardly deeper" in warned(made_up(rows[:1]))


def test_the_table_has_the_model_as_it_is_and_marks_what_is_recommended():
    rows = starts("goe", [(0.5, 0.3333, 1.0, 8.0), (1.0, 0.6666, 1.0, 9.0), (2.0, 0.8, 0.3, 20.0)])
    found = made_up(rows, own=trial(0.1))
    head, cells = tabulate(found, recommend(found))
    assert head == ["ensemble", "scale", "converged", "evals", "plain", "evals", "radius", "max"]
    assert cells == [
        ["as it is", "–", "100 %", "8.0", "100 %", "16.0", "0.1", "0.1"],
        ["goe", "0.5", "100 %", "8.0", "100 %", "16.0", "0.333", "0.333"],
        ["goe", "* 1", "100 %", "9.0", "100 %", "18.0", "0.667", "0.667"],
        ["goe", "2", "30 %", "20.0", "30 %", "40.0", "–", "–"],  # of the survivors
    ]
    assert [row[1] for row in tabulate(found)[1]] == ["–", "0.5", "1", "2"]


def test_a_start_that_cannot_be_had_is_said():
    found = made_up(line("goe", 0.6, 1.0), own=trial(), notes=("It is bf16.",))
    found = replace(found, own=None, refused="initialization.radius 0.95: too much")
    assert "cannot be reached: initialization.radius 0.95: too much." in warned(found)
    assert recommend(found).warnings[-1] == "It is bf16."
    assert tabulate(found)[1][0][0] == "goe"
    assert found.json()["own"] is None


def test_a_bound_on_the_weights_makes_no_range_wider():
    """Scales that act as the same are one."""
    scales = [0.5, 1.0, 2.0, 4.0, 8.0]
    bounded = starts("gaussian", [(s, 0.5 * min(s, 1), 1, 8) for s in scales], held=1.0)
    found = made_up(bounded, line("goe", 0.6, 2.0, 9.0))
    assert recommend(found).ensemble == "goe"
    head, rows = tabulate(found)
    assert [row[head.index("acts as")] for row in rows[1:6]] == ["0.5", "1", "1", "1", "1"]


@pytest.mark.parametrize("shift", [0.25, 1.0, 4.0])
def test_the_choice_does_not_depend_on_the_unit_of_the_scale(shift):
    def scaled(name, slope, end):
        rows = [(shift * s, slope * s, float(s <= end), 8.0) for s in (0.1, 0.2, 0.5, 1.0, 2.0)]
        return starts(name, rows)

    advice = recommend(made_up(scaled("gaussian", 0.6, 0.5), scaled("orthogonal", 0.6, 1.0)))
    assert (advice.ensemble, advice.scale) == ("orthogonal", shift)


def test_one_bad_draw_makes_a_start_unworkable():
    good = line("gaussian", 0.6, 2.0)
    mixed = Start(ensemble="gaussian", scale=1.0, trials=(trial(0.6), trial(0.6, 0.5)))
    found = made_up([mixed if start.scale == 1.0 else start for start in good])
    assert recommend(found).scale != 1.0
    row = next(row for row in tabulate(found)[1] if row[1] == "1")
    assert row[2] == "75 % (≥ 50 %)" and row[-2:] == ["–", "–"]


def test_nothing_workable_is_said_plainly():
    found = made_up(line("gaussian", 0.6, 0.0), normalizations=("GroupNorm",))
    advice = recommend(found)
    assert not advice.workable
    assert str(advice) == "Recommended: none, as no start that was tried is workable"
    assert "GroupNorm" in warned(found) and "ShallowStart" in warned(found)
    assert "--solver.max_evals" in warned(found)
    assert not any("*" in row[1] for row in tabulate(found, advice)[1])


def test_a_radius_between_two_scales_is_left_to_a_search():
    rows = [(0.1, 0.1, 1.0, 4.0), (1.0, 1.2, 1.0, 30.0)]
    found = made_up(starts("orthogonal", rows))
    assert "--initialization.ensemble orthogonal --initialization.radius 0.6" in warned(found)


def test_a_prediction_has_a_column():
    rows = [replace(s, predicted=0.5 * s.scale) for s in line("gaussian", 0.6, 1.0)]
    rows[0] = replace(rows[0], predicted=math.nan)
    found = made_up(rows, theory="tanh(W z)")
    head, cells = tabulate(found)
    assert [row[head.index("theory")] for row in cells[:4]] == ["–", "–", "0.1", "0.25"]
    assert warned(found) == ""


def test_what_is_recommended_goes_into_json():
    advice = recommend(made_up(line("goe", 0.6, 1.0)))
    content = advice.json()
    assert content["options"] == "--initialization.ensemble goe --initialization.scale 1"
    assert content["decided"] == "alone" and content["warnings"] == list(advice.warnings)
