from __future__ import annotations

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from patchsvdd.apps.cli.aims import aim_facts, misses_to_json
from patchsvdd.apps.cli.info import bar
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import INDEX, read_index
from patchsvdd.report.detector_card import detector_card
from patchsvdd.scoring.calibration import BASES, Calibration, calibrate
from patchsvdd.scoring.trade_off import Evidence
from support.command_line import BRIEF, NO_ESTIMATE, QUICK, draw_parts, files, finish, rows, run, start
from support.html import Page

pytestmark = pytest.mark.slow

KEYS = {
    "aim",
    "estimated_miss_rate",
    "visible_defects",
    "synthetic_defects",
    "missed_by_class",
    "copies",
    "guaranteed",
    "model",
    "changed",
    "threshold",
    "threshold_before",
    "false_alarm_rate",
    "promised_rate",
    "confidence",
    "rate_at_confidence",
    "smallest_rate",
    "promise",
    "images",
    "separate",
    "known",
    "unusable",
    "basis",
    "basis_in_words",
    "pixel_threshold",
    "pixel_rate",
    "min_area",
    "caveat",
    "defects",
    "shift",
    "skipped",
}
DEFECT_KEYS = {
    "images",
    "found",
    "miss_rate",
    "miss_rate_interval",
    "suggested_threshold",
    "suggested_miss_rate",
    "suggested_miss_rate_interval",
    "suggested_false_alarm_rate",
    "suggested_false_alarm_rate_interval",
}
SLOWLY = """
import os, time
from pathlib import Path
from patchsvdd.apps.cli.aims import aim_facts, misses_to_json
from patchsvdd.detector.detector import PatchSVDD
marked = PatchSVDD.marked
def mark_slowly(self, pixels):
    Path(os.environ["BEGUN"]).touch()
    time.sleep(0.1)
    return marked(self, pixels)
PatchSVDD.marked = mark_slowly
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good images that the model has learned from."""
    return draw_parts(tmp_path_factory.mktemp("data") / "good")


@pytest.fixture(scope="module")
def trained(good: Path) -> Path:
    """A model. Tests that change it work on a copy."""
    out = good.parent / "model"
    assert run("train", good, "--out", out, *QUICK).code == 0
    return out


@pytest.fixture(scope="module")
def new(good: Path) -> Path:
    """Good images that it has not seen."""
    return draw_parts(good.parent / "new", 12, first=50)


@pytest.fixture(scope="module")
def defects(good: Path) -> Path:
    return draw_parts(good.parent / "defects", 3, first=80, defect=True)


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with synthetic defects."""
    folder = tmp_path_factory.mktemp("weighed")
    options = [*QUICK[: QUICK.index("--aim")], "--aim", "balanced", "--synthetic-defects", "24"]
    assert run("train", draw_parts(folder / "good", 8), "--out", folder / "model", *options).code == 0
    return folder / "model"


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A model folder of one's own."""
    return Path(shutil.copytree(trained, tmp_path / "model"))


