"""Summary of a job."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from patchsvdd.apps.cluster.job import Job
from patchsvdd.report.rows import Row


@dataclass(frozen=True)
class JobSummary:
    """Summary of all finished chunks."""

    images: int
    anomalous: int
    good: int
    unreadable: int
    worst: tuple[Row, ...]
    """Name, verdict and score of the images with the highest scores."""
    already_done: int
    """Images inspected by earlier runs."""
    out: str
    """Folder of the job."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self) | {"worst": list(self.worst)}


def summarise(job: Job, worst: int = 10, already_done: int = 0) -> JobSummary:
    """Count the results and list the ``worst`` images with the highest scores."""
    counts: Counter[str] = Counter()
    highest: list[tuple[float, str, str]] = []
    for row in job.results(["image", "verdict", "score"]):
        counts[row["verdict"] or "unreadable"] += 1
        if row["score"] is not None:
            keep = heapq.heappush if len(highest) < worst else heapq.heappushpop
            keep(highest, (row["score"], row["image"], row["verdict"]))
    rows = ({"image": image, "verdict": verdict, "score": score} for score, image, verdict in sorted(highest)[::-1])
    numbers = (counts["anomalous"], counts["good"], counts["unreadable"])
    return JobSummary(counts.total(), *numbers, tuple(rows), already_done, str(job.out))
