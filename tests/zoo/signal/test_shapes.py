"""Shapes: closed meshes of files, what is inside of them, and the surface of what is decoded."""

import struct
import sys

import numpy as np
import pytest
import torch

from equilibria.run.data import DataError
from equilibria.zoo.signal import data as signals
from equilibria.zoo.signal.data import Mesh, Shape, read_mesh, read_shape, surface
from equilibria.zoo.signal.data.mesh import clean_mesh

trimesh = pytest.importorskip("trimesh", reason="trimesh is not installed")
pytest.importorskip("skimage", reason="scikit-image is not installed")


def torus(around=48, across=24, radius=0.7, tube=0.3):
    """A torus around the last axis, of triangles that look outwards."""
    u, v = np.meshgrid(np.arange(around), np.arange(across), indexing="ij")
    a, b = 2 * np.pi * u / around, 2 * np.pi * v / across
    ring = radius + tube * np.cos(b)
    vertices = np.stack([ring * np.cos(a), ring * np.sin(a), tube * np.sin(b)], -1).reshape(-1, 3)
    right, up = (u + 1) % around, (v + 1) % across
    corner = [u * across + v, right * across + v, right * across + up, u * across + up]
    one, other = (
        np.stack([corner[k] for k in (0, 1, 2)], -1),
        np.stack([*corner[:1], *corner[2:]], -1),
    )
    return Mesh(vertices, np.concatenate([one.reshape(-1, 3), other.reshape(-1, 3)]))


def cube():
    box = trimesh.creation.box()
    return Mesh(np.array(box.vertices), np.array(box.faces))


def obj(mesh):
    lines = [f"v {x!r} {y!r} {z!r}\n" for x, y, z in mesh.vertices.tolist()]
    lines += [f"f {a} {b} {c}\n" for a, b, c in (mesh.faces + 1).tolist()]
    return "".join(lines).encode()


def stl(mesh):
    corners = mesh.vertices[mesh.faces].astype("<f4")
    parts = [bytes(12) + each.tobytes() + bytes(2) for each in corners]
    return bytes(80) + struct.pack("<I", len(parts)) + b"".join(parts)


def volume(mesh):
    """Positive where triangles look outwards."""
    a, b, c = mesh.vertices[mesh.faces].transpose(1, 0, 2)
    return float((a * np.cross(b, c)).sum() / 6)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "packed"), [("obj", obj), ("stl", stl), ("ply", None)])
def test_a_mesh_of_each_format_is_the_same_shape(tmp_path, ending, packed):
    path = tmp_path / f"torus.{ending}"
    if packed is None:
        signals.write_mesh(path, torus())
    else:
        path.write_bytes(packed(torus()))
    shape = signals.read(path)
    assert (shape.name, shape.field.kind) == (path.name, "shape")
    assert len(shape.mesh.faces) == 2 * 48 * 24 and len(shape.mesh.vertices) == 48 * 24
    assert shape.field.scale == pytest.approx(1 / 0.95, rel=1e-6)
    assert abs(shape.mesh.vertices).max() == pytest.approx(0.95)
    points = torch.tensor([[0.0, 0, 0], [0.65, 0, 0], [0, -0.65, 0.1], [0, 0, 0.9]])
    assert shape.inside(points).tolist() == [False, True, True, False]


def test_a_written_mesh_is_read_again(tmp_path):
    signals.write_mesh(tmp_path / "a.ply", torus())
    again = read_mesh(tmp_path / "a.ply")
    assert volume(again) == pytest.approx(volume(torus()), rel=1e-6)
    by_trimesh = trimesh.load(tmp_path / "a.ply", force="mesh")
    assert by_trimesh.is_watertight and by_trimesh.volume == pytest.approx(
        volume(torus()), rel=1e-6
    )
    with pytest.raises(ValueError, match=r"written to \.ply files; got a\.obj"):
        signals.write_mesh(tmp_path / "a.obj", torus())
    with pytest.raises(ValueError, match="a mesh without triangles"):
        signals.write_mesh(tmp_path / "b.ply", Mesh(np.zeros((3, 3)), np.zeros((0, 3), int)))


def test_a_mesh_on_a_map_keeps_its_shape(tmp_path):
    place = np.array([5e6, 4e5, 100.0])
    signals.write_mesh(tmp_path / "a.ply", Mesh(torus().vertices + place, torus().faces))
    again = read_mesh(tmp_path / "a.ply")
    assert volume(Mesh(again.vertices - place, again.faces)) == pytest.approx(
        volume(torus()), rel=1e-6
    )


def test_an_open_mesh_is_refused_with_its_open_edges(tmp_path):
    whole = torus()
    (tmp_path / "a.obj").write_bytes(obj(Mesh(whole.vertices, whole.faces[1:])))
    with pytest.raises(DataError, match=r"a\.obj is an open mesh: 3 of its 3,456 edges are open"):
        read_shape(tmp_path / "a.obj")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.obj", b"# nothing\n", "no mesh, or damaged|has no triangles"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n", "no mesh, or damaged"),
        ("a.ply", b"ply\nformat ascii 1.0\n", "no mesh, or damaged"),
        ("a.stl", b"words", "no mesh, or damaged|has no triangles"),
        ("a.obj", obj(torus()).replace(b"v 1.0 ", b"v nan ", 1), "NaN or infinite|damaged"),
        ("a.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\nf 1 2 3\n", "encloses no volume"),
    ],
)
def test_what_is_no_mesh_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} .*({message})"):
        read_shape(tmp_path / name)


