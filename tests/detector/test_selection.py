from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from patchsvdd.core.config import Config, CriticSettings
from patchsvdd.core.errors import Interrupted, TrainingCollapsed
from patchsvdd.core.presets import preset
from patchsvdd.critic.validation import ValidationResult, ValidationSet, hold_out
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.selection import APPLIED, TRAINED, Selection, select
from patchsvdd.encoder.networks import PatchEncoder, build_encoder
from patchsvdd.images.image_set import ImageSet
from patchsvdd.scoring.ranking import MARGIN
from patchsvdd.training.hooks import TrainingHooks, TrainingRecord
from support.parts import TINY, draw_part

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CRITIC = CriticSettings(width=2, steps=1, batch_size=2)
Judge = Callable[[Config], float]
"""The criterion of a setting."""


def image_set(count: int) -> ImageSet:
    pictures = np.stack([draw_part(seed) for seed in range(count)])
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    return ImageSet(tuple(f"{index}.png" for index in range(count)), pixels, ())


def auto(**changes: Any) -> Config:
    return preset("auto", **(TINY | {"steps": 100, "critic": CRITIC, "stop": "validation"} | changes))


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return image_set(5)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Judge], list[Config]]:
    """Lets settings be worth what the judge says, without training or inspecting; returns those that were trained."""

    def install(judge: Judge) -> list[Config]:
        trained: list[Config] = []

        def learn(images: ImageSet, config: Config, *_: object) -> tuple[PatchEncoder, TrainingRecord]:
            trained.append(config)
            if judge(config) < 0:
                raise TrainingCollapsed("as the judge wanted it")
            return build_encoder(config), TrainingRecord(0, 0.0, [])

        def result(encoder: object, part: object, drawn: object, config: Config, *_: object) -> ValidationResult:
            return ValidationResult(judge(config), judge(config), 0.0, 0.0, 0.0)

        def to(tensor: Tensor, *where: Any, **how: Any) -> Tensor:
            moved: Tensor = tensor if where == (GPU,) else move(tensor, *where, **how)
            return moved

        move = Tensor.to
        monkeypatch.setattr(Tensor, "to", to)  # there may be no GPU, and nothing is computed on it
        monkeypatch.setattr("patchsvdd.detector.selection.ValidationSet", SimpleNamespace(draw=lambda *_, **__: None))
        monkeypatch.setattr("patchsvdd.detector.selection.learn_encoder", learn)
        monkeypatch.setattr("patchsvdd.detector.selection.judge", result)
        return trained

    return install


def names(selection: Selection, kept: bool | None = None) -> list[str]:
    return [trial.name for trial in selection.trials if kept is None or trial.kept == kept]


