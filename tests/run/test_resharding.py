"""A run goes on with another number of processes, and with parameters shared out or not."""

import hashlib
import itertools
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import texts
from equilibria import files
from equilibria.run import processes, resume
from equilibria.run import recipe as recipes
from equilibria.run.checkpoint import (
    CheckpointError,
    Checkpoints,
    DamagedError,
    MissingError,
    _sign,
)
from equilibria.run.config import ConfigError
from equilibria.run.folder import Folder, RunError
from equilibria.run.loop import fit, train
from equilibria.run.resume import deal, restore
from equilibria.run.resume import save as save_checkpoint
from equilibria.run.step import TrainingStep
from equilibria.run.stops import Stopped
from equilibria.run.tally import Tally
from equilibria.run.tasks import Part
from equilibria.run.trainer import Trainer
from several import TIGHT, several, shards, trainer_of

LONG = {**TIGHT, "epochs": 30, "probes": 4}
DIGITS = {
    "task": {"name": "image_classification", "data": "digits"},
    "model": {"name": "dense", "width": 16},
    "optimizer": {"name": "AdamW", "lr": 1e-3},
    "batch_size": 128,
    "accumulate": 2,
    **LONG,
}


def text(place):
    """A model that carries states over from one segment of its streams to the next."""
    model = {"name": "deq-trellisnet", "width": 8, "hidden": 6, "scale": 0.3}
    return texts.tree(place, **model, embedding_initial=0.5) | {
        **LONG,
        "optimizer": {"name": "SGD", "lr": 0.02, "momentum": 0.9},
        "regularizer": None,
        "pretrain": None,
        "correction": {"name": "FixedPointCorrection", "evals": 6},
    }


def cases(place):
    return {"digits": DIGITS, "text": text(place)}


def shared(tree, parallel, *options):
    groups = ("--shard=2",) if parallel == "hsdp" else ()
    return trainer_of(tree, f"--parallel={parallel}", *groups, *options)


def begin(rank, trainer, path):
    """The folder of a run, which the first process makes."""
    folder = Folder(path)
    if rank == 0:
        folder.create(trainer.recipe)
        (path / "run.json").write_text(json.dumps({"data": trainer.task.checksum}))
    trainer.accelerator.wait_for_everyone()
    return folder


def losses(trainer, count=20):
    """Return the mean loss of each of the next steps, over all processes."""
    found, usual = [], TrainingStep._check_finite

    def see(step):
        found.append(
            processes.total_over(step.accelerator, step.value)[0] / step.accelerator.num_processes
        )
        usual(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingStep, "_check_finite", see)
        for _ in range(count):
            trainer.train_step()
    return found


def save(rank, place, count, ways):
    """Save after six steps, and go on."""
    for (name, tree), parallel in itertools.product(cases(place).items(), ways):
        trainer = shared(tree, parallel)
        folder = begin(rank, trainer, place / f"{name}-{parallel}-{count}")
        losses(trainer, 6)
        save_checkpoint(trainer, folder)
        note(rank, folder, "saved", trainer)


def note(rank, folder, name, trainer):
    found = losses(trainer)
    if rank == 0:
        (folder.path / f"{name}.json").write_text(json.dumps(found))


def go_on(rank, place, before, count, ways, kept=None):
    """Continue what `before` processes have saved in ways `kept`, each way."""
    kept = kept or ways
    for (name, tree), saved, parallel in itertools.product(cases(place).items(), kept, ways):
        folder = Folder(place / f"{name}-{saved}-{before}")
        if folder.path.exists():
            trainer = shared(tree, parallel)
            restore(trainer, folder)
            assert bool(trainer.notes) == (before != count)
            note(rank, folder, f"{parallel}-{count}", trainer)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a text, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts.write(tmp_path / "text.txt")
    return tmp_path


@shards
@pytest.mark.slow
def test_the_next_losses_are_the_same_on_any_number_of_processes(place):
    ways = ("ddp", "fsdp")
    several(save, 2, place, 2, ways)
    save(0, place, 1, ("ddp",))
    for before, count in ((2, 1), (1, 2), (2, 2), (2, 4)):
        if count == 1:
            go_on(0, place, before, count, ways)
        else:
            several(go_on, count, place, before, count, ways)
    # from 2 processes, two ways to each of 1, 2 and 4; from 1 to 2
    assert same_losses(place) == 2 * (2 * 2 * 3 + 2)


