"""``patchsvdd compare``: two models on the same images."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from patchsvdd import PatchSVDD
from support.command_line import draw_parts, files, run
from support.html import NASTY, Page


@pytest.fixture(scope="module")
def lenient(bolt_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same detector with a threshold above the scores of some images."""
    folder = tmp_path_factory.mktemp("lenient") / "lenient"
    detector = PatchSVDD.load(bolt_model, "cpu")
    assert detector.calibration is not None
    detector.calibration = dataclasses.replace(detector.calibration, threshold=1.6 * detector.threshold)
    detector.save(folder)
    return folder


@pytest.fixture(scope="module")
def uncalibrated(bolt_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uncalibrated") / "plain"
    detector = PatchSVDD.load(bolt_model, "cpu")
    detector.calibration = None
    detector.save(folder)
    return folder


def ratios(model: Path, folder: Path) -> dict[str, float]:
    """Score ÷ threshold of the images of a folder, one by one."""
    detector = PatchSVDD.load(model, "cpu")
    return {
        path.relative_to(folder).as_posix(): detector.inspect(path).score / detector.threshold
        for path in sorted(folder.rglob("*.png"))
    }


def test_labelled_images_in_folders(bolt: Path, bolt_model: Path, lenient: Path, tmp_path: Path) -> None:
    ended = run("compare", bolt_model, lenient, bolt, "--out", tmp_path / "out", "--device", "cpu", "--json")
    found = ended.json()
    a, b = ratios(bolt_model, bolt / "test"), ratios(lenient, bolt / "test")
    assert found["images"] == len(a) == 6
    differ = [name for name in a if (a[name] > 1) != (b[name] > 1)]
    order = sorted(differ, key=lambda name: -(abs(a[name] - 1) + abs(b[name] - 1)))
    assert differ, "the fixture must produce a disagreement"
    assert [one["image"] for one in found["disagreements"]] == order
    first = found["disagreements"][0]
    assert first["first"]["ratio"] == pytest.approx(a[order[0]], rel=1e-4)
    assert first["second"]["verdict"] == "good"
    assert found["alarms"]["only_first"] == len(differ)
    assert found["alarms"]["first"]["count"] == sum(ratio > 1 for ratio in a.values())
    good, spots = [name for name in a if name.startswith("good/")], [name for name in a if name.startswith("spot/")]
    assert found["false_alarms"]["second"]["count"] == sum(b[name] > 1 for name in good)
    assert found["misses"]["first"]["count"] == sum(a[name] <= 1 for name in spots)
    assert found["misses"]["images"] == len(spots)
    assert found["alarms"]["method"] == "Tango"
    assert found["report"] == str(tmp_path / "out" / "index.html")

    page = Page(tmp_path / "out" / "index.html")
    assert list(files(tmp_path / "out")) == ["index.html"]
    assert len(page.all("img")) == 2 * len(differ), "both models' overlays"
    for name in differ:
        assert name in page.words
    for words in ("Alarms", "Misses", "False alarms", "McNemar, exact", "Scores of both models"):
        assert words in page.words
    source = (tmp_path / "out" / "index.html").read_text()
    assert "http://" not in source.replace("http://www.w3.org", "")
    assert "https://" not in source


def test_a_plain_folder_has_no_labels(bolt_model: Path, lenient: Path, tmp_path: Path) -> None:
    photos = draw_parts(tmp_path / "photos", 2)
    shutil.copy(photos / "000.png", photos / NASTY.replace("\\", "").replace("/", ""))
    (photos / "broken.png").write_text("no image")
    ended = run("compare", bolt_model, lenient, photos, "--device", "cpu", "--json", "--out", tmp_path / "out")
    found = ended.json()
    assert (found["images"], found["labels"], found["misses"]) == (3, False, None)
    assert [one for one in found["skipped"] if "broken.png" in one]
    assert "skipped: " in ended.stderr
    assert "broken.png" in Page(tmp_path / "out" / "index.html").text


def test_labels_of_a_file(bolt: Path, bolt_model: Path, lenient: Path, tmp_path: Path) -> None:
    coco = tmp_path / "coco.json"
    run("labels", "convert", bolt, coco, "--to", "coco", "--json").json()
    plain = run("compare", bolt_model, lenient, bolt, "--device", "cpu", "--json").json()
    found = run("compare", bolt_model, lenient, bolt, "--labels", coco, "--device", "cpu", "--json").json()
    assert found["misses"] == plain["misses"]
    assert found["false_alarms"] == plain["false_alarms"]
    assert "nowhere" in run("compare", bolt_model, lenient, bolt, "--labels", "nowhere").error()


def test_tables_in_a_terminal(bolt: Path, bolt_model: Path, lenient: Path) -> None:
    shown = run("compare", bolt_model, lenient, bolt, "--device", "cpu")
    assert shown.code == 0
    for words in ("disagreement", "McNemar", "B − A (95 %)", "Misses"):
        assert words in shown.stdout, words


def test_errors_are_one_line(bolt: Path, bolt_model: Path, lenient: Path, uncalibrated: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    copied = shutil.copytree(bolt_model, tmp_path / "copied")
    for other, images, words in (
        (bolt_model, bolt, "are the same model"),
        (copied, bolt, "are the same model"),
        (uncalibrated, bolt, "has no threshold"),
        (lenient, tmp_path / "empty", "there is no image in"),
        (lenient, tmp_path / "missing", "check the path"),
        (tmp_path / "missing", bolt, "missing"),
    ):
        assert words in run("compare", bolt_model, other, images, "--device", "cpu").error()


def test_a_report_is_not_replaced(bolt: Path, bolt_model: Path, lenient: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    arguments = ("compare", bolt_model, lenient, bolt, "--out", tmp_path, "--device", "cpu")
    assert "--overwrite" in run(*arguments).error()
    assert (tmp_path / "index.html").read_text() == "mine"
    assert run(*arguments, "--overwrite").code == 0
    assert "Disagreements" in (tmp_path / "index.html").read_text()
