"""Memory of a step against length and depth: equilibrium, unrolled, checkpointed."""

from equilibria.run import memory
from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.views import Lines, Pivot, Table, first, of, ratio
from equilibria.run.trainer import seed_all
from papers.deq.common import CELLS, load_recipe
from papers.measures.sequences import segments
from papers.published import BAI_2019, read_published

LENGTHS = (50, 100, 200, 400)
DEPTHS = (6, 12, 24, 48)
BATCH = 4
KINDS = ("deq", "unrolled", "checkpointed")
MIB = 2**20


def steps(context: Context) -> dict[str, int]:
    """Bytes of a step of a new network by kind, and of these `history`, which the solver keeps."""
    (recipe,) = context.reads
    task, length, depth = context.tasks(recipe), *(context.factors[k] for k in ("length", "depth"))
    batch = segments(task, int(length), BATCH, "train")
    seed_all(0)
    model = task.model(recipe.model, **recipe.layer())
    found = {point.kind: point for point in memory.measure(model, task, batch, [int(depth)])}
    return {"history": found["deq"].history_bytes} | {kind: found[kind].bytes for kind in KINDS}


STUDY = Study(
    item="Section 5.2, last columns of Tables 2 and 3",
    title="Memory of a training step",
    points=lambda scale: [
        Point(
            each,
            [steps],
            reads=[load_recipe(CELLS[each["cell"]], scale)],
            settings={"batch": BATCH},
            minutes=0.1 + each["length"] / 1600,
        )
        for each in grid(cell=CELLS, length=LENGTHS, depth=DEPTHS)
    ],
    views=[
        *(
            Pivot(
                title=f"Memory of a training step, {cell}",
                index={"length": "length", "depth": "depth"},
                where={"cell": cell},
                values={
                    **{f"{kind}, MiB": first(kind, 1 / MIB) for kind in KINDS},
                    "of which the solver's history": first("history", 1 / MIB),
                    "equilibrium / unrolled, %": ratio(of("deq", 100), of("unrolled")),
                },
                note=f"Peak bytes of forward and backward less parameters and gradients, {BATCH} "
                "segments, without embedding and softmax; each solve takes exactly as many "
                "evaluations as there are layers. The history grows with the evaluations up to "
                "what the solver keeps.",
            )
            for cell in CELLS
        ),
        Table(
            title="Published: memory of a training step, GB",
            columns=["text", "model", "GB"],
            rows=lambda data: [
                (text, row["row"], row["memory"])
                for text, item in (("Penn Treebank", "Table 2"), ("WikiText-103", "Table 3"))
                for row in read_published(BAI_2019, item)
                if "memory" in row
            ],
            note="Length 150, batch 15, on a GPU, without embeddings: 80 to 88 % less than the "
            "weight-tied stacks.",
        ),
        *(
            Lines(
                x, KINDS, where={"cell": cell, fixed[0]: fixed[1]}, scale=1 / MIB, style="marked"
            ).chart(
                f"{cell}: against {x}, {' '.join(map(str, fixed))}",
                {"depth": "evaluations, or layers", "length": "tokens of a segment"}[x],
                "MiB of a training step",
                log_x=x == "length",
                log_y=True,
                whole_x=x == "depth",
            )
            for cell in CELLS
            for x, fixed in (("depth", ("length", LENGTHS[-1])), ("length", ("depth", DEPTHS[1])))
        ),
    ],
)
