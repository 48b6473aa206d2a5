"""What a model's answers owe to its depth, measured where it is known; the command and the page."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

import equilibria as eq
from applications import needs
from equilibria.metric import ACCURACY, Metric
from equilibria.run import depth, tasks
from equilibria.run.cli.main import main
from equilibria.run.depth import DepthReport, choose_depths, measure_depth
from equilibria.run.evaluation import accelerator
from equilibria.run.models import EquilibriumModel
from equilibria.run.report.depth import panels
from equilibria.run.tasks.base import right

LENGTH = 12


class Samples:
    """A sign each, and after how many evaluations it is to be seen."""

    def __init__(self, distances: list[int]) -> None:
        self.distances = torch.tensor(distances)
        generator = torch.Generator().manual_seed(0)
        self.signs = torch.randint(2, (len(distances),), generator=generator)

    def __len__(self) -> int:
        return len(self.signs)

    def __getitem__(self, index: Any) -> Any:
        inputs = {"sign": 2.0 * self.signs[index] - 1, "distance": self.distances[index]}
        return inputs, self.signs[index] + 1


class Chain(nn.Module):
    """z_1 <- the sign, z_i <- z_(i-1) up to the distance. If sticky, z_1 keeps the sign it has."""

    def __init__(self, sticky: bool) -> None:
        super().__init__()
        self.sticky = sticky
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, z: Tensor, sign: Tensor, distance: Tensor) -> Tensor:
        first = torch.where(z[:, 0] == 0, sign, z[:, 0].sign()) if self.sticky else sign
        moved = self.scale * torch.cat([first[:, None], z[:, :-1]], 1)
        return moved * (torch.arange(LENGTH) < distance[:, None])


class ChainModel(EquilibriumModel):
    """Class 0 says that nothing is known yet, 1 and 2 the sign that has arrived.

    `worse` has the answer read from the first entry, until the sign arrives at the last.
    """

    def __init__(self, *, sticky: bool = False, worse: bool = False, max_evals: int = 40) -> None:
        super().__init__()
        self.worse = worse
        solver = eq.Picard(max_evals=max_evals, patience=None)
        start = lambda sign, _: sign.new_zeros(len(sign), LENGTH)  # noqa: E731
        self.deq = eq.DEQ(Chain(sticky), solver=solver, init=start)

    def inject(self, x: Any) -> tuple[Tensor, ...]:
        return x["sign"], x["distance"]

    def readout(self, z: Tensor) -> Tensor:
        raise AssertionError("the answer depends on the input too")

    def answer(self, z: Tensor, x: Any) -> Tensor:
        seen = z.gather(1, x["distance"][:, None] - 1)[:, 0]
        if self.worse:
            seen = z[:, 0] - 2 * seen
        return torch.stack([torch.full_like(seen, 0.5), -seen, seen], 1)


class ChainTask(tasks.SampleTask):
    metrics = (ACCURACY,)

    def __init__(self, distances: list[int], *, hard: bool = True) -> None:
        super().__init__({"test": Samples(distances)}, "toy")
        self.hard = hard

    def complete(self, config: Any) -> Any:
        return config

    def loss(self, model: Any, output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, targets, reduction="sum")

    def units(self, targets: Tensor) -> int:
        return len(targets)

    def judge(self, output: Tensor, targets: Tensor) -> Tensor:
        return output.argmax(1) == targets

    def sums(self, model: Any, output: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return right(self.judge(output, targets))

    def measure_difficulty(self, batch: Any) -> Tensor | None:
        return batch.inputs["distance"] if self.hard else None


def measure(model: ChainModel, distances: list[int], **options: Any) -> DepthReport:
    task = ChainTask(distances, hard=options.pop("hard", True))
    return measure_depth(model, task, accelerator("float32", "cpu"), **options)


UP = [1, 2, 3, 4, 6, 8] * 3


def test_an_answer_that_travels_is_right_after_as_many_evaluations_as_its_way_is_long() -> None:
    found = measure(ChainModel(), UP)
    assert found.samples == 18 and found.metric == "accuracy" and found.figure == 1.0
    arrived = {k: sum(way <= k for way in UP) / len(UP) for k in found.at}
    assert found.at == pytest.approx(arrived)
    assert found.right_after == UP
    assert found.evals == [way + 1 for way in UP]  # the last sees that nothing changes
    assert found.converged == 1.0
    assert found.correlation == pytest.approx(1.0)
    assert found.enough == 8
    said = "the model gains 67 points from its depth: 33.33 % after 2 evaluations, 100.00 % at"
    assert found.describe(ACCURACY).startswith(said)
    for start in found.starts.values():
        assert (start.figure, start.same, start.converged) == (1.0, 1.0, 1.0)
    assert found.starts["noise"].evals == pytest.approx(sum(UP) / 18 + 1)


def test_two_evaluations_may_be_enough() -> None:
    found = measure(ChainModel(), [1, 2] * 4)
    assert found.enough == 2
    assert found.describe(ACCURACY) == (
        "2 evaluations are enough (100.00 %; 100.00 % at the end of the solves): a network of "
        "fixed depth 2 is cheaper"
    )
    found = measure(ChainModel(), [1] * 8)
    assert found.describe(ACCURACY).startswith("1 evaluation is enough")
    assert found.correlation is None


def test_depth_may_make_answers_worse() -> None:
    found = measure(ChainModel(worse=True), [4, 8] * 4)
    assert found.figure == 0.0 and found.at[2] == 1.0 and found.right_after == []
    assert found.describe(ACCURACY).startswith("the model loses 100 points by its depth")


@pytest.mark.parametrize("figure", [0.0, 0.004])
def test_a_model_that_solves_nothing_has_no_depth_to_judge(figure: float) -> None:
    found = measure(ChainModel(max_evals=2), [5] * 4)
    assert (found.figure, found.at) == (0.0, {1: 0.0, 2: 0.0})
    found = replace(found, at={1: 0.0, 2: figure}, converged=1.0)
    assert found.describe(ACCURACY) == (
        f"the model solves next to nothing ({100 * figure:.2f} % at best, 0.00 % at the end of the "
        "solves): train it further before judging its depth"
    )
    # Of a figure without a unit, as of one that is to be small, nothing is known but 0.
    plain = Metric(name="score", higher_is_better=True)
    assert found.describe(plain).startswith("the model solves next") is (figure == 0)
    assert "next to nothing" not in found.describe(Metric(name="loss"))


def test_a_sample_alone_has_no_other_to_start_from() -> None:
    alone = measure(ChainModel(), [3] * 5, batch_size=1)
    assert depth.OTHER not in alone.starts and len(alone.starts) == 4
    some = measure(ChainModel(sticky=True), [3] * 5, batch_size=2)  # the last is alone
    signs = Samples([3] * 5).signs[:4].tolist()
    alike = sum(signs[k] == signs[k ^ 1] for k in range(4)) / 4
    assert some.samples == 5 and some.starts[depth.OTHER].figure == alike


def test_noise_does_not_depend_on_the_size_of_a_batch() -> None:
    """And each batch is solved once, and once from each start."""
    solves: list[int] = []
    found = []
    for size in (8, 4):
        model = ChainModel(sticky=True)
        model.deq.register_forward_hook(lambda *_: solves.append(1))
        found.append(measure(model, [3] * 8, batch_size=size).starts["noise"])
    assert found[0].same == found[1].same and 0 < found[0].same < 1
    assert len(solves) == 6 + 2 * 6
    changed = [measure(ChainModel(sticky=True), [3] * 8, seed=k).starts["noise"] for k in range(6)]
    assert len({each.same for each in changed}) > 1


def test_answers_that_depend_on_the_start_are_found() -> None:
    model, ways = ChainModel(sticky=True), [3] * 20
    found = measure(model, ways)
    signs = Samples(ways).signs
    alike = float((signs == signs.roll(1)).double().mean())
    other = found.starts["another sample's solution"]
    assert found.starts["the solution, negated"].figure == 0.0
    assert found.starts["zeros"].figure == found.starts["zeros"].same == 1.0
    assert other.figure == other.same == pytest.approx(alike) and alike < 1


def test_figures_are_of_all_batches_and_samples_are_limited() -> None:
    whole = measure(ChainModel(), UP)
    parts = measure(ChainModel(), UP, batch_size=6)
    assert parts.at == pytest.approx(whole.at)
    assert (parts.evals, parts.difficulty) == (whole.evals, whole.difficulty)
    few = measure(ChainModel(), UP, samples=6, batch_size=6)
    assert few.samples == 6 and few.right_after == UP[:6]


def test_solves_that_are_cut_off_are_counted() -> None:
    found = measure(ChainModel(max_evals=5), [2, 10] * 4)
    assert (found.converged, found.figure) == (0.5, 0.5)
    assert max(found.evals) == max(found.at) == 5
    # Both are of the samples that are right, and their curves end at the share of these.
    assert (found.right_after, found.right_evals) == ([2] * 4, [3] * 4)
    stored = found.json(ACCURACY)
    curves = panels([stored], ACCURACY)[-1].series
    assert [max(each.x) for each in curves] == [0.5, 0.5]
    assert [each.y for each in curves] == [[2] * 4, [3] * 4]


def test_solves_that_were_cut_off_are_not_blamed_on_training() -> None:
    found = measure(ChainModel(max_evals=3), [10] * 8)
    assert found.converged == found.figure == 0
    assert "did not converge in 3 evaluations: raise --max-evals" in found.describe(ACCURACY)


def test_one_answer_that_is_right_by_chance_is_nothing() -> None:
    found = measure(ChainModel(), UP)
    lucky = replace(found, figure=0.0, at={1: 1 / found.samples, 2: 0.0, 12: 0.0})
    assert "solves next to nothing" in lucky.describe(ACCURACY)
    assert "train it further" in lucky.describe(ACCURACY)


def test_the_model_is_left_as_it_was() -> None:
    model = ChainModel().train()
    measure(model, [2, 3], hard=False)
    assert model.training and model.deq.training


def test_a_task_may_judge_nothing_one_by_one() -> None:
    task = ChainTask(UP, hard=False)
    task.judge = lambda output, targets: None
    task.sums = lambda model, output, targets: {}
    task.metrics = ()
    found = measure_depth(ChainModel(), task, accelerator("float32", "cpu"))
    assert found.metric == "loss" and found.right_after == found.difficulty == []
    assert "in loss from its depth" in found.describe(task.primary)


@pytest.mark.parametrize(
    ("most", "depths"),
    [(1, (1,)), (2, (1, 2)), (5, (1, 2, 3, 4, 5)), (13, (1, 2, 3, 4, 6, 8, 12, 13))],
)
def test_depths_go_up_to_the_last_evaluation(most: int, depths: tuple[int, ...]) -> None:
    assert choose_depths(most) == depths


def test_an_early_answer_that_is_right_by_chance_does_not_count() -> None:
    rows = [[1, 0, 0], [0, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 1]]  # the last is the end
    rights = [torch.tensor(row).bool() for row in rows]
    assert depth._find_settled((1, 2, 3, 8), [8, 8, 8], rights) == [8, 3, 8]
    # A solve that ends between two depths has its answer by then.
    assert depth._find_settled((1, 2, 3, 8), [5, 8, 4], rights) == [5, 3, 4]


# --- the command, and the page --------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(parity_run, tmp_path_factory):
    """A run whose depth was measured, and what the command printed."""
    folder = shutil.copytree(parity_run, tmp_path_factory.mktemp("depth") / "parity")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["depth", str(folder), "--samples", "20"]) == 0
    return folder, printed.getvalue()


@needs("reasoning")
def test_the_command_prints_a_sentence_and_stores_what_the_page_shows(measured) -> None:
    folder, shown = measured
    stored = json.loads((folder / "depth.json").read_text())
    splits = {each["split"]: each for each in stored["splits"]}
    assert [*splits] == ["test", "test-8"]
    for name, each in splits.items():
        assert f"20 samples of {name}" in shown
        assert f"{name}: {each['sentence']}." in " ".join(shown.split())
        assert len(each["evals"]) == each["samples"] == 20
    assert splits["test"]["figure"] - splits["test"]["at"]["2"] > 0.3
    assert splits["test"]["sentence"].startswith("the model gains")
    assert Metric.of(stored["metric"]).label == "instances solved"
    assert (folder / "depth.svg").read_text().lstrip().startswith("<?xml")


@needs("reasoning")
@pytest.mark.usefixtures("drawn_once")
def test_options_choose_splits_and_evaluations(measured, tmp_path, prints) -> None:
    folder = shutil.copytree(measured[0], tmp_path / "run")
    words = ("--splits", "valid", "--samples", 8, "--max-evals", 3, "--solver", "picard", "--quiet")
    assert prints("depth", folder, *words).strip() == str(folder / "depth.json")
    stored = json.loads((folder / "depth.json").read_text())
    (only,) = stored["splits"]
    assert (stored["solver"], stored["max_evals"]) == ("Picard", 3)
    assert (only["split"], only["samples"]) == ("valid", 8)
    assert [*only["at"]] == ["1", "2", "3"] and max(only["evals"]) == 3
    assert main(["report", str(folder), "--no-doctor", "--no-gallery", "--quiet"]) == 0
    page = (folder / "report.html").read_text()
    assert "Solved by Picard. A solve took at most 3 evaluations." in page


@needs("reasoning")
def test_what_was_measured_in_the_same_way_is_kept(measured, tmp_path, prints) -> None:
    folder = shutil.copytree(measured[0], tmp_path / "run")
    words = ("--samples", 8, "--quiet")
    prints("depth", folder, "--splits", "valid", *words)
    found = {
        each["split"]: each["samples"]
        for each in json.loads((folder / "depth.json").read_text())["splits"]
    }
    assert found == {"valid": 8, "test": 20, "test-8": 20}
    prints("depth", folder, "--splits", "test", "--max-evals", 3, *words)
    (only,) = json.loads((folder / "depth.json").read_text())["splits"]
    assert only["split"] == "test"  # the others had other limits


@needs("reasoning")
@pytest.mark.usefixtures("drawn_once")
def test_the_page_of_the_run_shows_it_until_it_is_trained_on(measured) -> None:
    folder, _ = measured
    words = ["report", str(folder), "--no-doctor", "--no-gallery", "--quiet"]
    assert main(words) == 0
    page = (folder / "report.html").read_text()
    content = (folder / "depth.json").read_text()
    stored = json.loads(content)
    assert "<h2>Use of depth</h2>" in page
    assert all(each["sentence"] in page for each in stored["splits"])
    assert "What further evaluations are worth" in page and "Right for good, and solved" in page
    assert "<td>stopped after 2</td>" in page and "<td>from noise</td>" in page
    (folder / "depth.json").write_text(json.dumps({**stored, "weights": "of others"}))
    assert main(words) == 0
    assert "<h2>Use of depth</h2>" not in (folder / "report.html").read_text()
    (folder / "depth.json").write_text(content)


@needs("reasoning")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--splits", "test-99"), "--splits must be of valid, test, test-8; got test-99"),
        (("--samples", "0"), "--samples"),
        (("--max-evals", "0"), "--max-evals"),
        (("--solver", "newton"), "--solver must be one of"),
    ],
)
def test_what_cannot_be_measured_is_refused(parity_run, fails, words, message) -> None:
    assert message in fails("depth", parity_run, *words)


@needs("reasoning")
def test_an_explicit_network_has_no_depth_to_measure(tmp_path, fails) -> None:
    tree = {
        "description": "no equilibrium",
        "task": {"name": "parity", "size": 4, "larger": [], "test": 8, "epoch": 8},
        "model": {"name": "fixed-depth", "width": 4, "depth": 2},
        "optimizer": {"name": "AdamW", "lr": 0.01},
        "epochs": 1,
        "batch_size": 8,
    }
    (tmp_path / "explicit.yaml").write_text(yaml.safe_dump(tree))
    folder = tmp_path / "explicit"
    assert main(["train", str(tmp_path / "explicit.yaml"), "--out", str(folder), "--quiet"]) == 0
    message = fails("depth", folder)
    assert "is a run of FixedDepthConfig on prefix parities, 4 bits" in message
    assert "networks that solve for one equilibrium a sample" in message


@needs("language")
def test_a_text_has_no_single_equilibrium_a_sample(fitted, language, fails) -> None:
    language |= {"epochs": 1, "epoch_steps": 1, "pretrain": None}
    _, folder = fitted(tree=language)
    assert "is a run of DEQTransformerConfig on" in fails("depth", folder.path)
