from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.core.errors import ConfigError, DatasetError, ImageError, Interrupted
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.stored_memory import as_search
from patchsvdd.images.image_set import ImageLike
from patchsvdd.images.loading import load_good_images
from patchsvdd.memory.bank import Memory, ScaleMemory
from patchsvdd.scoring.anomaly_map import average_over_patches
from patchsvdd.scoring.fusion import SHARES, best_share
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.hooks import TrainingHooks
from support.parts import NO_ESTIMATE, TINY, TINY_CRITIC, assemble, draw_part, save_picture

UNTRAINED: dict[str, Any] = {"preset": "encoder", "image_size": 64, "encoder": "random", "device": "cpu", **NO_ESTIMATE}


def same_model(first: PatchSVDD, second: PatchSVDD) -> bool:
    """Whether two detectors hold the same weights, memory and threshold."""
    pairs = zip(first.encoder.state_dict().values(), second.encoder.state_dict().values(), strict=True)
    scales = [(first.memory.scales[size], second.memory.scales[size]) for size in first.memory.scales]
    return (
        all(torch.equal(a, b) for a, b in pairs)
        and all(torch.equal(a.embeddings, b.embeddings) for a, b in scales)
        and first.threshold == second.threshold
    )


def same_critic(first: PatchSVDD, second: PatchSVDD) -> bool:
    """Whether two detectors hold the same critic and fuse alike."""
    assert first.critic is not None
    assert second.critic is not None
    one, other = first.critic.state(), second.critic.state()
    return first.map_builder.fusion == second.map_builder.fusion and all(
        torch.equal(one[name], other[name]) for name in one
    )


def same_inspection(first: Inspection, second: Inspection) -> bool:
    return (
        first.score == second.score
        and np.array_equal(first.anomaly_map, second.anomaly_map)
        and np.array_equal(first.image, second.image)
        and first.regions == second.regions
        and first.image_size == second.image_size
    )


