"""`equilibria generate`: text from a run folder, as a user meets it."""

import json
import shutil

import pytest
import torch
import yaml

from equilibria.learned import Contestant, Distillation, Learned, Outcome
from equilibria.learned.solver import NeuralSolver
from equilibria.learned.training import make_untrained, solve
from equilibria.run import neural
from equilibria.run.cli.main import main
from equilibria.run.run import Folder
from equilibria.zoo.language.commands.generate import load

TEXT = "the quick brown fox jumps over the lazy dog\nthe dog sleeps , the fox does not\n" * 40
MODELS = {
    "deq": {"name": "deq-transformer", "width": 16, "heads": 2, "inner": 32, "scale": 0.1},
    "lstm": {"name": "lstm", "width": 16, "hidden": 32},
}


def train(folder, model, unit):
    recipe = {
        "task": {"name": "language_modeling", "unit": unit, "length": 16},
        "model": MODELS[model],
        "optimizer": {"name": "Adam", "lr": 1e-2},
        "epochs": 1,
        "epoch_steps": 12,
        "batch_size": 4,
        "eval_batch_size": 4,
        "probes": 2,
    }
    recipe["task"]["file"] = str(folder / "text.txt")
    if model == "deq":
        recipe["solver"] = {"name": "Anderson", "period": 3, "rtol": 1e-2, "max_evals": 20}
    (folder / "text.txt").write_text(TEXT)
    (folder / f"{model}.yaml").write_text(yaml.safe_dump(recipe))
    run = folder / model
    assert main(["train", str(folder / f"{model}.yaml"), "--out", str(run)]) == 0
    (folder / "text.txt").unlink()  # a run writes on without the text that it learnt from
    return run


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    return train(tmp_path_factory.mktemp("characters"), "deq", "characters")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return train(tmp_path_factory.mktemp("words"), "lstm", "words")


def run(capsys, *argv):
    capsys.readouterr()
    assert main(["generate", *map(str, argv)]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_writes_characters_and_what_they_cost(characters, capsys):
    out, err = run(capsys, characters, "--prompt", "the fox", "--length", 30)
    assert out.startswith("the fox")
    assert len(out) == len("the fox") + 30 + 1
    assert out.endswith("\n")
    assert "prompt: 7 tokens" in err
    assert "evaluations per token" in err
    assert "CONVERGED" in err
    again, _ = run(capsys, characters, "--prompt", "the fox", "--length", 30)
    other, _ = run(capsys, characters, "--prompt", "the fox", "--length", 30, "--seed", 5)
    assert again == out != other
    greedy = [
        run(capsys, characters, "--length", 12, *options)[0]
        for options in (["--temperature", 0], ["--top-k", 1, "--seed", 9], ["--top-p", 1e-9])
    ]
    assert greedy[0] == greedy[1] == greedy[2]
    assert len(greedy[0]) == 12 + 1  # without a prompt there is the text alone


def test_a_learned_solver_begins_where_it_has_learned_to(characters, tmp_path, capsys, monkeypatch):
    folder = shutil.copytree(characters, tmp_path / "run")
    loaded = load(folder, None)
    layer = loaded.model.deq
    inputs = neural.inputs_from(loaded.model, [torch.ones(2, 16, dtype=torch.long)])
    learned = make_untrained(layer, solve(layer, inputs, None)[0], Distillation(mixer=None))
    by = Contestant(NeuralSolver(), learned, torch.ones(2), torch.zeros(2), 1.0)
    neural.save(Folder(folder), Outcome(by, by, False, True, {}), {})
    begun, start = [], Learned.start
    monkeypatch.setattr(Learned, "start", lambda *given: begun.append(1) or start(*given))
    for words in ([], ["--cold"]):
        begun.clear()
        run(capsys, folder, "--prompt", "the fox", "--length", 9, "--solver", "neural", *words)
        assert len(begun) == 9  # the prompt, and each token but the last


def test_a_cold_start_costs_more(characters, capsys):
    def cost(*options):
        argv = ("--length", 60, "--temperature", 0.5, *options)
        _, err = run(capsys, characters, "--prompt", "the", *argv)
        return float(err.split("then ")[1].split(" evaluations")[0])

    assert cost() < cost("--cold")


def test_writes_words_with_an_explicit_network(words, capsys):
    out, err = run(capsys, words, "--prompt", "the quick\nthe", "--length", 10)
    assert out.startswith("the quick\nthe")
    known = {*TEXT.split(), "<unk>"}
    assert set(out.split()) <= known
    tokens = out[len("the quick\nthe") : -1].replace("\n", " \\n ").split()
    assert len(tokens) == 10
    assert "no solves" in err
    assert "<unk>" not in out.split()  # the text had none


def test_an_unknown_word_is_a_warning(words, capsys):
    out, err = run(capsys, words, "--prompt", "The zebra jumps", "--length", 3)
    warning = err.splitlines()[0]
    assert warning.startswith("warning: ")
    assert "'The', 'zebra'" in warning and "jumps" not in warning
    assert "lower-case 'the' is in it" in warning
    assert out.startswith("<unk> <unk> jumps ")


def test_a_transformer_looks_back_as_far_as_it_is_told(characters, capsys):
    tokens = torch.arange(20)[None] % 20
    for memory, wanted in ((None, 15), (4, 4), (40, 20)):  # None: as in training
        with torch.no_grad():
            carry = load(characters, memory).model(tokens).carry
        assert carry["memory"]["z"].shape[1] == wanted
    assert run(capsys, characters, "--length", 4, "--memory", 1)[0]


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["--length", "0"], "length"),
        (["--length", "x"], "length"),
        (["--temperature", "-1"], "--temperature must be 0 or more"),
        (["--top-k", "0"], "--top-k must be 1 or more"),
        (["--top-p", "2"], "--top-p must lie in (0, 1]"),
        (["--seed", "-1"], "--seed must be between 0 and 4,294,967,295"),
        (["--memory", "4"], "--memory is for Transformers"),
        (["--top-q", "1"], "did you mean '--top-p'?"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_message(words, argv, what, capsys):
    capsys.readouterr()
    assert main(["generate", str(words), *argv]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("equilibria generate: error: ")
    assert what in captured.err


def test_what_is_no_run_of_a_language_model_is_refused(words, tmp_path, capsys):
    assert main(["generate", str(tmp_path / "nowhere")]) == 1
    assert "no run folder" in capsys.readouterr().err
    twin = shutil.copytree(words, tmp_path / "twin")
    (twin / "vocabulary.json").unlink()
    assert main(["generate", str(twin)]) == 1
    assert "not a run of a language model" in capsys.readouterr().err
    other = json.loads((words / "vocabulary.json").read_text())
    for key in ("tokens", "counts"):
        other[key] = [*other[key], "one more" if key == "tokens" else 1]
    (twin / "vocabulary.json").write_text(json.dumps(other))
    assert main(["generate", str(twin)]) == 1
    assert "not the vocabulary of this run" in capsys.readouterr().err
    (twin / "vocabulary.json").write_text("{")
    assert main(["generate", str(twin)]) == 1
    assert "not a vocabulary" in capsys.readouterr().err
