"""Teaching confirmed defects to a small model whose critic was really trained."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from patchsvdd.core.errors import DatasetError, ModelError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.memory_update import add_images, undo
from patchsvdd.detector.model_folder import change_in_words, journal_of, last_change, read_index
from patchsvdd.detector.teaching import Teaching, teach_defects
from patchsvdd.export.export import export
from patchsvdd.images.defect_examples import DefectExample, find_defect_examples
from patchsvdd.runtime import Detector as Runner
from support.command_line import run
from support.confirmed_defects import COLOURS, GOOD, draw_defect
from support.parts import draw_part


@pytest.fixture
def model(teachable: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(teachable, tmp_path / "part"))


@pytest.fixture(scope="module")
def defects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders images/KIND and masks/KIND, three images of each kind."""
    folder = tmp_path_factory.mktemp("defects")
    for kind in COLOURS:
        for part in ("images", "masks"):
            (folder / part / kind).mkdir(parents=True)
        for number in range(3):
            pixels, mask = draw_defect(100 + number, kind)
            Image.fromarray(pixels).save(folder / "images" / kind / f"{number}.png")
            Image.fromarray(mask).save(folder / "masks" / kind / f"{number}_mask.png")
    return folder


def examples(defects: Path, masks: bool = True) -> list[DefectExample]:
    found, broken = find_defect_examples(defects / "images", masks=defects / "masks" if masks else None)
    assert not broken
    return found


def contents(model: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in model.iterdir() if path.is_file() and path.name != ".lock"}


@pytest.fixture(scope="module")
def taught(teachable: Path, defects: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Teaching]:
    """A model that was taught both kinds, and what that changed. Tests share it: do not change it."""
    folder = Path(shutil.copytree(teachable, tmp_path_factory.mktemp("taught") / "part"))
    return folder, teach_defects(folder, examples(defects))


def test_more_confirmed_defects_are_found_and_no_more_good_images_raise_an_alarm(
    teachable: Path, taught: tuple[Path, Teaching]
) -> None:
    before, (folder, change) = PatchSVDD.load(teachable, "cpu"), taught
    after = PatchSVDD.load(folder, "cpu")
    assert before.calibration is not None
    assert after.calibration is not None
    assert change.kinds == {"dent": 3, "scratch": 3}
    assert change.threshold == after.threshold >= before.threshold
    assert change.alarms <= change.alarms_before
    assert after.calibration.conformal_guarantee.rate <= before.calibration.conformal_guarantee.rate
    assert all(now >= then for now, then in zip(after.calibration.scores, before.calibration.scores, strict=True))
    new = [draw_defect(seed, kind)[0] for kind in COLOURS for seed in range(200, 210)]
    found = [sum(detector.inspect(one).is_anomalous for one in new) for detector in (before, after)]
    assert found[1] >= found[0] + 5, found


def test_regions_are_named(taught: tuple[Path, Teaching]) -> None:
    detector = PatchSVDD.load(taught[0], "cpu")
    named = []
    for kind in COLOURS:
        for seed in range(200, 206):
            inspection = detector.inspect(draw_defect(seed, kind)[0])
            if inspection.is_anomalous:
                named.append((kind, inspection.regions[0].kind))
                assert inspection.regions[0].to_json()["kind"] == inspection.regions[0].kind
    right = sum(kind == name for kind, name in named)
    assert right > len(named) / 2
    assert detector.defects is not None
    assert detector.defects.in_words("dent").startswith("like dent, 3 confirmed in ")


def test_saving_keeps_what_was_taught(taught: tuple[Path, Teaching], tmp_path: Path) -> None:
    detector = PatchSVDD.load(taught[0], "cpu")
    detector.save(tmp_path / "copy")
    copy = PatchSVDD.load(tmp_path / "copy", "cpu")
    pixels = draw_defect(300, "dent")[0]
    assert copy.inspect(pixels).score == detector.inspect(pixels).score
    assert copy.defects is not None
    assert detector.defects is not None
    assert copy.defects.defects == detector.defects.defects


def test_exported_files_have_the_filters(taught: tuple[Path, Teaching], teachable: Path, tmp_path: Path) -> None:
    detector, before = (PatchSVDD.load(folder, "cpu") for folder in (taught[0], teachable))
    images = [draw_part(seed) for seed in range(300, 303)] + [draw_defect(202, kind)[0] for kind in COLOURS]
    export(detector, tmp_path / "part.onnx", images)
    runner = Runner(tmp_path / "part.onnx")
    assert runner.threshold == pytest.approx(detector.threshold)
    for pixels in images:
        assert runner.inspect(pixels).score == pytest.approx(detector.inspect(pixels).score, rel=1e-3, abs=1e-3)
    assert all(detector.inspect(one).score > before.inspect(one).score + 0.1 for one in images[3:])


def test_undo_restores_the_model(teachable: Path, taught: tuple[Path, Teaching], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(taught[0], tmp_path / "part"))
    last = last_change(read_index(folder))
    assert last is not None
    assert change_in_words(last).startswith("teaching 6 confirmed defects on ")
    change = undo(folder)
    assert change.undone == "teach"
    assert change.identity == read_index(teachable)["identity"]
    assert PatchSVDD.load(folder, "cpu").defects is None


def test_a_preview_says_the_same_and_changes_nothing(model: Path, taught: tuple[Path, Teaching], defects: Path) -> None:
    before = contents(model)
    preview = teach_defects(model, examples(defects), preview=True)
    assert preview.identity is None
    assert contents(model) == before
    assert replace(preview, identity="", seconds=0.0) == replace(taught[1], identity="", seconds=0.0)


