"""A model of ``patchsvdd inspect --cluster``: how long an archive takes on a cluster, and which resource limits it.

The command finds and plans all images (only the driver), starts workers and sends them the model, has chunks
inspected in blocks that Ray Data distributes, and reads all results for its summary (only the driver). A worker reads
the plan, reads and decodes images a few at a time, computes, and writes one file per chunk and one per heat map.

``simulate`` simulates this: each block goes to the first free worker, block times vary, and shared resources (requests
and bandwidth of the store, the network of machines) slow all workers down equally. A resource is *busy* for as long as
the run would take if it were the only limit; the one that is busy longest saturates first.
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
"""Largest number of blocks of chunks (patchsvdd.apps.cluster.ray_inspect)."""
IMAGE_READS = 2
"""Requests to read an image: size and content."""
WRITES = 1
"""Requests to write a file."""
INDEX_READS = 2
"""Requests of a worker to read the index of the plan, once: its end, then the rest."""
PLAN_READS = 2
"""Requests of a worker to read its chunk of the plan: the size and the chunk."""
PART_READS = 3
"""Requests of the driver to read the results of a chunk: the size, the end and the columns."""
PART_READERS = 32
"""Parts that the driver reads at once (patchsvdd.apps.cluster.job)."""
WORKERS = (8, 64, 512)
KINDS = ("cpu", "gpu")


@dataclass(frozen=True)
class Measured:
    """Measured inputs; seconds are those of one core."""

    image_seconds: float
    """Per image: from a file to its row of results."""
    decode_seconds: float
    """Per image: reading and decoding."""
    record_seconds: float
    """Per image: from its map to its row."""
    commit_seconds: float
    """Writing the results of a chunk."""
    overlay_seconds: float
    """Drawing a heat map."""
    image_bytes: float
    result_bytes: float
    """Per image, in Parquet."""
    overlay_bytes: float
    find_seconds: float
    """Per image in a list of paths."""
    plan_seconds: float
    """Per image: adding it to the plan."""
    plan_bytes: float
    """Per image."""
    driver_bytes: float
    """Per image: memory of the driver during planning."""
    open_seconds: float
    """Opening a plan, per chunk in it."""
    open_bytes: float
    """Read when a plan is opened, per chunk in it."""
    part_seconds: float
    """Reading the results of a chunk for the summary."""
    chunk_seconds: float
    """Time of the driver per block."""
    load_seconds: float
    """Per worker: from its start until the model is loaded."""
    model_bytes: float
    gpu_images_per_second: float
    """From decoded images in host memory to maps in host memory."""


@dataclass(frozen=True)
class Assumed:
    """Assumed inputs; all can be set with --assume."""

    images: int = 10_000_000
    nic_gigabits: float = 10.0
    """Per machine."""
    cpu_workers_per_machine: int = 32
    gpu_workers_per_machine: int = 4
    cpu_readers: int = 32
    """Images that a worker on a core reads at the same time (patchsvdd.apps.cluster.chunk_inspection)."""
    gpu_readers: int = 32
    """The same for a worker on a GPU."""
    request_seconds: float = 0.03
    """Time until the store sends its first byte or confirms a write."""
    page_seconds: float = 0.1
    """Time of one listing request."""
    page_names: int = 1000
    gets_per_second: float = 5500.0
    """Per prefix."""
    puts_per_second: float = 3500.0
    """Per prefix."""
    prefixes: int = 1
    """Number of prefixes that contain the images."""
    store_gigabits: float = 100.0
    anomalous_share: float = 0.01
    """Share of images that are anomalous; each gets a heat map."""
    spread: float = 0.1
    """Standard deviation of the time of a block, relative to its mean."""
    core_hour: float = 0.04
    """Price per hour."""
    gpu_hour: float = 4.0
    """Price per hour."""
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """The simulated run of one cluster."""

    kind: str
    workers: int
    seconds: float
    stages: dict[str, float]
    """Seconds of each stage, in order."""
    tail_seconds: float
    """Mean idle time of a worker at the end."""
    busy: dict[str, float]
    """Seconds of the run if the resource were the only limit."""
    first: str
    """The resource that saturates first."""
    images_per_second: float
    speedup: float
    """Relative to one such worker that never waits."""
    price: float
    driver_gigabytes: float

    @property
    def utilisation(self) -> dict[str, float]:
        """Utilisation of each resource over the whole run."""
        return {name: busy / self.seconds for name, busy in self.busy.items()}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self) | {"utilisation": self.utilisation}


def simulate(kind: str, workers: int, measured: Measured, assumed: Assumed) -> Outcome:
    """Simulate an archive on workers that are each a core ("cpu") or a GPU with cores for decoding ("gpu")."""
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
        del busy["results in Python"]  # part of the work of the cores
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
    """When each worker finishes: a block goes to the first free worker, once the driver has prepared it."""
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
    """The measured and the assumed inputs."""
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
