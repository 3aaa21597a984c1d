from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.errors import ConfigError, DatasetError, Interrupted, TrainingCollapsed
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.critic.network import TrainedCritic, build_critic, critic_normalization
from patchsvdd.critic.validation import ValidationResult, ValidationSet, hold_out
from patchsvdd.detector.cross_fitting import CrossFitter
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.fitting import (
    DetectorParts,
    learn,
    learn_critic,
    learn_encoder,
    revert_if_not_better,
    rounded,
)
from patchsvdd.detector.leave_one_out import map_images
from patchsvdd.detector.split import Split
from patchsvdd.encoder.networks import HierarchicalEncoder, PatchEncoder, build_encoder, grids_for
from patchsvdd.encoder.untrained import MixedEncoder, inspection_encoder
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import Memory, build_memory
from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.scoring.fusion import SHARES, Fusion, best_share
from patchsvdd.scoring.map_builder import MapBuilder, embeddings_of
from patchsvdd.scoring.position_statistics import PositionStatistics
from patchsvdd.scoring.ranking import MARGIN
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.hooks import TrainingHooks, TrainingRecord
from patchsvdd.training.loop import train
from support.parts import TINY, draw_part

CPU = torch.device("cpu")
CRITIC = CriticSettings(width=2, steps=1, batch_size=2)
COUNT = 5
JUDGED = 8
"""As many drawn images as ``conftest`` lets an encoder be judged by."""
RECORD = TrainingRecord(2, 1.5, [{"step": 2}], 0.3, ("once",))


def best(**changes: Any) -> Config:
    """Settings with a critic under which nothing takes long; the encoder is not trained."""
    return preset("best", **(TINY | {"critic": CRITIC, "encoder": "random", "fusion_share": 0.5} | changes))


@pytest.fixture(scope="module")
def images() -> ImageSet:
    pictures = np.stack([draw_part(seed) for seed in range(COUNT)])
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    return ImageSet(tuple(f"{index}.png" for index in range(COUNT)), pixels, ())


@pytest.fixture(scope="module")
def learned(images: ImageSet) -> DetectorParts:
    return learn(images, best(), CPU)


@pytest.fixture(scope="module")
def critic(learned: DetectorParts) -> TrainedCritic:
    assert learned.critic is not None
    return learned.critic


@pytest.fixture
def few_drawn(monkeypatch: pytest.MonkeyPatch) -> list[ValidationSet]:
    """Few drawn defects to choose a share by; returns the sets that were drawn."""
    drawn: list[ValidationSet] = []

    def draw(draw: Callable[..., ValidationSet], held_out: Tensor, seed: int, **others: Any) -> ValidationSet:
        drawn.append(draw(held_out, seed, **{**others, "at_least": 8}))
        return drawn[-1]

    monkeypatch.setattr("patchsvdd.detector.fitting.ValidationSet.draw", partial(draw, ValidationSet.draw))
    return drawn


def with_another(images: ImageSet, index: int) -> ImageSet:
    """The images, one of them replaced by a picture of something else."""
    pixels = images.pixels.clone()
    pixels[index] = torch.randint(0, 256, pixels[index].shape, generator=torch.Generator().manual_seed(9)).byte()
    return ImageSet(images.names, pixels, ())


def is_fresh(encoder: PatchEncoder, config: Config) -> bool:
    """Whether the weights are those that training begins with, rounded as they are after it."""
    fresh = build_encoder(config)
    if isinstance(encoder, MixedEncoder):
        fresh = inspection_encoder(fresh, config)
    weights = rounded(fresh).state_dict()
    return all(torch.equal(weights[name], one) for name, one in rounded(copy.deepcopy(encoder)).state_dict().items())


def blinded(encoder: PatchEncoder) -> PatchEncoder:
    """The encoder, to which all patches look alike."""
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
    return encoder


