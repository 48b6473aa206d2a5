"""Training, judging and examining a language model, by the command line."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from equilibria.run.cli.main import main
from equilibria.stability import comparison

pytestmark = pytest.mark.usefixtures("drawn_once")

RECIPE = {
    "description": "eight steps on a small text",
    "task": {"name": "language_modeling", "unit": "characters", "length": 16},
    "model": {
        "name": "deq-transformer",
        "width": 16,
        "heads": 2,
        "inner": 24,
        "memory": 8,
        "scale": 0.1,
    },
    "solver": {"name": "Anderson", "period": 3, "rtol": 1e-2, "max_evals": 12},
    "epochs": 2,
    "epoch_steps": 4,
    "batch_size": 4,
    "eval_batch_size": 4,
    "probes": 2,
}
EXPLICIT = {key: value for key, value in RECIPE.items() if key != "solver"} | {
    "model": {"name": "transformer-xl", "width": 16, "heads": 2, "inner": 24, "layers": 2}
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with recipes, a text, and runs on it."""
    path = tmp_path_factory.mktemp("language")
    lines = ("the cat sat on the mat.\n", "a dog saw one cat and sat.\n", "on and on it went.\n")
    (path / "text.txt").write_text("".join(lines * 40))
    for name, tree in (("deq", RECIPE), ("explicit", EXPLICIT)):
        (path / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        for name in ("deq", "explicit"):
            words = ["--out", str(path / name), "--data", str(path / "text.txt")]
            assert main(["train", str(path / f"{name}.yaml"), *words]) == 0
        yield path


@pytest.fixture
def deq(place, tmp_path):
    """A copy of the equilibrium model's run."""
    return Path(shutil.copytree(place / "deq", tmp_path / "deq"))


@pytest.fixture
def explicit(place, tmp_path):
    """A copy of the explicit network's run."""
    return Path(shutil.copytree(place / "explicit", tmp_path / "explicit"))


@pytest.mark.usefixtures("shallow")
def test_a_run_on_a_text_is_complete(place):
    recipe = yaml.safe_load((place / "deq" / "recipe.yaml").read_text())
    assert recipe["task"]["file"] == str(place / "text.txt")
    assert isinstance(recipe["model"]["vocabulary"], int)
    assert (place / "deq" / "vocabulary.json").is_file()
    assert main(["memory", str(place / "deq")]) == 0
    kinds = {point["kind"] for point in json.loads((place / "deq" / "memory.json").read_text())}
    assert kinds == {"deq", "unrolled", "checkpointed"}


def test_resuming_names_the_same_text(place, capsys, monkeypatch):
    words = ["train", str(place / "deq.yaml"), "--out", str(place / "deq"), "--resume"]
    monkeypatch.chdir(place)
    assert main([*words, "--data=text.txt"]) == 0
    assert "is finished" in " ".join(capsys.readouterr().out.split())
    assert main(words) == 0  # the run knows its text
    assert main([*words, "--data"]) == 1
    assert "argument --data: expected one argument" in capsys.readouterr().err


def test_evaluate_tells_perplexity_budgets_and_the_trigram(deq, capsys):
    trained = json.loads((deq / "evaluation.json").read_text())
    assert main(["evaluate", str(deq), "--budgets", "2", "6"]) == 0
    shown = capsys.readouterr().out
    result = json.loads((deq / "evaluation.json").read_text())
    assert {key: result[key] for key in trained} == trained
    assert result["bits_per_character"] == pytest.approx(result["bits"])
    assert [row["max_evals"] for row in result["budgets"]] == [2, 6]
    assert result["seconds_per_token"] > 0
    trigram = result["baseline"]
    assert trigram["name"] == "trigram model"
    assert 1 < trigram["perplexity"] < 20
    for word in ("perplexity", f"{result['perplexity']:.2f}", f"{trigram['perplexity']:.2f}"):
        assert word in shown
    assert "bits a character" in shown and "bits a word" not in shown


def test_the_trigram_is_counted_once(deq, monkeypatch):
    assert main(["evaluate", str(deq), "--budgets"]) == 0
    before = json.loads((deq / "evaluation.json").read_text())
    assert before["budgets"] == []

    def never(*_):
        raise AssertionError("counted again")

    monkeypatch.setattr("equilibria.zoo.language.data.Trigram.fit", never)
    assert main(["evaluate", str(deq), "--budgets"]) == 0
    assert json.loads((deq / "evaluation.json").read_text())["baseline"] == before["baseline"]
    assert main(["evaluate", str(deq), "--budgets", "--no-baselines"]) == 0
    assert "baseline" not in json.loads((deq / "evaluation.json").read_text())
    for other in ({"data": "sha256:0", "splits": {}}, None):
        (deq / "baseline.json").write_text("{" if other is None else json.dumps(other))
        assert main(["evaluate", str(deq), "--budgets"]) == 1


def test_a_text_that_no_trigram_fits_is_evaluated_all_the_same(deq, monkeypatch, capsys):
    def refuse(*_):
        raise ValueError("a vocabulary of 3000000 tokens")

    (deq / "baseline.json").unlink(missing_ok=True)
    monkeypatch.setattr("equilibria.zoo.language.data.Trigram.fit", refuse)
    assert main(["evaluate", str(deq), "--budgets"]) == 0
    assert "No trigram model: a vocabulary of 3000000 tokens" in capsys.readouterr().out
    assert "perplexity" in json.loads((deq / "evaluation.json").read_text())


def test_another_split_and_another_memory_have_files_of_their_own(deq):
    before = (deq / "evaluation.json").read_text()
    assert main(["evaluate", str(deq), "--split", "valid", "--budgets"]) == 0
    assert main(["evaluate", str(deq), "--memory", "3", "--budgets"]) == 0
    assert (deq / "evaluation.json").read_text() == before
    valid = json.loads((deq / "evaluation-valid.json").read_text())
    last = json.loads((deq / "metrics.jsonl").read_text().splitlines()[-1])
    assert valid["split"] == "valid" and valid["loss"] == last["valid"]["loss"]
    changed = json.loads((deq / "evaluation-changed.json").read_text())
    assert changed["eval_memory"] == 3
    assert changed["loss"] != json.loads(before)["loss"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "tset"], "--split must be one of train, valid, test; got tset"),
        (["--budgets", "4", "0"], "--budgets must be 1 or more each; got 4 0"),
        (["--memory", "-1"], "--memory must be 0 or more; got -1"),
    ],
)
def test_a_mistake_is_one_message(deq, words, message, capsys):
    assert main(["evaluate", str(deq), *words]) == 1
    assert message in capsys.readouterr().err


