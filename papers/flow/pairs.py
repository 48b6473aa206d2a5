"""Small RAFT and DEQ-RAFT on generated pairs: errors, corrections and residuals.

Recipes flow-layers and flow-layers-raft: 96 x 128 pixels, layers under affine motion, 1,000 steps
of 8 pairs; 200 test pairs of other parts of the photographs. The parts are the same; RAFT's context
encoder starts the hidden state, DEQ-RAFT's cell has weight norms.
"""

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Scale, Study, grid
from equilibria.run.studies.views import Lines, Pivot, Table, mean, number, spread
from papers.flow import common


def points(scale: Scale) -> list[Point]:
    grids = grid(network=tuple(common.NETWORKS), seed=common.SEEDS)
    runs = {tuple(each.values()): common.training_of(scale=scale, **each) for each in grids}
    trained = [
        Point(
            {"on": "generated", **each},
            [summary, common.reference, epochs, common.residuals],
            {"run": runs[tuple(each.values())]},
            minutes=1,
        )
        for each in grids
    ]
    further = [
        Point(
            {"on": on, "network": name, "seed": seed},
            [measure],
            {"run": runs[name, seed]},
            minutes=2,
        )
        for on, measure, names in (
            ("Sintel", common.scenes, (common.RAFT, common.THESIS)),
            ("starts", common.starts, (common.THESIS, common.RANDOM)),
        )
        for name in names
        for seed in common.SEEDS
    ]
    return [*trained, *further]


STUDY = Study(
    item="Table 7.1, Figures 7.5 to 7.7",
    title="Optical flow at equilibrium",
    points=points,
    views=[
        Pivot(
            title="Generated pairs",
            index={"network": "network"},
            where={"on": "generated"},
            values={
                "seeds": number("epe"),
                "parameters": lambda rows: int(rows["parameters"].iloc[0]),
                "end-point error, px": spread("epe", 1, ".2f"),
                "of zero flow": mean("zero"),
                "evaluations": mean("evals"),
                "converged, %": mean("converged", 100),
                "training, s": mean("seconds"),
            },
        ),
        Table(
            title="Figure 7.7: residual and error",
            columns=[
                *("network", "evaluations", "residual", "residual–error correlation"),
                *("flow still moves, px", "movement–error correlation"),
            ],
            rows=common.correlations,
            note="Pearson's correlations over test pairs of all seeds; the recipe's solver from "
            "zero. The flow moves by what one more evaluation changes, on average over all pixels.",
        ),
        Pivot(
            title="Starts",
            index={"network": "network", "seed": "seed"},
            where={"on": "starts"},
            values={
                "converged from zero, truth and noise, %": mean("converged", 100),
                "of these within .1 px, %": mean("agree", 100),
                "from truth, px apart": "from_truth",
                "from noise, px apart": "from_noise",
            },
            note="Within 100 evaluations of the recipe's solver; apart from the flow from zero.",
        ),
        Table(
            title="Sintel at half its size",
            columns=["network", "seeds", "error over that of zero flow"],
            rows=common.scene_rows,
            note=f"Geometric mean over the pairs whose mean motion at full size is below "
            f"{common.FAR:g} pixels. Nothing was learned from it.",
        ),
        Table(
            title="Table 7.1, published",
            columns=["network", "Sintel clean, px", "final, px", "KITTI, px", "KITTI F1, %"],
            rows=lambda data: common.from_paper(),
            note="Trained on FlyingChairs and FlyingThings; such trainings wait for a GPU.",
        ),
        Lines("epoch", "test_epe", by=["network"], band=True).chart(
            "End-point error on test pairs", "epoch", "px", zero=True
        ),
    ],
)
