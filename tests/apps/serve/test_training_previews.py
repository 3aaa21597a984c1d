"""Heat maps of a running training: they appear, show the defects, and leave the training as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.apps.serve.training_previews import SAMPLES, Previews, spread
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.encoder.networks import PatchEncoder
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.loading import load_good_images
from patchsvdd.training.hooks import TrainingHooks
from support.parts import TINY, draw_part, save_picture

pytestmark = pytest.mark.slow

SETTINGS = {**TINY, "steps": 20, "seed": 3}


def loaded(folder: Path) -> ImageSet:
    return load_good_images(folder, preset("encoder", **SETTINGS))


def pixels(path: Path) -> NDArray[np.float32]:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"), dtype=np.float32)


def test_looking_at_the_encoder_leaves_its_training_as_it_is(good_folder: Path, tmp_path: Path) -> None:
    images, config = loaded(good_folder), preset("encoder", **SETTINGS)
    previews = Previews(images, config, tmp_path / "pictures", torch.device("cpu"))
    steps: list[int] = []

    def look(encoder: PatchEncoder, step: int) -> None:
        steps.append(step)
        previews.of_encoder(encoder, step)
        torch.rand(3)  # a careless caller
        for weights in encoder.parameters():
            weights.zero_()

    seen = PatchSVDD.fit_images(images, config, device="cpu", hooks=TrainingHooks(on_encoder=look))
    alone = PatchSVDD.fit_images(images, config, device="cpu")
    assert steps == [0, 1, 3, 7, 13, 20]
    for name, weights in alone.encoder.state_dict().items():
        assert torch.equal(weights, seen.encoder.state_dict()[name]), name
    assert seen.threshold == alone.threshold


def test_pictures_show_the_drawn_defects(detector: PatchSVDD, tmp_path: Path) -> None:
    for seed in range(12):
        save_picture(tmp_path / "good" / f"{seed}.png", draw_part(seed))
    images, config = loaded(tmp_path / "good"), preset("encoder", **SETTINGS)
    folder = tmp_path / "pictures"
    previews = Previews(images, config, folder, torch.device("cpu"))
    assert previews.while_training
    previews.of_encoder(detector.encoder, 7)
    previews.of_detector(detector)
    names = [
        f"{kind}-{number}.jpg" for kind in ("final", "picture", "step-0000007") for number in range(1, SAMPLES + 1)
    ]
    assert sorted(path.name for path in folder.iterdir()) == names
    hot = 0
    for number in range(1, SAMPLES + 1):
        heat = pixels(folder / f"step-0000007-{number}.jpg")
        assert heat.shape == pixels(folder / f"picture-{number}.jpg").shape
        hot += int((heat[..., 0] - heat[..., 2] > 60).sum())
    assert hot > 0  # something lies above all that the good images show


def test_the_same_images_are_drawn_after_a_restart(good_folder: Path, tmp_path: Path) -> None:
    images, config = loaded(good_folder), preset("encoder", **SETTINGS)
    for name in ("first", "second"):
        Previews(images, config, tmp_path / name, torch.device("cpu"))
    for path in sorted((tmp_path / "first").iterdir()):
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_samples_are_spread_evenly() -> None:
    assert spread(9, 3) == [1, 4, 7]
    assert spread(2, 2) == [0, 1]
    assert spread(3, 1) == [1]