@shards
@pytest.mark.slow
def test_groups_of_processes_save_what_any_number_continues(place):
    several(save, 4, place, 4, ("hsdp",))
    several(go_on, 4, place, 4, 4, ("hsdp",))
    several(go_on, 2, place, 4, 2, ("fsdp", "ddp"), ("hsdp",))
    go_on(0, place, 4, 1, ("ddp",), ("hsdp",))
    assert same_losses(place) == 2 * (1 + 2 + 1)


def same_losses(place):
    """Compare the losses after each resume with those of the run; return how many there are."""
    compared = 0
    for folder in place.glob("*-*dp-*"):
        known = json.loads((folder / "saved.json").read_text())
        _, saved, before = folder.name.split("-")
        for path in folder.glob("*dp-*.json"):
            found = json.loads(path.read_text())
            assert max(abs(a - b) for a, b in zip(found, known, strict=True)) <= 1e-6, path
            if path.stem == f"{saved}-{before}":
                assert found == known, path
            compared += 1
    return compared


# --- without processes --------------------------------------------------------------------------


def state(carry, number):
    tally = Tally()
    tally.add({"loss": torch.tensor(float(number)), "units": torch.tensor(number)})
    stabilizer = {"counts": {"steps": 1.0}, "factor": 2.0, "evals": 3.0, "samples": 4}
    return {
        "random": {},
        "tally": tally.state(),
        "stabiliser": {**stabilizer, "length": 1.5},  # which is that of all processes
        "audit": None,
        "carry": carry,
    }


@pytest.mark.parametrize("count", [1, 2, 3])
def test_states_are_dealt_by_the_rows_of_a_step(count):
    """Seven rows, of which two processes of two micro-batches had 2, 2, 2 and 1."""
    rows = [torch.tensor(each) for each in ([0, 1], [2, 3], [4, 5], [6])]
    states = [
        state([{"h": rows[0]}, {"h": rows[1]}], 1),
        state([{"h": rows[2]}, {"h": rows[3]}], 2),
    ]
    dealt = [deal(states, Part(k, count), 7, seed=0, step=3)[0] for k in range(count)]
    whole = [piece["h"] for each in dealt for piece in each["carry"]]
    assert torch.cat(whole).tolist() == list(range(7))
    lengths = [Part(k, 2 * count).of(7) for k in range(2 * count)]
    assert [len(piece) for piece in whole] == [each.stop - each.start for each in lengths]
    assert Tally.total(each["tally"] for each in dealt).units == 3
    for name, total in (("evals", 6.0), ("samples", 8)):
        assert sum(each["stabiliser"][name] for each in dealt) == total
    assert sum(each["stabiliser"]["counts"].get("steps", 0.0) for each in dealt) == 2.0
    assert {each["stabiliser"]["length"] for each in dealt} == {1.5}
    randoms = {hashlib.sha256(repr(each["random"]).encode()).hexdigest() for each in dealt}
    assert len(randoms) == count  # each draws its own
    kept = torch.get_rng_state()
    deal(states, Part(0, count), 7, seed=0, step=3)
    assert torch.equal(torch.get_rng_state(), kept)
    assert set(dealt[0]["stabiliser"]) == set(states[0]["stabiliser"])


def test_global_generators_are_reseeded_only_if_they_were_drawn_from():
    states = [state(None, k) | {"random": processes.state_of_seed(5 + k)} for k in range(2)]
    dealt, notes = deal(states, Part(2, 3), 6, seed=5, step=3)
    assert dealt["random"] == processes.state_of_seed(7) and not notes
    states[1]["random"] = processes.state_of_seed(9)
    dealt, (note,) = deal(states, Part(2, 3), 6, seed=5, step=3)
    assert dealt["random"] not in [processes.state_of_seed(each) for each in (5, 6, 7)]
    assert "reseeded" in note


def test_nothing_carried_is_dealt_as_nothing():
    states = [state(None, 1), state(None, 2)]
    assert deal(states, Part(0, 1), 4, seed=0, step=0)[0]["carry"] is None


def test_keys_of_checkpointing():
    dumped = recipes.dump(recipes.parse(DIGITS, ["--checkpoint.async", "true"]))
    assert dumped["checkpoint"]["async"] is True and recipes.parse(dumped).checkpoint.async_
    with pytest.raises(ConfigError, match="checkpoint: keep must be at least 1"):
        recipes.parse(DIGITS, ["--checkpoint.keep", "0"])


