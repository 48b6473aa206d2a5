"""What tests of several files share."""

import predicting
import pytest

from equilibria.run.cli.main import main


@pytest.fixture(scope="session")
def predictors(built_once):
    """Runs of a classifier of digits and of a network for segmentation, by `predicting.KINDS`."""

    def fill(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
            predicting.runs(folder, main)

    folder = built_once("vision-predictors", fill)
    return {kind: folder / f"run-{kind}" for kind in predicting.KINDS}


@pytest.fixture
def predict(predictors):
    """predict(kind, *images, out=folder, status=0): runs the command; returns its rows."""

    def run(kind, *words, out, status=0):
        words = *map(str, words), "--out", str(out), "--quiet"
        assert main(["predict", str(predictors.get(kind, kind)), *words]) == status
        return predicting.rows(out) if status == 0 or (out / "predictions.jsonl").exists() else []

    return run
