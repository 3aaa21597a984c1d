"""Train and test every category of a data set with several seeds; compare with the paper's values."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchsvdd.core.config import Config
from patchsvdd.core.errors import DatasetError
from patchsvdd.core.files import atomic_write
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult, origin_of
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.evaluation.published import kind_of, published_for, source

METRICS = (
    "detection_auroc",
    "segmentation_auroc",
    "aupro",
    "detection_ap",
    "segmentation_ap",
    "detection_f1_max",
    "segmentation_f1_max",
    "false_alarm_rate",
    "miss_rate",
    "balanced_accuracy",
    "balanced_accuracy_lost",
    "detection_f1",
    "detection_f1_lost",
    "region_f1",
    "region_f1_lost",
    "region_precision",
    "region_recall",
)
HEADLINE = METRICS[:3]
"""The metrics of the short table."""


@dataclass
class Benchmark:
    """The results on a data set, added one by one."""

    dataset: str
    config: Config
    seeds: tuple[int, ...]
    categories: tuple[str, ...]
    results: dict[str, dict[int, ExperimentResult]] = field(default_factory=dict)
    """Category → seed → result."""
    failed: dict[str, str] = field(default_factory=dict)
    """Category → reason why it could not be run."""

    def add(self, category: str, seed: int, result: ExperimentResult) -> None:
        """Add a result. Results may come in any order and are kept in the order of the seeds."""
        known = {**self.results.get(category, {}), seed: result}
        self.results[category] = {number: known[number] for number in self.seeds if number in known}

    def fail(self, category: str, reason: str) -> None:
        """Record the reason why a category cannot be used."""
        self.failed[category] = reason

    @property
    def complete(self) -> bool:
        """Whether every category has a result for every seed."""
        return all(len(self.results.get(name, {})) == len(self.seeds) for name in self.categories)

    def values(self, category: str, metric: str) -> list[float]:
        """The metric for each seed that has it."""
        values = (result.metrics.get(metric) for result in self.results.get(category, {}).values())
        return [value for value in values if value is not None]

    def missing(self, category: str) -> dict[str, str]:
        """Metric → reason why it is missing in a category."""
        reasons = {"error": self.failed[category]} if category in self.failed else {}
        for result in self.results.get(category, {}).values():
            reasons |= result.missing
        return reasons

    def mean_over(self, names: Sequence[str], metric: str) -> dict[str, Any] | None:
        """Mean of a metric over the categories that have it, and the paper's mean over the same; None without any."""
        have = [name for name in names if self.values(name, metric)]
        if not have:
            return None
        theirs = [published_for(self.config.preset, name).get(metric) for name in have]
        known = [value for value in theirs if value is not None]
        return {
            "mean": statistics.fmean(statistics.fmean(self.values(name, metric)) for name in have),
            "categories": have,
            "published": statistics.fmean(known) if len(known) == len(have) else None,
        }

    def groups(self) -> dict[str, list[str]]:
        """ "all" and, for MVTec AD's categories, "object" and "texture" → their categories."""
        groups = {"all": list(self.categories)}
        for kind in ("object", "texture"):
            members = [name for name in self.categories if kind_of(name) == kind]
            if members:
                groups[kind] = members
        return groups

    def to_json(self) -> dict[str, Any]:
        """The content of results.json."""
        done = [one for seeds in self.results.values() for one in seeds.values()]
        unknown = dict.fromkeys(("hardware", "commit", "date", "versions"))
        return {
            "command": "patchsvdd benchmark",
            "dataset": self.dataset,
            "preset": self.config.preset,
            **(origin_of(done) if done else unknown),
            "seeds": list(self.seeds),
            "complete": self.complete,
            "settings": {name: value for name, value in self.config.to_json().items() if name != "seed"},
            "published_source": source(),
            "categories": {name: self._category(name) for name in self.categories if name not in self.failed},
            "means": {
                group: {metric: self.mean_over(names, metric) for metric in METRICS}
                for group, names in self.groups().items()
            },
            "failed": self.failed,
        }

    def _category(self, name: str) -> dict[str, Any]:
        results = self.results.get(name, {})
        training = [one.data["training"] for one in results.values()]
        sizes = sorted({size for one in results.values() for size in one.scales})
        return {
            "kind": kind_of(name),
            "image_size": next((list(size) for size in _image_sizes(results) if size is not None), None),
            **{metric: _spread(self.values(name, metric)) for metric in METRICS},
            "train_seconds": statistics.fmean(one.train_seconds for one in results.values()) if results else None,
            "steps": [one["steps"] for one in training],
            "seconds_per_image": _mean([one.data["evaluation"].get("seconds_per_image") for one in results.values()]),
            "test_images": [one.data["evaluation"]["images"] for one in results.values()],
            "scales": {
                str(size): {
                    metric: _spread([values[metric] for values in _of_scale(results, size) if metric in values])
                    for metric in HEADLINE
                }
                for size in sizes
            },
            "parts": {
                part: {
                    metric: _spread([one.parts[part][metric] for one in results.values() if metric in one.parts[part]])
                    for metric in HEADLINE
                }
                for part in dict.fromkeys(part for one in results.values() for part in one.parts)
            },
            "fusion_shares": [one["fusion_share"] for one in training if "fusion_share" in one],
            "verdicts": {str(seed): one.data["evaluation"]["verdicts"] for seed, one in results.items()},
            "published": published_for(self.config.preset, name),
            "missing": self.missing(name),
            "warnings": sorted({text for one in results.values() for text in one.data["evaluation"]["warnings"]}),
        }


