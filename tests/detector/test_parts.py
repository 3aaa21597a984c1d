"""Parts with several views, inspected by real models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.parts import PartInspector, read_part
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.detector.threshold_choice import choose_threshold
from support.parts import TINY, draw_part

Pictures = dict[str, NDArray[np.uint8]]
VIEWS = ("top", "side")


def part(number: int, *, defect: str | None = None) -> Pictures:
    """The two images of a part; the side shows other stripes."""
    pictures = {view: draw_part(1000 * place + number, defect=view == defect) for place, view in enumerate(VIEWS)}
    pictures["side"] = pictures["side"][:, :, ::-1].copy()
    return pictures


GOOD = {f"{number:03}": part(number) for number in range(100, 108)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two stored models, each calibrated with images that it has not seen. Tests share them: change nothing."""
    root = tmp_path_factory.mktemp("models")
    for view in VIEWS:
        learned = [part(number)[view] for number in range(3)]
        model = PatchSVDD.fit(learned, preset="encoder", device="cpu", encoder="random", **TINY)
        recalibrate(model, [part(number)[view] for number in range(20, 26)], 0.1)
        model.save(root / view)
    return {view: root / view for view in VIEWS}


@pytest.fixture(scope="module")
def models(folders: Mapping[str, Path]) -> dict[str, PatchSVDD]:
    return {view: PatchSVDD.load(folder, "cpu") for view, folder in folders.items()}


@pytest.fixture(scope="module")
def inspector(models: Mapping[str, PatchSVDD]) -> PartInspector:
    """Two views calibrated with eight parts. Tests share it: change nothing."""
    found = PartInspector(models)
    found.calibrate(GOOD, 0.1)
    return found


class TestCalibrate:
    def test_scores_every_view_of_every_part(self, models: Mapping[str, PatchSVDD]) -> None:
        inspector, seen = PartInspector(models), list[tuple[int, int]]()
        done = inspector.calibrate(GOOD, 0.1, on_progress=lambda *progress: seen.append(progress))
        assert inspector.calibration is done.calibration
        assert (done.known, done.copies, done.unusable) == ((), (), ())
        assert done.calibration.parts == tuple(GOOD)
        assert done.calibration.identities == {view: model.identity for view, model in models.items()}
        for view in done.calibration.views:
            expected = [models[view.view].inspect(pictures[view.view]).score for pictures in GOOD.values()]
            assert view.scores == pytest.approx(expected, rel=1e-5)
        assert seen == [(number, 8) for number in range(1, 9)]

    def test_parts_that_a_model_knows_are_left_out_by_name(self, models: Mapping[str, PatchSVDD]) -> None:
        trained, calibrated = part(0), {"top": part(200)["top"], "side": part(20)["side"]}
        done = PartInspector(models).calibrate({**GOOD, "trained": trained, "calibrated": calibrated}, 0.1)
        assert done.known == ("trained", "calibrated")
        assert done.calibration.parts == tuple(GOOD)

    def test_copies_count_once(self, models: Mapping[str, PatchSVDD]) -> None:
        again = {"top": GOOD["103"]["top"], "side": part(200)["side"]}
        done = PartInspector(models).calibrate({**GOOD, "again": again}, 0.1)
        assert done.copies == ("again",)

    def test_only_known_parts_are_refused(self, models: Mapping[str, PatchSVDD]) -> None:
        with pytest.raises(
            DatasetError, match="the models know 2 of the 2 parts, as '0': they were trained or calibra"
        ):
            PartInspector(models).calibrate({str(number): part(number) for number in range(2)}, 0.1)

    def test_a_part_without_a_view_is_refused_by_name(self, models: Mapping[str, PatchSVDD]) -> None:
        with pytest.raises(DatasetError, match="the part '9' has no image of the view 'side'"):
            PartInspector(models).calibrate({**GOOD, "9": {"top": part(9)["top"]}}, 0.1)

    def test_a_part_that_cannot_be_read_is_left_out(self, models: Mapping[str, PatchSVDD]) -> None:
        parts: dict[str, Any] = {**GOOD, "bad": {**part(9), "side": np.zeros((64, 64, 7))}}
        with pytest.raises(ImageError, match="bad side"):
            PartInspector(models).calibrate(parts, 0.1)
        problems: list[tuple[str, str]] = []
        done = PartInspector(models).calibrate(
            parts, 0.1, on_error=lambda number, view, _: problems.append((number, view))
        )
        assert (done.unusable, problems) == (("bad",), [("bad", "side")])

    def test_models_that_are_not_saved_are_refused(self, models: Mapping[str, PatchSVDD]) -> None:
        unsaved = PatchSVDD(models["top"].config, models["top"].learned, models["top"].device)
        with pytest.raises(ModelError, match="model of the view 'top' is not saved"):
            PartInspector({"top": unsaved}).calibrate({"1": {"top": part(1)["top"]}}, 0.1)

    def test_the_views_alone_give_limits_too(self, models: Mapping[str, PatchSVDD]) -> None:
        inspector = PartInspector(models)
        found = inspector.calibrate_from_views(0.4)
        assert (found.basis, found.parts, inspector.calibration) == ("views", (), found)
        assert found.rate == pytest.approx(2 / 7)
        assert inspector.inspect(part(50, defect="side")).verdict == "anomalous"