class TestFit:
    def test_from_anything_that_holds_the_same_images(
        self, good_folder: Path, good_pictures: list[NDArray[np.uint8]]
    ) -> None:
        stack = np.stack(good_pictures)
        sources: list[Any] = [
            good_folder,
            str(good_folder),
            good_pictures,
            stack,
            torch.from_numpy(stack).permute(0, 3, 1, 2),
            [Image.fromarray(picture) for picture in good_pictures],
            sorted(good_folder.iterdir()),
            (picture for picture in good_pictures),
        ]
        first, *others = (PatchSVDD.fit(source, **UNTRAINED) for source in sources)
        assert all(same_model(first, other) for other in others)
        assert first.memory.image_names == ("000.png", "001.png", "002.png", "003.png")
        assert others[1].memory.image_names == ("image 0", "image 1", "image 2", "image 3")

    def test_from_a_category(self, category: Path) -> None:
        whole = PatchSVDD.fit(category, **UNTRAINED)
        assert whole.memory.image_names == ("000.png", "001.png", "002.png")
        assert same_model(whole, PatchSVDD.fit(category / "train" / "good", **UNTRAINED))

    def test_the_seed_decides(self, detector: PatchSVDD, good_folder: Path) -> None:
        assert same_model(detector, PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **TINY))
        assert not same_model(detector, PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **TINY, seed=1))

    def test_the_threshold_comes_from_images_left_out(self, detector: PatchSVDD) -> None:
        assert detector.calibration is not None
        assert len(detector.calibration.scores) == 4
        assert min(detector.calibration.scores) > 0
        assert detector.threshold == max(detector.calibration.scores)  # four images cannot speak for 1 %
        assert detector.calibration.caveat is not None

    def test_leaving_an_image_out_is_inspecting_it_against_the_others(
        self, good_pictures: list[NDArray[np.uint8]]
    ) -> None:
        whole = PatchSVDD.fit(good_pictures, **UNTRAINED)
        assert whole.calibration is not None
        for image, picture in enumerate(good_pictures):
            others = {}
            for size, scale in whole.memory.scales.items():
                kept = scale.origins[:, 0] != image
                others[size] = ScaleMemory(scale.embeddings[kept], scale.origins[kept])
            memory = Memory(whole.memory.image_names, others)
            rest = assemble(whole.config, whole.encoder, whole.normalization, memory)
            assert rest.inspect(picture).score == pytest.approx(whole.calibration.scores[image], rel=1e-6)

    def test_says_how_the_model_came_about(self, detector: PatchSVDD) -> None:
        provenance = json.loads(json.dumps(detector.provenance))
        assert provenance["seed"] == 0
        assert provenance["data"]["images"] == 4
        assert provenance["data"]["image_size"] == [64, 64]
        assert provenance["training"]["steps"] == 2
        assert [row["step"] for row in provenance["training"]["history"]] == [1, 2]
        assert {"patchsvdd", "torch", "numpy", "python"} <= set(provenance["versions"])

    def test_stages_are_told(self, good_folder: Path) -> None:
        seen: list[tuple[str, int, int]] = []
        PatchSVDD.fit(good_folder, **UNTRAINED, on_stage=lambda *stage: seen.append(stage))
        assert {name for name, *_ in seen} == {"images", "copies", "memory", "threshold"}
        counted = [stage for stage in seen if stage[0] != "copies"]
        assert counted == [(stage, done, 4) for stage in ("images", "memory", "threshold") for done in range(1, 5)]

    def test_broken_images_are_set_aside_and_recorded(self, tmp_path: Path) -> None:
        for index in range(3):
            save_picture(tmp_path / f"{index}.png", draw_part(index))
        (tmp_path / "empty.png").touch()
        content = (tmp_path / "1.png").read_bytes()
        (tmp_path / "1.png").write_bytes(content[: len(content) // 2])
        detector = PatchSVDD.fit(tmp_path, **UNTRAINED)
        assert detector.memory.image_names == ("0.png", "2.png")
        skipped = detector.provenance["data"]["skipped"]
        assert len(skipped) == 2
        assert any("empty file" in reason for reason in skipped)
        assert any("1.png" in reason for reason in skipped)

    @pytest.mark.parametrize("count", [0, 1])
    def test_too_few_images_are_an_error(self, count: int) -> None:
        with pytest.raises(DatasetError, match="at least 2 good images"):
            PatchSVDD.fit([draw_part(index) for index in range(count)], **UNTRAINED)

    def test_settings_are_checked_first(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="unknown setting 'step'"):
            PatchSVDD.fit(tmp_path / "nowhere", step=1)
        with pytest.raises(ConfigError, match="no preset"):
            PatchSVDD.fit(tmp_path / "nowhere", preset="quick")

    @pytest.mark.parametrize("device", ["tpu", "cuda:99", "gpu 1"])
    def test_an_unknown_device_is_an_error(self, good_folder: Path, device: str) -> None:
        with pytest.raises(ConfigError, match="`device"):
            PatchSVDD.fit(good_folder, **(UNTRAINED | {"device": device}))

    def test_can_be_stopped(self, good_folder: Path) -> None:
        with pytest.raises(Interrupted, match="step 1 of 2"):
            PatchSVDD.fit(
                good_folder, preset="encoder", device="cpu", hooks=TrainingHooks(should_stop=lambda: True), **TINY
            )

    @pytest.mark.parametrize(
        "settings",
        [
            {"encoder": "raw"},
            {"encoder": "flat", "scales": (Scale(64, 16),), "steps": 1, "batch_size": 1, "pairs_per_crop": 8},
            {"preset": "paper", "steps": 1, "batch_size": 2},
        ],
        ids=["raw", "flat", "paper"],
    )
    def test_every_encoder_finds_a_spot(self, good_pictures: list[NDArray[np.uint8]], settings: dict[str, Any]) -> None:
        settings = {"preset": "encoder", **NO_ESTIMATE} | settings
        detector = PatchSVDD.fit(good_pictures, image_size=64, device="cpu", **settings)
        assert detector.inspect(draw_part(8, defect=True)).score > detector.inspect(draw_part(8)).score


class TestThinnedMemory:
    @pytest.fixture(scope="class")
    @classmethod
    def thinned(cls, good_folder: Path) -> PatchSVDD:
        return PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **TINY, memory="25%")

    def test_keeps_a_share_of_the_patches(self, detector: PatchSVDD, thinned: PatchSVDD) -> None:
        assert thinned.memory.image_names == detector.memory.image_names
        for size, scale in thinned.memory.scales.items():
            whole = detector.memory.scales[size]
            assert len(scale.embeddings) == len(whole.embeddings) // 4
            rows = whole.nearest(scale.embeddings)[1]
            assert torch.equal(whole.embeddings[rows], scale.embeddings), "patches of the images, not means of them"

    def test_the_threshold_comes_from_memories_of_other_images(self, detector: PatchSVDD, thinned: PatchSVDD) -> None:
        assert thinned.calibration is not None
        assert detector.calibration is not None
        assert len(thinned.calibration.scores) == 4
        assert all(np.isfinite(thinned.calibration.scores))
        assert min(thinned.calibration.scores) > 0
        # Each image meets fewer patches of fewer images than without thinning, so none of them comes nearer.
        pairs = zip(thinned.calibration.scores, detector.calibration.scores, strict=True)
        assert all(fewer >= every * (1 - 1e-6) for fewer, every in pairs)

    def test_saved_is_loaded(self, thinned: PatchSVDD, tmp_path: Path) -> None:
        thinned.save(tmp_path)
        loaded = PatchSVDD.load(tmp_path, "cpu")
        assert same_model(thinned, loaded)
        assert loaded.config.memory == "25%"
        picture = draw_part(9, defect=True)
        assert same_inspection(thinned.inspect(picture), loaded.inspect(picture))

    def test_a_number_of_patches(self, good_pictures: list[NDArray[np.uint8]]) -> None:
        few = PatchSVDD.fit(good_pictures[:2], **UNTRAINED, memory="10")  # two images: two folds
        assert {size: len(scale.embeddings) for size, scale in few.memory.scales.items()} == {32: 10, 64: 2}
        assert few.threshold > 0

    def test_everything_is_what_it_was(self, detector: PatchSVDD, good_folder: Path) -> None:
        assert same_model(detector, PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **TINY, memory="100%"))

    def test_stages_are_told(self, good_folder: Path) -> None:
        seen: list[tuple[str, int, int]] = []
        PatchSVDD.fit(good_folder, **UNTRAINED, memory="25%", on_stage=lambda *stage: seen.append(stage))
        assert list(dict.fromkeys(name for name, *_ in seen)) == ["images", "copies", "memory", "thinning", "threshold"]
        assert [stage for stage in seen if stage[0] == "threshold"] == [("threshold", done, 4) for done in range(1, 5)]


