"""What the experiments measure is right, and leaves the network as it was."""

import copy
import dataclasses
import warnings

import pytest
import torch
from rich.console import Console

from equilibria.experiments import counterpart, measure, trainings, turns, variants
from equilibria.experiments.deq import quality
from equilibria.solve import Anderson, Picard, SolveWarning, Status
from equilibria.solve.tree import Shared
from equilibria.train import evaluation, memory
from equilibria.train.regulariser import JacobianPenalty
from equilibria.train.step import Diverged, TrainingError
from equilibria.train.trainer import Trainer


@pytest.fixture
def network(small):
    recipe = trainings.named(trainings.CELLS["transformer"], "cpu")
    task = recipe.task.load()
    torch.manual_seed(0)
    return task.model(recipe.model, **recipe.layer()), task


def test_a_course_takes_every_evaluation_and_leaves_the_solver_alone(network):
    model, task = network
    before = model.deq.solver, model.deq.eval_solver
    inputs = measure.segments(task, 7, 3).inputs
    found = measure.course(model, inputs, Picard(rtol=0.5), 9)
    assert [len(found[name]) for name in ("low", "median", "high")] == [9, 9, 9]
    assert all(low <= middle <= high for low, middle, high in zip(*found_columns(found)))  # noqa: B905
    assert found["median"][-1] < found["median"][0]
    assert (model.deq.solver, model.deq.eval_solver) == before and model.training


def found_columns(found):
    return found["low"], found["median"], found["high"]


def test_dropout_is_on_only_where_it_is_asked_for(network):
    model, task = network
    inputs = measure.segments(task, 7, 3).inputs
    solver = Anderson(rtol=1e-5, max_evals=100)

    def value(dropout, seed):
        torch.manual_seed(seed)
        return measure.solved(model, inputs, solver, dropout=dropout).value

    assert torch.equal(value(False, 0), value(False, 1))
    assert not torch.equal(value(True, 0), value(True, 1))


def test_segments_are_as_long_as_asked_and_come_from_the_split(network):
    _, task = network
    batch = measure.segments(task, 11, 4, "train")
    assert batch.inputs.shape == (4, 11) and batch.begins
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])


def test_spread_counts_what_a_batch_waits_for():
    found = measure.spread(torch.tensor([2, 4, 6, 8]))
    assert found["mean"] == 5 and (found["least"], found["most"]) == (2, 8)
    assert found["waiting"] == pytest.approx(12 / 32)
    assert measure.spread(torch.tensor([7, 7]))["waiting"] == 0


def test_a_probe_leaves_the_run_as_it_is_and_sees_the_feedback(small):
    recipe = variants.recipe_of("post-jr", "cpu")
    trainer = Trainer(recipe, recipe.task.load(), evaluation.accelerator("float32"))
    trainer.train_step()
    before = copy.deepcopy(trainer.model.state_dict())
    layer = trainer.model.deq
    solver, adjoint = layer.solver, layer.adjoint
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # 16 products are what is asked for
        found = variants.probe(trainer)
    assert set(found) == {"forward", "adjoint", "norm"} and all(v >= 0 for v in found.values())
    assert all(torch.equal(before[k], v) for k, v in trainer.model.state_dict().items())
    assert all(p.grad is None for p in trainer.model.parameters())
    assert layer.solver is solver and layer.adjoint is adjoint and layer.eval_solver is None
    assert trainer.model.training
    inputs = evaluation.probes(trainer.task, recipe.probes, trainer.accelerator).inputs
    z = measure.solved(trainer.model, inputs, Anderson(rtol=1e-4, max_evals=100)).value
    trainer.model.eval()
    operands = [x.value if isinstance(x, Shared) else x for x in trainer.model.inject(inputs)]
    full = torch.autograd.functional.jacobian(lambda z: layer.cell(z, *operands), z)
    exact = float(full.square().sum()) / z.numel()  # samples do not mix: blocks on the diagonal
    assert found["norm"] == pytest.approx(exact, rel=0.4)


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_a_variant_differs_where_it_says_and_sees_as_many_tokens(small, name):
    variant, recipe = variants.VARIANTS[name], variants.recipe_of(name, "cpu")
    base = variants.recipe_of("post", "cpu")
    assert recipe.task.length * recipe.batch_size == base.task.length * base.batch_size
    assert recipe.epochs == base.epochs and recipe.epoch_steps == base.epoch_steps
    assert recipe.optimiser.weight_decay == variant.decay
    assert (recipe.regulariser is not None) == variant.penalised
    for key, value in variant.model.items():
        assert getattr(recipe.model, key) == value != getattr(base.model, key)
    if variant.limit:
        assert recipe.solver.max_evals == recipe.adjoint.linear.max_evals == variant.limit
    else:
        assert not recipe.model.implicit


