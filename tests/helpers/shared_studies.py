"""A study run in a folder of its own."""

import dataclasses
import functools

import pytest

FEW = {"train": 448, "test": 90}


@functools.cache
def digits():
    """Some of the digits: an evaluation goes through all that there are."""
    import torch

    from equilibria.zoo.io.remote import Files
    from equilibria.zoo.vision.data.digits import DIGITS

    whole = DIGITS.read(Files(DIGITS))
    few = {name: getattr(whole, name).select(torch.arange(n)) for name, n in FEW.items()}
    return dataclasses.replace(whole, **few)


@pytest.fixture(scope="module")
def few_digits(unflushed):
    """Git is asked once, and digits are few; nothing is flushed to disk."""
    from equilibria.run.registry import find
    from equilibria.run.studies import results
    from equilibria.zoo.vision.data.digits import DIGITS

    kind, _ = find("data")["digits"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "_commit", functools.cache(results._commit))
        once = dataclasses.replace(DIGITS, read=lambda files: digits())
        patch.setitem(find("data"), "digits", (kind, once))
        yield


@pytest.fixture
def measured(tmp_path):
    """Measure a study, or other points in place of its own; what the views read of it."""
    from rich.console import Console

    from equilibria.run.studies import runner
    from equilibria.run.studies.study import Study
    from equilibria.run.studies.training import Store

    def run(study: Study, points=None, **options):
        if points is not None:
            study = dataclasses.replace(study, points=lambda scale: points, peers=())
        console, path = Console(quiet=True), tmp_path / "rows.csv"
        path.unlink(missing_ok=True)
        store = Store(tmp_path / "runs", console)
        outcome = runner.execute(study, path=path, store=store, console=console, **options)
        assert not outcome.failed
        return runner.collect(study, path)

    return run
