"""Pairs of a run with what its network makes of them."""

import io
import json

import pytest
from PIL import Image

from equilibria.run import gallery, run
from equilibria.run.cli.main import main
from flow_tree import MINI

FLOW = {
    "task": {"name": "optical_flow", "data": "layers", "size": [64, 72], "samples": 4, "test": 3},
    "model": {"name": "deq-raft", **MINI},
    "solver": {"name": "Anderson", "rtol": 0.01, "max_evals": 3},
    "adjoint": {"name": "JacobianFree"},
    "optimizer": {"name": "AdamW", "lr": 1e-4},
    "epochs": 1,
    "epoch_steps": 1,
    "batch_size": 2,
    "eval_batch_size": 2,
    "probes": 1,
}


def test_flow_is_shown_with_its_error_and_what_still_moves(tmp_path):
    (tmp_path / "flow.yaml").write_text(json.dumps(FLOW))
    assert main(["train", str(tmp_path / "flow.yaml"), "--out", str(tmp_path / "run")]) == 0
    assert gallery.has_pictures(run.Folder(tmp_path / "run"))
    loaded = run.load(tmp_path / "run")
    content = gallery.hang(loaded)
    assert content is not None and content["kind"] == "flow"
    assert [each["name"] for each in content["pictures"]] == ["pair 0", "pair 1", "pair 2"]
    pictures = content["pictures"]
    for batch, each in zip(loaded.data.batches("test", 1), pictures, strict=True):
        flow, valid = batch.targets
        output = loaded.model.eval()(batch.inputs).output
        assert each["zero"] == pytest.approx(float(flow.norm(dim=1)[valid].mean()), rel=1e-5)
        assert each["epe"] == pytest.approx(
            float((output - flow).norm(dim=1)[valid].mean()), rel=1e-3
        )
        assert each["solve"]["evals"] >= 1
        assert set(each["files"]) == {"image", "second", "truth", "told", "error", "moves"}
        assert {Image.open(io.BytesIO(png)).size for png in each["files"].values()} == {(144, 128)}
    # One scale for all: the longest true flow is as dark as the wheel gets, a short one pale.
    assert content["pixels"] > min(each["zero"] for each in pictures)
    kept = gallery.read(run.Folder(tmp_path / "run"))
    assert kept is not None and kept["pictures"] == pictures