class TestChoice:
    @pytest.mark.parametrize("seed", range(6))
    def test_never_worse_than_the_start(
        self, images: ImageSet, judged: Callable[[Judge], list[Config]], seed: int
    ) -> None:
        known: dict[Config, float] = {}
        random = np.random.default_rng(seed)

        def judge(config: Config) -> float:
            config = dataclasses.replace(config, critic=None, selection=False)
            return known.setdefault(config, float(random.choice([0.2, 0.5, 0.501, 0.7, 0.9, -1])))

        judged(judge)
        found = select(images, auto(), GPU)
        kept = [trial for trial in found.trials if trial.kept]
        results = [trial.result.criterion for trial in kept if trial.result is not None]
        assert results == sorted(results)
        assert all(after > before + MARGIN for before, after in pairwise(results))
        if kept:
            assert dataclasses.replace(found.config, critic=None, stop="end") == kept[-1].config
            assert max(known.values()) <= results[-1] + MARGIN
        else:
            assert found.config == dataclasses.replace(auto(), selection=False)

    def test_each_change_is_tried_on_top_of_those_kept(
        self, images: ImageSet, judged: Callable[[Judge], list[Config]]
    ) -> None:
        trained = judged(lambda config: 0.5 + 0.1 * (config.lambda_ == 1.0) + 0.1 * config.local_scaling)
        found = select(images, auto(), GPU, reload=lambda _: images)
        assert names(found, kept=True) == ["as the preset has it", "λ 1", "local scaling"]
        assert (found.config.lambda_, found.config.local_scaling) == (1.0, True)
        assert [config.lambda_ for config in trained] == [0.3, 0.1, *(1.0,) * (len(TRAINED) - 1)]
        assert len(found.trials) == 1 + len(TRAINED) + len(APPLIED)
        assert found.trials[-1].config.local_scaling, "kept while the memory is tried"

    def test_chance_does_not_decide(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        start = dataclasses.replace(auto(), critic=None, selection=False, stop="end")
        judged(lambda config: 0.5 + 0.9 * MARGIN * (config != start))
        assert names(select(images, auto(), GPU), kept=True) == ["as the preset has it"]

    def test_the_critic_is_left_for_later(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        trained = judged(lambda _: 0.5)
        found = select(images, auto(), GPU)
        assert all(config.critic is None for config in trained)
        assert found.config.critic == CRITIC
        assert found.config.preset == "auto"
        assert not found.config.selection, "nothing is left to be chosen"

    @pytest.mark.parametrize("stop", ["validation", "end"])
    def test_so_is_whether_training_helps_at_all(
        self, images: ImageSet, judged: Callable[[Judge], list[Config]], stop: str
    ) -> None:
        trained = judged(lambda config: 0.5 + 0.1 * (config.lambda_ == 1.0) + 0.1 * config.local_scaling)
        found = select(images, auto(stop=stop), GPU)
        assert {config.stop for config in trained} == {"end"}, "trials are compared as they were trained"
        assert {trial.config.stop for trial in found.trials} == {"end"}
        assert (found.config.stop, found.config.lambda_) == (stop, 1.0)

    def test_steps_are_factors(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        trained = judged(lambda _: 0.5)
        select(images, auto(steps=101), GPU)
        assert {config.steps for config in trained} == {101, round(50.5), 202}

    def test_of_epochs_too(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        trained = judged(lambda _: 0.5)
        select(images, auto(epochs=2, steps=None), GPU)
        whole = 2 * 100 * len(hold_out(len(images))[0])
        assert {config.steps for config in trained} == {None, whole // 2, 2 * whole}

    def test_limited_time_is_not_spent_on_more_steps(
        self, images: ImageSet, judged: Callable[[Judge], list[Config]]
    ) -> None:
        trained = judged(lambda _: 0.5)
        select(images, auto(minutes=5.0), GPU)
        assert {config.steps for config in trained} == {100}

    @pytest.mark.parametrize("better", [True, False])
    def test_another_resize_filter_takes_other_pixels(
        self, images: ImageSet, judged: Callable[[Judge], list[Config]], better: bool
    ) -> None:
        others = image_set(5)
        loaded: list[Config] = []

        def reload(config: Config) -> ImageSet:
            loaded.append(config)
            return others

        judged(lambda config: 0.9 if config.resize == "nearest" and better else 0.5)
        found = select(images, auto(), GPU, reload=reload)
        assert [config.resize for config in loaded] == ["nearest"]
        assert found.images is (others if better else images)
        assert found.config.resize == ("nearest" if better else "area")

    def test_where_images_cannot_be_loaded_anew_the_filter_stays(
        self, images: ImageSet, judged: Callable[[Judge], list[Config]]
    ) -> None:
        trained = judged(lambda _: 0.5)
        assert select(images, auto(), GPU).images is images
        assert {config.resize for config in trained} == {"area"}

    def test_on_a_cpu_nothing_is_trained_twice(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        trained = judged(lambda _: 0.5)
        found = select(images, auto(), CPU)
        assert len(trained) == 1
        assert names(found) == ["as the preset has it", *(name for name, _ in APPLIED)]

    def test_what_is_set_already_is_not_tried(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        judged(lambda _: 0.5)
        found = select(images, auto(local_scaling=True, memory="10%"), CPU)
        assert names(found) == ["as the preset has it", "position normalisation"]

    def test_two_images_leave_nothing_to_choose_by(self) -> None:
        two = image_set(2)
        assert select(two, auto(), CPU) == Selection(dataclasses.replace(auto(), selection=False), two, ())

    def test_stages_are_told(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        judged(lambda _: 0.5)
        seen: list[tuple[str, int, int]] = []
        select(images, auto(), CPU, on_stage=lambda *stage: seen.append(stage))
        assert seen == [("selection", done, len(APPLIED)) for done in range(len(APPLIED) + 1)]


class TestCollapse:
    def test_of_a_candidate_is_survived(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        judged(lambda config: -1.0 if config.lambda_ == 1.0 else 0.5)
        found = select(images, auto(), GPU)
        (collapsed,) = [trial for trial in found.trials if trial.result is None]
        assert (collapsed.name, collapsed.kept) == ("λ 1", False)
        assert found.config.lambda_ == 0.3
        assert {"setting": "λ 1", "kept": False} in found.to_json()

    def test_of_the_start_too(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        judged(lambda config: 0.5 if config.lambda_ == 0.1 else -1.0)
        found = select(images, auto(), GPU)
        assert names(found, kept=True) == ["λ 0.1"]
        assert found.config.lambda_ == 0.1

    def test_of_everything_leaves_the_start(self, images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
        judged(lambda _: -1.0)
        found = select(images, auto(), GPU)
        assert names(found, kept=True) == []
        assert found.config == dataclasses.replace(auto(), selection=False)


class TestInEarnest:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _few(cls) -> Iterator[None]:
        """Few drawn defects to judge by."""
        draw = partial(ValidationSet.draw, at_least=8)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("patchsvdd.detector.selection.ValidationSet.draw", draw)
            yield

    @pytest.fixture(scope="class")
    @classmethod
    def found(cls, images: ImageSet) -> Selection:
        return select(images, auto(encoder="random", embedding_dim=8), CPU)

    def test_every_trial_is_judged(self, found: Selection) -> None:
        assert names(found) == ["as the preset has it", *(name for name, _ in APPLIED)]
        assert found.trials[0].kept
        for trial in found.trials:
            assert trial.result is not None
            assert 0 < trial.result.criterion <= 1
        best = max(trial.result.criterion for trial in found.trials if trial.kept and trial.result)
        first = found.trials[0].result
        assert first is not None
        assert best >= first.criterion

    def test_again_is_the_same(self, images: ImageSet, found: Selection) -> None:
        torch.manual_seed(99)
        assert select(images, auto(encoder="random", embedding_dim=8), CPU) == found

    def test_in_json(self, found: Selection) -> None:
        rows = json.loads(json.dumps(found.to_json()))
        assert [row["setting"] for row in rows] == names(found)
        assert rows[0]["kept"] is True
        assert {"criterion", "detection_auroc", "segmentation_auroc"} <= set(rows[0])

    def test_held_out_images_are_not_learned_from(self, images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[ImageSet] = []

        def learn(part: ImageSet, config: Config, *_: object) -> tuple[PatchEncoder, TrainingRecord]:
            seen.append(part)
            raise TrainingCollapsed("seen enough")

        monkeypatch.setattr("patchsvdd.detector.selection.learn_encoder", learn)
        select(images, auto(), CPU)
        trained, held_out = hold_out(len(images))
        assert {part.names for part in seen} == {tuple(images.names[index] for index in trained)}
        assert not {images.names[index] for index in held_out} & set(seen[0].names)

    def test_can_be_stopped(self, images: ImageSet) -> None:
        with pytest.raises(Interrupted, match="step 1 of 2"):
            select(images, auto(steps=2), CPU, should_stop=lambda: True)


def test_a_model_tells_what_was_tried(images: ImageSet, judged: Callable[[Judge], list[Config]]) -> None:
    judged(lambda config: 0.5 + 0.1 * config.local_scaling)
    config = auto(encoder="random", fusion_share=0.5)
    detector = PatchSVDD.fit_images(images, config, device="cpu", hooks=TrainingHooks())
    rows = json.loads(json.dumps(detector.provenance))["selection"]
    assert [row["setting"] for row in rows if row["kept"]] == ["as the preset has it", "local scaling"]
    assert detector.config == config.replace(local_scaling=True, selection=False)
    assert all(scale.local_scale is not None for scale in detector.memory.scales.values())
    assert detector.critic is not None
