"""Memory of a training step: what is measured, and that a DEQ's does not grow with depth."""

import functools
import itertools
import json

import pytest
import torch

import equilibria as eq
from equilibria.run import memory, models
from equilibria.run import recipe as recipes
from equilibria.run.cli.main import main
from equilibria.run.memory import DEPTHS, measure, measure_within, peak_bytes, settings
from equilibria.run.tasks import Batch
from equilibria.solve import GMRES, Anderson, Broyden, Implicit, estimate
from equilibria.zoo.vision.model.mdeq import MDEQConfig
from equilibria.zoo.vision.task.classification import ImageClassification

pytestmark = pytest.mark.usefixtures("profiler")


def test_the_peak_is_counted_not_the_sum():
    def step():
        a = torch.empty(1000)
        del a
        b = torch.empty(500)
        c = torch.empty(700)
        return b, c

    assert peak_bytes(step) == pytest.approx(4 * 1200, abs=256)


def dense(solver):
    """A model, its task and a batch."""
    torch.manual_seed(0)
    adjoint = Implicit(linear=GMRES(rtol=0.0, max_evals=6, restart=6))
    model = models.create("dense", width=64, solver=solver, adjoint=adjoint)
    task = ImageClassification(data="digits").load()
    return model, task, task.feed(32, 0).batch(0)


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """What the estimate of an error takes is constant, and large only beside models as small as
    these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "BLOCK", 64)
        yield


@pytest.fixture(scope="module")
def whole():
    """All that is measured of a model, at three depths."""
    return measure(*dense(Anderson(history=5)), depths=(5, 10, 20))


def keys(points):
    return [(point.kind, point.evals) for point in points]


@pytest.mark.parametrize("solver", [Anderson, functools.partial(Anderson, period=3)])
def test_a_deq_does_not_grow_and_the_unrolled_cell_does(solver, whole):
    model, task, batch = dense(solver(history=5 if solver is Anderson else 3))
    points = whole if solver is Anderson else measure(model, task, batch, depths=(5, 10, 20))
    size = {(point.kind, point.evals): point.bytes for point in points}
    # But for the last iterates, of which the history may hold some or none.
    assert abs(size["deq", 20] - size["deq", 5]) <= 4 * 32 * 64 * 4
    growth = size["unrolled", 20] - size["unrolled", 10]
    assert growth == pytest.approx(2 * (size["unrolled", 10] - size["unrolled", 5]), rel=0.1)
    assert growth >= 10 * 32 * 64 * 4  # at least the state of each evaluation

    def by_hand():
        weight = model.deq.cell.linear.weight
        (u,) = model.inject(batch.inputs)
        z = torch.zeros_like(u)
        for _ in range(20):
            z = torch.tanh(torch.nn.functional.linear(z, weight) + u)
        task.loss(model, model.readout(z), batch.targets).backward()

    by_hand()  # the gradients are there before the measurement
    assert size["unrolled", 20] == pytest.approx(peak_bytes(by_hand), rel=0.2)
    for point in points:
        expected = 12 * 32 * 64 * 4 if point.kind == "deq" else 0
        assert point.history_bytes == expected


def test_of_a_language_model_the_body_is_measured(language):
    """Neither the vocabulary nor the softmax is in it, and what was carried over is."""
    task = recipes.parse(language).task.load()
    batch = task.feed(4, 0).batch(0)
    sizes = {}
    for vocabulary, kept, depths in ((20, 8, (3, 8)), (5000, 8, (3,)), (20, 0, (8,))):
        torch.manual_seed(0)
        model = models.create(
            "deq-transformer",
            vocabulary=vocabulary,
            width=16,
            heads=2,
            inner=24,
            memory=kept,
            subsequence=7,
            solver=Anderson(period=3, history=3),
            adjoint=Implicit(linear=GMRES(rtol=0.0, max_evals=4, restart=4)),
        )
        points = measure(model, task, batch, depths=depths)
        sizes[vocabulary, kept] = {(p.kind, p.evals): p.bytes for p in points}
        assert next(p for p in points if p.kind == "deq").history_bytes == 12 * 4 * 7 * 16 * 4
    plain, wide, forgetful = sizes.values()
    assert wide == pytest.approx({key: plain[key] for key in wide}, rel=0.01)
    assert forgetful["deq", 8] < plain["deq", 8]
    assert plain["unrolled", 8] > 2 * plain["unrolled", 3] > plain["deq", 3]
    assert plain["deq", 8] == pytest.approx(plain["deq", 3], rel=0.1)


@pytest.mark.parametrize(
    ("solver", "wanted"),
    [
        (Anderson(history=3, max_evals=50), DEPTHS),
        (Anderson(period=3, history=None, max_evals=50), (5, 10, 20, 40, 50, 80)),
        (Broyden(memory=None, max_evals=90), (*DEPTHS, 90)),
        (Broyden(memory=8, max_evals=90), DEPTHS),
    ],
    ids=repr,
)
def test_a_history_that_grows_to_the_end_is_measured_at_the_end(solver, wanted):
    model, task, batch = dense(solver)
    kinds = ("deq", "unrolled", "checkpointed")
    assert [each.key for each in settings(model)] == [(k, n) for k in kinds for n in wanted]
    if wanted[-1] == 90:
        point, *_ = measure(model, task, batch, depths=(12,))
        assert point.history_bytes == 13 * 32 * 64 * 4 < point.bytes


def test_a_solver_made_of_others_has_their_history():
    for evals in (5, 30):
        parts = (eq.Auto(), eq.GMRES(restart=50))
        most = max(memory.history_vectors(part, evals) for part in parts)
        assert memory.history_vectors(eq.Fallback(), evals) == most > 0


def test_point_by_point_is_the_same_and_goes_on_where_it_stopped(whole, monkeypatch):
    monkeypatch.setattr(memory, "DEPTHS", (5, 10))
    given = dense(Anderson(history=5))
    begun = list(itertools.islice(measure_within(*given), 3))
    rest = list(measure_within(*given, known=begun))
    shallow = [point for point in whole if point.evals < 20]
    assert keys(begun + rest) == keys(shallow)
    for got, wanted in zip(begun + rest, shallow, strict=True):
        assert got.bytes == pytest.approx(wanted.bytes, rel=0.05)
        assert got.history_bytes == wanted.history_bytes
    assert list(measure_within(*given, known=begun + rest, max_bytes=0)) == []


def test_what_the_machine_is_too_small_for_is_left_out_and_said(whole, monkeypatch):
    monkeypatch.setattr(memory, "DEPTHS", (5, 10, 20))
    given = dense(Anderson(history=5))
    size = {point.key: point.bytes for point in whole}
    most = 1.02 * max(size["deq", 20], size["unrolled", 5])
    said: list[str] = []
    found = list(measure_within(*given, max_bytes=most, skipped=said.append))
    left = [key for key in size if key not in keys(found)]
    assert [key for key in left if key[0] != "checkpointed"] == [("unrolled", 10), ("unrolled", 20)]
    assert len(said) == len(left) and all("it needs about" in reason for reason in said)
    assert said[0].startswith("Memory of a step, unrolled at depth 10, is not measured: it needs")
    said.clear()
    found = measure_within(*given, max_seconds=0.0, skipped=said.append)
    assert not list(found) and len(said) == 9 and "on this cpu" in said[0]
    said.clear()

    def full(*given):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(memory, "_point", full)
    monkeypatch.setattr(memory, "_estimate", lambda *given: memory._Need(1, 1, 0.0))
    assert not list(measure_within(*given, skipped=said.append))
    assert len(said) == 9 and all("the cpu has no memory left" in each for each in said)


def test_the_smallest_images_that_a_model_takes_will_do(monkeypatch):
    """There its head has a single place, and a BatchNorm needs more than one row of those."""
    monkeypatch.setattr(memory, "DEPTHS", (2,))
    task = ImageClassification(data="digits").load()
    config = MDEQConfig(
        channels=(2, 2, 2, 2), head_channels=(1, 1, 1, 1), final=2, expansion=1, groups=2
    )
    assert config.min_size == 8
    model = task.complete(config).build(solver=Anderson(history=2))
    found = list(measure_within(model, task, task.feed(6, 0).batch(0)))
    assert keys(found) == [("deq", 2), ("unrolled", 2), ("checkpointed", 2)]


def test_an_estimate_is_of_the_whole_batch(monkeypatch):
    """`_point` is replaced by one that needs 100 bytes, and 7 for each row."""

    def point(subject, setting):
        need = 100.0 + 7.0 * len(subject.inputs)
        return None, memory._Need(need, need, need)

    monkeypatch.setattr(memory, "_point", point)
    model, task, batch = dense(Anderson())
    for rows in (1, 2, 3, 4, 32):
        part = Batch(batch.inputs[:rows], batch.targets[:rows])
        found = memory._estimate(model, task, part, settings(model)[0])
        assert found.bytes == pytest.approx(100 + 7 * rows)


def test_the_command_goes_on_where_it_was_interrupted(fitted, monkeypatch):
    monkeypatch.setattr(memory, "DEPTHS", (2, 4))
    _, folder = fitted("run", "--epochs", "1", "--epoch_steps", "1")
    assert not folder.memory.exists()
    measured, point = memory._point, iter(range(100))

    def interrupted(*given):
        if next(point) == 2:
            raise KeyboardInterrupt
        return measured(*given)

    monkeypatch.setattr(memory, "_point", interrupted)
    monkeypatch.setattr(memory, "_estimate", lambda *_: memory._Need(0, 0, 0))
    assert main(["memory", str(folder.path)]) == 130
    begun = json.loads(folder.memory.read_text())
    assert [(p["kind"], p["evals"]) for p in begun] == [("deq", 2), ("deq", 4)]
    assert main(["memory", str(folder.path)]) == 0
    points = json.loads(folder.memory.read_text())
    assert points[:2] == begun and len(points) == 6
    assert main(["memory", str(folder.path)]) == 0
    assert json.loads(folder.memory.read_text()) == points


@pytest.mark.device
def test_on_a_gpu_its_own_memory_is_measured():
    model, task, batch = dense(Anderson(history=3))
    on_cpu = {point.key: point.bytes for point in measure(model, task, batch)}
    for point in measure_within(model.cuda(), task, batch):
        assert point.bytes == pytest.approx(on_cpu[point.key], rel=0.5, abs=1 << 20)
