"""A network of 200 weights with and without the penalty: surfaces, slopes, solves."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Point, Study, grid
from equilibria.run.studies.views import NOT_RUN, Bars, Chart, Pivot, Table, first
from papers.jacobian.toy_network import GAMMAS as FIGURE_5
from papers.jacobian.toy_network import NOISE, VIEWS, Setting, toy

GAMMAS, SEEDS = (0.0, 1.0, 2.0, 4.0), (0, 1, 2)
SETTINGS = {
    "paper": Setting(initial=(0.01, 0.01, 0.01, 0.01), rate=1e-3, epochs=50, limit=6),
    "ours": Setting(initial=(0.15, 0.15, 1.0, 1.0), rate=5e-3, epochs=100, limit=30, clip=1.0),
}
PAPER, OURS = SETTINGS.values()
WORDS = {"paper": "the paper's Table 4", "ours": "ours"}


def _ratios(data: Data) -> Iterable[Sequence[Any]]:
    """The spread of the errors, and gamma = 0 over 2 and 4, of each seed and of the means."""
    rows = data.series("mse", gamma=FIGURE_5)
    for setting, words in WORDS.items():
        known = rows[rows["setting"] == setting]
        if known["gamma"].nunique() < len(FIGURE_5):
            yield words, "all, mean", NOT_RUN
            continue
        seeds = [(f"{seed:g}", group) for seed, group in known.groupby("seed")]
        for name, group in (*seeds, ("all, mean", known)):
            of = group.groupby("gamma")[["mse", "slope", "plain"]].mean()
            over = of.loc[0.0] / of.loc[list(FIGURE_5[1:])]
            yield words, name, of["mse"].max() / of["mse"].min(), *over["slope"], *over["plain"]


STUDY = Study(
    item="Figures 5 and 9",
    title="A one-dimensional network and the penalty",
    points=lambda scale: [
        Point(each, [partial(toy, setting=SETTINGS[each["setting"]], seeds=SEEDS)], minutes=0.8)
        for each in grid(setting=SETTINGS, gamma=GAMMAS)
    ],
    views=[
        Table(
            title="Figure 5 in figures: gamma = 0, 2, 4",
            columns=[
                *("setting", "seed", "MSE, max over min", "slope, gamma 0 over 2"),
                *("slope, 0 over 4", "plain evaluations, 0 over 2", "0 over 4"),
            ],
            rows=_ratios,
            note="Ratios of all seeds are ratios of means. In the paper all three learn almost the "
            "same equilibrium, and larger gammas flatten the surface.",
        ),
        Pivot(
            title="Section 5.1: networks of 200 weights, seed by seed",
            index={"setting": "setting", "gamma": "gamma", "seed": "seed"},
            each="mse",
            values={
                "validation error (MSE)": "mse",
                "MSE of the fixed points": "mse_solved",
                "mean |df/dz|": "slope",
                "evaluations, plain iteration": "plain",
                "plain iteration converged, %": first("plain_converged", 100),
                "evaluations, alternating Anderson (period 3)": "anderson",
                "alternating Anderson converged, %": first("anderson_converged", 100),
            },
            words={"setting": WORDS},
            note=f"{OURS.validation} validation samples; the noise alone makes an error of "
            f"{NOISE**2:g}. The first error is of states after the evaluations that training "
            f"allows ({PAPER.limit}, {OURS.limit}), the second of fixed points found to 1e-6, as "
            "is the slope; evaluations are to 1e-3, from zero. The paper's Table 4: all weights "
            f"from N(0, {PAPER.initial[0]:g}^2), Adam at {PAPER.rate:g}, {PAPER.epochs} epochs. "
            f"Ours: W1 and W2 from N(0, {OURS.initial[0]:g}^2), U and b from N(0, 1), Adam at "
            f"{OURS.rate:g}, {OURS.epochs} epochs, gradients clipped at {OURS.clip:g}. Both: "
            f"batches of {OURS.batch}, cosine, the penalty in {OURS.probability:g} of the steps, "
            "alternating Anderson to 1e-3, GMRES to 1e-4. x ~ U(-2, 2), whose ends the paper does "
            "not print.",
        ),
        *VIEWS,
        Chart(
            title=f"evaluations to 1e-3, mean of {len(SEEDS)} seeds",
            x="gamma",
            y="evaluations",
            marks=[
                Bars(at="gamma", places=GAMMAS, y=y, label={"": label}, where={"setting": "ours"})
                for y, label in (("plain", "plain iteration"), ("anderson", "alternating Anderson"))
            ],
            names=[f"{gamma:g}" for gamma in GAMMAS],
            zero=True,
        ),
    ],
)
