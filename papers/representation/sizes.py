"""Parameters of implicit and explicit networks, from two coordinates to one value."""

from typing import Any

from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.views import Pivot, first
from papers.measures import counterpart
from papers.representation.common import FILTERS, recipe

NETWORKS = tuple(f"implicit {size}" for size in ("1L-256D", "1L-512D", "4L-256D"))


def size(context: Context) -> dict[str, Any]:
    """Number of `parameters` from two coordinates to one value, and that of the `explicit` network
    with the same components; counted without allocating them."""
    filters, network = (str(context.factors[name]) for name in ("filters", "network"))
    words = ("--model.inputs", "2", "--model.outputs", "1", "--model.scale", "256")
    found = {}
    for name, kind in (("parameters", "implicit"), ("explicit", "explicit")):
        config = recipe("image", filters, network.replace("implicit", kind), *words).model
        found[name] = counterpart.parameters(config)
    return found


STUDY = Study(
    item="Section 8.3",
    title="Sizes of coordinate networks",
    points=lambda scale: [Point(each, [size]) for each in grid(filters=FILTERS, network=NETWORKS)],
    views=[
        Pivot(
            title="Sizes of implicit networks",
            index={"network": "network"},
            across="filters",
            values={"{level}": first("parameters"), "{level}, explicit": first("explicit")},
        )
    ],
)