def test_triangles_are_checked():
    with pytest.raises(DataError, match="x has no triangles"):
        clean_mesh(Mesh(np.zeros((0, 3)), np.zeros((0, 3), np.int64)), "x")
    with pytest.raises(DataError, match="names a vertex that is not there"):
        clean_mesh(Mesh(np.zeros((2, 3)), np.array([[0, 1, 2]])), "x")
    with pytest.raises(DataError, match="encloses no volume"):
        clean_mesh(Mesh(np.zeros((3, 3)), np.array([[0, 1, 2]])), "x")
    # Corners that are written for each triangle anew are one place.
    loose = Mesh(cube().vertices[cube().faces].reshape(-1, 3), np.arange(36).reshape(-1, 3))
    assert len(clean_mesh(loose, "x").vertices) == 8


@pytest.mark.parametrize("package", ["trimesh", "skimage.measure"])
def test_the_extra_is_named(tmp_path, monkeypatch, package):
    signals.write_mesh(tmp_path / "a.ply", torus())
    field = Shape.of(cube(), "cube").field
    monkeypatch.setitem(sys.modules, package, None)
    name = {"trimesh": "trimesh", "skimage.measure": "scikit-image"}[package]
    with pytest.raises(DataError, match=rf"needs {name}, which is .*'equilibria\[mesh\]'"):
        if package == "trimesh":
            read_mesh(tmp_path / "a.ply")
        else:
            surface(torch.zeros(3, 3, 3), field)


# --- what is inside ------------------------------------------------------------------------------


def test_the_inside_of_a_torus_is_that_of_its_equation():
    shape = Shape.of(torus(256, 128), "torus")
    points, inside = shape.uniform(20_000, seed=0)
    assert points.dtype == torch.float32 and float(points.abs().max()) <= 1
    place = shape.field.restore(points.double().numpy())
    ring = np.hypot(place[:, 0], place[:, 1]) - 0.7
    distance = np.hypot(ring, place[:, 2]) - 0.3
    clear = abs(distance) > 2e-4  # the triangles cut corners of the round tube
    assert clear.mean() > 0.99
    assert (inside.numpy()[clear] == (distance[clear] < 0)).all()


def test_points_exactly_above_edges_and_corners_are_counted_once():
    shape = Shape.of(cube(), "cube")
    axis = torch.linspace(-1, 1, 41, dtype=torch.float64)  # 0.95 is a face's own plane
    points = torch.cartesian_prod(axis, axis, axis)
    inside = shape.inside(points)
    far = (points.abs().amax(1) - 0.95).abs() > 1e-9
    assert torch.equal(inside[far], (points.abs().amax(1) < 0.95)[far])


