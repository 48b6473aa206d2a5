"""Exact strings against their length, by the equilibrium network and by networks of fixed depth.

The rows of `reasoning/parity`, as one picture.
"""

from equilibria.run.studies.study import Study
from papers.reasoning import parity
from papers.reasoning.common import EQUILIBRIUM, by_size, size_chart

SHOWN = (EQUILIBRIUM, "tied, 8 deep", "untied, 8 deep")

STUDY = Study(
    title="Learned on 16 bits, solved at any length",
    points=parity.points,
    rows_of="reasoning/parity",
    views=[
        size_chart("Strings whose every prefix parity is right", "bits", network=SHOWN),
        by_size("Exact strings, per cent", parity.LENGTHS, network=SHOWN),
    ],
)
