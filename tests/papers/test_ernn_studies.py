"""The studies of recurrent networks: each compares what its tables say it compares."""

import types

import pytest
import torch

from equilibria.run.recipe import Recipe
from equilibria.run.studies.training import parameters
from equilibria.zoo.recurrent import model
from equilibria.zoo.recurrent.model import ERNN, FastGRNNOptions, ImplicitERNN
from papers.ernn import adding, har, noisy, order, phase, rate, speed, tables
from papers.ernn.common import HAR, SOLVED, peak, point
from papers.published import KAG_2019, read_published

CONTEXT = types.SimpleNamespace(device="cpu")


def recipe_of(network: str) -> Recipe:
    return point("har2", HAR[network], 1, seed=0).runs["run"].recipe


def count(network: str) -> int:
    """Parameters of a network on HAR-2, nine channels and two classes."""
    import dataclasses

    recipe = recipe_of(network)
    return parameters(recipe, dataclasses.replace(recipe.model, shape=(9,), classes=2))


def test_equilibrated_networks_have_at_most_five_thousand_parameters():
    assert all(count(name) <= 5_000 for name in HAR if name.startswith("ERNN"))


def test_each_network_has_the_cell_that_it_is_called_after():
    for name in HAR:
        layer = name.partition(" ")[0].partition("-")[0].partition(",")[0]
        kind = getattr(model, layer.replace("Antisymmetric", "AntisymmetricRNN"))
        assert type(recipe_of(name).model.cell) is kind.options


def test_a_baseline_does_not_take_over_what_is_the_equilibrated_networks():
    cells = {name: recipe_of(name).model.cell for name in HAR}
    lsq, low = cells["FastGRNN-LSQ"], cells["FastGRNN, rank 16"]
    assert isinstance(lsq, FastGRNNOptions) and (lsq.rank, low.rank) == (None, 16)
    assert cells["Antisymmetric"].step_size == 0.1


def test_all_networks_of_a_study_are_trained_alike():
    for study in (har, adding, noisy, order):
        recipes = [run.recipe for point in study.points("cpu") for run in point.runs.values()]
        for name in ("optimizer", "schedule", "epochs", "batch_size", "clip"):
            assert len({repr(getattr(each, name)) for each in recipes}) == 1, (study, name)


def test_the_published_tables_are_whole():
    rows = read_published(KAG_2019, "Table 3")
    counts = {data: sum(row["data"] == data for row in rows) for data in (*tables.RECIPES, "HAR-2")}
    assert counts == {
        "DSA-19": 10, "Google-12": 10, "Google-30": 10, "Pixel-MNIST": 9, "Permute-MNIST": 4,
        "Yelp-5": 10, "Noisy-CIFAR": 4, "HAR-2": 10,
    }  # fmt: skip
    har2 = {row["network"]: row for row in rows if row["data"] == "HAR-2"}
    assert (har2["ERNN (K = 5)"]["accuracy"], har2["ERNN (K = 5)"]["parameters"]) == (96.30, "4K")
    assert [len(read_published(KAG_2019, f"Table {number}")) for number in (5, 6)] == [6, 7]


def test_states_at_equilibrium_lie_on_a_curve():
    """h_k + h_(k-1) is a function of the input, which is one number."""
    rows = list(phase.path(CONTEXT, cell="ImplicitERNN"))
    torch.manual_seed(phase.SEED)
    layer = phase.recurrent.Recurrent(1, 2, cell=phase.CELLS["ImplicitERNN"]).double()
    x = (phase.VARIANCE**0.5 * torch.randn(phase.STEPS, 1, 1)).cumsum(0).double()
    x = x / phase.STEPS**0.5
    with torch.no_grad():
        z = layer(x[500:501])[0][0, 0]
    assert rows[500]["s1"] == pytest.approx(float(z[0]), abs=1e-3)


def test_rates_of_convergence_are_those_of_a_contraction():
    rows = list(rate.steps(CONTEXT, activation="tanh", size=0.5))
    assert [row["step"] for row in rows] == list(range(1, rate.STEPS + 1))
    assert all(row["holds"] == 1 and row["rate"] <= row["norm_max"] for row in rows[:10])
    assert rows[20]["distance"] < 0.95**20


def test_memory_of_an_implicit_step_is_flat_in_evaluations_and_grows_with_euler_steps():
    x = torch.randn(200, 8, 3)
    solved = [peak(ImplicitERNN(3, 16, bound=bound, layer=SOLVED), x) for bound in (0.1, 0.95)]
    assert solved[1] < 1.1 * solved[0]
    euler = [peak(ERNN(3, 16, steps=steps), x) for steps in (1, 5)]
    assert euler[1] > 2 * euler[0]


@pytest.mark.slow
def test_layers_are_compared_with_torchs_own():
    speeds = {row["layer"]: row for row in speed.times(CONTEXT, width=16)}
    assert speeds["nn.LSTM"]["step_ratio"] == 1
    assert speeds["LSTM"]["parameters"] == speeds["nn.LSTM"]["parameters"] - 4 * 16  # one bias less