def test_teaching_twice_is_teaching_at_once(model: Path, taught: tuple[Path, Teaching], defects: Path) -> None:
    every = examples(defects)
    first = teach_defects(model, [one for one in every if one.kind == "dent"])
    assert first.kinds == {"dent": 3}
    second = teach_defects(model, every)
    assert second.known == tuple(one.name for one in every if one.kind == "dent")
    assert second.kinds == taught[1].kinds
    ours, theirs = (PatchSVDD.load(folder, "cpu").defects for folder in (model, taught[0]))
    assert ours is not None
    assert theirs is not None
    torch.testing.assert_close(ours.filters.weights, theirs.filters.weights, rtol=1e-3, atol=1e-4)
    with pytest.raises(DatasetError, match="was taught all 6 images already"):
        teach_defects(model, every)
    assert [entry["change"] for entry in journal_of(read_index(model))] == ["teach", "teach"]


def test_good_images_may_be_added_afterwards(taught: tuple[Path, Teaching], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(taught[0], tmp_path / "part"))
    Image.fromarray(draw_part(500)).save(tmp_path / "more.png")
    add_images(folder, [tmp_path / "more.png"])
    detector = PatchSVDD.load(folder, "cpu")
    assert detector.defects is not None
    assert len(detector.defects.defects) == 6


def test_unusable_examples_are_left_out_and_named(model: Path, defects: Path, tmp_path: Path) -> None:
    good = tmp_path / "good.png"
    Image.fromarray(draw_part(3)).save(good)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    small, empty = tmp_path / "small.png", tmp_path / "empty.png"
    Image.fromarray(np.full((10, 10), 255, np.uint8).repeat(2, 0).repeat(2, 1)).save(small)
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(empty)
    defect = examples(defects)[0]
    change = teach_defects(
        model,
        [
            defect,
            DefectExample("good.png", good, "dent"),
            DefectExample("broken.png", broken, "dent"),
            DefectExample("small mask", examples(defects)[1].file, "dent", small),
            DefectExample("empty mask", examples(defects)[2].file, "dent", empty),
        ],
        preview=True,
    )
    assert [one.name for one in change.taught] == [defect.name]
    assert change.taught[0].found_after is None  # the only one of its kind
    words = [str(error) for error in change.skipped]
    assert "good.png" in words[0]
    assert "is a good image in the model" in words[0]
    assert "broken.png" in words[1]
    assert "is 64x64 and its mask 20x20" in words[2]
    assert "empty mask" in words[3]


def test_a_model_without_critic_cannot_be_taught(stored: Path, defects: Path) -> None:
    with pytest.raises(ModelError, match="has no critic"):
        teach_defects(stored, examples(defects), preview=True)


def test_the_folder_with_good_images_replaces_the_copies(model: Path, defects: Path, tmp_path: Path) -> None:
    folder = tmp_path / "good"
    folder.mkdir()
    for seed in range(GOOD):
        Image.fromarray(draw_part(seed)).save(folder / f"{seed:02}.png")
    few = examples(defects)[:2]
    with_copies = teach_defects(model, few, preview=True)
    assert with_copies.copies == len(with_copies.calibration.scores)
    assert teach_defects(model, few, good=folder, preview=True).copies == 0


class TestExamples:
    def test_folders_name_kinds_and_masks_match_by_name(self, defects: Path) -> None:
        found = examples(defects)
        assert [(one.name, one.kind) for one in found[:2]] == [("dent/0.png", "dent"), ("dent/1.png", "dent")]
        assert found[0].mask == defects / "masks" / "dent" / "0_mask.png"
        assert {one.kind for one in find_defect_examples(defects / "images", "mark")[0]} == {"mark"}

    def test_one_file(self, defects: Path) -> None:
        one = defects / "images" / "dent" / "0.png"
        mask = defects / "masks" / "dent" / "0_mask.png"
        assert find_defect_examples(one)[0] == [DefectExample("0.png", one, "defect")]
        assert find_defect_examples(one, "dent", mask)[0] == [DefectExample("0.png", one, "dent", mask)]
        assert find_defect_examples(one, "dent", mask.parent)[0][0].mask == mask

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda folder: folder / "nowhere", "there is no file or folder"),
            (lambda folder: (folder / "good").mkdir() or folder, "contains a folder 'good'"),
            (lambda folder: folder, "there is no image in"),
        ],
    )
    def test_what_is_no_folder_of_defects(self, make: object, words: str, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=words):
            find_defect_examples(make(tmp_path))  # type: ignore[operator]


def test_the_command_previews_teaches_and_shows_the_journal(model: Path, defects: Path) -> None:
    folders = ("--defects", defects / "images", "--masks", defects / "masks")
    preview = run("update", model, *folders, "--preview", "--json").json()
    assert preview["preview"]
    assert preview["identity"] is None
    done = run("update", model, *folders, "--json").json()
    assert done["kinds"] == {"dent": 3, "scratch": 3}
    assert done["alarms"] <= done["alarms_before"]
    assert done["identity"] == read_index(model)["identity"]
    shown = run("update", model)
    assert "teach" in shown.stdout
    refused = run("update", model, "--kind", "dent")
    assert refused.code != 0
    assert "--defects" in refused.stderr


def test_the_command_speaks_in_words(model: Path, defects: Path) -> None:
    done = run("update", model, "--defects", defects / "images" / "dent", "--kind", "dent")
    assert done.code == 0, done.stderr
    assert "dent (3)" in done.stdout
    assert "have no mask" in done.stderr + done.stdout
    assert "--undo" in done.stdout + done.stderr
