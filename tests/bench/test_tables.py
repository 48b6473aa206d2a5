"""The tables of the documentation, from the files in results/."""

import runpy
from pathlib import Path

import pytest

from equilibria.bench import record
from equilibria.bench.record import Table

TABLES = Path(__file__).parents[2] / "benchmarks" / "tables.py"


@pytest.fixture
def tables(tmp_path):
    """The script's functions, reading results/ of an empty folder."""
    found = runpy.run_path(str(TABLES))
    found["render"].__globals__["ROOT"] = tmp_path
    return found


def written(folder, rows=2):
    table = Table(
        title="Solvers: summary",
        columns=["what", "mean"],
        rows=[["a", None], ["b", 1.23456]] * (rows // 2),
        note="A note.",
    )
    other = Table(title="Solvers: all figures", columns=["x"], rows=[[1]])
    record.write(
        folder / "results", "solvers", command="do it", note="All.", tables=[table, other], code="0"
    )


def test_what_has_no_file_is_not_run(tables):
    assert tables["render"]("solvers", "S", "do it", level=2) == "## S\n\n`do it`: not run.\n"
    assert tables["short"]("solvers").endswith(": not run.\n")


def test_a_file_with_several_tables_shows_them_under_its_heading(tables, tmp_path):
    written(tmp_path)
    text = tables["render"]("solvers", "S", "do it", level=2, drawing=True)
    assert text.startswith("## S\n\n`do it` · ")
    assert (
        "### Solvers: summary\n\n| what | mean |\n| --- | --- |\n| a | – |\n| b | 1.235 |" in text
    )
    assert "All." in text and "A note." in text and "![" not in text
    (tmp_path / "results" / "solvers.svg").touch()
    text = tables["render"]("solvers", "S", "do it", level=2, drawing=True)
    assert "![S](../results/solvers.svg)" in text


def test_a_long_table_is_folded(tables, tmp_path):
    written(tmp_path, rows=100)
    text = tables["render"]("solvers", "S", "do it", level=2)
    assert "<details><summary>100 rows</summary>\n\n| what |" in text
    assert text.count("<details>") == 1


def test_the_short_form_is_the_summary_alone(tables, tmp_path):
    written(tmp_path)
    assert tables["short"]("solvers") == (
        "**Summary**\n\n| what | mean |\n| --- | --- |\n| a | – |\n| b | 1.235 |\n\nA note.\n"
    )