class TestLocalScaling:
    SETTINGS: ClassVar[dict[str, Any]] = UNTRAINED | {"local_scaling": True}

    @pytest.fixture(scope="class")
    @classmethod
    def local(cls, good_folder: Path) -> PatchSVDD:
        return PatchSVDD.fit(good_folder, **cls.SETTINGS)

    def test_distances_are_divided_by_the_reach_of_the_found_patch(self, local: PatchSVDD, good_folder: Path) -> None:
        plain = PatchSVDD.fit(good_folder, **UNTRAINED)
        image = torch.from_numpy(draw_part(50, defect=True)).permute(2, 0, 1)[None].float()
        scales = []
        for grid, queries in zip(plain.embedder.grids((64, 64)), plain.embedder(image), strict=True):
            memory = local.memory.scales[grid.scale.patch_size]
            distances, rows = plain.memory.scales[grid.scale.patch_size].nearest(queries[0])
            assert memory.local_scale is not None
            scales.append(average_over_patches((distances / memory.local_scale[rows]).view(1, *grid.shape), grid))
        torch.testing.assert_close(local.anomaly_maps(image).combined, scales[0] * scales[1])

    def test_the_threshold_is_of_scaled_distances(self, local: PatchSVDD) -> None:
        assert local.calibration is not None
        assert local.leave_one_out_scores((64, 64)) == pytest.approx(local.calibration.scores)
        # A good image lies about one reach away, and the middle reach is added to each.
        assert all(0.05 < score < 4 for score in local.calibration.scores)
        assert local.inspect(draw_part(50, defect=True)).score > local.threshold

    @pytest.mark.parametrize("more", [{}, {"memory": "50%"}, {"position_normalization": True}], ids=str)
    def test_saved_is_loaded(self, good_folder: Path, tmp_path: Path, more: dict[str, Any]) -> None:
        detector = PatchSVDD.fit(good_folder, **self.SETTINGS, **more)
        detector.save(tmp_path / "model")
        loaded = PatchSVDD.load(tmp_path / "model", "cpu")
        picture = draw_part(51, defect=True)
        assert same_inspection(loaded.inspect(picture), detector.inspect(picture))
        assert loaded.threshold == detector.threshold
        for size, scale in loaded.memory.scales.items():
            assert torch.equal(scale.local_scale, detector.memory.scales[size].local_scale)  # type: ignore[arg-type]

    def test_stages_are_told(self, good_folder: Path) -> None:
        seen: list[str] = []
        PatchSVDD.fit(good_folder, **self.SETTINGS, on_stage=lambda stage, *_: seen.append(stage))
        assert list(dict.fromkeys(seen)) == ["images", "copies", "memory", "reach", "threshold"]


