"""How often good test images are called anomalous, compared with the threshold's guarantee; and whether they drifted.

    python benchmarks/false_alarms.py DATASET --cache RUNS --out benchmarks/results/false-alarms.json

The runs of `patchsvdd benchmark` in RUNS are used as they are: stored weights are not trained again. The threshold
comes from good images held out of training, at a nominal rate. Good test images show how often it is exceeded (with a
Clopper–Pearson interval), and `drift` tests them in order of name. Only the label "good" is read. --models keeps the
detectors as model folders.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from patchsvdd import preset
from patchsvdd.core.device import choose_device
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.drift import drift_test, follow
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.images.image_files import find_images
from patchsvdd.images.loading import load_good_images
from patchsvdd.scoring.calibration import calibrate
from patchsvdd.scoring.conformal import share_interval
from patchsvdd.scoring.inspection import Inspection
from record import circumstances, write_result

CATEGORIES = "toothbrush,bottle,pill,screw"


def row_of(detector: PatchSVDD, category: Path, rate: float, drift_rate: float) -> dict[str, Any]:
    known = detector.calibration
    assert known is not None
    calibration = calibrate(known.scores, rate, known.basis)
    guarantee = calibration.conformal_guarantee
    inspected: list[Inspection] = []
    test = drift_test(detector, drift_rate)
    follow(test, detector, find_images(category / "test" / "good")[0], on_image=lambda one, _: inspected.append(one))
    above = sum(one.score > calibration.threshold for one in inspected)
    low, high = share_interval(above, len(inspected))
    return {
        "calibration_images": len(known.scores),
        "basis": known.basis,
        "nominal_rate": rate,
        "promised_rate": guarantee.rate,
        "rate_at_confidence": guarantee.rate_at_confidence,
        "good_test_images": len(inspected),
        "false_alarms": above,
        "realised_rate": above / len(inspected),
        "interval": [low, high],
        "nominal_is_in_the_interval": low <= rate <= high,
        "verdict": verdict(above, len(inspected), guarantee.rate),
        "drift": [
            {**change.to_json(), "image": Path(str(change.to_json()["image"])).name} for change in test.changes.values()
        ],
        "evidence": {trait: round(value, 2) for trait, value in test.evidence.items()},
        "evidence_limit": round(test.limit_as_power, 2),
    }


def verdict(false_alarms: int, images: int, promised: float) -> str:
    """Whether the false alarms on this many good images are compatible with the guaranteed rate."""
    low, high = share_interval(false_alarms, images)
    if low > promised:
        return "broken"
    if false_alarms / images > promised:
        return "exceeded, which may be chance"
    return "kept" if high <= promised else "kept, which may be chance"


def judge(path: Path) -> None:
    """Recompute the verdicts in a result file without measuring."""
    result = json.loads(path.read_text())
    for row in result["categories"].values():
        row.pop("promise_at_confidence_is_kept", None)
        row["verdict"] = verdict(row["false_alarms"], row["good_test_images"], row["promised_rate"])
    write_result(path, result)


def tell(stage: str, done: int, total: int) -> None:
    if done == total:
        print(f"  {stage}: {total}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--categories", default=CATEGORIES)
    parser.add_argument("--preset", default="best")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--drift-rate", type=float, default=0.01)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--judge", action="store_true", help="only recompute the verdicts in --out")
    args = parser.parse_args()
    if args.judge:
        judge(args.out)
        return
    config = preset(args.preset, aim="few-alarms", synthetic_defects=0)
    store = ExperimentStore(args.cache)
    result: dict[str, Any] = {
        "command": "benchmarks/false_alarms.py",
        "preset": args.preset,
        **circumstances(choose_device("auto")),
        "seed": config.seed,
        "categories": {},
    }
    for name in args.categories.split(","):
        start = time.perf_counter()
        experiment = Experiment(args.dataset / name, config).sized()
        images = load_good_images(experiment.category, experiment.config)
        parts: dict[str, Any] = {"encoder": store.encoder(experiment, images)[0]}
        parts["critic"] = store.critic(experiment, images)
        detector = PatchSVDD.fit_images(images, experiment.config, search="auto", on_stage=tell, **parts)
        if args.models is not None:
            detector.save(args.models / name)
        row = row_of(detector, args.dataset / name, args.rate, args.drift_rate)
        result["categories"][name] = row
        write_result(args.out, result)
        print(f"{name}: {row}, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
