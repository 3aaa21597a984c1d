"""Tiny seeded images, and a tiny detector trained on them, for every test that needs one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from patchsvdd.detector.detector import PatchSVDD
from support.parts import ROOT, TINY, TINY_CRITIC, draw_part, save_picture

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


@pytest.fixture(scope="session", autouse=True)
def _few_judged() -> Iterator[None]:
    """Few drawn defects to judge a trained encoder by: as many as in earnest take longer than a tiny training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchsvdd.detector.fitting.JUDGED", 8)
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
