"""Pages of canned results: what tables say of trainings that ended well, ran away, are missing."""

import json

import pytest

from equilibria.bench import record
from equilibria.experiments import draw, trainings, variants
from equilibria.experiments.case import Done
from equilibria.experiments.deq import quality, tables
from equilibria.experiments.experiment import NOT_RUN
from equilibria.experiments.jacobian import language, stability

STATUS = {"CONVERGED": 0.9, "MAX_EVALS": 0.1}
SOLVES = {"evals": {"mean": 7.0}, "status": STATUS}
MACHINE = {"threads": 2, "machine": "2 cores"}


def epoch(number, **figures):
    judged = {"loss": 4.0, "perplexity": 300.0 / number, "forward": SOLVES}
    return {
        "epoch": number,
        "step": 10 * number,
        "seconds": 30.0,
        "train": {"forward": SOLVES, "adjoint": SOLVES},
        "valid": judged,
        "test": judged,
        "probe": {"forward": 0.01, "adjoint": 0.02, "norm": 0.3},
        "spectral_radius": {"mean": 0.8, "max": 0.9},
        **figures,
    }


def trained(*, deq=True, diverged=None, seconds=60.0, perplexity=130.0, **facts):
    kind = "deq" if deq else "explicit"
    value = {
        "parameters": 2_000_000,
        "lexicon": 1_000_000,
        "seconds": seconds,
        "metrics": [epoch(1), epoch(2)],
        "evaluation": None
        if diverged
        else {"perplexity": perplexity, "loss": 4.8, "forward": SOLVES},
        "memory": None if diverged else [{"kind": kind, "evals": 12, "bytes": 2**20}],
        "penalised_bytes": None if diverged or not deq else 2**21,
        "diverged": diverged,
    }
    return Done(value, {**MACHINE, **facts})


def step(plain, penalised, probability):
    whole = (1 - probability) * plain + probability * (penalised or 0.0)
    return {
        "plain": plain,
        "penalised": penalised,
        "probability": probability,
        "step": whole,
    }


TIMED = {"deq": step(100.0, 300.0, 0.25), "tied": step(100.0, None, 0.0)}
TIMES = Done(
    {"threads": 2, "begin": TIMED, "end": TIMED, "read": {"deq": 3.0, "tied": 2.0}}, MACHINE
)
QUALITY = Done(
    {
        "evaluation": {"forward": SOLVES},
        "rows": {"converged": 0.6, "pieces": 8},
        "cosine": 0.995,
    },
    MACHINE,
)


@pytest.fixture
def done():
    """All trainings of `deq/tables` and what is measured of them."""
    found = {}
    for case in tables.cases("cpu"):
        if case.key.startswith("quality"):
            found[case.key] = QUALITY
        elif case.key.startswith("time"):
            found[case.key] = TIMES
        else:
            found[case.key] = trained(deq="-deq-" in case.key)
    return found


def shown(show, done, folder):
    """The tables by their title, each row as wide as its heading; the figure is drawn too."""
    page = show(done)
    draw.draw(page.panels, folder / "figure.svg")
    for table in page.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
        json.dumps(record.finite(table.rows), allow_nan=False)
    return {table.title.split(":")[0]: table for table in page.tables}


def compared(done, folder, row=0):
    """A row of the comparison, by column."""
    title = f"Equilibrium against {trainings.LAYERS} weight-tied layers after the same tokens"
    table = shown(tables.show, done, folder)[title]
    return dict(zip(table.columns, table.rows[row], strict=True))


def test_a_step_has_its_share_of_penalised_ones(done, tmp_path):
    row = compared(done, tmp_path)
    assert row["a step, in turns"] == pytest.approx(1.5)  # 0.75 * 1 + 0.25 * 3
    assert row["plain"] == 1 and row["penalised"] == 3
    table = shown(tables.show, done, tmp_path)["Table 4"]
    ours = next(row for row in table.rows if row[1].startswith("ours"))
    assert ours[2:] == ["1.50x", "1.50x", "1.00x", "3.00x", "1.50x", "1.00x"]


