from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import TINY, draw_part
from patchsvdd.anomaly_map import image_score
from patchsvdd.config import Config, CriticSettings
from patchsvdd.critic import TrainedCritic, build_critic, critic_normalization
from patchsvdd.encoder import PatchEncoder, build_encoder, grids_for
from patchsvdd.errors import ConfigError, DatasetError
from patchsvdd.fusion import SHARES
from patchsvdd.images import ImageSet
from patchsvdd.learning import Learned, Split, learn, learn_critic, learn_encoder, map_validation
from patchsvdd.map_maker import MapMaker, embeddings_of
from patchsvdd.normalization import Normalization
from patchsvdd.presets import preset
from patchsvdd.training import TrainingHooks, TrainingRecord
from patchsvdd.validation import ValidationSet, hold_out

CPU = torch.device("cpu")
CRITIC = CriticSettings(width=2, steps=1, batch_size=2)
COUNT = 5


def best(**changes: Any) -> Config:
    """Settings with a critic under which nothing takes long; the encoder is not trained."""
    return preset("best", **(TINY | {"critic": CRITIC, "encoder": "random", "fusion_share": 0.5} | changes))


@pytest.fixture(scope="module")
def images() -> ImageSet:
    pictures = np.stack([draw_part(seed) for seed in range(COUNT)])
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    return ImageSet(tuple(f"{index}.png" for index in range(COUNT)), pixels, ())


@pytest.fixture(scope="module")
def learned(images: ImageSet) -> Learned:
    return learn(images, best(), CPU)


@pytest.fixture(scope="module")
def critic(learned: Learned) -> TrainedCritic:
    assert learned.critic is not None
    return learned.critic


@pytest.fixture
def few_drawn(monkeypatch: pytest.MonkeyPatch) -> list[ValidationSet]:
    """Few drawn defects to choose a share by; returns the sets that were drawn."""
    drawn: list[ValidationSet] = []

    def draw(draw: Callable[..., ValidationSet], held_out: Tensor, seed: int) -> ValidationSet:
        drawn.append(draw(held_out, seed, at_least=8))
        return drawn[-1]

    monkeypatch.setattr("patchsvdd.learning.ValidationSet.draw", partial(draw, ValidationSet.draw))
    return drawn


def with_another(images: ImageSet, index: int) -> ImageSet:
    """The images, one of them replaced by a picture of something else."""
    pixels = images.pixels.clone()
    pixels[index] = torch.randint(0, 256, pixels[index].shape, generator=torch.Generator().manual_seed(9)).byte()
    return ImageSet(images.names, pixels, ())


class TestSplit:
    def test_all_images_train_where_there_is_no_critic(self) -> None:
        assert Split.of(preset("encoder", stop="end"), 7) == Split(list(range(7)), [])

    def test_some_are_held_out_where_training_may_stop_early(self) -> None:
        assert Split.of(preset("encoder"), 7) == Split.of(preset("best"), 7)
        assert Split.of(preset("encoder"), 2) == Split([0, 1], [])

    def test_with_a_critic_some_are_held_out(self) -> None:
        for count in (2, 5, 60):
            split = Split.of(preset("best"), count)
            assert (split.trained, split.held_out) == hold_out(count)
            assert sorted((*split.trained, *split.held_out)) == list(range(count))

    def test_one_image_is_not_enough(self) -> None:
        with pytest.raises(DatasetError, match="at least 2 good images; got 1"):
            Split.of(preset("best"), 1)


