"""Tiny seeded images, and a tiny detector trained on them, for every test that needs one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.calibration import Calibration
from patchsvdd.config import Config, CriticSettings
from patchsvdd.detector import PatchSVDD
from patchsvdd.encoder import PatchEncoder
from patchsvdd.learning import Learned
from patchsvdd.map_maker import MapMaker
from patchsvdd.memory import Memory
from patchsvdd.normalization import Normalization

ROOT = Path(__file__).parent.parent

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # each of several processes has a core
    os.environ["OMP_NUM_THREADS"] = "1"  # and so have those it starts: sums in another order have other last digits

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton, where it is installed, reads it when it is imported

# The machine may be slow and shared: no deadline per example; the same examples on every run.
settings.register_profile(
    "patchsvdd", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patchsvdd")

TINY: dict[str, Any] = {"image_size": 64, "steps": 2, "batch_size": 1, "pairs_per_crop": 16, "stop": "end"}
"""Settings under which training takes a second or less, and is not undone for being so short."""
TINY_CRITIC: dict[str, Any] = {"critic": CriticSettings(width=2, steps=2, batch_size=2), "fusion_share": 0.5}
"""The same for presets with a critic."""


def assemble(
    config: Config,
    encoder: PatchEncoder,
    normalization: Normalization,
    memory: Memory,
    calibration: Calibration | None = None,
) -> PatchSVDD:
    """A detector of finished parts, on the CPU."""
    learned = Learned(encoder, normalization, MapMaker(memory), calibration=calibration)
    return PatchSVDD(config, learned, torch.device("cpu"))


def draw_part(seed: int, size: tuple[int, int] = (64, 64), defect: bool = False) -> NDArray[np.uint8]:
    """A good part (H, W, 3): a disc on a striped ground, each a little different; ``defect`` adds a dark spot."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]].astype(np.float64)
    centre_y, centre_x = size[0] / 2 + rng.uniform(-2, 2), size[1] / 2 + rng.uniform(-2, 2)
    disc = np.hypot(y - centre_y, x - centre_x) < min(size) * 0.3
    picture = np.stack([90 + 40 * np.sin(x / 3), 110 + 0.5 * y, 100 + 30 * np.cos((x + y) / 5)], axis=-1)
    picture[disc] = (190, 180, 60)
    picture += rng.normal(0, 3, picture.shape)
    if defect:
        picture[size[0] // 2 - 5 : size[0] // 2 + 5, size[1] // 2 - 5 : size[1] // 2 + 5] = (10, 0, 120)
    pixels: NDArray[np.uint8] = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels


def save_picture(path: Path, pixels: NDArray[np.uint8]) -> Path:
    """Write pixels to a file, in folders made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="session", autouse=True)
def _few_judged() -> Iterator[None]:
    """Few drawn defects to judge a trained encoder by: as many as in earnest take longer than a tiny training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchsvdd.learning.JUDGED", 8)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data: the environment variable PATCHSVDD_SHARED, else ../shared beside the repository."""
    folder = Path(os.environ.get("PATCHSVDD_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no shared data at '{folder}'; set PATCHSVDD_SHARED")
    return folder


@pytest.fixture(scope="session")
def good_pictures() -> list[NDArray[np.uint8]]:
    """Four good images (64, 64, 3)."""
    return [draw_part(seed) for seed in range(4)]


@pytest.fixture(scope="session")
def good_folder(tmp_path_factory: pytest.TempPathFactory, good_pictures: list[NDArray[np.uint8]]) -> Path:
    """The good images as PNG files in a plain folder."""
    folder = tmp_path_factory.mktemp("good")
    for index, picture in enumerate(good_pictures):
        save_picture(folder / f"{index:03}.png", picture)
    return folder


@pytest.fixture
def category(tmp_path: Path) -> Path:
    """A category in MVTec layout: 3 training images, 2 good and 2 cracked test images with masks."""
    root = tmp_path / "part"
    mask = np.zeros((64, 64), np.uint8)
    mask[27:37, 27:37] = 255
    for index in range(3):
        save_picture(root / "train" / "good" / f"{index:03}.png", draw_part(index))
    for index in range(2):
        save_picture(root / "test" / "good" / f"{index:03}.png", draw_part(10 + index))
        save_picture(root / "test" / "crack" / f"{index:03}.png", draw_part(20 + index, defect=True))
        save_picture(root / "ground_truth" / "crack" / f"{index:03}_mask.png", mask)
    return root


@pytest.fixture(scope="session")
def detector(good_folder: Path) -> PatchSVDD:
    """A detector trained for two steps on the good folder. Tests share it: change nothing in it."""
    return PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **TINY)


@pytest.fixture(scope="session")
def critical(good_folder: Path) -> PatchSVDD:
    """A detector with a critic, each trained for two steps. Tests share it: change nothing in it."""
    return PatchSVDD.fit(good_folder, preset="best", device="cpu", **TINY, **TINY_CRITIC)


@pytest.fixture(scope="session")
def stored(detector: PatchSVDD, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The detector in a folder named "part". Tests share it: change nothing in it."""
    folder = tmp_path_factory.mktemp("stored") / "part"
    detector.save(folder)
    return folder
