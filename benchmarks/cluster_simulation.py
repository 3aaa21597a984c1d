"""How long an archive takes on a cluster, and what it waits for: a model of ``patchsvdd inspect --cluster``.

The command finds and plans all images (the driver alone), starts workers and sends them the model, has chunks
inspected in blocks that Ray Data hands out, and reads all results for its summary (the driver alone). A worker reads
the plan, reads and decodes images a few at a time, computes, and writes one file per chunk and one per heat map.

``simulate`` plays this through: blocks go to whichever worker is free first, each takes a time that varies, and what
all workers share (the store's requests and bandwidth, the network of machines) slows them down alike. A resource is
*busy* for as long as it would take if it were the only limit; the one that is busy longest saturates first.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

CHUNK = 256
"""Images per chunk of a large archive (patchsvdd.apps.cluster.job)."""
MOST_BLOCKS = 4096
"""Blocks that chunks are handed out in (patchsvdd.apps.cluster.ray_inspect)."""
IMAGE_READS = 2
"""Requests by which an image is read: its size, its content."""
WRITES = 1
"""Requests by which a file is written."""
INDEX_READS = 2
"""Requests by which a worker reads the index of the plan, once: its end, the rest."""
PLAN_READS = 2
"""Requests by which a worker reads its chunk of the plan: its size, the chunk."""
PART_READS = 3
"""Requests by which the driver reads the results of a chunk: its size, its end, its columns."""
PART_READERS = 32
"""Parts that the driver reads at once (patchsvdd.apps.cluster.job)."""
WORKERS = (8, 64, 512)
KINDS = ("cpu", "gpu")


@dataclass(frozen=True)
class Measured:
    """What was measured; seconds are those of one core."""

    image_seconds: float
    """From a file to its row of results."""
    decode_seconds: float
    """Of an image: read and decoded."""
    record_seconds: float
    """Of an image: from its map to its row."""
    commit_seconds: float
    """Of writing the results of a chunk."""
    overlay_seconds: float
    """Of drawing a heat map."""
    image_bytes: float
    result_bytes: float
    """Of an image, in Parquet."""
    overlay_bytes: float
    find_seconds: float
    """Of an image on a list of paths."""
    plan_seconds: float
    """Of an image: into the plan."""
    plan_bytes: float
    """Of an image."""
    driver_bytes: float
    """Of an image: memory of the driver while it plans."""
    open_seconds: float
    """Of opening a plan, for each chunk in it."""
    open_bytes: float
    """Read when a plan is opened, for each chunk in it."""
    part_seconds: float
    """Of reading the results of a chunk for the summary."""
    chunk_seconds: float
    """Of the driver, for each block that it hands out."""
    load_seconds: float
    """Of a worker: from its start until the model is there."""
    model_bytes: float
    gpu_images_per_second: float
    """From decoded images in host memory to maps there."""


@dataclass(frozen=True)
class Assumed:
    """What was not measured but assumed; all of it can be given to the script."""

    images: int = 10_000_000
    nic_gigabits: float = 10.0
    """Of every machine."""
    cpu_workers_per_machine: int = 32
    gpu_workers_per_machine: int = 4
    cpu_readers: int = 32
    """Images that a worker on a core has on their way at a time (patchsvdd.apps.cluster.chunk_inspection)."""
    gpu_readers: int = 32
    """The same for a worker on a GPU."""
    request_seconds: float = 0.03
    """Until the store's first byte, or until it has confirmed a write."""
    page_seconds: float = 0.1
    """Of one request that lists names."""
    page_names: int = 1000
    gets_per_second: float = 5500.0
    """Of one prefix."""
    puts_per_second: float = 3500.0
    """Of one prefix."""
    prefixes: int = 1
    """That the images are spread over."""
    store_gigabits: float = 100.0
    anomalous_share: float = 0.01
    """Of the images; each gets a heat map."""
    spread: float = 0.1
    """Standard deviation of a block's time, as a share of it."""
    core_hour: float = 0.04
    """Price."""
    gpu_hour: float = 4.0
    """Price."""
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """How one cluster fares."""

    kind: str
    workers: int
    seconds: float
    stages: dict[str, float]
    """Seconds of each, one after the other."""
    tail_seconds: float
    """How long a worker stands idle at the end, in the mean."""
    busy: dict[str, float]
    """Seconds that each resource alone would take."""
    first: str
    """The resource that saturates first."""
    images_per_second: float
    speedup: float
    """Over one such worker that waits for nothing."""
    price: float
    driver_gigabytes: float

    @property
    def utilisation(self) -> dict[str, float]:
        """Of each resource, over the whole time."""
        return {name: busy / self.seconds for name, busy in self.busy.items()}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self) | {"utilisation": self.utilisation}


