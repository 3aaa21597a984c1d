"""What a model learns from a few confirmed defects: recall on others of their kind, false alarms, names of kinds.

    python benchmarks/teaching.py MODELS DATA... [--draws 3] [--result NAME]

MODELS is a folder with a trained model for each category, named like it; DATA are categories in MVTec layout. For each
kind with missed images, three random missed ones are taught (all of them if there are fewer), once with the masks of
the data set and once without, and the other test images are inspected again. For the names, five random images of each
kind are taught, and the kind of the region with the highest score is compared with the true one. The threshold is the
model's own. Labels choose the images to teach, as a reviewer would; nothing else depends on them.
Each category has its own circumstances in the result file, and replaces its earlier entry.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from patchsvdd.core.device import reproducible
from patchsvdd.critic.confirmed_defects import ConfirmedDefects
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.teacher import SeenImage, Teacher
from patchsvdd.images.defect_examples import DefectExample
from patchsvdd.images.image_set import load_image
from patchsvdd.images.mvtec_layout import GOOD, TestImage, find_test_images
from record import RESULTS, circumstances, write_result

TAUGHT = 3
"""Missed images of a kind that are taught."""
TAUGHT_FOR_NAMES = 5
"""Images of each kind that are taught to name kinds."""


@dataclass(frozen=True)
class Seen:
    """A test image, and what the critic sees in it."""

    image: TestImage
    seen: SeenImage
    score: float


class Category:
    """A model and the test images of its category, which are looked at once."""

    def __init__(self, model: Path, data: Path) -> None:
        self.detector = PatchSVDD.load(model, "cpu")
        assert self.detector.calibration is not None
        self.calibration = self.detector.calibration
        good = data / "train" / GOOD
        with reproducible(), torch.inference_mode():
            self.teacher = Teacher(self.detector, self.calibration, good, None)
            self.images = []
            for image in find_test_images(data).images:
                seen = self.teacher.see(load_image(image.file, self.detector.config).tensor)
                self.images.append(Seen(image, seen, self.teacher.score(seen, None)))

    def of(self, kind: str) -> list[Seen]:
        """Return the test images of a kind."""
        return [one for one in self.images if one.image.defect == kind]

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of defects."""
        return sorted({one.image.defect for one in self.images} - {GOOD})

    def taught(self, images: Sequence[Seen], masks: bool) -> tuple[ConfirmedDefects, float]:
        """Return what the model learns from images, and its threshold afterwards."""
        examples = [
            DefectExample(one.image.file.name, one.image.file, one.image.defect, one.image.mask if masks else None)
            for one in images
        ]
        with reproducible(), torch.inference_mode():
            new, _, _ = self.teacher.read(examples)  # a mask of magnetic_tile is empty; that image is left out
            defects = self.teacher.fit(new)
            return defects, self.teacher.recalibrated(defects.filters)[0].threshold

    def alarms(self, images: Sequence[Seen], defects: ConfirmedDefects | None, threshold: float) -> list[bool]:
        """Return whether each image raises an alarm."""
        with torch.inference_mode():
            filters = None if defects is None else defects.filters
            return [self.teacher.score(one.seen, filters) > threshold for one in images]


def teach_kind(category: Category, kind: str, draws: int, masks: bool, seed: int) -> dict[str, Any] | None:
    """Return recall and false alarms before and after teaching missed images of a kind; None if none was missed."""
    limit = category.calibration.threshold
    missed = [one for one in category.of(kind) if one.score <= limit]
    if not missed:
        return None
    rows = []
    generator = random.Random(f"{kind} {seed}")
    for _ in range(draws):
        lesson = generator.sample(missed, min(TAUGHT, len(missed)))
        rest = [one for one in category.of(kind) if one not in lesson]
        others = [one for one in category.images if one.image.defect not in (kind, GOOD)]
        defects, threshold = category.taught(lesson, masks)
        row: dict[str, Any] = {"taught": [one.image.file.name for one in lesson], "threshold": threshold}
        for name, images in (("kind", rest), ("other_kinds", others), ("good", category.of(GOOD))):
            if images:
                row[f"{name}_before"] = statistics.mean(one.score > limit for one in images)
                row[f"{name}_after"] = statistics.mean(category.alarms(images, defects, threshold))
        rows.append(row)
    means = {key: statistics.mean(row[key] for row in rows) for key in rows[0] if key != "taught"}
    return {"missed": len(missed), "images": len(category.of(kind)), "means": means, "draws": rows}


