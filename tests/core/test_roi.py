"""A region of interest: what lies outside is neither learned, searched nor scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import Image

from patchsvdd import ConfigError, DatasetError, ImageError, PatchSVDD, Roi
from patchsvdd.core.config import Config
from patchsvdd.core.presets import preset
from patchsvdd.core.roi import PixelMask, polygon_mask
from patchsvdd.core.scales import Scale
from patchsvdd.detector.drift import statistics_of_inspection
from patchsvdd.detector.memory_update import add_images, undo
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.encoder.networks import build_encoder, grids_for
from patchsvdd.images.image_set import load_image
from patchsvdd.images.roi_input import roi_for
from patchsvdd.memory.bank import memory_bytes
from patchsvdd.training.pairs import CutPairs, DensePairs
from support.command_line import NO_ESTIMATE, run
from support.parts import TINY, TINY_CRITIC, draw_part, save_picture

pytestmark = pytest.mark.slow

SIZE = (112, 128)
"""Of the images here."""
SMALL: dict[str, Any] = {**TINY, "image_size": SIZE, "crop_size": 64}
masks = arrays(np.bool_, st.tuples(st.integers(2, 24), st.integers(2, 24)))


def ring() -> NDArray[np.bool_]:
    """Half a ring: a box around it holds much that does not count."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    distance = np.hypot(y - 50, x - 60)
    return np.asarray((distance < 46) & (distance > 38) & (x < 80))


def pictures(count: int, first: int = 0, defect: bool = False) -> list[NDArray[np.uint8]]:
    return [draw_part(first + seed, SIZE, defect) for seed in range(count)]


def scrambled(picture: NDArray[np.uint8], mask: NDArray[np.bool_], seed: int = 0) -> NDArray[np.uint8]:
    """The picture with something else wherever the mask is not set."""
    noise = np.random.default_rng(seed).integers(0, 256, picture.shape, dtype=np.uint8)
    return np.where(mask[..., None], picture, noise)


def fit(images: list[NDArray[np.uint8]], roi: Any, name: str = "encoder", **settings: Any) -> PatchSVDD:
    return PatchSVDD.fit(images, preset=name, device="cpu", roi=roi, **{**SMALL, **settings})


@pytest.fixture(scope="module")
def ringed() -> PatchSVDD:
    return fit(pictures(4), ring())


@pytest.fixture(scope="module")
def ringed_critic() -> PatchSVDD:
    return fit(pictures(4), ring(), "best", **TINY_CRITIC)


class TestArea:
    @given(masks, st.integers(1, 8))
    def test_touching_is_told_as_by_looking(self, mask: NDArray[np.bool_], side: int) -> None:
        rows, columns = (list(range(0, max(1, length - side + 1), 2)) for length in mask.shape)
        found = PixelMask.of(mask).touching(rows, columns, side)
        for i, top in enumerate(rows):
            for j, left in enumerate(columns):
                bottom = mask.shape[0] if i == len(rows) - 1 else top + side
                right = mask.shape[1] if j == len(columns) - 1 else left + side
                assert found[i, j] == mask[top:bottom, left:right].any()

    @given(masks)
    def test_bits_are_the_mask(self, mask: NDArray[np.bool_]) -> None:
        area = PixelMask.of(mask)
        assert (area.mask == mask).all()
        assert area == PixelMask.of(mask.copy())
        assert hash(area) == hash(PixelMask.of(mask.copy()))


