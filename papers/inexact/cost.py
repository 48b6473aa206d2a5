"""Memory and time of a training step against the steps of phantom gradients."""

from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Lines, Pivot, Table, first
from papers.inexact import steps
from papers.jacobian import images

MEASURES = {"memory": steps.bytes_of_steps, "time": steps.times_of_steps}

STUDY = Study(
    item="Table 5.1",
    title="Cost of exact and inexact gradients",
    note=f"The network of inexact/images, new, a batch of its recipe; the forward takes "
    f"{steps.USUAL} evaluations and the exact adjoint {steps.USUAL} products, whatever they reach, "
    "unless the table says otherwise. Undamped: a damping costs nothing.",
    points=lambda scale: [
        Point(
            {"cost": cost},
            [measure],
            reads=[images.recipe_of("plain", scale)],
            settings={"steps": steps.STEPS, "evals": steps.EVALS},
            minutes=3,
        )
        for cost, measure in MEASURES.items()
    ],
    views=[
        Table(
            title="Table 5.1: complexity",
            columns=[
                *("gradient", "published: time", "memory", "against", "MiB for one more"),
                *("R² of a line", "largest over smallest k or K", "ms for one more k", "R²"),
            ],
            rows=steps.complexity,
            note="Memory: of a training step, the forward's solve included. K: evaluations of the "
            f"forward and products of the adjoint, {steps.EVALS[0]} to {steps.EVALS[-1]}; k: "
            f"{steps.STEPS[0]} to {steps.STEPS[-1]}. The exact adjoint's memory is that of one "
            "evaluation and of what the linear solver keeps, which ends at the solver's history.",
        ),
        Pivot(
            title="Memory of a training step",
            index={"gradient": "gradient", "steps": "k", "evals": "evaluations"},
            each="bytes",
            where={"cost": "memory"},
            values={"MiB": first("bytes", 1 / steps.MIB)},
            note="Peak of forward and backward less parameters and gradients, float32.",
        ),
        Pivot(
            title="Time of a training step",
            index={"gradient": "gradient", "steps": "k"},
            each="ms",
            where={"cost": "time"},
            values={
                "forward and backward, ms": "ms",
                "times as fast as exact": "faster",
                "beyond the solve, ms": "beyond_ms",
                "times as cheap as exact's": "cheaper",
            },
            note="Medians, interleaved in one process, without the optimiser. Beyond the solve: "
            "less a forward without gradients. Published: 12 times as fast in backward on "
            "ImageNet.",
        ),
        Lines(
            "steps",
            "bytes",
            by=["gradient"],
            where={"cost": "memory", "gradient": ["UPG", "NPG"]},
            scale=1 / steps.MIB,
            style="marked",
        ).chart("Memory of a training step", "k", "MiB", whole_x=True, zero=True),
        Lines(
            "evals",
            "bytes",
            by=["gradient"],
            where={"cost": "memory", "gradient": "exact"},
            scale=1 / steps.MIB,
            style="marked",
        ).chart(
            "Memory by the exact adjoint",
            "evaluations and products",
            "MiB",
            whole_x=True,
            zero=True,
        ),
        Lines(
            "steps",
            "ms",
            by=["gradient"],
            where={"cost": "time", "gradient": ["UPG", "NPG"]},
            style="marked",
        ).chart("Time of a training step", "k", "ms", whole_x=True, zero=True),
    ],
)
