from __future__ import annotations

import html
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.report.overlay import save_overlay
from patchsvdd.scoring.inspection import Inspection
from support.command_line import QUICK, draw_parts, files, finish, images, part, rows, run, start
from support.waiting import wait_until

SLOWLY = """
import time
from patchsvdd.report.results_file import ResultsFile
append = ResultsFile.append
def append_slowly(self, row):
    append(self, row)
    time.sleep(0.02)
ResultsFile.append = append_slowly
"""


@pytest.fixture(scope="module")
def model(bolt_model: Path) -> Path:
    return bolt_model


@pytest.fixture(scope="module")
def other_model(bolt: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "other"
    assert run("train", bolt, "--out", out, *QUICK, "--seed", 1).code == 0
    return out


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return draw_parts(tmp_path / "photos", 3, first=10)


def pictures(out: Path) -> dict[str, int]:
    """Overlays and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in (out / "overlays").rglob("*.jpg")}


# A second run


def test_a_second_run_skips_what_is_done(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("inspect", model, photos, "--out", out, "--json").json()["already_done"] == 0
    before = pictures(out)
    told = run("inspect", model, photos, "--out", out, "--json").json()
    assert told["already_done"] == told["images"] == 3
    assert pictures(out) == before
    assert images(out) == ["000.png", "001.png", "002.png"]
    assert "3 images were already inspected" in run("inspect", model, photos, "--out", out).stderr


def test_overwrite_inspects_again(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", model, photos, "--out", out)
    before = pictures(out)
    told = run("inspect", model, photos, "--out", out, "--overwrite", "--json").json()
    assert told["already_done"] == 0
    assert told["images"] == 3
    assert all(after > before[name] for name, after in pictures(out).items())
    assert images(out) == ["000.png", "001.png", "002.png"]


def test_a_changed_image_is_inspected_again(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", model, photos, "--out", out)
    before = {row["image"]: row["score"] for row in rows(out)}
    part(10, defect=True)[0].save(photos / "001.png")
    told = run("inspect", model, photos, "--out", out, "--json").json()
    assert told["already_done"] == 2
    after = {row["image"]: row["score"] for row in rows(out)}
    assert sorted(after) == sorted(before)
    assert [name for name in after if after[name] != before[name]] == ["001.png"]


def test_new_images_are_added(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", model, photos, "--out", out)
    part(20)[0].save(photos / "new.png")
    told = run("inspect", model, photos, "--out", out, "--json").json()
    assert told["already_done"] == 3
    assert images(out) == ["000.png", "001.png", "002.png", "new.png"]


def test_another_model_inspects_again(model: Path, other_model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", model, photos, "--out", out)
    before = {row["image"]: row["score"] for row in rows(out)}
    assert run("inspect", other_model, photos, "--out", out, "--json").json()["already_done"] == 0
    after = {row["image"]: row["score"] for row in rows(out)}
    assert sorted(after) == sorted(before)
    assert not set(after.values()) & set(before.values())


def test_a_lost_picture_is_drawn_again(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", model, photos, "--out", out)
    (out / "overlays" / "001.png.jpg").unlink()
    assert run("inspect", model, photos, "--out", out, "--json").json()["already_done"] == 2
    assert (out / "overlays" / "001.png.jpg").exists()


def test_a_half_written_last_line_costs_one_image(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", model, photos, "--out", out)
    results = out / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-20])
    told = run("inspect", model, photos, "--out", out, "--json").json()
    assert told["already_done"] == 2
    assert images(out) == ["000.png", "001.png", "002.png"]


def test_an_image_repaired_since_is_inspected(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (photos / "001.png").write_text("not a picture yet")
    assert run("inspect", model, photos, "--out", out, "--json").json()["unreadable"] == 1
    part(11)[0].save(photos / "001.png")
    told = run("inspect", model, photos, "--out", out, "--json").json()
    assert (told["unreadable"], told["already_done"]) == (0, 2)
    assert images(out) == ["000.png", "001.png", "002.png"]


def test_a_folder_with_the_same_names_is_not_taken_for_the_first(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", model, photos, "--out", out)
    defective = draw_parts(tmp_path / "defective", 3, first=10, defect=True)
    told = run("inspect", model, defective, "--out", out, "--json").json()
    assert told["already_done"] == 0
    assert {Path(row["path"]).parent for row in rows(out)} == {defective}
    assert told["anomalous"] == 3


def test_maps_asked_for_later_are_written(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", model, photos, "--out", out)
    assert not (out / "maps").exists()
    run("inspect", model, photos, "--out", out, "--maps")
    assert len(list((out / "maps").iterdir())) == 3


# Interruptions


@pytest.mark.slow
def test_kill_9_in_the_middle_then_a_second_run_finishes(model: Path, tmp_path: Path) -> None:
    photos, out = draw_parts(tmp_path / "photos", 40), tmp_path / "out"
    process = start("inspect", model, photos, "--out", out, before=SLOWLY)
    wait_for_rows(out, 5)
    process.send_signal(signal.SIGKILL)
    assert finish(process).code == -signal.SIGKILL
    done = (out / "results.jsonl").read_bytes().count(b"\n")
    assert 5 <= done < 40
    told = run("inspect", model, photos, "--out", out, "--json").json()
    assert told["images"] == 40
    assert told["already_done"] == done
    assert images(out) == [f"{index:03d}.png" for index in range(40)]
    assert len(pictures(out)) == 40


@pytest.mark.slow
def test_ctrl_c_writes_the_page_and_a_second_run_finishes(model: Path, tmp_path: Path) -> None:
    photos, out = draw_parts(tmp_path / "photos", 40), tmp_path / "out"
    process = start("inspect", model, photos, "--out", out, before=SLOWLY)
    wait_for_rows(out, 5)
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert ended.code == 130
    assert "Traceback" not in ended.stderr
    assert "interrupted" in ended.stderr
    assert "same command" in ended.stderr  # what to do next
    done = images(out)
    assert 5 <= len(done) < 40
    page = (out / "index.html").read_text(encoding="utf-8")
    assert all(name in page for name in done)
    assert run("inspect", model, photos, "--out", out, "--json").json()["already_done"] == len(done)
    assert images(out) == [f"{index:03d}.png" for index in range(40)]


def wait_for_rows(out: Path, count: int) -> None:
    results = out / "results.jsonl"
    wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= count, 60, poll=0.005)


# What is inspected


def test_a_single_file(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("inspect", model, photos / "001.png", "--out", out, "--json").json()["images"] == 1
    assert images(out) == ["001.png"]


def test_a_model_without_a_threshold_says_so(model: Path, photos: Path, tmp_path: Path) -> None:
    detector = PatchSVDD.load(model, "cpu")
    detector.calibration = None
    detector.save(tmp_path / "model")
    ended = run("inspect", tmp_path / "model", photos, "--out", tmp_path / "out")
    assert "this model has no threshold, so no image is called anomalous" in ended.stderr
    assert f"patchsvdd calibrate {tmp_path / 'model'} GOOD" in ended.stderr
    assert all(f"{row['score']:.2f}" in ended.stdout for row in rows(tmp_path / "out"))


def test_folders_below_a_folder(model: Path, photos: Path, tmp_path: Path) -> None:
    draw_parts(photos / "monday" / "morning", 1)
    assert run("inspect", model, photos, "--out", tmp_path / "out", "--json").json()["images"] == 4
    assert "monday/morning/000.png" in images(tmp_path / "out")


@pytest.mark.parametrize(
    "inputs",
    [
        ("monday", "tuesday"),
        ("monday/000.png", "tuesday/000.png"),
        ("monday", "tuesday/000.png"),
        ("left/camera", "right/camera"),
        ("left/camera", "right/camera", "camera-2"),
        ("camera-2", "left/camera", "right/camera"),
    ],
)
def test_equal_names_of_several_inputs_stay_apart(model: Path, tmp_path: Path, inputs: tuple[str, ...]) -> None:
    for index, name in enumerate(inputs):
        draw_parts(tmp_path / name.removesuffix("/000.png"), 1, first=30 + index)
    out = tmp_path / "out"
    arguments = [tmp_path / name for name in inputs]
    told = run("inspect", model, *arguments, "--out", out, "--json").json()
    assert told["images"] == len(inputs)
    assert len(set(images(out))) == len({row["overlay"] for row in rows(out)}) == len(inputs)
    assert len({row["score"] for row in rows(out)}) == len(inputs)
    assert run("inspect", model, *arguments, "--out", out, "--json").json()["already_done"] == len(inputs)


def test_a_folder_given_twice_counts_once(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = run("inspect", model, "photos", photos, photos / "000.png", "--out", "out", "--json").json()
    assert told["images"] == 3
    assert len(set(images(tmp_path / "out"))) == 3


@pytest.mark.parametrize("out", ["photos/inspected", "photos"])
def test_results_among_the_photos_are_not_inspected(model: Path, photos: Path, tmp_path: Path, out: str) -> None:
    for _ in range(2):
        assert run("inspect", model, photos, "--out", tmp_path / out, "--json").json()["images"] == 3


def test_odd_names(model: Path, tmp_path: Path) -> None:
    names = ["a b.png", "#1 100%.png", "ünïcode ✓.png", "[bold].png", "<b>&amp;.png", "-v.png", "x" * 240 + ".png"]
    (tmp_path / "photos").mkdir()
    for index, name in enumerate(names):
        part(40 + index)[0].save(tmp_path / "photos" / name)
    ended = run("inspect", model, tmp_path / "photos", "--out", tmp_path / "out")
    assert ended.code == 0
    assert "[bold].png" in ended.stdout
    assert images(tmp_path / "out") == sorted(names)
    assert all((tmp_path / "out" / row["overlay"]).exists() for row in rows(tmp_path / "out"))


def test_a_name_as_long_as_names_get(model: Path, photos: Path, tmp_path: Path) -> None:
    shutil.move(photos / "001.png", photos / ("y" * 251 + ".png"))
    told = run("inspect", model, photos, "--out", tmp_path / "out", "--json").json()
    assert (told["images"], told["unreadable"]) == (3, 0)


def test_names_that_are_not_utf8(model: Path, photos: Path, tmp_path: Path) -> None:
    odd = os.fsencode(photos) + b"/caf\xe9.png"
    try:
        part(50)[0].save(tmp_path / "part.png")
        shutil.copy(os.fsencode(tmp_path / "part.png"), odd)
    except OSError:
        pytest.skip("this disk takes UTF-8 names only")
    assert run("inspect", model, photos, "--out", tmp_path / "out", "--json").json()["images"] == 4
    assert run("inspect", model, photos, "--out", tmp_path / "out").code == 0
    trained = run("train", photos, "--out", tmp_path / "model", *QUICK, "--json").json()
    assert trained["images"] == 4
    assert run("info", tmp_path / "model", "--json").code == 0


def test_an_image_deleted_during_the_run_costs_one_row(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_delete(inspection: Inspection, path: Path) -> Path:
        Path(inspection.name).unlink()  # somebody clears the folder while we look
        return save_overlay(inspection, path)

    monkeypatch.setattr("patchsvdd.report.inspection_run.save_overlay", save_and_delete)
    ended = run("inspect", model, photos / "000.png", photos / "001.png", "--out", tmp_path / "out", "--json")
    assert ended.json()["images"] == 2


# What comes out


def test_fail_on_anomaly(model: Path, bolt: Path, tmp_path: Path) -> None:
    good = bolt / "train" / "good"
    defective = draw_parts(tmp_path / "defective", 1, defect=True)
    assert run("inspect", model, good, "--out", tmp_path / "out", "--fail-on-anomaly").code == 0
    assert run("inspect", model, good, defective, "--out", tmp_path / "out2").code == 0
    ended = run("inspect", model, good, defective, "--out", tmp_path / "out2", "--fail-on-anomaly", "--json")
    assert ended.code == 3
    assert '"anomalous": 1' in ended.stdout


def test_maps_are_written_on_request(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", model, photos, "--out", out, "--maps")
    for row in rows(out):
        anomaly_map = np.load(out / row["map"])
        assert anomaly_map.shape == (64, 64)
        assert anomaly_map.dtype == np.float32
        assert float(anomaly_map.max()) == pytest.approx(row["score"])


def test_reasons_are_given_on_request(model: Path, photos: Path, tmp_path: Path) -> None:
    draw_parts(photos / "bad", 2, first=30, defect=True)
    out = tmp_path / "out"
    told = run("inspect", model, photos, "--out", out, "--explain", "--json").json()
    found = {row["image"]: row["explanation"] for row in rows(out) if "explanation" in row}
    assert {row["image"] for row in rows(out) if row["is_anomalous"]} == set(found) >= {"bad/000.png", "bad/001.png"}
    assert {one["image"] for one in told["explanations"]} == set(found)
    page = (out / "index.html").read_text(encoding="utf-8")
    for name, explanation in found.items():
        assert explanation["picture"] == f"explanations/{name}.jpg"
        with Image.open(out / explanation["picture"]) as picture:
            assert picture.format == "JPEG"
        for reason in explanation["reasons"]:
            assert sum(scale["share"] for scale in reason["scales"]) == pytest.approx(1)
            assert html.escape(reason["in_words"]) in page
            known = {scale["nearest"]["image"] for scale in reason["scales"]}
            assert known <= {f"{index:03d}.png" for index in range(6)}, "the images it was trained on"


def test_reasons_asked_for_later_are_given(model: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    draw_parts(photos / "bad", 1, first=30, defect=True)
    anomalous = run("inspect", model, photos, "--out", out, "--json").json()["anomalous"]
    assert not (out / "explanations").exists()
    told = run("inspect", model, photos, "--out", out, "--explain", "--json").json()
    assert told["already_done"] == 4 - anomalous, "good images have nothing to explain"
    assert len(told["explanations"]) == anomalous > 0
    assert run("inspect", model, photos, "--out", out, "--explain", "--json").json()["already_done"] == 4
    (out / told["explanations"][0]["picture"]).unlink()
    assert run("inspect", model, photos, "--out", out, "--explain", "--json").json()["already_done"] == 3


def test_nothing_but_results_is_left(model: Path, photos: Path, tmp_path: Path) -> None:
    run("inspect", model, photos, "--out", tmp_path / "out")
    overlays = [f"overlays/{name}.jpg" for name in ("000.png", "001.png", "002.png")]
    assert sorted(files(tmp_path / "out")) == sorted(["index.html", "results.csv", "results.jsonl", *overlays])


def test_one_image_several_times_is_not_enough_to_learn_from(photos: Path, tmp_path: Path) -> None:
    same = tmp_path / "same"
    same.mkdir()
    for index in range(3):
        shutil.copy(photos / "000.png", same / f"{index}.png")
    assert "all 3 images show the same" in run("train", same, "--out", tmp_path / "model", *QUICK).error()
    assert not (tmp_path / "model" / "model.json").exists()