class TestFrame:
    @given(masks, st.integers(1, 16))
    def test_holds_all_that_counts_and_is_large_enough(self, mask: NDArray[np.bool_], least: int) -> None:
        if not mask.any():
            return
        frame = Roi.of(mask).frame((mask.shape[0], mask.shape[1]), least)
        top, left, bottom, right = frame.box
        assert 0 <= top < bottom <= mask.shape[0]
        assert 0 <= left < right <= mask.shape[1]
        assert frame.size[0] >= min(least, mask.shape[0])
        assert frame.size[1] >= min(least, mask.shape[1])
        inside = np.ones(frame.size, np.bool_) if frame.area is None else frame.area.mask
        assert (frame.spread(inside) == mask).all()

    def test_paints_over_what_does_not_count(self) -> None:
        picture, mask = pictures(1)[0], ring()
        frame = Roi.of(mask, (1, 2, 3)).frame(SIZE, 64)
        seen = frame.cut(picture)
        top, left, bottom, right = frame.box
        counts = mask[top:bottom, left:right]
        assert (seen[~counts] == (1, 2, 3)).all()
        assert (seen[counts] == picture[top:bottom, left:right][counts]).all()

    def test_follows_the_size_of_the_image(self) -> None:
        roi = Roi.of(ring())
        small = roi.at((56, 64))
        assert abs(small.mask.mean() - roi.share) < 0.02
        assert roi.fits((56, 64))
        assert not roi.fits((64, 56))

    def test_never_vanishes(self) -> None:
        mask = np.zeros((100, 100), np.bool_)
        mask[50, 50] = True
        assert Roi.of(mask).at((10, 10)).mask.sum() == 1

    def test_nothing_is_no_region(self) -> None:
        with pytest.raises(ConfigError, match="empty"):
            Roi.of(np.zeros((4, 4), np.bool_))


class TestDrawing:
    """The ways in which a region may be given."""

    def first(self) -> list[tuple[str, NDArray[np.uint8]]]:
        return [("first", pictures(1)[0])]

    def box(self) -> NDArray[np.bool_]:
        mask = np.zeros(SIZE, np.bool_)
        mask[20:61, 10:51] = True
        return mask

    @pytest.mark.parametrize(
        "data",
        [
            [[[10, 20], [50, 20], [50, 60], [10, 60]]],
            {"polygons": [[[10, 20], [50, 60]]]},
            {"shapes": [{"shape_type": "rectangle", "points": [[10, 20], [50, 60]]}]},
        ],
    )
    def test_json(self, data: Any, tmp_path: Path) -> None:
        path = tmp_path / "roi.json"
        path.write_text(json.dumps(data))
        assert (roi_for(path, self.first()).area.mask == self.box()).all()

    @pytest.mark.parametrize("text", ["10,20 50,60", "10,20 50,20 50,60 10,60", "10,20 50,40; 10,40 50,60"])
    def test_text(self, text: str) -> None:
        assert (roi_for(text, self.first()).area.mask == self.box()).all()

    @pytest.mark.parametrize("white", [1, 255])
    def test_mask(self, white: int, tmp_path: Path) -> None:
        Image.fromarray((self.box() * white).astype(np.uint8)).save(tmp_path / "mask.png")
        assert (roi_for(tmp_path / "mask.png", self.first()).area.mask == self.box()).all()
        assert (roi_for(self.box(), self.first()).area.mask == self.box()).all()

    def test_mask_of_half_the_size_fits(self) -> None:
        assert roi_for(self.box()[::2, ::2], self.first()).fits(SIZE)

    def test_outside_gets_the_colour_of_the_inside(self) -> None:
        picture = pictures(1)[0]
        roi = roi_for(self.box(), [("first", picture)])
        assert roi.fill == tuple(picture[self.box()].mean(0).round().astype(int))

    @pytest.mark.parametrize(
        ("drawn", "words"),
        [
            ("nowhere.png", "no such file"),
            ("1,2", "points like"),
            ("1,2 3", "points like"),
            ("1,nan 2,3 4,5", "points like"),
            ("900,900 950,950", "empty"),
            (np.ones((4, 4, 3)), "array of shape"),
            (np.ones((40, 20)), "20x40"),
        ],
    )
    def test_what_is_no_region_is_refused(self, drawn: Any, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            roi_for(drawn, self.first())

    @pytest.mark.parametrize("content", ["{", "[]", "{}", '{"shapes": [{"shape_type": "circle"}]}', "[[[1]]]"])
    def test_json_that_is_none_is_refused(self, content: str, tmp_path: Path) -> None:
        path = tmp_path / "roi.json"
        path.write_text(content)
        with pytest.raises(ConfigError, match="`roi"):
            roi_for(path, self.first())

    def test_takes_the_first_image_that_can_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "broken.png").write_bytes(b"no image")
        assert roi_for("10,20 50,60", [("broken", tmp_path / "broken.png"), *self.first()]).size == SIZE
        with pytest.raises(DatasetError, match="no usable image"):
            roi_for("10,20 50,60", [("broken", tmp_path / "broken.png")])

    def test_polygons_reach_over_the_edge(self) -> None:
        assert polygon_mask([[(-50, -50), (500, -50), (500, 500), (-50, 500)]], SIZE).all()


