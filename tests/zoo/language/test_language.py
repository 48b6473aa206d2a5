"""Language modelling: what is asked, what is counted, what is carried over."""

import dataclasses
import json
import math

import pytest
import torch
from accelerate import Accelerator

from equilibria.run import evaluation, run
from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.loop import fit
from equilibria.run.start import TrainingError
from equilibria.run.tasks import Part
from equilibria.zoo.language.task.language import LanguageModeling


@pytest.fixture
def task(language):
    return recipes.parse(language).task.load()


@pytest.mark.parametrize("rows", [1, 3, 7, 10_000])
@pytest.mark.parametrize("processes", [1, 3])
def test_every_token_is_asked_for_once_and_those_before_it_are_read(task, rows, processes):
    tokens = task.corpus.splits["test"][:]
    asked = []
    for index in range(processes):
        inputs, targets = [], []
        for number, batch in enumerate(task.batches("test", rows, Part(index, processes))):
            assert batch.begins == (number == 0)
            assert batch.inputs.shape[1] <= 12
            inputs.append(batch.inputs)
            targets.append(batch.targets)
        if not inputs:
            continue
        for row, goal in zip(torch.cat(inputs, 1), torch.cat(targets, 1), strict=True):
            kept = goal >= 0
            assert bool(kept.any()) and kept.tolist() == sorted(kept.tolist(), reverse=True)
            assert torch.equal(row[kept][1:], goal[kept][:-1])
            asked += goal[kept].tolist()
    assert asked == tokens[1:].tolist()


def test_the_model_is_built_for_the_vocabulary_of_the_text(make, language):
    trainer, folder = make(tree=language)
    size = trainer.task.corpus.vocabulary.size
    assert trainer.recipe.model.vocabulary == folder.read_recipe().model.vocabulary == size
    with pytest.raises(ValueError, match=f"model.vocabulary is 7, and .* has {size}"):
        make("other", "--model.vocabulary", "7", tree=language)


def test_a_model_that_reads_no_tokens_is_refused(make, language):
    language["model"] = {"name": "dense"}
    with pytest.raises(ValueError, match="DenseConfig describes no model of sequences"):
        make(tree=language)


@pytest.fixture
def finished(make, language, quiet):
    trainer, folder = make(tree=language)
    fit(trainer, folder, quiet)
    return trainer, folder


def test_a_run_on_a_text_leaves_what_is_needed_to_judge_and_to_use_it(finished):
    trainer, folder = finished
    shallow, both, last = folder.read_metrics()
    assert shallow["tokens"] == 4 * 4 * 12
    for part in (last["train"], last["valid"]):
        assert part["perplexity"] == pytest.approx(math.exp(part["loss"]))
        assert part["bits"] == pytest.approx(part["loss"] / math.log(2))
        assert "accuracy" not in part and part["forward"]["status"]["CONVERGED"] > 0.5
    assert "test" not in last
    assert last["train"]["loss"] < shallow["train"]["loss"]
    assert {"gamma", "applied", "penalty"} == set(both["regulariser"])
    evaluated = json.loads(folder.evaluation.read_text())
    assert evaluated["split"] == "test"
    assert evaluated["tokens"] == len(trainer.task.corpus.splits["test"]) - 1
    known = json.loads(folder.vocabulary.read_text())
    assert known
    info = run.describe(trainer.model, trainer.task, trainer.accelerator)
    lexicon = sum(p.numel() for p in trainer.model.lexicon.parameters())
    assert info["parameters"] - info["parameters_without_lexicon"] == lexicon > 0
    loaded = run.load(folder.path, data=False)
    assert loaded.model.config == trainer.model.config


def test_the_beginning_is_shallow_and_counts_no_solves(make, language, quiet):
    trainer, folder = make("run", "--pretrain.steps", "4", tree=language)
    layers = []
    plain = trainer.model.deq.cell.forward

    def counted(*given):
        layers.append(trainer.step)
        return plain(*given)

    trainer.model.deq.cell.forward = counted
    trainer.train_step()
    assert len(layers) == 2
    trainer.model.deq.cell.forward = plain
    fit(trainer, folder, quiet)
    first, second, _ = folder.read_metrics()
    for part in (first["train"]["forward"], first["train"]["adjoint"], first["valid"]["forward"]):
        assert part == {"evals": None, "status": None}
    assert "spectral_radius" not in first and first["regulariser"]["penalty"] is None
    assert second["train"]["forward"]["evals"]["mean"] > 1


