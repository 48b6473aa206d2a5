"""Exported files do what PyTorch does: torch.export always, ONNX where its packages are."""

import pytest
import torch

from equilibria.run.export import ExportError, export, judge
from equilibria.run.export.inference import pairs
from tasks_in_memory import digits, need_onnx

FORMATS = ["pt2", "onnx"]
SMALL = {
    "dense": {"width": 16},
    "conv": {"channels": 8, "stride": 4},
    "mdeq": {"channels": (8,), "head_channels": (4,), "final": 16, "expansion": 1},
    "monotone": {"channels": (4,)},
    "monotone-dense": {"width": 12},
    "resnet": {"widths": (8,), "blocks": (1,)},
}


def made(model, task, format, **options):
    if format == "onnx":
        need_onnx()
    return export(model, task, format=format, **options)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("format", FORMATS)
def test_a_model_of_images_agrees_on_raw_images(name, format, tmp_path):
    model, task = digits(name, tmp_path, **SMALL[name])
    file = made(model, task, format, evals=3, method="picard")
    found = judge(file, model, task, samples=40, batch_size=16)  # two batches, and a short one
    assert found.agrees() and found.samples == 40
    assert found.scale > 0 and (found.residual is None) is (name == "resnet")
    assert list(file.file.inputs.items()) == [("x", ("batch", "1", "8", "8"))]
    assert list(file.file.outputs.items()) == [("logits", ("batch", "10"))]
    raw = next(pairs(task, "valid", 5)).raw[0]
    assert float(raw.min()) >= 0 and float(raw.max()) <= 1  # as they are read, not normalised
    assert torch.equal(file.logits((raw[:1],)), file.logits((raw[:1],)))


@pytest.mark.parametrize("format", FORMATS)
def test_acceleration_is_in_the_graph(format, tmp_path):
    model, task = digits("dense", tmp_path, width=16, bound=0.9, scale=0.9)
    found = {
        method: judge(made(model, task, format, evals=18, method=method), model, task, samples=30)
        for method in ("picard", "anderson")
    }
    assert all(each.agrees() for each in found.values())
    assert found["anderson"].residual[1] < 0.2 * found["picard"].residual[1]
    assert found["anderson"].changed == 0


def test_too_few_evaluations_are_not_hidden(tmp_path):
    model, task = digits("dense", tmp_path, width=16, bound=None, scale=1.5)
    found = judge(export(model, task, format="pt2", evals=1), model, task)
    assert found.agrees()  # the file does what was exported
    assert found.residual[0] > 0.1
    assert found.changed > 0  # which is not what the run's model does
    assert found.figures != found.model_figures


def test_eight_bits_keep_rows_of_any_size():
    need_onnx()
    import numpy as np
    from onnx import (  # pyright: ignore[reportMissingImports]
        TensorProto,
        helper,
        numpy_helper,
    )

    from equilibria.run.export import graph

    weight = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    weight *= 10.0 ** np.arange(-4, 4, dtype=np.float32)  # columns of all sizes
    weight[3] = 0
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
            [numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[helper.make_opsetid("", graph.OPSET)],
    )
    assert graph.quantize(proto) == weight.size
    (found,) = graph.OnnxSession(graph.finish(proto, {}))(torch.eye(16))
    error = (found - torch.from_numpy(weight)).abs().amax(0)
    assert bool((error <= torch.from_numpy(np.abs(weight).max(0)) / 250).all())
    assert float(found[3].abs().max()) == 0.0


def test_a_model_that_cannot_be_traced_is_one_message(tmp_path):
    model, task = digits("resnet", tmp_path, widths=(8,), blocks=(1,))

    def by_value(x, *, carry=None):
        return type(model).forward(model, x if float(x.sum()) > 0 else -x)

    model.forward = by_value
    with pytest.raises(ExportError, match=r"ResNet cannot be traced by torch\.export") as caught:
        export(model, task, format="pt2")
    assert "\n" not in str(caught.value)


def test_a_difference_is_seen(tmp_path):
    model, task = digits("resnet", tmp_path, widths=(8,), blocks=(1,))
    file = export(model, task, format="pt2")
    with torch.no_grad():
        file.model.get_parameter("head.bias")[3] += 1e-3  # as if the file lacked it
    found = judge(file, model, task, samples=20)
    assert found.finite and not found.agrees()
    assert found.difference == pytest.approx(1e-3, rel=1e-2)
    with torch.no_grad():
        file.model.get_parameter("head.bias")[3] = torch.nan
    assert not judge(file, model, task, samples=20).agrees()