def simulate(kind: str, workers: int, measured: Measured, assumed: Assumed) -> Outcome:
    """An archive on so many workers, each a core ("cpu") or a GPU with cores to decode ("gpu")."""
    images, latency = assumed.images, assumed.request_seconds
    size = max(1, min(CHUNK, math.ceil(images / (8 * workers))))
    chunks = math.ceil(images / size)
    blocks = min(chunks, MOST_BLOCKS)
    per_machine = assumed.cpu_workers_per_machine if kind == "cpu" else assumed.gpu_workers_per_machine
    machines = math.ceil(workers / per_machine)
    nic = assumed.nic_gigabits * 1e9 / 8

    compute = measured.image_seconds if kind == "cpu" else 1 / measured.gpu_images_per_second
    readers = assumed.cpu_readers if kind == "cpu" else assumed.gpu_readers
    reading, writing = IMAGE_READS * latency, WRITES * latency
    waiting = reading if kind == "cpu" else reading + measured.decode_seconds
    own = max(compute, waiting / readers, 0.0 if kind == "cpu" else measured.record_seconds)
    open_seconds = chunks * measured.open_seconds + INDEX_READS * latency
    heat_map = assumed.anomalous_share * (measured.overlay_seconds + writing)
    chunk = PLAN_READS * latency + size * (own + heat_map) + measured.commit_seconds + writing

    heat_maps = images * assumed.anomalous_share
    read = images * measured.image_bytes + workers * chunks * measured.open_bytes
    written = images * measured.result_bytes + heat_maps * measured.overlay_bytes
    names = math.ceil(images / assumed.page_names)
    listing = names * assumed.page_seconds + images * measured.find_seconds
    planning = images * (measured.plan_seconds + measured.plan_bytes / nic)
    summary = chunks * (measured.part_seconds + PART_READS * latency / PART_READERS)
    processor = "cores" if kind == "cpu" else "GPUs"
    busy = {
        "driver alone (find, plan, sum up)": listing + planning + summary,
        "driver handing out": blocks * measured.chunk_seconds,
        processor: images * compute / workers,
        "reading ahead": images * waiting / readers / workers,
        "results in Python": images
        * (measured.record_seconds + assumed.anomalous_share * measured.overlay_seconds)
        / workers,
        "opening the plan": open_seconds + chunks * PLAN_READS * latency / workers,
        "network of machines": (read + written) / (machines * nic),
        "store: GET": (IMAGE_READS * images + PLAN_READS * chunks) / (assumed.gets_per_second * assumed.prefixes),
        "store: PUT": WRITES * (chunks + heat_maps) / (assumed.puts_per_second * assumed.prefixes),
        "store: bandwidth": (read + written) / (assumed.store_gigabits * 1e9 / 8),
    }
    if kind == "cpu":
        del busy["results in Python"]  # part of what the cores do
    shared = max(busy[name] for name in busy if name.startswith(("store", "network")))
    slowed = max(1.0, shared / (chunks * chunk / workers))
    start = open_seconds + measured.load_seconds + workers * measured.model_bytes / nic
    ends = _handed_out(
        [chunk * slowed * count for count in _spread_over(chunks, blocks)], workers, measured.chunk_seconds, assumed
    )
    inspecting = max(ends)
    stages = {"find": listing, "plan": planning, "start": start, "inspect": inspecting, "sum up": summary}
    seconds = sum(stages.values())
    price = assumed.core_hour if kind == "cpu" else assumed.gpu_hour
    return Outcome(
        kind=kind,
        workers=workers,
        seconds=seconds,
        stages=stages,
        tail_seconds=inspecting - sum(ends) / workers,
        busy=busy,
        first=max(busy, key=busy.__getitem__),
        images_per_second=images / seconds,
        speedup=images * compute / seconds,
        price=workers * seconds / 3600 * price,
        driver_gigabytes=images * measured.driver_bytes / 1e9,
    )