@pytest.mark.parametrize("name", ["deq-transformer", "deq-trellisnet"])
def test_segments_with_a_carry_are_read_as_one_long_segment(make, language, name):
    """The memory being as long as the text, the equilibrium of the whole is that of its parts."""
    language.pop("pretrain")
    language["solver"] = {"name": "Anderson", "rtol": 1e-5, "max_evals": 200}
    if name == "deq-trellisnet":
        language["model"] = {"name": name, "width": 8, "hidden": 6, "scale": 0.3}
        language["model"]["embedding_initial"] = 0.5
    else:
        language["model"] |= {"eval_memory": 10_000, "injection_scale": 1.0}
        language["model"] |= {"embedding_initial": 0.2, "initial": "orthogonal", "scale": 0.5}
    trainer, _ = make(tree=language)
    model = trainer.model
    for bias in model.lexicon.biases:
        bias.data.normal_()
    losses = {}
    for length, forgets in ((12, False), (7, False), (10_000, False), (12, True)):
        trainer.task.config = LanguageModeling(file="x", length=12, eval_length=length)
        read = model.forward
        if forgets:
            model.forward = lambda x, carry=None, **options: read(x, **options)  # noqa: B023
        found = evaluation.evaluate(model, trainer.task, trainer.accelerator, batch_size=1)
        assert found["tokens"] == len(trainer.task.corpus.splits["test"]) - 1
        assert found["forward"]["status"]["CONVERGED"] == 1.0
        losses[length, forgets] = found["loss"]
    whole = losses[10_000, False]
    assert [losses[n, False] for n in (12, 7)] == [pytest.approx(whole, rel=1e-4)] * 2
    assert losses[12, True] != pytest.approx(whole, rel=1e-3)


@pytest.mark.filterwarnings("ignore::equilibria.SolveWarning")
def test_a_step_is_given_the_carry_of_the_step_before_unless_a_pass_begins(make, language):
    trainer, _ = make("run", "--task.length", "40", "--pretrain.name", "null", tree=language)
    seen, given = [], trainer.model.forward

    def spied(x, carry=None, **options):
        prediction = given(x, carry=carry, **options)
        seen.append((carry, prediction.carry))
        return prediction

    trainer.model.forward = spied
    for _ in range(2 * trainer.feed.steps + 1):
        trainer.train_step()
    for step, (carry, _) in enumerate(seen):
        if step % trainer.feed.steps == 0:
            assert carry is None
            continue
        before = torch.utils._pytree.tree_leaves(seen[step - 1][1])
        now = torch.utils._pytree.tree_leaves(carry)
        assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
        assert not any(x.requires_grad for x in now)