def test_the_doctor_examines_a_segment_that_others_precede(deq, capsys):
    assert main(["doctor", str(deq), "--samples", "3", "--starts", "1"]) in (0, 3)
    stored = json.loads((deq / "doctor.json").read_text())
    assert stored["samples"] == 3 and stored["entries"] == 16 * 16 and stored["layer"] == "deq"
    assert stored["gradient"]["loss"] == "loss" and stored["gradient"]["cosine"] > 0.5
    assert stored["depth"]["figure"] is None


def test_one_page_tells_of_both(deq, explicit, capsys):
    assert main(["doctor", str(deq), "--samples", "2", "--starts", "1"]) in (0, 3)
    assert main(["evaluate", str(deq), "--budgets", "2", "6"]) == 0
    assert main(["report", str(deq)]) == 0
    html = (deq / "report.html").read_text()
    for text in (
        "Test perplexity",
        "trigram model: ",
        "Effect of more evaluations",
        "Evaluations in each epoch",
        "validation",
        "The doctor’s findings",
    ):
        assert text in html
    assert "accuracy" not in html.lower().split("the doctor’s findings")[0]
    assert main(["report", str(explicit)]) == 0
    alone = (explicit / "report.html").read_text()
    assert "Test perplexity" in alone and "Spectral radius" not in alone
    out = deq.parent / "both.html"
    assert main(["report", str(deq), str(explicit), "--out", str(out)]) == 0
    assert "2 runs compared" in out.read_text()


def test_an_explicit_network_is_evaluated_and_has_no_doctor(explicit, capsys):
    assert main(["evaluate", str(explicit)]) == 0
    shown = capsys.readouterr().out
    assert "perplexity" in shown and "CONVERGED" not in shown and "spectral" not in shown
    assert main(["evaluate", str(explicit), "--budgets", "4"]) == 1
    assert "describes an explicit network, which has no solver" in capsys.readouterr().err
    for command in ("doctor", "gradients"):
        assert main([command, str(explicit)]) == 1
        said = capsys.readouterr().err
        assert "holds an explicit network (TiedStack)" in said and "nothing to examine" in said


def test_gradients_of_a_segment_that_others_precede(deq, monkeypatch):
    monkeypatch.setattr(comparison, "SETTINGS", ((1, 1.0), (3, 1.0)))  # fewer adjoints
    assert main(["gradients", str(deq), "--samples", "2", "--repeats", "1", "--quiet"]) == 0
    stored = json.loads((deq / "gradients.json").read_text())
    # After so few steps the model need not have an equilibrium.
    assert stored["samples"] == 2 and stored["reference"] <= 1e-3


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"ab", ""), (b"abc \xff\xfe def" * 50, "UTF-8")],
    ids=["empty", "too short", "not UTF-8"],
)
def test_a_text_that_cannot_be_learnt_from_is_one_message(place, content, message, capsys):
    (place / "bad.txt").write_bytes(content)
    words = ["--data", str(place / "bad.txt"), "--out", str(place / "bad")]
    capsys.readouterr()
    assert main(["train", str(place / "deq.yaml"), *words]) == 1
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1 and message in error and "defect" not in error
    assert not (place / "bad").exists()
