from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from patchsvdd.core.errors import DatasetError, ModelError
from patchsvdd.core.scales import Scale
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.prepare import prepare
from patchsvdd.evaluation import speed
from patchsvdd.evaluation.speed import Setup, Speed, Timing, make_noise_images, measure_speed, timed_parts
from patchsvdd.memory import bank as memory
from patchsvdd.memory import graph_search
from patchsvdd.memory.graph_search import has_faiss
from support.parts import NO_ESTIMATE, draw_part, save_picture

USUAL = Setup("auto", "float32", "auto", 1)
START_UP, MEMORY = {"load model": 0.5}, {"beyond pytorch": 100.0}


@pytest.fixture(scope="module")
def few_patches(good_folder: Path) -> PatchSVDD:
    """A detector of ten patches per image, which the plain procedure encodes one by one in no time."""
    scales = (Scale(32, 16), Scale(64, 16))
    settings: dict[str, Any] = {"image_size": 64, "scales": scales, "encoder": "random", **NO_ESTIMATE}
    return PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **settings)


@pytest.fixture(scope="module")
def model(few_patches: PatchSVDD, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared model, with a graph if FAISS is there."""
    folder = tmp_path_factory.mktemp("speed") / "part"
    few_patches.save(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_search, "MIN_GRAPH_ROWS", 20)  # 36 rows of 32 px, 4 of 64 px
        patch.setattr(memory, "MIN_GRAPH_ROWS", 20)
        prepare(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    return [save_picture(folder / f"{seed}.png", draw_part(seed)) for seed in (5, 6, 7)]


@pytest.fixture(scope="module")
def measured(model: Path, photos: list[Path]) -> tuple[Speed, list[tuple[str, int, int]]]:
    """All that is measured but fresh processes, which take seconds, and the progress that was told."""
    stages: list[tuple[str, int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "measure_process", lambda *_: (START_UP, MEMORY))
        found = measure_speed(
            model,
            photos,
            device="cpu",
            rounds=2,
            against_reference=True,
            on_stage=lambda *stage: stages.append(stage),
        )
    return found, stages


@pytest.fixture(scope="module")
def told(measured: tuple[Speed, list[tuple[str, int, int]]]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(measured[0].to_json(), allow_nan=False))
    return content


def test_says_what_was_measured_and_where(told: dict[str, Any], model: Path) -> None:
    assert told["model"] == "part"
    assert {"hardware", "date", "commit", "versions", "threads"} <= set(told)
    assert told["images"] == 3
    assert told["image_size"] == [64, 64]
    assert told["memory_rows"] == {"32": 36, "64": 4}
    assert told["memory_bytes"] == (36 + 4) * 64 * 4
    assert told["start_up_seconds"] == START_UP
    assert told["memory_mb"] == MEMORY


def test_every_setup_has_its_row(told: dict[str, Any]) -> None:
    rows = told["setups"]
    for row in rows:
        assert set(row) == {
            "engine", "search", "batch", "images_per_second", "latency_ms", "parts_ms_per_image", "measured",
        }  # fmt: skip
        assert row["measured"] == 2
        assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p90"] <= row["latency_ms"]["p99"]
        assert row["images_per_second"] == pytest.approx(1000 * row["batch"] / row["latency_ms"]["p50"])
        assert list(row["parts_ms_per_image"]) == ["encode", "search", "map"]
        assert min(row["parts_ms_per_image"].values()) > 0
    assert rows[0]["batch"] == 1
    assert {row["batch"] for row in rows} == {1, 8}
    assert "torch float32" in {row["engine"] for row in rows}
    expected = ["graph", "exact"] if has_faiss() else ["exact"]
    assert list(dict.fromkeys(row["search"] for row in rows)) == expected


def test_names_the_bottleneck(told: dict[str, Any]) -> None:
    parts = told["setups"][0]["parts_ms_per_image"]
    slowest = max(parts, key=lambda name: parts[name])
    share = parts[slowest] / sum(parts.values())
    assert told["bottleneck"] == f"{slowest} ({share:.0%} of the time)"


def test_compares_with_the_plain_procedure(told: dict[str, Any]) -> None:
    reference = told["reference"]
    assert told["speedup_over_reference"] == reference["speedup"] > 1
    ours = reference["our_seconds_per_image"]
    assert reference["speedup"] == pytest.approx(reference["seconds_per_image"]["one by one"] / ours)
    assert reference["speedup_over_batches"] == pytest.approx(reference["seconds_per_image"]["in batches"] / ours)
    assert reference["patches_at_once"] == {"in batches": 2048, "one by one": 1}
    assert all(list(parts) == ["encode", "search", "map"] for parts in reference["parts"].values())
    assert (reference["our_engine"], reference["our_search"]) == (
        told["setups"][0]["engine"],
        told["setups"][0]["search"],
    )


def test_progress_is_told(measured: tuple[Speed, list[tuple[str, int, int]]]) -> None:
    stages = measured[1]
    assert [stage for stage in stages if stage[0] == "measuring"] == [("measuring", turn, 2) for turn in range(3)]
    assert [stage for stage in stages if stage[0] == "reference"] == [("reference", done, 6) for done in range(1, 7)]


def test_without_a_graph_exact_is_measured_once(
    few_patches: PatchSVDD, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "measure_process", lambda *_: ({}, {}))
    few_patches.save(tmp_path)
    found = measure_speed(tmp_path, photos[:1], device="cpu", rounds=1)
    setups = [timing.setup for timing in found.timings]
    assert setups[0] == USUAL
    assert all(setup.search == "auto" for setup in setups), "there was no graph to leave out"
    data = found.to_json()
    assert "reference" not in data
    assert "speedup_over_reference" not in data


@given(st.lists(st.floats(1e-4, 10), min_size=1, max_size=30), st.integers(1, 64))
def test_percentiles_are_in_order(seconds: list[float], batch: int) -> None:
    timing = Timing(Setup("auto", "float32", "auto", batch), "torch float32", "exact", seconds, {"encode": seconds})
    latency = timing.latency
    assert 1000 * min(seconds) <= latency["p50"] * (1 + 1e-9)
    assert latency["p50"] <= latency["p90"] * (1 + 1e-9)
    assert latency["p90"] <= latency["p99"] * (1 + 1e-9)
    assert latency["p99"] <= 1000 * max(seconds) * (1 + 1e-9)
    assert timing.images_per_second == pytest.approx(batch / float(np.median(seconds)))


def test_the_bottleneck_is_that_of_the_usual_setup() -> None:
    parts = {"encode": [1.0, 1.0, 9.0], "search": [3.0, 3.0, 3.0], "map": [0.5, 1.0, 1.0]}
    usual = Timing(USUAL, "torch float32", "exact", [5.0], parts)
    other = Timing(USUAL, "torch float32", "graph", [1.0], {"encode": [1.0]})
    assert Speed({}, [usual, other], {}, {}, None).bottleneck == "search (60% of the time)"


def test_parts_are_timed(few_patches: PatchSVDD) -> None:
    parts = timed_parts(few_patches, torch.full((2, 3, 64, 64), 100.0))
    assert list(parts) == ["encode", "search", "map"]
    assert min(parts.values()) > 0


def test_noise_images_look_like_the_mean(few_patches: PatchSVDD, model: Path, tmp_path: Path) -> None:
    files = make_noise_images(model, tmp_path, count=3)
    pixels = [np.asarray(Image.open(file)).astype(float) for file in files]
    assert [one.shape for one in pixels] == [(64, 64, 3)] * 3
    assert not np.array_equal(pixels[0], pixels[1])
    mean = few_patches.normalization.mean.expand(3, 64, 64).permute(1, 2, 0).numpy()
    assert abs(np.mean(pixels) - mean.mean()) < 2


def test_there_must_be_something_to_measure(model: Path, photos: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no image to inspect; check `images`"):
        measure_speed(model, [], device="cpu")
    with pytest.raises(ModelError, match="no model folder"):
        measure_speed(tmp_path / "nowhere", photos)
