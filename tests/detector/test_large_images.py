"""Large images in strips give what one pass gives, in bounded memory."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.critic.network import TrainedCritic, build_critic, critic_map, critic_normalization, critic_rows
from patchsvdd.critic.tiles import COARSEST, HALO, tiles
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.encoder.patch_grid import PatchGrid
from patchsvdd.images.image_set import digest_of_pixels, load_image, load_image_set
from patchsvdd.scoring.anomaly_map import LazyMaps, average_on_rows, average_over_patches
from support.parts import TINY, TINY_CRITIC, draw_part, save_picture

pytestmark = pytest.mark.slow

GOOD_SIZE = (80, 86)
SIZES = [GOOD_SIZE, (133, 149)]
TOLERANCE = 1e-5


@contextmanager
def strips() -> Iterator[None]:
    """Every image counts as large, and strips are low."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchsvdd.core.config.LARGE_PIXELS", 0)
        patch.setattr("patchsvdd.detector.large_images.STRIP_BYTES", {"cpu": 100_000})
        patch.setattr("patchsvdd.detector.large_images.MAP_ROWS", 27)
        patch.setattr("patchsvdd.critic.network.ROWS_AT_ONCE", 41)
        patch.setattr("patchsvdd.critic.network.TILE_BYTES", {"cpu": 0})
        yield


def fit(name: str = "encoder", **changes: Any) -> PatchSVDD:
    """A detector of images in their own size; its untrained encoder has embeddings that fill −1 … 1, as trained do."""
    config = preset(name, **{**TINY, "image_size": "native", "encoder": "random"} | changes)
    encoder = build_encoder(config)
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            if name.endswith("weight"):
                weight.mul_(2.2)
    good = [(str(seed), draw_part(seed, GOOD_SIZE)) for seed in range(3)]
    return PatchSVDD.fit_images(load_image_set(good, config), config, device="cpu", encoder=encoder)


def assert_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize(
    "changes",
    [
        {"centering": "channel"},
        {"centering": "pixel"},
        {"centering": "image"},
        {"centering": "exposure"},
        {"scales": (Scale(32, 6), Scale(64, 20))},
        {"scales": (Scale(32, 32), Scale(64, 52))},
        {"scales": (Scale(32, 6), Scale(64, 22)), "larger_patches": "trained"},
        {"scales": (Scale(32, 32), Scale(64, 50)), "larger_patches": "trained"},
        {"position_normalization": True, "local_scaling": True},
        {"encoder": "flat", "scales": (Scale(64, 16),)},
    ],
    ids=str,
)
def test_strips_equal_one_pass(changes: dict[str, Any]) -> None:
    detector = fit(**changes)
    for size in SIZES:
        picture = draw_part(9, size, defect=True)
        expected = detector.inspect(picture)
        with strips():
            found = detector.inspect(picture)
            assert_close(found.anomaly_map, expected.anomaly_map)
            assert found.score == found.anomaly_map.max()
            assert [region.box for region in found.regions] == [region.box for region in expected.regions]
            assert isinstance(found.scale_maps, LazyMaps)
            assert list(found.scale_maps) == list(expected.scale_maps)
            for patch_size, one in expected.scale_maps.items():
                assert_close(found.scale_maps[patch_size], one)
            assert found.part_maps == {}


def test_strips_with_a_critic_equal_one_pass() -> None:
    detector = fit("best", **TINY_CRITIC)
    for size in SIZES:
        picture = draw_part(9, size, defect=True)
        expected = detector.inspect(picture)
        with strips():
            found = detector.inspect(picture)
            assert list(found.part_maps) == ["memory", "critic"]
            for name, part in expected.part_maps.items():
                assert_close(found.part_maps[name], part)
            parts = [torch.from_numpy(found.part_maps[name]) for name in ("memory", "critic")]
        assert detector.map_builder.fusion is not None
        np.testing.assert_allclose(found.anomaly_map, detector.map_builder.fusion(*parts).numpy(), rtol=1e-5)
        assert np.abs(found.anomaly_map - expected.anomaly_map).max() <= 1e-3 * expected.score  # steep after two steps


