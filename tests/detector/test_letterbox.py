"""Detectors that keep the aspect ratio of images, and so see some of them with a mirrored rest."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.apps.serve.decoder_pool import decode_upload
from patchsvdd.core.errors import ConfigError, ImageError
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.memory_update import add_images
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.evaluation.evaluate import evaluate
from patchsvdd.export.export import export
from patchsvdd.images.image_set import load_image, load_image_set
from patchsvdd.images.roi_input import roi_for
from patchsvdd.runtime import Detector
from support.parts import TINY, TINY_CRITIC, draw_part, save_category, save_picture

SIZES = [(64, 96), (96, 64), (64, 64), (80, 100), (128, 96), (50, 100)]
NARROW = (96, 40)
"""A new image that covers less than half of the canvas."""


def crack(seed: int, size: tuple[int, int], top: int, left: int) -> NDArray[np.uint8]:
    picture = draw_part(seed, size).copy()
    picture[top : top + 10, left : left + 10] = (10, 0, 120)
    return picture


def mask_of(size: tuple[int, int]) -> NDArray[np.uint8]:
    """The dark square of ``draw_part``."""
    mask = np.zeros(size, np.uint8)
    mask[size[0] // 2 - 5 : size[0] // 2 + 5, size[1] // 2 - 5 : size[1] // 2 + 5] = 255
    return mask


@pytest.fixture(scope="module")
def letterboxed() -> PatchSVDD:
    """Sees every image at its own size on 96x96, and smaller if it does not fit."""
    settings = {**TINY, "image_size": 96, "fit": "letterbox", "pixel_scale": 1.0}
    pictures = [draw_part(seed, SIZES[seed % len(SIZES)]) for seed in range(9)]
    return PatchSVDD.fit(pictures, preset="encoder", device="cpu", **settings)


@pytest.mark.parametrize("at", [(10, 8), (80, 28)])
def test_a_defect_is_found_where_it_is(letterboxed: PatchSVDD, at: tuple[int, int]) -> None:
    found = letterboxed.inspect(crack(20, NARROW, *at))
    assert found.anomaly_map.shape == found.image.shape[:2] == NARROW
    assert found.image_size == NARROW
    y, x = divmod(int(found.anomaly_map.argmax()), NARROW[1])
    assert abs(y - at[0] - 5) < 24
    assert abs(x - at[1] - 5) < 24
    assert found.score == found.anomaly_map.max()
    for region in found.regions:
        left, top, right, bottom = region.box
        assert 0 <= left < right <= NARROW[1]
        assert 0 <= top < bottom <= NARROW[0]


def test_images_that_do_not_fit_are_reduced(letterboxed: PatchSVDD) -> None:
    found = letterboxed.inspect(crack(21, (96, 192), 40, 150))
    assert found.anomaly_map.shape == (48, 96)
    assert found.image_size == (96, 192)
    assert found.scale_maps[32].shape == (48, 96)
    x = int(found.anomaly_map.argmax()) % 96
    assert 2 * x > 96


def test_a_batch_of_several_sizes_equals_single_inspections(letterboxed: PatchSVDD) -> None:
    """Up to rounding, which depends on the batch size: ARM sums a batch in another order (2e-5 of the score)."""
    pictures = [draw_part(30 + index, size) for index, size in enumerate(SIZES)]
    for one, other in zip(letterboxed.inspect_many(pictures, batch_size=4), pictures, strict=True):
        alone = letterboxed.inspect(other)
        assert one.score == pytest.approx(alone.score, rel=1e-3)
        np.testing.assert_allclose(one.anomaly_map, alone.anomaly_map, rtol=1e-3, atol=1e-3 * alone.score)


def test_explanations_stay_within_the_image(letterboxed: PatchSVDD) -> None:
    explanation = letterboxed.inspect(crack(22, NARROW, 60, 20)).explain()
    for reason in explanation.reasons:
        for scale in reason.scales:
            left, top, right, bottom = scale.box
            assert 0 <= left < right <= NARROW[1]
            assert 0 <= top < bottom <= NARROW[0]
    assert explanation.image.shape == (96, 96, 3)  # the patches may lie in the mirrored part
    explanation.picture()


def test_a_stored_model_sees_images_alike(letterboxed: PatchSVDD, tmp_path: Path) -> None:
    letterboxed.save(tmp_path / "model")
    loaded = PatchSVDD.load(tmp_path / "model", "cpu", search="exact", engine="torch")
    picture = crack(23, NARROW, 40, 10)
    np.testing.assert_array_equal(loaded.inspect(picture).anomaly_map, letterboxed.inspect(picture).anomaly_map)


def test_images_of_any_size_are_added_and_recalibrate(letterboxed: PatchSVDD, tmp_path: Path) -> None:
    letterboxed.save(tmp_path / "model")
    for seed, size in enumerate([(40, 90), (96, 96), (60, 60), (70, 90)]):
        save_picture(tmp_path / "new" / f"{seed}.png", draw_part(40 + seed, size))
    add_images(tmp_path / "model", tmp_path / "new")
    changed = recalibrate(PatchSVDD.load(tmp_path / "model", "cpu"), tmp_path / "new")
    assert changed.known + changed.separate == 4


def test_masks_are_compared_at_the_size_of_each_map(letterboxed: PatchSVDD, tmp_path: Path) -> None:
    sizes = [(64, 80), (80, 64)]
    cracked = [(draw_part(52 + index, size, defect=True), mask_of(size)) for index, size in enumerate(sizes)]
    good = [draw_part(50, (64, 90)), draw_part(51, (90, 64))]
    train = [draw_part(seed, (64, 64)) for seed in range(3)]
    category = save_category(tmp_path / "mixed", train, good, {"crack": cracked})
    found = evaluate(letterboxed, category)
    assert found.skipped == {}
    assert found.metrics["segmentation_auroc"] > 0.5


def test_an_export_sees_images_alike(letterboxed: PatchSVDD, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="exports require ONNX Runtime")
    for seed, size in enumerate(SIZES[:2]):
        save_picture(tmp_path / "images" / f"{seed}.png", draw_part(60 + seed, size))
    exported = Detector(export(letterboxed, tmp_path / "part.onnx", tmp_path / "images", count=2).path)
    assert (exported.about.fit, exported.about.pixel_scale) == ("letterbox", 1.0)
    picture = crack(24, NARROW, 70, 12)
    found, expected = exported.inspect(picture), letterboxed.inspect(picture)
    np.testing.assert_allclose(found.anomaly_map, expected.anomaly_map, atol=1e-3 * expected.score)
    assert found.score == pytest.approx(expected.score, rel=1e-3)
    assert [region.box for region in found.regions] == [region.box for region in expected.regions]
    np.testing.assert_array_equal(found.image, expected.image)


def test_uploads_are_placed_alike(letterboxed: PatchSVDD) -> None:
    picture, file = draw_part(70, (50, 120)), io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    config = letterboxed.config
    assert config.image_size is not None
    order = {"size": list(config.image_size), "resize": config.resize, "fit": config.fit, "max_pixels": 10**6}
    reply, content = decode_upload(file.getvalue(), {**order, "pixel_scale": config.pixel_scale})
    placed = np.frombuffer(content[0], reply["dtype"]).reshape(reply["shape"])
    np.testing.assert_array_equal(placed, load_image(picture, config).pixels)


def test_a_region_of_interest_is_refused_where_it_cannot_be_placed(letterboxed: PatchSVDD) -> None:
    narrow = letterboxed.with_roi(roi_for([[(5, 5), (30, 60)]], [("a", draw_part(0, NARROW))]))
    with pytest.raises(ImageError, match="does not fill the model's images"):
        narrow.inspect(draw_part(0, NARROW))
    whole = letterboxed.with_roi(roi_for([[(5, 5), (60, 60)]], [("a", draw_part(0, (96, 96)))]))
    assert whole.inspect(draw_part(0, (96, 96))).anomaly_map[70:].max() == 0


@pytest.mark.parametrize("name", ["encoder", "best"])
def test_images_that_are_not_square_are_not_stretched_by_default(name: str, tmp_path: Path) -> None:
    for seed in range(4):
        save_picture(tmp_path / f"{seed}.png", draw_part(seed, (300, 600)))
    settings = {key: value for key, value in TINY.items() if key != "image_size"} | {"encoder": "random"}
    detector = PatchSVDD.fit(tmp_path, preset=name, device="cpu", **settings, **(TINY_CRITIC if name == "best" else {}))
    assert detector.config.image_size == detector.image_size == (256, 512)
    assert not detector.config.auto_size
    assert detector.inspect(draw_part(9, (300, 600))).anomaly_map.shape == (256, 512)


def test_a_size_that_was_not_chosen_is_refused() -> None:
    config = preset("encoder")
    with pytest.raises(ConfigError, match="chosen before images are loaded"):
        PatchSVDD.fit_images(load_image_set([("a", draw_part(0)), ("b", draw_part(1))], config), config, device="cpu")
