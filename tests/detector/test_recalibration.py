"""Thresholds set anew: what images are to a model, what is promised, and what defects say of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from patchsvdd.core.errors import DatasetError, ImageError, ModelError
from patchsvdd.critic.validation import hold_out
from patchsvdd.detector import recalibration
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.fitting import DetectorParts
from patchsvdd.detector.recalibration import DefectReport, recalibrate, recalibrate_model, worst_of
from patchsvdd.images.image_set import digest_of_pixels
from patchsvdd.scoring.calibration import Calibration, calibrate
from support.parts import TINY, draw_part, save_picture

pytestmark = pytest.mark.slow

Picture = NDArray[np.uint8]
UNTRAINED: dict[str, Any] = TINY | {"preset": "encoder", "encoder": "random", "device": "cpu"}


def twin(detector: PatchSVDD, **changes: Any) -> PatchSVDD:
    """A detector of the same parts, to be changed at will."""
    learned = detector.learned
    provenance = changes.pop("provenance", copy.deepcopy(learned.provenance))
    parts = (learned.encoder, learned.normalization, learned.map_builder, learned.critic)
    return PatchSVDD(detector.config, DetectorParts(*parts, learned.calibration, provenance), detector.device)


def scores_of(calibration: Calibration | None) -> list[float]:
    assert calibration is not None
    return list(calibration.scores)


@pytest.fixture
def own(detector: PatchSVDD) -> PatchSVDD:
    """The tiny detector, to be changed at will."""
    return twin(detector)


@pytest.fixture
def critic(critical: PatchSVDD) -> PatchSVDD:
    """The tiny detector with a critic, to be changed at will."""
    return twin(critical)


@pytest.fixture(scope="module")
def new_pictures() -> list[Picture]:
    """Good images that no detector has seen."""
    return [draw_part(seed) for seed in range(100, 112)]


@pytest.fixture(scope="module")
def defective() -> list[Picture]:
    return [draw_part(seed, defect=True) for seed in range(200, 203)]


@pytest.fixture(scope="module")
def thinned(good_pictures: list[Picture]) -> PatchSVDD:
    """A detector that keeps a fifth of the patches. Tests share it: change nothing in it."""
    return PatchSVDD.fit(good_pictures, **UNTRAINED, memory="20%")


@pytest.fixture(scope="module")
def plenty() -> list[Picture]:
    """As many good images as it takes for a threshold of pixels."""
    return [draw_part(seed) for seed in range(300, 324)]


@pytest.fixture(scope="module")
def varied(plenty: list[Picture]) -> list[Picture]:
    """The same, but some unlike the others all over, as where light or material change."""
    random = np.random.default_rng(0)
    pictures = plenty.copy()
    for index in (3, 11, 17):
        noisy = pictures[index] + random.normal(0, 60, pictures[index].shape)
        pictures[index] = np.clip(noisy, 0, 255).astype(np.uint8)
    return pictures


class TestUnseenImages:
    def test_are_separate_and_scored_as_any_other(self, own: PatchSVDD, new_pictures: list[Picture]) -> None:
        expected = [own.inspect(picture).score for picture in new_pictures]
        done = recalibrate(own, new_pictures, 0.25)
        assert scores_of(done.calibration) == pytest.approx(expected, rel=1e-5)
        assert done.calibration.basis == "separate"
        assert (done.separate, done.known, done.unusable) == (len(new_pictures), 0, ())
        assert done.calibration.threshold == calibrate(done.calibration.scores, 0.25).threshold

    def test_give_the_detector_its_new_threshold(
        self, own: PatchSVDD, detector: PatchSVDD, new_pictures: list[Picture]
    ) -> None:
        done = recalibrate(own, new_pictures, 0.25)
        assert own.calibration is done.calibration
        assert done.before == detector.threshold != own.threshold
        inspection = own.inspect(new_pictures[3])
        assert inspection.threshold == done.calibration.threshold
        assert inspection.p_value == done.calibration.p_value(inspection.score)
        assert inspection.to_json()["p_value"] == inspection.p_value

    def test_keep_the_models_rate_where_none_is_given(self, own: PatchSVDD, new_pictures: list[Picture]) -> None:
        done = recalibrate(own, new_pictures)
        assert done.calibration.false_alarm_rate == own.config.false_alarm_rate
        assert done.calibration.threshold == max(done.calibration.scores), "12 images are few for 1%"

    def test_a_detector_without_threshold_gets_one(self, own: PatchSVDD, new_pictures: list[Picture]) -> None:
        own.calibration = None
        assert own.inspect(new_pictures[0]).p_value is None
        done = recalibrate(own, new_pictures, 0.1)
        assert math.isinf(done.before)
        assert own.threshold == done.calibration.threshold < math.inf

    def test_one_is_enough(self, own: PatchSVDD, new_pictures: list[Picture]) -> None:
        done = recalibrate(own, new_pictures[:1], 0.01)
        assert done.calibration.smallest_rate == 0.5
        assert "1 good image is too few for" in str(done.calibration.caveat)

    def test_progress_counts_images(self, own: PatchSVDD, new_pictures: list[Picture]) -> None:
        counts: list[int] = []
        recalibrate(own, new_pictures[:3], 0.1, on_progress=counts.append)
        assert counts == [1, 2, 3]


class TestKnownImages:
    """Images of the memory itself."""

    @pytest.mark.parametrize("changes", [{}, {"local_scaling": True}])
    def test_are_scored_as_when_they_were_learned(self, good_pictures: list[Picture], changes: dict[str, Any]) -> None:
        detector = PatchSVDD.fit(good_pictures, **UNTRAINED, **changes)
        learned = scores_of(detector.calibration)
        done = recalibrate(detector, good_pictures, 0.2)
        assert scores_of(done.calibration) == pytest.approx(learned, rel=1e-3)
        assert done.calibration.basis == "learned"
        assert (done.separate, done.known, done.unusable) == (0, len(good_pictures), ())

    def test_of_a_trained_encoder_too(self, own: PatchSVDD, detector: PatchSVDD, good_folder: Path) -> None:
        done = recalibrate(own, good_folder)
        assert scores_of(done.calibration) == pytest.approx(scores_of(detector.calibration), rel=1e-3)
        assert done.calibration.threshold == pytest.approx(detector.threshold, rel=1e-3)
        assert done.known == 4

    def test_without_their_own_patches_are_not_at_distance_zero(
        self, own: PatchSVDD, good_pictures: list[Picture]
    ) -> None:
        inside = [own.inspect(picture).score for picture in good_pictures]
        done = recalibrate(own, good_pictures)
        assert min(done.calibration.scores) > 10 * max(inside)

    def test_are_told_by_their_pixels_in_any_order_and_under_any_name(
        self, own: PatchSVDD, detector: PatchSVDD, good_pictures: list[Picture], tmp_path: Path
    ) -> None:
        for index, picture in enumerate(reversed(good_pictures)):
            save_picture(tmp_path / f"{index}.bmp", picture)
        done = recalibrate(own, tmp_path)
        assert done.known == 4
        assert scores_of(done.calibration)[::-1] == pytest.approx(scores_of(detector.calibration), rel=1e-3)

    def test_one_other_pixel_is_another_image(self, own: PatchSVDD, good_pictures: list[Picture]) -> None:
        other = good_pictures[0].copy()
        other[5, 7, 1] ^= 1
        done = recalibrate(own, [other, good_pictures[1]], 0.4)
        assert (done.separate, done.known) == (1, 1)

    def test_beside_new_ones_make_the_basis_worse(
        self, own: PatchSVDD, good_pictures: list[Picture], new_pictures: list[Picture]
    ) -> None:
        mixed = [*new_pictures[:5], *good_pictures[:2], *new_pictures[5:]]
        done = recalibrate(own, mixed, 0.1)
        assert (done.separate, done.known, done.unusable) == (12, 2, ())
        assert done.calibration.basis == "learned"
        alone = recalibrate(own, new_pictures, 0.1).calibration
        assert np.delete(done.calibration.scores, [5, 6]) == pytest.approx(scores_of(alone), rel=1e-6)

    def test_held_out_of_training_are_as_good_as_that(self, good_pictures: list[Picture]) -> None:
        detector = PatchSVDD.fit(good_pictures, **UNTRAINED | {"stop": "validation"})
        trained, held_out = hold_out(len(good_pictures))
        assert detector.provenance["data"]["held_out"] == held_out
        done = recalibrate(detector, [good_pictures[index] for index in held_out], 0.4)
        assert done.calibration.basis == "held-out"
        both = recalibrate(detector, [good_pictures[index] for index in (held_out[0], trained[0])], 0.4)
        assert both.calibration.basis == "learned"

    @pytest.mark.parametrize(
        ("bases", "worst"),
        [
            (["separate"], "separate"),
            (["separate", "held-out"], "held-out"),
            (["held-out", "separate", "learned"], "learned"),
        ],
    )
    def test_the_worst_basis_counts(self, bases: list[Any], worst: str) -> None:
        assert worst_of(bases) == worst

    def test_a_model_that_was_saved_knows_them_still(
        self, detector: PatchSVDD, good_folder: Path, tmp_path: Path
    ) -> None:
        detector.save(tmp_path / "model")
        done = recalibrate(PatchSVDD.load(tmp_path / "model", "cpu"), good_folder)
        assert done.known == 4
        assert scores_of(done.calibration) == pytest.approx(scores_of(detector.calibration), rel=1e-3)


class TestCritic:
    """A critic has learned by heart what it was trained on."""

    def test_has_spoilt_the_images_it_was_trained_on(self, critic: PatchSVDD, good_folder: Path) -> None:
        before = scores_of(critic.calibration)
        trained, held_out = hold_out(4)
        done = recalibrate(critic, good_folder, 0.4)
        assert [Path(name).name for name in done.unusable] == [f"{index:03}.png" for index in trained]
        assert (done.separate, done.known) == (0, len(held_out))
        assert done.calibration.basis == "held-out"
        assert scores_of(done.calibration) == pytest.approx(before, rel=1e-3, abs=1e-3)

    def test_leaves_new_images_as_they_are(self, critic: PatchSVDD, new_pictures: list[Picture]) -> None:
        expected = [critic.inspect(picture).score for picture in new_pictures]
        done = recalibrate(critic, new_pictures, 0.1)
        assert done.calibration.basis == "separate"
        assert scores_of(done.calibration) == pytest.approx(expected, rel=1e-4, abs=1e-4)

    def test_with_a_folder_of_all_kinds(
        self, critic: PatchSVDD, good_pictures: list[Picture], new_pictures: list[Picture]
    ) -> None:
        trained, held_out = hold_out(4)
        done = recalibrate(critic, [*good_pictures, *new_pictures], 0.1)
        assert done.unusable == tuple(f"image {index}" for index in trained)
        assert (done.separate, done.known) == (len(new_pictures), len(held_out))
        assert done.calibration.basis == "held-out"
        assert len(done.calibration.scores) == done.separate + done.known


class TestNothingUsable:
    def test_images_of_a_thinned_memory(self, thinned: PatchSVDD, good_pictures: list[Picture]) -> None:
        before = thinned.calibration
        with pytest.raises(DatasetError, match=r"all 4 .*in its coreset.*give good images it has not seen"):
            recalibrate(thinned, good_pictures)
        assert thinned.calibration is before, "a failure changes nothing"

    def test_new_ones_beside_them_are_used(
        self, thinned: PatchSVDD, good_pictures: list[Picture], new_pictures: list[Picture]
    ) -> None:
        done = recalibrate(twin(thinned), [*good_pictures, *new_pictures], 0.1)
        assert done.unusable == ("image 0", "image 1", "image 2", "image 3")
        assert (done.separate, done.known, done.calibration.basis) == (12, 0, "separate")

    def test_images_that_trained_the_critic(self, critic: PatchSVDD, good_pictures: list[Picture]) -> None:
        with pytest.raises(DatasetError, match=r"trained its critic.*give good images"):
            recalibrate(critic, [good_pictures[index] for index in hold_out(4)[0]])

    def test_no_image_at_all(self, own: PatchSVDD) -> None:
        with pytest.raises(DatasetError, match="no usable good image to calibrate with"):
            recalibrate(own, [])

    def test_nothing_but_broken_files(self, own: PatchSVDD, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_text("no picture")
        broken: list[ImageError] = []
        with pytest.raises(DatasetError, match="no usable good image"):
            recalibrate(own, tmp_path, on_error=broken.append)
        assert len(broken) == 1

    def test_a_model_that_does_not_know_its_images(self, own: PatchSVDD, new_pictures: list[Picture]) -> None:
        data = {name: value for name, value in own.provenance["data"].items() if name not in ("digests", "held_out")}
        earlier = twin(own, provenance=own.provenance | {"data": data})
        with pytest.raises(ModelError, match=r"does not record which images it holds; train it again"):
            recalibrate(earlier, new_pictures)


class TestBrokenFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path, new_pictures: list[Picture]) -> Path:
        """Good images, one of them cut short, and one that is none."""
        for index, picture in enumerate(new_pictures[:4]):
            save_picture(tmp_path / f"{index}.png", picture)
        whole = (tmp_path / "1.png").read_bytes()
        (tmp_path / "1.png").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "2b.png").write_text("no picture")
        return tmp_path

    def test_go_to_on_error_and_the_others_count(self, own: PatchSVDD, folder: Path) -> None:
        broken: list[ImageError] = []
        done = recalibrate(own, folder, 0.3, on_error=broken.append)
        assert [error.name for error in broken] == ["1.png", "2b.png"]
        assert len(done.calibration.scores) == done.separate == 3

    def test_stop_it_where_nobody_asks_for_them(self, own: PatchSVDD, folder: Path) -> None:
        before = own.calibration
        with pytest.raises(ImageError, match=r"1\.png"):
            recalibrate(own, folder, 0.3)
        assert own.calibration is before


class TestDigests:
    def test_do_not_depend_on_how_numbers_are_stored(self) -> None:
        pixels = torch.from_numpy(draw_part(0)).permute(2, 0, 1)
        digest = digest_of_pixels(pixels)
        assert len(digest) == 16
        assert digest == digest_of_pixels(pixels.float()) == digest_of_pixels(pixels.contiguous().double())
        assert digest == digest_of_pixels(pixels.float().contiguous())

    def test_tell_the_least_change(self) -> None:
        pixels = torch.from_numpy(draw_part(0)).permute(2, 0, 1).float()
        changed = [pixels.clone() for _ in range(3)]
        changed[0][1, 3, 5] += 1
        changed[1][1, 3, 5] += 1 / 257
        changed[2] = pixels.flip(2)
        assert len({digest_of_pixels(one) for one in (pixels, *changed)}) == 4

    def test_of_sixteen_bits_are_kept_apart_from_eight(self, good_pictures: list[Picture]) -> None:
        fine = (good_pictures[0].astype(np.uint16) * 257) + 1
        coarse = good_pictures[1].astype(np.uint16) * 257
        detector = PatchSVDD.fit([fine, coarse, *good_pictures[2:]], **UNTRAINED)  # all stored as floats
        done = recalibrate(detector, [fine, good_pictures[0], coarse, *good_pictures[1:]], 0.1)
        assert (done.known, done.separate) == (4, 1), "the rounded image is another one; the others are the same"
        assert done.copies == ("image 3",), "and count once"


class TestPixels:
    """The threshold that regions are outlined at."""

    @pytest.mark.parametrize("rate", [0.05, 0.07, 0.09])
    def test_is_the_lowest_that_keeps_to_the_rate(self, own: PatchSVDD, varied: list[Picture], rate: float) -> None:
        maps = np.stack([own.inspect(picture).anomaly_map for picture in varied])
        calibration = recalibrate(own, varied, 0.1, pixel_rate=rate).calibration
        assert calibration.pixel_rate == rate
        assert calibration.pixel_threshold is not None
        threshold = calibration.pixel_threshold

        def risk(value: float) -> float:
            """Mean share above of so many images, and of one more that lies above as a whole."""
            return (float((maps > value).mean(axis=(1, 2)).sum()) + 1) / (len(maps) + 1)

        assert risk(threshold * (1 + 1e-5)) <= rate, "more of a good image lies above than is promised"
        assert risk(threshold * (1 - 1e-4)) > rate, "a lower one would do"

    def test_is_that_of_images_where_no_rate_is_given(self, own: PatchSVDD, varied: list[Picture]) -> None:
        assert recalibrate(own, varied, 0.06).calibration.pixel_rate == 0.06

    def test_of_few_images_is_their_highest_pixel(self, own: PatchSVDD, new_pictures: list[Picture]) -> None:
        calibration = recalibrate(own, new_pictures, 0.3, pixel_rate=0.01).calibration
        assert calibration.pixel_threshold == pytest.approx(max(calibration.scores))

    def test_a_rate_asked_for_is_kept_whatever_it_is(self, own: PatchSVDD, new_pictures: list[Picture]) -> None:
        calibration = recalibrate(own, new_pictures, 0.1, pixel_rate=0.3).calibration
        assert calibration.pixel_rate == 0.3
        assert calibration.pixel_threshold is not None

    def test_regions_grow_to_it(self, own: PatchSVDD, plenty: list[Picture], defective: list[Picture]) -> None:
        calibration = recalibrate(own, plenty, 0.04, pixel_rate=0.09).calibration
        outline = calibration.outline
        assert outline is not None
        assert outline < own.threshold
        # A plain defect raises the whole map of so small an image, whose largest patch is the image.
        faint = (0.7 * plenty[0] + 0.3 * defective[0]).astype(np.uint8)
        grown = own.inspect(faint)
        own.calibration = calibrate(calibration.scores, 0.04)
        plain = own.inspect(faint)
        assert (grown.score, grown.threshold, grown.verdict) == (plain.score, plain.threshold, plain.verdict)
        assert grown.is_anomalous
        assert sum(region.area for region in grown.regions) > sum(region.area for region in plain.regions)
        assert grown.regions[0].peak == plain.regions[0].peak == grown.score
        assert all(region.peak > grown.threshold for region in grown.regions)

    def test_it_outlines_nothing_in_an_image_that_is_good(self, own: PatchSVDD, plenty: list[Picture]) -> None:
        recalibrate(own, plenty, 0.04, pixel_rate=0.09)
        assert own.inspect(plenty[0]).regions == ()

    def test_images_may_be_of_several_sizes(self) -> None:
        detector = PatchSVDD.fit(
            [draw_part(seed, (96, 96)) for seed in range(3)], **UNTRAINED | {"image_size": "native"}
        )
        pictures = [draw_part(seed, (96, 80 + 16 * (seed % 2))) for seed in range(50, 54)]
        for index, picture in enumerate(pictures):  # else those of one size look like shots of one part
            picture[5 + 20 * index : 20 + 20 * index, 10:60] = (250, 40 * index, 10)
        calibration = recalibrate(detector, pictures, 0.3, pixel_rate=0.05).calibration
        assert len(calibration.scores) == 4
        assert calibration.pixel_threshold is not None
        assert calibration.pixel_rate == 0.05


def report_of(good: Sequence[float], bad: Sequence[float], rate: float = 0.1) -> DefectReport:
    return recalibration._compare(calibrate(good, rate), bad)


def counts_at(threshold: float, good: Sequence[float], bad: Sequence[float]) -> tuple[int, int]:
    """Misses and false alarms of a threshold."""
    return sum(score <= threshold for score in bad), sum(score > threshold for score in good)


some_scores = st.lists(st.integers(0, 12).map(float) | st.floats(1e-6, 1e3), min_size=1, max_size=25)


class TestDefects:
    """What labelled defects say of thresholds."""

    def test_apart_from_good_images_are_told_without_a_fault(
        self, own: PatchSVDD, new_pictures: list[Picture], defective: list[Picture]
    ) -> None:
        done = recalibrate(own, new_pictures, 0.25, defects=defective)
        report = done.defects
        assert report is not None
        assert list(report.scores) == pytest.approx([own.inspect(one).score for one in defective], rel=1e-5)
        assert max(done.calibration.scores) < report.suggested < min(report.scores)
        assert (report.suggested_misses, report.suggested_false_alarms) == (0, 0)
        assert (report.found, report.good) == (3, len(new_pictures))
        told = report.to_json()
        assert (told["images"], told["found"], told["miss_rate"]) == (3, 3, 0.0)
        assert told["suggested_miss_rate"] == told["suggested_false_alarm_rate"] == 0.0

    def test_do_not_change_the_threshold(
        self, own: PatchSVDD, new_pictures: list[Picture], defective: list[Picture]
    ) -> None:
        without = recalibrate(own, new_pictures, 0.25).calibration
        assert recalibrate(own, new_pictures, 0.25, defects=defective).calibration == without

    def test_are_found_above_the_calibrated_threshold_only(self) -> None:
        report = report_of([1.0, 2.0, 3.0, 4.0], [4.0, 4.5, 1.0], rate=0.2)
        assert (report.found, report.to_json()["miss_rate"]) == (1, pytest.approx(2 / 3))

    @given(some_scores, some_scores)
    def test_no_threshold_costs_less_than_the_one_suggested(self, good: list[float], bad: list[float]) -> None:
        report = report_of(good, bad)
        assert (report.suggested_misses, report.suggested_false_alarms) == counts_at(report.suggested, good, bad)

        def cost(threshold: float) -> float:
            missed, alarms = counts_at(threshold, good, bad)
            return missed / len(bad) + alarms / len(good)

        least = min(cost(threshold) for threshold in (-1.0, *good, *bad))
        assert cost(report.suggested) == pytest.approx(least)

    @given(some_scores, some_scores)
    def test_intervals_contain_the_rates(self, good: list[float], bad: list[float]) -> None:
        told = report_of(good, bad).to_json()
        for name in ("miss_rate", "suggested_miss_rate", "suggested_false_alarm_rate"):
            low, high = told[f"{name}_interval"]
            assert 0 <= low <= told[name] + 1e-9
            assert told[name] - 1e-9 <= high <= 1
            assert low < high

    def test_of_thresholds_equally_good_the_highest_is_suggested(self) -> None:
        report = report_of([1.0, 3.0], [2.0, 4.0])
        assert report.suggested > 3
        assert (report.suggested_misses, report.suggested_false_alarms) == (1, 0)

    def test_more_images_make_intervals_narrower(self) -> None:
        few, many = ([1.0] * count + [3.0] * count for count in (3, 300))
        widths = [np.diff(report_of([2.0] * 20, bad).to_json()["miss_rate_interval"])[0] for bad in (few, many)]
        assert widths[1] < widths[0] / 4

    def test_none_at_all_are_no_use(self, own: PatchSVDD, new_pictures: list[Picture]) -> None:
        before = own.calibration
        with pytest.raises(DatasetError, match="no usable image among the defects"):
            recalibrate(own, new_pictures, defects=[])
        assert own.calibration is before

    def test_broken_ones_go_to_on_error(
        self, own: PatchSVDD, new_pictures: list[Picture], defective: list[Picture], tmp_path: Path
    ) -> None:
        save_picture(tmp_path / "a.png", defective[0])
        (tmp_path / "b.png").write_bytes(b"")
        broken: list[ImageError] = []
        done = recalibrate(own, new_pictures, defects=tmp_path, on_error=broken.append)
        assert [error.name for error in broken] == ["b.png"]
        assert done.defects is not None
        assert len(done.defects.scores) == 1


def test_a_stored_model_is_recalibrated(own: PatchSVDD, new_pictures: list[Picture], tmp_path: Path) -> None:
    model, good = tmp_path / "model", tmp_path / "good"
    own.save(model)
    for number, picture in enumerate(new_pictures[:4]):
        save_picture(good / f"{number}.png", picture)
    (good / "broken.png").write_bytes(b"not an image")
    with pytest.raises(ImageError, match=r"broken\.png"):
        recalibrate_model(model, good, 0.25, device="cpu")
    errors: list[ImageError] = []
    counts: list[tuple[int, int]] = []

    def run(dry_run: bool) -> float:
        result = recalibrate_model(
            model,
            good,
            0.25,
            min_area=9,
            dry_run=dry_run,
            device="cpu",
            on_error=errors.append,
            on_progress=lambda done, total: counts.append((done, total)),
        )
        assert result.min_area == 9
        return result.calibration.threshold

    threshold = run(dry_run=True)
    assert PatchSVDD.load(model, "cpu").identity == own.identity
    assert run(dry_run=False) == threshold
    stored = PatchSVDD.load(model, "cpu")
    assert (stored.threshold, stored.min_area) == (threshold, 9)
    assert len(errors) == 2
    assert counts[:4] == [(1, 4), (2, 4), (3, 4), (4, 4)]
