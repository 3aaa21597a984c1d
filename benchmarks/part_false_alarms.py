"""How often good parts with several views are called anomalous, and what a guarantee for the part costs in misses.

    python benchmarks/part_false_alarms.py [DATA ...] [--out FILE]

Simulated: scores of each view are log-normal, with another spread for each; copulas join the views. Every row is the
mean over CALIBRATIONS calibrations, each tried on PARTS new good and as many defective parts. A defect raises the score
of one random view by SHIFT standard deviations of its logarithm. "known" are the limits that somebody would set who
knew the distribution of good scores: equal tails in all views that together have the same rate.

Real: the left and the right half of every image of DATA (categories in MVTec layout) are two views. Each half has a
model of the first TRAINED good images; the others and the good test images are parts that no model has seen. They are
split at random into parts to calibrate with and new parts. Test labels are read after all scores exist.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from patchsvdd.core.device import choose_device
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.images.mvtec_layout import find_good_images, find_test_images
from patchsvdd.scoring.calibration import Calibration, calibrate
from patchsvdd.scoring.conformal import rank_for, share_interval
from patchsvdd.scoring.part_calibration import PartCalibration, bonferroni_parts, calibrate_parts
from record import RESULTS, circumstances, write_result

OUT = RESULTS / "part-false-alarms.json"
CALIBRATIONS, PARTS, SHIFT = 400, 250, 4.0
SPREADS = (0.05, 0.1, 0.2, 0.4, 0.05, 0.1, 0.2, 0.4)
"""Standard deviations of the logarithm of a view's good scores."""
COUNTS, RATES, VIEWS = (60, 200), (0.01, 0.05), (1, 2, 4, 8)
COPULAS = (("normal", 0.0), ("normal", 0.5), ("normal", 0.95), ("normal", 1.0), ("t, 4 degrees", 0.5))
"""Copula and its correlation."""
TRAINED, SIZE = 60, (128, 64)
SPLITS = 200
Scores = NDArray[np.float64]


def latent(random: np.random.Generator, count: int, views: int, copula: str, shared: float) -> Scores:
    """Normal scores (count, views), joined by a copula."""
    common, own = random.standard_normal((count, 1)), random.standard_normal((count, views))
    joined = math.sqrt(shared) * common + math.sqrt(1 - shared) * own
    if copula == "normal":
        return np.asarray(joined)
    heavy = joined * np.sqrt(4 / random.chisquare(4, (count, 1)))
    # Student's distribution of 4 degrees of freedom in closed form, then normal margins again.
    below = 0.5 + 0.75 * (u := heavy / np.sqrt(heavy**2 + 4)) - 0.25 * u**3
    ordered = np.linspace(-8, 8, 4001)
    normal = np.array([NormalDist().cdf(one) for one in ordered])
    return np.interp(below, normal, ordered)


def scores_of(latent_scores: Scores) -> Scores:
    views = latent_scores.shape[1]
    return np.asarray(np.exp(np.array(SPREADS[:views]) * latent_scores))


def named(scores: Scores) -> dict[str, dict[str, float]]:
    return {str(row): {str(view): float(one) for view, one in enumerate(line)} for row, line in enumerate(scores)}


def own_calibrations(scores: Scores, rate: float = 0.01) -> dict[str, Calibration]:
    return {str(view): calibrate(column.tolist(), rate, "separate") for view, column in enumerate(scores.T)}


def limits_of(calibration: PartCalibration) -> Scores:
    return np.array([view.limit for view in calibration.views])


def same_parts(scores: Scores, rate: float) -> Scores:
    """Limits of a wrong way: the parts that set the threshold also set the units (each view's own threshold)."""
    return thresholds_as_units(scores, scores, rate)


def thresholds_as_units(scores: Scores, own: Scores, rate: float) -> Scores:
    """Limits with multiples of each model's threshold as the unit."""
    units = np.quantile(own, (rank_for(len(own), rate) - 1) / (len(own) - 1), axis=0, method="nearest")
    highest = np.sort((scores / units).max(axis=1))
    return np.asarray(units * highest[rank_for(len(scores), rate) - 1])


def simulate(views: int, copula: str, shared: float, count: int, rate: float) -> dict[str, Any]:
    random = np.random.default_rng([views, COPULAS.index((copula, shared)), count, round(1000 * rate)])

    def draw(number: int) -> Scores:
        return latent(random, number, views, copula, shared)

    identities = {str(view): "simulated" for view in range(views)}
    highest = np.sort(draw(400_000).max(axis=1))
    shares: dict[str, list[tuple[float, float]]] = {}
    stated: dict[str, float] = {}
    for _ in range(CALIBRATIONS):
        own, parts = scores_of(draw(count)), scores_of(draw(count))
        joint = calibrate_parts(named(parts), rate, identities, own_calibrations(own))
        union = bonferroni_parts(own_calibrations(own), rate, identities)
        if not stated:
            stated = {"joint": joint.rate, "union": union.rate}
            level = highest[math.ceil((1 - joint.rate) * len(highest)) - 1]
        limits = {
            "joint": limits_of(joint),
            "union": limits_of(union),
            "known": np.exp(np.array(SPREADS[:views]) * level),
            "threshold units": thresholds_as_units(parts, own, rate),
            "units of the same parts": same_parts(parts, rate),
        }
        good, bad = draw(PARTS), draw(PARTS)
        bad[np.arange(PARTS), random.integers(0, views, PARTS)] += SHIFT
        for name, limit in limits.items():
            alarms, found = ((scores_of(one) > limit).any(axis=1).mean() for one in (good, bad))
            shares.setdefault(name, []).append((float(alarms), float(found)))
    row: dict[str, Any] = {"views": views, "copula": copula, "correlation": shared, "calibration": count, "rate": rate}
    for name, pairs in shares.items():
        alarms, found = np.array(pairs).T
        error = float(alarms.std(ddof=1) / math.sqrt(len(alarms)))
        row[name] = {
            "stated": round(stated.get(name, stated["joint"]), 5),
            "false_alarms": round(float(alarms.mean()), 5),
            "standard_error": round(error, 5),
            "kept": bool(alarms.mean() <= stated.get(name, stated["joint"]) + 3 * error),
            "found": round(float(found.mean()), 4),
        }
    return row


