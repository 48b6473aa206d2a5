"""Training under `fully_shard` is training under DDP: the same weights, whatever the loss needs."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed.tensor import DTensor

import texts
from applications import present
from equilibria.run import models
from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.evaluation import accelerator
from equilibria.run.sharding import Sharding, Whole, extent
from several import several, shards, trainer_of

DIGITS = {
    "task": {"name": "image_classification", "data": "digits"},
    "model": {"name": "dense", "width": 16},
    "solver": {"name": "Broyden", "rtol": 1e-6, "max_evals": 60},
    "optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.0},
    "epochs": 1,
    "batch_size": 64,
    "probes": 8,
    "clip": 1.0,
}
PENALTY = {"regularizer": {"name": "JacobianPenalty", "probability": 1.0}}
ADJOINTS = ("Implicit", "Phantom", "NeumannPhantom", "JacobianFree", "Shine", "Unrolled")
ADJOINTS += ("AdaptiveAdjoint",)
TERMS = {
    "alone": {},
    "penalty": PENALTY,
    "correction": {"correction": {"name": "FixedPointCorrection", "count": 2}},
    "micro-batches": {"accumulate": 2, **PENALTY},
}
MDEQ = (
    *("--task.data=digits", "--task.size=8", "--epochs=1", "--epoch_steps=4", "--batch_size=8"),
    *("--solver.max_evals=5", "--eval_solver.max_evals=5", "--probes=4"),
)


FEW = {"mdeq": 1, "shallow": 3, "bf16": 1, "neural": 4, "Shine-pieces": 1}
"""Steps of MDEQ, the first two of "shallow" without a solve: five evaluations leave it far from a
solution, so that later steps amplify the rounding of earlier ones; so does Broyden's method."""


def adjoints(place):
    """Recipes of every adjoint with every term; "pieces" solves a text piece by piece."""
    language = texts.tree(place, dropout=0.0, embedding_dropout=0.0, output_dropout=0.0)
    correction = {"name": "FixedPointCorrection", "evals": 6}
    language |= {**PENALTY, "correction": correction, "pretrain": None}
    language |= {name: DIGITS[name] for name in ("solver", "optimizer")}
    for adjoint in ADJOINTS:
        for name, more in (*TERMS.items(), ("pieces", language)):
            if name in ("alone", "penalty") and adjoint not in ("Implicit", "Shine"):
                continue  # micro-batches have a penalty, and pieces are with it and a correction
            tree = {**DIGITS, **more} if more is not language else copy.deepcopy(language)
            tree["adjoint"] = {"name": adjoint}
            # Not all pieces converge, and Broyden's method, which SHINE needs, amplifies rounding.
            if adjoint == "Unrolled" or (name == "pieces" and adjoint != "Shine"):
                tree["solver"] = {"name": "Picard", "rtol": 1e-6, "max_evals": 20}
            yield f"{adjoint}-{name}", tree, ()


def zoo(place):
    """Recipes whose models constrain, learn along, or hold buffers."""
    small = ("--epochs=1", "--optimizer.name=SGD", "--optimizer.lr=0.001")
    yield "mdeq", recipes.read("mdeq-images"), (*MDEQ, *small, "--pretrain.name=null")
    yield "shallow", recipes.read("mdeq-images"), (*MDEQ, *small, "--pretrain.steps=2")
    bf16 = ("--precision=bf16", "--pretrain.name=null")
    yield "bf16", recipes.read("mdeq-images"), (*MDEQ, *small, *bf16)
    flow = ("--batch_size=2", "--epoch_steps=4")
    if present("flow"):
        yield "flow", recipes.read("flow-layers"), (*small, *flow)
    learns = {"name": "Alternating", "every": 3, "batches": 2, "steps": 2, "start_steps": 3}
    yield "neural", {**DIGITS, "neural": learns}, ()


def weights(trainer):
    """Return all weights whole, on the first process."""
    if isinstance(trainer.layout, Whole):
        return {name: value.clone() for name, value in trainer.model.state_dict().items()}
    assert all(isinstance(p, DTensor) for p in trainer.model.parameters())
    return trainer.layout.whole_state()


def train(tree, options, steps=3):
    trainer = trainer_of(tree, *options)
    for _ in range(steps):
        trainer.train_step()
    trainer.step = trainer.steps  # so that an epoch ends here
    loss = trainer.finish_epoch()[trainer.task.eval_split]["loss"]
    units = 0 if isinstance(trainer.layout, Whole) else len(trainer.layout.units)
    return weights(trainer), loss, units


def both_ways(rank, place, cases):
    """Train each recipe under ddp and under fsdp, and tell how far apart they end."""
    found = {}
    for name, tree, options in cases(place):
        steps = FEW.get(name, 3)
        one, loss, _ = train(tree, (*options, "--parallel=ddp"), steps)
        other, sharded, units = train(tree, (*options, "--parallel=fsdp"), steps)
        if rank == 0:
            changes = [float((one[key].double() - other[key]).abs().max()) for key in one]
            found[name] = {"change": max(changes), "losses": (loss, sharded), "units": units}
    if rank == 0:
        torch.save(found, place / "found.pt")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """compared(cases) -> what two processes have found of them."""

    def run(cases):
        place = tmp_path_factory.mktemp("cases")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
            texts.write(place / "text.txt")
            several(both_ways, 2, place, cases)
        return torch.load(place / "found.pt", weights_only=True)

    return run


