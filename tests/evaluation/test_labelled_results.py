"""Evaluation with labels from a labelling tool."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from patchsvdd.core.errors import DatasetError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation.evaluate import Evaluation, evaluate
from patchsvdd.images.labels.files import read_labels, write_labels
from patchsvdd.images.labels.label_file import Format
from support.parts import draw_part, save_picture


def figures(evaluation: Evaluation) -> dict[str, object]:
    """An evaluation but for its duration and its warnings."""
    return {
        name: value for name, value in evaluation.to_json().items() if name not in ("seconds_per_image", "warnings")
    }


@pytest.mark.parametrize("to", ["coco", "labelme", "label-studio"])
def test_labels_give_what_folders_and_masks_give(
    detector: PatchSVDD, category: Path, tmp_path: Path, to: Format
) -> None:
    labels = tmp_path / "labels"
    write_labels(read_labels(category), labels, to)
    expected = figures(evaluate(detector, category))
    found = evaluate(detector, category, labels=labels)
    assert found.warnings == ()
    assert figures(found) == expected
    plain = tmp_path / "photos"  # the folders say nothing
    for file in (category / "test").rglob("*.png"):
        plain.mkdir(exist_ok=True)
        shutil.copy(file, plain / f"{file.parent.name}-{file.name}")
    if to == "coco":
        content = labels.read_text().replace("crack/", "crack-").replace("good/", "good-")
        labels.write_text(content)
        assert figures(evaluate(detector, plain, labels=labels)) == expected


def test_labels_that_fit_no_image_and_images_without_labels_are_reported(
    detector: PatchSVDD, category: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "coco.json"
    write_labels(read_labels(category), labels, "coco")
    data = json.loads(labels.read_text())
    by_name = {entry["file_name"]: entry for entry in data["images"]}
    by_name["good/001.png"]["file_name"] = "good/elsewhere.png"
    by_name["crack/001.png"]["width"] = 640
    data["annotations"] = [one for one in data["annotations"] if one["image_id"] != by_name["crack/001.png"]["id"]]
    labels.write_text(json.dumps(data))
    found = evaluate(detector, category, labels=labels)
    assert found.verdicts.keys() == {"crack", "good"}
    assert found.images == 2
    assert [warning.split(";")[0] for warning in found.warnings] == [
        "good/elsewhere.png: there is no image of this name",
        "crack/001.png: it was labelled at 640 x 64 pixels, and the image has 64 x 64",
        "2 images have no label and are left out, e.g. crack/001.png",
    ]


def test_labels_without_masks_give_detection_only(detector: PatchSVDD, category: Path, tmp_path: Path) -> None:
    shutil.rmtree(category / "ground_truth")
    (category / "ground_truth").mkdir()
    labels = tmp_path / "labels"
    write_labels(read_labels(category), labels, "labelme")
    found = evaluate(detector, category, labels=labels)
    assert "detection_auroc" in found.metrics
    assert found.skipped["segmentation_auroc"] == f"no label in '{labels}' marks where a defect is"


def test_labels_of_other_images_are_an_error(detector: PatchSVDD, category: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels"
    write_labels(read_labels(category), labels, "labelme")
    other = tmp_path / "other"
    save_picture(other / "a.png", draw_part(1))
    with pytest.raises(DatasetError, match=r"no label in .* is of an image in"):
        evaluate(detector, other, labels=labels)
    with pytest.raises(DatasetError, match="no file or folder 'nowhere'"):
        evaluate(detector, other, labels=Path("nowhere"))
