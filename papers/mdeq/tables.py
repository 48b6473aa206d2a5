"""MDEQ, single-stream DEQ, ResNet and neural ODEs of one size, on small images."""

import re
from typing import Any

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Study, grid
from equilibria.run.studies.views import Bars, Chart, Lines, Pivot, first, of
from papers.mdeq.common import IMAGES, NAMES, SEEDS, training_of
from papers.mdeq.thesis_tables import ACCURACY, ORDER, RELEASED, source
from papers.measures.memory import step_memory


def _curves(data: str) -> Chart:
    lines = Lines(
        "epoch",
        ("valid_accuracy", "test_accuracy"),  # the latter where no images are set aside
        by=["network"],
        where={"data": data},
        label=NAMES,
        colors={name: place for place, name in enumerate(NAMES)},
        band=True,
        scale=100,
    )
    title = f"{IMAGES[data]}, held-out images: mean and range"
    return Chart(title=title, x="epoch", y="accuracy, %", marks=lines, whole_x=True)


def _bars(title: str, unit: str, **options: Any) -> Chart:
    names = [re.sub("(-| )", r"\1\n", words) for words in NAMES.values()]
    bars = Bars(at="network", places=list(NAMES), by="data", label=IMAGES, **options)
    return Chart(title=title, x="", y=unit, marks=bars, names=names, zero=True)


STUDY = Study(
    item="Table 3.1, Figure 3.5",
    title="Networks of one size on small images",
    points=lambda scale: [  # seed by seed: an early stop leaves all networks, with fewer seeds
        Point(
            {name: each[name] for name in ("data", "network", "seed")},
            [summary, step_memory, epochs],
            {"training": training_of(each["data"], each["network"], scale, each["seed"])},
            minutes=0.5,
        )
        for each in grid(seed=SEEDS, data=IMAGES, network=NAMES)
    ],
    views=[
        ACCURACY,
        ORDER,
        Pivot(
            title="Every training",
            index={"data": "images", "network": "network", "seed": "seed"},
            words={"data": source, "network": NAMES},
            values={
                "test accuracy, %": of("accuracy", 100),
                "evaluations, mean": "evals",
                "converged, %": first("converged", 100),
                "minutes": first("seconds", 1 / 60),
                "on": "conditions",
            },
            note="Evaluations and converged: solves of the test images, to the recipe's tolerance "
            "and limit.",
        ),
        RELEASED,
        *(_curves(data) for data in IMAGES),
        _bars("time of all training steps", "minutes", y="seconds", merge="median", scale=1 / 60),
        _bars("memory of a training step", "MiB", y="step_bytes", merge="max", scale=2**-20),
    ],
)
