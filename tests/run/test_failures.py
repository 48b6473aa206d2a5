"""Where one of two processes fails, both end with its message, and the run can be resumed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import distributed

import killing
from equilibria import files
from equilibria.run import recipe as recipes
from equilibria.run.checkpoint import Checkpoints
from equilibria.run.folder import Folder, is_concluded
from equilibria.run.loop import train
from equilibria.run.trainer import Trainer
from several import ended, started

OPTIONS = ("--checkpoint.every=2", "--epochs=2", "--epoch_steps=5", "--probes=4")


def full(*given, **options):
    raise OSError(28, "No space left on device")


def work(rank, port, place, tree, options, what):
    """Be one of two processes, of which one fails at the fourth step; write what it ended with."""
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    torch.set_num_threads(1)
    step = Trainer.train_step

    def changed(self):
        if self.step == 3:
            if what == f"fails-{rank}":
                raise ValueError("nothing goes on like this")
            if what == f"nan-{rank}":
                loss = self.task.loss
                self.task.loss = lambda *given: loss(*given) * float("nan")
            if what == f"disk-{rank}":
                Checkpoints.save = files.write_bytes = full
        step(self)

    Trainer.train_step = changed
    said = None
    try:
        train(recipes.parse(tree, options), place / "run", console=Console(quiet=True))
    except Exception as error:
        said = [type(error).__name__, str(error)]
    (place / f"{rank}.json").write_text(json.dumps(said))
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "parallel"),
    [*(("fails-0", "ddp"), ("fails-1", "fsdp"), ("nan-1", "fsdp"), ("disk-0", "ddp"))],
)
def test_all_end_with_the_same_message_and_the_run_resumes(tree, tmp_path, what, parallel):
    options = (*OPTIONS, f"--parallel={parallel}")
    stores: Any = distributed
    store = stores.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    given = (store.port, tmp_path, tree, options, what)
    processes = [started(work, rank, *given) for rank in range(2)]
    for each in processes:
        each.join(120)
    hung = [each for each in processes if each.is_alive()]
    for each in hung:
        each.kill()
    assert not hung
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    kind, _, failed = what.partition("-")
    own, other = said[int(failed)], said[1 - int(failed)]
    if kind == "nan":
        assert own == other and own[0] == "Diverged"
        assert "the loss is nan at step 4" in own[1]
        assert f"{Path('run') / 'checkpoints' / '0000000002'}" in own[1]
    elif kind == "fails":
        assert own == ["ValueError", "nothing goes on like this"]
        assert other == ["Elsewhere", f"process {failed}: ValueError: {own[1]}"]
    else:
        assert own[0] == "OSError" and "No space left on device" in own[1]
        assert other[1] == f"process {failed}: {own[1]}"
    folder, warned = Folder(tmp_path / "run"), []
    newest = folder.checkpoints.newest(warned.append)
    assert newest.step == 2 and not warned
    assert not list(folder.checkpoints.path.glob(".*.tmp")) or kind == "fails"
    recipe = folder.read_recipe()
    train(recipe, folder.path, resume=True, console=Console(quiet=True))
    assert is_concluded(folder, 10)


# --- killed anywhere, on a full disk, with a flipped bit or twice at once: nothing is lost --------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    (
        *("random --kills 8", "events --every 3", "full --every 3"),
        *("flips --flips 40", "pairs --pairs 1", "shares --kills 4"),
    ),
)
def test_nothing_is_lost(words):
    assert ended(killing.main, words.split()) == 0
