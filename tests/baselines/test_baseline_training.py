from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from patchsvdd.baselines.autoencoder import CROP, IMAGE, Autoencoder
from patchsvdd.baselines.deep_svdd import DeepSvdd
from patchsvdd.baselines.training import BaselineTrainer, build_baseline, sees_crops, structure, train_baseline
from patchsvdd.core.baseline_settings import BASELINES, check_baseline
from patchsvdd.core.config import Config
from patchsvdd.core.errors import ConfigError, DatasetError, Interrupted
from patchsvdd.core.presets import preset
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.hooks import TrainingHooks
from support.baselines import parts, short


def textures(count: int = 8, size: int = 136) -> torch.Tensor:
    return torch.randint(0, 255, (count, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_parts_are_objects_and_noise_is_a_texture() -> None:
    assert structure(parts()) > 0.5
    assert structure(textures()) < 0.15 + 1 / 8
    assert not sees_crops(BASELINES["l2-ae"], parts())
    assert sees_crops(BASELINES["l2-ae"], textures(40))
    assert sees_crops(dataclasses.replace(BASELINES["l2-ae"], view="crops"), parts())
    assert not sees_crops(dataclasses.replace(BASELINES["l2-ae"], view="image"), textures(40))


@pytest.mark.parametrize("kind", BASELINES)
def test_a_stopped_training_continues_where_it_stopped(kind: str, tmp_path: Path) -> None:
    images, settings = (parts(), short(kind))
    whole, record = train_baseline(images, settings, 3, "images", TrainingHooks())
    checkpoint, stops = CheckpointFile(tmp_path), iter([False, True])
    with pytest.raises(Interrupted, match=f"step 2 of {record.steps} of {kind}"):
        train_baseline(images, settings, 3, "images", TrainingHooks(None, lambda: next(stops), checkpoint))
    parted, again = train_baseline(
        images, settings, 3, "images", TrainingHooks(None, checkpoint=checkpoint, resume=True)
    )
    assert again.steps == record.steps
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parted.state_dict()[name]), name


def test_a_changed_setting_is_not_continued(tmp_path: Path) -> None:
    checkpoint = CheckpointFile(tmp_path)
    with pytest.raises(Interrupted):
        train_baseline(parts(), short("l2-ae"), 0, "images", TrainingHooks(None, lambda: True, checkpoint))
    with pytest.raises(ConfigError, match="latent was 8, now 9"):
        train_baseline(
            parts(), short("l2-ae", latent=9), 0, "images", TrainingHooks(None, checkpoint=checkpoint, resume=True)
        )


def test_deep_svdd_draws_images_to_its_centre() -> None:
    settings = short("deep-svdd", epochs=60, views=None, batch_size=8, learning_rate=5e-3, pretraining=0)
    _, record = train_baseline(parts(), settings, 0, "images", TrainingHooks())
    assert record.history[-1]["loss"] < 0.6 * record.history[0]["loss"]


def test_pretraining_comes_first_and_then_the_centre_is_set() -> None:
    settings = short("deep-svdd", views=None, batch_size=8)
    network = build_baseline(settings, False, 0)
    assert isinstance(network, DeepSvdd)
    trainer = BaselineTrainer(network, parts(), settings, 0)
    assert trainer.decoder is not None
    assert not network.center.any()
    trainer.advance()
    assert trainer.decoder is None
    assert bool(network.center.abs().min() > 0.09)


def test_a_soft_boundary_gets_its_radius_after_the_warm_up() -> None:
    settings = short("deep-svdd", epochs=10, views=None, batch_size=8, boundary="soft", pretraining=0)
    network, _ = train_baseline(parts(), settings, 0, "images", TrainingHooks())
    assert isinstance(network, DeepSvdd)
    assert float(network.radius) > 0
    earlier, _ = train_baseline(parts(), dataclasses.replace(settings, epochs=9), 0, "images", TrainingHooks())
    assert isinstance(earlier, DeepSvdd)
    assert float(earlier.radius) == 0


def test_views_are_crops_or_whole_images() -> None:
    for crops, images, side in ((True, textures(), CROP), (False, parts(), IMAGE)):
        settings = short("ssim-ae")
        network = build_baseline(settings, crops, 0)
        assert isinstance(network, Autoencoder)
        views = BaselineTrainer(network, images, settings, 0).draw()
        assert views.shape == (2, 3, side, side)
        assert float(views.min()) >= 0
        assert float(views.max()) <= 1


def test_crops_are_pieces_of_the_images() -> None:
    images = torch.arange(2 * 130 * 140).view(2, 1, 130, 140).expand(2, 3, -1, -1).float() / 1000
    trainer = BaselineTrainer(build_baseline(short("l2-ae"), True, 0), images, short("l2-ae", batch_size=16), 0)
    for crop in 255 * trainer.draw():
        first = round(1000 * float(crop[0, 0, 0]))
        image, row, column = first // (130 * 140), first // 140 % 130, first % 140
        expected = images[image, :, row : row + CROP, column : column + CROP]
        assert torch.allclose(crop, expected, atol=1e-3)


def test_images_smaller_than_a_crop_are_refused() -> None:
    trainer = BaselineTrainer(build_baseline(short("l2-ae"), True, 0), parts(), short("l2-ae"), 0)
    with pytest.raises(DatasetError, match="crops of 128 px do not fit into images of 64x64"):
        trainer.draw()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "vae"}, "kind must be one of deep-svdd, l2-ae, ssim-ae"),
        ({"view": "whole"}, "view must be one of auto, image, crops"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"batch_size": 1}, "batch_size must be a whole number of at least 2"),
        ({"views": 0}, "views must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
        ({"nu": 1.0}, "nu must be between 0 and 1"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_baseline(dataclasses.replace(BASELINES["l2-ae"], **changes))  # type: ignore[arg-type]


def test_the_length_of_a_training_is_a_setting_of_the_baseline() -> None:
    config = preset("l2-ae", epochs=3, batch_size=16, learning_rate=1e-3, image_size=128)
    assert config.baseline is not None
    assert (config.baseline.epochs, config.baseline.batch_size, config.baseline.learning_rate) == (3, 16, 1e-3)
    assert config.image_size == (128, 128)
    with pytest.raises(ConfigError, match="`steps` is a setting of Patch SVDD; preset 'deep-svdd' has none"):
        preset("deep-svdd", steps=100)
    assert Config.from_json(config.to_json()) == config
    shorter = preset("deep-svdd", epochs=3).baseline
    assert shorter is not None
    assert (shorter.epochs, shorter.pretraining) == (3, 7), "350 of 500 epochs are pretraining"
