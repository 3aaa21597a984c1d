"""A change is found soon, and where there is none an alarm is rare."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import drift_power
from patchsvdd.detector.drift import (
    NOTICED,
    POWERS,
    RATE,
    DriftTest,
    FixedReference,
    GrowingReference,
    noticed,
    noticed_in_words,
)
from patchsvdd.detector.image_statistics import TRAITS, image_statistics, together
from record import RESULTS
from support.command_line import QUICK, run
from support.parts import draw_part


def stream(test: DriftTest, values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int | None:
    """The number of the image at which a change was certain; None if there was none."""
    for number, value in enumerate(values, start=1):
        if test.add(f"image {number}", {"light": float(value)}):
            return number
    return None


class TestFixedReference:
    def test_the_expected_ratio_is_1_while_nothing_changes(self) -> None:
        """New values fall into gaps as in Polya's urn: in proportion to 1 + those that are there already."""
        random, there, test = np.random.default_rng(0), np.zeros(6), FixedReference(1, 5)
        for number in range(12):
            ratios = []
            for gap in range(6):
                other = copy.deepcopy(test)
                other.add(np.array([gap]))
                ratios.append(np.exp(other.logs - test.logs)[0])
            assert (1 + there) / (6 + number) @ np.array(ratios) == pytest.approx(np.ones(len(POWERS)))
            gap = int(random.integers(6))
            test.add(np.array([gap]))
            there[gap] += 1

    def test_it_is_the_probability_of_the_order(self) -> None:
        """Two new values below both old ones, p times as likely to come next."""
        test = FixedReference(1, 2)
        test.add(np.array([0]))
        test.add(np.array([0]))
        expected = [2 * p / (2 * p + 2) * p / (p + 2) * 6 for p in POWERS]
        assert np.exp(test.logs[0]) == pytest.approx(np.array(expected))

    def test_traits_do_not_mix(self) -> None:
        both, alone = FixedReference(2, 5), FixedReference(1, 5)
        for low, high in ((0, 5), (1, 4), (0, 3)):
            both.add(np.array([high, low]))
            alone.add(np.array([low]))
        assert both.logs[1] == pytest.approx(alone.logs[0])
        assert (both.logs[0] < both.logs[1]).all()


class TestGrowingReference:
    def test_every_density_has_mean_1(self) -> None:
        ranks = (np.arange(10_000) + 0.5) / 10_000
        densities = GrowingReference.densities(ranks)
        assert densities.mean(0) == pytest.approx(np.ones(9), rel=1e-3)
        assert densities.min() >= 0

    def test_high_ranks_are_evidence(self) -> None:
        test = GrowingReference(1)
        for _ in range(20):
            test.add(np.array([0.95]))
        assert test.logs[0] > math.log(100)
        assert test.shares[0, test.HIGHER].sum() > 0.9
        assert test.shares.sum() == pytest.approx(1.0)

    def test_extreme_ranks_leave_evidence_finite(self) -> None:
        test = GrowingReference(1)
        for rank in (0.0, 1.0, 0.0, 1.0):
            test.add(np.array([rank]))
            assert math.isfinite(test.logs[0])