def name_kinds(category: Category, draws: int, masks: bool, seed: int) -> dict[str, Any]:
    """Return how often the kind of an image that raises an alarm is named rightly."""
    generator, right = random.Random(f"names {seed}"), {kind: list[bool]() for kind in category.kinds}
    unnamed = 0
    for _ in range(draws):
        lesson = [
            one
            for kind in category.kinds
            for one in generator.sample(category.of(kind), min(TAUGHT_FOR_NAMES, len(category.of(kind)) - 1))
        ]
        defects, threshold = category.taught(lesson, masks)
        rest = [one for one in category.images if one.image.defect != GOOD and one not in lesson]
        named = names_of(category, rest, defects, threshold)
        for one in rest:
            if one.image.file in named:
                right[one.image.defect].append(named[one.image.file] == one.image.defect)
                unnamed += named[one.image.file] is None
    every = [value for values in right.values() for value in values]
    return {
        "right": statistics.mean(every),
        "alarms": len(every),
        "unnamed": unnamed,
        "right_of_named": sum(every) / max(1, len(every) - unnamed),
        "by_kind": {kind: statistics.mean(values) for kind, values in right.items() if values},
    }


def names_of(
    category: Category, images: Sequence[Seen], defects: ConfirmedDefects, threshold: float
) -> Mapping[Path, str | None]:
    """Return the kind named for each image that raises an alarm."""
    detector = PatchSVDD(category.detector.config, category.detector.learned, category.detector.device)
    assert detector.critic is not None
    critic = detector.critic.with_filters(defects.filters)
    learned = category.detector.learned
    parts = {**learned.__dict__, "critic": critic, "defects": defects}
    parts["calibration"] = category.calibration.with_threshold(threshold)
    taught = PatchSVDD(detector.config, type(learned)(**parts), detector.device)
    found = {}
    for one in images:
        inspection = taught.inspect(one.image.file)
        if inspection.is_anomalous and inspection.regions:
            found[one.image.file] = inspection.regions[0].kind
    return found


def main() -> None:
    """Teach, inspect, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", default="teaching")
    given = parser.parse_args()
    path = RESULTS / f"{given.result}.json"
    for data in given.data:
        category = Category(given.models / data.name, data)
        entry: dict[str, Any] = {**circumstances(category.detector.device), "seed": given.seed}
        provenance, builder = category.detector.provenance, category.detector.map_builder
        entry["model"] = {
            "images": provenance["data"]["images"],
            "critic_steps": provenance["critic"]["steps"],
            "memory_share": builder.fusion.share if builder.fusion is not None else None,
        }
        entry["calibration_images"] = len(category.calibration.scores)
        entry["guarantee"] = category.calibration.conformal_guarantee.rate
        entry["guarantee_at_confidence"] = category.calibration.conformal_guarantee.rate_at_confidence
        masks = [True, False] if any(one.image.mask for one in category.images) else [False]
        for with_masks in masks:
            part: dict[str, Any] = {"kinds": {}}
            for kind in category.kinds:
                row = teach_kind(category, kind, given.draws, with_masks, given.seed)
                if row is not None:
                    part["kinds"][kind] = row
                    print(data.name, "masks" if with_masks else "no masks", kind, _in_words(row), flush=True)
            if len(category.kinds) > 1:
                part["names"] = name_kinds(category, given.draws, with_masks, given.seed)
                print(data.name, "names", part["names"], flush=True)
            entry["with_masks" if with_masks else "without_masks"] = part
        known = json.loads(path.read_text())["categories"] if path.exists() else {}
        now = {**circumstances(category.detector.device), "seed": given.seed}
        write_result(path, {**now, "categories": dict(sorted({**known, data.name: entry}.items()))})


def _in_words(row: Mapping[str, Any]) -> str:
    means = row["means"]
    words = [f"{row['missed']} of {row['images']} missed"]
    for name in ("kind", "other_kinds", "good"):
        if f"{name}_after" in means:
            words.append(f"{name} {means[f'{name}_before']:.3f} -> {means[f'{name}_after']:.3f}")
    return ", ".join(words)


if __name__ == "__main__":
    main()
