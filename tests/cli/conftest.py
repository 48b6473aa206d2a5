"""What the tests of commands share: a trained run, and what keeps commands short."""

from pathlib import Path

import pytest
import tiny_run


@pytest.fixture(scope="session")
def digits_run(built_once) -> Path:
    """A folder with the run `digits`, trained as `tiny_run` says; only to be read."""
    return built_once("cli-digits", lambda folder: tiny_run.train(folder / "digits")) / "digits"


@pytest.fixture(scope="module")
def shallow():
    """The memory of a step is measured at two depths: at five it takes several seconds."""
    from equilibria.run import memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "DEPTHS", (2, 4))
        patch.setattr(memory, "LONG", (2, 4))
        yield
