"""Helpers for tests of the paper's items: tiny categories and studies with invented numbers."""

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
from support.command_line import draw_category
from support.html import Page

CONFIG = preset("paper", image_size=64, steps=1, batch_size=1)
"""The paper's settings with the shortest training."""
PRODUCT = 0

Numbers = Callable[[Experiment, int], dict[str, float]]
"""Maps an experiment and a patch size (or PRODUCT) to detection_auroc and segmentation_auroc, if it has them."""


def small_category(folder: Path, first: int = 0) -> Path:
    """Write a category of 3 training images, 2 good and 2 spotted test images with masks, and return ``folder``."""
    return draw_category(folder, first=first, train=3, test=2)


class MadeUp(ExperimentStore):
    """A store that trains and tests nothing and returns the numbers it was given."""

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

    def remember(self, experiment: Experiment, name: str, compute: Callable[[], Any]) -> Any:  # noqa: ARG002
        return compute()

    def encoder(self, experiment: Experiment, images: ImageSet) -> tuple[PatchEncoder, dict[str, Any]]:  # noqa: ARG002
        return build_encoder(experiment.config), {}


def made_up(root: Path, names: Sequence[str], numbers: Numbers, data: Path | None = None) -> Study:
    """A study of categories below ``data``, which need not exist unless an image is read."""
    categories = tuple((data or root) / name for name in names)
    return Study(MadeUp(root / "runs", numbers), categories, CONFIG, root / "out")


def both(value: float) -> dict[str, float]:
    """The same detection and segmentation AUROC."""
    return dict.fromkeys(TASKS, value)


def read_page(path: Path) -> Page:
    """Read a page and check that all of its images exist."""
    page = Page(path)
    for picture in page.all("img"):
        assert (path.parent / os.fsdecode(unquote_to_bytes(picture["src"] or ""))).is_file(), picture["src"]
    return page


def pictures(page: Page) -> list[str]:
    """The paths of the images on a page, in order."""
    return [picture["src"] or "" for picture in page.all("img")]
