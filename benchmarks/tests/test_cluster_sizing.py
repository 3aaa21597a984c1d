"""The simulated cluster: known answers where they can be worked out, and a result file that follows from its inputs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import cluster_simulation
from cluster_simulation import Assumed, Measured, Outcome, duration, quantity, simulate
from cluster_sizing import OUT, assumptions, gpu_rate, measure_planning
from patchsvdd.apps.cluster import job
from patchsvdd.apps.cluster.storage import StoragePath
from plots import cluster_sizing
from support.object_store import object_store
from support.parts import ROOT

NOTHING = Measured(
    **dict.fromkeys(Measured.__dataclass_fields__, 0.0) | {"image_seconds": 0.1, "gpu_images_per_second": 1000.0}
)
"""Nothing but computing takes time."""
ENDLESS = Assumed(
    images=256 * 4096,
    request_seconds=0.0,
    page_seconds=0.0,
    gets_per_second=1e12,
    puts_per_second=1e12,
    anomalous_share=0.0,
    spread=0.0,
)


def test_a_block_and_a_chunk_are_those_of_the_package() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src" / "patchsvdd").rglob("*.py") if "cluster" in str(path))
    assert cluster_simulation.CHUNK == job.CHUNK
    assert re.findall(r"^MOST_BLOCKS = (\d+)$", source, re.MULTILINE) == [str(cluster_simulation.MOST_BLOCKS)]


def test_requests_to_a_store_are_as_many_as_are_made() -> None:
    with object_store("line"), requests() as seen:
        out = job.Job(StoragePath.of("s3://line/out"))
        out.extend(((f"{index}.png", f"s3://line/in/{index}.png") for index in range(2000)), 2)
        seen.clear()
        out.images(job.Chunk(0, 5, 2))
        assert len(seen) == cluster_simulation.INDEX_READS + cluster_simulation.PLAN_READS
        seen.clear()
        out.images(job.Chunk(0, 6, 2))
        assert len(seen) == cluster_simulation.PLAN_READS
        chunks = out.chunks()[:2]
        seen.clear()
        for chunk in chunks:
            out.commit(chunk, [{"image": "1.png", "verdict": "good", "score": 1.0}] * 2)
        assert len(seen) == 2 * cluster_simulation.WRITES
        seen.clear()
        (out.out / "results" / chunks[0].part).read_bytes()
        assert len(seen) == cluster_simulation.IMAGE_READS
        seen.clear()
        for chunk in chunks:
            with (out.out / "results" / chunk.part).open() as file:
                parquet.ParquetFile(file).read(columns=["image", "verdict", "score"])
        assert len(seen) == 2 * cluster_simulation.PART_READS


@contextmanager
def requests() -> Iterator[list[str]]:
    """What the object store of the tests is asked."""
    seen: list[str] = []
    logger = logging.getLogger("werkzeug")
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield seen
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.ERROR)


@pytest.mark.parametrize(("kind", "each"), [("cpu", 0.1), ("gpu", 0.001)])
@pytest.mark.parametrize("workers", [1, 8, 512])
def test_computing_alone_is_divided_among_workers(kind: str, each: float, workers: int) -> None:
    outcome = simulate(kind, workers, NOTHING, ENDLESS)
    assert outcome.seconds == pytest.approx(ENDLESS.images * each / workers)
    assert outcome.tail_seconds == pytest.approx(0, abs=1e-6 * outcome.seconds)
    assert outcome.speedup == pytest.approx(workers)
    assert outcome.utilisation[outcome.first] == pytest.approx(1)
    assert outcome.first in ("cores", "GPUs")
    price = ENDLESS.core_hour if kind == "cpu" else ENDLESS.gpu_hour
    assert outcome.price == pytest.approx(ENDLESS.images * each / 3600 * price)


def limited(workers: int = 512, **changes: float) -> Outcome:
    """Cores, with one thing that takes time."""
    measured = {name: value for name, value in changes.items() if name in Measured.__dataclass_fields__}
    assumed = {name: value for name, value in changes.items() if name not in measured}
    return simulate("cpu", workers, replace(NOTHING, **measured), replace(ENDLESS, **assumed))  # type: ignore[arg-type]


def test_whatever_takes_longest_saturates_first() -> None:
    images, blocks = ENDLESS.images, 4096
    cases = {
        "store: GET": (limited(gets_per_second=1000.0), (2 * images + 2 * blocks) / 1000),
        "store: PUT": (limited(puts_per_second=0.5), blocks / 0.5),
        "store: bandwidth": (limited(image_bytes=1e6, nic_gigabits=1e3, store_gigabits=1.0), images * 8e-3),
        "network of machines": (limited(image_bytes=1e6, nic_gigabits=0.1, store_gigabits=1e6), images * 8e-2 / 16),
        "driver handing out": (limited(chunk_seconds=1.0), blocks * 1.0),
        "reading ahead": (limited(8, request_seconds=30.0), images * 60.0 / 32 / 8),
        "driver alone (find, plan, sum up)": (limited(plan_seconds=0.01), images * 0.01),
        "opening the plan": (limited(open_seconds=10.0), blocks * 10.0),
    }
    for name, (outcome, busy) in cases.items():
        assert outcome.first == name
        assert outcome.busy[name] == pytest.approx(busy)
        assert outcome.seconds >= 0.999 * busy


def test_the_last_blocks_keep_workers_waiting() -> None:
    even = simulate("cpu", 512, NOTHING, ENDLESS)
    varied = simulate("cpu", 512, NOTHING, replace(ENDLESS, spread=0.3))
    assert varied.seconds > 1.05 * even.seconds
    assert varied.tail_seconds > 0.05 * even.seconds
    assert varied == simulate("cpu", 512, NOTHING, replace(ENDLESS, spread=0.3))
    uneven = simulate("cpu", 500, NOTHING, ENDLESS)  # 4,096 blocks are 8.2 for each: nine rounds
    assert uneven.stages["inspect"] == pytest.approx(9 * 256 * 0.1)


def test_assumptions_are_read_and_wrong_ones_named() -> None:
    assert assumptions(["images=1000", "gets_per_second=11000"]) == Assumed(images=1000, gets_per_second=11000.0)
    with pytest.raises(SystemExit, match="no assumption 'gets'"):
        assumptions(["gets=1"])


def test_planning_is_measured(tmp_path: Path) -> None:
    found = measure_planning(tmp_path, 10_000)
    assert 5 < found["plan_bytes"] < 100
    assert 100 < found["open_bytes"] < 1000
    assert found["driver_bytes"] > 2 * len("s3://factory/photos/")
    assert min(found[name] for name in ("find_seconds", "plan_seconds", "part_seconds")) > 0


def result() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(OUT.read_text())
    return data


def test_the_result_file_follows_from_its_inputs(tmp_path: Path) -> None:
    data = result()
    measured = Measured(**{name: one["value"] for name, one in data["measured"].items()})
    assumed = Assumed(**{name: one["value"] for name, one in data["assumed"].items()})
    assert (measured.gpu_images_per_second, data["measured"]["gpu_images_per_second"]["source"]) == gpu_rate()
    assert len(data["cases"]) == 6
    for case in data["cases"]:
        outcome = simulate(case["kind"], case["workers"], measured, assumed)
        assert outcome.to_json() == case
        assert sum(outcome.stages.values()) == pytest.approx(outcome.seconds)
        assert max(outcome.utilisation.values()) <= 1
    pytest.importorskip("matplotlib")
    cluster_sizing(data, tmp_path / "chart.svg")
    assert "if nothing but computing took time" in (tmp_path / "chart.svg").read_text()


def test_durations_are_told_in_words() -> None:
    assert [duration(one) for one in (40, 600, 9000, 200_000)] == ["40 s", "10 min", "2.5 h", "2.3 days"]
    told = [quantity(*one) for one in ((1.37e-6, "s"), (0.088, "s"), (25290, "bytes"), (10**7, ""), (0.01, ""))]
    assert told == ["1.37 µs", "88 ms", "25.3 kB", "10,000,000", "0.01"]
