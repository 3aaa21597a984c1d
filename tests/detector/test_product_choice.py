"""Which product is in an image, by real models and by the pictures that models store."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, ModelError
from patchsvdd.core.roi import Roi
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.product_choice import (
    ProductCalibration,
    ProductChooser,
    nearest_product,
    read_calibrations,
    require_identities,
)
from patchsvdd.detector.product_images import (
    ProductDistance,
    ProductImages,
    ProductVariation,
    describe,
    describe_new,
    distance,
    unit_of,
)
from patchsvdd.detector.threshold_choice import choose_threshold
from patchsvdd.images.thumbnails import Thumbnails
from support.products import DRAWN, disc, noise, stripes


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
        assert all(one.distances[other] > one.limits[other] and one.p_values[other] < 0.1 for one in found)

    def test_a_defective_part_is_still_the_product(self, chooser: ProductChooser) -> None:
        found = [chooser.choose(disc(seed, defect=True)).product for seed in range(100, 110)]
        assert found.count("disc") >= 7

    def test_other_images_show_none_of_them(self, chooser: ProductChooser) -> None:
        found = chooser.choose(noise(0))
        assert found.product is None
        assert all(found.distances[product] > found.limits[product] for product in DRAWN)
        assert max(found.p_values.values()) < 0.1

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
        limits = {"a": 1.0, "b": 2.0, "c": 9.0}
        assert nearest_product({"a": 0.9, "b": 0.8, "c": 3.0}, limits) == "b"
        assert nearest_product({"a": 1.1, "b": 2.1, "c": 8.0}, limits) == "c"
        assert nearest_product({"a": 1.1, "b": 2.1, "c": 9.1}, limits) is None

    def test_an_image_that_a_model_refuses_does_not_show_its_product(self, models: Mapping[str, PatchSVDD]) -> None:
        half = models["disc"].config.replace(roi=Roi.of(np.ones((64, 64), np.bool_)))
        images = {product: ProductImages.of(product, model) for product, model in models.items()}
        images["disc"] = dataclasses.replace(images["disc"], config=half)
        chooser = ProductChooser(images)
        chooser.calibrate(false_alarm_rate=0.1)
        found = chooser.choose(stripes(100)[:, :90])
        assert (found.distances["disc"], found.product != "disc") == (math.inf, True)


class TestCalibrate:
    def test_pictures_that_nothing_is_compared_with_set_the_limit(
        self, chooser: ProductChooser, models: Mapping[str, PatchSVDD]
    ) -> None:
        images, pictures = chooser.images["disc"], models["disc"].pictures
        assert pictures is not None
        assert len(images.compared) == len(pictures) // 3
        assert len(images.compared) + len(images.others) == len(pictures)
        every = [describe(picture) for picture in pictures]
        split = [*images.compared, *images.others]
        assert sorted(float(one.sum()) for one in every) == sorted(float(one.sum()) for one in split)
        assert len(chooser.calibrations["disc"].distances) == len(images.others)

    def test_a_new_image_is_compressed_as_pictures_are(self, models: Mapping[str, PatchSVDD]) -> None:
        pictures, images = models["disc"].pictures, [disc(seed) for seed in range(18)]
        assert pictures is not None
        pixels = [torch.from_numpy(image).permute(2, 0, 1) for image in images]
        assert len(pictures) <= len(pixels)
        assert torch.equal(describe_new(pixels[0]), describe(Thumbnails.from_images(pixels[:1])[0]))

    def test_other_products_raise_the_limit(self, chooser: ProductChooser, models: Mapping[str, PatchSVDD]) -> None:
        alone = ProductChooser({"disc": models["disc"]}).calibrate(false_alarm_rate=0.1)["disc"]
        assert alone.nearest_other is None
        assert alone.limit == alone.guaranteed_limit
        among = chooser.calibrations["disc"]
        assert among.nearest_other is not None
        assert among.limit == pytest.approx((among.guaranteed_limit * among.nearest_other) ** 0.5)
        assert among.guaranteed_limit < among.limit < among.nearest_other

    def test_images_can_be_given(self, models: Mapping[str, PatchSVDD]) -> None:
        chooser, seen = ProductChooser(models), list[tuple[int, int]]()
        images = [disc(0), *(disc(seed) for seed in range(200, 208))]
        found = chooser.calibrate({"disc": images}, 0.2, on_progress=lambda *progress: seen.append(progress))
        assert len(found["disc"].distances) == 8, "the model knows the first"
        assert len(found["stripes"].distances) == len(chooser.images["stripes"].others)
        assert seen == [(1, 2), (2, 2)]
        assert chooser.choose(disc(203)).distances["disc"] == pytest.approx(found["disc"].distances[3])

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

    def test_models_that_are_not_saved_or_store_no_pictures_are_refused(self, models: Mapping[str, PatchSVDD]) -> None:
        model = PatchSVDD(models["disc"].config, models["disc"].learned, models["disc"].device)
        with pytest.raises(ModelError, match="model of 'disc' is not saved"):
            ProductChooser({"disc": model})
        model.identity, model.pictures = "earlier", None
        with pytest.raises(ModelError, match="stores no pictures of its good images"):
            ProductChooser({"disc": model})


class TestDescription:
    def test_a_flat_image_has_its_colour_and_no_edges(self) -> None:
        found = describe(np.full((50, 70, 3), (255, 51, 0), np.uint8))
        assert found.shape == (36, 16)
        assert found[:, :3].numpy() == pytest.approx(np.tile([1, 0.2, 0], (36, 1)), abs=1e-5)
        assert found[:, 3:].exp().numpy() == pytest.approx(np.tile([0.01] + 12 * [0.003], (36, 1)), rel=0.2)

    def test_an_image_is_as_far_as_its_cells_are_from_those_of_the_most_similar_one(self) -> None:
        image, near = torch.tensor([[0.0], [4.0]]), torch.tensor([[0.0], [2.0]])
        far, unit = torch.tensor([[9.0], [9.0]]), torch.tensor([2.0])
        assert distance(image, torch.stack((far, near)), unit) == pytest.approx((0 + 1) / 2 + (0 + 1) / 2)
        assert distance(image, torch.stack((far, image)), unit) == 0

    def test_a_defect_moves_an_image_by_its_share(self) -> None:
        good, bad = describe(disc(1)), describe(disc(1, defect=True))
        other = describe(stripes(1))
        unit = unit_of([good[None], other[None]])
        assert 0 < distance(bad, good[None], unit) < 0.3 * distance(other, good[None], unit)


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
            ('{"format": "patchsvdd products", "format_version": 2, "products": {}}', "was altered"),
        ],
    )
    def test_a_file_that_is_none_is_refused(self, tmp_path: Path, content: str | None, problem: str) -> None:
        if content is not None:
            (tmp_path / "products.json").write_text(content)
        with pytest.raises(ModelError, match=problem):
            read_calibrations(tmp_path / "products.json")


class TestVariation:
    """A product of grey images whose brightness varies much."""

    @staticmethod
    def grey(seed: int, colour: tuple[int, int, int] = (0, 0, 0)) -> torch.Tensor:
        rng = np.random.default_rng(seed)
        brightness = rng.uniform(30, 220)
        texture = rng.normal(brightness, 8, (96, 96, 1)).repeat(3, axis=2) + np.array(colour)
        return describe(np.clip(texture, 0, 255).astype(np.uint8))

    @pytest.fixture(scope="class")
    def good(self) -> torch.Tensor:
        return torch.stack([self.grey(seed) for seed in range(30)])

    def test_a_colour_is_far_from_grey_images_of_any_brightness(self, good: torch.Tensor) -> None:
        variation = ProductVariation(good)
        usual = [variation.distance(self.grey(seed)) for seed in range(100, 120)]
        assert variation.distance(self.grey(100, (12, 0, 0))) > 2 * max(usual)
        unit = unit_of([good, torch.stack([describe(disc(seed)) for seed in range(5)])])
        plain = distance(self.grey(100, (12, 0, 0)), good, unit) / distance(self.grey(100), good, unit)
        measure = ProductDistance(good, unit)
        assert measure(self.grey(100, (12, 0, 0))) / measure(self.grey(100)) > 2 * plain

    def test_a_defect_that_covers_less_than_half_matters_little(self, good: torch.Tensor) -> None:
        variation, image = ProductVariation(good), self.grey(100)
        defective = image.clone()
        defective[:15] += 1.0
        assert variation.distance(defective) < 1.5 * variation.distance(image)
        defective[:22] += 1.0
        assert variation.distance(defective) > 5 * variation.distance(image)

    def test_one_good_image_has_no_variation(self, good: torch.Tensor) -> None:
        unit = unit_of([good])
        assert ProductDistance(good[:1], unit)(good[1]) == distance(good[1], good[:1], unit)

    def test_equal_images_are_no_obstacle(self, good: torch.Tensor) -> None:
        same = good[:1].repeat(5, 1, 1)
        measure = ProductDistance(same, unit_of([good]))
        assert measure(same[0]) == pytest.approx(0, abs=1e-5)
        assert 0 < measure(good[1]) < math.inf


def test_a_file_of_an_earlier_version_asks_for_another_calibration(tmp_path: Path) -> None:
    (tmp_path / "products.json").write_text('{"format": "patchsvdd products", "format_version": 1, "products": {}}')
    with pytest.raises(ModelError, match="format version 1, not 2; calibrate the choice again"):
        read_calibrations(tmp_path / "products.json")
    (tmp_path / "products.json").write_text('{"format": "patchsvdd products", "format_version": 3, "products": {}}')
    with pytest.raises(ModelError, match="format version 3, not 2; update patchsvdd"):
        read_calibrations(tmp_path / "products.json")