def test_solves_of_pieces_and_rows_that_converged_are_told_apart(done, tmp_path):
    row = compared(done, tmp_path)
    assert row["pieces a segment"] == 8
    assert row["pieces converged, %"] == pytest.approx(90)
    assert row["rows converged, %"] == pytest.approx(60)


def test_trainings_of_two_machines_have_no_ratio_of_times(done, tmp_path):
    assert compared(done, tmp_path)["training time, ratio"] == 1
    done[trainings.deq_key("transformer", 0)] = trained(threads=1)
    row = compared(done, tmp_path)
    assert row["training time, ratio"] is None
    assert row["on"] == "1 threads, 2 cores against 2 threads, 2 cores"
    assert compared(done, tmp_path, 1)["training time, ratio"] == 1


def test_what_ran_away_is_told_from_what_was_not_run(done, tmp_path):
    done[trainings.deq_key("transformer", 0)] = trained(diverged="the loss is nan at step 3")
    row = compared(done, tmp_path)
    assert row["perplexity, DEQ"] == "diverged" and row["tied"] == 130
    told = {row[name] for name in ("ratio", "rows converged, %", "memory, ratio")}
    assert told == {"diverged"} == {row["training time, ratio"], row["with the penalty"]}
    del done[trainings.tied_key("transformer", 1)]
    del done[quality.quality_key(trainings.deq_key("trellisnet", 0))]
    row = compared(done, tmp_path, 1)
    assert row["tied"] == row["ratio"] == row["memory, ratio"] == NOT_RUN
    assert row["perplexity, DEQ"] == 130 and row["adjoint cosine"] == 0.995
    assert compared(done, tmp_path, 3)["rows converged, %"] == NOT_RUN


def test_a_stack_that_ran_away_is_told_too(done, tmp_path):
    done[trainings.tied_key("transformer", 0)] = trained(deq=False, diverged="at step 3")
    row = compared(done, tmp_path)
    assert row["tied"] == row["ratio"] == row["memory, ratio"] == "diverged"
    assert row["rows converged, %"] == pytest.approx(60)
    done[trainings.copying_key("lstm", 0)] = trained(deq=False, diverged="at step 3")
    table = shown(tables.show, done, tmp_path)["Copy memory"]
    assert table.rows[0] == [0, 4.8, "diverged", 4.8, "diverged"]


def test_stability_is_drawn_whole_in_part_and_diverged(tmp_path):
    done = {variants.key(name): trained() for name in stability.NAMES}
    first = next(iter(shown(stability.show, done, tmp_path).values()))
    assert len(first.rows) == len(stability.NAMES) and first.rows[0][2] == 150
    assert first.rows[0][3:] == [0.01, 0.01, 0.02, 0.8, 0.3, 0.3]
    done[variants.key("pre")] = trained(diverged="at step 3")
    early = trained(diverged="at step 3")
    done[variants.key("unnormalised")] = Done({**early.value, "metrics": []}, MACHINE)
    del done[variants.key("pre-jr")]
    (table,) = shown(stability.show, done, tmp_path).values()
    rows = dict(zip(stability.NAMES, table.rows, strict=True))
    assert rows["pre"][2] == "diverged" and rows["pre"][4] == 0.01
    assert rows["unnormalised"][2] == "diverged in the first epoch"
    assert rows["pre-jr"][2] is None


def test_regularised_networks_are_drawn_with_times_of_one_machine_alone(tmp_path):
    done = {variants.key(name): trained() for name in variants.VARIANTS}
    done[variants.key("tied")] = trained(deq=False, seconds=30.0)
    done[variants.key("pre")] = trained(machine="another")
    done[variants.key("post-15")] = trained(diverged="at step 3")
    done["early"] = Done({"perplexity": 140.0, "forward": SOLVES}, MACHINE)
    (table,) = shown(language.show, done, tmp_path).values()
    ours = {row[0]: row[7:] for row in table.rows}
    assert ours["DEQ, post-LN"] == [130, "2.00x", 7, 7, 2]
    assert ours["DEQ, pre-LN"][1] is None
    assert ours["DEQ, post-LN, 15 evaluations"][0] == "diverged"
