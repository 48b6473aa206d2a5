"""Tasks on sequences: standardised by training data, split by volunteer, evaluated on others."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from equilibria.run.cli.main import main
from equilibria.run.data import DataError, Split
from equilibria.run.tasks.regression import fit_regression
from equilibria.zoo.io.selection import choose_groups
from equilibria.zoo.recurrent.task.sequences import SequenceClassification
from equilibria.zoo.recurrent.task.signals import ChannelStatistics, read_windows
from equilibria.zoo.vision.model.single_scale import DenseConfig


@pytest.fixture
def folder(tmp_path):
    """Sequences of 5 to 9 steps of two channels, from four people, in two classes."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 10, 48)
    y = np.arange(48) % 2
    x = generator.normal(size=(48, 9, 2)).astype(np.float32) * [1, 100] + [0, 3] + y[:, None, None]
    path = tmp_path / "moves"
    path.mkdir()
    arrays = {"x": x.astype(np.float32), "y": y, "lengths": lengths}
    np.savez(path / "train.npz", **arrays, groups=np.arange(48) // 12)
    np.savez(path / "test.npz", **{name: each[:10] for name, each in arrays.items()})
    return path


def task(folder: Path, **options):
    return SequenceClassification(data=str(folder), **options).load()


def train(folder: Path, out: Path, *options: str) -> None:
    argv = ["train", "sequences", "--data", str(folder), "--out", str(out), "--epochs", "1"]
    assert main([*argv, "--batch_size", "8", "--model.hidden", "16", *options]) == 0


class TestStandardisation:
    def test_is_of_the_training_sequences_without_their_padding(self, folder):
        loaded = task(folder)
        (x, lengths), _ = loaded.samples["train"][slice(0, 48)]
        there = torch.arange(9) < lengths[:, None]
        torch.testing.assert_close(x[there].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
        deviation = x[there].std(0, correction=0)
        torch.testing.assert_close(deviation, torch.ones(2), atol=1e-5, rtol=0)
        assert not x[~there].any()

    def test_a_constant_channel_stays_finite(self, folder):
        content = dict(np.load(folder / "train.npz"))
        content["x"][..., 1] = 1e6
        np.savez(folder / "train.npz", **content)
        (x, _), _ = task(folder).samples["train"][slice(0, 48)]
        assert x.isfinite().all() and not x[..., 1].any()

    def test_compressed_signals_keep_their_sign_and_gain_where_they_are_small(self, folder):
        (plain, _), _ = task(folder).samples["train"][slice(0, 48)]
        (x, _), _ = task(folder, compress=0.1).samples["train"][slice(0, 48)]
        expected = torch.asinh(10 * plain) / torch.asinh(torch.tensor(10.0))
        torch.testing.assert_close(x, expected)

    def test_noise_is_added_in_training_alone(self, folder):
        loaded = task(folder, noise=0.5)
        batch = loaded.feed(48, 0).batch(0)
        noisy = loaded.augment(batch).inputs[0] - batch.inputs[0]
        assert abs(noisy.std().item() - 0.5) < 0.05
        for other in loaded.batches("test", 5):
            assert len(other.inputs[0]) == 5

    @pytest.mark.parametrize(
        "options",
        [
            *({"noise": -1.0}, {"noise": 0.1, "standardize": False}, {"valid": 1.5}),
            *({"compress": 0.0}, {"compress": 0.1, "standardize": False}),
        ],
    )
    def test_impossible_options_are_refused(self, options):
        with pytest.raises(ValueError):
            SequenceClassification(**options)


class TestSelection:
    def test_whole_volunteers_are_set_aside(self, folder):
        loaded = task(folder, valid=0.25)
        sets = {
            name: {*each.groups.tolist()} for name, each in loaded.samples.items() if name != "test"
        }
        assert len(sets["valid"]) == 1 and sets["valid"] | sets["train"] == {0, 1, 2, 3}
        assert not sets["valid"] & sets["train"]
        assert loaded.eval_split == "valid"

    def test_one_volunteer_cannot_be_set_aside(self):
        with pytest.raises(ValueError, match="all training sequences are of one group"):
            choose_groups(torch.zeros(5, dtype=torch.int64), 0.5)

    def test_all_but_one_can_be_at_most(self):
        assert len(choose_groups(torch.arange(4), 0.99)) == 3
        assert len(choose_groups(torch.arange(4), 0.01)) == 1

    def test_a_class_that_would_not_be_learned_from_is_refused(self, folder):
        content = dict(np.load(folder / "train.npz"))
        content["y"] = (content["groups"] == choose_groups(torch.arange(4), 0.25).item()).astype(
            int
        )
        np.savez(folder / "train.npz", **content)
        with pytest.raises(ValueError, match=r"all sequences of 1: set task\.valid"):
            task(folder, valid=0.25)


class TestWindows:
    def test_a_sequence_has_the_statistics_of_its_own_steps(self):
        x = torch.randn(3, 9, 2, generator=torch.Generator().manual_seed(0))
        lengths = torch.tensor([9, 4, 1])
        found = read_windows((x, lengths))
        assert found.shape == (3, 40) and found.isfinite().all()
        for k, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(found[k : k + 1], read_windows(x[k : k + 1, :length]))
        one = found[1].view(4, 5, 2)  # windows of one step each
        for moment in (0, 2, 3):
            torch.testing.assert_close(one[:, moment], x[1, :4])
        assert not one[:, (1, 4)].any()

    def test_what_differs_in_one_window_is_told_apart(self):
        x = torch.randn(200, 20, 1, generator=torch.Generator().manual_seed(1))
        targets = torch.arange(200) % 2
        x[targets == 1, 10:15] += 2.0
        train = Split(x[:150], targets[:150])
        fitted = fit_regression(train, 2, read_windows, scale=True)
        assert fitted.figures(Split(x[150:], targets[150:]))["accuracy"] > 0.9

    def test_a_small_difference_is_told_apart(self):
        x = torch.randn(300, 20, 1, generator=torch.Generator().manual_seed(2))
        targets = torch.arange(300) % 2
        x -= x.mean(1, keepdim=True)  # what differs is the mean alone
        x += 0.05 * targets[:, None, None]
        train = Split(x[:200], targets[:200])
        fitted = fit_regression(train, 2, read_windows, scale=True)
        assert (
            fitted.strength > 1 and fitted.figures(Split(x[200:], targets[200:]))["accuracy"] == 1
        )

    def test_one_class_is_no_task(self):
        train = Split(torch.rand(20, 8, 1), torch.zeros(20, dtype=torch.int64))
        with pytest.raises(ValueError, match="a single class"):
            fit_regression(train, 2, read_windows, scale=True)


class TestRuns:
    def test_a_run_is_evaluated_on_other_sequences_as_it_saw_its_own(
        self, folder, tmp_path, capsys
    ):
        train(folder, tmp_path / "run")
        seen = json.loads((tmp_path / "run" / "sequences.json").read_text("utf-8"))
        assert seen["labels"] == ["0", "1"] and len(seen["standardise"]["mean"]) == 2
        other = tmp_path / "other"
        other.mkdir()
        content = dict(np.load(folder / "train.npz"))
        np.savez(other / "train.npz", **content)
        np.savez(other / "test.npz", **{k: v for k, v in content.items() if k != "groups"})
        assert main(["evaluate", str(tmp_path / "run"), "--data", str(other)]) == 0
        config = SequenceClassification(data=str(other)).load_other(tmp_path / "run")
        assert config.statistics == ChannelStatistics(
            tuple(seen["standardise"]["mean"]), tuple(seen["standardise"]["deviation"])
        )

    def test_a_linear_model_stands_beside(self, folder, tmp_path, capsys):
        train(folder, tmp_path / "run")
        assert main(["evaluate", str(tmp_path / "run")]) == 0
        found = json.loads((tmp_path / "run" / "evaluation.json").read_text("utf-8"))["baseline"]
        assert found["name"] == "logistic regression on statistics of windows"
        assert f"{100 * found['accuracy']:.2f} %" in capsys.readouterr().out

    def test_other_channels_are_refused(self, folder, tmp_path):
        train(folder, tmp_path / "run")
        content = dict(np.load(folder / "test.npz"))
        content["x"] = content["x"][..., :1]
        other = tmp_path / "other"
        other.mkdir()
        for part in ("train", "test"):
            np.savez(other / f"{part}.npz", **content)
        with pytest.raises(DataError, match="and the run has"):
            SequenceClassification(data=str(other)).load_other(tmp_path / "run")

    @pytest.mark.parametrize("cell", ["LSTM", "ImplicitERNN"])
    def test_any_cell_trains_from_the_command_line(self, folder, tmp_path, cell, capsys):
        train(folder, tmp_path / "run", "--model.cell.name", cell)
        lines = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()
        evals = json.loads(lines[-1])["train"]["forward"]["evals"]
        assert (evals is not None) == (cell == "ImplicitERNN")

    def test_tokens_are_no_signals(self, folder):
        with pytest.raises(ValueError, match="describes no classifier of sequences"):
            task(folder).complete(DenseConfig())