def test_padding_is_neither_asked_for_nor_counted(finished):
    """Whatever the number of streams, each counts its tokens, and solves of padding are left out"""
    trainer, _ = finished
    task = trainer.task
    count = len(task.corpus.splits["test"]) - 1
    rows = 3 if count % 3 else 4
    task.config = LanguageModeling(file="x", length=count // rows)  # the rest stands alone
    batches = list(task.batches("test", rows))
    assert len(batches) == 2
    empty = int((batches[1].targets < 0).all(1).sum())
    assert empty == rows - count % rows
    seen = []
    given = trainer.model.forward

    def spied(x, carry=None, **options):
        prediction = given(x, carry=carry, **options)
        seen.append(prediction.solution.stats.evals)
        return prediction

    trainer.model.forward = spied
    result = evaluation.evaluate(trainer.model, task, trainer.accelerator, batch_size=rows)
    del trainer.model.forward
    counted = torch.cat([seen[0], seen[1][: rows - empty]])
    assert result["forward"]["evals"]["mean"] == pytest.approx(float(counted.double().mean()))


def test_a_budget_stops_solves_and_leaves_the_solver_as_it_was(finished):
    trainer, _ = finished
    before = trainer.model.deq.eval_solver
    rows = evaluation.budgets(
        trainer.model, trainer.task, Accelerator(cpu=True), batch_size=5, limits=(1, 3, 12)
    )
    assert [row["max_evals"] for row in rows] == [1, 3, 12]
    assert [row["forward"]["evals"]["max"] <= row["max_evals"] for row in rows] == [True] * 3
    assert rows[0]["perplexity"] != rows[2]["perplexity"]
    assert rows[2]["seconds_per_token"] > 0
    usual = evaluation.evaluate(trainer.model, trainer.task, Accelerator(cpu=True), batch_size=5)
    assert rows[2]["loss"] == usual["loss"]
    assert trainer.model.deq.eval_solver == before and trainer.model.training


def test_a_budget_above_the_limit_of_the_solver_changes_nothing(finished):
    trainer, _ = finished
    trainer.model.deq.eval_solver = dataclasses.replace(trainer.model.deq.solver, max_evals=3)
    options = (trainer.model, trainer.task, Accelerator(cpu=True))
    (above,) = evaluation.budgets(*options, batch_size=5, limits=(100,))
    usual = evaluation.evaluate(*options, batch_size=5)
    assert above["max_evals"] == 100 and {key: above[key] for key in usual} == usual
    assert usual["forward"]["evals"]["max"] == 3 and usual["forward"]["status"]["MAX_EVALS"] > 0


def test_pieces_are_all_counted_and_penalised(make, language, quiet):
    options = ("--model.subsequence", "5", "--regularizer.probability", "1", "--epochs", "2")
    options += ("--correction.name", "FixedPointCorrection", "--regularizer.controller.name")
    options += ("EvaluationBudget", "--regularizer.controller.evals", "3")
    trainer, folder = make("run", *options, tree=language)
    fit(trainer, folder, quiet)
    last = folder.read_metrics()[-1]
    assert last["regulariser"]["penalty"] > 0 and last["correction"]["loss"] > 0
    assert last["regulariser"]["applied"] == 1.0
    solves = trainer.tally.forward.evals.total()
    trainer.train_step()
    assert trainer.tally.forward.evals.total() - solves == 3 * 4  # 12 tokens in pieces of 5
    assert trainer.tally.adjoint.evals.total() == 3 * 4


def test_a_text_that_is_too_short_for_its_batches_is_refused(make, language):
    with pytest.raises(TrainingError, match=r"lower batch_size or task\.length"):
        make("run", "--batch_size", "1000", tree=language)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task.data", "ptb"], "two texts"),
        (["--task.length", "0"], "length must be at least 1"),
        (["--task.valid_share", "0.95"], "leave some text to learn from"),
        (["--pretrain.layers", "0"], "layers must be at least 1"),
        (["--epoch_steps", "0"], "epoch_steps must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(language, options, message):
    with pytest.raises(ConfigError, match=message):
        recipes.parse(language, options)


def test_a_recipe_without_a_text_says_what_is_missing(language):
    language["task"].pop("file")
    with pytest.raises(ValueError, match=r"name a file with --data FILE"):
        recipes.parse(language).task.load()


def test_in_reduced_precision_and_with_samples_that_leave(make, language, quiet):
    options = ("--precision", "bf16", "--drop_finished", "true", "--correction.name")
    trainer, folder = make("run", *options, "FixedPointCorrection", tree=language)
    fit(trainer, folder, quiet)
    first, *_, last = folder.read_metrics()
    assert last["valid"]["loss"] < first["valid"]["loss"]
    assert all(x.dtype == torch.float32 for x in torch.utils._pytree.tree_leaves(trainer.carry))


def test_a_second_precision_in_one_process():
    for precision in ("float32", "bf16", "bf16", "float32"):
        found = evaluation.accelerator(precision).mixed_precision
        assert found == {"float32": "no"}.get(precision, precision)


@pytest.mark.parametrize(
    ("unit", "unknown", "known"), [("words", 0, True), ("words", 1, False), ("characters", 1, True)]
)
def test_bits_a_character_are_told_where_all_words_are_known(task, unit, unknown, known):
    statistics = dataclasses.replace(
        task.corpus.statistics["test"], tokens=100, characters=400, unknown=unknown
    )
    task.corpus = dataclasses.replace(task.corpus, unit=unit, statistics={"test": statistics})
    sums = {"loss": torch.tensor(8.0 * math.log(2.0)), "units": torch.tensor(1)}
    assert "bits_per_character" not in task.figures(sums)
    assert task.figures(sums, "test").get("bits_per_character") == (
        pytest.approx(2.0) if known else None
    )
