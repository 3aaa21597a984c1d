from __future__ import annotations

import functools
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from patchsvdd.core.errors import DatasetError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation import collected_results as inspected
from patchsvdd.evaluation.collected_results import PRODUCT, MapStore, TestResults, inspect_test_images
from patchsvdd.scoring.inspection import Inspection
from support.parts import draw_part, save_picture

SMALL = 50_000
"""A budget of bytes that three maps of 64 × 64 fill."""


def draw_map(seed: int, shape: tuple[int, int] = (64, 64)) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of memory that ``work`` takes at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def inspection_of(name: str, seed: int) -> Inspection:
    """An inspection whose maps are of one draw: the product, and two scales."""
    product, small, large = (draw_map(3 * seed + part) for part in range(3))
    picture = np.zeros((64, 64, 3), np.uint8)
    return Inspection(name, float(product.max()), 0.5, product, {32: small, 64: large}, picture, (64, 64), ())


class TestMapStore:
    @pytest.mark.parametrize("budget", [1, SMALL, 2**30])
    def test_maps_come_back_as_they_went_in(self, budget: int) -> None:
        shapes = [(64, 64), (1, 1), (30, 100), (100, 30), (7, 7)] * 4
        maps = [draw_map(seed, shape) for seed, shape in enumerate(shapes)]
        store = MapStore(budget)
        assert [store.append(one) for one in maps] == list(range(20))
        for number in (*range(20), *reversed(range(20))):
            assert store[number].dtype == np.float32
            assert np.array_equal(store[number], maps[number])

    @pytest.mark.parametrize("budget", [SMALL, 2**30])
    def test_reading_between_two_maps_disturbs_nothing(self, budget: int) -> None:
        store = MapStore(budget)
        for seed in range(8):
            store.append(draw_map(seed))
            assert np.array_equal(store[seed // 2], draw_map(seed // 2))
        assert all(np.array_equal(store[seed], draw_map(seed)) for seed in range(8))

    def test_a_view_is_kept_with_its_own_pixels(self) -> None:
        whole = draw_map(0)
        store = MapStore(SMALL)
        store.append(whole[::2, 1::3])
        store.append(whole.T)
        assert np.array_equal(store[0], whole[::2, 1::3])
        assert np.array_equal(store[1], whole.T)

    def test_what_exceeds_the_budget_leaves_memory(self) -> None:
        def keep(budget: int) -> None:
            store = MapStore(budget)
            for seed in range(100):  # 1.6 MB
                store.append(draw_map(seed))
            assert np.array_equal(store[42], draw_map(42))

        assert peak_of(lambda: keep(2**30)) > 1_500_000
        assert peak_of(lambda: keep(SMALL)) < 10 * SMALL

    def test_nothing_is_left_on_the_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        store = MapStore(SMALL)
        for seed in range(10):
            store.append(draw_map(seed))
        del store
        assert list(tmp_path.iterdir()) == []


class TestResultsOfInspections:
    def test_every_map_of_every_image_is_kept(
        self, detector: PatchSVDD, category: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inspected, "MapStore", functools.partial(MapStore, SMALL))
        results = inspect_test_images(detector, category)
        assert results.keys == [PRODUCT, 32, 64]
        names = [image.file.relative_to(category).as_posix() for image in results.images]
        assert names == [f"test/{kind}/{index:03}.png" for kind in ("crack", "good") for index in range(2)]
        for index, image in enumerate(results.images):
            alone = detector.inspect(image.file)
            for size, expected in {PRODUCT: alone.anomaly_map, **alone.scale_maps}.items():
                assert np.array_equal(results.map_of(index, size), expected)
                assert results.scores[size][index] == expected.max()
            assert results.scores[PRODUCT][index] == alone.score
            assert results.anomalous[index] == alone.is_anomalous

    def test_many_images_take_no_more_memory_than_few(self, category: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspected, "MapStore", functools.partial(MapStore, SMALL))

        def inspect(count: int) -> None:
            results = TestResults(category)
            for seed in range(count):
                results.add(inspection_of(str(results.files[0]), seed))
            assert np.array_equal(results.map_of(count - 1, 64), draw_map(3 * count - 1))

        few, many = (peak_of(functools.partial(inspect, count)) for count in (5, 100))
        assert many - few < 200_000  # their maps are 4.7 MB

    def test_images_of_several_sizes_keep_their_own(self, category: Path) -> None:
        results = TestResults(category)
        shapes = [(64, 64), (80, 64), (64, 96), (16, 16)]
        for seed, (file, shape) in enumerate(zip(results.files, shapes, strict=True)):
            one = draw_map(seed, shape)
            picture = np.zeros((*shape, 3), np.uint8)
            results.add(Inspection(str(file), float(one.max()), 1.0, one, {32: one}, picture, shape, ()))
        for seed, shape in enumerate(shapes):
            assert np.array_equal(results.map_of(seed, 32), draw_map(seed, shape))

    def test_an_image_that_cannot_be_read_is_told_and_left_out(self, detector: PatchSVDD, category: Path) -> None:
        path = category / "test" / "crack" / "000.png"
        path.write_bytes(path.read_bytes()[:200])
        seen: list[tuple[int, int]] = []
        results = inspect_test_images(detector, category, lambda done, total: seen.append((done, total)))
        assert [error.name for error in results.unreadable] == [str(path)]
        assert [image.file.name for image in results.images] == ["001.png", "000.png", "001.png"]
        assert seen[-1] == (4, 4)

    def test_names_need_not_be_unicode(self, detector: PatchSVDD, category: Path) -> None:
        path = save_picture(category / "test" / "good" / "\udcff [bold] |.png", draw_part(3))
        results = inspect_test_images(detector, category)
        assert path in [image.file for image in results.images]

    def test_a_category_without_test_images_is_an_error(self, detector: PatchSVDD, good_folder: Path) -> None:
        with pytest.raises(DatasetError, match="has no test folder"):
            inspect_test_images(detector, good_folder)
