"""Which product is in an image, by real models."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.product_choice import (
    QUANTILE,
    ProductCalibration,
    ProductChooser,
    read_calibrations,
    require_identities,
)
from patchsvdd.detector.threshold_choice import choose_threshold
from support.products import DRAWN, SETTINGS, disc, noise, stripes


@pytest.fixture(scope="module")
def models(product_models: Mapping[str, Path]) -> dict[str, PatchSVDD]:
    return {product: PatchSVDD.load(folder, "cpu") for product, folder in product_models.items()}


@pytest.fixture(scope="module")
def chooser(models: Mapping[str, PatchSVDD]) -> ProductChooser:
    """A chooser calibrated by the models' memories. Tests share it: change nothing."""
    found = ProductChooser(models)
    found.calibrate(false_alarm_rate=0.1)
    return found


class TestChoose:
    @pytest.mark.parametrize("product", DRAWN)
    def test_the_product_of_new_images_is_found(self, chooser: ProductChooser, product: str) -> None:
        found = [chooser.choose(DRAWN[product](seed)) for seed in range(100, 110)]
        assert {one.product for one in found} <= {product, None}
        assert sum(one.product == product for one in found) >= 7
        other = next(name for name in DRAWN if name != product)
        assert all(one.distances[other] > 1 and one.p_values[other] <= 2 / 13 for one in found)

    def test_a_defective_part_is_still_the_product(self, chooser: ProductChooser) -> None:
        found = [chooser.choose(disc(seed, defect=True)).product for seed in range(100, 110)]
        assert found.count("disc") >= 7

    def test_other_images_show_none_of_them(self, chooser: ProductChooser) -> None:
        found = chooser.choose(noise(0))
        assert found.product is None
        assert min(found.distances.values()) > 1
        assert max(found.p_values.values()) <= 2 / 13

    def test_files_arrays_and_images_of_any_size_are_accepted(self, chooser: ProductChooser, tmp_path: Path) -> None:
        from PIL import Image

        seed = next(seed for seed in range(100, 110) if chooser.choose(disc(seed)).product)
        Image.fromarray(disc(seed)).save(tmp_path / "new.png")
        assert chooser.choose(tmp_path / "new.png") == chooser.choose(disc(seed))
        with pytest.raises(ImageError, match=r"gone\.png"):
            chooser.choose(tmp_path / "gone.png")

    def test_a_chooser_without_calibration_is_refused(self, models: Mapping[str, PatchSVDD]) -> None:
        with pytest.raises(ConfigError, match="not calibrated yet"):
            ProductChooser(models).choose(disc(0))
        with pytest.raises(ConfigError, match="requires at least one"):
            ProductChooser({})

    def test_equal_p_values_are_decided_by_the_relative_distance(self, models: Mapping[str, PatchSVDD]) -> None:
        far = {
            product: ProductCalibration(str(model.identity), 0.1, (limit,))
            for (product, model), limit in zip(models.items(), (1e6, 1e9), strict=True)
        }
        found = ProductChooser(models, far).choose(disc(100))
        assert found.p_values == {"disc": 1.0, "stripes": 1.0}
        assert found.product == "stripes"