def test_checkpoints_in_the_background_are_the_same(fitted, whole):
    folder = whole[1]
    _, behind = fitted("other", "--checkpoint.every", "3", "--checkpoint.async", "true")
    assert [p.name for p in folder.checkpoints.all()] == [p.name for p in behind.checkpoints.all()]
    for a, b in zip(folder.checkpoints.all(), behind.checkpoints.all(), strict=True):
        for name in ("model.safetensors", "optimiser.pt"):
            assert (a / name).read_bytes() == (b / name).read_bytes()
        states = [Checkpoints(x.parent).read(x).parts["processes"][0]["random"] for x in (a, b)]
        assert states[0] == states[1]
    files = load_file(folder.weights), load_file(behind.weights)
    assert all(torch.equal(value, files[1][key]) for key, value in files[0].items())


def test_a_disk_that_is_full_in_the_background_ends_the_run(make, quiet, monkeypatch):
    trainer, folder = make("run", "--checkpoint.every", "3", "--checkpoint.async", "true")

    def full(*given, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(OSError, match="No space left"):
        fit(trainer, folder, quiet)


def test_a_run_that_fails_is_unlocked_once_nothing_is_written_any_more(
    tree, quiet, tmp_path, monkeypatch
):
    path, write = tmp_path / "run", Checkpoints.save

    def slowly(*given, **options):
        time.sleep(0.2)
        with (
            pytest.raises(RunError, match="is being written by another thread"),
            Folder(path).write_alone(resume=True),
        ):
            pass
        write(*given, **options)

    def fails(trainer, *given):
        if trainer.step == 1:
            raise ZeroDivisionError
        step(trainer, *given)

    step = Trainer.train_step
    monkeypatch.setattr(Checkpoints, "save", slowly)
    monkeypatch.setattr(Trainer, "train_step", fails)
    recipe = recipes.parse(tree, ("--checkpoint.every=1", "--checkpoint.async=true"))
    with pytest.raises(ZeroDivisionError):
        train(recipe, path, console=quiet)
    assert Folder(path).checkpoints.newest(print).step == 1


class Slow:
    """A write in the background that ends when it is told, and a signal in each wait until then."""

    def __init__(self, signals):
        self.signals, self.ended = signals, False

    def result(self, timeout=None):
        self.timeout = timeout
        if self.signals:
            raise self.signals.pop(0)
        self.ended = True

    def done(self):
        return self.ended


def test_signals_do_not_end_the_wait_for_a_checkpoint(make):
    trainer, _ = make("run", "--checkpoint.async", "true")
    trainer.background.write = saving = Slow(
        [KeyboardInterrupt(), Stopped("SIGTERM"), OSError(28, "full")]
    )
    with pytest.raises(KeyboardInterrupt):
        trainer.background.settle()
    trainer.background.close()
    assert saving.ended and saving.timeout is None
    with trainer.background.place_files():  # which was not abandoned
        pass


# --- read by several processes --------------------------------------------------------------------


def together(count, work):
    """Call work(part, gather) as if by processes, in threads; return what each returns or raises.

    One that waits for another that has ended fails.
    """
    given, meet = [None] * count, threading.Barrier(count, timeout=20)

    def one(index):
        def gather(value):
            given[index] = value
            meet.wait()
            every = list(given)
            meet.wait()
            return every

        try:
            return work(Part(index, count), gather)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.fixture
def copies(make, tmp_path):
    """Three copies of two checkpoints, as on machines with file systems of their own."""
    trainer, folder = make("run")
    for _ in range(2):
        trainer.train_step()
        save_checkpoint(trainer, folder)
    for index in range(3):
        shutil.copytree(folder.checkpoints.path, tmp_path / str(index))
    return [Checkpoints(tmp_path / str(index)) for index in range(3)]


@pytest.mark.parametrize("victim", [0, 2])
def test_processes_on_different_disks_end_together(copies, victim, monkeypatch):
    def read():
        return together(
            3, lambda part, gather: copies[part.index].newest(print, part=part, gather=gather)
        )

    assert [found.step for found in read()] == [2, 2, 2]
    broken = copies[victim]
    newest = broken.all()[0]

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    for name in ("all", "read"):  # a folder that cannot be listed; a file in it
        with monkeypatch.context() as patch:
            patch.setattr(broken, name, refuse)
            found = read()
        assert isinstance(found.pop(victim), PermissionError)
        told = f"process {victim}: PermissionError: [Errno 13] Permission denied"
        assert [(type(each), str(each)) for each in found] == [(CheckpointError, told)] * 2
    # A checkpoint of the same step that is another one.
    other = json.loads((newest / "checkpoint.json").read_text())
    del other["sha256"]
    (newest / "checkpoint.json").write_bytes(_sign({**other, "seconds": 0.5}))
    found = read()
    assert all(isinstance(each, CheckpointError) for each in found)
    assert all("is not the same for all processes" in str(each) for each in found)
    shutil.rmtree(newest)
    if victim == 0:  # the first process decides which there are
        assert [each.step for each in read()] == [1, 1, 1]
    else:
        said = {str(each).partition(" is damaged")[2] for each in read()}
        (line,) = said
        assert "checkpoint.json is missing" in line and "and other processes see it" in line


def read_damaged(rank, place):
    for share in (0, 1):
        read_together(rank, place / str(share), share)
    read_apart(rank, place / "apart")


def read_together(rank, place, share):
    """Both processes notice what one of them finds damaged; each verifies its own share."""
    hashed, digest = [], hashlib.file_digest

    def seen(file, kind):
        hashed.append(Path(file.name).name)
        return digest(file, kind)

    folder, trainer, said = Folder(place / "run"), shared(DIGITS, "fsdp"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashlib, "file_digest", seen)
        restore(trainer, folder, said.append)
    assert trainer.step == 1 and len(said) == 1
    assert f"share-{share:05d}-of-00002.safetensors does not have the checksum" in said[0]
    assert hashed == 2 * [f"share-{rank:05d}-of-00002.safetensors"]  # of two checkpoints
    weights = trainer.layout.whole_state()
    if rank == 0:
        kept = torch.load(place / "1.pt", weights_only=True)
        assert all(torch.equal(value, kept[name]) for name, value in weights.items())


def read_apart(rank, place):
    """One process does not see a file, and none goes back to an earlier checkpoint."""
    trainer = shared(DIGITS, "fsdp")
    if rank == 1:

        def blind(self, path, part):
            raise MissingError(f"{path} is damaged (optimiser.pt is missing)")

        Checkpoints.read = blind  # in this process, which does nothing else
    with pytest.raises(CheckpointError, match=r"process 1: .* is missing.*, and other processes"):
        restore(trainer, Folder(place / "run"))


def fail_to_save(rank, place, parallel, victim):
    """One process cannot write, all say so, and what was saved before is there."""
    trainer = shared(DIGITS, parallel)
    folder = begin(rank, trainer, place / "run")
    trainer.train_step()
    save_checkpoint(trainer, folder)
    before = {name: value.clone() for name, value in trainer.layout.whole_state().items()}
    trainer.train_step()
    write, save = files.write_bytes, Checkpoints.save

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    if rank == victim:
        files.write_bytes, Checkpoints.save = full, full
    with pytest.raises((OSError, RuntimeError)) as failed:
        save_checkpoint(trainer, folder)
    files.write_bytes, Checkpoints.save = write, save
    (place / f"{rank}.txt").write_text(str(failed.value))
    trainer.accelerator.wait_for_everyone()
    assert not list(folder.path.rglob("*.tmp"))
    trainer = shared(DIGITS, parallel)
    restore(trainer, folder)
    assert trainer.step == 1
    after = trainer.layout.whole_state()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    trainer.train_step()
    save_checkpoint(trainer, folder)
    assert len(folder.checkpoints.all()) == 2


def fail_while_saving(rank, place, patience):
    """One process fails while the other is still writing its share of a checkpoint."""
    options = ("--checkpoint.every=1", "--checkpoint.async=true")
    trainer, lost = shared(DIGITS, "fsdp", *options), []
    folder = begin(rank, trainer, place / "run")
    write, step = files.write_bytes, Trainer.train_step

    def slowly(path, content):
        if rank == 1 and path.name.startswith("share-"):
            time.sleep(3.0)
        write(path, content)

    def fails(self):
        if self.step == 1:
            lost.append(self.background.write)
            raise ZeroDivisionError
        step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_bytes", slowly)
        patch.setattr(Trainer, "train_step", fails)
        patch.setattr(trainer.background, "patience", patience)
        with pytest.raises(ZeroDivisionError):
            fit(trainer, folder, Console(quiet=True))
        if patience > 3.0:  # else the write is given up, and ends after all
            assert lost[0].done()
        else:
            assert not lost[0].done()
            with pytest.raises(RuntimeError, match="ended before its checkpoint was written"):
                lost[0].result()
    trainer.accelerator.wait_for_everyone()
    assert [path.name for path in folder.checkpoints.all()] == ["0000000001"] * (patience > 3.0)
    assert not list(folder.path.rglob("*.tmp"))


@shards
@pytest.mark.slow
@pytest.mark.parametrize("patience", [60.0, 0.5])
def test_processes_that_fail_wait_for_their_shares_to_be_written(tmp_path, patience):
    several(fail_while_saving, 2, tmp_path, patience)


@shards
@pytest.mark.slow
@pytest.mark.parametrize(("parallel", "victim"), [("ddp", 0), ("fsdp", 0), ("fsdp", 1)])
def test_a_process_that_cannot_save_tells_all_and_the_run_goes_on(tmp_path, parallel, victim):
    several(fail_to_save, 2, tmp_path, parallel, victim)
    own, other = ((tmp_path / f"{rank}.txt").read_text() for rank in (victim, 1 - victim))
    assert own == "[Errno 28] No space left on device"
    assert other == f"process {victim}: {own}"


@pytest.fixture(scope="module")
def in_shares(tmp_path_factory):
    """A run that two processes have saved, each its share, and the weights at each save."""
    place = tmp_path_factory.mktemp("in-shares")
    several(saved_in_shares, 2, place)
    return place


@shards
def test_a_damaged_share_is_noticed_by_all_processes(tmp_path, in_shares):
    for name in ("0", "1", "apart"):
        shutil.copytree(in_shares, tmp_path / name)
    for share in (0, 1):
        newest, _ = Folder(tmp_path / str(share) / "run").checkpoints.all()
        path = newest / f"share-{share:05d}-of-00002.safetensors"
        damage(path)
    several(read_damaged, 2, tmp_path)
    # What was set aside may be read again, and is cut.
    shutil.rmtree(newest.parent)
    shutil.copytree(in_shares / "run" / "checkpoints", newest.parent)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DamagedError, match="does not have the size"):
        Checkpoints(newest.parent).read(newest, Part(0, 2))


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