class TestLearned:
    """A model that has learned a region has seen nothing else."""

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("encoder", {}),
            ("best", TINY_CRITIC),
            ("paper", {"steps": 2, "batch_size": 4}),
            ("encoder", {"position_normalization": True, "local_scaling": True, "memory": "50%"}),
            ("encoder", {"objective": "svdd"}),
        ],
    )
    def test_what_lies_outside_changes_nothing(self, name: str, settings: dict[str, Any]) -> None:
        mask = ring()
        roi = roi_for(mask, [("first", pictures(1)[0])])
        one, other = (fit(images, roi, name, **settings) for images in (pictures(4), self.elsewhere(mask)))
        for size, scale in one.memory.scales.items():
            assert torch.equal(scale.embeddings, other.memory.scales[size].embeddings)
        assert one.threshold == other.threshold
        new = draw_part(9, SIZE, defect=True)
        assert one.inspect(new).score == other.inspect(scrambled(new, mask, 3)).score

    def elsewhere(self, mask: NDArray[np.bool_]) -> list[NDArray[np.uint8]]:
        return [scrambled(picture, mask, seed) for seed, picture in enumerate(pictures(4))]

    def test_defects_count_inside_alone(self, ringed: PatchSVDD) -> None:
        good = draw_part(9, SIZE)
        spoilt = good.copy()
        spoilt[40:60, 50:70] = (0, 255, 0)  # the hole of the ring
        assert ringed.inspect(spoilt).score == ringed.inspect(good).score
        spoilt[40:60, 16:24] = (0, 255, 0)  # the ring itself
        assert ringed.inspect(spoilt).score > 1.5 * ringed.inspect(good).score

    @pytest.mark.parametrize("model", ["ringed", "ringed_critic"])
    def test_maps_are_of_the_whole_image_and_nothing_outside(self, model: str, request: pytest.FixtureRequest) -> None:
        detector: PatchSVDD = request.getfixturevalue(model)
        picture = draw_part(9, SIZE, defect=True)
        found = detector.inspect(picture)
        assert (found.image == picture).all()
        for one in (found.anomaly_map, *found.scale_maps.values(), *found.part_maps.values()):
            assert one.shape == SIZE
            assert (one[~ring()] == 0).all()
        assert found.score == found.anomaly_map.max() == found.anomaly_map[ring()].max() > 0
        assert found.inside is not None
        assert (found.inside == ring()).all()

    def test_memory_has_only_patches_of_it(self, ringed: PatchSVDD) -> None:
        frame = ringed.config.frame
        assert frame is not None
        assert frame.area is not None
        left_out = 0
        for grid in ringed.embedder.grids(frame.size):
            size, scale = grid.scale.patch_size, ringed.memory.scales[grid.scale.patch_size]
            assert len(scale.embeddings) == 4 * grid.count
            left_out += grid.shape[0] * grid.shape[1] - grid.count
            for _, top, left in scale.origins.tolist():
                assert frame.area.mask[top : top + size + 1, left : left + size + 1].any()
        assert left_out > 0
        rows = sum(len(scale.embeddings) for scale in ringed.memory.scales.values())
        assert memory_bytes(ringed.config, frame.size, 4) == rows * 4 * (64 + 3)

    def test_boxes_are_searched_alone(self) -> None:
        roi = Roi.of(polygon_mask([[(0, 0), (63, 63)]], SIZE))
        detector = fit(pictures(3), roi)
        assert detector.config.frame is not None
        assert detector.config.frame.area is None
        assert detector.provenance["data"]["image_size"] == [64, 64]
        plain = PatchSVDD.fit([one[:64, :64] for one in pictures(3)], preset="encoder", device="cpu", **TINY)
        assert detector.threshold == plain.threshold
        new = draw_part(9, SIZE, defect=True)
        assert detector.inspect(new).score == plain.inspect(new[:64, :64]).score

    def test_a_region_smaller_than_a_patch_is_learned(self) -> None:
        detector = fit(pictures(3), "100,90 110,100")
        assert detector.config.frame is not None
        assert detector.config.frame.size == (64, 64)
        assert detector.inspect(pictures(1)[0]).anomaly_map.astype(bool).sum() <= 11 * 11

    def test_an_area_larger_than_the_region_is_refused(self, ringed: PatchSVDD) -> None:
        counting = int(ring().sum())
        with pytest.raises(ConfigError, match=f"only {counting} pixels count"):
            fit(pictures(3), ring(), min_area=counting + 1)
        with pytest.raises(ConfigError, match="only 8 pixels count"):
            ringed.with_min_area(9).with_roi(Roi.of(polygon_mask([[(16, 40), (19, 41)]], SIZE)))
        spoilt = draw_part(9, SIZE)
        spoilt[40:60, 14:24] = (0, 255, 0)
        assert 0 < ringed.with_min_area(60).inspect(spoilt).score < ringed.inspect(spoilt).score

    def test_images_of_another_shape_are_set_aside(self, ringed: PatchSVDD) -> None:
        odd: list[ImageError] = []
        images = [draw_part(5, (128, 112)), draw_part(6, SIZE), draw_part(7, (224, 256))]
        assert len(list(ringed.inspect_many(images, on_error=odd.append))) == 2
        assert "drawn for images of 128x112" in str(odd[0])

    def test_native_images_must_have_its_size(self) -> None:
        detector = fit(pictures(3), ring(), image_size="native")
        assert detector.inspect(draw_part(5, SIZE)).anomaly_map.shape == SIZE
        with pytest.raises(ImageError, match="drawn for"):
            detector.inspect(draw_part(5, (224, 256)))

    def test_drift_is_of_what_is_seen(self, ringed: PatchSVDD) -> None:
        known = ringed.calibration
        assert known is not None
        for picture in (pictures(1)[0], scrambled(pictures(1)[0], ring())):
            found = statistics_of_inspection(ringed.inspect(picture), ringed.config.frame)
            for trait in ("light", "contrast", "colour", "focus"):
                assert found[trait] == pytest.approx(known.traits[trait][0], rel=1e-5)
        assert min(known.traits["distance"]) > 0

    def test_survives_saving(self, ringed: PatchSVDD, tmp_path: Path) -> None:
        ringed.save(tmp_path / "model")
        loaded = PatchSVDD.load(tmp_path / "model", "cpu")
        assert loaded.config == ringed.config
        picture = draw_part(9, SIZE, defect=True)
        assert (loaded.inspect(picture).anomaly_map == ringed.inspect(picture).anomaly_map).all()

    def test_a_damaged_region_is_told(self, ringed: PatchSVDD) -> None:
        data = ringed.config.to_json()
        with pytest.raises(ConfigError, match="region of interest cannot be read"):
            Config.from_json(data | {"roi": {**data["roi"], "packed": "AAAA"}})

    def test_explains_in_pixels_of_the_whole_image(self, ringed: PatchSVDD) -> None:
        spoilt = draw_part(9, SIZE)
        spoilt[40:60, 14:24] = (0, 255, 0)
        found = ringed.inspect(spoilt)
        for scale in found.explain().reasons[0].scales:
            left, top, right, bottom = scale.working_box
            x, y = (
                found.regions[0].peak_at if found.regions else np.unravel_index(found.anomaly_map.argmax(), SIZE)[::-1]
            )
            assert left <= x < right
            assert top <= y < bottom
            assert scale.distance > 0

    def test_calibrates_and_grows(self, ringed: PatchSVDD, tmp_path: Path) -> None:
        ringed.save(tmp_path / "model")
        loaded = PatchSVDD.load(tmp_path / "model", "cpu")
        found = recalibrate(loaded, pictures(4, first=20), 0.2, pixel_rate=0.01)
        assert found.calibration.pixel_threshold is not None
        assert found.calibration.pixel_threshold > 0  # pixels outside would have made it 0
        change = add_images(tmp_path / "model", [scrambled(one, ring()) for one in pictures(2, first=30)], device="cpu")
        grown = PatchSVDD.load(tmp_path / "model", "cpu")
        assert change.total == 6
        assert grown.inspect(pictures(1, first=30)[0]).score < 1e-5
        undo(tmp_path / "model")

    @pytest.mark.parametrize("sampling", ["patches", "dense"])
    def test_pairs_begin_where_something_counts(self, sampling: str) -> None:
        mask = np.zeros(SIZE, np.bool_)
        mask[:, :8] = mask[:, -8:] = True
        config = preset("encoder", roi=Roi.of(mask), sampling=sampling, image_size=SIZE, crop_size=112)
        images = torch.zeros(1, 3, *SIZE)
        generator, encoder = torch.Generator().manual_seed(0), build_encoder(config)
        if sampling == "patches":
            left = CutPairs(encoder, images, config, generator).sampler.jitter_pairs(1000, 32).first[:, 1]
            assert ((left < 8) | (left > SIZE[1] - 8 - 32)).all()
            return
        source = DensePairs(encoder, images, config, generator)
        views = source._views()[: config.batch_size]
        places = torch.arange(41).expand(len(views), 1, 41, 41).float()  # the column, as a feature
        offset = torch.ones((config.batch_size * config.pairs_per_crop, 2), dtype=torch.int64)
        column = source._read(32, places, places, offset)[0][:, 0]
        left = source._corner[:, 1].repeat_interleave(config.pairs_per_crop) + 2 * column
        touching = ((left < 8) | (left > SIZE[1] - 8 - 32)).float().mean()
        assert touching > 0.7  # by chance a tenth: they are drawn again and again, though not for ever