def simulate_all(measured: Measured, assumed: Assumed, workers: Sequence[int] = WORKERS) -> list[Outcome]:
    """Every kind of cluster."""
    return [simulate(kind, count, measured, assumed) for kind in KINDS for count in workers]


def _spread_over(chunks: int, blocks: int) -> list[int]:
    """Chunks of each block."""
    return [chunks * (index + 1) // blocks - chunks * index // blocks for index in range(blocks)]


def _handed_out(blocks: Sequence[float], workers: int, driver: float, assumed: Assumed) -> list[float]:
    """When each worker is done: a block goes to whoever is free first, and not before the driver has got to it."""
    draw = random.Random(assumed.seed)
    sigma = math.sqrt(math.log1p(assumed.spread**2))  # of a lognormal with mean 1
    free = [0.0] * workers
    for number, seconds in enumerate(blocks, start=1):
        begin = max(heapq.heappop(free), number * driver)
        heapq.heappush(free, begin + seconds * draw.lognormvariate(-(sigma**2) / 2, sigma))
    return free


def simulation_table(cases: Sequence[dict[str, Any]]) -> str:
    """A row per cluster."""
    columns = (
        "workers | total | find, plan | inspect | sum up | idle at the end | images/s | saturates first | then | price"
    )
    lines = [f"| {columns} |", "|---" * 10 + "|"]
    for case in cases:
        first, second = sorted(case["utilisation"].items(), key=lambda one: -one[1])[:2]
        stages = case["stages"]
        cells = [
            f"{case['workers']} {'cores' if case['kind'] == 'cpu' else 'GPUs'}",
            duration(case["seconds"]),
            duration(stages["find"] + stages["plan"]),
            duration(stages["inspect"]),
            duration(stages["sum up"]),
            duration(case["tail_seconds"]),
            f"{case['images_per_second']:,.0f}",
            *(f"{name} {share:.0%}" for name, share in (first, second)),
            f"{case['price']:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def inputs_table(measured: dict[str, dict[str, Any]], assumed: dict[str, dict[str, Any]]) -> str:
    """What was measured, and what was assumed."""
    lines = ["| input | value | |", "|---" * 3 + "|"]
    for kind, inputs in (("measured", measured), ("assumed", assumed)):
        for one in inputs.values():
            lines.append(f"| {one['what']} | {quantity(one['value'], one['unit'])} | {one.get('source', kind)} |")
    return "\n".join(lines) + "\n"


def quantity(value: float, unit: str) -> str:
    """ "1.4 µs", "25 kB", "5,500 1/s"."""
    for factor, prefix in ((1e6, "M"), (1e3, "k")):
        if unit == "bytes" and value >= factor:
            return f"{value / factor:.3g} {prefix}B"
    if unit == "s" and value < 1:
        factor, small = (1e6, "µs") if value < 1e-3 else (1e3, "ms")
        return f"{value * factor:.3g} {small}"
    return f"{value:,.0f} {unit}".strip() if value >= 100 else f"{value:.3g} {unit}".strip()


def duration(seconds: float) -> str:
    """ "2.5 h", "12 min" or "40 s"."""
    if seconds >= 48 * 3600:
        return f"{seconds / 86400:.1f} days"
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
