"""`equilibria doctor`."""

import json
from pathlib import Path

import pytest
import tiny_run

from equilibria.cli.main import main

TOPICS = {
    "Convergence",
    "Contraction",
    "Sensitivity",
    "Uniqueness",
    "Gradient",
    "Backward solve",
    "Gradient's bound",
    "Depth",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.train(tmp_path_factory.mktemp("doctor") / "digits")


def test_findings_are_printed_and_stored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(folder), "--samples", "20", "--starts", "2"]) == 0
    printed = capsys.readouterr().out
    stored = json.loads((folder / "doctor.json").read_text())
    assert {finding["topic"] for finding in stored["findings"]} == TOPICS
    assert stored["samples"] == 20 and stored["starts"]["count"] == 2
    assert stored["entries"] == 16 and stored["layer"] == "deq"
    assert stored["gradient"]["loss"] == "loss" and stored["gradient"]["cosine"] > 0.99
    assert stored["depth"]["metric"]["name"] == "accuracy"
    accuracies = [point["figure"] for point in stored["depth"]["points"]]
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)
    for topic in TOPICS:
        assert topic.split()[0] in printed
    assert "doctor.json" in printed


def test_examining_twice_gives_the_same(folder: Path) -> None:
    stored = []
    for _ in range(2):
        assert main(["doctor", str(folder), "--samples", "12", "--starts", "1"]) == 0
        stored.append((folder / "doctor.json").read_text())
    assert stored[0] == stored[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere"),
        (["RUN", "--samples", "0"], "--samples must be 1 or more; got 0"),
        (["RUN", "--starts", "-1"], "--starts must be 1 or more; got -1"),
        (["RUN", "--samples", "many"], "samples"),
        (["RUN", "--sampels", "3"], "samples"),
        ([], "run"),
    ],
)
def test_mistakes_end_in_one_message(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *(str(folder) if word == "RUN" else word for word in words)]) == 1
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
    assert error.startswith("equilibria doctor: error: ")


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for word in ("--samples", "--starts", "--seed", "--data-dir", "run folder", "doctor.json"):
        assert word in text
