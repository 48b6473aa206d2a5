"""Parameters of RAFT, GMA and their equilibria, as published and as counted."""

from collections.abc import Iterable, Sequence
from typing import Any

from equilibria.run.models import config_of
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import NOT_RUN, Table
from papers.measures import counterpart
from papers.published import BAI_2022, read_published

NETWORKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "RAFT": ("raft", {}, 5_257_536),
    "RAFT, small": ("raft-small", {}, 990_162),
    "DEQ-RAFT-B": ("deq-raft", {"size": "B"}, 5_241_024),
    "DEQ-RAFT-L": ("deq-raft", {"size": "L"}, 8_447_360),
    "DEQ-RAFT-H": ("deq-raft", {"size": "H"}, 12_796_480),
    "DEQ-GMA-B": ("deq-gma", {"size": "B"}, 5_781_697),
}
"""Name and fields of each network, and the parameters of the released code."""


def size(context: Context) -> dict[str, Any]:
    """`parameters`, without those of weight normalisation, and `lengths`, which these are; counted
    without allocating them."""
    name, options, _ = NETWORKS[str(context.factors["network"])]
    config: Any = config_of(name)
    if not name.startswith("deq"):
        return {"parameters": counterpart.parameters(config(**options)), "lengths": 0}
    plain, whole = (counterpart.parameters(config(weight_norm=w, **options)) for w in (False, True))
    return {"parameters": plain, "lengths": whole - plain}


def _rows(data: Data) -> Iterable[Sequence[Any]]:
    printed = {row["row"]: row["size"] for row in read_published(BAI_2022, "sec. 7.3")}
    points = data.points.set_index("network")
    for name, (_, _, released) in NETWORKS.items():
        found: Sequence[Any] = (NOT_RUN,)
        if points.loc[name, "done"]:
            found = [int(points.loc[name, key]) for key in ("parameters", "lengths")]
        yield name, printed.get(name), released, *found


STUDY = Study(
    item="Table 7.1",
    title="Sizes of networks for optical flow",
    points=lambda scale: [Point({"network": name}, [size]) for name in NETWORKS],
    views=[
        Table(
            title="Sizes",
            columns=["network", "thesis", "released code", "ours", "and of weight normalisation"],
            rows=_rows,
            note="Counted on no device. The released networks have the weight normalisation too.",
        )
    ],
)