class TestInspect:
    def test_a_defect_in_either_view_is_found(self, inspector: PartInspector) -> None:
        for defect in VIEWS:
            found = inspector.inspect(part(50, defect=defect))
            assert (found.verdict, found.missing) == ("anomalous", ())
            assert found.p_value == pytest.approx(1 / 9)
            assert max(found.judgement.relative, key=lambda view: found.judgement.relative[view]) == defect
            assert found.inspections[defect].regions

    def test_most_good_parts_are_good(self, inspector: PartInspector) -> None:
        found = [inspector.inspect(part(number)) for number in range(300, 308)]
        assert sum(one.verdict == "good" for one in found) >= 5
        assert all((one.score or 0) <= 1 for one in found if one.verdict == "good")

    def test_a_missing_view_is_incomplete_unless_the_other_decides(self, inspector: PartInspector) -> None:
        good, bad = part(300), part(50, defect="top")
        found = inspector.inspect({"top": good["top"]})
        assert (found.verdict, found.missing, list(found.inspections)) == ("incomplete", ("side",), ["top"])
        assert inspector.inspect({"top": bad["top"]}).verdict == "anomalous"
        assert inspector.inspect({}).verdict == "incomplete"

    def test_a_view_that_cannot_be_read_is_missing(self, inspector: PartInspector) -> None:
        images: dict[str, Any] = {**part(300), "side": np.zeros((64, 64, 7))}
        with pytest.raises(ImageError, match="17 side: "):
            inspector.inspect(images, part="17")
        problems: list[str] = []
        found = inspector.inspect(images, part="17", on_error=lambda *problem: problems.append(str(problem[2])))
        assert (found.verdict, found.missing) == ("incomplete", ("side",))
        assert problems[0].startswith("17 side: ")

    def test_views_without_model_and_parts_without_limits_are_refused(
        self, inspector: PartInspector, models: Mapping[str, PatchSVDD]
    ) -> None:
        with pytest.raises(ConfigError, match="no view 'back'; its views are top, side"):
            inspector.inspect({"back": part(1)["top"]})
        with pytest.raises(ConfigError, match="no limits yet"):
            PartInspector(models).inspect(part(1))


class TestStored:
    def test_gives_the_same_verdicts(
        self, inspector: PartInspector, folders: Mapping[str, Path], tmp_path: Path
    ) -> None:
        inspector.save(tmp_path / "part.json", folders)
        loaded = PartInspector.load(tmp_path / "part.json", "cpu")
        assert loaded.calibration == inspector.calibration
        for pictures in (part(300), part(50, defect="side")):
            assert loaded.inspect(pictures).judgement == inspector.inspect(pictures).judgement

    def test_names_models_relative_to_itself(self, inspector: PartInspector, folders: Mapping[str, Path]) -> None:
        path = folders["top"].parent / "part.json"
        inspector.save(path, folders)
        assert json.loads(path.read_text())["models"] == {"top": "top", "side": "side"}
        path.unlink()

    def test_a_model_that_was_changed_since_is_refused(
        self, inspector: PartInspector, folders: Mapping[str, Path], models: Mapping[str, PatchSVDD], tmp_path: Path
    ) -> None:
        changed = dict(folders) | {"side": tmp_path / "side"}
        shutil.copytree(folders["side"], tmp_path / "side")
        inspector.save(tmp_path / "part.json", changed)
        choose_threshold(tmp_path / "side", threshold=5.0)
        with pytest.raises(ModelError, match=r"the view 'side' was changed since .* patchsvdd part calibrate"):
            PartInspector.load(tmp_path / "part.json", "cpu")
        stored = read_part(tmp_path / "part.json")
        stored.require({view: model.identity for view, model in models.items()})
        with pytest.raises(ModelError, match="no model for the view 'side'"):
            stored.require({"top": models["top"].identity})

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (None, "there is no part file"),
            ("{", "cannot be read"),
            ("{}", "is no part file"),
            ('{"format": "patchsvdd part", "format_version": 9}', "has format version 9"),
        ],
    )
    def test_a_file_that_is_none_is_refused(self, tmp_path: Path, content: str | None, problem: str) -> None:
        if content is not None:
            (tmp_path / "part.json").write_text(content)
        with pytest.raises(ModelError, match=problem):
            read_part(tmp_path / "part.json")

    def test_an_altered_file_is_refused(
        self, inspector: PartInspector, folders: Mapping[str, Path], tmp_path: Path
    ) -> None:
        path = tmp_path / "part.json"
        inspector.save(path, folders)
        assert inspector.calibration is not None
        limit = json.dumps(inspector.calibration.views[0].limit)
        path.write_text(path.read_text().replace(limit, "99.5"))
        with pytest.raises(ModelError, match="its checksum does not match"):
            read_part(path)