def run_benchmark(benchmark: Benchmark, folders: Sequence[Path], store: ExperimentStore) -> Iterator[tuple[str, int]]:
    """Run or load all experiments; yield (category, seed) after each is added to ``benchmark``.

    ``folders`` are the categories of ``benchmark``, in the same order. A category that cannot be used is recorded with
    the reason, and the others continue.
    """
    for seed in benchmark.seeds:
        for folder in folders:
            if folder.name in benchmark.failed:
                continue
            try:
                result = store.result(Experiment(folder, benchmark.config.replace(seed=seed)))
            except DatasetError as error:
                benchmark.fail(folder.name, str(error))
            else:
                benchmark.add(folder.name, seed, result)
            yield folder.name, seed


def write_tables(benchmark: Benchmark, out: Path) -> dict[str, Path]:
    """Write results.json, results.csv and results.md to ``out``; return their paths by suffix."""
    texts = {
        "json": json.dumps(benchmark.to_json(), indent=1, ensure_ascii=False) + "\n",
        "csv": _csv(benchmark),
        "md": markdown_table(benchmark.to_json()),
    }
    paths = {}
    for suffix, text in texts.items():
        paths[suffix] = out / f"results.{suffix}"
        with atomic_write(paths[suffix]) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    return paths


def markdown_table(results: Mapping[str, Any]) -> str:
    """A Markdown table of AUROC and AUPRO per category, ours and the paper's, from the content of results.json."""
    lines = [
        "| category | detection AUROC | paper | segmentation AUROC | paper | AUPRO |",
        "|---|---|---|---|---|---|",
    ]
    categories: Mapping[str, Any] = results["categories"]
    for name, entry in categories.items():
        detection, segmentation, aupro = (cell((entry[metric] or {}).get("values", ())) for metric in HEADLINE)
        paper = [f"{entry['published'][m]:.3f}" if m in entry["published"] else "" for m in HEADLINE[:2]]
        lines.append(
            f"| {name.replace('|', '&#124;')} | {detection} | {paper[0]} | {segmentation} | {paper[1]} | {aupro} |"
        )
    for group, means in results["means"].items():
        members = [name for name in (*categories, *results["failed"]) if group in ("all", kind_of(name))]
        if len(members) > 1:
            lines.append(_mean_row(group, means, len(members)))
    missing = {name: entry["missing"] for name, entry in categories.items()}
    notes = [f"- {name}: no {metric} ({reason})" for name, why in missing.items() for metric, reason in why.items()]
    notes += [f"- {name}: {reason}" for name, reason in results["failed"].items()]
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def cell(values: Sequence[float]) -> str:
    """ "0.987", "0.987 ± 0.004" over several seeds, "–" for none."""
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


def _mean_row(group: str, means: Mapping[str, Any], members: int) -> str:
    """A row of means, with the number of categories if some lack the metric."""
    cells = []
    for metric in HEADLINE:
        mean = means[metric]
        if mean is None:
            cells += ["–", ""]
            continue
        counted = "" if len(mean["categories"]) == members else f" ({len(mean['categories'])} of {members})"
        theirs = "" if mean["published"] is None else f"{mean['published']:.3f}"
        cells += [f"**{mean['mean']:.3f}**{counted}", theirs]
    label = "mean" if group == "all" else f"mean of {group}s"
    return f"| **{label}** | {' | '.join(cells[:5])} |"


def _csv(benchmark: Benchmark) -> str:
    """One row per category and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["category", "kind", "seed", *METRICS, "steps", "train_seconds", "missing"])
    for name in benchmark.categories:
        reasons = "; ".join(f"{metric}: {reason}" for metric, reason in benchmark.missing(name).items())
        for seed, result in benchmark.results.get(name, {}).items():
            values = [result.metrics.get(metric, "") for metric in METRICS]
            steps = result.data["training"]["steps"]
            writer.writerow([name, kind_of(name) or "", seed, *values, steps, result.train_seconds, reasons])
        if name not in benchmark.results:
            writer.writerow([name, kind_of(name) or "", "", *[""] * len(METRICS), "", "", reasons])
    return text.getvalue()


def _image_sizes(results: Mapping[int, ExperimentResult]) -> list[tuple[int, int] | None]:
    """The image size of each seed; None for native sizes."""
    return [one.experiment.config.image_size for one in results.values()]


def _of_scale(results: dict[int, ExperimentResult], size: int) -> list[dict[str, float]]:
    """The metrics of one scale for each seed."""
    return [one.scales.get(size, {}) for one in results.values()]


def _spread(values: Sequence[float]) -> dict[str, Any] | None:
    """Mean and standard deviation (of a sample; 0 for a single value), and the values; None without values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": std, "values": list(values)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