class TestDrift:
    @pytest.mark.parametrize("count", [12, 60])
    @pytest.mark.parametrize("ties", [False, True])
    def test_alarms_are_rare_where_nothing_changes(self, count: int, ties: bool) -> None:
        values = np.random.default_rng(count).lognormal(size=(200, count + 200))
        values = np.round(values) if ties else values
        # 200 streams at once, each as a trait: traits share the rate and do not mix.
        test = DriftTest({str(number): one[:count].tolist() for number, one in enumerate(values)}, 200 * 0.05)
        assert test.limit == pytest.approx(math.log(1 / 0.05))
        for new in values[:, count:].T.tolist():
            test.add("", dict(zip(test.reference, new, strict=True)))
        assert len(test.changes) / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)

    def test_few_calibration_images_show_a_lasting_change_soon(self) -> None:
        random = np.random.default_rng(1)
        found = []
        for seed in range(40):
            test = DriftTest({"light": random.normal(size=12).tolist()}, RATE / len(TRAITS), seed)
            found.append(stream(test, 2 + random.normal(size=20)) is not None)
        assert sum(found) >= 24  # by ranks among all images before it is 9

    def test_a_lasting_change_does_not_become_normal(self) -> None:
        random = np.random.default_rng(2)
        test = DriftTest({str(number): random.normal(size=12).tolist() for number in range(20)})  # 20 streams at once
        for values in 2 + random.normal(size=(60, 20)):
            test.add("", dict(zip(test.reference, values.tolist(), strict=True)))
        early = test.evidence
        for values in 2 + random.normal(size=(540, 20)):
            test.add("", dict(zip(test.reference, values.tolist(), strict=True)))
        late = test.evidence
        kept = sum(late[number] >= early[number] for number in early)
        assert kept >= 15

    @pytest.mark.parametrize("sign", [-1, 1])
    def test_a_late_change_is_found_soon(self, sign: int) -> None:
        random = np.random.default_rng(3)
        delays = []
        for seed in range(10):
            test = DriftTest({"light": random.normal(size=12).tolist()}, 0.01, seed)
            found = stream(test, np.concatenate([np.zeros(300), np.full(60, 2.0 * sign)]) + random.normal(size=360))
            assert found is not None
            delays.append(found - 300)
            assert test.changes["light"].direction == ("higher" if sign > 0 else "lower")
        assert 0 < np.median(delays) < 25

    @pytest.mark.parametrize("sign", [-1, 1])
    def test_a_change_is_found_soon(self, sign: int) -> None:
        random = np.random.default_rng(0)
        delays = []
        for seed in range(20):
            test = DriftTest({"light": random.normal(size=60).tolist()}, 0.01, seed)
            found = stream(test, sign * 2 + random.normal(size=200))
            assert found is not None
            delays.append(found)
            change = test.changes["light"]
            assert change.direction == ("higher" if sign > 0 else "lower")
            assert (change.now - change.before) * sign > 0
            assert change.number == found
            assert change.image == f"image {found}"
        assert np.median(delays) < 25

    def test_the_rate_is_shared_by_all_traits(self) -> None:
        one, five = (DriftTest({str(n): [1.0, 2.0] for n in range(count)}, 0.01) for count in (1, 5))
        assert math.exp(one.limit) == pytest.approx(100)
        assert math.exp(five.limit) == pytest.approx(500)

    def test_the_same_images_give_the_same_result(self) -> None:
        values = np.round(np.random.default_rng(3).normal(size=100))
        first, again = (DriftTest({"light": values[:40].tolist()}) for _ in range(2))
        assert stream(first, values[40:]) == stream(again, values[40:])
        assert first.evidence == again.evidence

    def test_nothing_to_compare_with_is_refused(self) -> None:
        for reference in ({}, {"light": [1.0]}, {"light": [1.0, 2.0], "focus": [1.0, 2.0, 3.0]}):
            with pytest.raises(ValueError, match="at least 2"):
                DriftTest(reference)

    def test_equal_values_are_no_evidence(self) -> None:
        test = DriftTest({"colour": [0.0] * 12})
        assert stream(test, np.zeros(0)) is None
        for number in range(300):
            assert test.add(str(number), {"colour": 0.0}) == []


class TestNoticed:
    def test_the_table_is_the_measured_one(self) -> None:
        result = json.loads((RESULTS / "drift-power.json").read_text())
        rows = [row for row in result["power"] if row["after"] == 0 and row["scale"] == 1]
        measured: dict[int, dict[float, int | None]] = {}
        for row in rows:
            measured.setdefault(row["references"], {})[row["shift"]] = row["new"]["images"]["90%"]
        assert measured == NOTICED
        assert result["rate"] == RATE
        assert all(result[part] for part in drift_power.PARTS)
        for row in result["one_trait"]:
            assert all(row[name]["interval"][1] <= 1.5 * row["promised"] for name in ("normal", "ties"))
        assert all(row["new"]["interval"][0] <= RATE for row in result["false_alarms"])
        assert all(row["blocks_with_an_alarm"]["interval"][0] <= RATE for row in result["service"])

    def test_a_number_in_between_counts_as_the_smaller(self) -> None:
        assert noticed(59)["images_by_shift"] == noticed(24)["images_by_shift"] != noticed(60)["images_by_shift"]
        assert noticed(11)["images_by_shift"] == {}
        assert "large changes only" in noticed_in_words(2)
        assert f"2 within {NOTICED[12][2.0]} images" in noticed_in_words(20)

    def test_the_benchmark_tells_a_change_from_none(self) -> None:
        row = drift_power.power(12, 40, shift=3.0, scale=1.0, after=0)
        assert row["new"]["share"] == 1
        assert row["new"]["images"]["90%"] < row["growing"]["images"]["90%"]
        random = np.random.default_rng(0)
        reference, values = random.normal(size=(24, 10)), random.normal(size=(100, 10))
        assert not drift_power.alarms(reference, values, 0).any()


