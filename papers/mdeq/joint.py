"""The classes of pixels and of the image, from one state, on CamVid.

Presence: whether a frame shows a class, for each of the 11; the mean of the shares of frames with
and without it that are told right, over the classes that some frames show and others do not
(guessing: 50 %). The recipe camvid, at equal steps.
"""

from equilibria.run.studies.measures.epochs import summary
from equilibria.run.studies.study import Point, Study, grid
from equilibria.run.studies.views import Pivot, mean, number, spread
from papers.mdeq.scenes import COSTS, SEEDS, training_of

HEADS = {
    "masks": ("masks alone", ()),
    "presence": (
        "presence alone",
        ("--model.heads", "[presence]", "--task.presence", "1.0"),
    ),
    "both": (
        "both on one equilibrium",
        ("--model.heads", "[masks, presence]", "--task.presence", "0.5"),
    ),
}

STUDY = Study(
    item="sec. 3.1",
    title="Several heads on one equilibrium",
    points=lambda scale: [
        Point(
            {"heads": each["heads"], "seed": each["seed"]},
            [summary],
            {"run": training_of("mdeq", each["seed"], *HEADS[each["heads"]][1])},
        )
        for each in grid(seed=SEEDS, heads=HEADS)
    ],
    views=[
        Pivot(
            title="CamVid, test images",
            index={"heads": "heads"},
            words={"heads": {name: words for name, (words, _) in HEADS.items()}},
            values={
                "seeds": number("loss"),
                "mean IoU, %": spread("miou", 100),
                "presence accuracy, %": spread("presence", 100),
                "parameters": mean("parameters"),
                **COSTS,
            },
        ),
    ],
)
