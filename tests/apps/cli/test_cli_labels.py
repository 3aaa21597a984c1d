"""``patchsvdd labels`` and ``evaluate --labels``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import files, run


@pytest.fixture(scope="module")
def labelled(bolt: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The masks of a category as COCO."""
    out = tmp_path_factory.mktemp("labels") / "coco.json"
    assert run("labels", "convert", bolt, out, "--to", "coco", "--json").json()["written"] == 6
    return out


def test_a_way_through_all_formats_ends_with_the_same_masks(bolt: Path, labelled: Path, tmp_path: Path) -> None:
    at = labelled
    for to, name in (("label-studio", "tasks.json"), ("labelme", "json"), ("masks", "part")):
        done = run("labels", "convert", at, tmp_path / name, "--to", to, "--images", bolt / "test", "--json").json()
        assert done["problems"] == []
        assert done["without_label"] == []
        assert (done["images"], done["good"], done["defective"]) == (6, 3, 3)
        at = tmp_path / name
    masks = sorted(path.name for path in (bolt / "ground_truth").rglob("*.png"))
    assert sorted(path.name for path in at.rglob("*.png")) == masks
    again = run("labels", "convert", bolt, tmp_path / "again.json", "--to", "coco").code
    assert again == 0
    (at / "test").symlink_to(bolt / "test")
    run("labels", "convert", at, tmp_path / "last.json", "--to", "coco")
    assert (tmp_path / "last.json").read_bytes() == labelled.read_bytes()


def test_show_counts_and_reports(labelled: Path, bolt: Path, tmp_path: Path) -> None:
    shown = run("labels", "show", labelled, "--images", bolt / "test")
    assert shown.code == 0
    assert "6: 3 good, 3 with defects" in shown.stdout
    assert "3 spot" in shown.stdout
    data = json.loads(labelled.read_text())
    data["annotations"][0]["segmentation"] = [[1, 2]]
    (tmp_path / "a.json").write_text(json.dumps(data))
    shown = run("labels", "show", tmp_path / "a.json")
    assert "skipped: " in shown.stderr
    assert "annotation 1 (spot/000.png) was skipped" in shown.stderr


def test_existing_files_are_kept(labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    out.write_text("mine")
    assert "--overwrite" in run("labels", "convert", labelled, out, "--to", "label-studio").error()
    assert files(tmp_path) == {"a.json": b"mine"}


def test_an_unknown_format_is_one_line(labelled: Path, tmp_path: Path) -> None:
    assert "--to must be coco" in run("labels", "convert", labelled, tmp_path / "a", "--to", "yolo").error()


def test_evaluate_uses_the_labels(bolt: Path, bolt_model: Path, labelled: Path) -> None:
    plain = run("evaluate", bolt_model, bolt, "--json").json()
    found = run("evaluate", bolt_model, bolt, "--labels", labelled, "--json").json()
    assert {**found, "seconds_per_image": 0} == {**plain, "seconds_per_image": 0}
    assert "nowhere" in run("evaluate", bolt_model, bolt, "--labels", "nowhere").error()