class TestPositions:
    SETTINGS: ClassVar[dict[str, Any]] = UNTRAINED | {"position_normalization": True}

    def test_maps_are_multiples_of_what_is_usual(self, good_folder: Path) -> None:
        plain, placed = (PatchSVDD.fit(good_folder, **settings) for settings in (UNTRAINED, self.SETTINGS))
        assert plain.map_builder.positions is None
        assert placed.map_builder.positions is not None
        picture = draw_part(50, defect=True)
        expected = (
            plain.inspect(picture).anomaly_map
            / (placed.map_builder.positions.mean + placed.map_builder.positions.deviation).numpy()
        )
        found = placed.inspect(picture)
        np.testing.assert_allclose(found.anomaly_map, expected, rtol=1e-5)
        assert found.score == found.anomaly_map.max()
        assert placed.calibration is not None
        assert found.score > max(placed.calibration.scores)

    def test_saved_is_loaded(self, good_folder: Path, tmp_path: Path) -> None:
        detector = PatchSVDD.fit(good_folder, **self.SETTINGS, memory="50%")
        detector.save(tmp_path / "model")
        loaded = PatchSVDD.load(tmp_path / "model", "cpu")
        picture = draw_part(51, defect=True)
        assert same_inspection(loaded.inspect(picture), detector.inspect(picture))

    def test_each_image_by_itself_is_loaded_too(self, good_folder: Path, tmp_path: Path) -> None:
        detector = PatchSVDD.fit(good_folder, **UNTRAINED, centering="image")
        detector.save(tmp_path / "model")
        loaded = PatchSVDD.load(tmp_path / "model", "cpu")
        picture = draw_part(51)
        assert same_inspection(loaded.inspect(picture), detector.inspect(picture))
        assert loaded.inspect(picture // 2 + 90).score != loaded.inspect(picture).score  # contrast still counts
        lighter = loaded.inspect(np.clip(picture, 0, 240) + 10)
        assert lighter.score == pytest.approx(loaded.inspect(np.clip(picture, 0, 240)).score, rel=1e-3)


class TestCritic:
    SETTINGS: ClassVar[dict[str, Any]] = {"preset": "best", **TINY, **TINY_CRITIC, "device": "cpu"}

    def test_a_map_is_the_fusion_of_two(self, critical: PatchSVDD) -> None:
        inspection = critical.inspect(draw_part(9, defect=True))
        assert set(inspection.part_maps) == {"memory", "critic"}
        product = inspection.scale_maps[32] * inspection.scale_maps[64]
        np.testing.assert_allclose(inspection.part_maps["memory"], product, rtol=1e-6)
        assert 0 <= inspection.part_maps["critic"].min() <= inspection.part_maps["critic"].max() <= 1
        assert critical.map_builder.fusion is not None
        parts = [torch.from_numpy(inspection.part_maps[name]) for name in ("memory", "critic")]
        np.testing.assert_allclose(inspection.anomaly_map, critical.map_builder.fusion(*parts).numpy(), rtol=1e-5)
        assert inspection.score == inspection.anomaly_map.max()
        assert inspection.anomaly_map.dtype == np.float32

    def test_without_a_critic_there_are_no_parts(self, detector: PatchSVDD) -> None:
        assert detector.critic is None
        assert detector.inspect(draw_part(9)).part_maps == {}

    def test_the_threshold_comes_from_held_out_images(self, critical: PatchSVDD) -> None:
        assert critical.calibration is not None
        assert len(critical.calibration.scores) == 2
        assert critical.threshold == max(critical.calibration.scores)
        assert critical.inspect(draw_part(9, defect=True)).score > critical.inspect(draw_part(9)).score

    def test_the_seed_decides(self, critical: PatchSVDD, good_folder: Path) -> None:
        again, other = (PatchSVDD.fit(good_folder, **self.SETTINGS, seed=seed) for seed in (0, 1))
        assert same_critic(critical, again)
        assert same_model(critical, again)
        assert not same_critic(critical, other)

    def test_says_how_the_critic_came_about(self, critical: PatchSVDD) -> None:
        provenance = json.loads(json.dumps(critical.provenance))
        assert [row["step"] for row in provenance["critic"]["history"]] == [1, 2]
        assert provenance["critic"]["steps"] == 2
        assert provenance["fusion"]["share"] == 0.5
        assert provenance["training"]["steps"] == 2

    def test_the_share_is_chosen_where_none_is_given(self, good_folder: Path) -> None:
        settings = self.SETTINGS | {"fusion_share": None, "encoder": "random", "embedding_dim": 8}
        detector = PatchSVDD.fit(good_folder, **settings)
        assert detector.map_builder.fusion is not None
        assert detector.map_builder.fusion.share in SHARES
        told = detector.provenance["fusion"]
        assert told["share"] == detector.map_builder.fusion.share
        assert told["share"] == best_share({float(share): found for share, found in told["tried"].items()})
        assert detector.config.fusion_share is None

    @pytest.mark.parametrize("more", [{}, {"memory": "50%", "position_normalization": True}], ids=str)
    def test_saved_is_loaded(self, good_folder: Path, tmp_path: Path, more: dict[str, Any]) -> None:
        detector = PatchSVDD.fit(good_folder, **self.SETTINGS | {"encoder": "random"} | more)
        detector.save(tmp_path / "model")
        loaded = PatchSVDD.load(tmp_path / "model", "cpu")
        assert same_critic(detector, loaded)
        assert loaded.config == detector.config
        assert loaded.calibration == detector.calibration
        assert loaded.map_builder.fusion == detector.map_builder.fusion
        for picture in (draw_part(51), draw_part(51, defect=True)):
            found, expected = loaded.inspect(picture), detector.inspect(picture)
            assert same_inspection(found, expected)
            for name, part in expected.part_maps.items():
                assert np.array_equal(found.part_maps[name], part)

    @pytest.mark.parametrize("batch_size", [1, 2, 3])
    def test_many_equal_one_by_one(self, critical: PatchSVDD, batch_size: int) -> None:
        pictures = [draw_part(seed, defect=seed % 2 == 0) for seed in range(3)]
        for one, picture in zip(critical.inspect_many(pictures, batch_size=batch_size), pictures, strict=True):
            single = critical.inspect(picture)
            assert one.score == pytest.approx(single.score, rel=1e-3)
            np.testing.assert_allclose(one.part_maps["critic"], single.part_maps["critic"], rtol=1e-4)
            np.testing.assert_allclose(one.anomaly_map, single.anomaly_map, rtol=1e-2, atol=1e-2)

    def test_images_that_are_not_square(self) -> None:
        good = [draw_part(seed, (70, 101)) for seed in range(3)]
        settings = self.SETTINGS | {"image_size": "native", "encoder": "random", "memory": "20%"}
        detector = PatchSVDD.fit(good, **settings)
        for size in ((70, 101), (64, 75)):
            inspection = detector.inspect(draw_part(5, size, defect=True))
            assert inspection.anomaly_map.shape == inspection.part_maps["critic"].shape == size
            assert np.isfinite(inspection.anomaly_map).all()

    def test_two_images_are_enough(self, good_pictures: list[NDArray[np.uint8]]) -> None:
        detector = PatchSVDD.fit(good_pictures[:2], **self.SETTINGS | {"encoder": "random"})
        assert detector.calibration is not None
        assert len(detector.calibration.scores) == 1

    def test_good_images_that_are_all_alike(self) -> None:
        flat = [np.full((64, 64, 3), 90, np.uint8)] * 4
        settings = {name: value for name, value in self.SETTINGS.items() if name not in ("preset", "device")}
        config = preset("best", **settings | {"encoder": "random"})
        detector = PatchSVDD.fit_images(load_good_images(flat, config), config, device="cpu")
        inspection = detector.inspect(draw_part(0))
        assert np.isfinite(inspection.anomaly_map).all()
        assert inspection.is_anomalous
        assert not detector.inspect(flat[0]).is_anomalous

    def test_stages_are_told(self, good_folder: Path) -> None:
        seen: list[str] = []
        settings = self.SETTINGS | {"encoder": "random"}
        PatchSVDD.fit(good_folder, **settings, on_stage=lambda stage, *_: seen.append(stage))
        assert list(dict.fromkeys(seen)) == ["images", "copies", "critic", "features", "memory", "threshold", "unusual"]

    @pytest.mark.parametrize(
        ("asked", "told"), [(1, "step 1 of 2"), (2, "step 1 of 2 of the critic")], ids=["encoder", "critic"]
    )
    def test_an_interrupted_training_goes_on(
        self, critical: PatchSVDD, good_folder: Path, tmp_path: Path, asked: int, told: str
    ) -> None:
        # Both trainings ask once, after their first step of two.
        times = iter(range(1, 10))
        stopping = TrainingHooks(should_stop=lambda: next(times) == asked, checkpoint=CheckpointFile(tmp_path))
        with pytest.raises(Interrupted, match=f"{told}$"):
            PatchSVDD.fit(good_folder, **self.SETTINGS, hooks=stopping)
        resuming = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        resumed = PatchSVDD.fit(good_folder, **self.SETTINGS, hooks=resuming)
        assert same_model(critical, resumed)
        assert same_critic(critical, resumed)
        for part in ("training", "critic"):
            assert resumed.provenance[part]["history"] == critical.provenance[part]["history"]
        CheckpointFile(tmp_path).remove()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("stage", ["encoder", "critic"])
    def test_a_limited_training_goes_on_with_its_schedule(
        self, good_folder: Path, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = self.SETTINGS | {"steps": 50, "critic": replace(TINY_CRITIC["critic"], steps=6), "minutes": 0.04}
        monkeypatch.setattr("patchsvdd.detector.schedule._seconds_per_step", lambda *_: 0.1)
        stages: list[str] = []
        stopping = TrainingHooks(
            should_stop=lambda: stage == "encoder" or "critic" in stages, checkpoint=CheckpointFile(tmp_path)
        )
        with pytest.raises(Interrupted):
            PatchSVDD.fit(good_folder, **settings, hooks=stopping, on_stage=lambda name, *_: stages.append(name))
        monkeypatch.setattr(
            "patchsvdd.detector.schedule._seconds_per_step", lambda *_: 0.01
        )  # the machine is quicker today
        resuming = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        resumed = PatchSVDD.fit(good_folder, **settings, hooks=resuming)
        assert 0 < resumed.provenance["training"]["steps"] < 25, "there would be time for all 50 now"
        assert resumed.provenance["critic"]["steps"] == 6

    def test_other_settings_of_the_critic_are_named(self, good_folder: Path, tmp_path: Path) -> None:
        hooks = TrainingHooks(should_stop=lambda: True, checkpoint=CheckpointFile(tmp_path))
        with pytest.raises(Interrupted):
            PatchSVDD.fit(good_folder, **self.SETTINGS, hooks=hooks)
        wider = self.SETTINGS | {"critic": replace(TINY_CRITIC["critic"], width=3)}
        resuming = TrainingHooks(checkpoint=CheckpointFile(tmp_path), resume=True)
        with pytest.raises(ConfigError, match=r"critic was .*'width': 2.*now .*'width': 3"):
            PatchSVDD.fit(good_folder, **wider, hooks=resuming)


class TestSearch:
    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_unknown_kinds_name_the_flag(self, device: str) -> None:
        with pytest.raises(ConfigError, match="`search` must be one of auto, exact, graph; got 'tree'"):
            as_search("tree", torch.device(device))

    def test_a_graph_is_not_for_gpus(self) -> None:
        with pytest.raises(ConfigError, match=r"`search=graph` is for CPUs.*`search=exact`"):
            as_search("graph", torch.device("cuda"))

    def test_a_graph_takes_faiss(self, detector: PatchSVDD, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        detector.save(tmp_path)
        monkeypatch.setitem(sys.modules, "faiss", None)
        with pytest.raises(ConfigError, match="which `search=graph`"):
            PatchSVDD.load(tmp_path, "cpu", search="graph")
        assert same_model(detector, PatchSVDD.load(tmp_path, "cpu"))

    def test_options_of_load_are_checked(self, detector: PatchSVDD, tmp_path: Path) -> None:
        detector.save(tmp_path)
        wrong: list[dict[str, Any]] = [{"engine": "best"}, {"precision": "float8"}, {"search": "best"}]
        for options in wrong:
            ((name, value),) = options.items()
            with pytest.raises(ConfigError, match=f"`{name}` must be one of .*; got '{value}'"):
                PatchSVDD.load(tmp_path, "cpu", **options)


class TestInspect:
    def test_files_arrays_tensors_and_pil_images_agree(self, detector: PatchSVDD, tmp_path: Path) -> None:
        pixels = draw_part(9, defect=True)
        path = save_picture(tmp_path / "a.png", pixels)
        sources: list[ImageLike] = [
            path,
            str(path),
            pixels,
            Image.fromarray(pixels),
            torch.from_numpy(pixels).permute(2, 0, 1),
        ]
        first, *others = (detector.inspect(source) for source in sources)
        assert all(same_inspection(first, other) for other in others)
        assert first.name == str(path)

    def test_the_score_is_the_maximum_of_the_product_map(self, detector: PatchSVDD) -> None:
        inspection = detector.inspect(draw_part(9, defect=True))
        assert inspection.score == inspection.anomaly_map.max()
        assert set(inspection.scale_maps) == {32, 64}
        product = inspection.scale_maps[32] * inspection.scale_maps[64]
        np.testing.assert_allclose(inspection.anomaly_map, product, rtol=1e-6)
        assert inspection.anomaly_map.shape == (64, 64)
        assert inspection.anomaly_map.dtype == np.float32

    def test_a_training_image_scores_zero(self, detector: PatchSVDD, good_pictures: list[NDArray[np.uint8]]) -> None:
        for picture in good_pictures:
            inspection = detector.inspect(picture)
            assert inspection.score == pytest.approx(0, abs=1e-9)
            assert inspection.verdict == "good"
            assert inspection.regions == ()

    def test_a_defect_scores_above_a_good_image(self, detector: PatchSVDD) -> None:
        good, bad = detector.inspect(draw_part(9)), detector.inspect(draw_part(9, defect=True))
        assert bad.score > good.score
        assert bad.is_anomalous
        assert bad.verdict == "anomalous"
        assert bad.score > bad.threshold == detector.threshold
        left, top, right, bottom = bad.regions[0].box
        assert left < 32 < right
        assert top < 32 < bottom

    def test_regions_are_in_pixels_of_the_original(self, detector: PatchSVDD) -> None:
        large = np.kron(draw_part(9, defect=True), np.ones((4, 2, 1), np.uint8))  # 256 high, 128 wide
        inspection = detector.inspect(large)
        assert inspection.image_size == (256, 128)
        assert inspection.anomaly_map.shape == (64, 64)
        small = detector.inspect(draw_part(9, defect=True))
        assert [region.box for region in inspection.regions] == [
            (2 * left, 4 * top, 2 * right, 4 * bottom) for left, top, right, bottom in (r.box for r in small.regions)
        ]

    def test_the_same_image_gives_the_same_bits(self, detector: PatchSVDD) -> None:
        assert same_inspection(detector.inspect(draw_part(9)), detector.inspect(draw_part(9)))

    def test_without_threshold_nothing_is_anomalous(self, detector: PatchSVDD) -> None:
        parts = (detector.config, detector.encoder, detector.normalization, detector.memory)
        inspection = assemble(*parts).inspect(draw_part(9, defect=True))
        assert inspection.threshold == float("inf")
        assert not inspection.is_anomalous
        assert inspection.to_json()["threshold"] is None

    def test_json(self, detector: PatchSVDD) -> None:
        inspection = detector.inspect(draw_part(9, defect=True))
        data = json.loads(json.dumps(inspection.to_json()))
        assert data["score"] == inspection.score
        assert data["verdict"] == "anomalous"
        assert data["image_size"] == [64, 64]
        assert len(data["regions"]) == len(inspection.regions)

    def test_what_is_no_image_is_an_error(self, detector: PatchSVDD, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match="no such file"):
            detector.inspect(tmp_path / "nowhere.png")

    def test_the_third_scale_is_a_setting(self) -> None:
        scales = (Scale(32, 16), Scale(64, 16), Scale(128, 32))
        good = [draw_part(seed, (128, 140)) for seed in range(2)]
        detector = PatchSVDD.fit(good, **(UNTRAINED | {"image_size": "140x128"}), scales=scales)
        inspection = detector.inspect(draw_part(5, (128, 140), defect=True))
        assert set(inspection.scale_maps) == {32, 64, 128}
        product = inspection.scale_maps[32] * inspection.scale_maps[64] * inspection.scale_maps[128]
        np.testing.assert_allclose(inspection.anomaly_map, product, rtol=1e-5)
        assert detector.inspect(good[0]).score == pytest.approx(0, abs=1e-9)

    def test_a_third_scale_can_be_trained(self) -> None:
        settings: dict[str, Any] = {"steps": 1, "batch_size": 1, "pairs_per_crop": 8, "image_size": 128}
        scales = (Scale(32, 16), Scale(64, 32), Scale(128, 64))
        good = [draw_part(seed, (128, 128)) for seed in range(2)]
        detector = PatchSVDD.fit(good, preset="encoder", device="cpu", scales=scales, **settings, **NO_ESTIMATE)
        (row,) = detector.provenance["training"]["history"]
        assert set(row["scales"]) == {"32", "64", "128"}


@pytest.fixture(scope="module")
def native() -> PatchSVDD:
    """A detector that keeps images as they are, for images of 84 × 70 pixels."""
    return PatchSVDD.fit([draw_part(seed, (70, 84)) for seed in range(3)], **(UNTRAINED | {"image_size": "native"}))


class TestNativeSize:
    def test_images_are_not_resized(self, native: PatchSVDD) -> None:
        inspection = native.inspect(draw_part(0, (70, 84)))
        assert inspection.anomaly_map.shape == (70, 84)
        assert inspection.score == pytest.approx(0, abs=1e-9)

    @pytest.mark.parametrize("size", [(64, 64), (67, 131), (100, 84)])
    def test_other_sizes_can_be_inspected(self, native: PatchSVDD, size: tuple[int, int]) -> None:
        good, bad = (native.inspect(draw_part(4, size, defect)) for defect in (False, True))
        assert good.anomaly_map.shape == size
        assert good.image_size == size
        assert bad.score > good.score

    def test_too_small_an_image_is_an_error(self, native: PatchSVDD) -> None:
        with pytest.raises(ImageError, match="smaller than the largest patch"):
            native.inspect(draw_part(4, (63, 100)))

    def test_training_images_must_share_a_size(self) -> None:
        good = [draw_part(0, (70, 84)), draw_part(1, (84, 70))]
        with pytest.raises(DatasetError, match=r"differ in size.*`image_size`"):
            PatchSVDD.fit(good, **(UNTRAINED | {"image_size": "native"}))

    def test_a_mean_image_gives_way_to_its_mean_per_channel(self) -> None:
        good = [draw_part(seed, (70, 84)) for seed in range(3)]
        settings = UNTRAINED | {"image_size": "native", "preset": "paper"}
        assert PatchSVDD.fit(good, **settings).inspect(draw_part(4, (64, 90))).score > 0


class TestInspectMany:
    def test_equals_one_by_one_in_order(self, detector: PatchSVDD) -> None:
        pictures = [draw_part(seed, defect=seed % 2 == 0) for seed in range(5)]
        for batch_size in (None, 1, 2, 5, 7):
            many = list(detector.inspect_many(pictures, batch_size=batch_size))
            assert [one.name for one in many] == [f"image {index}" for index in range(5)]
            for one, picture in zip(many, pictures, strict=True):
                single = detector.inspect(picture)
                assert one.score == pytest.approx(single.score, rel=1e-3, abs=1e-9)
                np.testing.assert_allclose(one.anomaly_map, single.anomaly_map, rtol=1e-2, atol=1e-9)

    def test_a_stream_is_not_read_ahead(self, detector: PatchSVDD) -> None:
        drawn = 0

        def camera() -> Iterator[NDArray[np.uint8]]:
            nonlocal drawn
            for seed in range(50):
                drawn += 1
                yield draw_part(seed)

        for inspected, inspection in enumerate(detector.inspect_many(camera()), start=1):
            assert inspection.name == f"image {inspected - 1}"
            assert drawn <= inspected + 4
        assert drawn == 50

    def test_a_stream_may_be_left_early(self, detector: PatchSVDD) -> None:
        stream = detector.inspect_many(draw_part(seed) for seed in range(50))
        assert next(stream).name == "image 0"
        stream.close()  # type: ignore[attr-defined]

    def test_a_folder(self, detector: PatchSVDD, good_folder: Path) -> None:
        names = [inspection.name for inspection in detector.inspect_many(good_folder)]
        assert names == ["000.png", "001.png", "002.png", "003.png"]

    def test_stacks(self, detector: PatchSVDD, good_pictures: list[NDArray[np.uint8]]) -> None:
        stack = np.stack(good_pictures)
        assert len(list(detector.inspect_many(stack))) == 4
        assert len(list(detector.inspect_many(torch.from_numpy(stack).permute(0, 3, 1, 2)))) == 4
        assert len(list(detector.inspect_many(stack[0]))) == 1

    def test_nothing(self, detector: PatchSVDD) -> None:
        assert list(detector.inspect_many([])) == []

    def test_a_broken_image_raises(self, detector: PatchSVDD, tmp_path: Path) -> None:
        stream = detector.inspect_many([draw_part(0), tmp_path / "nowhere.png", draw_part(1)])
        assert next(stream).name == "image 0"
        with pytest.raises(ImageError, match=r"nowhere\.png: there is no such file"):
            list(stream)

    def test_a_broken_image_is_handed_to_on_error_and_left_out(self, detector: PatchSVDD, tmp_path: Path) -> None:
        errors: list[ImageError] = []
        images: list[ImageLike] = [draw_part(0), tmp_path / "nowhere.png", draw_part(1).astype(np.int32), draw_part(2)]
        many = list(detector.inspect_many(images, on_error=errors.append, batch_size=2))
        assert [inspection.name for inspection in many] == ["image 0", "image 3"]
        assert [error.name for error in errors] == [str(tmp_path / "nowhere.png"), "image 2"]

    def test_broken_files_of_a_folder_are_handed_to_on_error_too(self, detector: PatchSVDD, tmp_path: Path) -> None:
        save_picture(tmp_path / "a.png", draw_part(0))
        (tmp_path / "b.png").touch()
        errors: list[ImageError] = []
        assert len(list(detector.inspect_many(tmp_path, on_error=errors.append))) == 1
        assert [error.reason for error in errors] == ["is an empty file"]
        with pytest.raises(ImageError, match="is an empty file"):
            list(detector.inspect_many(tmp_path))

    def test_sizes_may_change_in_the_stream(self) -> None:
        native = PatchSVDD.fit([draw_part(seed) for seed in range(2)], **(UNTRAINED | {"image_size": "native"}))
        sizes = [(64, 64), (64, 64), (70, 64), (64, 64), (64, 90), (64, 90)]
        many = native.inspect_many([draw_part(0, size) for size in sizes], batch_size=4)
        assert [inspection.anomaly_map.shape for inspection in many] == sizes