def forbid_judging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "patchsvdd.detector.fitting.validate_encoder", lambda *_, **__: pytest.fail("an encoder was judged")
    )


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

        monkeypatch.setattr("patchsvdd.detector.training_backend.train", train)
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
        chosen_with_them = {"features.weight"}  # like the share of the memory in the map
        assert set(same) == set(critic.state())
        for name in set(same) - chosen_with_them:
            assert torch.equal(same[name], critic.state()[name]), name
        assert not all(torch.equal(other[name], value) for name, value in critic.state().items())

    def test_the_memory_knows_all(self, images: ImageSet, learned: DetectorParts) -> None:
        assert learned.map_builder.memory.image_names == images.names
        for scale in learned.map_builder.memory.scales.values():
            assert set(scale.origins[:, 0].tolist()) == set(range(COUNT))

    def test_the_threshold_is_theirs(self, images: ImageSet, learned: DetectorParts, critic: TrainedCritic) -> None:
        assert learned.calibration is not None
        held_out = hold_out(COUNT)[1]
        assert len(learned.calibration.scores) == len(held_out)
        grids = grids_for(learned.encoder, best(), (64, 64))
        assert learned.calibration.basis == "held-out"
        assert learned.map_builder.fusion is not None

        def product(index: int) -> Tensor:
            rest = MapBuilder(learned.map_builder.memory.of_images(torch.arange(COUNT) != index))
            return rest.combine(rest.distances(embeddings_of(learned.map_builder.memory, index, grids), grids)).combined

        marked = {index: critic(images.pixels[index : index + 1]) for index in held_out}
        for index, score in zip(held_out, learned.calibration.scores, strict=True):
            others = [one for one in held_out if one != index]
            units = Fusion.fit(
                torch.cat([product(one) for one in others]),
                torch.cat([marked[one] for one in others]),
                learned.map_builder.fusion.share,
            )
            assert score == pytest.approx(float(units(product(index), marked[index]).max()), rel=1e-4)
            assert score > 0


class TestUnits:
    """No image has a say in the units it is measured in, or it scores too low."""

    PRODUCTS = torch.rand((7, 20, 24), generator=torch.Generator().manual_seed(0)) + 0.1
    MARKED = torch.rand((5, 20, 24), generator=torch.Generator().manual_seed(1))
    WANTED: tuple[int, ...] = (1, 2, 4, 5, 6)

    @pytest.mark.parametrize("by_place", [False, True])
    @pytest.mark.parametrize("fused", [False, True])
    def test_are_set_by_the_others(self, by_place: bool, fused: bool) -> None:
        units = CrossFitter(self.PRODUCTS, self.MARKED if fused else None, list(self.WANTED), by_place, None)
        map_builder = units.fit(cast(Memory, None), 0.25)
        for place, (index, found) in enumerate(zip(self.WANTED, units.cross_fitted(map_builder), strict=True)):
            apart = PositionStatistics.fit(self.PRODUCTS[[one for one in range(7) if one != index]])
            products = apart.apply(self.PRODUCTS) if by_place else self.PRODUCTS
            others = [one for one in range(5) if one != place]
            expected = products[[index]]
            if fused:
                rarity = Fusion.fit(products[[self.WANTED[one] for one in others]], self.MARKED[others], 0.25)
                expected = rarity(expected, self.MARKED[[place]])
            torch.testing.assert_close(found[None], expected)

    def test_a_single_image_sets_its_own(self) -> None:
        units = CrossFitter(self.PRODUCTS[:1], self.MARKED[:1], [0], False, None)
        assert not units.can_cross_fit
        map_builder = units.fit(cast(Memory, None), 0.5)
        assert map_builder.fusion is not None
        torch.testing.assert_close(
            units.cross_fitted(map_builder), map_builder.fusion(self.PRODUCTS[:1], self.MARKED[:1])
        )

    def test_and_then_nothing_is_guaranteed(self) -> None:
        few = ImageSet(
            ("0", "1"), torch.stack([torch.from_numpy(draw_part(seed)).permute(2, 0, 1) for seed in (0, 1)]), ()
        )
        found = learn(few, best(), torch.device("cpu"))
        assert found.calibration is not None
        assert (found.calibration.basis, found.calibration.is_guaranteed) == ("tuned", False)