class TestCalibrate:
    def test_compares_each_image_of_a_memory_with_the_others(self, chooser: ProductChooser) -> None:
        model = chooser.models["disc"]
        memory = model.memory.scales[64]
        numbers, expected = memory.origins[:, 0], []
        for number in sorted(set(numbers.tolist())):
            own, others = memory.embeddings[numbers == number], memory.embeddings[numbers != number]
            expected.append(float((own[:, None] - others).norm(dim=2).amin(1).quantile(QUANTILE)))
        assert chooser.calibrations["disc"].distances == pytest.approx(expected, rel=1e-4)

    def test_images_can_be_given(self, models: Mapping[str, PatchSVDD]) -> None:
        chooser, seen = ProductChooser(models), list[tuple[int, int]]()
        images = [disc(0), *(disc(seed) for seed in range(200, 208))]
        found = chooser.calibrate({"disc": images}, 0.2, on_progress=lambda *progress: seen.append(progress))
        assert len(found["disc"].distances) == 8, "the model knows the first"
        assert len(found["stripes"].distances) == len(models["stripes"].memory.image_names)
        assert seen == [(1, 2), (2, 2)]
        limit = found["disc"].limit
        assert chooser.choose(disc(203)).distances["disc"] == pytest.approx(found["disc"].distances[3] / limit)

    def test_only_known_images_unknown_products_and_bad_rates_are_refused(
        self, models: Mapping[str, PatchSVDD]
    ) -> None:
        chooser = ProductChooser(models)
        with pytest.raises(DatasetError, match="no good image of 'disc' that its model has not seen"):
            chooser.calibrate({"disc": [disc(0)]})
        with pytest.raises(ConfigError, match="no product 'screw'; there are disc, stripes"):
            chooser.calibrate({"screw": [disc(0)]})
        with pytest.raises(ConfigError, match="`false_alarm_rate` is a share"):
            chooser.calibrate(false_alarm_rate=0.0)

    def test_an_image_that_cannot_be_read_is_left_out(self, models: Mapping[str, PatchSVDD]) -> None:
        problems: list[tuple[str, str]] = []
        images: list[Any] = [disc(200), np.zeros((128, 128, 7)), disc(201)]
        chooser = ProductChooser(models)
        found = chooser.calibrate({"disc": images}, on_error=lambda name, error: problems.append((name, error.name)))
        assert len(found["disc"].distances) == 2
        assert problems == [("disc", "image 1")]
        with pytest.raises(ImageError, match="image 1"):
            chooser.calibrate({"disc": images})

    def test_a_coreset_and_a_trained_encoder_need_images(self, tmp_path: Path) -> None:
        pictures = [disc(seed) for seed in range(6)]
        coreset = PatchSVDD.fit(pictures, **{**SETTINGS, "memory": "30%"})
        trained = PatchSVDD.fit(pictures, **{**SETTINGS, "larger_patches": "trained"})
        for model, problem in ((coreset, "is a coreset"), (trained, "was trained on all its images")):
            model.save(tmp_path / "model")
            chooser = ProductChooser({"disc": model})
            with pytest.raises(ConfigError, match=problem):
                chooser.calibrate()
            chooser.calibrate({"disc": [disc(seed) for seed in range(200, 203)]})

    def test_images_held_out_of_training_count_if_the_encoder_was_trained(self, tmp_path: Path) -> None:
        settings = {**SETTINGS, "larger_patches": "trained", "stop": "validation"}
        model = PatchSVDD.fit([disc(seed) for seed in range(8)], **settings)
        model.save(tmp_path / "model")
        found = ProductChooser({"disc": model}).calibrate()
        assert len(found["disc"].distances) == len(model.provenance["data"]["held_out"]) == 4


class TestGuarantee:
    def test_few_images_guarantee_what_they_can(self) -> None:
        found = ProductCalibration("a", 0.01, tuple(float(one) for one in range(12)))
        assert found.limit == 11
        assert [found.rate, found.p_value(11.5), found.p_value(-1.0)] == pytest.approx([1 / 13, 1 / 13, 1])

    def test_is_kept_for_neighbours_left_out_in_turn(self) -> None:
        """New points are compared with all others, calibration points with all but themselves."""
        random, missed = np.random.default_rng(0), 0
        for _ in range(3000):
            known, new = random.random((30, 3)), random.random(3)
            apart = np.linalg.norm(known[:, None] - known, axis=2)
            np.fill_diagonal(apart, np.inf)
            calibration = ProductCalibration("a", 0.1, tuple(apart.min(1).tolist()))
            missed += np.linalg.norm(known - new, axis=1).min() > calibration.limit
        assert missed / 3000 <= calibration.rate + 3 * np.sqrt(0.1 * 0.9 / 3000)
        assert missed / 3000 >= 0.05


class TestStored:
    def test_chooses_as_before(self, chooser: ProductChooser, models: Mapping[str, PatchSVDD], tmp_path: Path) -> None:
        chooser.save(tmp_path / "products.json")
        loaded = ProductChooser.load(tmp_path / "products.json", models)
        for picture in (disc(100), stripes(100), noise(0)):
            assert loaded.choose(picture) == chooser.choose(picture)

    def test_a_changed_model_and_another_product_are_refused(
        self,
        chooser: ProductChooser,
        product_models: Mapping[str, Path],
        models: Mapping[str, PatchSVDD],
        tmp_path: Path,
    ) -> None:
        chooser.save(tmp_path / "products.json")
        shutil.copytree(product_models["disc"], tmp_path / "disc")
        choose_threshold(tmp_path / "disc", threshold=5.0)
        changed = {**models, "disc": PatchSVDD.load(tmp_path / "disc", "cpu")}
        with pytest.raises(ModelError, match="the model of 'disc' was changed since the choice of products"):
            ProductChooser.load(tmp_path / "products.json", changed)
        with pytest.raises(ModelError, match="no calibration for the product 'screw'"):
            ProductChooser.load(tmp_path / "products.json", {**models, "screw": models["disc"]})
        with pytest.raises(ModelError, match="no model for the product 'stripes'"):
            require_identities(chooser.calibrations, {"disc": models["disc"].identity})

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (None, "cannot be read"),
            ("{}", "is no choice of products"),
            ('{"format": "patchsvdd products", "format_version": 9}', "has format version 9"),
            ('{"format": "patchsvdd products", "format_version": 1, "products": {}}', "was altered"),
        ],
    )
    def test_a_file_that_is_none_is_refused(self, tmp_path: Path, content: str | None, problem: str) -> None:
        if content is not None:
            (tmp_path / "products.json").write_text(content)
        with pytest.raises(ModelError, match=problem):
            read_calibrations(tmp_path / "products.json")
