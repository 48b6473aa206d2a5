"""A task of images on data that are not those of its training."""

from pathlib import Path

from equilibria.zoo.vision.task.classification import ImageClassification


def test_a_task_on_other_data_names_a_folder_in_full_or_a_data_set(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    images = ImageClassification(valid=10)
    assert images.at("photos") == ImageClassification(data=str(tmp_path / "photos"), valid=10)
    assert images.at("mnist").data == images.at("digits").at("mnist").data == "mnist"
    assert images.at(Path("mnist")).data == str(tmp_path / "mnist")
