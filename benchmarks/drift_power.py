"""Which changes `drift` detects, how soon, with how many calibration images; and how often it alarms without a change.

    python benchmarks/drift_power.py --out benchmarks/results/drift-power.json

Simulated, with the test that `drift` uses and its shared rate: each of the five image statistics has a fifth of it.
Unchanged streams have a different distribution in each statistic, one with ties. Changed ones are normal: one statistic
shifts by a number of its standard deviations, or its standard deviation doubles, before the first image or after 100.
"growing" is the earlier test: ranks among all previous images, with bets of slope 1 and 2. The service tests each block
of inspections separately; earlier, it tested the latest 500 at each request. Blocks of a model share its calibration
images: the interval of the share of blocks with an alarm assumes independent blocks and is therefore too narrow.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.core.device import choose_device
from patchsvdd.detector.drift import RATE, DriftTest
from patchsvdd.detector.image_statistics import TRAITS
from patchsvdd.scoring.conformal import share_interval
from record import circumstances, write_result

Array = NDArray[np.float64]
Random = np.random.Generator
Alarms = Callable[[Array, Array, int], NDArray[np.int64]]
"""(calibration values (n, columns), new values (images, columns), seed) → the number of the image that raised an alarm
in each column, 0 for none. A column is a trait of a stream."""

PARTS = ("power", "false_alarms", "one_trait", "service", "one_look")
REFERENCES = (12, 24, 60, 200)
SHIFTS = (0.5, 1.0, 1.5, 2.0, 3.0)
LENGTH = 2000
"""Images of an unchanged stream."""
HORIZON = 500
"""Number of images within which a change counts as detected."""
BLOCK = 500
BLOCKS = 20
ASKED_EVERY = 100
"""Inspections between two requests to the service."""
TOGETHER = 500
"""Columns processed at a time."""
DISTRIBUTIONS: dict[str, Callable[[Random, tuple[int, int]], Array]] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "lognormal": lambda random, shape: random.lognormal(size=shape),
    "heavy tails": lambda random, shape: random.standard_t(2, size=shape),
    "ties": lambda random, shape: random.poisson(2.0, size=shape).astype(np.float64),
    "two peaks": lambda random, shape: random.normal(size=shape) + 6.0 * (random.random(shape) < 0.3),
}
assert len(DISTRIBUTIONS) == len(TRAITS)


def alarms(reference: Array, stream: Array, seed: int) -> NDArray[np.int64]:
    """The current test."""
    found = np.zeros(stream.shape[1], np.int64)
    for begin in range(0, stream.shape[1], TOGETHER):
        names = [str(column) for column in range(begin, min(begin + TOGETHER, stream.shape[1]))]
        columns = slice(begin, begin + len(names))
        values = dict(zip(names, reference[:, columns].T.tolist(), strict=True))
        test = DriftTest(values, RATE / len(TRAITS) * len(names), seed + begin)
        for row in stream[:, columns].tolist():
            test.add("", dict(zip(names, row, strict=True)))
            if len(test.changes) == len(names):
                break
        for name, change in test.changes.items():
            found[int(name)] = change.number
    return found


def growing(reference: Array, stream: Array, seed: int) -> NDArray[np.int64]:
    """The earlier test: bets on the rank among all previous values."""
    random, slopes, jump = np.random.default_rng(seed), np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), 0.01
    known, values = len(reference), np.concatenate([reference, stream])
    shares, logs = np.full((stream.shape[1], 5), 0.2), np.zeros(stream.shape[1])
    found = np.zeros(stream.shape[1], np.int64)
    for number, row in enumerate(stream, start=1):
        before = values[: known + number - 1]
        below, equal = (before < row).sum(0), (before == row).sum(0) + 1
        ranks = (below + random.random(len(row)) * equal) / (known + number)
        joint = ((1 - jump) * shares + jump / 5) * (1 + slopes * (ranks[:, None] - 0.5))
        shares = joint / joint.sum(1)[:, None]
        logs += np.log(joint.sum(1))
        found[(found == 0) & (logs >= math.log(len(TRAITS) / RATE))] = number
    return found


METHODS: dict[str, Alarms] = {"new": alarms, "growing": growing}


def unchanged(random: Random, images: int, streams: int) -> Array:
    """(images, streams × statistics)"""
    parts = [draw(random, (images, streams)) for draw in DISTRIBUTIONS.values()]
    return np.stack(parts, axis=2).reshape(images, -1)


def by_stream(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """1 for each stream with an alarm in any statistic, 0 for others."""
    return np.array([bool(row.any()) for row in found.reshape(-1, len(TRAITS))], np.int64)


def share(hits: int, trials: int) -> dict[str, Any]:
    return {"count": hits, "of": trials, "share": hits / trials, "interval": list(share_interval(hits, trials))}


def false_alarms(count: int, streams: int) -> dict[str, Any]:
    random = np.random.default_rng(count)
    reference, stream = unchanged(random, count, streams), unchanged(random, LENGTH, streams)
    row: dict[str, Any] = {"references": count}
    for name, method in METHODS.items():
        row[name] = share(int(by_stream(method(reference, stream, 0)).sum()), streams)
    return row


def one_trait(count: int, streams: int) -> dict[str, Any]:
    """False alarms of single statistics: many shorter streams."""
    rows: dict[str, Any] = {"references": count, "images": HORIZON // 2, "promised": RATE / len(TRAITS)}
    for number, name in enumerate(("normal", "ties")):
        random, draw = np.random.default_rng([count, number]), DISTRIBUTIONS[name]
        reference, stream = draw(random, (count, streams)), draw(random, (HORIZON // 2, streams))
        rows[name] = share(int((alarms(reference, stream, 0) > 0).sum()), streams)
    return rows


def power(count: int, streams: int, shift: float, scale: float, after: int) -> dict[str, Any]:
    random = np.random.default_rng([count, int(10 * shift), int(10 * scale), after])
    reference, stream = random.normal(size=(count, streams)), random.normal(size=(after + HORIZON, streams))
    stream[after:] = stream[after:] * scale + shift
    row: dict[str, Any] = {"references": count, "shift": shift, "scale": scale, "after": after}
    for name, method in METHODS.items():
        found = method(reference, stream, 0)
        # An alarm before the change does not count.
        delays = np.sort(np.where(found > after, found - after, HORIZON + 1))
        within = {key: int(delays[math.ceil(part * streams) - 1]) for key, part in (("median", 0.5), ("90%", 0.9))}
        row[name] = {
            **share(int((delays <= HORIZON).sum()), streams),
            "images": {key: value if value <= HORIZON else None for key, value in within.items()},
        }
    return row


def service(count: int, models: int) -> dict[str, Any]:
    """False alarms over a long time: in blocks, and earlier in the latest inspections at each request."""
    random = np.random.default_rng(count)
    reference, stream = unchanged(random, count, models), unchanged(random, BLOCK * BLOCKS, models)
    in_blocks = [by_stream(alarms(reference, stream[at : at + BLOCK], 0)) for at in range(0, len(stream), BLOCK)]
    ends = range(BLOCK, len(stream) + 1, ASKED_EVERY)
    sliding = [by_stream(growing(reference, stream[end - BLOCK : end], 0)) for end in ends]
    return {
        "references": count,
        "models": models,
        "inspections": len(stream),
        "blocks_with_an_alarm": share(int(np.sum(in_blocks)), models * BLOCKS),
        "models_with_an_alarm": share(int(np.any(in_blocks, axis=0).sum()), models),
        "models_with_an_alarm_before": share(int(np.any(sliding, axis=0).sum()), models),
    }


def one_look(count: int, trials: int) -> dict[str, Any]:
    """What a single rank-sum test detects, after an infinite stream and with a statistic's share of the rate.

    The distribution of the new images is then known, and the mean of the calibration images' ranks in it is tested.
    """
    random, normal = np.random.default_rng(count), np.vectorize(NormalDist().cdf)
    limit = np.quantile(np.abs(random.random((trials, count)).mean(1) - 0.5), 1 - RATE / len(TRAITS))
    reference = random.normal(size=(trials // 20, count))
    row: dict[str, Any] = {"references": count}
    for shift in SHIFTS:
        hits = np.abs(normal(reference - shift).mean(1) - 0.5) >= limit
        row[f"{shift:g}"] = share(int(hits.sum()), len(reference))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--single", type=int, default=10_000, help="streams of a single statistic")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts to run; others stay unchanged")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    parts = args.parts.split(",")
    result: dict[str, Any] = {
        "command": "benchmarks/drift_power.py",
        **circumstances(choose_device("cpu")),
        "rate": RATE,
        "traits": len(TRAITS),
        "distributions_of_unchanged_streams": list(DISTRIBUTIONS),
        "images_of_unchanged_streams": LENGTH,
        "images_after_a_change": HORIZON,
        "block": BLOCK,
        "asked_every": ASKED_EVERY,
    }
    known = json.loads(args.out.read_text()) if args.out.exists() else {}
    result |= {part: [] if part in parts else known.get(part, []) for part in PARTS}

    changes = [(shift, 1.0, after) for after in (0, 100) for shift in SHIFTS]
    changes += [(0.0, 2.0, after) for after in (0, 100)]
    work: dict[str, list[Callable[[], dict[str, Any]]]] = {
        "power": [partial(power, count, args.streams, *change) for count in REFERENCES for change in changes],
        "false_alarms": [partial(false_alarms, count, args.streams) for count in REFERENCES],
        "one_trait": [partial(one_trait, count, args.single) for count in (12, 24)],
        "service": [partial(service, count, args.models) for count in (12, 60)],
        "one_look": [partial(one_look, count, 200_000) for count in REFERENCES[:3]],
    }
    for part in parts:
        for one in work[part]:
            result[part].append(one())
            write_result(args.out, result)
            print(part, result[part][-1], flush=True)


if __name__ == "__main__":
    main()