class TestThreshold:
    def test_is_set_and_nothing_else(self, model: Path, new: Path) -> None:
        before, index = files(model), read_index(model)
        told = run("calibrate", model, new, "--false-alarm-rate", 0.2, "--json").json()
        after, now = files(model), read_index(model)
        assert {name for name in after if after[name] != before.get(name)} == {INDEX, "history/0001.json"}
        assert after["history/0001.json"] == before[INDEX], "kept to go back to"
        assert {name for name in now if now[name] != index.get(name)} == {"calibration", "identity", "journal"}
        assert now.keys() == index.keys() | {"journal"}
        calibration = Calibration.from_json(now["calibration"])
        assert told["threshold"] == calibration.threshold != told["threshold_before"]
        assert told["threshold_before"] == index["calibration"]["threshold"]
        assert calibration.threshold == calibrate(calibration.scores, 0.2).threshold
        assert calibration.false_alarm_rate == 0.2
        assert len(calibration.scores) == told["images"] == 12

    def test_is_the_one_that_images_are_then_judged_by(self, model: Path, new: Path, tmp_path: Path) -> None:
        out = tmp_path / "inspected"
        first = run("inspect", model, new, "--out", out, "--json").json()
        told = run("calibrate", model, new, "--false-alarm-rate", 0.2, "--json").json()
        second = run("inspect", model, new, "--out", out, "--json").json()
        assert first["already_done"] == second["already_done"] == 0, "another threshold is another model"
        calibration = Calibration.from_json(read_index(model)["calibration"])
        for row in rows(out):
            assert row["threshold"] == told["threshold"]
            assert row["p_value"] == pytest.approx(calibration.p_value(row["score"]))
            assert row["is_anomalous"] == (row["p_value"] <= told["promised_rate"])
        assert second["anomalous"] == 1, "of 12 scores the 11th is the threshold of a rate of 0.2"

    def test_every_inspection_has_a_p_value_from_the_start(self, trained: Path, new: Path, tmp_path: Path) -> None:
        run("inspect", trained, new, "--out", tmp_path / "out", "--json").json()
        assert {row["p_value"] for row in rows(tmp_path / "out")} <= {share / 5 for share in range(1, 6)}

    def test_stays_where_it_is_in_a_dry_run(self, model: Path, new: Path) -> None:
        before = files(model)
        told = run("calibrate", model, new, "--false-alarm-rate", 0.2, "--dry-run", "--json").json()
        assert files(model) == before
        assert told["changed"] is False
        done = run("calibrate", model, new, "--false-alarm-rate", 0.2, "--json").json()
        assert done == told | {"changed": True}
        assert "Would calibrate" in run("calibrate", model, new, "--dry-run").stdout

    def test_set_again_from_the_same_images_is_the_same_model(self, model: Path, new: Path) -> None:
        run("calibrate", model, new, "--false-alarm-rate", 0.2)
        before = files(model)
        told = run("calibrate", model, new, "--false-alarm-rate", 0.2, "--json").json()
        assert told["threshold"] == told["threshold_before"]
        assert files(model) == before

    def test_keeps_the_models_rate_where_none_is_given(self, model: Path, new: Path) -> None:
        told = run("calibrate", model, new, "--json").json()
        assert told["false_alarm_rate"] == 0.01
        assert "12 good images are too few for" in told["caveat"]
        assert "12 good images are too few for" in run("calibrate", model, new).stderr

    def test_from_a_category_takes_its_training_images(self, model: Path, good: Path, tmp_path: Path) -> None:
        category = tmp_path / "bolt"
        shutil.copytree(good, category / "train" / "good")
        draw_parts(category / "test" / "spot", 2, defect=True)
        told = run("calibrate", model, category, "--false-alarm-rate", 0.3, "--json").json()
        assert (told["known"], told["separate"]) == (4, 0)


class TestWords:
    def test_json_has_every_key(self, model: Path, new: Path) -> None:
        told = run("calibrate", model, new, "--false-alarm-rate", 0.1, "--pixel-rate", 0.09, "--json").json()
        assert told.keys() == KEYS
        assert told["model"] == str(model)
        assert told["changed"] is True
        assert told["promised_rate"] == pytest.approx(1 / 13)
        assert told["smallest_rate"] == pytest.approx(1 / 13)
        assert told["confidence"] == 0.95
        assert told["promised_rate"] < told["rate_at_confidence"] == pytest.approx(1 - 0.05 ** (1 / 12))
        assert "at most 7.7% of good images like these" in told["promise"]
        assert (told["separate"], told["known"], told["unusable"]) == (12, 0, [])
        assert (told["basis"], told["basis_in_words"]) == ("separate", BASES["separate"])
        assert told["pixel_rate"] == 0.09
        assert told["pixel_threshold"] <= max(read_index(model)["calibration"]["scores"])
        assert told["caveat"] is told["defects"] is None
        assert told["skipped"] == []

    def test_people_get_a_list_of_facts(self, model: Path, new: Path, defects: Path) -> None:
        ended = run("calibrate", model, new, "--false-alarm-rate", 0.09, "--defects", defects)
        assert ended.code == 0
        assert f"Calibrated {model}" in ended.stdout
        for fact in (
            "threshold",
            "(was ",
            "false alarms",
            "12 good images",
            "pixels above",
            "defects found",
            "fits both",
        ):
            assert fact in ended.stdout
        with pytest.raises(ValueError, match="Expecting value"):
            json.loads(ended.stdout)

    def test_images_the_model_has_learned_from_are_told(self, model: Path, good: Path) -> None:
        told = run("calibrate", model, good, "--false-alarm-rate", 0.3, "--json").json()
        assert (told["basis"], told["known"], told["separate"]) == ("learned", 4, 0)
        assert "new images score higher" in told["basis_in_words"]
        assert (told["guaranteed"], told["promised_rate"], told["rate_at_confidence"]) == (False, None, None)
        assert told["promise"].startswith("no false-alarm rate is guaranteed")
        assert told["threshold"] <= told["threshold_before"] * 1.001

    def test_square_brackets_in_names_are_printed_as_they_are(self, model: Path, new: Path, tmp_path: Path) -> None:
        odd = Path(shutil.copytree(model, tmp_path / "bolt [final]"))
        assert f"Calibrated {odd}" in run("calibrate", odd, new, "--false-alarm-rate", 0.1).stdout


