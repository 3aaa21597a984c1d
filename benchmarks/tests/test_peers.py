"""Peers beside our models: ratios of times, and a run without peers, which are not installed for the tests."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import peers
from patchsvdd import PatchSVDD
from peers import REFERENCE, comparisons, main, median_ratio


def category(folder: Path) -> Path:
    """Four training images and four test images of noise."""
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        (folder / part / "good").mkdir(parents=True)
        for index in range(4):
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(folder / part / "good" / f"{index}.png")
    return folder


def test_a_ratio_is_the_median_over_images() -> None:
    assert median_ratio([1.0, 1.0, 2.0], [2.0, 30.0, 6.0]) == 3.0
    with pytest.raises(ValueError, match="zip"):
        median_ratio([1.0, 1.0], [2.0])


def test_every_model_is_compared_with_every_peer() -> None:
    times = {"best": [1.0, 1.0, 4.0], "paper": [2.0, 2.0, 2.0], REFERENCE: [40.0, 60.0]}
    times |= {"fast": [0.5, 0.5, 1.0], "slow": [8.0, 6.0, 8.0]}
    assert comparisons(times, ["best", "paper"], "paper") == {
        "ratios": {"best": {"fast": 0.5, "slow": 6.0}, "paper": {"fast": 0.25, "slow": 4.0}},
        "best_over_paper": 0.5,
        "times_faster_than_batched_reference": 25.0,
    }
    assert comparisons({"best": [1.0]}, ["best"], None) == {"ratios": {"best": {}}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["best"], "must be NAME=PATH"),
        (["best=missing"], "must be NAME=PATH"),
        (["best=.", "best=."], "another name for each"),
        (["best=.", "--peers", "nonsense"], "there is no peer 'nonsense'; choose of patchcore-r18"),
    ],
)
def test_a_wrong_argument_ends_with_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        main(["part", *arguments, "--out", "found.json"])


@pytest.mark.skipif(find_spec("anomalib") is not None, reason="anomalib is installed")
def test_peers_that_are_not_installed_are_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^error: not installed: anomalib, .*; pip install anomalib .*--peers ''$"):
        main(["part", f"best={tmp_path}", "--out", str(tmp_path / "found.json")])


@pytest.mark.slow
def test_our_models_are_compared_without_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PAUSE", 0.0)
    bolt, model, out = category(tmp_path / "bolt"), tmp_path / "model", tmp_path / "found.json"
    settings: dict[str, Any] = {"preset": "encoder", "steps": 1, "image_size": 64, "pairs_per_crop": 16, "stop": "end"}
    settings |= {"aim": "few-alarms", "synthetic_defects": 0}
    PatchSVDD.fit(bolt / "train" / "good", device="cpu", **settings).save(model)
    out.write_text(json.dumps({"categories": {"nut": {}}}))
    options = ["--images", "2", "--rounds", "2", "--peers", "", "--reference", "--out", str(out)]
    main([str(bolt), f"best={model}", *options])
    found = json.loads(out.read_text())
    assert {"hardware", "date", "commit", "threads", "cpu", "flags"} <= set(found)
    assert list(found["categories"]) == ["nut", "bolt"]
    measured = found["categories"]["bolt"]
    assert (measured["images"], measured["image_size"]) == (2, [64, 64])
    assert list(measured["contestants"]) == ["best", "reference in batches"]
    assert [one["inspections"] for one in measured["contestants"].values()] == [4, 2]
    for one in measured["contestants"].values():
        assert 0 < one["milliseconds_median"] <= one["milliseconds_p95"]
    assert measured["contestants"]["best"]["search"] == "exact"
    assert measured["ratios"] == {"best": {}}
    assert measured["times_faster_than_batched_reference"] > 0