def test_a_training_that_runs_away_is_a_result_and_another_error_is_none(small, monkeypatch):
    from equilibria.experiments import training
    from equilibria.experiments.case import Place

    case = trainings.language("transformer", "cpu")
    place = Place(small / "here", small, Console(quiet=True))
    said = "the loss is nan at step 3. The weights and the checkpoint saved are from before"

    def lost(recipe, path, **options):
        path.mkdir(parents=True)
        (path / "recipe.yaml").write_text("")
        (path / "run.json").write_text('{"parameters": 7}')
        raise Diverged(said)

    monkeypatch.setattr(training, "train", lost)
    monkeypatch.setattr(training, "_lexicon", lambda recipe: 0)
    monkeypatch.setattr(training.Folder, "read_recipe", lambda folder: None)
    found = case.run(place)
    assert found["diverged"] == said and found["evaluation"] is None and found["metrics"] == []

    def refused(recipe, path, **options):
        raise TrainingError("batch_size is 4 but there are only 3 samples")

    monkeypatch.setattr(training, "train", refused)
    with pytest.raises(TrainingError, match="only 3 samples"):
        case.run(place)


def test_a_step_with_the_penalty_holds_more_than_one_without(network):
    model, task = network
    batch = measure.segments(task, 8, 4, "train")
    plain = memory.measure(model, task, batch, depths=(12,))[0]
    assert plain.kind == "deq" and measure.penalised_bytes(model, batch) > plain.bytes
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_both_kinds_of_step_are_timed_and_weighed_as_they_are_drawn(small, monkeypatch, share):
    recipe = trainings.named(trainings.CELLS["transformer"], "cpu")
    penalty = JacobianPenalty(gamma=0.1, probability=share)
    recipe = dataclasses.replace(recipe, pretrain=None, regulariser=penalty)
    stack = counterpart.explicit(recipe, layers=2)
    trainers = {
        name: Trainer(each, each.task.load(), evaluation.accelerator("float32"))
        for name, each in {"deq": recipe, "tied": stack}.items()
    }
    drawn = trainers["deq"].stabiliser.counts
    found = turns.stepped(trainers)
    steps = turns.TURNS + turns.WARM
    assert drawn.applied == (steps if share else 0) and drawn.steps - drawn.applied == steps
    assert trainers["deq"].stabiliser.recipe.regulariser.gamma == 0.1
    plain, penalised = found["deq"]["plain"], found["deq"]["penalised"]
    assert (penalised is None) == (share == 0) and found["deq"]["probability"] == share
    whole = (1 - share) * plain + share * (penalised or 0)
    assert found["deq"]["step"] == pytest.approx(whole)
    tied = found["tied"]
    assert tied["step"] == tied["plain"] and tied["penalised"] is None


def test_a_row_has_converged_where_all_of_its_pieces_have():
    good, bad = int(Status.CONVERGED), int(Status.MAX_EVALS)
    statuses = [
        torch.tensor([[good, good, bad], [good, bad, bad]], dtype=torch.int8),
        torch.tensor([[good, good, good]], dtype=torch.int8),
    ]
    asked = [torch.tensor([True, True, True]), torch.tensor([True, False, False])]
    assert quality.converged_rows(statuses, asked) == pytest.approx(2 / 4)


@pytest.mark.parametrize("piece", [None, 3])
def test_what_a_model_says_of_its_pieces_is_heard(small, piece):
    recipe = trainings.named(trainings.CELLS["transformer"], "cpu")
    task = recipe.task.load()
    config = dataclasses.replace(recipe.model, subsequence=piece)
    model = task.model(config, **recipe.layer()).eval()
    with quality._listened(model) as heard, torch.no_grad():
        model(measure.segments(task, 8, 5).inputs)
    assert [status.shape for status in heard] == [(1 if piece is None else 3, 5)]
    model(measure.segments(task, 8, 5).inputs)
    assert len(heard) == 1