class TestHeldOut:
    """What was held out trains nothing and sets the threshold."""

    def test_the_encoder_does_not_see_them(self, images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Tensor] = []

        def train(encoder: PatchEncoder, pixels: Tensor, *_: object) -> TrainingRecord:
            seen.append(pixels)
            return TrainingRecord(0, 0.0, [])

        monkeypatch.setattr("patchsvdd.learning.train", train)
        config = best(encoder="hierarchical")
        learn_encoder(images, config, CPU, TrainingHooks())
        learn_encoder(images, dataclasses.replace(config, critic=None), CPU, TrainingHooks())
        whole = Normalization.fit(images.pixels, config)(images.pixels)
        assert torch.equal(seen[0], whole[hold_out(COUNT)[0]])
        assert torch.equal(seen[1], whole), "without a critic every image trains"

    def test_the_critic_does_not_depend_on_them(self, images: ImageSet, critic: TrainedCritic) -> None:
        trained, held_out = hold_out(COUNT)
        same, other = (
            learn_critic(with_another(images, index), best(), CPU, TrainingHooks())[0].state()
            for index in (held_out[0], trained[0])
        )
        assert all(torch.equal(same[name], value) for name, value in critic.state().items())
        assert not all(torch.equal(other[name], value) for name, value in critic.state().items())

    def test_the_memory_knows_all(self, images: ImageSet, learned: Learned) -> None:
        assert learned.maker.memory.image_names == images.names
        for scale in learned.maker.memory.scales.values():
            assert set(scale.origins[:, 0].tolist()) == set(range(COUNT))

    def test_the_threshold_is_theirs(self, images: ImageSet, learned: Learned, critic: TrainedCritic) -> None:
        assert learned.calibration is not None
        held_out = hold_out(COUNT)[1]
        assert len(learned.calibration.scores) == len(held_out)
        grids = grids_for(learned.encoder, best(), (64, 64))
        for index, score in zip(held_out, learned.calibration.scores, strict=True):
            others = learned.maker.memory.of_images(torch.arange(COUNT) != index)
            rest = MapMaker(others, fusion=learned.maker.fusion)
            distances = rest.distances(embeddings_of(learned.maker.memory, index, grids), grids)
            maps = rest.combine(distances, critic(images.pixels[index : index + 1]))
            assert score == pytest.approx(float(maps.scores[0]), rel=1e-4)
            assert score > 0


class TestShare:
    @pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
    def test_is_what_was_asked_for(self, images: ImageSet, critic: TrainedCritic, share: float) -> None:
        learned = learn(images, best(fusion_share=share), CPU, critic=critic)
        assert learned.maker.fusion is not None
        assert learned.maker.fusion.share == share
        assert learned.provenance["fusion"]["share"] == share

    def test_or_what_finds_most_drawn_defects(
        self, images: ImageSet, critic: TrainedCritic, few_drawn: list[ValidationSet]
    ) -> None:
        learned = learn(images, best(fusion_share=None), CPU, critic=critic)
        assert learned.maker.fusion is not None
        assert learned.maker.fusion.share in SHARES
        (drawn,) = few_drawn
        assert len(drawn.images) == 8

    @pytest.mark.parametrize("knows", [True, False])
    def test_a_critic_that_knows_counts_and_one_that_errs_does_not(
        self, images: ImageSet, few_drawn: list[ValidationSet], knows: bool
    ) -> None:
        class Oracle(TrainedCritic):
            """Marks drawn defects, or everything else and good images most, in images it has seen being drawn."""

            def to(self, device: torch.device) -> TrainedCritic:  # noqa: ARG002
                return self

            def __call__(self, pixels: Tensor) -> Tensor:
                maps = torch.full((len(pixels), 64, 64), 0.001)
                noise = torch.rand(maps.shape, generator=torch.Generator().manual_seed(0))
                for index, image in enumerate(pixels):
                    for drawn in few_drawn:
                        for picture, mask in zip(drawn.images, drawn.masks, strict=True):
                            if torch.equal(picture, image):
                                wrong = 0.99 * ~mask if not mask.any() else 0.5 * ~mask
                                maps[index] = 0.001 + (0.99 * mask if knows else wrong)
                return maps * (1 - 0.5 * noise)

        oracle = Oracle(build_critic(CRITIC), critic_normalization(images.pixels))
        learned = learn(images, best(fusion_share=None), CPU, critic=oracle)
        fusion, (drawn,) = learned.maker.fusion, few_drawn
        assert fusion is not None
        grids = grids_for(learned.encoder, best(), (64, 64))
        trained = torch.tensor([index in hold_out(COUNT)[0] for index in range(COUNT)])
        maker = MapMaker(learned.maker.memory.of_images(trained))
        with torch.inference_mode():
            product = map_validation(drawn, learned.encoder, learned.normalization, grids, maker)
        quality = {}
        for share in SHARES:
            maps = fusion.with_share(share)(product, torch.cat([oracle(image[None]) for image in drawn.images]))
            quality[share] = drawn.score(maps, image_score(maps)).criterion
        assert quality[fusion.share] == max(quality.values())
        assert (quality[0.0] > quality[1.0]) == knows
        assert (fusion.share <= 0.5) if knows else (fusion.share > 0)

    def test_the_defects_are_drawn_into_held_out_images(
        self, images: ImageSet, critic: TrainedCritic, few_drawn: list[ValidationSet]
    ) -> None:
        config = best(fusion_share=None)
        learn(images, config, CPU, critic=critic)
        expected = ValidationSet.draw(images.pixels[hold_out(COUNT)[1]], config.seed)
        assert torch.equal(few_drawn[0].images, expected.images)