class TestShift:
    @pytest.fixture
    def calibrated(self, model: Path, new: Path) -> Path:
        assert run("calibrate", model, new, "--false-alarm-rate", 0.1).code == 0
        return model

    def test_good_images_that_score_higher_are_said(self, calibrated: Path, tmp_path: Path) -> None:
        worn = draw_parts(tmp_path / "worn", 12, first=300, defect=True)  # every part has a spot now
        ended = run("calibrate", calibrated, worn, "--dry-run")
        assert "warning: these good images score higher than those that the threshold was set with" in ended.stderr
        assert "Check light, camera and material first. Calibrating would treat these images as normal" in ended.stderr
        told = run("calibrate", calibrated, worn, "--dry-run", "--json").json()
        shift = told["shift"]
        assert shift["is_higher"]
        assert not shift["is_expected"]
        assert shift["median"] > shift["median_before"]
        assert shift["images"] == shift["above"] == told["images"] > 5
        assert shift["images_before"] == 12
        assert f"{told['images']} of {told['images']} (100%) are above the earlier threshold" in ended.stderr

    def test_images_like_those_before_are_not(self, calibrated: Path, tmp_path: Path) -> None:
        same = draw_parts(tmp_path / "same", 12, first=400)
        ended = run("calibrate", calibrated, same, "--dry-run", "--json")
        assert not ended.json()["shift"]["is_higher"]
        assert "warning" not in run("calibrate", calibrated, same, "--dry-run").stderr

    def test_what_is_not_comparable_is_not_compared(self, calibrated: Path, new: Path, good: Path) -> None:
        assert run("calibrate", calibrated, new, "--min-area", 9, "--dry-run", "--json").json()["shift"] is None
        assert run("calibrate", calibrated, good, "--dry-run", "--json").json()["shift"] is None, "of the memory"
        assert run("calibrate", calibrated, "--threshold", 1, "--dry-run", "--json").json()["shift"] is None