def halves(path: Path) -> dict[str, NDArray[np.uint8]]:
    pixels = np.asarray(Image.open(path).convert("RGB"))
    middle = pixels.shape[1] // 2
    return {"left": pixels[:, :middle].copy(), "right": pixels[:, middle:].copy()}


def real(category: Path, steps: int) -> dict[str, Any]:
    begun = time.perf_counter()
    good, test = find_good_images(category).files, find_test_images(category).images
    scores: dict[str, dict[str, dict[Path, float]]] = {"unseen": {}, "good": {}, "defective": {}}
    own: dict[str, Calibration] = {}
    for view in ("left", "right"):
        model = PatchSVDD.fit(
            [halves(path)[view] for path in good[:TRAINED]],
            preset="encoder",
            image_size=SIZE,
            steps=steps,
            device="cpu",
            aim="few-alarms",
            synthetic_defects=0,
        )
        assert model.calibration is not None
        own[view] = model.calibration
        kinds: dict[str, list[Path]] = {
            "unseen": list(good[TRAINED:]),
            "good": [one.file for one in test if one.is_good],
            "defective": [one.file for one in test if not one.is_good],
        }
        for kind, paths in kinds.items():
            scores[kind][view] = {path: model.inspect(halves(path)[view]).score for path in paths}
        print(f"  {category.name} {view}: {time.perf_counter() - begun:.0f} s", flush=True)
    unseen = {view: np.array([*scores["unseen"][view].values(), *scores["good"][view].values()]) for view in own}
    fresh = np.stack([unseen[view] for view in own], axis=1)
    bad = np.stack([np.array([*scores["defective"][view].values()]) for view in own], axis=1)
    rows = [split_rate(fresh, bad, dict(own), count, rate) for count, rate in ((60, 0.05), (60, 0.1))]
    return {
        "category": category.name,
        "steps": steps,
        "trained": TRAINED,
        "unseen_good": len(fresh),
        "defective": len(bad),
        "correlation_of_the_views": round(float(np.corrcoef(np.log(fresh).T)[0, 1]), 3),
        "seconds": round(time.perf_counter() - begun),
        "rows": rows,
    }


def split_rate(fresh: Scores, bad: Scores, own: Mapping[str, Calibration], count: int, rate: float) -> dict[str, Any]:
    """Share of new good parts that is called anomalous, over random splits of the parts that no model has seen."""
    random = np.random.default_rng(0)
    identities = {view: view for view in own}

    def views(scores: Scores) -> dict[str, Calibration]:
        return {view: calibrate(scores[:, place].tolist(), rate, "separate") for place, view in enumerate(own)}

    def joint(scores: Scores) -> PartCalibration:
        parts = {str(row): dict(zip(own, map(float, line), strict=True)) for row, line in enumerate(scores)}
        return calibrate_parts(parts, rate, identities, own)

    makers: dict[str, Callable[[Scores], PartCalibration]] = {
        "joint": joint,
        "union": lambda scores: bonferroni_parts(views(scores), rate, identities),
    }
    row: dict[str, Any] = {"calibration": count, "rate": rate}
    for name, make in makers.items():
        alarms, found = [], []
        for _ in range(SPLITS):
            order = random.permutation(len(fresh))
            limits = limits_of(made := make(fresh[order[:count]]))
            alarms.append((fresh[order[count:]] > limits).any(axis=1).mean())
            found.append((bad > limits).any(axis=1).mean())
        # The splits share their parts, so the interval is that of one split's share of all parts.
        hits = round(float(np.mean(alarms)) * len(fresh))
        row[name] = {
            "stated": round(made.rate, 5),
            "false_alarms": round(float(np.mean(alarms)), 5),
            "interval": [round(one, 4) for one in share_interval(hits, len(fresh))],
            "found": round(float(np.mean(found)), 4),
        }
    alone = np.array([one.threshold for one in own.values()])
    row["each view's own threshold"] = {
        "false_alarms": round(float((fresh > alone).any(axis=1).mean()), 5),
        "found": round(float((bad > alone).any(axis=1).mean()), 4),
    }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="*")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "command": "benchmarks/part_false_alarms.py",
        **circumstances(choose_device("cpu")),
        "calibrations": CALIBRATIONS,
        "parts_each": PARTS,
        "shift": SHIFT,
        "spreads": list(SPREADS),
        "simulated": [],
        "real": [],
    }
    if args.out.exists() and args.data:
        result["simulated"] = json.loads(args.out.read_text())["simulated"]
    else:
        for views in VIEWS:
            for copula, shared in COPULAS:
                for count in COUNTS:
                    result["simulated"] += [simulate(views, copula, shared, count, rate) for rate in RATES]
            print(f"{views} views", flush=True)
    for category in args.data:
        result["real"].append(real(category, args.steps))
    write_result(args.out, result)


if __name__ == "__main__":
    main()
