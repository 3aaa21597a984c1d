"""Parts with faint defects, and a small model whose critic was really trained, to teach them to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.detector.detector import PatchSVDD
from support.parts import TINY, draw_part

GOOD = 24
COLOURS = {"dent": (60, 60, 60), "scratch": (200, 200, 90)}
"""Confirmed defects: a small patch that differs little from the part."""


def draw_defect(seed: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """An image (64, 64, 3) with a faint defect, and its mask."""
    pixels = draw_part(seed).astype(np.float32)
    mask = np.zeros(pixels.shape[:2], dtype=np.uint8)
    top, left = 26 + seed % 5, 24 + seed % 7
    place = (slice(top, top + 12), slice(left, left + 3)) if kind == "scratch" else (slice(top, top + 6),) * 2
    pixels[place] = 0.6 * pixels[place] + 0.4 * np.array(COLOURS[kind])
    mask[place] = 255
    return pixels.astype(np.uint8), mask


def train_teachable(good: Path, model: Path) -> Path:
    """Train a model with a critic of 40 steps on images that it draws into ``good``."""
    for seed in range(GOOD):
        Image.fromarray(draw_part(seed)).save(good / f"{seed:02}.png")
    settings = {**TINY, "critic": CriticSettings(width=4, steps=40, batch_size=4, warmup=5, check_steps=0)}
    PatchSVDD.fit(good, preset="best", device="cpu", **settings).save(model)
    return model