class TestTradeOff:
    def test_info_shows_other_thresholds_and_what_is_missed(self, weighed: Path) -> None:
        told = run("info", weighed, "--json").json()
        shown = told["trade_off"]
        assert len(shown["rows"]) == 9
        (current,) = [row for row in shown["rows"] if row["is_current"]]
        assert current["threshold"] == shown["threshold"] == told["calibration"]["threshold"]
        assert sum(one["count"] for one in shown["missed_by_class"]) == shown["defects"] > 0
        said = run("info", weighed).stdout
        for row in shown["rows"]:
            line = next(line for line in said.splitlines() if line.strip().startswith(f"{row['threshold']:.4g} "))
            assert ("(current)" in line) == row["is_current"]
            assert f"{row['false_alarms']:.0%}" in line
            assert f"{row['missed']:.0%}" in line
            assert ("█" in line) == (max(row["false_alarms"], row["missed"]) >= 1 / 16)
        assert "missed, by contrast" in said

    def test_bars_are_ascii_where_the_terminal_is(self) -> None:
        assert bar(0.5, plain=False) == f"{'█' * 8:<16}  50%"
        assert bar(0.5, plain=True) == f"{'#' * 8:<16}  50%"
        assert bar(1, plain=False) == f"{'█' * 16} 100%"
        assert bar(1 / 128, plain=False) == f"{'▏':<16}   1%"
        assert bar(0, plain=False) == f"{'':<16}   0%"

    def test_info_of_a_model_without_synthetic_defects_has_none(self, trained: Path) -> None:
        assert run("info", trained, "--json").json()["trade_off"] is None
        assert "missed, by contrast" not in run("info", trained).stdout

    def test_no_synthetic_defect_could_be_placed(self, model: Path) -> None:
        detector = PatchSVDD.load(model, "cpu")
        assert detector.calibration is not None
        detector.calibration = replace(detector.calibration, evidence=Evidence((), (), (), ()))
        detector.save(model)
        assert run("info", model, "--json").json()["trade_off"] is None
        assert "no synthetic defect could be placed" in run("info", model).stderr
        assert run("calibrate", model, "--threshold", 1).code == 0
        assert "Missed" not in detector_card(detector, "m").facts

    def test_the_report_has_the_chart(self, weighed: Path, new: Path, tmp_path: Path) -> None:
        run("inspect", weighed, new, "--out", tmp_path / "out", "--json").json()
        page = Page(tmp_path / "out" / "index.html")
        assert "False alarms and misses over the threshold" in page.text
        known = Calibration.from_json(read_index(weighed)["calibration"])
        assert known.sentence[1:] in page.text


