"""Exported files do what PyTorch does: torch.export always, ONNX where its packages are."""

import io
import json
import warnings

import pytest
import torch
from tasks_in_memory import digits, need_onnx, recurrent, sequences

from equilibria.run.export import ExportError, export, judge
from equilibria.run.export.inputs import pairs

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


@pytest.mark.parametrize("readout", ["last", "mean"])
def test_a_program_of_torch_takes_the_lengths_of_sequences(readout):
    model, task = recurrent(readout=readout), sequences(time=4, lengths=True)
    file = export(model, task, format="pt2", form="whole")
    assert judge(file, model, task).agrees()
    assert list(file.file.inputs) == ["x", "lengths"]


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ERNN", {"cell": {"steps": 3, "rank": 2}}),
        ("LSTM", {"layers": 2}),
        ("GRU", {"readout": "mean"}),
        ("AntisymmetricRNN", {}),
        ("SpectralRNN", {}),
        ("ImplicitERNN", {}),
    ],
)
def test_sequences_are_a_loop_over_time(name, options, lengths):
    need_onnx()
    model, task = recurrent(name, **options), sequences(lengths=lengths, compress=0.5)
    file = export(model, task, evals=4)
    assert judge(file, model, task, batch_size=5).agrees()
    assert file.file.inputs["x"] == ("batch", "time", "3")
    longer = sequences(4, 31, lengths=lengths, compress=0.5)
    raw, _, _ = next(pairs(longer, "test", 4))
    statistics = task.samples["test"].statistics
    prepared = statistics.apply(raw[0])
    with torch.no_grad():
        expected = file.model((prepared, raw[1]) if lengths else prepared).output
    assert torch.allclose(file.logits(raw), expected, atol=1e-5)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "options", [{}, {"layers": 2, "readout": "mean"}], ids=["plain", "two layers and a mean"]
)
def test_a_stream_ends_where_the_whole_does(options, format, lengths):
    model, task = recurrent(**options), sequences(lengths=lengths)
    file = made(model, task, format, form="stream")
    assert judge(file, model, task, batch_size=5).agrees()
    states = ["state_0", "state_1", "state_2"][: 3 if options else 1]
    assert list(file.file.inputs) == ["x", *states]
    assert list(file.file.outputs) == ["logits", *(s.replace("state", "next") for s in states)]
    assert file.file.inputs["x"] == ("batch", "3")


def test_tokens_are_streamed_too():
    from tasks_in_memory import Drawn

    from equilibria.zoo.io.sequences import Sequences

    tokens = torch.randint(0, 11, (6, 7), generator=torch.Generator().manual_seed(0))
    task = Drawn(dict.fromkeys(("train", "test"), Sequences(tokens, torch.arange(6) % 2)), "x")
    model = recurrent(vocabulary=11, embedding=4, shape=())
    file = export(model, task, format="pt2", form="stream")
    assert judge(file, model, task).agrees()
    assert file.file.inputs["x"] == ("batch",)


def test_whole_sequences_are_written_out_where_there_is_no_loop():
    model, task = recurrent(), sequences(time=4)
    file = export(model, task, format="pt2")
    assert judge(file, model, task).agrees()
    assert file.file.inputs["x"] == ("batch", "4", "3")
    both = recurrent(bidirectional=True)
    assert judge(export(both, task, format="pt2"), both, task).agrees()
    with pytest.raises(ExportError, match="begins at the end"):
        export(both, task, format="pt2", form="stream")
    need_onnx()
    assert judge(export(both, task), both, task).agrees()
    with pytest.raises(ExportError, match=r"65 steps would be written out.*--format pt2"):
        export(both, sequences(time=65))


def test_steps_that_differ_in_time_are_no_stream():
    model, task = recurrent(cell={"steps": 1, "times": 4}), sequences(time=4)
    with torch.no_grad():
        model.recurrent.cells[0].step_sizes.copy_(torch.linspace(0.1, 0.9, 4)[:, None])
    with pytest.raises(ExportError, match="differ in time"):
        export(model, task, format="pt2", form="stream")
    assert judge(export(model, task, format="pt2"), model, task).agrees()


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_window_classifier_of_four_thousand_parameters_is_a_small_file(steps):
    need_onnx()
    task = sequences(time=128)
    sizes = {"hidden": 58, "cell": {"steps": steps}}
    for form in ("whole", "stream"):
        for weights, most in (("float32", 30_000), ("int8", 10_000)):
            file = export(recurrent(**sizes), task, form=form, weights=weights)
            assert 3_500 < file.parameters < 4_500
            assert len(file.content) < most


@pytest.mark.parametrize("form", ["whole", "stream"])
def test_eight_bits_are_close_and_in_the_file(form):
    need_onnx()
    import onnx  # pyright: ignore[reportMissingImports]

    model, task = recurrent("GRU", hidden=32), sequences()
    full, small = (export(model, task, form=form, weights=w) for w in ("float32", "int8"))
    assert len(small.content) < 0.5 * len(full.content)
    found = judge(small, model, task)
    assert 1e-5 < found.relative < 0.05  # it is rounded, and no more than that
    graph = onnx.load_from_string(small.content).graph
    wide = [t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    assert max(sum(t.dims) for t in wide) <= 3 * 32 + 1  # scales and biases alone
    assert any(t.data_type == onnx.TensorProto.INT8 for t in graph.initializer)


def test_eight_bits_keep_rows_of_any_size():
    need_onnx()
    import numpy as np
    from onnx import (  # pyright: ignore[reportMissingImports]
        TensorProto,
        helper,
        numpy_helper,
    )

    from equilibria.run.export import graph, int8

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
    assert int8.quantise(proto) == weight.size
    (found,) = graph.Session(graph.finish(proto, {}))(torch.eye(16))
    error = (found - torch.from_numpy(weight)).abs().amax(0)
    assert bool((error <= torch.from_numpy(np.abs(weight).max(0)) / 250).all())
    assert float(found[3].abs().max()) == 0.0


@pytest.mark.parametrize("format", FORMATS)
def test_the_file_says_what_it_is(format):
    model, task = recurrent("ImplicitERNN"), sequences()
    file = made(model, task, format, form="stream", evals=2, method="picard")
    if format == "onnx":
        import onnx  # pyright: ignore[reportMissingImports]

        proto = onnx.load_from_string(file.content)
        about = {each.key: each.value for each in proto.metadata_props}
        assert about.pop("opset") == str(file.opset) == str(proto.opset_import[0].version)
    else:
        extra = {"equilibria.json": ""}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.load(io.BytesIO(file.content), extra_files=extra)
        about = json.loads(extra["equilibria.json"])
        assert file.opset is None
    assert about["model"] == "SequenceClassifier" and about["form"] == "stream"
    assert (about["evaluations"], about["method"]) == ("2", "picard")
    assert json.loads(about["state"]) == [0.0]


def test_a_file_does_not_hold_the_data(tmp_path):
    few, many = (
        len(export(recurrent(), sequences(count), format="pt2", form="stream").content)
        for count in (12, 4000)
    )
    assert abs(many - few) < 1000


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
