"""Mean squared error of the sum of two marked numbers among many.

New sequences in each step, batches of 50, 3,000 steps, 1,000 test sequences, evaluated every 100
steps. Answering 1 has an error of 0.167. ERNN's step size begins at 0.01, and at 0.003 where T =
400; the others have the same settings at both lengths.
"""

from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import NOT_RUN, Cell, Lines, Pivot, mean, spread
from papers.ernn.common import SEEDS, point

LENGTHS, SOLVED = (200, 400), 0.01
STEP_SIZES = {200: "0.01", 400: "0.003"}
"""eta at the start: at 400 steps the larger one forgets too fast, and gradients overflow."""

NETWORKS = {
    "ERNN (K = 1)": (),
    "FastRNN": ("--model.cell.name", "FastRNN", "--model.hidden", "64"),
    "LSTM": ("--model.cell.name", "LSTM", "--model.hidden", "64"),
}


def step_size(length: int) -> tuple[str, str]:
    """Return the option of an equilibrated network for a length."""
    return ("--model.cell.step_size", STEP_SIZES[length])


def points(scale: Scale) -> list[Point]:
    return [
        point(
            "adding",
            ("--task.length", str(length), *(options or step_size(length))),
            length / 200 * (10 if network == "LSTM" else 4),
            length=length,
            network=network,
            seed=seed,
        )
        for length in LENGTHS
        for network, options in NETWORKS.items()
        for seed in SEEDS
    ]


def list_steps(rows: Frame) -> Cell:
    """After how many steps each seed is first below `SOLVED`."""
    found: list[str] = []
    for _, run in rows.groupby("seed"):
        below = run[run["test_loss"] < SOLVED]
        if run["test_loss"].notna().any():
            found.append(str(int(below["step"].iloc[0])) if len(below) else "never")
    return ", ".join(found) or NOT_RUN


STUDY = Study(
    item="after Figure 4; the task is not the paper's",
    title="Adding problem",
    points=points,
    views=[
        Pivot(
            title=f"Steps until the error is below {SOLVED:g}",
            index={"length": "T", "network": "network"},
            whole=True,
            values={
                "steps, by seed": list_steps,
                "error at the end": spread("loss", 1, ".4f"),
                "parameters": "parameters",
                "training, s": mean("seconds"),
            },
        ),
        *(
            Lines("step", "test_loss", by=["network"], where={"length": length}, band=True).chart(
                f"T = {length}",
                "step",
                "mean squared error",
                levels=[("answering 1", 1 / 6), ("solved", SOLVED)],
                log_y=True,
            )
            for length in LENGTHS
        ),
    ],
)