@pytest.fixture(scope="module")
def whole() -> PatchSVDD:
    return PatchSVDD.fit(pictures(4), preset="best", device="cpu", **SMALL, **TINY_CRITIC)


class TestNarrowed:
    """A model that has learned everything, and inspects a part."""

    def test_says_there_what_it_says_without(self, whole: PatchSVDD) -> None:
        picture = draw_part(9, SIZE, defect=True)
        plain, part = whole.inspect(picture), whole.with_roi(Roi.of(ring())).inspect(picture)
        assert np.allclose(part.anomaly_map[ring()], plain.anomaly_map[ring()], rtol=1e-6)
        assert (part.anomaly_map[~ring()] == 0).all()
        assert part.score == part.anomaly_map.max()
        assert part.threshold == plain.threshold

    def test_searches_only_what_touches_it(self, whole: PatchSVDD) -> None:
        part = whole.with_roi(Roi.of(polygon_mask([[(0, 0), (20, 20)]], SIZE)))
        counts = [len(one[0]) for one in part.embedder(torch.zeros(1, 3, *SIZE))]
        every = [len(one[0]) for one in whole.embedder(torch.zeros(1, 3, *SIZE))]
        assert counts[0] < 0.2 * every[0]

    def test_narrows_a_region_that_was_learned(self, ringed: PatchSVDD) -> None:
        upper = np.zeros(SIZE, np.bool_)
        upper[:40] = True
        picture = draw_part(9, SIZE, defect=True)
        plain, part = ringed.inspect(picture), ringed.with_roi(Roi.of(upper)).inspect(picture)
        assert np.allclose(part.anomaly_map[upper], plain.anomaly_map[upper], rtol=1e-6)
        assert (part.anomaly_map[~upper] == 0).all()

    def test_is_another_model_to_those_who_ask(self, whole: PatchSVDD, tmp_path: Path) -> None:
        whole.save(tmp_path / "model")
        first, second = (whole.with_roi(Roi.of(mask)) for mask in (ring(), ~ring()))
        assert len({whole.identity, first.identity, second.identity}) == 3

    def test_in_strips(self, whole: PatchSVDD) -> None:
        part = whole.with_roi(Roi.of(ring()))
        picture = draw_part(9, SIZE, defect=True)
        plain = part.inspect(picture)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("patchsvdd.core.config.LARGE_PIXELS", 0)
            patch.setattr("patchsvdd.detector.large_images.STRIP_BYTES", {"cpu": 100_000})
            patch.setattr("patchsvdd.detector.large_images.MAP_ROWS", 27)
            found = part.inspect(picture)
            assert np.allclose(found.anomaly_map, plain.anomaly_map, atol=1e-5 * plain.score)
            assert np.allclose(found.scale_maps[32], plain.scale_maps[32], atol=1e-5 * plain.scale_maps[32].max())