class TestKeepBetter:
    """The trained encoder, unless the untrained one finds drawn defects as well."""

    def config(self, **changes: Any) -> Config:
        return preset("encoder", **(TINY | {"stop": "validation"} | changes))

    @pytest.fixture
    def worth(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], list[tuple[Any, ...]]]:
        """Lets the untrained and the trained encoder be worth so much; returns what was judged."""

        def install(untrained: float, trained: float) -> list[tuple[Any, ...]]:
            calls: list[tuple[Any, ...]] = []

            def validate_encoder(encoder: PatchEncoder, *rest: Any) -> ValidationResult:
                calls.append((encoder, *rest))
                found = untrained if is_fresh(encoder, rest[2]) else trained
                return ValidationResult(found, found, 0.0, 0.0, 0.0)

            monkeypatch.setattr("patchsvdd.detector.fitting.validate_encoder", validate_encoder)
            return calls

        return install

    def trained(self, config: Config) -> PatchEncoder:
        """An encoder whose weights are not those it began with."""
        encoder = build_encoder(config)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.mul_(1.1)
        return encoder

    @pytest.mark.parametrize(("untrained", "gain"), [(0.5, 0.1), (0.5, 2 * MARGIN), (0.0, 1.0)])
    def test_keeps_what_is_clearly_better(
        self,
        images: ImageSet,
        worth: Callable[[float, float], list[tuple[Any, ...]]],
        untrained: float,
        gain: float,
    ) -> None:
        config = self.config()
        encoder = self.trained(config)
        before = copy.deepcopy(encoder.state_dict())
        worth(untrained, untrained + gain)
        record = revert_if_not_better(encoder, RECORD, images, config)
        assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
        assert record == dataclasses.replace(
            RECORD, validation={"untrained": untrained, "trained": untrained + gain}, kept_untrained=False
        )

    @pytest.mark.parametrize("gain", [MARGIN, 0.5 * MARGIN, 0.0, -0.1])
    def test_undoes_what_is_not(
        self, images: ImageSet, worth: Callable[[float, float], list[tuple[Any, ...]]], gain: float
    ) -> None:
        config = self.config()
        encoder = self.trained(config)
        worth(0.5, 0.5 + gain)
        record = revert_if_not_better(encoder, RECORD, images, config)
        assert is_fresh(encoder, config)
        assert record == dataclasses.replace(
            RECORD, validation={"untrained": 0.5, "trained": 0.5 + gain}, kept_untrained=True
        )

    def test_both_are_judged_alike_by_images_they_did_not_learn_from(
        self, images: ImageSet, worth: Callable[[float, float], list[tuple[Any, ...]]]
    ) -> None:
        config = self.config(memory="10%", local_scaling=True, position_normalization=True, seed=3)
        calls = worth(0.5, 0.9)
        encoder = self.trained(config)
        revert_if_not_better(encoder, RECORD, images, config)
        (first, *same), (second, *same_again) = calls
        assert is_fresh(first, config)
        assert isinstance(encoder, HierarchicalEncoder)
        assert second.parts[0].small is encoder.small
        trained, held_out = hold_out(COUNT)
        for known, drawn, plain, normalization, _ in (same, same_again):
            assert known.names == tuple(images.names[index] for index in trained)
            assert torch.equal(drawn.images, ValidationSet.draw(images.pixels[held_out], 3, JUDGED).images)
            assert (plain.memory, plain.local_scaling, plain.position_normalization) == ("100%", False, False)
            assert torch.equal(normalization.mean, Normalization.fit(images.pixels, config).mean)

    def test_training_to_the_end_is_not_judged(self, images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
        forbid_judging(monkeypatch)
        config = self.config(stop="end", steps=1)
        encoder, record = learn_encoder(images, config, CPU, TrainingHooks())
        assert not is_fresh(encoder, config)
        assert (record.steps, record.validation, record.kept_untrained) == (1, {}, False)

    @pytest.mark.parametrize("changes", [{"encoder": "random"}, {"steps": 0}])
    def test_nor_is_none(self, images: ImageSet, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
        forbid_judging(monkeypatch)
        config = self.config(**changes)
        encoder, record = learn_encoder(images, config, CPU, TrainingHooks())
        assert is_fresh(encoder, config)
        assert (record.steps, record.validation) == (0, {})

    def test_nor_one_of_two_images(self, images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
        forbid_judging(monkeypatch)
        config = self.config(steps=1)
        encoder, record = learn_encoder(images.subset([0, 1]), config, CPU, TrainingHooks())
        assert not is_fresh(encoder, config)
        assert (record.steps, record.validation, record.kept_untrained) == (1, {}, False)

    def test_two_images_are_enough_with_a_critic_too(self, images: ImageSet) -> None:
        config = best(encoder="hierarchical", stop="validation", steps=1)
        learned = learn(images.subset([0, 1]), config, CPU)
        assert learned.map_builder.memory.image_names == images.names[:2]
        assert learned.calibration is not None

    def test_in_earnest(self, images: ImageSet) -> None:
        config = self.config()
        seen: list[tuple[str, int, int]] = []
        encoder, record = learn_encoder(images, config, CPU, TrainingHooks(), lambda *told: seen.append(told))
        trained, held_out = hold_out(COUNT)
        whole, normalization = build_encoder(config), Normalization.fit(images.pixels, config)
        known = normalization(images.pixels[trained])
        train(whole, known, config, "the same images", TrainingHooks())
        drawn = ValidationSet.draw(images.pixels[held_out], config.seed, JUDGED)
        found = {}
        for name, candidate in (("untrained", build_encoder(config)), ("trained", whole)):
            one = inspection_encoder(candidate, config)
            grids = grids_for(one, config, (64, 64))
            with torch.inference_mode():
                map_builder = MapBuilder(build_memory(one.eval(), known, tuple(map(str, trained)), grids))
                maps = map_images(drawn.images, one, normalization, grids, map_builder)
            found[name] = drawn.score(maps, image_score(maps)).criterion
        assert record.validation == pytest.approx(found, abs=1e-6)
        assert record.kept_untrained == (found["trained"] <= found["untrained"] + MARGIN)
        kept = rounded(inspection_encoder(build_encoder(config) if record.kept_untrained else whole, config))
        weights = kept.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in encoder.state_dict().items())
        count = 2 * len(drawn.images)
        assert seen == [("validation", done, count) for done in range(1, count + 1)]

    def test_an_encoder_that_sees_nothing_is_undone(self, images: ImageSet) -> None:
        config = self.config(larger_patches="trained")  # a 64-px patch is the whole image here
        blind = blinded(build_encoder(config))
        record = revert_if_not_better(blind, RECORD, images, config)
        assert record.validation["trained"] == pytest.approx(0.5, abs=0.05)
        assert record.validation["untrained"] > 0.6
        assert record.kept_untrained
        assert is_fresh(blind, config)

    def test_one_that_sees_is_kept_where_it_saw_nothing_before(
        self, images: ImageSet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = self.config(larger_patches="trained")  # a 64-px patch is the whole image here
        sighted = build_encoder(config)
        monkeypatch.setattr("patchsvdd.detector.fitting.build_encoder", lambda config: blinded(build_encoder(config)))
        record = revert_if_not_better(sighted, RECORD, images, config)
        assert record.validation["trained"] > 0.6
        assert not record.kept_untrained
        assert is_fresh(sighted, config)

    @pytest.mark.parametrize(("margin", "undone"), [(1.0, True), (-1.0, False)])
    @pytest.mark.parametrize("during", ["training", "validation"])
    def test_a_resumed_training_keeps_the_same(
        self,
        images: ImageSet,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        during: str,
        margin: float,
        undone: bool,
    ) -> None:
        monkeypatch.setattr("patchsvdd.detector.fitting.MARGIN", margin)
        config = self.config(encoder="flat", scales=(Scale(64, 16),))
        whole, record = learn_encoder(images, config, CPU, TrainingHooks())
        assert record.kept_untrained == undone
        checkpoint = CheckpointFile(tmp_path)

        def interrupt(stage: str, *_: object) -> None:
            if stage == during:
                raise Interrupted(f"stopped during {stage}")

        stopping = TrainingHooks(should_stop=lambda: during == "training", checkpoint=checkpoint)
        with pytest.raises(Interrupted):
            learn_encoder(images, config, CPU, stopping, interrupt)
        steps: list[int] = []
        going_on = TrainingHooks(lambda now: steps.append(now.step), checkpoint=checkpoint, resume=True)
        resumed, again = learn_encoder(images, config, CPU, going_on)
        assert steps == ([2] if during == "training" else [])
        assert (again.validation, again.kept_untrained) == (record.validation, undone)
        kept = resumed.state_dict()
        assert all(torch.equal(kept[name], value) for name, value in whole.state_dict().items())
        assert is_fresh(resumed, config) == undone

    @pytest.mark.parametrize(("trained", "kept"), [(0.9, "trained"), (0.123456789, "untrained")])
    def test_a_model_tells_which_was_kept(
        self,
        images: ImageSet,
        worth: Callable[[float, float], list[tuple[Any, ...]]],
        trained: float,
        kept: str,
    ) -> None:
        worth(0.5, trained)
        learned = learn(images, self.config(steps=1), CPU)
        told = json.loads(json.dumps(learned.provenance))["training"]
        assert (told["kept"], told["steps"]) == (kept, 1)
        assert told["validation"] == {"untrained": 0.5, "trained": round(trained, 5)}
        assert is_fresh(learned.encoder, self.config()) == (kept == "untrained")

    def test_and_where_nothing_was_compared(self, images: ImageSet) -> None:
        for changes, kept in (({"stop": "end", "steps": 1}, "trained"), ({"encoder": "random"}, None)):
            told = learn(images, self.config(**changes), CPU, calibrated=False).provenance["training"]
            assert (told["kept"], told["validation"]) == (kept, {})

    def test_after_a_collapse_there_is_a_detector_all_the_same(
        self, images: ImageSet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def check(history: object, config: Config) -> None:
            raise TrainingCollapsed(f"collapsed with {config.lambda_:g}")

        monkeypatch.setattr("patchsvdd.training.loop.check_collapse", check)
        forbid_judging(monkeypatch)
        config = self.config(lambda_=100.0, retries=1)
        detector = PatchSVDD.fit_images(images, config, device="cpu")
        assert is_fresh(detector.encoder, config)
        told = detector.provenance["training"]
        assert (told["kept"], told["steps"], told["lambda"], told["validation"]) == ("untrained", 0, None, {})
        assert told["collapses"] == ["collapsed with 100", "collapsed with 10"]
        assert detector.inspect(draw_part(50, defect=True)).score > detector.threshold


class TestShare:
    @pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
    def test_is_what_was_asked_for(self, images: ImageSet, critic: TrainedCritic, share: float) -> None:
        learned = learn(images, best(fusion_share=share), CPU, critic=critic)
        assert learned.map_builder.fusion is not None
        assert learned.map_builder.fusion.share == share
        assert learned.provenance["fusion"]["share"] == share

    def test_or_what_finds_most_drawn_defects(
        self, images: ImageSet, critic: TrainedCritic, few_drawn: list[ValidationSet]
    ) -> None:
        learned = learn(images, best(fusion_share=None), CPU, critic=critic)
        assert learned.map_builder.fusion is not None
        assert learned.map_builder.fusion.share in SHARES
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
        fusion, (drawn,) = learned.map_builder.fusion, few_drawn
        assert fusion is not None
        grids = grids_for(learned.encoder, best(), (64, 64))
        trained = torch.tensor([index in hold_out(COUNT)[0] for index in range(COUNT)])
        map_builder = MapBuilder(learned.map_builder.memory.of_images(trained))
        with torch.inference_mode():
            product = map_images(drawn.images, learned.encoder, learned.normalization, grids, map_builder)
        quality = {}
        for share in SHARES:
            maps = fusion.with_share(share)(product, torch.cat([oracle(image[None]) for image in drawn.images]))
            quality[share] = drawn.score(maps, image_score(maps)).criterion
        assert fusion.share == best_share(quality)
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
        assert (learned.map_builder.positions is not None) == config.position_normalization
        for scale in learned.map_builder.memory.scales.values():
            assert (scale.local_scale is not None) == config.local_scaling
        share = 0.25 if config.memory == "25%" else 1
        assert len(learned.map_builder.memory.scales[32].embeddings) == round(share * 81 * COUNT)

    def test_without_a_threshold_maps_are_fused_all_the_same(self, images: ImageSet, critic: TrainedCritic) -> None:
        learned = learn(images, best(), CPU, critic=critic, calibrated=False)
        assert learned.calibration is None
        assert learned.map_builder.fusion is not None

    def test_stages_are_told(self, images: ImageSet) -> None:
        seen: list[str] = []
        learn(images, best(), CPU, on_stage=lambda stage, *_: seen.append(stage))
        assert list(dict.fromkeys(seen)) == ["critic", "features", "memory", "threshold", "unusual"]

    @pytest.mark.usefixtures("few_drawn")
    def test_so_is_the_choice_of_a_share(self, images: ImageSet, critic: TrainedCritic) -> None:
        seen: list[tuple[str, int, int]] = []
        learn(images, best(fusion_share=None), CPU, critic=critic, on_stage=lambda *stage: seen.append(stage))
        assert [stage for stage in seen if stage[0] == "fusion"] == [("fusion", done, 8) for done in range(1, 9)]


class TestGiven:
    def test_parts_are_taken_as_they_are(
        self, images: ImageSet, critic: TrainedCritic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("patchsvdd.detector.training_backend.train", None)
        monkeypatch.setattr("patchsvdd.detector.training_backend.train_critic", None)
        config = best(encoder="hierarchical")
        encoder = inspection_encoder(build_encoder(config), config)
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        learned = learn(images, config, CPU, encoder=encoder, critic=critic)
        assert all(torch.equal(before[name], value) for name, value in learned.encoder.state_dict().items())
        assert learned.critic is not None
        assert torch.equal(learned.critic(images.pixels), critic(images.pixels))
        assert learned.provenance["critic"] is None, "it was not trained here"

    def test_what_is_trained_is_told(self, learned: DetectorParts) -> None:
        assert learned.provenance["critic"]["steps"] == 1
        assert [row["step"] for row in learned.provenance["critic"]["history"]] == [1]
        assert learned.provenance["fusion"]["share"] == 0.5

    def test_a_critic_without_its_settings_is_refused(self, images: ImageSet, critic: TrainedCritic) -> None:
        with pytest.raises(ConfigError, match=r"give its settings too: critic=CriticSettings\("):
            learn(images, preset("encoder", **TINY), CPU, critic=critic)

    def test_without_a_critic_there_is_nothing_to_fuse(self, images: ImageSet) -> None:
        learned = learn(images, preset("encoder", **TINY, encoder="random"), CPU)
        assert learned.critic is None
        assert learned.map_builder.fusion is None
        assert learned.provenance["critic"] is None
        assert learned.provenance.get("fusion") is None
        assert learned.calibration is not None
        assert len(learned.calibration.scores) == COUNT


def test_validation_images_are_mapped_as_a_detector_would(images: ImageSet, learned: DetectorParts) -> None:
    drawn = ValidationSet.draw(images.pixels[:2], at_least=4)
    grids = grids_for(learned.encoder, best(), (64, 64))
    seen: list[int] = []
    with torch.inference_mode():
        parts = (learned.encoder, learned.normalization, grids, learned.map_builder)
        maps = map_images(drawn.images, *parts, lambda done, _: seen.append(done))
        embedded = learned.encoder.dense(learned.normalization(drawn.images), grids)
        queries = [one.flatten(2).transpose(1, 2) for one in embedded]
        expected = MapBuilder(learned.map_builder.memory).combine(
            MapBuilder(learned.map_builder.memory).distances(queries, grids)
        )
    torch.testing.assert_close(maps, expected.combined, rtol=1e-3, atol=1e-6)
    assert seen == list(range(1, len(drawn.images) + 1))
