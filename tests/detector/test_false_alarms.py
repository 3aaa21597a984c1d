"""Promises kept: how many new good images are called anomalous, over many choices of the images calibrated with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from patchsvdd.apps.demo.dataset import Shot, render_image
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.images.loading import load_distinct_images
from patchsvdd.scoring.calibration import calibrate, pixel_threshold
from patchsvdd.scoring.conformal import guarantee_for
from support.parts import draw_part

pytestmark = pytest.mark.slow

Picture = NDArray[np.uint8]
UNTRAINED: dict[str, Any] = {"preset": "encoder", "encoder": "random", "stop": "end", "device": "cpu"}
SPLITS = 300
"""Choices of the images calibrated with, for every memory."""


@dataclass(frozen=True)
class Scored:
    """Good images that a memory does not hold, as it sees them."""

    scores: NDArray[np.float64]
    """(N,)"""
    maps: NDArray[np.float32]
    """(N, pixels): some pixels of the anomaly maps."""


def score(pictures: Sequence[Picture], memory: NDArray[np.int64], image_size: int) -> Scored:
    """All pictures but those of a memory, against it."""
    detector = PatchSVDD.fit([pictures[index] for index in memory], image_size=image_size, **UNTRAINED)
    others = [pictures[index] for index in range(len(pictures)) if index not in memory]
    done = recalibrate(detector, others, 0.1)
    assert (done.separate, done.known, done.calibration.basis) == (len(others), 0, "separate")
    maps = np.stack([detector.inspect(picture).anomaly_map for picture in others])
    assert maps.max(axis=(1, 2)) == pytest.approx(np.array(done.calibration.scores), rel=1e-4)
    return Scored(np.array(done.calibration.scores), maps[:, ::4, ::4].reshape(len(maps), -1))


def false_alarms(scored: Sequence[Scored], count: int, rate: float) -> float:
    """Share of new images above the threshold of ``count`` others, over many choices of these."""
    random = np.random.default_rng(0)
    found = []
    for one in scored:
        for _ in range(SPLITS):
            order = random.permutation(one.scores)
            found.append(float((order[count:] > calibrate(order[:count].tolist(), rate).threshold).mean()))
    return float(np.mean(found))


def pixels_above(scored: Sequence[Scored], count: int, rate: float) -> float:
    """Share of the pixels of new images above the pixel threshold of ``count`` others, over many choices of these."""
    random = np.random.default_rng(0)
    found = []
    for one in scored:
        for _ in range(SPLITS // 5):
            order = random.permutation(one.maps)
            threshold = pixel_threshold(list(order[:count]), rate)
            found.append(float((order[count:] > threshold).mean()))
    return float(np.mean(found))


def assert_kept(scored: Sequence[Scored], counts: Sequence[int], rates: Sequence[float]) -> None:
    """Promises of images and of pixels hold, and thresholds are not higher than it takes."""
    for count in counts:
        for rate in rates:
            made = guarantee_for(count, rate)
            realised = false_alarms(scored, count, rate)
            assert realised <= made.rate + 0.01, (count, rate)
            assert realised >= made.rate - 0.02, (count, rate)
            assert made.rate <= max(rate, made.smallest_rate) + 1e-9
            assert pixels_above(scored, count, rate) <= max(rate, made.smallest_rate) + 0.01, (count, rate)


@pytest.mark.parametrize("kind", ["part", "washer", "weave"])
def test_on_drawn_images(kind: str) -> None:
    if kind == "part":
        pictures = [draw_part(seed) for seed in range(60)]
    else:
        pictures = [render_image(Shot(0, kind, "train", "good", index), 64).image for index in range(60)]
    random = np.random.default_rng(1)
    scored = [score(pictures, random.permutation(60)[:8], 64) for _ in range(2)]
    assert_kept(scored, [19, 39], [0.05, 0.1, 0.3])


@pytest.mark.real_data
def test_on_real_images(shared: Path) -> None:
    config = preset("encoder", image_size=96)
    pixels = load_distinct_images(shared / "data" / "mvtec" / "toothbrush", config).pixels
    pictures = [np.ascontiguousarray(one.permute(1, 2, 0).numpy()) for one in pixels]
    random = np.random.default_rng(2)
    scored = [score(pictures, random.permutation(len(pictures))[:15], 96) for _ in range(3)]
    assert_kept(scored, [19, 30], [0.05, 0.1, 0.25])


def test_images_of_another_kind_break_the_promise() -> None:
    """What all of it rests on: new images like those calibrated with."""
    pictures = [draw_part(seed) for seed in range(40)]
    scored = score(pictures, np.arange(8), 64)
    detector = PatchSVDD.fit(pictures[:8], image_size=64, **UNTRAINED)
    threshold = recalibrate(detector, pictures[8:], 0.1).calibration.threshold
    assert (scored.scores > threshold).mean() <= 0.1
    darker = [(0.7 * picture).astype(np.uint8) for picture in pictures[8:]]
    assert np.mean([inspection.is_anomalous for inspection in detector.inspect_many(darker)]) > 0.9