@shards
@pytest.mark.slow
def test_every_adjoint_trains_under_fsdp_as_under_ddp_with_every_term(compared):
    found = compared(adjoints)
    assert len(found) == 3 * len(ADJOINTS) + 4
    for name, each in found.items():
        assert each["change"] < (1e-4 if name.endswith("pieces") else 1e-6), name
        assert each["losses"][0] == pytest.approx(each["losses"][1], rel=1e-4), name
        # A Transformer prepares attention outside of its layer, from weights of the cell.
        assert each["units"] == (1 if name.endswith("pieces") else 2), name


@shards
@pytest.mark.slow
def test_every_kind_of_model_trains_under_fsdp_as_under_ddp(compared):
    for name, each in compared(zoo).items():
        assert each["change"] < {"bf16": 1e-4, "shallow": 1e-4}.get(name, 1e-5), name
        assert each["losses"][0] == pytest.approx(each["losses"][1], rel=1e-3), name


STEPS = {"accumulate": 2, "correction": {"name": "FixedPointCorrection", "evals": 6}, **PENALTY}


def steps_of(rank, place, count):
    options = ("--parallel=hsdp", "--shard=2") if count == 4 else ("--parallel=fsdp",)
    found = train({**DIGITS, **STEPS}, options), constrained(sharded=True)
    skip_together(rank)
    if rank == 0:
        torch.save(found, place / f"{count}.pt")


def shared_out(build):
    """A model whose parameters the processes share, in one unit."""
    size = distributed.get_world_size()
    return Sharding(
        build, build, accelerator("float32", "cpu"), size, keep=False, trial=lambda model: None
    )


def skip_together(rank):
    """Under loss scaling, an overflow in the share of one process skips the step on all."""
    shared = shared_out(lambda: models.create("dense", width=16, shape=(4,), classes=2))
    model = shared.model
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = shared.whole_state()
    scaler.scale(model(torch.ones(2, 4)).output.sum()).backward()
    for p in model.parameters():
        if rank == 1:
            p.grad.to_local().fill_(torch.inf)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    for name, value in shared.whole_state().items():
        assert torch.equal(value, before[name])


def constrained(sharded):
    """The weights of a graph network that has bounds, after its constraint."""
    if not present("graph"):
        return {}
    tree = {"task": {"name": "chains", "length": 4, "chains": 5}, "batch_size": 1}
    recipe = recipes.parse({**tree, "model": {"name": "ignn", "hidden": [6, 5]}})
    task = recipe.task.load()

    def build():
        torch.manual_seed(0)
        model = task.model(task.complete(recipe.model), **recipe.layer())
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(100.0)
        return model

    if not sharded:
        model = build()
        model.constrain()
        return dict(model.state_dict())
    shared = shared_out(build)
    shared.constrain()
    return shared.whole_state()


@shards
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_that_share_the_parameters_take_the_steps_of_one(tmp_path, count):
    """Two share one copy; of four, two pairs do: clipped, in micro-batches."""
    several(steps_of, count, tmp_path, count)
    (together, sharded, _), bounded = torch.load(tmp_path / f"{count}.pt", weights_only=True)
    one, loss, _ = train({**DIGITS, **STEPS}, ())
    for name, value in one.items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-4)
    assert sharded == pytest.approx(loss, rel=1e-3)
    for name, value in constrained(sharded=False).items():
        torch.testing.assert_close(bounded[name], value)


def test_what_cannot_be_shared_is_refused(make):
    with pytest.raises(ConfigError, match="shard is 2: it is how many processes hold"):
        recipes.parse(DIGITS, ("--parallel=fsdp", "--shard=2"))
    if not present("signal"):
        return
    image = recipes.read("image")
    with pytest.raises(ConfigError, match="parallel is fsdp, and reuse keeps all states on one"):
        recipes.parse({**image, "reuse": True, "parallel": "fsdp"})


@pytest.mark.parametrize(("processes", "shard"), [(6, 4), (2, 4)])
def test_processes_are_split_into_equal_groups(processes, shard):
    with pytest.raises(ValueError, match=f"{processes} processes cannot be split into groups of"):
        extent("hsdp", shard, processes)


def test_one_process_holds_everything(make, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    trainer, _ = make("run", "--parallel", "fsdp")
    assert isinstance(trainer.layout, Whole) and not isinstance(
        next(trainer.model.parameters()), DTensor
    )
    trainer.train_step()


PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_the_processes_of_the_commands_on_the_page_divide_their_batches():
    text = PAGE.read_text().replace("\\\n", " ")
    commands = [line for line in text.splitlines() if "torchrun " in line and " train " in line]
    assert len(commands) > 6
    for command in commands:
        machines = re.search(r"--nnodes (\S+)", command)
        each = re.search(r"--nproc-per-node (\d+)", command)
        name = re.search(r" train (\S+)", command)
        assert each and name
        if name[1] not in recipes.available():
            continue  # a run that goes on
        between = [int(x) for x in machines[1].split(":") if x.isdigit()] if machines else [1]
        between = between or [4]  # of Slurm's script, which asks for four
        given = re.search(r"--batch-size (\d+)", command)
        rows = int(given[1]) if given else recipes.load(name[1]).rows
        for count in range(between[0], between[-1] + 1):
            assert rows % (count * int(each[1])) == 0, command
