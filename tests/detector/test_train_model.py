"""train_model: train, save, resume and overwrite a model folder from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchsvdd import Interrupted, OutputError, PatchSVDD, TrainingHooks, preset
from patchsvdd.detector.train_model import is_finished, train_model
from patchsvdd.images.image_set import ImageSet
from support.parts import TINY

pytestmark = pytest.mark.slow

CONFIG = preset("encoder", **{**TINY, "steps": 4, "seed": 3})


def test_it_saves_what_fit_returns(good_folder: Path, tmp_path: Path) -> None:
    images: list[ImageSet] = []
    unsaved: list[str | None] = []
    trained = train_model(
        good_folder,
        tmp_path,
        CONFIG,
        device="cpu",
        on_images=images.append,
        on_detector=lambda detector: unsaved.append(detector.identity),
    )
    assert len(images[0]) == trained.provenance["data"]["images"]
    assert unsaved == [None]
    stored = PatchSVDD.load(tmp_path, "cpu")
    fitted = PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **{**TINY, "steps": 4, "seed": 3})
    assert stored.identity == trained.identity
    assert stored.threshold == trained.threshold == fitted.threshold
    assert is_finished(tmp_path)


def test_a_folder_in_use_is_refused_resumed_or_overwritten(good_folder: Path, tmp_path: Path) -> None:
    stop = TrainingHooks(should_stop=lambda: True)
    with pytest.raises(Interrupted):
        train_model(good_folder, tmp_path, CONFIG, device="cpu", hooks=stop)
    assert not is_finished(tmp_path)
    with pytest.raises(OutputError, match="unfinished training"):
        train_model(good_folder, tmp_path, CONFIG, device="cpu")
    resumed = train_model(good_folder, tmp_path, CONFIG, device="cpu", resume=True)
    assert is_finished(tmp_path)
    with pytest.raises(OutputError, match="already holds a model"):
        train_model(good_folder, tmp_path, CONFIG, device="cpu")
    assert train_model(good_folder, tmp_path, CONFIG, device="cpu", resume=True).identity == resumed.identity
    again = train_model(good_folder, tmp_path, CONFIG, device="cpu", overwrite=True)
    assert again.threshold == resumed.threshold
