"""What the tests of the paper's items share: tiny categories, and studies whose numbers are made up."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from patchsvdd.core.presets import preset
from patchsvdd.encoder.networks import PatchEncoder, build_encoder
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.evaluation.paper.study import TASKS, Study
from patchsvdd.images.image_set import ImageSet
from support.command_line import draw_parts, part
from support.html import Page

CONFIG = preset("paper", image_size=64, steps=1, batch_size=1)
"""The paper's settings with the quickest training there is."""
PRODUCT = 0

Numbers = Callable[[Experiment, int], dict[str, float]]
"""Of an experiment, and a patch size (or PRODUCT): detection_auroc and segmentation_auroc, so far as it has them."""


def small_category(folder: Path, first: int = 0) -> Path:
    """``folder``, now a category of 3 training images, 2 good and 2 spotted test images with masks."""
    draw_parts(folder / "train" / "good", 3, first=first)
    draw_parts(folder / "test" / "good", 2, first=first + 10)
    draw_parts(folder / "test" / "spot", 2, first=first + 20, defect=True)
    (folder / "ground_truth" / "spot").mkdir(parents=True)
    for index in range(2):
        part(first + 20 + index, defect=True)[1].save(folder / "ground_truth" / "spot" / f"{index:03d}_mask.png")
    return folder


class MadeUp(ExperimentStore):
    """A store that trains and tests nothing: its results hold the numbers it was given."""

    def __init__(self, folder: Path, numbers: Numbers) -> None:
        super().__init__(folder, device="cpu")
        self.numbers = numbers

    def result(self, experiment: Experiment) -> ExperimentResult:
        product = self.numbers(experiment, PRODUCT)
        sizes = [scale.patch_size for scale in experiment.config.scales]
        evaluation = {
            **product,
            "scales": {str(size): self.numbers(experiment, size) for size in sizes},
            "skipped": {task: f"nobody measured {task}" for task in TASKS if task not in product},
        }
        about = {"hardware": "abacus", "commit": "abc1234", "date": "2026-11-15", "versions": {}, "training": {}}
        return ExperimentResult(experiment, {**about, "evaluation": evaluation, "kept": []}, self.folder, "test")

    def encoder(self, experiment: Experiment, images: ImageSet) -> tuple[PatchEncoder, dict[str, Any]]:  # noqa: ARG002
        return build_encoder(experiment.config), {}


def made_up(root: Path, names: Sequence[str], numbers: Numbers, data: Path | None = None) -> Study:
    """A study of categories below ``data``, which need not exist where no image is asked for."""
    categories = tuple((data or root) / name for name in names)
    return Study(MadeUp(root / "runs", numbers), categories, CONFIG, root / "out")


def both(value: float) -> dict[str, float]:
    """The same detection and segmentation AUROC."""
    return dict.fromkeys(TASKS, value)


def read_page(path: Path) -> Page:
    """The page, whose pictures all exist."""
    page = Page(path)
    for picture in page.all("img"):
        assert (path.parent / os.fsdecode(unquote_to_bytes(picture["src"] or ""))).is_file(), picture["src"]
    return page


def pictures(page: Page) -> list[str]:
    """Where the pictures of a page lie, in order."""
    return [picture["src"] or "" for picture in page.all("img")]
