from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.critic.feature_coreset import LEAST, FeatureCoreset, SampledFeatures, nearest, smoothed, standardised
from patchsvdd.critic.network import (
    EARLIER_SMOOTHING,
    SMOOTHING,
    TrainedCritic,
    build_critic,
    critic_normalization,
)
from support.parts import draw_part

SETTINGS = CriticSettings(width=4)


def pixels(count: int = 8, size: tuple[int, int] = (64, 96)) -> Tensor:
    pictures = [torch.from_numpy(draw_part(seed, size)) for seed in range(count)]
    return torch.stack(pictures).permute(0, 3, 1, 2).contiguous()


@pytest.fixture(scope="module")
def plain() -> TrainedCritic:
    critic = build_critic(SETTINGS).train()
    normalization = critic_normalization(pixels())
    for _ in range(3):
        critic(normalization(pixels()))
    return TrainedCritic(critic, normalization)


@pytest.fixture(scope="module")
def sampled(plain: TrainedCritic) -> SampledFeatures:
    with torch.inference_mode():
        return SampledFeatures.draw(plain.features, pixels(), seed=0)


@pytest.fixture(scope="module")
def knowing(plain: TrainedCritic, sampled: SampledFeatures) -> TrainedCritic:
    return TrainedCritic(plain.critic, plain.normalization, sampled.coreset(64).with_weight(4))


class TestNearest:
    def test_equals_the_distances_one_by_one(self) -> None:
        generator = torch.Generator().manual_seed(0)
        features, rows = torch.randn(2, 8, 5, 7, generator=generator), torch.randn(700, 8, generator=generator)
        flat = features.permute(0, 2, 3, 1).reshape(-1, 8)
        expected = torch.cdist(flat, rows).amin(1).view(2, 5, 7) / 8**0.5
        torch.testing.assert_close(nearest(features, rows), expected, rtol=1e-4, atol=1e-4)

    def test_a_known_feature_has_the_least_distance(self) -> None:
        rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
        assert nearest(rows[1][None, :, None, None], rows).item() == pytest.approx(LEAST, rel=1e-2)


class TestSampledFeatures:
    def test_as_many_of_every_image(self, sampled: SampledFeatures) -> None:
        assert sampled.count == 8
        assert sampled.images.bincount().tolist() == [8 * 12] * 8
        spread = sampled.rows.std(0)
        assert spread.median().item() == pytest.approx(1, abs=1e-3)
        assert spread.max() < 1.001  # a channel that is constant on good images has a spread of 0

    def test_the_seed_decides(self, plain: TrainedCritic, sampled: SampledFeatures) -> None:
        with torch.inference_mode():
            again = SampledFeatures.draw(plain.features, pixels(), seed=0)
        assert torch.equal(again.rows, sampled.rows)

    def test_an_image_is_not_compared_with_itself(self, plain: TrainedCritic, sampled: SampledFeatures) -> None:
        with torch.inference_mode():
            apart = list(sampled.distances_to_others(plain.features, pixels()))
            own = standardised(plain.features(pixels()[2:3]), sampled.mean, sampled.scale)
        others = sampled.rows[sampled.images != 2]
        torch.testing.assert_close(apart[2], nearest(own, others)[0])
        assert apart[2].shape == (8, 12)

    def test_one_image_is_enough_for_a_coreset(self, plain: TrainedCritic) -> None:
        with torch.inference_mode():
            coreset = SampledFeatures.draw(plain.features, pixels(1), seed=0).coreset(16)
        assert coreset.rows.shape == (16, 16)
        assert coreset.typical.isfinite()


class TestCoreset:
    def test_holds_features_of_good_images(self, sampled: SampledFeatures) -> None:
        coreset = sampled.coreset(64)
        assert len(coreset.rows) <= 64
        assert (coreset.rows[:, None] == sampled.rows).all(2).any(1).all()

    def test_most_places_of_good_images_lower_the_logits(self, plain: TrainedCritic, knowing: TrainedCritic) -> None:
        assert knowing.feature_coreset is not None
        with torch.inference_mode():
            evidence = knowing.feature_coreset.evidence(plain.features(pixels()), (16, 24))
        assert evidence.shape == (8, 16, 24)
        assert (evidence <= 0).float().mean() > 0.9

    def test_a_foreign_texture_raises_them_there(self, plain: TrainedCritic, knowing: TrainedCritic) -> None:
        images = pixels(1, (96, 96)).float()
        noise = torch.randint(0, 256, (3, 32, 32), generator=torch.Generator().manual_seed(2)).float()
        foreign = images.clone()
        foreign[0, :, 32:64, 32:64] = noise
        with torch.inference_mode():
            risen = (knowing.logits(foreign) - plain.logits(foreign)) - (knowing.logits(images) - plain.logits(images))
        assert risen[0, 10:14, 10:14].mean() > 1
        assert risen[0, 10:14, 10:14].mean() > risen[0, :4, :4].mean() + 1

    def test_logits_of_odd_sizes(self, knowing: TrainedCritic) -> None:
        for height, width in ((33, 70), (127, 65), (8, 5)):
            with torch.inference_mode():
                logits = knowing.logits(torch.full((1, 3, height, width), 90.0))
            assert logits.shape == (1, -(-height // 4), -(-width // 4))
            assert logits.isfinite().all()

    def test_survives_storing(self, knowing: TrainedCritic) -> None:
        again = TrainedCritic.from_state(knowing.state(), SETTINGS)
        with torch.inference_mode():
            assert torch.equal(again(pixels(2)), knowing(pixels(2)))
        assert again.smoothing == SMOOTHING

    def test_a_critic_stored_without_one_is_unchanged(self, plain: TrainedCritic) -> None:
        again = TrainedCritic.from_state(plain.state(), SETTINGS)
        assert again.feature_coreset is None
        with torch.inference_mode():
            assert torch.equal(again(pixels(2)), plain(pixels(2)))

    def test_a_critic_of_version_0_1_keeps_its_smoothing(self, plain: TrainedCritic) -> None:
        stored = {name: value for name, value in plain.state().items() if name != "smoothing"}
        assert TrainedCritic.from_state(stored, SETTINGS).smoothing == EARLIER_SMOOTHING

    def test_the_weight_scales_the_evidence(self, plain: TrainedCritic, sampled: SampledFeatures) -> None:
        coreset = sampled.coreset(32)
        with torch.inference_mode():
            features = plain.features(pixels(1))
            once, twice = (coreset.with_weight(weight).evidence(features, (16, 24)) for weight in (1.0, 2.0))
        torch.testing.assert_close(twice, 2 * once)

    def test_smoothing_keeps_a_constant_at_the_edges(self) -> None:
        torch.testing.assert_close(smoothed(torch.full((1, 2, 4, 5), 3.0)), torch.full((1, 2, 4, 5), 3.0))

    def test_images_that_hardly_differ_have_a_typical_distance(self, sampled: SampledFeatures) -> None:
        flat = dataclasses.replace(sampled, rows=torch.zeros_like(sampled.rows))
        coreset: FeatureCoreset = flat.coreset(8)
        assert len(coreset.rows) == 1
        assert coreset.typical > -2
