"""The demo from end to end: draw images, train, inspect, evaluate, write the overview page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchsvdd.apps.demo.dataset import CATEGORIES, draw_dataset
from patchsvdd.core.progress import OnStage
from patchsvdd.core.scales import Scale
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.threshold_evidence import counts
from patchsvdd.evaluation.collected_results import TestResults
from patchsvdd.evaluation.evaluate import measure
from patchsvdd.images.image_files import find_images
from patchsvdd.report.detector_card import detector_card
from patchsvdd.report.inspection_run import inspect_into
from patchsvdd.report.overview import OverviewEntry, write_overview
from patchsvdd.report.results_file import ResultsFile
from patchsvdd.training.hooks import TrainingHooks

IMAGE_SIZE = 160
TRAINING_IMAGES = 100
SCALES = (Scale(32, 8), Scale(64, 16))
LEARNING_RATE = 1e-4
"""Small, because an untrained encoder already distinguishes the parts and half a minute of training only refines it."""
SYNTHETIC_DEFECTS = 128
SAMPLES = 6
"""Sample overlays per category on the overview page."""


@dataclass(frozen=True)
class DemoCategory:
    """The result of one category of the demo."""

    name: str
    images: int
    train_seconds: float
    detection: float
    segmentation: float


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo and its overview page."""

    categories: tuple[DemoCategory, ...]
    page: Path

    @property
    def detection(self) -> float:
        """Mean detection AUROC of the categories."""
        return sum(one.detection for one in self.categories) / len(self.categories)

    @property
    def segmentation(self) -> float:
        """Mean segmentation AUROC of the categories."""
        return sum(one.segmentation for one in self.categories) / len(self.categories)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "detection_auroc": self.detection,
            "segmentation_auroc": self.segmentation,
            "categories": {
                one.name: {
                    "detection_auroc": one.detection,
                    "segmentation_auroc": one.segmentation,
                    "train_seconds": one.train_seconds,
                }
                for one in self.categories
            },
            "page": str(self.page),
        }


def run_demo(
    out: Path, *, steps: int, seed: int, on_stage: OnStage, categories: Sequence[str] = tuple(CATEGORIES)
) -> DemoResult:
    """Run everything that ``patchsvdd demo`` does; writes to ``out``."""
    on_stage("drawing", 0, 1)
    folders = draw_dataset(out / "data", size=IMAGE_SIZE, train=TRAINING_IMAGES, seed=seed, categories=categories)
    on_stage("drawing", 1, 1)
    results, entries = [], []
    for name, folder in folders.items():
        result, entry = _run_category(out, name, folder, steps, seed, on_stage)
        results.append(result)
        entries.append(entry)
    page = write_overview(
        out,
        entries,
        title="Patch SVDD demo",
        intro="Each detector was trained on good parts only. Every overlay shows the part with detected regions "
        "outlined, and the heat map on a scale fixed by the detector's threshold.",
    )
    return DemoResult(tuple(results), page)


def _run_category(
    out: Path, name: str, folder: Path, steps: int, seed: int, on_stage: OnStage
) -> tuple[DemoCategory, OverviewEntry]:
    """Train, inspect and evaluate one category."""
    train, test = (len(find_images(folder / half)[0]) for half in ("train", "test"))
    work = {"images": train, "copies": train, "training": steps, "memory": train, "threshold": train}
    work |= {"evidence": sum(counts(SYNTHETIC_DEFECTS, IMAGE_SIZE**2)), "inspect": test}

    def advance(stage: str, done: int, total: int) -> None:
        """Report the progress of all stages of a category as one bar."""
        before = list(work.values())[: list(work).index(stage)]
        on_stage(name, sum(before) + work[stage] * done // total, sum(work.values()))

    detector = PatchSVDD.fit(
        folder,
        preset="encoder",
        stop="end",
        hooks=TrainingHooks(on_progress=lambda now: advance("training", now.step, now.steps)),
        on_stage=advance,
        steps=steps,
        seed=seed,
        image_size=IMAGE_SIZE,
        crop_size=128,
        scales=SCALES,
        learning_rate=LEARNING_RATE,
        synthetic_defects=SYNTHETIC_DEFECTS,
        search="exact",  # the memory is small, and results are reproducible
    )
    detector.save(out / "models" / name)
    tested = TestResults(folder)
    inspect_into(
        out / name,
        detector,
        [folder / "test"],
        model_name=name,
        card=detector_card(detector, name),
        overwrite=True,
        on_progress=lambda done, *_: advance("inspect", done, test),
        on_inspection=tested.add,
    )
    result = measure(tested, detector)
    category = DemoCategory(
        name=name,
        images=len(detector.memory.image_names),
        train_seconds=float(detector.provenance["training"]["seconds"]),
        detection=result.metrics["detection_auroc"],
        segmentation=result.metrics["segmentation_auroc"],
    )
    good = result.verdicts["good"]
    detected = sum(counts["anomalous"] for defect, counts in result.verdicts.items() if defect != "good")
    defects = sum(counts["images"] for defect, counts in result.verdicts.items() if defect != "good")
    facts = {
        "Detection AUROC": f"{category.detection:.3f}",
        "Segmentation AUROC": f"{category.segmentation:.3f}",
        "Defects found": f"{detected} of {defects}",
        "False alarms": f"{good['anomalous']} of {good['images']}",
        "Trained on": f"{category.images} good images in {category.train_seconds:.0f} s",
    }
    return category, OverviewEntry(name, facts, _samples(out, name), f"{name}/index.html")


def _samples(out: Path, name: str) -> list[Path]:
    """Overlays for the overview page: the highest score of each kind of defect, and of the good images."""
    worst: dict[str, Path] = {}
    for row in ResultsFile(out / name).rows_worst_first():
        worst.setdefault(row["image"].split("/")[0], Path(name, row["overlay"]))
    good = worst.pop("good", None)
    overlays = list(worst.values())[: SAMPLES - 1]
    return overlays if good is None else [*overlays, good]
