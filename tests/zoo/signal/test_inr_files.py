"""The .inr file: what goes in comes out, others are refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from small_signals import SOLVER, network, shape_field, signal

import equilibria as eq
from equilibria.solve import SolveWarning
from equilibria.zoo.signal.data import Mesh, Shape
from equilibria.zoo.signal.model import gradient
from equilibria.zoo.signal.predict import Decoder, InrError, encode, load
from equilibria.zoo.signal.predict.decoder import POINTS, SEED

NAMES = ("imfn", "isiren", "mfn", "siren-injected", "siren")


def contents(path):
    """Tensors and metadata of a file."""
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["inr"])


def rewritten(path, tensors, about):
    save_file(tensors, path, {"inr": json.dumps(about)})
    return path


@pytest.fixture
def file(tmp_path):
    image = signal()
    encode(tmp_path / "a.inr", network(image.field), image)
    return tmp_path / "a.inr"


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read_again(name, tmp_path):
    image = signal(channels=3)
    model = network(image.field, name)
    encoded = encode(tmp_path / "a.inr", model, image)
    found = load(tmp_path / "a.inr")
    assert found.field == image.field and found.about == encoded.about
    with torch.no_grad():
        exact = model.eval()(image.points[:]).output
    again = found.decode(image.points)
    error = (again.values.reshape(-1, 3) - exact).abs().max()
    assert error <= 1e-6 * exact.abs().max()
    implicit = name in ("imfn", "isiren")
    assert found.solver == (SOLVER if implicit else None)
    assert bool(again.evals.any()) == implicit
    # What the file says of itself is measured through what is in it.
    assert again.share_converged == 1.0
    assert found.about["converged"] == (1.0 if implicit else None)
    assert found.about["quality"] == pytest.approx({"psnr": image.psnr(again.values)}, abs=1e-6)
    if implicit:
        assert found.about["evaluations"] == again.evals.double().mean()


@pytest.mark.parametrize("kind", ["sound", "film"])
def test_sounds_and_films_have_files_too(kind, tmp_path):
    given = signal(kind, channels=2 if kind == "sound" else 1)
    encode(tmp_path / "a.inr", network(given.field, bound=None), given)
    found = load(tmp_path / "a.inr")
    assert found.field == given.field
    again = given.psnr(found.decode(given.points).values)
    assert again == pytest.approx(found.about["quality"]["psnr"], abs=1e-6)


def test_a_shape_has_an_iou(tmp_path):
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3).double().numpy()
    faces = [
        *([0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1]),
        *([2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]),
    ]
    shape = Shape.of(Mesh(corners, torch.tensor(faces).numpy()), "cube")
    encode(tmp_path / "a.inr", network(shape.field), shape, noise=0.01)
    found = load(tmp_path / "a.inr")
    drawn = shape.near_surface(POINTS, SEED, 0.01)
    iou = shape.near_surface_iou(found.decode(drawn.points).values, drawn)
    assert found.field == shape.field and found.about["quality"] == {"iou": iou, "noise": 0.01}
    assert found.decode(found.field.points(4)).values.shape == (4, 4, 4, 1)


def test_reading_leaves_the_random_numbers_alone(file):
    torch.manual_seed(3)
    load(file)
    found = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(found, torch.rand(1))


# --- what is refused -----------------------------------------------------------------------------


def test_a_file_that_is_none_is_refused(tmp_path, file):
    with pytest.raises(InrError, match=r"no\.inr does not exist"):
        load(tmp_path / "no.inr")
    with pytest.raises(InrError, match="is a folder"):
        load(tmp_path)
    for content in (b"", b"\x89PNG\r\n\x1a\n" + bytes(100), b"{}"):
        (tmp_path / "b.inr").write_bytes(content)
        with pytest.raises(InrError, match=r"b\.inr is no \.inr file"):
            load(tmp_path / "b.inr")
    save_file({"w": torch.zeros(2)}, tmp_path / "c.inr")
    with pytest.raises(InrError, match="is a safetensors file, but not of a signal"):
        load(tmp_path / "c.inr")


@pytest.mark.parametrize("share", [0.05, 0.3, 0.99])
def test_a_truncated_file_is_said_to_be_one(file, share):
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InrError, match=r"is no \.inr file, or truncated"):
        load(file)


def test_a_damaged_weight_is_found(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InrError, match="do not have the checksum in it"):
        load(file)


def test_a_newer_file_asks_for_a_newer_version(file):
    tensors, about = contents(file)
    rewritten(file, tensors, {**about, "format": 2, "library": "9.1"})
    with pytest.raises(InrError, match=r"has format 2 of equilibria 9\.1.*update equilibria"):
        load(file)


def changed_model(about, **fields):
    return {**about, "model": {**about["model"], **fields}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: changed_model(a, width=20), "in the file, .* by its header"),
        (lambda a: changed_model(a, width=10**7), "in the file, .* by its header"),
        (lambda a: changed_model(a, width=4 * 10**9), "overflow"),
        (lambda a: changed_model(a, width=10**30), "model.width: expected a whole number up to"),
        (lambda a: changed_model(a, layers=10**9), "1000000000 layers, and"),
        (lambda a: changed_model(a, inputs=3), "inputs of the model is 3, and of the image 2"),
        (lambda a: changed_model(a, name="resnet"), "unknown key|is no network of coordinates"),
        (lambda a: changed_model(a, depth=3), "unknown key 'model.depth'"),
        (lambda a: {**a, "solver": None}, "the solver of .* is None"),
        (lambda a: {**a, "field": {"kind": "smell"}}, "no description of a signal"),
        (lambda a: {**a, "quality": {"psnr": "high"}}, "psnr must be a number; got 'high'"),
        (lambda a: {**a, "quality": {"psnr": None}}, "psnr must be a number; got None"),
        (lambda a: {**a, "quality": None}, "quality must be an object; got None"),
        (lambda a: {**a, "quality": []}, "quality must be an object; got a list"),
        (lambda a: {k: v for k, v in a.items() if k != "field"}, "'field'"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(file, change, message):
    tensors, about = contents(file)
    rewritten(file, tensors, change(about))
    with pytest.raises(InrError, match=f"is damaged, or not written by.*({message})"):
        load(file)


def test_nothing_is_written_that_cannot_be_read(tmp_path):
    image = signal()
    model = network(image.field)
    with pytest.raises(ValueError, match=r"written to \.inr files; got a\.png"):
        encode(tmp_path / "a.png", model, image)
    with torch.no_grad():
        model.head.weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match="not finite"):
        encode(tmp_path / "a.inr", model, image)
    assert not list(tmp_path.iterdir())


# --- decoding ------------------------------------------------------------------------------------


def test_any_point_is_that_of_the_network(file):
    found = load(file)
    points = found.field.points(size=(7, 5), box=(2, 3, 4, 6))
    with torch.no_grad():
        direct = found.model(points[:]).output.reshape(7, 5, 1)
    torch.testing.assert_close(found.decode(points).values, direct)
    listed = found.decode(points[:])
    assert listed.values.shape == (35, 1) and listed.evals.shape == (35,)
    torch.testing.assert_close(listed.values.reshape(7, 5, 1), direct)


@pytest.mark.parametrize("chunk", [7, 107, 108, 10**6])
def test_chunks_change_nothing(file, chunk):
    found = load(file)
    points, told = found.field.points(), []

    def progress(starts):
        for start in starts:
            told.append(start)
            yield start

    whole, parts = found.decode(points), found.decode(points, chunk=chunk, progress=progress)
    torch.testing.assert_close(parts.values, whole.values, rtol=1e-4, atol=1e-5)
    assert parts.share_converged == whole.share_converged == 1.0
    assert (parts.evals - whole.evals).abs().max() <= 1
    assert told == [*range(0, 108, chunk)]
    slopes = found.gradient(points, chunk=chunk)
    torch.testing.assert_close(slopes, found.gradient(points), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_those_of_what_is_decoded(name, tmp_path):
    image = signal(channels=2)
    encode(tmp_path / "a.inr", network(image.field, name), image)
    found = load(tmp_path / "a.inr", dtype=torch.float64)
    if found.solver is not None:
        found = replace(found, solver=replace(found.solver, rtol=1e-12, max_evals=500))
    x = torch.rand(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5
    step = 1e-4 * torch.eye(2, dtype=torch.float64)

    def values(points):
        return found.decode(points).values

    slopes = torch.stack([(values(x + s) - values(x - s)) / 2e-4 for s in step], -1)
    torch.testing.assert_close(found.gradient(x), slopes, rtol=1e-5, atol=1e-5)
    second = [(found.gradient(x + s) - found.gradient(x - s)) / 2e-4 for s in step]
    torch.testing.assert_close(found.hessian(x), torch.stack(second, -1), rtol=1e-4, atol=1e-4)


def test_points_that_do_not_converge_are_counted(file):
    found = load(file)
    points = found.field.points()
    other = replace(found, solver=eq.Anderson(rtol=1e-6))
    values = found.decode(points).values
    torch.testing.assert_close(other.decode(points).values, values, rtol=1e-3, atol=1e-3)
    few = replace(found, solver=eq.Picard(max_evals=1))
    assert few.decode(points).share_converged == 0.0 and int(few.decode(points).evals.max()) == 1
    with pytest.warns(SolveWarning, match="not converge, and their derivatives are inexact"):
        few.gradient(points)


def test_points_that_do_not_fit_are_refused(file):
    found = load(file)
    for points in (torch.zeros(3, 3), torch.zeros(2), torch.zeros(0, 2)):
        with pytest.raises(ValueError, match=r"points of the shape .*: expected \(count, 2\)"):
            found.decode(points)
    with pytest.raises(ValueError, match="points of the shape"):
        found.decode(shape_field().points(3))
    with pytest.raises(ValueError, match="a chunk of 0 points"):
        found.decode(found.field.points(), chunk=0)


@pytest.mark.parametrize("changes", [{"rtol": 0.1}, {"rtol": 1e-3}, {"rtol": 1e-3, "atol": 0.5}])
def test_a_derivative_is_of_its_own_tolerance(changes):
    field = signal().field
    model = network(field).eval()
    decoder = Decoder(model, field, eq.Picard(max_evals=300, **changes), {})
    found = decoder.gradient(field.points())
    with eq.nn.using(model, eq.Picard(rtol=1e-6, max_evals=300)):
        exact = eq.Implicit(linear=eq.GMRES(rtol=1e-6))
        want = gradient(model, field.points()[:], adjoint=exact)
    torch.testing.assert_close(found.reshape(want.shape), want, rtol=1e-3, atol=1e-4)