class TestStrips:
    def test_of_a_learned_region_are_one_pass(self, ringed_critic: PatchSVDD) -> None:
        picture = draw_part(9, SIZE, defect=True)
        plain = ringed_critic.inspect(picture)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("patchsvdd.core.config.LARGE_PIXELS", 0)
            patch.setattr("patchsvdd.detector.large_images.STRIP_BYTES", {"cpu": 50_000})
            patch.setattr("patchsvdd.detector.large_images.MAP_ROWS", 27)
            found = ringed_critic.inspect(picture)
            for name, one in plain.part_maps.items():
                assert np.allclose(found.part_maps[name], one, atol=1e-5 * one.max())
            assert np.allclose(found.anomaly_map, plain.anomaly_map, atol=1e-4)  # the tail of a tiny critic is steep
            assert found.scale_maps[64].shape == SIZE


class TestExport:
    @pytest.mark.parametrize("wanted", ["onnx", "openvino"])
    @pytest.mark.parametrize("model", ["ringed", "ringed_critic", "narrowed"])
    def test_carries_the_region(self, wanted: str, model: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        pytest.importorskip("onnxruntime" if wanted == "onnx" else "openvino")
        from patchsvdd.export.export import export
        from patchsvdd.runtime import Detector

        detector: PatchSVDD = request.getfixturevalue("ringed" if model == "narrowed" else model)
        if model == "narrowed":
            detector = detector.with_roi(Roi.of(polygon_mask([[(0, 0), (127, 50)]], SIZE)))
        made = export(detector, tmp_path / "part", pictures(3, first=40), format=wanted)
        assert made.parity.holds
        mask, picture = ring(), draw_part(9, SIZE, defect=True)
        exported = Detector(tmp_path / "part")
        found = exported.inspect(picture)
        assert found.anomaly_map.shape == SIZE
        assert (found.anomaly_map[~mask] == 0).all()
        assert found.score == exported.inspect(scrambled(picture, mask)).score


class TestCommands:
    def test_train_info_and_inspect(self, tmp_path: Path) -> None:
        for index, picture in enumerate(pictures(4)):
            save_picture(tmp_path / "good" / f"{index}.png", picture)
        save_picture(tmp_path / "new" / "0.png", draw_part(9, SIZE, defect=True))
        Image.fromarray(ring()).save(tmp_path / "mask.png")
        trained = run(
            "train", tmp_path / "good", "--out", tmp_path / "model", "--roi", tmp_path / "mask.png", "--steps", 2,
            "--preset", "encoder", "--image-size", "128x112", "--batch-size", 1, "--json", *NO_ESTIMATE,
        )  # fmt: skip
        assert trained.code == 0, trained.stderr
        assert json.loads(trained.stdout)["roi"].endswith("of 128x112 images")
        assert "region" in run("info", tmp_path / "model").stdout
        model, out = tmp_path / "model", tmp_path / "out"
        inspected = run("inspect", model, tmp_path / "new", "--out", out, "--maps", "--json")
        assert inspected.code == 0, inspected.stderr
        first = np.load(out / "maps" / "0.png.npy")
        assert (first[~ring()] == 0).all()
        again = run("inspect", model, tmp_path / "new", "--out", out, "--maps", "--roi", "0,0 127,40", "--json")
        assert json.loads(again.stdout)["already_done"] == 0  # another region is another question
        second = np.load(out / "maps" / "0.png.npy")
        assert (second[41:] == 0).all()
        assert np.allclose(second[:41], first[:41], rtol=1e-6)
        assert "Region of interest" in (out / "index.html").read_text()

    def test_a_wrong_region_is_told_before_anything_is_done(self, good_folder: Path, tmp_path: Path) -> None:
        ended = run("train", good_folder, "--out", tmp_path / "model", "--roi", "nowhere.png")
        assert ended.code == 1
        assert "no such file" in ended.stderr
        assert not (tmp_path / "model").exists()


def test_grids_of_a_region_that_all_patches_touch_are_whole() -> None:
    mask = np.ones(SIZE, np.bool_)
    mask[50, 50] = False
    config = preset("paper", roi=Roi.of(mask), image_size=SIZE)
    grid = grids_for(build_encoder(config), config, SIZE)[0]
    assert grid.kept is None
    assert grid.neighbourhood == grid.shape
    assert grid.scale == Scale(32, 4)


def test_16_bits_are_seen_through_it() -> None:
    config = preset("paper", roi=Roi.of(ring()), image_size=SIZE)
    picture = np.linspace(0, 65535, SIZE[0] * SIZE[1]).reshape(SIZE).astype(np.uint16)
    loaded = load_image(picture, config)
    assert loaded.pixels.dtype == np.float32
    assert loaded.display_pixels.shape == (*SIZE, 3)
