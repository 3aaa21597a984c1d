"""The verdict on a part with several views, against counting and against parts drawn from known distributions."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError, DatasetError, ModelError
from patchsvdd.scoring.calibration import Calibration, calibrate
from patchsvdd.scoring.part_calibration import (
    MOST,
    PartCalibration,
    bonferroni_parts,
    calibrate_parts,
    images_needed,
)

VIEWS = ("top", "side", "front")
IDENTITIES = {view: f"id-{view}" for view in VIEWS}
SPREADS = (0.05, 0.2, 0.4)


def draw(random: np.random.Generator, count: int, shared: float) -> NDArray[np.float64]:
    """Scores (count, views) of good parts; ``shared`` is the correlation of their logarithms."""
    common, own = random.standard_normal((count, 1)), random.standard_normal((count, len(VIEWS)))
    return np.exp(np.array(SPREADS) * (math.sqrt(shared) * common + math.sqrt(1 - shared) * own))


def named(scores: NDArray[np.float64]) -> dict[str, dict[str, float]]:
    return {f"part {row}": dict(zip(VIEWS, map(float, line), strict=True)) for row, line in enumerate(scores)}


def own_calibrations(random: np.random.Generator, count: int = 100) -> dict[str, Calibration]:
    scores = draw(random, count, 0.5)
    return {view: calibrate(scores[:, place].tolist(), 0.05, "separate") for place, view in enumerate(VIEWS)}


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def joint(random: np.random.Generator) -> PartCalibration:
    return calibrate_parts(named(draw(random, 60, 0.5)), 0.05, IDENTITIES, own_calibrations(random))


class TestFromParts:
    def test_as_many_parts_are_above_a_limit_as_the_rate_allows(self, joint: PartCalibration) -> None:
        scores = [{view.view: view.scores[part] for view in joint.views} for part in range(60)]
        judged = [joint.judge(one) for one in scores]
        assert sum(one.verdict == "anomalous" for one in judged) == 2, "the 58th of 60 is the threshold"
        assert [one.verdict == "anomalous" for one in judged] == [max(one.relative.values()) > 1 for one in judged]
        assert sorted(one.p_value or 0 for one in judged)[:3] == pytest.approx([2 / 61, 3 / 61, 4 / 61])

    def test_one_view_is_calibrated_as_a_model_is(self, random: np.random.Generator) -> None:
        scores = draw(random, 80, 0).T[0].tolist()
        own = {"top": calibrate(draw(random, 50, 0).T[0].tolist(), 0.01)}
        parts = {str(number): {"top": score} for number, score in enumerate(scores)}
        found = calibrate_parts(parts, 0.05, {"top": "a"}, own)
        assert found.views[0].limit == pytest.approx(calibrate(scores, 0.05).threshold)
        assert found.judge({"top": calibrate(scores, 0.05).threshold}).verdict == "good"
        assert found.judge({"top": 9.0}).p_value == pytest.approx(1 / 81)

    @pytest.mark.parametrize("shared", [0.0, 0.95, 1.0])
    @pytest.mark.parametrize(("count", "rate"), [(60, 0.05), (200, 0.01)])
    def test_keeps_the_rate_however_views_depend(
        self, random: np.random.Generator, shared: float, count: int, rate: float
    ) -> None:
        realised = []
        for _ in range(150):
            found = calibrate_parts(named(draw(random, count, shared)), rate, IDENTITIES, own_calibrations(random))
            limits = np.array([view.limit for view in found.views])
            realised.append((draw(random, 2000, shared) > limits).any(axis=1).mean())
        assert found.rate <= rate + 1e-12
        error = 3 * np.std(realised) / math.sqrt(len(realised))
        assert np.mean(realised) <= found.rate + error
        assert np.mean(realised) >= found.rate - error, "no power is lost"

    def test_does_not_depend_on_the_units_of_a_model(self, random: np.random.Generator) -> None:
        own, parts = own_calibrations(random), draw(random, 60, 0.5)
        new = draw(random, 500, 0.5)
        factors = np.array([1.0, 7.0, 0.01])
        found = calibrate_parts(named(parts), 0.05, IDENTITIES, own)
        scaled_own = {
            view: calibrate([score * factor for score in own[view].scores], 0.05, "separate")
            for view, factor in zip(VIEWS, factors, strict=True)
        }
        scaled = calibrate_parts(named(parts * factors), 0.05, IDENTITIES, scaled_own)
        verdicts = [found.judge(one).verdict for one in named(new).values()]
        assert verdicts == [scaled.judge(one).verdict for one in named(new * factors).values()]
        assert set(verdicts) == {"good", "anomalous"}

    def test_says_what_it_guarantees(self, joint: PartCalibration) -> None:
        assert joint.guarantee.startswith("at most 4.9% of good parts like these will be called anomalous")
        assert "given 60 parts" in joint.guarantee
        assert joint.caveat is None

    def test_few_parts_guarantee_what_they_can(self, random: np.random.Generator) -> None:
        found = calibrate_parts(named(draw(random, 20, 0.5)), 0.01, IDENTITIES, own_calibrations(random))
        assert found.rate == found.smallest_rate == pytest.approx(1 / 21)
        assert found.caveat == (
            "20 good parts are too few for a false-alarm rate of 1.00%: at most 4.8% of good parts will be called "
            "anomalous (that rate requires 99)"
        )
        scores = [{view.view: view.scores[part] for view in found.views} for part in range(20)]
        assert {found.judge(one).verdict for one in scores} == {"good"}

    def test_a_part_without_a_view_is_refused_by_name(self, random: np.random.Generator) -> None:
        parts = named(draw(random, 20, 0.5))
        del parts["part 7"]["side"]
        with pytest.raises(DatasetError, match="the part 'part 7' has no view 'side'"):
            calibrate_parts(parts, 0.05, IDENTITIES, own_calibrations(random))

    def test_no_part_a_rate_that_is_none_and_no_view_are_refused(self, random: np.random.Generator) -> None:
        own = own_calibrations(random)
        with pytest.raises(DatasetError, match="there is no good part"):
            calibrate_parts({}, 0.05, IDENTITIES, own)
        with pytest.raises(ConfigError, match="`false_alarm_rate` is a share"):
            calibrate_parts(named(draw(random, 20, 0.5)), 1.0, IDENTITIES, own)
        with pytest.raises(ConfigError, match="at least one view"):
            bonferroni_parts({}, 0.05, {})

    def test_images_that_are_all_alike_give_no_unit(self, random: np.random.Generator) -> None:
        own = own_calibrations(random) | {"side": calibrate([0.5] * 60, 0.05)}
        with pytest.raises(DatasetError, match="view 'side' all have the same score"):
            calibrate_parts(named(draw(random, 20, 0.5)), 0.05, IDENTITIES, own)


class TestFromViews:
    def test_every_view_gets_its_share_of_the_rate(self, random: np.random.Generator) -> None:
        own = own_calibrations(random, 200)
        found = bonferroni_parts(own, 0.06, IDENTITIES)
        assert [view.limit for view in found.views] == [calibrate(own[view].scores, 0.02).threshold for view in VIEWS]
        assert found.rate == pytest.approx(3 * 4 / 201)
        assert "the rates of 3 views added up" in found.guarantee
        assert "given 200 images of each view" in found.guarantee
        assert found.caveat is None

    @pytest.mark.parametrize("shared", [0.0, 0.95])
    def test_keeps_the_rate(self, random: np.random.Generator, shared: float) -> None:
        realised = []
        for _ in range(200):
            found = bonferroni_parts(own_calibrations(random, 60), 0.05, IDENTITIES)
            limits = np.array([view.limit for view in found.views])
            realised.append((draw(random, 2000, shared) > limits).any(axis=1).mean())
        assert found.rate == pytest.approx(3 / 61)
        assert np.mean(realised) <= found.rate + 3 * np.std(realised) / math.sqrt(len(realised))

    def test_p_values_add_up(self, random: np.random.Generator) -> None:
        found = bonferroni_parts(own_calibrations(random, 200), 0.06, IDENTITIES)
        assert found.judge({"top": 99.0, "side": 0.0, "front": 0.0}).p_value == pytest.approx(3 / 201)
        assert found.judge({"top": 0.0, "side": 0.0, "front": 0.0}).p_value == 1
        scores = [dict(zip(VIEWS, map(float, line), strict=True)) for line in draw(random, 500, 0.5)]
        judged = [found.judge(one) for one in scores]
        assert [one.verdict == "anomalous" for one in judged] == [(one.p_value or 0) <= 0.06 for one in judged]

    def test_says_how_many_images_it_needs(self, random: np.random.Generator) -> None:
        own = own_calibrations(random, 200)
        own["side"] = calibrate(own["side"].scores[:50], 0.05, "separate")
        found = bonferroni_parts(own, 0.01, IDENTITIES)
        assert images_needed(3, 0.01) == 299
        assert found.caveat is not None
        assert found.caveat.startswith("50 good images of the view 'side' are too few for a false-alarm rate of 1.00%")
        assert "requires 299 of each view" in found.caveat
        assert found.rate == pytest.approx(found.smallest_rate) == pytest.approx(2 / 201 + 1 / 51)
        assert "given 50 to 200 images" in found.guarantee

    def test_enough_images_need_no_more(self, random: np.random.Generator) -> None:
        own = own_calibrations(random, images_needed(3, 0.05))
        assert bonferroni_parts(own, 0.05, IDENTITIES).caveat is None

    def test_a_model_without_a_guarantee_is_refused(self, random: np.random.Generator) -> None:
        own = own_calibrations(random)
        own["front"] = calibrate(own["front"].scores, 0.05, "learned")
        with pytest.raises(ConfigError, match="model of the view 'front' guarantees no false-alarm rate"):
            bonferroni_parts(own, 0.05, IDENTITIES)


class TestVerdict:
    def test_a_missing_view_is_never_good(self, joint: PartCalibration) -> None:
        judged = joint.judge({"top": 0.0, "front": 0.0})
        assert (judged.verdict, judged.missing, judged.p_value) == ("incomplete", ("side",), 1.0)
        assert joint.judge({}).verdict == "incomplete"
        assert (joint.judge({}).score, joint.judge({}).p_value) == (None, None)

    def test_one_view_above_its_limit_decides(self, joint: PartCalibration) -> None:
        judged = joint.judge({"side": 99.0})
        assert (judged.verdict, judged.missing) == ("anomalous", ("top", "front"))
        assert judged.score == judged.relative["side"] == pytest.approx(99 / joint.views[1].limit)
        assert judged.p_value == pytest.approx(1 / 61)

    def test_incomplete_parts_can_count_as_anomalous(self, random: np.random.Generator) -> None:
        parts, own = named(draw(random, 60, 0.5)), own_calibrations(random)
        strict = calibrate_parts(parts, 0.05, IDENTITIES, own, incomplete="anomalous")
        assert strict.judge({"top": 0.0}).verdict == "anomalous"
        assert strict.judge({"top": 0.0, "side": 0.0, "front": 0.0}).verdict == "good"

    def test_a_score_that_is_no_number_does_not_pass(self, joint: PartCalibration) -> None:
        judged = joint.judge({"top": math.nan, "side": 0.0, "front": 0.0})
        assert (judged.verdict, judged.score) == ("anomalous", MOST)

    def test_the_limit_itself_is_good_and_the_next_number_is_not(self, joint: PartCalibration) -> None:
        for view in joint.views:
            assert view.relative(view.limit) == 1
            assert view.relative(math.nextafter(view.limit, 0)) <= 1
            assert view.relative(math.nextafter(view.limit, 9)) > 1

    def test_an_unknown_view_is_refused(self, joint: PartCalibration) -> None:
        with pytest.raises(ConfigError, match="no view 'back'; its views are top, side, front"):
            joint.judge({"back": 1.0})


class TestStored:
    def test_as_json_and_back(self, joint: PartCalibration, random: np.random.Generator) -> None:
        views = bonferroni_parts(own_calibrations(random), 0.05, IDENTITIES, "anomalous")
        for one in (joint, views):
            assert PartCalibration.from_json(json.loads(json.dumps(one.to_json()))) == one

    @pytest.mark.parametrize("key", ["schema", "views", "parts", "basis"])
    def test_an_incomplete_one_is_refused(self, joint: PartCalibration, key: str) -> None:
        data = joint.to_json()
        del data[key]
        with pytest.raises(ModelError, match="calibrate again"):
            PartCalibration.from_json(data)

    def test_one_of_a_later_version_is_refused(self, joint: PartCalibration) -> None:
        with pytest.raises(ModelError, match="has schema 9"):
            PartCalibration.from_json(joint.to_json() | {"schema": 9})
