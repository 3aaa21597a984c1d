"""Tables of the results of ``verdicts.py``: before and after, nominal and realised, expected and real.

    python benchmarks/verdict_table.py benchmarks/results/verdicts-*.json [--out benchmarks/results/verdict-table.json]

No GPU and no images are required: the thresholds of every aim are computed from the stored scores, as ``calibrate``
does. "Before" is the aim few-alarms with a false-alarm rate of 1 %, which was the only rule until version 0.1.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patchsvdd.core.aims import AIMS
from patchsvdd.evaluation.metrics import best_f1, confusion
from patchsvdd.evaluation.operating_point import OperatingPoint, best_balanced_accuracy, intervals
from patchsvdd.scoring.calibration import Calibration, calibrate
from patchsvdd.scoring.conformal import rank_for
from patchsvdd.scoring.trade_off import Evidence, GoodTail
from record import RESULTS, circumstances, write_result

RATE = 0.01
NOMINAL = (0.02, 0.05, 0.1)
"""False-alarm rates to compare with the realised ones."""
COPIED = ("category", "seed", "detection_auroc", "region_f1", "segmentation_f1_max")
Row = dict[str, Any]
Rule = Callable[[Sequence[float], Sequence[float], float], float]
"""Return the threshold for the scores of calibration images, those of varied images, and a nominal rate."""


def by_rank(scores: Sequence[float], _: Sequence[float], rate: float) -> float:
    return sorted(scores)[rank_for(len(scores), rate) - 1]


def by_rank_varied(scores: Sequence[float], varied: Sequence[float], rate: float) -> float:
    return by_rank([*scores, *varied], (), rate)


def by_tail(scores: Sequence[float], varied: Sequence[float], rate: float) -> float:
    tail = GoodTail.fit(scores, varied)
    return tail.threshold(rate) if tail is not None else by_rank(scores, varied, rate)


def by_tail_alone(scores: Sequence[float], _: Sequence[float], rate: float) -> float:
    return by_tail(scores, (), rate)


RULES: dict[str, Rule] = {
    "rank of held-out images": by_rank,
    "rank, with varied images": by_rank_varied,
    "tail model of held-out images": by_tail_alone,
    "tail model, with varied images": by_tail,
}


def calibration_of(row: Row) -> Calibration:
    evidence = Evidence.from_json(row["evidence"]) if row["evidence"] else None
    return calibrate(row["calibration_scores"], RATE, "held-out", "few-alarms", evidence)


def split_scores(row: Row) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return scores of the good and of the defective test images."""
    good = np.array(row["scores"]["good"])
    return good, np.concatenate([values for name, values in row["scores"].items() if name != "good"])


def verdicts(row: Row, threshold: float) -> dict[str, Any]:
    """Return the errors of a threshold, and what it costs against the best threshold in hindsight."""
    good, bad = split_scores(row)
    scores = np.concatenate((good, bad))
    labels = np.concatenate((np.zeros(len(good), dtype=np.bool_), np.ones(len(bad), dtype=np.bool_)))
    counts = confusion(labels, scores > threshold)
    point = OperatingPoint(counts, best_balanced_accuracy(labels, scores), best_f1(labels, scores)[0])
    rates = {"false_alarm_rate": counts.false_alarm_rate, "miss_rate": counts.miss_rate}
    return {"threshold": threshold, **rates, **intervals(counts), **point.metrics()}


def table(rows: list[Row]) -> list[dict[str, Any]]:
    """Return, for each row, the verdicts with every aim, and the expected share of misses."""
    found = []
    for row in rows:
        known = calibration_of(row)
        aims = {aim: known.with_aim(aim) for aim in AIMS}
        found.append(
            {
                **{name: row.get(name) for name in COPIED},
                "calibration_images": len(known.scores),
                "aims": {
                    aim: {
                        **verdicts(row, one.threshold),
                        "expected_false_alarm_rate": one.conformal_guarantee.rate,
                        "expected_miss_rate": one.miss_rate,
                    }
                    for aim, one in aims.items()
                },
            }
        )
    return found