def test_a_batch_and_sixteen_bits() -> None:
    detector = fit(centering="exposure")
    pictures = [draw_part(seed, SIZES[1]) for seed in (7, 8)]
    pixels = torch.stack([torch.from_numpy(one).permute(2, 0, 1) for one in pictures]).float() * 1.0039
    expected = detector.anomaly_maps(pixels)
    with strips():
        found = detector.anomaly_maps(pixels)
    assert_close(found.combined.numpy(), expected.combined.numpy())
    assert found.scores.shape == (2,)


def test_what_is_made_on_demand_can_be_stored() -> None:
    detector = fit()
    with strips():
        found = detector.inspect(draw_part(9, SIZES[1]))
        again = pickle.loads(pickle.dumps(found))
        assert np.array_equal(again.scale_maps[32], found.scale_maps[32])
        with pytest.raises(KeyError):
            found.scale_maps[48]


def test_thresholds_and_lists_of_large_images(tmp_path: Path) -> None:
    detector = fit()
    files = [save_picture(tmp_path / f"{seed}.png", draw_part(seed, GOOD_SIZE)) for seed in range(4)]
    expected = [one.score for one in detector.inspect_many(files)]
    recalibrate(detector, files, 0.2)
    before = detector.calibration
    with strips():
        assert [one.score for one in detector.inspect_many(files, batch_size=3)] == pytest.approx(expected, rel=1e-4)
        recalibrate(detector, files, 0.2)
    assert before is not None
    assert detector.calibration is not None
    assert detector.calibration.scores == pytest.approx(before.scores, rel=1e-4)  # the known ones without themselves
    assert detector.calibration.pixel_threshold == pytest.approx(before.pixel_threshold, rel=1e-3)


