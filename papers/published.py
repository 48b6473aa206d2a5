"""What the papers print, from `published.csv` of each; values that are not printed are not guessed.

Columns: paper, item, row, metric, value, unit. A figure that the paper leaves out has no line.
"""

import csv
import functools
from pathlib import Path
from typing import Any

AGARWALA_2022 = "Agarwala and Schoenholz 2022"
BAI_2019 = "Bai et al. 2019"
BAI_2021 = "Bai et al. 2021"
BAI_2022 = "Bai 2022 (thesis)"
KAG_2019 = "Kag et al. 2019"


def read_published(paper: str, item: str) -> list[dict[str, Any]]:
    """Return the rows of a table or a figure of a paper, in its order.

    Args:
        paper: such as "Bai et al. 2019"; the module has a constant for each.
        item: such as "Table 2".

    Returns:
        A dict for each row, of `row`, its name, and each metric that it has, which is a number, or
        text where the paper prints no number or its unit is part of it (66M).

    Raises:
        LookupError: the item is unknown.
    """
    rows: dict[str, dict[str, Any]] = {}
    for line in _lines():
        if (line["paper"], line["item"]) == (paper, item):
            row = rows.setdefault(line["row"], {"row": line["row"]})
            row[line["metric"]] = _value(line["value"], line["unit"])
    if not rows:
        raise LookupError(f"there are no published numbers for {paper}, {item}")
    return list(rows.values())


def _value(value: str, unit: str) -> Any:
    if unit in ("M", "K"):  # of parameters: as the paper writes them
        return value + unit
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value


@functools.cache
def _lines() -> tuple[dict[str, str], ...]:
    paths = sorted(Path(__file__).parent.glob("*/published.csv"))
    texts = [path.read_text("utf-8") for path in paths]
    return tuple(line for text in texts for line in csv.DictReader(text.splitlines()))