class TestTraits:
    IMAGE = torch.randint(40, 200, (3, 96, 96), generator=torch.Generator().manual_seed(0)).float()
    MAP = np.random.default_rng(0).random((96, 96)).astype(np.float32)

    def test_each_answers_to_its_own_change(self) -> None:
        blurred = torch.nn.functional.avg_pool2d(self.IMAGE[None], 5, 1, 2, count_include_pad=False)[0]
        red = self.IMAGE + torch.tensor([20.0, 0.0, -20.0])[:, None, None]
        before = image_statistics(self.IMAGE, self.MAP)
        assert set(before) == set(TRAITS)
        assert image_statistics(self.IMAGE + 20, self.MAP)["light"] == pytest.approx(before["light"] + 20, rel=1e-5)
        assert image_statistics(self.IMAGE * 0.5, self.MAP)["contrast"] == pytest.approx(
            before["contrast"] / 2, rel=1e-3
        )
        assert image_statistics(red, self.MAP)["colour"] == pytest.approx(before["colour"] + 40, rel=1e-5)
        assert image_statistics(blurred, self.MAP)["focus"] < before["focus"] - 0.3
        assert image_statistics(self.IMAGE, self.MAP + 1)["distance"] == pytest.approx(before["distance"] + 1, rel=1e-5)

    def test_light_does_not_pass_for_focus(self) -> None:
        before, dimmed = image_statistics(self.IMAGE, self.MAP), image_statistics(self.IMAGE * 0.6 + 10, self.MAP)
        assert dimmed["focus"] == pytest.approx(before["focus"], abs=1e-3)

    def test_a_small_defect_shows_in_none(self) -> None:
        marked, found = self.IMAGE.clone(), self.MAP.copy()
        marked[:, :16, :16], found[:16, :16] = 255, 9.0
        before, after = image_statistics(self.IMAGE, self.MAP), image_statistics(marked, found)
        assert abs(after["light"] - before["light"]) < 4
        assert after["distance"] == pytest.approx(before["distance"], abs=0.03)

    def test_together(self) -> None:
        both = together([image_statistics(self.IMAGE, self.MAP), image_statistics(self.IMAGE + 1, self.MAP)])
        assert {name: len(values) for name, values in both.items()} == dict.fromkeys(TRAITS, 2)
        assert together([]) == {}


class TestCommand:
    @pytest.fixture
    def model(self, category: Path, tmp_path: Path) -> Path:
        out = tmp_path / "model"
        assert run("train", category, "--out", out, *QUICK).code == 0
        return out

    @staticmethod
    def copies(category: Path, folder: Path, darker: float, times: int) -> Path:
        """Good images like the category's, in order of time, and darker by a factor."""
        folder.mkdir()
        for number in range(times * len(list((category / "train" / "good").iterdir()))):
            path = folder / f"{999 - number:03}.png"  # names run against time
            Image.fromarray((draw_part(100 + number) * darker).round().astype(np.uint8)).save(path)
            os.utime(path, (1e9 + number, 1e9 + number))
        return folder

    def test_darker_images_are_a_change(self, model: Path, category: Path, tmp_path: Path) -> None:
        assert run("calibrate", model, self.copies(category, tmp_path / "old", 1.0, times=6)).code == 0
        told = run("drift", model, self.copies(category, tmp_path / "new", 0.7, times=6), "--json").json()
        assert told["changed"]
        changes = {change["trait"]: change for change in told["changes"]}
        assert changes["light"]["direction"] == "lower"
        assert changes["light"]["image"].endswith(f"{1000 - changes['light']['number']:03}.png")
        assert told["traits"]["light"]["evidence"] >= told["traits"]["light"]["limit"]
        assert told["noticed"]["references"] == 18
        ended = run("drift", model, tmp_path / "new", "--fail-on-drift")
        assert ended.code == 3  # 2 is wrong usage
        assert "Drift detected" in ended.stdout
        assert "patchsvdd calibrate" in ended.stderr

    def test_the_same_light_is_none(self, model: Path, category: Path, tmp_path: Path) -> None:
        ended = run("drift", model, self.copies(category, tmp_path / "new", 1.0, times=3), "--json", "--fail-on-drift")
        assert ended.code == 0
        told = ended.json()
        assert not told["traits"]["light"]["changed"]
        assert not told["traits"]["colour"]["changed"]

    def test_bad_input(self, model: Path, category: Path, tmp_path: Path) -> None:
        folder = category / "train" / "good"
        assert "--rate is a share" in run("drift", model, folder, "--rate", "2").stderr
        assert "there is no folder" in run("drift", model, tmp_path / "nowhere").stderr
        broken = self.copies(category, tmp_path / "new", 1.0, times=1)
        (broken / "500.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
        ended = run("drift", model, broken, "--json")
        assert ended.code == 0
        assert "500.png" in str(ended.json()["skipped"])
