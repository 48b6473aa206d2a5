"""An experiment without a network: the squares of three numbers."""

import math

from equilibria.bench.record import Table
from equilibria.experiments.case import Case
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Experiment, Page


def show(done):
    rows = [[key, each.value["square"]] for key, each in done.items()]
    line = Series(label="squares", x=list(range(len(rows))), y=[row[1] for row in rows])
    return Page(
        [Table(title="squares", columns=["number", "square"], rows=rows)],
        [Panel(title="squares", x="number", y="square", series=[line])],
    )


class Toy:
    """Counts how often each of its cases is measured; keywords change the fields of cases."""

    def __init__(self, **changes):
        self.calls = []
        self.changes = changes

    def case(self, number, **fields):
        def run(place):
            self.calls.append(number)
            return {"square": number**2, "nothing": math.nan}

        key = f"n{number}"
        described = {"key": key, "description": "squares", "minutes": 1.0, "run": run}
        return Case(**{**described, **fields, **self.changes.get(key, {})})

    def cases(self, scale):
        return [
            self.case(1, shared=True, settings={"scale": scale}),
            self.case(2, needs=("n1",)),
            self.case(3),
        ]

    @property
    def experiment(self):
        names = {"name": "toy/squares", "paper": "Euclid", "subject": "book II"}
        return Experiment(**names, description="Squares.", cases=self.cases, show=show)
