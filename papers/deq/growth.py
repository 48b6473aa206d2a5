"""Evaluations of training solves, forward and adjoint, grow with the epochs."""

from equilibria.run.studies.measures.epochs import epochs
from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Lines, Pivot, first
from papers.deq.common import CELLS, language

NAMES = {"transformer": "DEQ-Transformer", "trellisnet": "DEQ-TrellisNet"}

STUDY = Study(
    item="Figure 2, left",
    title="Evaluations grow in training",
    points=lambda scale: [
        Point({"cell": cell}, [epochs], {"deq": language(cell, scale)}) for cell in CELLS
    ],
    views=[
        Pivot(
            title="Evaluations in training",
            index={"cell": "cell", "epoch": "epoch"},
            each="epoch",
            values={
                "forward, mean": "forward",
                "adjoint, mean": "adjoint",
                "forward converged, %": first("forward_converged", 100),
            },
            note="Penn Treebank, to the recipe's tolerances and limits; an adjoint's evaluation is "
            "one vector-Jacobian product. Epochs of a warm-up by unrolling have no solves. The "
            "paper's figure shows both growing over the epochs, the backward below the forward; "
            "its values are not printed.",
        ),
        *(
            Lines("epoch", ("forward", "adjoint"), where={"cell": cell}, style="marked").chart(
                f"{name}, training", "epoch", "evaluations, mean", whole_x=True, zero=True
            )
            for cell, name in NAMES.items()
        ),
    ],
)