@settings(max_examples=40)
@given(
    height=st.integers(64, 150),
    stride=st.sampled_from([2, 6, 16, 32]),
    top=st.integers(0, 149),
    rows=st.integers(1, 60),
)
def test_rows_of_a_spread_map(height: int, stride: int, top: int, rows: int) -> None:
    grid = PatchGrid((height, 75), Scale(32, stride), 2)
    distances = torch.rand((2, *grid.shape), generator=torch.Generator().manual_seed(height))
    top = min(top, height - 1)
    bottom = min(top + rows, height)
    whole = average_over_patches(distances, grid)
    torch.testing.assert_close(
        average_on_rows(distances, grid, top, bottom), whole[:, top:bottom], rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("size", [(300, 420), (97, 258), (64, 31)])
def test_rows_of_a_critic_map(size: tuple[int, int]) -> None:
    cells = (-(-size[0] // 4), -(-size[1] // 4))
    logits = 4 * torch.randn((2, *cells), generator=torch.Generator().manual_seed(0))
    whole = critic_map(logits, size)
    for top in range(0, size[0], 50):
        bottom = min(top + 50, size[0])
        torch.testing.assert_close(critic_rows(logits, size, top, bottom), whole[:, top:bottom], rtol=1e-5, atol=1e-6)


@settings(max_examples=25)
@given(height=st.integers(33, 3000), width=st.integers(33, 3000), most=st.integers(0, 2_000_000))
def test_tiles_cover_an_image_once(height: int, width: int, most: int) -> None:
    found = tiles((height, width), most)
    covered = np.zeros((-(-height // 4), -(-width // 4)), np.int8)
    for down, across in found:
        covered[down.cells, across.cells] += 1
        for tile, length in ((down, height), (across, width)):
            assert tile.first % COARSEST == tile.seen.start % COARSEST == 0
            assert tile.seen.start == 0 or tile.first - tile.seen.start == HALO
            assert tile.seen.stop == length or tile.seen.stop - tile.stop == HALO
    assert (covered == 1).all()


def test_a_logit_looks_no_farther_than_the_halo() -> None:
    critic = build_critic(CriticSettings(width=2))
    for norm in critic.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.eval()
    image = torch.rand((1, 3, 1024, 32), generator=torch.Generator().manual_seed(0)).requires_grad_()
    with torch.no_grad():
        for weight in critic.parameters():
            weight.abs_()  # nothing cancels, nothing is cut off: what could matter does
    for cell in range(120, 128):  # every place that a cell may have in the deepest layer's
        (slope,) = torch.autograd.grad(critic(image)[0, cell].sum(), image)
        rows = slope.abs().sum((0, 1, 3)).nonzero()[:, 0]
        assert 4 * cell - HALO <= int(rows[0])
        assert int(rows[-1]) < 4 * (cell + 1) + HALO


def test_tiles_of_a_critic_equal_one_pass() -> None:
    pixels = torch.from_numpy(draw_part(3, (520, 300))).permute(2, 0, 1)[None]
    critic = TrainedCritic(build_critic(CriticSettings(width=4)).eval(), critic_normalization(pixels))
    with torch.inference_mode():
        expected = critic.logits(pixels)
        with strips():
            found = critic.logits(pixels)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16", "CMYK"])
def test_large_pictures_are_decoded_alike(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Image.fromarray(draw_part(0, (75, 90)))
    if mode == "RGBA":
        picture.putalpha(Image.fromarray(draw_part(1, (75, 90))[..., 0]))
    elif mode == "I;16":
        picture = Image.fromarray(draw_part(0, (75, 90))[..., 0].astype(np.uint16) * 211)
    else:
        picture = picture.convert(mode)
    path = tmp_path / "picture.tiff"
    picture.save(path)
    expected = load_image(path, preset("encoder", image_size="native"))
    monkeypatch.setattr("patchsvdd.images.decoding.ROWS_AT_ONCE", 20)
    with strips():
        found = load_image(path, preset("encoder", image_size="native"))
        assert found.pixels.dtype == expected.pixels.dtype
        assert np.array_equal(found.pixels, expected.pixels)
        assert np.array_equal(found.display_pixels, np.clip(np.rint(expected.pixels), 0, 255))
        assert torch.equal(found.tensor, torch.from_numpy(expected.pixels.transpose(2, 0, 1).copy()))
        assert digest_of_pixels(found.tensor) == digest_of_pixels(expected.tensor)


MEASURE = """
import resource, sys
import numpy as np
from patchsvdd import PatchSVDD
from patchsvdd.critic import network as critic
from patchsvdd.detector import large_images
from patchsvdd.encoder import networks
for budget in (critic.TILE_BYTES, networks.STRIP_BYTES, large_images.STRIP_BYTES):
    budget["cpu"] = 2**24
detector = PatchSVDD.load(sys.argv[1], "cpu")
for file in sys.argv[2:]:
    detector.inspect(file)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_memory_grows_by_little_more_than_the_pixels(tmp_path: Path) -> None:
    detector = fit("best", encoder="flat", scales=(Scale(64, 16),), **TINY_CRITIC)
    detector.save(tmp_path / "model")
    heights = (1080, 2160)
    tile = draw_part(1, (120, 1000))
    files = [str(save_picture(tmp_path / f"{height}.png", np.tile(tile, (height // 120, 1, 1)))) for height in heights]
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "model"), *files]
    small, large = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    # Pixels in Pillow, in numpy and in the inspection, the map, and coarse grids; one pass takes hundreds of bytes.
    assert (large - small) / ((heights[1] - heights[0]) * 1000) < 40


@pytest.mark.parametrize("name", ["encoder", "best"])
def test_reasons_of_a_large_image_are_those_of_a_small_one(name: str) -> None:
    detector = fit(name, **(TINY_CRITIC if name == "best" else {}))
    picture = draw_part(50, (133, 149), defect=True)
    inspection = detector.inspect(picture)
    plain = inspection.explain()
    with strips(), pytest.MonkeyPatch.context() as patch:
        embedded: list[tuple[int, ...]] = []
        embed = detector.embedder.embed

        def spy(images: torch.Tensor, grids: Any) -> list[torch.Tensor]:
            embedded.append(tuple(images.shape[2:]))
            return embed(images, grids)

        patch.setattr(detector.embedder, "embed", spy)
        patch.setattr("patchsvdd.detector.explainer.is_large", lambda *_: True)
        part = inspection.explain()
    assert all(height < 133 or width < 149 for height, width in embedded)
    assert len(part.reasons) == len(plain.reasons) > 0
    for one, other in zip(part.reasons, plain.reasons, strict=True):
        for scale, expected in zip(one.scales, other.scales, strict=True):
            assert scale.box == expected.box
            assert scale.nearest == expected.nearest
            assert scale.distance == pytest.approx(expected.distance, rel=1e-4)