# --- a checkpoint in shares -----------------------------------------------------------------------


def saved_in_shares(rank, place):
    trainer = shared(DIGITS, "fsdp", "--checkpoint.async=true")
    folder = begin(rank, trainer, place / "run")
    for step in (1, 2):
        trainer.train_step()
        save_checkpoint(trainer, folder)
        before = trainer.layout.whole_state()
        trainer.train_step()  # while it is being written
        trainer.background.settle()
        if rank == 0:
            torch.save(before, place / f"{step}.pt")


@shards
def test_shares_are_written_in_the_background_whole_and_without_pickles(tmp_path, in_shares):
    shutil.copytree(in_shares, tmp_path, dirs_exist_ok=True)
    folder = Folder(tmp_path / "run")
    newest, before = folder.checkpoints.all()
    assert sorted(path.name for path in newest.iterdir()) == [
        *("checkpoint.json", "optimiser.pt", "processes.pt"),
        *("share-00000-of-00002.safetensors", "share-00001-of-00002.safetensors"),
    ]
    assert not list(folder.path.rglob("*.tmp"))
    for step in (1, 2):  # as it was when it was saved, though training went on
        path = (before, newest)[step - 1]
        kept = torch.load(tmp_path / f"{step}.pt", weights_only=True)
        alone = trainer_of(DIGITS)
        found = Checkpoints(path.parent).read(path)
        resume._fill(alone, found)
        assert all(torch.equal(v, kept[k]) for k, v in alone.model.state_dict().items())
    # A changed byte of a share is noticed, and the checkpoint before is taken.
    damage(newest / "share-00001-of-00002.safetensors")
    said = []
    assert folder.checkpoints.newest(said.append).path == before
    assert "share-00001-of-00002.safetensors does not have the checksum" in said[0]
    other = trainer_of({**DIGITS, "model": {"name": "dense", "width": 8}})
    with pytest.raises(ValueError, match=r"[Ss]ize mismatch"):
        resume._fill(other, Checkpoints(before.parent).read(before))
