"""A memory in shards, each in a Ray actor on this machine: same answers as one exact search, and at what cost?

    python benchmarks/sharded_search.py --out benchmarks/results/sharded-search.json

Vectors form clusters, as embeddings do, and some are duplicates; queries are drawn like them, and some are stored
vectors. All shards share the cores of one machine: this measures the cost of splitting, not the gain from more
machines. The coreset of a memory in shards is compared with the coreset of all rows at once.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from torch import Tensor

from patchsvdd import preset
from patchsvdd.apps.cluster.ray_connection import connected
from patchsvdd.apps.cluster.ray_shards import memory_in_shards
from patchsvdd.apps.cluster.shards import ShardedScale, ShardedSearch, select_coreset_sharded
from patchsvdd.core.memory_size import MemorySize
from patchsvdd.core.scales import Scale
from patchsvdd.detector.model_folder import write_parts
from patchsvdd.memory.coreset import k_center
from patchsvdd.memory.exact_search import ExactSearch
from record import circumstances, write_result

SIZE, LENGTH = 32, 64
CLUSTERS, SPREAD = 2000, 0.05
DUPLICATES = 0.01
"""Of the vectors."""
STORED = 0.1
"""Of the queries."""
NEIGHBOURS = 5


def draw(rows: int, seed: int) -> Tensor:
    """Vectors (rows, LENGTH) in clusters, with a few duplicates."""
    generator = torch.Generator().manual_seed(seed)
    middles = torch.randn(CLUSTERS, LENGTH, generator=generator).tanh()
    which = torch.randint(0, CLUSTERS, (rows,), generator=generator)
    vectors = middles[which] + SPREAD * torch.randn(rows, LENGTH, generator=generator)
    again = int(DUPLICATES * rows)
    places = torch.randperm(rows, generator=generator)[: 2 * again]
    vectors[places[:again]] = vectors[places[again:]]
    return vectors


def queries_for(vectors: Tensor, count: int, seed: int) -> Tensor:
    """Queries (count, LENGTH) near vectors, and some that are stored vectors."""
    generator = torch.Generator().manual_seed(seed)
    queries = vectors[torch.randint(0, len(vectors), (count,), generator=generator)]
    noise = SPREAD * torch.randn(queries.shape, generator=generator)
    noise[: int(STORED * count)] = 0
    return queries + noise


def as_model(vectors: Tensor, folder: Path) -> dict[str, Any]:
    """Write a memory of these vectors to a folder; return its index."""
    origins = torch.zeros((len(vectors), 3), dtype=torch.int32)
    files = write_parts(folder, {"memory": {f"{SIZE}.embeddings": vectors, f"{SIZE}.origins": origins}}, {})
    return {"files": files, "image_names": ["drawn"], "config": preset("paper", scales=(Scale(SIZE, 4),)).to_json()}


def own_bytes(process: int) -> int:
    """Private memory of a process in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def timed(search: ExactSearch | ShardedSearch, queries: Tensor, repeats: int) -> tuple[list[float], Tensor, Tensor]:
    """Seconds of each of several searches, and their results."""
    search.nearest(queries[:16])  # warms up
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        distances, rows = search.nearest(queries)
        seconds.append(time.perf_counter() - start)
    return seconds, distances, rows


def covering(vectors: Tensor, kept: Tensor) -> dict[str, float]:
    """Distances of vectors to the nearest selected vector."""
    distances = ExactSearch(kept).nearest(vectors)[0]
    return {"radius": float(distances.max()), "mean_distance": float(distances.mean())}


def search_rows(vectors: Tensor, queries: Tensor, counts: Sequence[int], repeats: int) -> dict[str, Any]:
    whole = ExactSearch(vectors)
    seconds, distances, rows = timed(whole, queries, repeats)
    several = whole.k_nearest(queries[:200], NEIGHBOURS)
    found: dict[str, Any] = {"exact_seconds": statistics.median(seconds), "searches": []}
    print(f"one search: {seconds}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        about = as_model(vectors, Path(folder))
        for shards in counts:
            scale = memory_in_shards(Path(folder), about, shards).scales[SIZE]
            assert isinstance(scale, ShardedScale)
            search = ShardedSearch(scale.shards)
            processes = [ray.get(shard.holder.ready.remote())[1] for shard in scale.shards]  # type: ignore[attr-defined]
            held = max(own_bytes(process) for process in processes)  # searching temporarily needs more
            seconds, near, places = timed(search, queries, repeats)
            more = search.find(queries[:200], None, NEIGHBOURS)
            row = {
                "shards": shards,
                "rows_per_shard": [shard.span[1] - shard.span[0] for shard in scale.shards],
                "seconds": statistics.median(seconds),
                "all_seconds": seconds,
                "same_distances": bool(torch.equal(near, distances)),
                "same_rows": bool(torch.equal(places, rows)),
                "same_neighbours": bool(torch.equal(more.distances, several[0]) and torch.equal(more.rows, several[1])),
                "vector_bytes_per_actor": 4 * LENGTH * max(shard.span[1] - shard.span[0] for shard in scale.shards),
                "own_bytes_per_actor": held,
            }
            found["searches"].append(row)
            print(row, flush=True)
            del scale, search  # the actors end with it
    return found


def coresets(vectors: Tensor, kept: int, counts: Sequence[int]) -> dict[str, Any]:
    start = time.perf_counter()
    at_once = covering(vectors, vectors[k_center(vectors, kept)])
    found: dict[str, Any] = {"rows": len(vectors), "kept": kept, "at_once": at_once, "sharded": []}
    print(f"coreset of all rows at once: {at_once}, {time.perf_counter() - start:.1f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        about = as_model(vectors, Path(folder))
        for shards in counts:
            memory = memory_in_shards(Path(folder), about, shards)
            thinned = select_coreset_sharded(memory, MemorySize(kept, is_share=False)).scales[SIZE].embeddings
            row = {"shards": shards, "kept": len(thinned), **covering(vectors, thinned)}
            row["radius_ratio"] = row["radius"] / at_once["radius"]
            found["sharded"].append(row)
            print(row, flush=True)
            del memory
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--shards", default="1,2,4,8")
    parser.add_argument("--coreset-rows", type=int, default=200_000)
    parser.add_argument("--coreset", type=int, default=4000, help="rows to keep")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts = [int(one) for one in args.shards.split(",")]
    vectors = draw(args.rows, args.seed)
    queries = queries_for(vectors, args.queries, args.seed + 1)
    result: dict[str, Any] = {
        "command": "benchmarks/sharded_search.py",
        **circumstances(torch.device("cpu")),
        "seed": args.seed,
        "rows": args.rows,
        "length": LENGTH,
        "queries": args.queries,
        "neighbours": NEIGHBOURS,
        "repeats": args.repeats,
        "ray": ray.__version__,
    }
    with connected("local"):
        result |= search_rows(vectors, queries, counts, args.repeats)
        write_result(args.out, result)
        result["coreset"] = coresets(vectors[: args.coreset_rows].clone(), args.coreset, counts)
    write_result(args.out, result)
    if not all(row["same_distances"] and row["same_rows"] and row["same_neighbours"] for row in result["searches"]):
        raise SystemExit("a search over shards differs from one exact search")


if __name__ == "__main__":
    main()
