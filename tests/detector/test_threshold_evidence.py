"""Evidence for a threshold: variation and synthetic defects, scored as new images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError, DatasetError
from patchsvdd.core.roi import Roi
from patchsvdd.critic.graded_defects import FAINTEST, SMALLEST, GradedDefects, vary
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.memory_update import undo
from patchsvdd.detector.recalibration import recalibrate, recalibrate_model
from patchsvdd.detector.threshold_choice import choose_threshold
from patchsvdd.detector.threshold_evidence import counts, gather_evidence
from patchsvdd.scoring.calibration import calibrate
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.repeated_search import RepeatedSearch
from patchsvdd.scoring.trade_off import Evidence, curve
from support.parts import TINY, TINY_CRITIC, draw_part, save_picture

BALANCED: dict[str, Any] = {**TINY, "aim": "balanced", "synthetic_defects": 30}
GOOD = [draw_part(seed) for seed in range(10)]


@pytest.fixture(scope="module")
def balanced() -> PatchSVDD:
    return PatchSVDD.fit(GOOD, preset="best", device="cpu", **{**BALANCED, **TINY_CRITIC})


@pytest.fixture
def model(balanced: PatchSVDD, tmp_path: Path) -> Path:
    balanced.save(tmp_path / "model")
    return tmp_path / "model"


def pixels(count: int = 6) -> torch.Tensor:
    return torch.stack([torch.from_numpy(draw_part(seed)).permute(2, 0, 1) for seed in range(count)])


def scratched(seed: int) -> NDArray[np.uint8]:
    """A part with scratches of its own, so that copies can be told from similar parts."""
    random = np.random.default_rng(1000 + seed)
    picture = draw_part(seed, (160, 160)).astype(np.float64)
    for _ in range(40):
        top, left = random.integers(0, 148, 2)
        picture[top : top + random.integers(2, 12), left : left + random.integers(2, 12)] += random.normal(0, 25)
    return picture.clip(0, 255).astype(np.uint8)


class TestGradedDefects:
    def test_have_the_contrast_and_extent_that_is_stated(self) -> None:
        good = pixels()
        drawn = GradedDefects.draw(good.repeat(8, 1, 1, 1), good, torch.Generator().manual_seed(0))
        assert len(drawn.images) > 30
        assert drawn.images.dtype == torch.uint8
        assert float(drawn.contrasts.min()) >= FAINTEST - 1e-3
        assert float(drawn.contrasts.max()) > 3 * float(drawn.contrasts.min())
        assert int(drawn.masks.sum((1, 2)).min()) >= SMALLEST
        assert {source % len(good) for source in drawn.sources.tolist()} == set(range(len(good)))

    def test_same_seed_same_defects(self) -> None:
        first, second = (GradedDefects.draw(pixels(), pixels(), torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(first.images, second.images)

    def test_varied_images_stay_close(self) -> None:
        good = pixels()
        images = vary(good, good, torch.Generator().manual_seed(0))
        change = (images.float() - good.float()).abs().mean((1, 2, 3))
        assert bool((change > 0).all())
        assert float(change.max()) < 15


class TestTraining:
    def test_keeps_what_the_threshold_is_based_on(self, balanced: PatchSVDD) -> None:
        calibration = balanced.calibration
        assert calibration is not None
        assert calibration.aim == "balanced"
        assert calibration.evidence is not None
        assert len(calibration.evidence.good) >= 10
        assert len(calibration.evidence.defects) >= 25
        assert calibration.region_level is not None
        assert 0 < calibration.miss_rate < 1  # type: ignore[operator]

    def test_is_repeatable_and_survives_saving(self, balanced: PatchSVDD, model: Path) -> None:
        again = PatchSVDD.fit(GOOD, preset="best", device="cpu", **{**BALANCED, **TINY_CRITIC})
        assert again.calibration == balanced.calibration
        assert PatchSVDD.load(model, "cpu").calibration == balanced.calibration

    def test_the_aim_changes_the_threshold_alone(self, balanced: PatchSVDD) -> None:
        few_alarms = PatchSVDD.fit(GOOD, preset="best", device="cpu", **{**TINY, **TINY_CRITIC})
        assert few_alarms.calibration is not None
        assert balanced.calibration is not None
        assert few_alarms.calibration.scores == balanced.calibration.scores
        assert few_alarms.calibration.evidence is None

    @pytest.mark.parametrize("settings", [{}, {"memory": "50%"}, {"position_normalization": True}], ids=str)
    def test_without_a_critic(self, settings: dict[str, Any]) -> None:
        detector = PatchSVDD.fit(GOOD[:5], preset="encoder", device="cpu", **{**BALANCED, **settings})
        assert detector.calibration is not None
        assert detector.calibration.evidence is not None

    def test_a_memory_without_weight_is_not_searched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = {**BALANCED, **TINY_CRITIC, "fusion_share": 0.0}
        with monkeypatch.context() as patched:
            patched.setattr(MapBuilder, "ignores_memory", False)
            searched = PatchSVDD.fit(GOOD, preset="best", device="cpu", **settings)
        monkeypatch.setattr(RepeatedSearch, "patch_distances", None)
        detector = PatchSVDD.fit(GOOD, preset="best", device="cpu", **settings)
        assert detector.calibration == searched.calibration
        done = recalibrate(detector, [draw_part(seed) for seed in range(40, 52)], aim="balanced")
        assert done.calibration.evidence is not None
        assert done.calibration.evidence.defects

    def test_an_aim_that_does_not_exist(self) -> None:
        with pytest.raises(ConfigError, match="`aim` must be one of"):
            PatchSVDD.fit(GOOD[:4], device="cpu", **{**TINY, "aim": "best"})


class TestBadImages:
    @pytest.mark.parametrize("preset", ["encoder", "best"])
    def test_identical_images_are_refused(self, preset: str) -> None:
        critic = TINY_CRITIC if preset == "best" else {}
        with pytest.raises(DatasetError, match="all 6 images show the same; training requires at least 4 different"):
            PatchSVDD.fit([GOOD[0]] * 6, preset=preset, device="cpu", **{**BALANCED, **critic})
        with pytest.raises(DatasetError, match=r"only 2 of the 7 images differ.*`aim=few-alarms` accepts 2"):
            PatchSVDD.fit([GOOD[0]] * 6 + [GOOD[1]], preset=preset, device="cpu", **{**BALANCED, **critic})
        with pytest.raises(DatasetError, match=r"at least 4 good images \(`aim=few-alarms` accepts 2\).*got 3 usable"):
            PatchSVDD.fit(GOOD[:3], preset=preset, device="cpu", **{**BALANCED, **critic})

    def test_copies_among_the_calibration_images_give_a_caveat(self) -> None:
        evidence = Evidence((0.5, 0.6), (1.0, 2.0), (5.0, 9.0), (20.0, 30.0))
        calibration = calibrate([0.0, 0.0, 1.0, 2.0], 0.2, "separate", "balanced", evidence)
        assert calibration.aim == "few-alarms"
        assert "2 of the 4 good images score 0, as copies of others do" in str(calibration.caveat)
        with pytest.raises(ConfigError, match="its good images are too few or too much alike"):
            calibration.with_aim("few-misses")

    def test_two_good_images_are_weighed_with_their_variations(self) -> None:
        varied = tuple(np.random.default_rng(0).lognormal(0, 0.2, 12).tolist())
        evidence = Evidence(varied, (0.0, 4.0, 5.0), (5.0,) * 3, (20.0,) * 3)  # one defect changes nothing at all
        calibration = calibrate([0.9, 1.1], 0.2, "separate", "balanced", evidence)
        assert calibration.aim == "balanced"
        assert 1.1 < calibration.threshold < 4
        assert calibration.miss_rate == pytest.approx(1 / 3)
        assert "2 good images leave the false-alarm rate uncertain" in str(calibration.caveat)
        assert calibrate([1.0], 0.2, "separate", "balanced", evidence).aim == "few-alarms"

    def test_an_encoder_is_kept_where_nothing_can_be_judged(self) -> None:
        """A region of interest without room for a synthetic defect."""
        pictures = [draw_part(seed) for seed in range(5)]
        for seed, picture in enumerate(pictures):
            picture[20:40, 20:40] = np.random.default_rng(seed).integers(0, 255, (20, 20, 3))
        region = np.zeros((64, 64), dtype=np.bool_)
        region[28:31, 28:31] = True
        settings = {**BALANCED, "stop": "validation", "roi": Roi.of(region)}
        detector = PatchSVDD.fit(pictures, preset="encoder", device="cpu", **settings)
        assert detector.provenance["training"]["kept"] == "trained"
        assert detector.calibration is not None
        assert "no synthetic defect could be placed" in str(detector.calibration.caveat)
        assert detector.inspect(pictures[0]).verdict == "good"

    def test_images_without_room_for_a_defect(self) -> None:
        gathered = gather_evidence(
            pixels(2)[:, :, 30:36, 30:36],
            lambda image, _: image.float().mean(0)[None],
            1.0,
            defects=8,
            seed=0,
            min_area=0,
            frame=None,
            pixel=1.0,
        )
        plain = calibrate([1.0, 2.0, 3.0, 4.0], 0.2, "held-out")
        assert gathered.outlined(plain) is plain
        assert curve([1.0, 2.0], gathered.evidence, [1.0]) == []
        calibration = calibrate([1.0, 2.0, 3.0, 4.0], 0.2, "held-out", "balanced", gathered.evidence)
        assert calibration.aim == "few-alarms"
        assert calibration.miss_rate is None
        assert "no synthetic defect could be placed" in str(calibration.caveat)
        assert "synthetic" not in calibration.sentence

    def test_large_images_get_fewer_synthetic_defects(self) -> None:
        assert counts(128, 256 * 256) == (48, 128)
        assert counts(128, 8000 * 6000) == (9, 24)
        assert counts(0, 256 * 256) == (0, 0)


class TestRecalibration:
    def test_with_images_draws_new_evidence(self, model: Path) -> None:
        detector = PatchSVDD.load(model, "cpu")
        before = detector.calibration
        done = recalibrate(detector, [draw_part(seed) for seed in range(40, 52)])
        assert done.calibration.aim == "balanced"
        assert done.calibration.basis == "separate"
        assert done.calibration.evidence is not None
        assert before is not None
        assert done.calibration.evidence != before.evidence

    def test_copies_of_training_images_get_no_synthetic_defects(self) -> None:
        """The memory knows them: their scores say nothing about new images."""
        settings = {**TINY, "encoder": "random", "image_size": 160}
        pictures = [scratched(seed) for seed in range(8)]
        detector = PatchSVDD.fit(pictures, preset="encoder", device="cpu", **settings)
        new = [scratched(seed) for seed in range(40, 46)]
        copies = [picture // 2 * 2 for picture in pictures[:3]]
        alone, mixed = (recalibrate(detector, images, aim="balanced") for images in (new, [*copies, *new]))
        assert len(mixed.copies) == 3
        assert mixed.calibration == alone.calibration
        with pytest.raises(DatasetError, match="the model knows all 3 usable images"):
            recalibrate(detector, copies)
        with pytest.raises(DatasetError, match=r"the aim 'balanced' requires at least 2 different .* got 1 of 4"):
            recalibrate(detector, [*copies, new[0]], aim="balanced")

    def test_a_rate_means_few_alarms(self, model: Path) -> None:
        detector = PatchSVDD.load(model, "cpu")
        done = recalibrate(detector, [draw_part(seed) for seed in range(40, 52)], 0.2)
        assert done.calibration.aim == "few-alarms"
        assert done.calibration.threshold == sorted(done.calibration.scores)[-2]

    def test_a_model_without_evidence_gets_it(self, tmp_path: Path) -> None:
        PatchSVDD.fit(GOOD[:5], preset="encoder", device="cpu", **TINY).save(tmp_path / "plain")
        folder = tmp_path / "new"
        folder.mkdir()
        for seed in range(40, 48):
            save_picture(folder / f"{seed}.png", draw_part(seed))
        done = recalibrate_model(tmp_path / "plain", folder, aim="balanced", device="cpu")
        assert done.calibration.aim == "balanced"
        assert PatchSVDD.load(tmp_path / "plain", "cpu").calibration == done.calibration

    def test_without_images(self, model: Path, balanced: PatchSVDD) -> None:
        assert balanced.calibration is not None
        trial = choose_threshold(model, "few-misses", dry_run=True)
        assert PatchSVDD.load(model, "cpu").threshold == balanced.threshold
        done = choose_threshold(model, "few-misses")
        assert done.calibration == trial.calibration
        assert done.before == balanced.threshold
        assert done.calibration.threshold <= balanced.threshold
        assert PatchSVDD.load(model, "cpu").calibration == done.calibration

    def test_a_value_that_someone_chose(self, model: Path, balanced: PatchSVDD) -> None:
        done = choose_threshold(model, threshold=3.5)
        assert (done.calibration.threshold, done.calibration.aim) == (3.5, "chosen")
        assert done.calibration.evidence == balanced.calibration.evidence  # type: ignore[union-attr]
        assert PatchSVDD.load(model, "cpu").threshold == 3.5
        assert done.calibration.renewed([1.0, 2.0, 9.0], "separate").threshold == 3.5
        with pytest.raises(ConfigError, match="must be above 0"):
            choose_threshold(model, threshold=0)

    def test_undo_brings_the_threshold_back(self, model: Path, balanced: PatchSVDD) -> None:
        choose_threshold(model, "few-alarms", 0.3)
        undo(model)
        assert PatchSVDD.load(model, "cpu").calibration == balanced.calibration

    def test_without_images_and_evidence(self, tmp_path: Path) -> None:
        PatchSVDD.fit(GOOD[:5], preset="encoder", device="cpu", **TINY).save(tmp_path / "plain")
        with pytest.raises(ConfigError, match="Train it again with `aim=balanced`"):
            choose_threshold(tmp_path / "plain", "balanced")
