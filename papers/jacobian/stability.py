"""Pre- and post-LN, weight norm, weight decay, Jacobian penalty: residuals, radius."""

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Pivot, first, last
from papers.jacobian.common import PROBED, VARIANTS, against_norm, course, final, training_of

FIGURE_3 = ("post", "pre", "unnormalised", "post-jr", "pre-jr")
FIGURE_7 = ("post", "post-15", "post-jr")
FIGURE_8 = ("post", "decay", "decay-more", "post-jr")
NAMES = tuple(dict.fromkeys((*FIGURE_3, *FIGURE_7, *FIGURE_8)))
WORDS = {name: VARIANTS[name].words for name in NAMES}
LINES = {
    "label": {name: words.removeprefix("DEQ, ") for name, words in WORDS.items()},
    "colors": {name: place for place, name in enumerate(NAMES)},
}
RESIDUAL = f"forward residual after {PROBED}"

STUDY = Study(
    item="Figures 3, 7, 8, 10b, 10c",
    title="What keeps a DEQ-Transformer stable",
    points=lambda scale: [
        Point(
            {"network": name, "limit": VARIANTS[name].limit},
            [summary, epochs],
            {"run": training_of(name, scale)},
        )
        for name in NAMES
    ],
    views=[
        Pivot(
            title="Stability of DEQ-Transformers, short trainings on Penn Treebank",
            index={"network": "network", "limit": "limit in training"},
            whole=True,
            words={"network": WORDS},
            values={
                "validation perplexity": final("valid_perplexity"),
                "forward residual, first epoch": first("probe_forward"),
                "last epoch": last("probe_forward"),
                "adjoint residual, last epoch": last("probe_adjoint"),
                "spectral radius, last epoch": last("radius"),
                "||J||²/d, first epoch": first("probe_norm"),
                "||J||²/d, last epoch": last("probe_norm"),
            },
            note=f"Residuals: relative, after {PROBED} evaluations or products, without dropout; "
            "one seed. The paper trains 60 to 100 thousand steps on WikiText-103: there pre-LN "
            "collapses at 25 thousand and no weight norm at 18 thousand, weight decay (1e-6) does "
            "not help, and the penalty holds residual and radius. Its figures' values are not "
            "printed.",
        ),
        *(
            course(f"Fig. {title}", "step", y, where={"network": names}, **LINES)
            for title, names, y in (
                (f"3a: {RESIDUAL}", FIGURE_3, "probe_forward"),
                (f"3b: adjoint residual after {PROBED}", FIGURE_3, "probe_adjoint"),
                ("7: spectral radius, mean", FIGURE_7, "radius"),
                ("7: validation perplexity", FIGURE_7, "valid_perplexity"),
                (f"8: {RESIDUAL}", FIGURE_8, "probe_forward"),
                ("10c: ||J||² / d", FIGURE_8, "probe_norm"),
            )
        ),
        against_norm("Fig. 10b", **LINES),
    ],
)
