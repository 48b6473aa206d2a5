"""Exported recurrent networks do what PyTorch does, whole and one step at a time."""

import io
import json
import warnings

import pytest
import torch
from drawn_sequences import recurrent, sequences

from equilibria.run.export import ExportError, export, judge
from equilibria.run.export.inference import pairs
from tasks_in_memory import need_onnx

FORMATS = ["pt2", "onnx"]


def made(model, task, format, **options):
    if format == "onnx":
        need_onnx()
    return export(model, task, format=format, **options)


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
    from equilibria.zoo.io.sequences import Sequences
    from tasks_in_memory import Drawn

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
