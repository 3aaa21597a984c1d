"""One encoder trained and tested on one category: the settings and the result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from patchsvdd.core.config import Config, defaults_for_old_models
from patchsvdd.core.errors import DatasetError, TrainingCollapsed
from patchsvdd.core.version import __version__
from patchsvdd.evaluation.collected_results import PRODUCT, TestResults
from patchsvdd.evaluation.dataset import digest_of
from patchsvdd.evaluation.evaluate import Evaluation
from patchsvdd.evaluation.sample_maps import SampleMaps
from patchsvdd.images.loading import sized_for

APPLIED = ("memory", "position_normalization", "local_scaling", "fusion_share", "min_area", "aim", "synthetic_defects")
"""Settings that only affect scoring with a trained encoder and critic."""
OF_THRESHOLD = ("aim", "synthetic_defects")
"""Those of them that only affect the threshold."""
Scoring = Literal["nearest", "center"]
"""Distance to the nearest normal patch (Eq. 8), or to the single centre c as in Deep SVDD."""


@dataclass(frozen=True)
class Experiment:
    """Settings of one training and test."""

    category: Path
    config: Config
    scoring: Scoring = "nearest"
    calibrated: bool = True
    """Whether to calibrate a threshold; as slow as inspecting all training images."""

    def sized(self) -> Experiment:
        """The experiment with the image size that its training images determine; itself if the settings fix one."""
        if self.config.auto_size:
            with suppress(DatasetError):  # loading the images reports it
                return dataclasses.replace(self, config=sized_for(self.category, self.config))
        return self

    def training_key(self) -> str:
        """Hash of everything the trained encoder depends on: settings, training files, version of the package."""
        settings = self.sized().config.to_json()
        for name in ("preset", "false_alarm_rate", *APPLIED):  # scoring settings do not affect training
            del settings[name]
        for name, before in defaults_for_old_models().items():
            if name in settings and settings[name] == before:
                del settings[name]  # keeps the keys of encoders trained by earlier versions
        return _short({"version": __version__, "settings": settings, "train": digest_of(self.category / "train")})

    def test_key(self, calibrated: bool) -> str:
        """Hash of everything the result depends on besides the encoder: test files, masks, scoring, threshold."""
        files = [
            digest_of(self.category / part) for part in ("test", "ground_truth") if (self.category / part).is_dir()
        ]
        rate = self.config.false_alarm_rate if calibrated else None
        before = defaults_for_old_models()
        unused = () if calibrated else OF_THRESHOLD
        applied = {name: getattr(self.config, name) for name in APPLIED if name not in unused}
        changed = {name: value for name, value in applied.items() if value != before[name]}
        return _short({"files": files, "scoring": self.scoring, "rate": rate, **changed})


@dataclass(frozen=True)
class ExperimentResult:
    """The stored result of an experiment."""

    experiment: Experiment
    data: dict[str, Any]
    folder: Path
    name: str

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the product map; those that could not be computed are absent."""
        values = self.data["evaluation"].items()
        return {name: value for name, value in values if _is_metric(name) and value is not None}

    @property
    def scales(self) -> dict[int, dict[str, float]]:
        """Patch size → the metrics of that scale's map."""
        return {int(size): values for size, values in self.data["evaluation"]["scales"].items()}

    @property
    def parts(self) -> dict[str, dict[str, float]]:
        """ "memory" and "critic" → the metrics of that part; empty if no maps were fused."""
        parts: dict[str, dict[str, float]] = self.data["evaluation"].get("parts", {})
        return parts

    @property
    def missing(self) -> dict[str, str]:
        """Metric → why it is absent."""
        skipped: dict[str, str] = self.data["evaluation"]["skipped"]
        return skipped

    @property
    def train_seconds(self) -> float:
        """Seconds spent training the encoder and the critic."""
        training = self.data["training"]
        return float(training["seconds"]) + float(training.get("critic_seconds", 0.0))

    def sample_maps(self) -> SampleMaps:
        """The stored maps of a few images."""
        return SampleMaps(self.folder / f"{self.name}.npz", self.data["kept"])


def measured(results: TestResults, evaluation: Evaluation) -> dict[str, Any]:
    """The data stored for a test: the metrics, the curves, and a row per image."""
    return {
        "evaluation": evaluation.to_json(),
        "curves": {name: dataclasses.asdict(curve) for name, curve in evaluation.curves.items()},
        "images": [
            {
                "image": image.file.relative_to(results.category).as_posix(),
                "defect": image.defect,
                "anomalous": anomalous,
                "score": results.scores[PRODUCT][index],
                "scores": {str(key): results.scores[key][index] for key in results.keys if key != PRODUCT},
            }
            for index, (image, anomalous) in enumerate(zip(results.images, results.anomalous, strict=True))
        ],
    }


def collapsed(error: TrainingCollapsed) -> dict[str, Any]:
    """The result of an experiment whose training collapsed: no metric, and the reason."""
    reasons = dict.fromkeys(("detection_auroc", "segmentation_auroc"), f"training collapsed: {error}")
    return {
        "training": {"steps": 0, "seconds": 0.0, "collapsed": str(error)},
        "evaluation": {"scales": {}, "skipped": reasons, "warnings": [], "verdicts": {}, "images": 0},
        "curves": {},
        "images": [],
    }


def origin_of(results: Sequence[ExperimentResult]) -> dict[str, Any]:
    """Hardware, date, commit and versions of stored results: the latest date, and every value of the others."""
    whole = [{**result.data, **result.data["training"]} for result in results]  # training, the longer part, wins
    return {
        "hardware": ", ".join(sorted({str(one["hardware"]) for one in whole})),
        "date": max(str(one["date"]) for one in whole),
        "commit": ", ".join(sorted({str(one["commit"]) for one in whole})),
        "versions": whole[0]["versions"],
    }


def _is_metric(name: str) -> bool:
    if name.endswith("_interval"):
        return False
    groups = ("detection_", "segmentation_", "balanced_accuracy", "region_")
    return name.startswith(groups) or name in ("aupro", "false_alarm_rate", "miss_rate")


def _short(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