class TestDefects:
    def test_are_compared_with_the_good_images(self, model: Path, new: Path, defects: Path) -> None:
        told = run("calibrate", model, new, "--false-alarm-rate", 0.1, "--defects", defects, "--json").json()
        report = told["defects"]
        assert report.keys() == DEFECT_KEYS
        assert (report["images"], report["found"], report["miss_rate"]) == (3, 3, 0.0)
        assert report["miss_rate_interval"] == pytest.approx([0, 1 - 0.025 ** (1 / 3)])
        assert (report["suggested_miss_rate"], report["suggested_false_alarm_rate"]) == (0.0, 0.0)
        assert report["suggested_threshold"] > max(read_index(model)["calibration"]["scores"])
        assert told["threshold"] == read_index(model)["calibration"]["threshold"], "a suggestion changes nothing"

    def test_broken_ones_are_named_and_skipped(self, model: Path, new: Path, defects: Path, tmp_path: Path) -> None:
        mine = Path(shutil.copytree(defects, tmp_path / "mine"))
        (mine / "000.png").write_bytes(b"")
        whole = (mine / "001.png").read_bytes()
        (mine / "001.png").write_bytes(whole[: len(whole) // 2])
        ended = run("calibrate", model, new, "--defects", mine, "--json")
        told = ended.json()
        assert told["defects"]["images"] == 1
        assert len(told["skipped"]) == 2
        assert "000.png" in ended.stderr
        assert "001.png" in ended.stderr


class TestUnusableImages:
    def test_a_corrupt_image_is_named_and_skipped(self, model: Path, new: Path, tmp_path: Path) -> None:
        mine = Path(shutil.copytree(new, tmp_path / "mine"))
        whole = (mine / "003.png").read_bytes()
        (mine / "003.png").write_bytes(whole[: len(whole) // 2])
        (mine / "notes.png").write_text("not a picture")
        (mine / "notes.txt").write_text("no image by name either")
        ended = run("calibrate", model, mine, "--false-alarm-rate", 0.1, "--json")
        told = ended.json()
        assert told["images"] == 11
        assert len(told["skipped"]) == 2
        for name in ("003.png", "notes.png"):
            assert any(name in one for one in told["skipped"])
            assert name in ended.stderr
        assert ended.stderr.count("skipped:") == 2

    def test_of_a_critic_are_left_out_with_a_note(self, good: Path, new: Path, tmp_path: Path) -> None:
        brief = ("--preset", "best", *BRIEF, *NO_ESTIMATE, "--critic-steps", 1, "--fusion-share", 0.5)
        assert run("train", good, "--out", tmp_path / "critic", *brief).code == 0
        told = run("calibrate", tmp_path / "critic", good, "--false-alarm-rate", 0.5, "--json").json()
        assert told["basis"] == "held-out"
        assert len(told["unusable"]) + told["known"] == 4
        assert 0 < told["known"] < 4
        ended = run("calibrate", tmp_path / "critic", good, "--dry-run")
        assert f"{len(told['unusable'])} images were left out" in ended.stderr
        assert "critic was trained on them" in ended.stderr
        mine = tmp_path / "mine"
        mine.mkdir()
        for name in told["unusable"]:
            shutil.copy(name, mine)
        before = files(tmp_path / "critic")
        assert "give good images it has not seen" in run("calibrate", tmp_path / "critic", mine).error()
        assert files(tmp_path / "critic") == before
        assert run("calibrate", tmp_path / "critic", new, "--json").json()["basis"] == "separate"


class TestMistakes:
    """One line on stderr, exit code 1, and the model as it was."""

    @pytest.mark.parametrize("option", ["--false-alarm-rate", "--pixel-rate"])
    @pytest.mark.parametrize("rate", ["0", "1", "-0.1", "5", "nan"])
    def test_a_rate_that_is_none(self, trained: Path, new: Path, option: str, rate: str) -> None:
        before = files(trained)
        error = run("calibrate", trained, new, f"{option}={rate}").error()
        assert f"{option} is a share between 0 and 1" in error
        assert rate in error
        assert files(trained) == before

    def test_a_rate_that_is_no_number(self, trained: Path, new: Path) -> None:
        ended = run("calibrate", trained, new, "--false-alarm-rate", "few")
        assert ended.code == 2
        assert "--false-alarm-rate" in ended.stderr

    def test_paths_that_lead_nowhere(self, trained: Path, new: Path, tmp_path: Path) -> None:
        before = files(trained)
        nowhere = tmp_path / "nowhere"
        assert "no model folder" in run("calibrate", nowhere, new).error()
        assert "not a model folder" in run("calibrate", new, new).error()
        assert "there is no folder" in run("calibrate", trained, nowhere).error()
        assert "is a file" in run("calibrate", trained, new / "000.png").error()
        assert "there is no folder" in run("calibrate", trained, new, "--defects", nowhere).error()
        nowhere.mkdir()
        assert "there is no image" in run("calibrate", trained, nowhere).error()
        assert "no usable image among the defects" in run("calibrate", trained, new, "--defects", nowhere).error()
        assert files(trained) == before

    def test_a_folder_with_defects_beside_good_ones(self, trained: Path, new: Path, tmp_path: Path) -> None:
        shutil.copytree(new, tmp_path / "test" / "good")
        draw_parts(tmp_path / "test" / "spot", 1, defect=True)
        error = run("calibrate", trained, tmp_path / "test").error()
        assert "spot next to good" in error

    def test_a_damaged_model(self, model: Path, new: Path) -> None:
        index = json.loads((model / INDEX).read_bytes())
        (model / INDEX).write_text(json.dumps(index | {"calibration": None}))
        before = files(model)
        assert "checksum" in run("calibrate", model, new).error()
        assert files(model) == before

    def test_a_model_of_an_earlier_version(self, model: Path, new: Path) -> None:
        detector = PatchSVDD.load(model, "cpu")
        for name in ("digests", "held_out"):
            del detector.provenance["data"][name]
        detector.save(model)
        assert "train it again" in run("calibrate", model, new).error()


@pytest.mark.slow
def test_ctrl_c_leaves_the_model_as_it_was(model: Path, new: Path, tmp_path: Path) -> None:
    before, begun = files(model), tmp_path / "begun"
    process = start("calibrate", model, new, "--false-alarm-rate", 0.2, before=SLOWLY, BEGUN=str(begun))
    deadline = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < deadline, "it has not begun"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert ended.code == 130
    assert "interrupted" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert files(model) == before
    assert run("calibrate", model, new, "--false-alarm-rate", 0.2, "--json").json()["changed"]


class TestAim:
    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A model with a balanced threshold. Tests share it: copy it first to change it."""
        folder = tmp_path_factory.mktemp("balanced")
        good, out = draw_parts(folder / "good", 6), folder / "model"
        made = run("train", good, "--out", out, *QUICK, "--aim", "balanced", "--synthetic-defects", 24, "--json").json()
        assert made["aim"] == "balanced"
        assert made["synthetic_defects"] >= 20
        return out

    @pytest.fixture
    def balanced(self, trained: Path, tmp_path: Path) -> Path:
        """A copy of the model."""
        return Path(shutil.copytree(trained, tmp_path / "model"))

    def test_is_chosen_from_stored_scores(self, balanced: Path) -> None:
        before = read_index(balanced)["calibration"]
        changed = run("calibrate", balanced, "--aim", "few-misses", "--json").json()
        assert changed["aim"] == "few-misses"
        assert changed["threshold"] <= changed["threshold_before"] == before["threshold"]
        assert read_index(balanced)["calibration"]["threshold"] == changed["threshold"]
        assert sum(one["count"] for one in changed["missed_by_class"]) == changed["synthetic_defects"]
        visible = [one for one in changed["missed_by_class"] if one["contrast"] != "faint"]
        if sum(one["count"] for one in visible) < 16:  # too few to leave the faint ones out
            visible = changed["missed_by_class"]
        assert sum(one["count"] for one in visible) == changed["visible_defects"]
        assert sum(one["missed"] for one in visible) == round(
            changed["estimated_miss_rate"] * changed["visible_defects"]
        )

    def test_is_shown_with_both_errors(self, balanced: Path) -> None:
        shown = run("info", balanced)
        words = " ".join(shown.stdout.split())
        assert "with the aim balanced" in words
        assert "synthetic defects" in words
        assert "threshold false alarms missed synthetic defects" in words
        assert "(current)" in words
        ended = run("calibrate", balanced, "--aim", "balanced", "--dry-run")
        assert "false alarms and misses at" in " ".join(ended.stdout.split())

    def test_a_dry_run_changes_nothing(self, balanced: Path) -> None:
        before = files(balanced)
        run("calibrate", balanced, "--aim", "few-alarms", "--dry-run")
        assert files(balanced) == before

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ((), "give a folder of good images, --reviews, --aim, --false-alarm-rate or --threshold"),
            (("--aim", "both"), "choose one of balanced, few-alarms, few-misses; got 'both'"),
            (("--aim", "balanced", "--min-area", "4"), "require a folder of good images"),
        ],
    )
    def test_bad_options(self, balanced: Path, options: tuple[str, ...], words: str) -> None:
        ended = run("calibrate", balanced, *options)
        assert ended.code == 2
        assert words in " ".join(ended.stderr.replace("│", " ").split())

    def test_misses_are_not_known_if_no_defect_could_be_drawn(self) -> None:
        known = calibrate([1.0, 2.0, 3.0], 0.5, "held-out", "balanced", Evidence((1.5,), (), (), ()))
        assert aim_facts(known) == {"aim": "few-alarms", "missed": "not known: no synthetic defect could be placed"}
        assert misses_to_json(known) == {
            "estimated_miss_rate": None,
            "synthetic_defects": 0,
            "visible_defects": 0,
            "missed_by_class": [],
        }

    def test_a_model_without_synthetic_defects(self, tmp_path: Path) -> None:
        good = draw_parts(tmp_path / "good", 4)
        assert run("train", good, "--out", tmp_path / "model", *QUICK).code == 0
        ended = run("calibrate", tmp_path / "model", "--aim", "balanced")
        assert ended.code == 1
        assert "requires scores of synthetic defects" in ended.stderr
