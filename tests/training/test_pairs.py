from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from patchsvdd.core.config import Config
from patchsvdd.core.presets import preset
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.training.light_augmentation import LAMP_SPACING, add_illumination_gradient
from patchsvdd.training.pairs import CutPairs, DensePairs

pytestmark = pytest.mark.slow


def moved(shape: tuple[int, ...], strength: float, seed: int = 0, value: float = 0.0) -> torch.Tensor:
    """Flat images under a moved lamp."""
    return add_illumination_gradient(torch.full(shape, value), strength, torch.Generator().manual_seed(seed))


class TestLamp:
    def test_images_differ_and_colours_do_not(self) -> None:
        views = moved((6, 3, 192, 192), 1.0)
        assert torch.equal(views[:, 0], views[:, 2])
        assert not torch.equal(views[0], views[1])

    def test_light_changes_slowly(self) -> None:
        views = moved((64, 3, 192, 192), 1.0)
        # Bicubic transitions between −1 and 1 overshoot a little and rise by at most about 1.5 · 2 / spacing a pixel.
        assert views.abs().max() < 1.6
        steps = torch.cat((views.diff(dim=2).flatten(), views.diff(dim=3).flatten())).abs()
        assert 0 < steps.max() < 5 / LAMP_SPACING

    def test_every_image_has_its_own_strength(self) -> None:
        ranges = moved((64, 3, 192, 192), 1.0).flatten(1).std(1)
        assert ranges.min() < 0.1 * ranges.max()

    def test_strength_is_a_factor(self) -> None:
        torch.testing.assert_close(2 * moved((4, 3, 128, 128), 0.25), moved((4, 3, 128, 128), 0.5))

    def test_contrast_changes_too_by_half_as_much(self) -> None:
        factor = moved((256, 3, 192, 192), 1.0, value=1.0) - moved((256, 3, 192, 192), 1.0)
        assert factor.min() > 0
        assert float(factor.log().std() / moved((256, 3, 192, 192), 1.0).std()) == pytest.approx(0.5, abs=0.08)

    def test_small_images_see_a_part_of_a_transition(self) -> None:
        window = moved((512, 3, 192, 192), 1.0)[:, :, 80:112, 80:112].flatten(1).std(1).mean()
        assert float(moved((512, 3, 32, 32), 1.0).flatten(1).std(1).mean() / window) == pytest.approx(1, abs=0.3)

    def test_the_generator_decides(self) -> None:
        assert torch.equal(moved((2, 3, 64, 80), 1.0, 5), moved((2, 3, 64, 80), 1.0, 5))
        assert not torch.equal(moved((2, 3, 64, 80), 1.0, 5), moved((2, 3, 64, 80), 1.0, 6))


IMAGES = torch.zeros(2, 3, 128, 128)


def cut_by(config: Config, images: torch.Tensor) -> dict[int, torch.Tensor]:
    """Patch size → the patches (4B, 3, K, K) that one step encodes: first and second ones of position pairs, then of
    jitter pairs."""
    seen: dict[int, torch.Tensor] = {}

    def encode(patches: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        seen.update(patches)
        return {size: one.flatten(1) for size, one in patches.items()}

    source = CutPairs(build_encoder(config), images, config, torch.Generator().manual_seed(0))
    source.encoder.encode = encode  # type: ignore[method-assign]
    source.draw()
    return seen


def settings(**changes: Any) -> Config:
    still = {"photometric": 0.0, "noise": 0.0, "rgb_shift": 0.0, "image_size": 128, "crop_size": 128}
    return preset("encoder", **(still | changes))


class TestSources:
    def test_only_position_pairs_are_coloured(self) -> None:
        """The paper shifts colours so that they do not tell positions; pairs of L_SVDD' are what the images show."""
        config = preset("paper", batch_size=8, image_size=128, rgb_shift=0.3, noise=0.1)
        images = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(1))
        cut = cut_by(config, images)
        plain = cut_by(dataclasses.replace(config, rgb_shift=0.0, noise=0.0), images)
        assert cut.keys() == plain.keys() == {32, 64}
        for size, patches in cut.items():
            position, jitter = (patches - plain[size]).chunk(2)
            assert not jitter.any()
            shifts = position.mean((2, 3))  # (2B, 3)
            assert float(shifts.std()) == pytest.approx(0.3, rel=0.3)
            assert float((position - shifts[:, :, None, None]).std()) == pytest.approx(0.1, rel=0.05)
            assert len(set(shifts.flatten().tolist())) == shifts.numel(), (
                "each patch and each channel has a shift of its own"
            )

    def test_two_views_of_a_crop_have_lamps_of_their_own(self) -> None:
        config = settings(lamp=0.5)
        source = DensePairs(build_encoder(config), IMAGES, config, torch.Generator().manual_seed(0))
        first, second = source._views().chunk(2)
        assert first.std() > 0.01
        assert not torch.equal(first, second)

    def test_without_a_lamp_nothing_is_drawn_for_it(self) -> None:
        config = settings(lamp=0.0)
        generator, other = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
        assert not DensePairs(build_encoder(config), IMAGES, config, generator)._views().any()
        with_lamp = settings(lamp=0.5)
        DensePairs(build_encoder(with_lamp), IMAGES, with_lamp, other)._views()
        assert not torch.equal(generator.get_state(), other.get_state())

    def test_cut_patches_are_lit_too(self) -> None:
        found = []
        for lamp in (0.0, 1.0):
            config = settings(sampling="patches", batch_size=4, lamp=lamp)
            source = CutPairs(build_encoder(config), IMAGES, config, torch.Generator().manual_seed(0))
            with torch.no_grad():
                found.append(source.draw()[32])
        dark, lit = found
        assert torch.equal(dark.jitter_first[0], dark.jitter_first[1]), "all patches are black"
        assert not torch.equal(lit.jitter_first[0], lit.jitter_second[0])
