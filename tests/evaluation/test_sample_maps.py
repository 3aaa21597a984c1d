from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from patchsvdd.evaluation.collected_results import PRODUCT, TestResults
from patchsvdd.evaluation.sample_maps import KeptMaps, SampleMaps
from patchsvdd.scoring.inspection import Inspection
from support.parts import draw_part, save_picture

SCORES = {"crack": [3.0, 9.0, 5.0, 7.0, 1.0], "dent": [2.0, 4.0], "good": [0.5], "scratch": [6.0, 8.0, 0.25]}
"""Type → scores of its test images 000.png, 001.png …"""


def draw_map(seed: int, peak: float) -> NDArray[np.float32]:
    """A map whose highest value is ``peak``."""
    one = np.random.default_rng(seed).random((20, 30), dtype=np.float32)
    one /= one.max()
    one *= np.float32(peak)
    return one


def inspected(folder: Path, scores: Mapping[str, Sequence[float]] = SCORES) -> TestResults:
    """The results of a category whose test images have these scores."""
    for kind, values in scores.items():
        for index in range(len(values)):
            save_picture(folder / "test" / kind / f"{index:03}.png", draw_part(index))
    results = TestResults(folder)
    for seed, file in enumerate(results.files):
        score = scores[file.parent.name][int(file.stem)]
        maps = {32: draw_map(seed + 100, 10 * score), 64: draw_map(seed + 200, score / 10)}
        picture = np.zeros((20, 30, 3), np.uint8)
        product = draw_map(seed, score)
        results.add(Inspection(str(file), float(product.max()), 2.5, product, maps, picture, (20, 30), ()))
    return results


def ranks(kept: Sequence[KeptMaps]) -> dict[str, dict[str, float]]:
    """Type → rank → score."""
    found: dict[str, dict[str, float]] = {}
    for one in kept:
        found.setdefault(one.defect, {})[one.rank] = one.score
    return found


def test_the_highest_the_median_and_the_lowest_of_each_type_are_kept(tmp_path: Path) -> None:
    kept = SampleMaps.choose(inspected(tmp_path)).read()
    assert ranks(kept) == {
        "crack": {"highest": 9.0, "median": 5.0, "lowest": 1.0},
        "dent": {"highest": 4.0, "median": 2.0},
        "good": {"median": 0.5},
        "scratch": {"highest": 8.0, "median": 6.0, "lowest": 0.25},
    }
    assert len(kept) == 9  # none twice


def test_kept_images_say_which_they_are(tmp_path: Path) -> None:
    kept = {one.image: one for one in SampleMaps.choose(inspected(tmp_path)).read()}
    assert set(kept) == {
        *("test/crack/001.png", "test/crack/002.png", "test/crack/004.png", "test/dent/000.png", "test/dent/001.png"),
        *("test/good/000.png", "test/scratch/000.png", "test/scratch/001.png", "test/scratch/002.png"),
    }
    for name, one in kept.items():
        assert one.anomalous == (one.score > 2.5)
        assert one.score == SCORES[one.defect][int(Path(name).stem)]


def check_maps(kept: Sequence[KeptMaps], results: TestResults) -> None:
    """Every kept map is the true one to within half of 1/255 of its peak."""
    files = [file.relative_to(results.category).as_posix() for file in results.files]
    assert kept
    for one in kept:
        assert set(one.maps) == {PRODUCT, 32, 64}
        for size, found in one.maps.items():
            true = results.map_of(files.index(one.image), size)
            assert found.dtype == np.float32
            assert found.shape == true.shape
            assert found.max() == pytest.approx(true.max())
            assert np.abs(found - true).max() <= 0.501 * true.max() / 255


def test_maps_are_true_to_a_fraction_of_their_peak(tmp_path: Path) -> None:
    results = inspected(tmp_path)
    check_maps(SampleMaps.choose(results).read(), results)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    results = inspected(tmp_path / "part")
    chosen = SampleMaps.choose(results)
    path = tmp_path / "runs" / "maps.npz"
    chosen.write(path)
    stored = SampleMaps(path, chosen.about).read()
    check_maps(stored, results)
    for one, other in zip(stored, chosen.read(), strict=True):
        assert (one.image, one.rank, one.score) == (other.image, other.rank, other.score)
        assert all(np.array_equal(one.maps[size], other.maps[size]) for size in other.maps)


def test_a_map_of_zeros_stays_zero(tmp_path: Path) -> None:
    (kept,) = SampleMaps.choose(inspected(tmp_path, {"good": [0.0]})).read()
    assert all(not one.any() for one in kept.maps.values())


def test_maps_that_are_gone_are_no_error(tmp_path: Path) -> None:
    about = SampleMaps.choose(inspected(tmp_path / "part")).about
    assert SampleMaps(tmp_path / "gone.npz", about).read() == []
    assert SampleMaps(None, []).read() == []


def test_names_need_not_be_unicode(tmp_path: Path) -> None:
    name = "\udcff [x]"
    chosen = SampleMaps.choose(inspected(tmp_path / "part", {name: [1.0, 2.0]}))
    chosen.write(tmp_path / "maps.npz")
    kept = SampleMaps(tmp_path / "maps.npz", chosen.about).read()
    assert [one.image for one in kept] == [f"test/{name}/001.png", f"test/{name}/000.png"]
