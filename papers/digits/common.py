"""Means over seeds, below the rows that they are of."""

from collections.abc import Mapping

import pandas as pd

from equilibria.run.studies.results import Frame


def with_means(rows: Frame, factor: str, decimals: Mapping[str, int]) -> Frame:
    """Return the rows, then their means over several seeds for each level of a factor.

    Args:
        rows: one for each level and seed.
        factor: column of the levels.
        decimals: columns of the figures, and to how many digits their means are rounded.
    """
    rows = rows.reindex(columns=list(dict.fromkeys([*rows, *decimals])))
    groups = rows.groupby(factor, sort=False)
    means = groups[list(decimals)].mean().round(dict(decimals)).reset_index()
    means = means[groups["seed"].nunique().to_numpy() > 1].assign(seed="mean")
    return pd.concat([rows.astype({"seed": object}), means]) if len(means) else rows
