from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.memory_update import add_images, undo
from patchsvdd.detector.model_folder import read_index, read_model
from patchsvdd.evaluation.acceptance.acceptance import accept
from patchsvdd.evaluation.acceptance.record import FOLDER, last_acceptance, read_record
from patchsvdd.evaluation.acceptance.result import Acceptance
from patchsvdd.images.image_set import digest_of_pixels, load_image
from support.command_line import files
from support.html import NASTY, Page
from support.parts import draw_part, save_picture


@pytest.fixture
def model(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "part"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Good images, two kinds of defects, and three shots of each of two parts."""
    folder = tmp_path / "photos"
    for seed in range(5):
        save_picture(folder / "good" / f"{seed}.png", draw_part(50 + seed))
    for seed in range(3):
        save_picture(folder / "defects" / "square" / f"{seed}.png", draw_part(60 + seed, defect=True))
        save_picture(folder / "defects" / "deep" / f"{seed}.png", draw_part(70 + seed, defect=True))
        save_picture(folder / "repeats" / "part 1" / f"{seed}.png", draw_part(80 + seed))
        save_picture(folder / "repeats" / "part 2" / f"{seed}.png", draw_part(90 + seed, defect=True))
    return folder


def write_verdicts(path: Path, rows: list[str], head: str = "image,inspector,verdict") -> Path:
    path.write_text("\n".join([head, *rows]), encoding="utf-8")
    return path


def outcome(model: Path, photos: Path, **more: Any) -> Acceptance:
    return accept(model, good=photos / "good", defects=photos / "defects", device="cpu", **more)


def verdicts_of(photos: Path, **missed: str) -> list[str]:
    """Right verdicts of two inspectors, except of those named with an image: B="square/1.png"."""
    rows = []
    for inspector in ("A", "B"):
        for folder in ("good", "defects"):
            for path in sorted((photos / folder).rglob("*.png")):
                name = path.relative_to(photos / folder).as_posix()
                verdict = "good" if folder == "good" or missed.get(inspector) == name else "defect"
                rows.append(f"{folder}/{name},{inspector},{verdict}")
    return rows


class TestRates:
    def test_counts_are_those_of_single_inspections(self, model: Path, photos: Path) -> None:
        detector = PatchSVDD.load(model, "cpu")
        result = outcome(model, photos, save=False)
        verdicts = {one.name: one.is_anomalous for one in result.images}
        assert len(verdicts) == 11
        for name, is_anomalous in verdicts.items():
            assert detector.inspect(photos / name).is_anomalous == is_anomalous
        assert result.misses is not None
        assert result.false_rejects is not None
        missed = [name for name, found in verdicts.items() if name.startswith("defects/") and not found]
        assert (result.misses.hits, result.misses.trials) == (len(missed), 6)
        assert {kind: one.trials for kind, one in result.misses_by_kind.items()} == {"deep": 3, "square": 3}
        assert result.false_rejects.trials == 5
        assert [one.name for one in result.missed] == sorted(missed, key=[one.name for one in result.missed].index)
        assert result.threshold == detector.threshold
        assert not (model / FOLDER).exists()

    def test_images_that_prove_nothing_are_left_out(self, model: Path, photos: Path, good_folder: Path) -> None:
        shutil.copy(good_folder / "001.png", photos / "good" / "trained.png")
        shutil.copy(photos / "good" / "0.png", photos / "good" / "copy.png")
        (photos / "good" / "broken.png").write_bytes(b"no image")
        cut = (photos / "good" / "1.png").read_bytes()
        (photos / "good" / "cut.png").write_bytes(cut[: len(cut) // 2])
        errors: list[ImageError] = []
        result = outcome(model, photos, save=False, on_error=errors.append)
        assert result.false_rejects is not None
        assert result.false_rejects.trials == 5
        reasons = {one.name: one.reason for one in result.left_out}
        assert reasons["good/trained.png"] == "the model was trained on this image"
        assert reasons["good/copy.png"] == "it is a copy of 'good/0.png'"
        assert {"good/broken.png", "good/cut.png"} < reasons.keys()
        assert len(errors) == 2

    def test_calibration_images_and_taught_defects_are_known(self) -> None:
        from patchsvdd.evaluation.acceptance.tested_images import known_digests

        reasons = known_digests({"data": {"digests": ["a"]}}, ["a", "b"], ["c"])
        assert reasons["a"] == "the model was trained on this image"
        assert "calibrated" in reasons["b"]
        assert "taught" in reasons["c"]

    def test_taught_defects_are_left_out(self, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        taught = load_image(photos / "defects" / "deep" / "1.png", PatchSVDD.load(model, "cpu").config)
        index = {**read_index(model), "defects": [{"digest": digest_of_pixels(taught.tensor)}]}
        monkeypatch.setattr("patchsvdd.evaluation.acceptance.acceptance.read_index", lambda _: index)
        result = outcome(model, photos, save=False)
        assert [(one.name, one.reason) for one in result.left_out] == [
            ("defects/deep/1.png", "the model was taught this defect")
        ]

    def test_images_that_set_the_threshold_are_left_out(self, model: Path, photos: Path) -> None:
        from patchsvdd import recalibrate_model

        recalibrate_model(model, photos / "good", device="cpu")
        with pytest.raises(DatasetError, match=r"all 5 are left out.*calibrated with this image"):
            outcome(model, photos, save=False)

    def test_an_error_is_raised_without_a_place_for_it(self, model: Path, photos: Path) -> None:
        (photos / "good" / "broken.png").write_bytes(b"no image")
        with pytest.raises(ImageError, match=r"broken\.png"):
            outcome(model, photos, save=False)

    def test_an_image_cannot_be_good_and_a_defect(self, model: Path, photos: Path) -> None:
        shutil.copy(photos / "good" / "2.png", photos / "defects" / "deep" / "9.png")
        with pytest.raises(DatasetError, match=r"'good/2\.png' and 'defects/deep/9\.png' are the same image"):
            outcome(model, photos, save=False)

    def test_a_folder_of_test_images_is_no_folder_of_defects(self, model: Path, photos: Path) -> None:
        shutil.copytree(photos / "good", photos / "defects" / "good")
        with pytest.raises(DatasetError, match="has a folder of good images"):
            outcome(model, photos, save=False)

    def test_without_a_folder_there_is_nothing_to_test(self, model: Path) -> None:
        with pytest.raises(ConfigError, match="nothing to test"):
            accept(model)

    def test_a_model_without_threshold_cannot_be_tested(self, tmp_path: Path, photos: Path, good_folder: Path) -> None:
        detector = PatchSVDD.load(without_threshold(tmp_path, good_folder), "cpu")
        assert detector.calibration is None
        with pytest.raises(ConfigError, match="has no threshold to test"):
            outcome(tmp_path / "uncalibrated", photos)


def without_threshold(folder: Path, good: Path) -> Path:
    from support.parts import TINY

    detector = PatchSVDD.fit(good, preset="encoder", device="cpu", **TINY)
    detector.calibration = None
    detector.save(folder / "uncalibrated")
    return folder / "uncalibrated"


class TestRepeats:
    def test_shots_are_grouped_by_part(self, model: Path, photos: Path) -> None:
        result = accept(model, repeats=photos / "repeats", device="cpu", save=False)
        assert result.repeats is not None
        assert [(part.name, len(part.scores)) for part in result.repeats.parts] == [("part 1", 3), ("part 2", 3)]
        assert result.misses is None
        assert result.kappa is None

    def test_copies_are_no_repeated_shots(self, model: Path, photos: Path) -> None:
        for number in range(2):
            save_picture(photos / "repeats" / "part 3" / f"{number}.png", draw_part(99))
        result = accept(model, repeats=photos / "repeats", device="cpu", save=False)
        assert result.too_few_shots == ("part 3",)
        assert [one.name for one in result.left_out] == ["repeats/part 3/1.png"]
        for part in ("part 1", "part 2"):
            shutil.rmtree(photos / "repeats" / part)
        with pytest.raises(DatasetError, match=r"no part in .* has two different shots"):
            accept(model, repeats=photos / "repeats", device="cpu", save=False)

    def test_shots_of_no_part_are_an_error(self, model: Path, photos: Path) -> None:
        save_picture(photos / "repeats" / "loose.png", draw_part(99))
        with pytest.raises(DatasetError, match="put the shots of each part in a subfolder"):
            accept(model, repeats=photos / "repeats", save=False)

    def test_a_shot_may_also_be_a_good_image(self, model: Path, photos: Path) -> None:
        shutil.copy(photos / "good" / "0.png", photos / "repeats" / "part 1" / "same.png")
        result = outcome(model, photos, repeats=photos / "repeats", save=False)
        assert result.left_out == ()


class TestInspectors:
    def test_the_model_is_compared_with_everyone(self, model: Path, photos: Path, tmp_path: Path) -> None:
        path = write_verdicts(tmp_path / "verdicts.csv", verdicts_of(photos, B="square/1.png"))
        result = outcome(model, photos, inspectors=path, save=False)
        assert result.inspectors is not None
        study = {one.name: one for one in result.inspectors.against}
        assert (study["A"].right.hits, study["B"].right.hits, study["B"].misses.hits) == (11, 10, 1)
        assert study["model"].kappa == pytest.approx(result.kappa)
        assert result.inspectors.between is not None
        assert result.inspectors.between.same.hits == 10
        assert result.settings["inspectors"]["sha256"]

    def test_names_of_images_may_be_short(self, model: Path, photos: Path, tmp_path: Path) -> None:
        rows = ["3.png;A;GOOD", "good/4.png;A;good", f"{photos}/defects/deep/0.png;A;defect", "square\\1.png;A;Defect"]
        path = write_verdicts(tmp_path / "verdicts.csv", rows, "Image;Inspector;Verdict")
        result = outcome(model, photos, inspectors=path, save=False)
        assert result.inspectors is not None
        assert (result.inspectors.images, result.inspectors.defects) == (4, 2)
        assert result.inspectors.between is None

    def test_verdicts_about_left_out_images_do_not_count(
        self, model: Path, photos: Path, tmp_path: Path, good_folder: Path
    ) -> None:
        shutil.copy(good_folder / "001.png", photos / "good" / "trained.png")
        path = write_verdicts(tmp_path / "verdicts.csv", verdicts_of(photos))
        result = outcome(model, photos, inspectors=path, save=False)
        assert result.ignored_judgements == 2
        assert result.inspectors is not None
        assert result.inspectors.images == 11

    @pytest.mark.parametrize(
        ("head", "rows", "said"),
        [
            ("image,inspector", ["a,A"], "no column 'verdict'; it needs image, inspector and verdict.*got image"),
            ("", [], "no column 'image'.*an empty file"),
            ("image,inspector,verdict", [], "has no verdict"),
            ("image,inspector,verdict", ["good/0.png,A,bad"], "row 2: the verdict must be good or defect; got 'bad'"),
            ("image,inspector,verdict", ["good/0.png,,good"], "row 2: 'inspector' is empty"),
            ("image,inspector,verdict", ["good/0.png,Model,good"], "cannot be named 'model'"),
            ("image,inspector,verdict", ["good/77.png,A,good"], "row 2: the model did not inspect 'good/77.png'"),
            ("image,inspector,verdict", ["0.png,A,good"], "row 2: '0.png' can be 'good/0.png' or 'defects/deep/0.png'"),
            ("image,inspector,verdict", ["good/0.png,A,good"] * 2, "rows 2 and 3: A judges 'good/0.png' twice"),
            (
                "image,inspector,verdict",
                ["good/0.png,A,good", "good/1.png,A,good", "good/0.png,B,good"],
                "B did not judge 'good/1.png'; every inspector must judge the same images",
            ),
            (
                "image,inspector,verdict,trial",
                ["good/0.png,A,good,1", "good/0.png,A,good,2", "good/1.png,A,good,1"],
                "A did not judge 'good/1.png' in trial 2",
            ),
        ],
    )
    def test_a_file_that_cannot_be_used_is_an_error(
        self, model: Path, photos: Path, tmp_path: Path, head: str, rows: list[str], said: str
    ) -> None:
        with pytest.raises(DatasetError, match=said):
            outcome(model, photos, inspectors=write_verdicts(tmp_path / "verdicts.csv", rows, head), save=False)

    def test_a_file_in_another_encoding_is_an_error(self, model: Path, photos: Path, tmp_path: Path) -> None:
        path = tmp_path / "verdicts.csv"
        path.write_bytes("image,inspector,verdict\ngood/0.png,Jürgen,good".encode("latin-1"))
        with pytest.raises(DatasetError, match="UTF-8"):
            outcome(model, photos, inspectors=path, save=False)
        with pytest.raises(DatasetError, match="cannot be read"):
            outcome(model, photos, inspectors=tmp_path / "none.csv", save=False)

    def test_inspectors_need_both_folders(self, model: Path, photos: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="`inspectors` needs `good` and `defects`"):
            accept(model, good=photos / "good", inspectors=tmp_path / "verdicts.csv")


class TestRecord:
    def test_it_holds_everything_and_changes_nothing(self, model: Path, photos: Path, tmp_path: Path) -> None:
        before, index = files(model), read_index(model)
        result = outcome(model, photos, require=["miss<=90%"], out=tmp_path / "out")
        after = files(model)
        assert {name: after[name] for name in before} == before
        names = sorted(after.keys() - before.keys())
        assert [Path(name).suffix for name in names] == [".html", ".json", ".pdf"]
        record = read_record(model / names[1])
        assert record["model"]["identity"] == index["identity"]
        assert len(record["images"]) == 11
        assert all(len(one["sha256"]) == 64 for one in record["images"])
        assert record["misses"]["of"] == 6
        assert record["settings"]["good"] == str(photos / "good")
        assert record["requirements"][0]["limit"] == "miss<=90%"
        assert result.files is not None
        assert result.files.page == tmp_path / "out" / "acceptance.html"
        assert read_record(result.files.record)["images"] == record["images"]
        assert read_model(model).identity == index["identity"]

    def test_loading_updating_and_copying_ignore_it(self, model: Path, photos: Path) -> None:
        outcome(model, photos)
        stored = files(model / FOLDER)
        identity = read_index(model)["identity"]
        save_picture(photos / "more" / "new.png", draw_part(111))
        add_images(model, photos / "more")
        last = last_acceptance(model, read_index(model)["identity"])
        assert last is not None
        assert not last.is_same_model
        assert "the model has changed since then" in last.words
        undo(model)
        last = last_acceptance(model, identity)
        assert last is not None
        assert last.is_same_model
        PatchSVDD.load(model, "cpu").save(model)
        assert files(model / FOLDER) == stored

    def test_an_altered_record_or_report_is_noticed(self, model: Path, photos: Path) -> None:
        result = outcome(model, photos)
        assert result.files is not None
        path = result.files.record
        read_record(path)
        result.files.page.write_text("another page")
        with pytest.raises(ModelError, match=r"report .* was altered"):
            read_record(path)
        record = json.loads(path.read_text())
        record["misses"]["hits"] = 0
        record["misses"]["of"] = 1000
        path.write_text(json.dumps(record))
        with pytest.raises(ModelError, match="its checksum does not match"):
            read_record(path, reports=False)
        last = last_acceptance(model, result.identity)
        assert last is not None
        assert "cannot be used" in last.words
        assert last.to_json()["problem"]

    def test_files_that_are_no_records_are_errors(self, tmp_path: Path) -> None:
        path = tmp_path / "record.json"
        for content, said in (
            ("{", "is damaged"),
            ("[]", "no record"),
            ('{"format": "patchsvdd acceptance", "format_version": 2}', "newer version"),
        ):
            path.write_text(content)
            with pytest.raises(ModelError, match=said):
                read_record(path)

    def test_without_a_test_there_is_no_last_one(self, model: Path) -> None:
        assert last_acceptance(model, "any") is None

    def test_without_reportlab_there_is_no_pdf(
        self, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("patchsvdd.evaluation.acceptance.reports.find_spec", lambda _: None)
        result = outcome(model, photos)
        assert result.files is not None
        assert result.files.pdf is None
        assert list(read_record(result.files.record)["files"]) == ["html"]


class TestReports:
    def test_the_page_says_it_all_in_one_file(self, model: Path, photos: Path, tmp_path: Path) -> None:
        for seed in range(12):  # some of them look good to a model that was trained for two steps
            save_picture(photos / "defects" / "faint" / f"{seed}.png", draw_part(120 + seed))
        result = outcome(
            model,
            photos,
            repeats=photos / "repeats",
            inspectors=write_verdicts(tmp_path / "verdicts.csv", verdicts_of(photos)),
            require=["miss<=90%", "kappa>=0.99"],
            claim=["false-reject<=1%"],
        )
        assert result.files is not None
        assert result.files.pdf is not None
        page = Page(result.files.page)
        for words in (
            "Requirements",
            "missed: faint",
            "What the images prove",
            "Repeated shots",
            "Inspectors",
            "part 2",
        ):
            assert words in page.text
        assert result.missed
        assert "defects/faint/" in page.text
        sources = [one["src"] or "" for one in page.all("img")]
        assert len(sources) == len(result.missed) + len(result.rejected)
        assert all(one.startswith("data:image/jpeg;base64,") for one in sources)
        assert "http://" not in result.files.page.read_text(encoding="utf-8")
        assert result.files.pdf.read_bytes().startswith(b"%PDF-")

    def test_names_are_escaped(self, model: Path, photos: Path) -> None:
        for seed in range(12):
            save_picture(photos / "defects" / NASTY.replace("\\", "") / f"{seed}.png", draw_part(120 + seed))
        result = outcome(model, photos)
        assert result.files is not None
        page = Page(result.files.page)
        assert not page.all("b")
        assert NASTY.replace("\\", "") in page.text
