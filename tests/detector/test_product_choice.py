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
    ProductCalibration,
    ProductChooser,
    nearest_product,
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
        assert all(one.distances[other] > 1 and one.p_values[other] <= 0.2 for one in found)

    def test_a_defective_part_is_still_the_product(self, chooser: ProductChooser) -> None:
        found = [chooser.choose(disc(seed, defect=True)).product for seed in range(100, 110)]
        assert found.count("disc") >= 7

    def test_other_images_show_none_of_them(self, chooser: ProductChooser) -> None:
        found = chooser.choose(noise(0))
        assert found.product is None
        assert min(found.distances.values()) > 1
        assert max(found.p_values.values()) <= 0.2

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

    def test_the_nearest_within_its_limit_is_chosen(self) -> None:
        assert nearest_product({"a": 0.9, "b": 0.8, "c": 3.0}) == "b"
        assert nearest_product({"a": 1.0, "b": 7.0}) == "a"
        assert nearest_product({"a": 1.1, "b": 7.0}) is None
        assert nearest_product({}) is None


class TestCalibrate:
    def test_compares_images_of_a_memory_with_others(self, chooser: ProductChooser) -> None:
        memory = chooser.models["disc"].memory.scales[64]
        numbers = sorted(set(memory.origins[:, 0].tolist()))
        images = {number: memory.embeddings[memory.origins[:, 0] == number].double() for number in numbers}

        def apart(one: int, other: int) -> float:
            between = (images[one][:, None] - images[other]).norm(dim=2)
            return float(between.amin(1).mean() + between.amin(0).mean())

        others = chooser._references["disc"].others
        compared = [number for number in numbers if number not in others]
        assert len(compared) == len(numbers) // 3
        expected = [min(apart(one, other) for other in compared) for one in others]
        assert chooser.calibrations["disc"].distances == pytest.approx(expected, rel=1e-4)

    def test_other_products_raise_the_limit(self, chooser: ProductChooser, models: Mapping[str, PatchSVDD]) -> None:
        alone = ProductChooser({"disc": models["disc"]}).calibrate(false_alarm_rate=0.1)["disc"]
        among = chooser.calibrations["disc"]
        assert alone.nearest_other is None
        assert alone.limit == alone.guaranteed_limit == among.guaranteed_limit
        assert among.nearest_other is not None
        assert among.limit == pytest.approx((among.guaranteed_limit * among.nearest_other) ** 0.5)
        assert alone.limit < among.limit < among.nearest_other

    def test_images_can_be_given(self, models: Mapping[str, PatchSVDD]) -> None:
        chooser, seen = ProductChooser(models), list[tuple[int, int]]()
        images = [disc(0), *(disc(seed) for seed in range(200, 208))]
        found = chooser.calibrate({"disc": images}, 0.2, on_progress=lambda *progress: seen.append(progress))
        assert len(found["disc"].distances) == 8, "the model knows the first"
        names = models["stripes"].memory.image_names
        assert len(found["stripes"].distances) == len(names) - len(names) // 3
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

    def test_a_trained_encoder_needs_images(self, tmp_path: Path) -> None:
        model = PatchSVDD.fit([disc(seed) for seed in range(6)], **{**SETTINGS, "larger_patches": "trained"})
        model.save(tmp_path / "model")
        chooser = ProductChooser({"disc": model})
        with pytest.raises(ConfigError, match="encoder of 'disc' was trained on all its images"):
            chooser.calibrate()
        chooser.calibrate({"disc": [disc(seed) for seed in range(200, 203)]})

    def test_a_coreset_is_refused(self) -> None:
        model = PatchSVDD.fit([disc(seed) for seed in range(4)], **{**SETTINGS, "memory": "30%"})
        with pytest.raises(ConfigError, match="memory of 'disc' is a coreset"):
            ProductChooser({"disc": model})

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

    @pytest.mark.parametrize("nearest_other", [None, 3.0])
    def test_is_kept(self, nearest_other: float | None) -> None:
        random, missed = np.random.default_rng(0), 0
        for _ in range(3000):
            known = ProductCalibration("a", 0.1, tuple(random.random(30).tolist()), nearest_other)
            missed += random.random() > known.limit
        assert missed / 3000 <= known.rate + 3 * np.sqrt(0.1 * 0.9 / 3000)


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
