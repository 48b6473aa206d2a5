"""What a solve saves that starts at the equilibrium of the pair before."""

from collections.abc import Iterable, Sequence
from typing import Any

from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Lines, Table
from papers.flow import common

STARTS = {
    "cold": "zero",
    "reuse": "the pair before: hidden state and flow",
    "flow_only": "the pair before: flow alone",
}


def _rows(data: Data) -> Iterable[Sequence[Any]]:
    for network, found in _by_network(data, "cold"):
        arrived, seeds = 100 * found["arrived"].mean(), found["seed"].nunique()
        warm = 100 * found["warm"].mean()
        for name, words in STARTS.items():
            apart = found["apart"].mean() if name == "reuse" else None
            ratio = found[name].sum() / found["cold"].sum()
            started = None if name == "cold" else warm
            yield [network, words, seeds, started, found[name].mean(), ratio, apart, arrived]


def _cuts(data: Data) -> Iterable[Sequence[Any]]:
    for network, found in _by_network(data, "cut_cold"):
        for name, words in (
            ("cut_cold", "zero"),
            ("cut_reuse", "as --reuse does"),
            ("cut_blind", "the pair before, whatever is seen"),
        ):
            ratio = found[name].sum() / found["cut_cold"].sum()
            noticed = 100 * found["noticed"].mean() if name == "cut_reuse" else None
            yield [network, words, found[name].mean(), ratio, noticed]


def _by_network(data: Data, name: str) -> Iterable[tuple[str, Frame]]:
    found = data.series(name)
    for network in () if found.empty else (common.THESIS, common.RANDOM):
        rows = found[found["network"] == network]
        if len(rows):
            yield network, rows


STUDY = Study(
    item="Figure 7.3",
    title="Optical flow of consecutive frames",
    note="The networks of flow/pairs, which have seen no film, on the 101 frames of a drive of "
    f"CamVid at about 15 Hz, {common.SIZE[0]} x {common.SIZE[1]} pixels. The recipe's solver to "
    "half its tolerance (.005 of the hidden state; .05 pixels of the flow) within "
    f"{common.MAX_EVALS} evaluations, whatever the start. Published: about 1.6 times as fast.",
    points=lambda scale: [
        Point(
            {"network": name, "seed": seed},
            [common.frames, common.cuts],
            {"run": common.training_of(name, seed, scale)},
            minutes=6,
        )
        for name in (common.THESIS, common.RANDOM)
        for seed in common.SEEDS
    ],
    views=[
        Table(
            title="Evaluations of a pair of frames",
            columns=[
                *("network", "start", "seeds", "warm-started pairs, %", "evaluations"),
                *("times those from zero", "flow apart, px", "all solves converged, %"),
            ],
            rows=_rows,
            note="After a pair whose solve did not converge, the next one begins at zero. Apart: "
            "mean distance of the flow from the one that the solve from zero finds.",
        ),
        Table(
            title="At a cut",
            columns=["network", "start", "evaluations", "times those from zero", "cuts noticed, %"],
            rows=_cuts,
            note=f"{common.CUTS} cuts to other drives a network.",
        ),
        Lines(
            "frame", tuple(STARTS), where={"network": common.RANDOM, "seed": 0}, label=STARTS
        ).chart(
            "Evaluations per pair, network trained from random starts",
            "pair",
            "evaluations",
            zero=True,
        ),
    ],
)