def nominal_and_realised(rows: list[Row], rules: dict[str, Rule] = RULES) -> list[dict[str, Any]]:
    """Return, for each rule and nominal rate, how often good test images exceed the threshold."""
    found = []
    for name, rule in rules.items():
        for rate in NOMINAL:
            realised = []
            for row in rows:
                varied = row["evidence"]["good"] if row["evidence"] else ()
                good, _ = split_scores(row)
                realised.append(float((good > rule(row["calibration_scores"], varied, rate)).mean()))
            error = float(np.sqrt(np.mean((np.array(realised) - rate) ** 2)))
            found.append({"rule": name, "nominal": rate, "realised": float(np.mean(realised)), "rms_error": error})
    return found


def cross_fitted(rows: list[Row], folds: list[Row]) -> list[dict[str, Any]]:
    """Compare all rules on the rows with cross-fitted scores, which stand in for those of held-out images."""
    scores = {(row["category"], row["seed"]): row["scores"] for row in folds}
    same = [row for row in rows if (row["category"], row["seed"]) in scores]
    every = [{**row, "calibration_scores": scores[row["category"], row["seed"]]} for row in same]
    rules: dict[str, Rule] = {
        "rank of cross-fitted images": by_rank,
        "tail model of cross-fitted images": by_tail_alone,
    }
    return [*nominal_and_realised(same), *nominal_and_realised(every, rules)]


def means(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the means over categories of the means over seeds, for each aim."""
    names = ("false_alarm_rate", "miss_rate", "balanced_accuracy", "balanced_accuracy_lost", "detection_f1_lost")
    found: dict[str, dict[str, float]] = {}
    for aim in AIMS:
        by_category: dict[str, list[dict[str, float]]] = {}
        for row in rows:
            by_category.setdefault(row["category"], []).append(row["aims"][aim])
        found[aim] = {
            name: statistics.fmean(statistics.fmean(one[name] for one in group) for group in by_category.values())
            for name in names
        }
        worst = max(statistics.fmean(one["balanced_accuracy_lost"] for one in group) for group in by_category.values())
        found[aim]["balanced_accuracy_lost_worst"] = worst
    return found


def miss_error(rows: list[dict[str, Any]], aim: str = "balanced") -> dict[str, float]:
    """Return how far the expected share of misses is from the realised one."""
    known = [row["aims"][aim] for row in rows if row["aims"][aim]["expected_miss_rate"] is not None]
    errors = np.array([one["expected_miss_rate"] - one["miss_rate"] for one in known])
    return {"mean_error": float(errors.mean()), "mean_absolute_error": float(np.abs(errors).mean())}


def regions(rows: list[Row]) -> dict[str, float]:
    """Return the F1 of the regions that were drawn and of the best pixel threshold in hindsight, means over sets."""
    found = {}
    for name in ("region_f1", "segmentation_f1_max"):
        by_category: dict[str, list[float]] = {}
        for row in rows:
            if row.get(name) is not None and row.get("region_f1") is not None:
                by_category.setdefault(row["category"], []).append(row[name])
        found[name] = statistics.fmean(statistics.fmean(values) for values in by_category.values())
    return {**found, "ratio": found["region_f1"] / found["segmentation_f1_max"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=RESULTS / "verdict-table.json")
    parser.add_argument("--folds", type=Path, default=RESULTS / "cross-fitting.json", help="by threshold_study.py")
    args = parser.parse_args()
    read = [json.loads(path.read_text()) for path in args.results]
    rows = [row for data in read for row in data["rows"]]
    found = table(rows)
    for row in found:
        words = [f"{row['category']:14} {row['seed']} {row['detection_auroc']:.3f}"]
        for aim, one in row["aims"].items():
            words.append(
                f"{aim} {one['false_alarm_rate']:.0%}/{one['miss_rate']:.0%} lost {one['balanced_accuracy_lost']:.3f}"
            )
        print(" | ".join(words))
    result = {
        "rows": found,
        "means": means(found),
        "nominal_and_realised": nominal_and_realised(rows),
        "cross_fitting": cross_fitted(rows, json.loads(args.folds.read_text())["rows"]) if args.folds.is_file() else [],
        "regions": regions(rows),
        "misses": {aim: miss_error(found, aim) for aim in AIMS},
        "from": [path.name for path in args.results],
        "measured": [{name: data.get(name) for name in ("date", "commit", "hardware")} for data in read],
        **circumstances(torch.device("cpu")),
    }
    for name in ("means", "nominal_and_realised", "cross_fitting", "regions", "misses"):
        print(json.dumps(result[name], indent=1))
    write_result(args.out, result)


if __name__ == "__main__":
    main()
