"""What a recipe takes on GPUs that are not there: bytes as measured, and what fits."""

import json
import warnings
from dataclasses import replace

import pytest
import torch

from equilibria.cli.main import main
from equilibria.cli.parser import UserError
from equilibria.cli.plan import size
from equilibria.data.errors import DataError
from equilibria.solve import GMRES, Broyden, Implicit, JacobianFree, NeumannPhantom, Phantom
from equilibria.stability.peak import peak_bytes
from equilibria.tasks import ImageClassification
from equilibria.train import memory, plan_inputs
from equilibria.train import recipe as recipes
from equilibria.train.config import ConfigError
from equilibria.train.hardware import GPUS, named, peak_of
from equilibria.train.optimiser import SGD
from equilibria.train.plan import USABLE, PlanError, Share, largest, plan
from equilibria.train.plan_inputs import reads
from equilibria.train.plan_step import Sizes, trace

pytestmark = pytest.mark.usefixtures("profiler")

EVALS = 10
DIGITS = {"name": "image_classification", "data": "digits"}
DENSE = {"task": DIGITS, "model": {"name": "dense", "width": 64}}
MULTISCALE = {
    "task": DIGITS,
    "model": {
        "name": "mdeq",
        "channels": [8, 8],
        "head_channels": [4, 4],
        "final": 16,
        "expansion": 2,
        "groups": 2,
        "dropout": 0.1,
    },
}


def limited(tree, *options, adjoint=None):
    """A recipe whose solves all take `EVALS` evaluations and products."""
    recipe = recipes.parse(tree, options)
    linear = GMRES(rtol=0.0, max_evals=EVALS, restart=EVALS)
    solver = replace(recipe.solver, rtol=0.0, atol=0.0, max_evals=EVALS, patience=None)
    return replace(recipe, solver=solver, adjoint=adjoint or Implicit(linear=linear))


