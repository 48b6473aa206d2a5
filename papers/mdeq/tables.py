"""MDEQ, single-stream DEQ, ResNet and neural ODEs of one size, on small images."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from equilibria.run import recipe as recipes
from equilibria.run.studies import views
from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.results import Data, Frame, select
from equilibria.run.studies.study import Point, Study, grid
from equilibria.run.studies.views import NOT_RUN, Bars, Chart, Lines, Pivot, Table, first, of
from papers.mdeq.common import IMAGES, LOOSE, NAMES, RATES, SEEDS, training_of
from papers.measures import counterpart
from papers.measures.memory import step_memory
from papers.published import BAI_2022, read_published

PUBLISHED = read_published(BAI_2022, "Table 3.1")


def source(rows: Frame) -> Any:
    """What the images of some trainings are, as they were read."""
    return views.first("source")(rows) or IMAGES[rows["data"].iloc[0]]


ACCURACY = Pivot(
    title="Table 3.1: image classification by networks of one size",
    index={"data": "images", "network": "network", "whose": "whose", "size": "parameters"},
    words={
        "data": source,
        "network": NAMES,
        "whose": lambda rows: "ours",
        "size": views.first("parameters"),
    },
    values={
        "test accuracy, %": views.spread("accuracy", 100),
        "seeds": views.count("accuracy"),
        "epochs": "last_epoch",
        "minutes": views.median("seconds", 1 / 60),
        "memory of a step, MiB": views.largest("step_bytes", 2**-20),
    },
    above=[
        [
            "CIFAR-10, augmented" if row["augmented"] == "True" else "CIFAR-10",
            *(row["model"], "thesis", row["size"]),
            *(f"{row['accuracy']:.1f} ± {row['deviation']:.1f}", 5),
        ]
        for row in PUBLISHED
    ],
    note="Mean ± standard deviation over the seeds. Ours: images resized and as many as the recipe "
    "says, without augmentation; data, their order, schedule, batch size, epochs and, except for "
    "its learning rate, optimiser are the same for all networks; each has the width whose number "
    "of parameters is nearest to the multiscale network's. Learning rates: those of the multiscale "
    f"network and of the ResNet, {RATES['resnet']:g} of it, were chosen in a few short trainings "
    "with seed 0 at CPU scale (among 0.003 to 0.005, and 0.003 and 0.005); the others use the "
    f"multiscale network's, which was not tuned for the ODEs, integrated to {LOOSE:g}. Minutes: "
    "all training steps of a seed, median. Memory: maximum over the seeds and, of an equilibrium "
    "network, over the measured depths, with the solver's history.",
)


def _order(data: Data) -> Iterable[list[Any]]:
    rows = [row for row in PUBLISHED if row["augmented"] == "False"]
    best = sorted(rows, key=lambda row: -row["accuracy"])
    yield ["thesis", "CIFAR-10", " > ".join(row["model"] for row in best)]
    for name, words in IMAGES.items():
        points = select(data.points, {"data": name})
        means: dict[str, Any] = {n: views.mean("accuracy", network=n)(points) for n in NAMES}
        lacking = [NAMES[key] for key, value in means.items() if value is None]
        if lacking:
            yield ["ours", words, NOT_RUN, f"without {', '.join(lacking)}"]
            continue
        said = " > ".join(NAMES[key] for key in sorted(means, key=lambda key: -means[key]))
        lead = 100 * (means.pop("mdeq") - max(means.values()))
        yield ["ours", source(points), said, f"{lead:+.1f}"]


ORDER = Table(
    title="The order of the networks by mean test accuracy",
    columns=["whose", "images", "order", "MDEQ minus the best other, points"],
    rows=_order,
    note="The deviations above tell which steps of the order the seeds support.",
)


def _list_released(_: Data) -> Iterable[list[Any]]:
    for row in read_published(BAI_2022, "released models"):
        model: Any = recipes.load(row["row"]).model
        shape, classes = ((3, 224, 224), 1000) if "imagenet" in row["row"] else ((3, 32, 32), 10)
        size = counterpart.parameters(replace(model, shape=shape, classes=classes))
        yield [row["row"], str(model.channels), row["size"], f"{size / 1e6:.2f}M", size]


RELEASED = Table(
    title="Sizes of the released models",
    columns=["recipe", "channels", "published", "ours", "parameters"],
    rows=_list_released,
    note="Channels of each resolution as in the authors' configurations, with the classifier. The "
    "published sizes are those of Tables 3.1 and 3.2, which these channels do not give.",
)


# --- The study ------------------------------------------------------------------------------------


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