class TestTogether:
    @pytest.mark.parametrize(
        "more",
        [
            {"memory": "25%"},
            {"position_normalization": True},
            {"local_scaling": True},
            {"memory": "25%", "position_normalization": True, "local_scaling": True},
        ],
        ids=lambda more: " ".join(more),
    )
    @pytest.mark.usefixtures("few_drawn")
    def test_with_every_way_to_use_a_memory(
        self, images: ImageSet, critic: TrainedCritic, more: dict[str, Any]
    ) -> None:
        config = best(fusion_share=None, **more)
        learned = learn(images, config, CPU, critic=critic)
        assert learned.calibration is not None
        assert len(learned.calibration.scores) == len(hold_out(COUNT)[1])
        assert np.isfinite(learned.calibration.scores).all()
        assert (learned.maker.positions is not None) == config.position_normalization
        for scale in learned.maker.memory.scales.values():
            assert (scale.reach is not None) == config.local_scaling
        share = 0.25 if config.memory == "25%" else 1
        assert len(learned.maker.memory.scales[32].embeddings) == round(share * 81 * COUNT)

    def test_without_a_threshold_maps_are_fused_all_the_same(self, images: ImageSet, critic: TrainedCritic) -> None:
        learned = learn(images, best(), CPU, critic=critic, calibrated=False)
        assert learned.calibration is None
        assert learned.maker.fusion is not None

    def test_stages_are_told(self, images: ImageSet) -> None:
        seen: list[str] = []
        learn(images, best(), CPU, on_stage=lambda stage, *_: seen.append(stage))
        assert list(dict.fromkeys(seen)) == ["critic", "memory", "threshold"]

    @pytest.mark.usefixtures("few_drawn")
    def test_so_is_the_choice_of_a_share(self, images: ImageSet, critic: TrainedCritic) -> None:
        seen: list[tuple[str, int, int]] = []
        learn(images, best(fusion_share=None), CPU, critic=critic, on_stage=lambda *stage: seen.append(stage))
        assert [stage for stage in seen if stage[0] == "fusion"] == [("fusion", done, 8) for done in range(1, 9)]


class TestGiven:
    def test_parts_are_taken_as_they_are(
        self, images: ImageSet, critic: TrainedCritic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("patchsvdd.learning.train", None)
        monkeypatch.setattr("patchsvdd.learning.train_critic", None)
        config = best(encoder="hierarchical")
        encoder = build_encoder(config)
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        learned = learn(images, config, CPU, encoder=encoder, critic=critic)
        assert all(torch.equal(before[name], value) for name, value in learned.encoder.state_dict().items())
        assert learned.critic is not None
        assert torch.equal(learned.critic(images.pixels), critic(images.pixels))
        assert learned.provenance["critic"] is None, "it was not trained here"

    def test_what_is_trained_is_told(self, learned: Learned) -> None:
        assert learned.provenance["critic"]["steps"] == 1
        assert [row["step"] for row in learned.provenance["critic"]["history"]] == [1]
        assert learned.provenance["fusion"]["share"] == 0.5

    def test_a_critic_without_its_settings_is_refused(self, images: ImageSet, critic: TrainedCritic) -> None:
        with pytest.raises(ConfigError, match=r"give its settings too: critic=CriticSettings\("):
            learn(images, preset("encoder", **TINY), CPU, critic=critic)

    def test_without_a_critic_there_is_nothing_to_fuse(self, images: ImageSet) -> None:
        learned = learn(images, preset("encoder", **TINY, encoder="random"), CPU)
        assert learned.critic is None
        assert learned.maker.fusion is None
        assert learned.provenance["critic"] is None
        assert learned.provenance.get("fusion") is None
        assert learned.calibration is not None
        assert len(learned.calibration.scores) == COUNT


def test_validation_images_are_mapped_as_a_detector_would(images: ImageSet, learned: Learned) -> None:
    drawn = ValidationSet.draw(images.pixels[:2], at_least=4)
    grids = grids_for(learned.encoder, best(), (64, 64))
    seen: list[int] = []
    with torch.inference_mode():
        maps = map_validation(
            drawn, learned.encoder, learned.normalization, grids, learned.maker, lambda done, _: seen.append(done)
        )
        embedded = learned.encoder.dense(learned.normalization(drawn.images), grids)
        queries = [one.flatten(2).transpose(1, 2) for one in embedded]
        expected = MapMaker(learned.maker.memory).combine(MapMaker(learned.maker.memory).distances(queries, grids))
    torch.testing.assert_close(maps, expected.combined, rtol=1e-3, atol=1e-6)
    assert seen == list(range(1, len(drawn.images) + 1))
