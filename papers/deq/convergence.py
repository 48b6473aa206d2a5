"""Trained weight-tied stacks converge with depth, slower on longer sequences."""

from functools import partial

from equilibria.run.studies.study import Point, Study, grid
from equilibria.run.studies.views import Chart, Lines, Pivot, of, smallest
from equilibria.solve import Anderson, Picard
from papers.deq.common import CELLS, LAYERS, language
from papers.measures.sequences import residuals

LENGTHS = (100, 200, 400, 800)
DEPTHS = (12, 30, 60, 120)
SOLVERS = {
    "plain": Picard(rtol=0.0, max_evals=DEPTHS[-1], patience=None),
    "anderson": Anderson(period=3, rtol=0.0, max_evals=40, patience=None),
}
SEGMENTS = 4
lines = partial(Lines, x="evals", y="median", by=["length"])

STUDY = Study(
    item="Figure 4",
    title="Convergence with depth",
    points=lambda scale: [
        Point(
            each,
            [partial(residuals, solvers=SOLVERS, count=SEGMENTS, length=each["length"])],
            {"tied": language(each["cell"], scale, tied=True)},
            minutes=0.3 + each["length"] / 600,
        )
        for each in grid(cell=CELLS, length=LENGTHS)
    ],
    views=[
        Pivot(
            title="Relative residual of a trained weight-tied stack, median over segments",
            index={"cell": "cell", "length": "length"},
            whole=True,
            values={
                **{
                    f"after {depth} layers": of("median", solver="plain", evals=depth)
                    for depth in DEPTHS
                },
                "alternating Anderson (period 3), best of 40 evaluations": smallest(
                    "median", solver="anderson"
                ),
            },
            note=f"||f(z) - z|| / ||f(z)|| of the layer that was trained {LAYERS} deep, {SEGMENTS} "
            "test segments of Penn Treebank, each at a beginning. The paper's figure shows "
            "residuals that fall with depth, slower for longer sequences, and transformers that "
            "begin to oscillate; its values are not printed.",
        ),
        *(
            Chart(
                title=f"tied {cell}: layers (solid), alternating Anderson (dashed)",
                x="layers, or evaluations",
                y="relative residual",
                marks=[
                    lines(
                        where={"cell": cell, "solver": "plain"},
                        low="low",
                        high="high",
                        label="length {}".format,
                    ),
                    lines(where={"cell": cell, "solver": "anderson"}, label="", style="dashed"),
                ],
                log_y=True,
            )
            for cell in CELLS
        ),
    ],
)
