"""The page's test images and its figures of single classes."""

import io
import re

import pytest
from PIL import Image

from equilibria.run.report import page
from equilibria.run.report.classes import classes
from equilibria.run.report.gallery import gallery
from equilibria.run.report.summary import tiles


def png(color=(200, 30, 30)):
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), color).save(buffer, "PNG")
    return buffer.getvalue()


def solve(status="CONVERGED", evals=9):
    return {"evals": evals, "status": status}


def animals():
    files = {"image": png(), "late": png((0, 0, 0))}
    return {
        "kind": "classification",
        "split": "test",
        "count": 450,
        "seen": 50,
        "wrong": 7,
        "rtol": 1e-3,
        "scale": {"low": 2, "high": 12, "colours": [f"#0000{k:02x}" for k in range(11)]},
        "pictures": [
            {
                "truth": "cat",
                "told": [["dog <b>", 0.61], ["cat", 0.3]],
                "files": files,
                "solve": solve(),
            },
            {"truth": "dog", "told": [["dog", 0.9]], "files": files, "solve": solve(evals=1)},
            {
                "truth": "dog",
                "told": [["dog", 0.8]],
                "files": {"image": png()},
                "solve": solve("MAX_EVALS", 30),
            },
        ],
    }


def streets():
    names = ("image", "truth", "told")
    return {
        "kind": "segmentation",
        "split": "test",
        "count": 233,
        "seen": 1,
        "rtol": 0.0,
        "scale": None,
        "classes": [["sky", "#808080"], ["road", "#804080"]],
        "pictures": [
            {"name": "0001", "right": 0.875, "files": dict.fromkeys(names, png()), "solve": None}
        ],
    }


def run(**more):
    metrics = [{"epoch": 1, "seconds": 1.0, "train": {"loss": 1.0}, "test": {"loss": 1.0}}]
    return {"name": "a run", "metrics": metrics, **more}


def text(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_a_classifier_is_shown_with_its_mistakes_and_what_it_took_them_for():
    html = page([run(gallery=animals())])
    assert html.count("<img ") == 5 and html.count('src="data:image/png;base64,') == 5
    said = text(html)
    assert "Of 50 test images taken at random, 7 are misclassified" in said
    assert "the first 1 of these and the first 2 of the others" in said
    assert "predicted dog &lt;b&gt;, 61 %" in said and "then dog &lt;b&gt;" not in said
    assert "then cat 30 %" in said and "correct, 90 %" in said
    assert "9 evaluations" in said and "1 evaluation " in said
    assert "30 evaluations, MAX_EVALS" in said and "no map" in said
    assert "within 0.001 of z*" in said
    assert "://" not in html


def test_a_classifier_without_a_mistake():
    content = animals()
    said = text(page([run(gallery=content | {"pictures": content["pictures"][1:], "wrong": 0})]))
    assert "none is misclassified. Shown are the first 2." in said


def test_the_scale_names_its_ends():
    found = gallery(animals())
    assert [label for label, _ in found.scale] == ["2", "4", "6", "8", "10", "12"]
    assert found.scale[-1] == ("12", "#00000a")
    short = animals() | {"scale": {"low": 5, "high": 5, "colours": ["#000000"]}}
    found = gallery(short)
    assert found.scale == [("5", "#000000")]


def test_masks_stand_side_by_side_with_a_legend():
    html = page([run(gallery=streets())])
    assert html.count("<img ") == 3
    said = text(html)
    for word in ("sky", "road", "truth", "predicted", "0001", "87.5 % of the pixels correct"):
        assert word in said
    assert "--key: #804080" in html
    assert "of z*, the solver" not in said  # nothing was solved for


def test_what_was_not_looked_at_is_said():
    said = text(page([run(unpictured="the images are gone")]))
    assert "No test images are shown: the images are gone." in said
    assert "Predictions" not in said
    assert "Predictions" not in text(page([run()]))
    assert "<img" not in page([run(name="a", gallery=animals()), run(name="b")])


@pytest.fixture
def animals_told():
    return run(
        seen={"labels": ["cat", "dog", "owl"]},
        evaluation={"loss": 1.0, "confusion": [[6, 2, 0], [0, 10, 0], [0, 0, 0]]},
    )


def test_accuracy_of_each_class_and_what_it_is_taken_for(animals_told):
    found = classes(animals_told)
    assert [bar.figure for bar in found.bars] == ["75 %", "100 %", "–"]
    assert [bar.units for bar in found.bars] == ["8", "10", "0"]
    assert found.confusion.rows[0] == [0.75, 0.25, 0.0]
    html = page([animals_told])
    assert "width: 75.0%" in html and "Confusion matrix" in html
    assert "Confusion matrix" not in page([animals_told, {**animals_told, "name": "b"}])


def test_overlap_of_each_class_is_read_from_the_evaluation():
    found = classes(
        run(
            seen={"labels": ["sky", "car"], "colours": [[128, 128, 128], [64, 0, 128]]},
            evaluation={"iou_sky": 0.9, "iou_car": float("nan"), "confusion": [[90, 10], [0, 0]]},
        )
    )
    assert found.head == "IoU"
    assert [(bar.figure, bar.color, bar.units) for bar in found.bars] == [
        ("90 %", "#808080", "100 %"),
        ("–", "#400080", "0 %"),
    ]


def test_the_tile_of_the_mean_leaves_out_single_classes():
    metrics = [{"name": "miou"}, {"name": "pixel_accuracy"}, {"name": "iou_sky"}]
    given = run(
        seen={"labels": ["sky"]},
        about={"metrics": metrics},
        evaluation={"miou": 0.5, "pixel_accuracy": 0.7, "iou_sky": 0.9},
    )
    notes = [each.note for each in tiles(given)]
    assert "0.7 pixel_accuracy" in notes[0] and not any("iou_sky" in note for note in notes)


def test_of_many_classes_the_most_frequent_confusions_are_listed():
    labels = [f"class {k}" for k in range(30)]
    matrix = [[9 * (i == j) for j in range(30)] for i in range(30)]
    matrix[3][7], matrix[5][1] = 1, 9
    given = run(seen={"labels": labels}, evaluation={"confusion": matrix})
    found = classes(given)
    assert found.confusion.rows == () and list(found.confusion.frequent) == [
        ("class 5", "class 1", "9 images", "50 %"),
        ("class 3", "class 7", "1 image", "10 %"),
    ]
    assert "9 images" in page([given])


def test_nothing_is_made_up_of_an_evaluation_without_it(animals_told):
    assert classes(run(seen={"labels": ["a"]}, evaluation={"loss": 1.0})) is None
    assert classes({**animals_told, "seen": None}) is None
    assert classes({**animals_told, "seen": {"labels": ["cat"]}}) is None  # of other classes
