"""Samples per second of two processes of one thread each, beside one."""

import statistics

from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Pivot
from papers.bench.processes import OPTIONS, STEPS, launch

ROWS = {"shapes": 8, "digits": 256}
"""Rows of a step, on each process."""

ROUNDS = 5
MINUTES = {"shapes": 1.5, "digits": 0.8}


def speeds(context: Context) -> dict[str, float]:
    """Samples per second and their ratio, from rounds of one and of two processes in turns."""
    recipe, rows = str(context.factors["recipe"]), int(context.factors["rows"])
    rounds = [[launch(recipe, rows, processes) for processes in (1, 2)] for _ in range(ROUNDS)]
    ratios = [two["speed"] / one["speed"] for one, two in rounds]
    return {
        "one": statistics.median(one["speed"] for one, _ in rounds),
        "two": statistics.median(two["speed"] for _, two in rounds),
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "idle": 100 * statistics.median(two["idle"] for _, two in rounds),
    }


STUDY = Study(
    title="Several processes",
    points=lambda scale: [
        Point(
            {"recipe": recipe, "rows": rows},
            [speeds],
            settings={"rounds": ROUNDS, "steps": STEPS, "options": list(OPTIONS)},
            minutes=MINUTES[recipe],
        )
        for recipe, rows in ROWS.items()
    ],
    views=[
        Pivot(
            title="Two processes beside one",
            index={"recipe": "recipe", "rows": "rows per process"},
            values={
                "samples/s, one": "one",
                "samples/s, two": "two",
                "ratio": "ratio",
                "min": "low",
                "max": "high",
                "idle by unequal evaluations, %": "idle",
            },
            note="One thread per process, gradients averaged over gloo (ddp), each process with as "
            f"many rows as the one alone. Medians of {ROUNDS} rounds of {STEPS} steps, of one and "
            "of two processes in turns, each in new processes; the ratio is that of a round. "
            "Without shallow start and penalty. The machine should have two cores and nothing else "
            "to do.",
        ),
    ],
)