def test_long_triangles_that_lie_askew():
    generator = np.random.default_rng(1)
    turn = np.linalg.qr(generator.standard_normal((3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    around = trimesh.creation.cylinder(radius=0.2, height=2, sections=200)
    shape = Shape.of(Mesh(np.array(around.vertices) @ turn.T, np.array(around.faces)), "rod")
    points, inside = shape.uniform(20_000, seed=0)
    place = shape.field.restore(points.double().numpy()) @ turn
    distance = np.maximum(np.hypot(place[:, 0], place[:, 1]) / 0.2, abs(place[:, 2]))
    clear = abs(distance - 1) > 1e-3
    assert (inside.numpy()[clear] == (distance[clear] < 1)).all()
    assert 100 < int(inside.sum()) < 2_000


def test_a_hole_in_a_shape_is_outside():
    outer, inner = cube(), cube()
    both = Mesh(
        np.concatenate([outer.vertices, inner.vertices / 2]),
        np.concatenate([outer.faces, inner.faces + len(outer.vertices)]),
    )
    shape = Shape.of(both, "hollow")
    points = torch.tensor([[0.0, 0, 0], [0.7, 0, 0], [0, 0.6, -0.6], [0.99, 0, 0]])
    assert shape.inside(points).tolist() == [False, True, True, False]


def test_points_near_the_surface_are_there():
    shape = Shape.of(torus(), "torus")
    points, inside = shape.near_surface(20_000, seed=3, noise=0.01)
    place = shape.field.restore(points.double().numpy())
    distance = np.hypot(np.hypot(place[:, 0], place[:, 1]) - 0.7, place[:, 2]) - 0.3
    assert distance.std() == pytest.approx(0.01 * shape.field.scale, rel=0.1)
    assert inside.float().mean() == pytest.approx(0.5, abs=0.03)
    # By area: the outer half of a torus has (pi R + 2 r) / (2 pi R) of it.
    outer = (np.hypot(place[:, 0], place[:, 1]) > 0.7).mean()
    assert outer == pytest.approx(0.5 + 0.3 / (0.7 * np.pi), abs=0.015)


def test_a_seed_is_a_set_of_points():
    shape = Shape.of(torus(), "torus")
    for draw in (shape.uniform, shape.near_surface):
        one, again, other = draw(50, 1), draw(50, 1), draw(50, (1, 7))
        assert torch.equal(one.points, again.points)
        assert not torch.equal(one.points, other.points)
        with pytest.raises(ValueError, match="0 points: expected 1 or more"):
            draw(0, 1)
    with pytest.raises(ValueError, match="noise is -1"):
        shape.near_surface(5, 1, noise=-1)


def test_near_surface_iou_takes_logits():
    shape = Shape.of(torus(), "torus")
    drawn = shape.near_surface(500, seed=0)
    logits = torch.where(drawn.inside, 3.0, -3.0)[:, None]
    assert shape.near_surface_iou(logits, drawn) == 1
    assert shape.near_surface_iou(drawn.inside, drawn) == 1
    assert shape.near_surface_iou(torch.ones(500), drawn) == pytest.approx(
        float(drawn.inside.float().mean())
    )


# --- the surface of what is decoded --------------------------------------------------------------


def distances(shape, resolution):
    """What a network that knows the torus by heart would give: positive inside."""
    place = shape.field.restore(shape.field.points(resolution)[:].double().numpy())
    ring = np.hypot(place[:, 0], place[:, 1]) - 0.7
    return torch.tensor(0.3 - np.hypot(ring, place[:, 2])).reshape((resolution,) * 3)


def test_the_decoded_surface_is_where_the_mesh_was(tmp_path):
    moved = Mesh(torus(128, 64).vertices, torus(128, 64).faces)
    shape = Shape.of(moved, "torus")
    mesh = surface(distances(shape, 64), shape.field)
    assert volume(mesh) == pytest.approx(2 * np.pi**2 * 0.7 * 0.3**2, rel=0.01)
    place = mesh.vertices
    off = np.hypot(np.hypot(place[:, 0], place[:, 1]) - 0.7, place[:, 2]) - 0.3
    assert abs(off).max() < 0.005
    signals.write_mesh(tmp_path / "a.ply", mesh)
    again = read_shape(tmp_path / "a.ply")  # which is closed
    assert again.field.scale == pytest.approx(shape.field.scale, rel=0.01)


def test_points_near_the_surface_are_even_within_each_triangle():
    shape = Shape.of(cube(), "cube")
    corners = torch.from_numpy(shape.mesh.vertices[shape.mesh.faces]).float()
    points = shape.near_surface(20_000, seed=0, noise=0.0).points
    for a, b, c in corners[:4]:
        plane = torch.linalg.cross(b - a, c - a)
        flat = points[((points - a) @ plane).abs() < 1e-5 * plane.norm()]
        along = torch.linalg.lstsq(torch.stack([b - a, c - a], 1), (flat - a).T).solution
        here = along[:, (along > 0).all(0) & (along.sum(0) < 1)]
        assert here.shape[1] > 1000
        torch.testing.assert_close(here.mean(1), torch.full((2,), 1 / 3), rtol=0, atol=0.03)


def test_what_fills_the_cube_ends_within_half_a_step_of_it():
    field = signals.ShapeField(centre=(0.0, 0.0, 0.0), scale=1.0)
    mesh = surface(torch.ones(5, 5, 5), field)  # points half a unit apart
    assert mesh.vertices.max() == pytest.approx(1.25)
    assert mesh.vertices.min() == pytest.approx(-1.25)


def test_a_mesh_elsewhere_comes_back_to_its_place():
    there = Mesh(torus().vertices * 50 + np.array([100.0, -20, 3]), torus().faces)
    shape = Shape.of(there, "torus")
    assert shape.field.centre == pytest.approx((100, -20, 3))
    inside = shape.inside(shape.field.points(48)[:]).reshape(48, 48, 48)
    mesh = surface(torch.where(inside, 1.0, -1.0), shape.field)
    assert mesh.vertices.mean(0) == pytest.approx([100, -20, 3], abs=1)
    assert volume(mesh) == pytest.approx(volume(there), rel=0.05)


def test_a_surface_that_leaves_the_cube_is_closed():
    field = Shape.of(cube(), "cube").field
    mesh = surface(torch.ones(5, 5, 5), field)
    assert len(clean_mesh(mesh, "full").faces) == len(mesh.faces)
    assert volume(mesh) > 0


def test_what_has_no_surface_is_refused():
    field = Shape.of(cube(), "cube").field
    with pytest.raises(DataError, match="has no inside: no value is above the level"):
        surface(-torch.ones(4, 4, 4), field)
    with pytest.raises(DataError, match="NaN or infinite"):
        surface(torch.full((4, 4, 4), torch.nan), field)
    with pytest.raises(ValueError, match=r"expected \(n, n, n\), n 2 or more"):
        surface(torch.zeros(4, 4, 5), field)
    with pytest.raises(ValueError, match="resolution is 1"):
        field.points(1)