def measured(recipe, rows):
    """Bytes that a real step of a recipe allocates on the CPU, softmax and all."""
    task = recipe.task.load()
    torch.manual_seed(0)
    model = task.model(recipe.model, **recipe.layer()).train()
    batch = task.feed(rows, 0).batch(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        carry = model(batch.inputs).carry if task.streams else None

        def step():
            prediction = model(batch.inputs, carry=carry)
            task.loss(model, prediction.output, batch.targets).backward()

        step()  # allocates the gradients
        return peak_bytes(step)


def planned(recipe, rows):
    step = trace(reads(recipe), recipe, rows)
    return step.peak - step.carried  # which the real step finds there


@pytest.mark.parametrize(
    ("rows", "options"),
    [(16, ()), (4, ("--model.subsequence", "7", "--model.cutoffs", "[9]"))],
)
def test_a_language_model_takes_what_is_measured(language, rows, options):
    recipe = limited(language, "--task.length", "12", "--model.inner", "64", *options)
    assert planned(recipe, rows) == pytest.approx(measured(recipe, rows), rel=0.1)


@pytest.mark.parametrize(("tree", "rows"), [(DENSE, 8), (MULTISCALE, 32)], ids=["dense", "mdeq"])
def test_so_does_a_classifier(tree, rows):
    recipe = limited(tree)
    assert planned(recipe, rows) == pytest.approx(measured(recipe, rows), rel=0.1)


def test_the_measurement_of_equilibria_memory_agrees():
    recipe, rows = limited(DENSE), 16
    task = recipe.task.load()
    torch.manual_seed(0)
    model = task.model(recipe.model, **recipe.layer())
    points = memory.measure(model, task, task.feed(rows, 0).batch(0), depths=(EVALS,))
    size = {point.kind: point.bytes for point in points}
    assert planned(recipe, rows) == pytest.approx(size["deq"], rel=0.1)
    assert size["unrolled"] != pytest.approx(size["deq"], rel=0.03)


@pytest.mark.parametrize(
    ("adjoint", "solver"),
    [
        (Implicit(), Broyden()),
        (Implicit(linear=Broyden(max_evals=12)), None),
        (JacobianFree(), Broyden()),
        (NeumannPhantom(), None),
        (Phantom(), Broyden()),
    ],
    ids=["relay-Broyden", "broyden-own", "free-Broyden", "npg-own", "upg-Broyden"],
)
def test_every_adjoint_holds_what_it_holds(adjoint, solver):
    tree = MULTISCALE if solver is None else DENSE
    recipe = limited(tree, adjoint=adjoint)
    if isinstance(adjoint, Implicit):  # as many products as there can be
        harsh = {"rtol": 0.0} | ({"patience": None} if isinstance(adjoint.linear, Broyden) else {})
        linear = replace(adjoint.linear, max_evals=12, **harsh)
        recipe = replace(recipe, adjoint=Implicit(linear=linear))
    if solver is not None:
        limits = {"rtol": 0.0, "max_evals": EVALS, "patience": None}
        recipe = replace(recipe, solver=replace(solver, **limits))
    assert planned(recipe, 16) == pytest.approx(measured(recipe, 16), rel=0.1)


@pytest.fixture
def eight(monkeypatch):
    """Plans try eight rows, and one: they do not search."""
    search = lambda peak, room: next((n for n in (8, 1) if peak(n) <= room), 0)  # noqa: E731
    monkeypatch.setattr("equilibria.train.plan.largest", search)


def test_an_explicit_network_is_planned_too(eight):
    small = {"name": "resnet", "widths": [4, 8], "blocks": [1, 1]}
    found = plan(recipes.parse({"task": DIGITS, "model": small}), memory=1e9)
    assert found.size.layer == 0 and found.step.rows > 0
    assert "evaluations per forward solve" not in {f.name for f in found.figures()}


def test_bfloat16_takes_less_and_no_fewer_operations(language):
    recipe = limited(language, "--model.inner", "256")
    whole = trace(reads(recipe), recipe, 16)
    half = trace(reads(recipe), replace(recipe, precision="bf16"), 16)
    assert half.evaluation < whole.evaluation and half.peak < whole.peak
    assert half.flops == whole.flops
    assert trace(reads(recipe), recipe, 16, quick=True).flops == whole.flops


def test_operations_are_those_of_the_matrices():
    """One evaluation of a dense cell is one product of the state with a matrix."""
    recipe = limited({**DENSE, "model": {"name": "dense", "width": 64, "bound": None}})
    step = trace(reads(recipe), recipe, 8)
    assert step.one_evaluation == step.one_product == 2 * 8 * 64 * 64
    assert step.total(10, 3) == step.rest + 13 * step.one_evaluation
    # Injection and readout, forward and backward (the input needs no gradient), and f once more in
    # backward with the gradient of its matrix.
    outside = 2 * 8 * (2 * 64 * 64 + 3 * 64 * 10)
    assert step.rest == outside + 2 * step.one_evaluation


@pytest.mark.parametrize("slope", [1.0, 7.5, 1000.0])
def test_the_largest_batch_is_found(slope):
    asked = []

    def peak(rows):
        asked.append(rows)
        return max(100.0 + slope * rows, 40.0 + 1.5 * slope * rows)

    for room in (100.0 + slope - 0.1, 100.0 + slope, 1e4, 98765.4):
        found = largest(peak, room)
        assert (found == 0 or peak(found) <= room) and peak(found + 1) > room
    assert len(set(asked)) < 100
    assert largest(lambda rows: 1.0, 2.0) == 1 << 20


def test_the_batch_that_fits_is_the_largest_that_does():
    recipe = limited(DENSE)
    found = plan(recipe, memory=20e6)
    room = USABLE * 20e6 - found.share.total
    read = reads(recipe)
    rows = found.step.rows
    assert trace(read, recipe, rows, on_gpu=True).peak <= room
    assert trace(read, recipe, rows + 1, on_gpu=True).peak > room
    assert found.step.peak == sum(found.step.at_peak.values())


def test_sharding_divides_what_lasts_and_gathers_it_for_a_step(eight):
    recipe, size = recipes.parse(DENSE), Sizes(all=1000, layer=600, buffers=24)
    alone = Share.of(size, recipe.optimiser, "ddp", 1, 1)
    assert alone == Share(parameters=4024, gradients=4000, optimiser=8000, communication=0)
    assert Share.of(size, recipe.optimiser, "ddp", 1, 8) == replace(alone, communication=4000)
    fsdp = Share.of(size, recipe.optimiser, "fsdp", 8, 8)
    assert fsdp == Share(parameters=524, gradients=500, optimiser=1000, communication=8000)
    assert alone.total == 16024 and fsdp.total == 10024
    for momentum, states in ((0.9, 4000), (0.0, 0)):
        assert Share.of(size, SGD(momentum=momentum), "ddp", 1, 1).optimiser == states
    hybrid = plan(recipe, gpus=16, memory=20e6, parallel="hsdp")
    assert hybrid.shards == 8 and hybrid.parallel == "hsdp"
    assert hybrid.speed == pytest.approx(16 * hybrid.step.rows / hybrid.seconds)
    assert hybrid.figure("samples that fit in total").value == 16 * hybrid.step.rows


def test_named_data_need_not_be_read(monkeypatch):
    read = reads(recipes.parse(DENSE))
    task = ImageClassification(data="digits").load()
    assert (read.config.shape, read.config.classes) == (task.shape, task.classes)
    monkeypatch.setenv("EQUILIBRIA_DATA", "/nowhere")
    large = recipes.load("lm-wt103-paper")
    read = reads(large)
    assert read.config.vocabulary == 267_735 and read.units == 150
    assert sum(read.shares) == pytest.approx(1) and read.shares[0] > 0.75
    assert reads(recipes.load("mdeq-imagenet-small-paper")).config.classes == 1000
    other = recipes.load("lm-wt103-paper", ["--model.vocabulary", "1000", "--model.cutoffs", "[]"])
    assert reads(other).shares == ()


@pytest.mark.data
@pytest.mark.parametrize("name", ["ptb", "wikitext2"])
def test_the_vocabularies_are_those_of_the_texts(name):
    recipe = recipes.load("lm-ptb", ["--task.data", name])
    try:
        task = recipe.task.load()
    except DataError:
        pytest.skip(f"{name} is not complete in the data folder")
    assert task.corpus.vocabulary.size == plan_inputs.WORDS[name]


def test_a_plan_of_the_papers_model_allocates_nothing_of_its_size(eight, capsys):
    words = ["plan", "lm-wt103-paper", "--precision", "bf16", "--gpus", "64", "--parallel", "fsdp"]
    assert main([*words, "--evals", "12", "10", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    found = {figure["name"]: figure for figure in tree["figures"]}
    assert found["parameters"]["value"] == 97_691_888
    assert found["optimiser state"]["value"] == pytest.approx(8 * 97_691_888 / 64, rel=1e-6)
    assert found["evaluations per forward solve"] == {
        "name": "evaluations per forward solve",
        "value": 12.0,
        "unit": "",
        "origin": "given",
        "note": "",
    }
    assert found["fraction of the peak"]["origin"] == "assumed"
    assert {f["origin"] for f in tree["figures"]} == {"computed", "given", "assumed"}
    assert tree["shards"] == 64 and "pretrain is not counted" in tree["notes"]


def test_what_is_measured_is_said_to_be(eight, tmp_path, capsys):
    path = tmp_path / "narrow.yaml"
    path.write_text(json.dumps(DENSE))
    assert main(["plan", str(path), "--measure", "16", "--memory", "1GB"]) == 0
    printed = capsys.readouterr().out
    line = next(x for x in printed.splitlines() if x.strip().startswith("bytes of a step, here"))
    assert "measured" in line and "16 rows, 6 evaluations" in line
    assert "speed here" in printed and "dense" not in printed.splitlines()[1]
    assert main(["plan", str(path), "--quiet", "--memory", "1GB"]) == 0
    assert capsys.readouterr().out.strip().isdigit()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digitz"], "there is no recipe 'digitz'; did you mean 'digits'?"),
        (["digits", "--gpus", "0"], "--gpus must be 1 or more; got 0"),
        (["digits", "--gpus", "two"], "--gpus expects a whole number, got 'two'"),
        (["digits", "--memory", "plenty"], "--memory must be a number of bytes, such as 80GB"),
        (["digits", "--memory", "0GB"], "--memory must be more than 0"),
        (["digits", "--memory", "1MB"], "parameters, gradients and optimiser state alone take"),
        (["digits", "--memory", "1.52MB"], "a step with one sample takes"),
        (["digits", "--parallel", "tensor"], "parallel must be one of ddp, fsdp, hsdp; got tensor"),
        (["digits", "--parallel", "hsdp", "--gpus", "12"], "do not fill several machines exactly"),
        (["digits", "--gpu", "abacus"], "gpu must be one of B200"),
        (["digits", "--mfu", "3"], "--mfu is a fraction of the peak"),
        (["digits", "--evals", "0"], "--evals takes the evaluations"),
        (["digits", "--measure", "0"], "--measure must be 1 sample or more"),
        (["digits", "--solver.histori", "3"], "solver.histor"),
        (["chains"], "do not consist of equal samples"),
    ],
)
def test_what_cannot_be_planned_is_refused(words, said, capsys):
    assert main(["plan", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("equilibria plan: error: ") and len(error.splitlines()) == 1
    assert said in error


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("80GB", 80e9),
        ("24GiB", 24 * 2**30),
        ("500M", 5e8),
        ("1.5 TB", 1.5e12),
        ("7", 7),
        ("2Ki", 2048),
    ],
)
def test_bytes_are_read_with_their_unit(text, count):
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-3GB", "3iB", "1e9", "80 bytes", "1.2.3GB"])
def test_other_words_are_no_bytes(text):
    with pytest.raises(UserError, match="--memory must be a number of bytes"):
        size(text)


def test_a_step_that_depends_on_numbers_is_refused():
    recipe = recipes.parse(DENSE)
    read = replace(reads(recipe), loss=lambda *given: given[1].sum() * given[1].max().item())
    with pytest.raises(ConfigError, match="depends on the values in its tensors"):
        trace(read, recipe, 4)


def test_what_to_do_about_gpus_that_are_too_small_or_too_many_is_said(eight):
    recipe = limited(DENSE)
    for gpus, said in ((1, "memory, or use several GPUs and shard"), (2, "memory, or shard")):
        with pytest.raises(PlanError, match=said):
            plan(recipe, gpus=gpus, memory=1e3)
    wrong, right = recipe.rows - 1, recipe.rows
    refused = f"train refuses batch_size {right} on {wrong} GPUs"
    assert refused in " ".join(plan(recipe, gpus=wrong, memory=20e6).notes)
    assert "refuses" not in " ".join(plan(recipe, gpus=right, memory=20e6).notes)


def test_a_batch_of_graphs_is_refused_by_name():
    with pytest.raises(ConfigError, match="equilibria memory RUN"):
        reads(recipes.load("chains"))
    with pytest.raises(PlanError, match="gpu must be one of"):
        plan(recipes.parse(DENSE), gpu="")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA RTX A6000", "A6000"),
        ("Quadro", None),
    ],
)
def test_a_gpu_is_known_by_torchs_name_for_it(name, key):
    assert named(name) == key


def test_no_peak_is_stated_of_a_cpu():
    assert peak_of(torch.device("cpu"), "bf16") is None
    assert all(peak.at("bf16") > peak.at("float32") for peak in GPUS.values())
