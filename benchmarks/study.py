"""Which settings of the encoder are best, and does a validation set without labels identify them?

    python benchmarks/study.py DATASET --out benchmarks/results/study.json --seconds 280 --workers 4
    python benchmarks/study_report.py benchmarks/results/study.json

Each setting changes one factor of a base. A fifth of the good training images is held out; the rest trains the encoder
and fills the memory. Held-out images with and without synthetic defects estimate the quality of a setting
(``validation``), the category's test images measure it (``test``): labels are read only for the report. Both use the
same maps: the product, the product relative to the typical value at each position (as a multiple, and in deviations),
each scale separately, all of these with distances in units of the local scale ("local"), and with --thinned, for the
base, also coresets. Metrics for which a category has no labels are left out.

Rows are written immediately; an existing file is continued. All categories of one setting come before the next
setting. Workers are processes; on one GPU they overlap only if its multi-process service is running
(nvidia-cuda-mps-control -d). --keep stores every trained encoder next to the result file, in OUT.encoders/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import re
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.multiprocessing as mp
from torch import Tensor

from patchsvdd import preset
from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device, reproducible
from patchsvdd.core.errors import Interrupted, TrainingCollapsed
from patchsvdd.core.memory_size import parse_memory_size
from patchsvdd.core.scales import Scale
from patchsvdd.critic.synthetic_defects import SELECTION_KINDS
from patchsvdd.critic.validation import ValidationSet, hold_out
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.fitting import DetectorParts
from patchsvdd.encoder.networks import build_encoder, grids_for
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import Memory, build_memory
from patchsvdd.memory.coreset import select_coreset
from patchsvdd.memory.local_scale import learn_local_scale
from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.position_statistics import PositionStatistics
from patchsvdd.training.hooks import TrainingHooks, TrainingProgress
from patchsvdd.training.loop import train
from record import circumstances
from study_pictures import Album, Pictures, some, test_metrics
from study_report import pair

CATEGORIES = "bottle,toothbrush,pill,screw,tile,grid"
BASE: dict[str, Any] = {
    **{"steps": 4000, "clip": 1.0, "warmup": 100, "svdd_before_tanh": True, "retries": 2},
    **{"lamp": 1.0, "lambda_": 0.3, "stop": "end", "image_size": 256},
}
"""Settings of the preset "encoder" at the time of the study that have changed since; setting names refer to them."""
THREE_SCALES = (Scale(32, 4), Scale(64, 16), Scale(128, 32))
SETTINGS: dict[str, dict[str, Any]] = {
    "base": {},
    "lambda .1": {"lambda_": 0.1},
    "no lamp": {"lamp": 0.0},
    "noise .1": {"noise": 0.1},
    "random encoder": {"encoder": "random"},
    "lambda 1": {"lambda_": 1.0},
    "centering exposure": {"centering": "exposure"},
    "centering image": {"centering": "image"},
    "photometric 1": {"photometric": 1.0},
    "steps 1000": {"steps": 1000},
    "third scale 128": {"crop_size": 256, "scales": THREE_SCALES},
    "resize nearest": {"resize": "nearest"},
    "centering pixel": {"centering": "pixel"},
    "not standardised": {"standardize": False},
    "photometric 0": {"photometric": 0.0},
    "ema .999": {"ema": 0.999},
    "constant": {"schedule": "constant"},
    "lr 3e-4": {"learning_rate": 3e-4},
    "steps 12000": {"steps": 12000},
    "not before tanh": {"svdd_before_tanh": False},
    "no clip, no warm-up": {"clip": 0.0, "warmup": 0},
    "lambda .03": {"lambda_": 0.03},
    "lambda .01": {"lambda_": 0.01},
    "lambda .03, no lamp": {"lambda_": 0.03, "lamp": 0.0},
    "lambda .03, centering exposure": {"lambda_": 0.03, "centering": "exposure"},
    "lamp .5": {"lamp": 0.5},
    "noise 0": {"noise": 0.0},
    "random encoder, centering image": {"encoder": "random", "centering": "image"},
    "batch 4": {"batch_size": 4},
    "crop 256": {"crop_size": 256},
    "frozen classifier": {"frozen_position_output": True},
}
"""Name → changes to the base, the most informative first."""
THINNED = ("10%", "1%")
BATCH = 16
"""Batch size for maps."""
SATURATED = 0.99
DEAD = 1e-3
LOOKS = 5
"""Number of training records kept in a row."""
DIGITS = 5
"""Significant digits of every number in a row."""


@dataclass(frozen=True)
class Job:
    """One training and its tests."""

    category: str
    setting: str
    seed: int

    @property
    def file_name(self) -> str:
        slug = re.sub(r"[^a-z0-9.]+", "-", self.setting.lower()).strip("-")
        return f"{self.category}-{slug}-{self.seed}.safetensors"

    def config(self, steps: int | None) -> Config:
        changes = BASE | SETTINGS[self.setting]
        if steps is not None:
            changes |= {"steps": steps, "warmup": min(changes["warmup"], steps)}
        return preset("encoder", seed=self.seed, **changes)


class Worker:
    """Trains and tests one job after another within a time limit."""

    def __init__(self, album: Album, device: torch.device, end: float, args: argparse.Namespace) -> None:
        self.album, self.device, self.end, self.steps = album, device, end, args.steps
        self.validation_images, self.thinned = args.validation_images, args.thinned
        self.keep = encoders_folder(args.out) if args.keep else None
        self._validation: dict[tuple[str, str], ValidationSet] = {}
        self._normalization: dict[tuple[str, str, str, bool], Normalization] = {}
        self._step_seconds, self._other_seconds = 0.0, 0.0

    def fits(self, job: Job) -> bool:
        """Whether the job is likely to finish in time, judged by earlier jobs."""
        steps = job.config(self.steps).total_steps(1)
        return time.time() + steps * self._step_seconds + self._other_seconds < self.end

    def row(self, job: Job) -> dict[str, Any]:
        """Run the job; return its row. Raises Interrupted at the time limit."""
        start = time.time()
        config = job.config(self.steps)
        pictures = self.album.pictures(job.category, config, self.device)
        fit, held_out = hold_out(len(pictures.train))
        loaded = time.time()
        normalization = self._normalize(job.category, config, pictures.train[fit])
        images = normalization(pictures.train[fit])
        trained = Trained.train(config, images, self.end)
        row: dict[str, Any] = {
            **asdict(job),
            "changes": SETTINGS[job.setting],
            "steps": trained.steps,
            "train_seconds": trained.seconds,
            "lambda": trained.lambda_,
            "collapses": trained.collapses,
            "collapsed": trained.collapsed,
            "history": trained.history,
        }
        if trained.collapsed is None:
            if self.keep is not None and trained.encoder.trainable:
                keep(trained.encoder, config, self.keep / job.file_name)
                row["encoder"] = job.file_name
            row |= self._look(job, config, pictures, held_out, normalization, images, trained)
        self._measure(trained.steps_in_all, trained.seconds, time.time() - start)
        return row | {"loading_seconds": loaded - start, "seconds": time.time() - start}

    def _measure(self, steps: int, train_seconds: float, seconds: float) -> None:
        if steps > 0:
            self._step_seconds = max(self._step_seconds, train_seconds / steps)
        self._other_seconds = max(self._other_seconds, seconds - train_seconds)

    def _normalize(self, category: str, config: Config, pixels: Tensor) -> Normalization:
        key = (category, config.resize, config.centering, config.standardize)
        if key not in self._normalization:
            self._normalization[key] = Normalization.fit(pixels.cpu(), config).to(self.device)
        return self._normalization[key]

    def _look(
        self,
        job: Job,
        config: Config,
        pictures: Pictures,
        held_out: list[int],
        normalization: Normalization,
        images: Tensor,
        trained: Trained,
    ) -> dict[str, Any]:
        """Validation and test of a trained encoder."""
        grids = grids_for(trained.encoder, config, (int(images.shape[2]), int(images.shape[3])))
        with torch.inference_mode(), reproducible():
            memory = build_memory(trained.encoder, images, [str(index) for index in range(len(images))], grids)
            looks = [
                Look.at(
                    PatchSVDD(config, DetectorParts(trained.encoder, normalization, MapBuilder(one)), self.device),
                    images,
                    prefix,
                )
                for prefix, one in (("", memory), ("local ", learn_local_scale(memory)))
            ]
        with torch.inference_mode():
            key = (job.category, config.resize)
            if key not in self._validation:  # the same for every setting and seed
                self._validation[key] = ValidationSet.draw(pictures.train[held_out], at_least=self.validation_images)
            validation = self._validation[key]
            found: dict[str, Any] = {"validation": {}, "test": {}}
            for name, maps in all_maps(looks, validation.images):
                found["validation"][name] = validation.score(maps, image_score(maps)).to_json()
            for name, maps in all_maps(looks, pictures.test):
                found["test"][name] = test_metrics(pictures, maps)
            if self.thinned and job.setting == "base":
                for size_name in THINNED:
                    start = time.time()
                    small = select_coreset(memory, parse_memory_size(size_name))
                    lean = PatchSVDD(
                        config, DetectorParts(trained.encoder, normalization, MapBuilder(small)), self.device
                    )
                    found[f"thinning_seconds {size_name}"] = time.time() - start
                    name, maps = next(Look(lean, looks[0].usual, "").maps(pictures.test))
                    found["test"][f"{name}, memory {size_name}"] = test_metrics(pictures, maps)
        return found | {"embeddings": embedding_health(memory)}


@dataclass(frozen=True)
class Trained:
    """A trained encoder and its training record."""

    encoder: Any
    steps: int
    steps_in_all: int
    """Of all attempts."""
    seconds: float
    lambda_: float | None
    """Of the last attempt."""
    collapses: int
    """Attempts that collapsed before the last."""
    collapsed: str | None
    """Message of the last attempt if it collapsed too."""
    history: list[dict[str, Any]]
    """Of the last attempt."""

    @classmethod
    def train(cls, config: Config, images: Tensor, end: float) -> Trained:
        seen: list[TrainingProgress] = []
        encoder = build_encoder(config).to(images.device)
        hooks = TrainingHooks(on_progress=seen.append, should_stop=lambda: time.time() > end)
        collapsed = None
        start = time.time()
        if encoder.trainable:
            try:
                train(encoder, images, config, "", hooks)
            except TrainingCollapsed as error:
                collapsed = str(error)
        if images.is_cuda:
            torch.cuda.synchronize(images.device)
        seconds = time.time() - start
        encoder = encoder.eval().requires_grad_(False)
        if not seen:
            return cls(encoder, 0, 0, seconds, None, 0, None, [])
        steps = {progress.collapses: progress.step for progress in seen}  # the last of each attempt
        end_of = seen[-1]
        last = [progress for progress in seen if progress.collapses == end_of.collapses]
        history = [last[index].to_json() for index in some(len(last), LOOKS)]
        return cls(
            encoder,
            end_of.step,
            sum(steps.values()),
            seconds,
            end_of.lambda_,
            end_of.collapses,
            collapsed,
            history,
        )


@dataclass(frozen=True)
class Look:
    """A detector, and the typical values at each position of its product maps of good images."""

    detector: PatchSVDD
    usual: PositionStatistics
    prefix: str
    """Prefix of the names of its maps."""

    @classmethod
    def at(cls, detector: PatchSVDD, images: Tensor, prefix: str) -> Look:
        size = (int(images.shape[2]), int(images.shape[3]))
        good = torch.cat([one.combined for one in detector.maps_without_itself(size)])
        return cls(detector, PositionStatistics.fit(good), prefix)

    def maps(self, pixels: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name → maps (N, H, W) of pixels (N, 3, H, W), for each kind of map; the product first."""
        parts = [self.detector.anomaly_maps(batch) for batch in torch.split(pixels, BATCH)]
        product = torch.cat([part.combined for part in parts])
        yield f"{self.prefix}product", product
        usual = self.usual.to(product.device)
        yield f"{self.prefix}position", usual.apply(product)
        yield f"{self.prefix}position deviations", (product - usual.mean) / usual.deviation
        scales = {size: torch.cat([part.scales[size] for part in parts]) for size in parts[0].scales}
        for size, maps in scales.items():
            yield f"{self.prefix}{size}", maps
        if self.prefix:  # distances of different scales have a common unit
            yield f"{self.prefix}sum", torch.stack(list(scales.values())).sum(0)


def all_maps(looks: Sequence[Look], pixels: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Name → maps (N, H, W) of every look at pixels (N, 3, H, W)."""
    for look in looks:
        yield from look.maps(pixels)


def encoders_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.encoders")


def keep(encoder: Any, config: Config, path: Path) -> None:
    """Write the weights of a trained encoder, with its settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu().contiguous() for name, value in encoder.state_dict().items()}
    safetensors.torch.save_file(weights, path, {"settings": json.dumps(config.to_json())})


def embedding_health(memory: Memory) -> dict[str, dict[str, float]]:
    """Patch size → shares of saturated values (tanh) and of constant dimensions."""
    health = {}
    for size, scale in memory.scales.items():
        saturated = (scale.embeddings.abs() > SATURATED).float().mean()
        spread = scale.embeddings.std(0, correction=0)
        dead = (spread < DEAD).float().mean()
        health[str(size)] = {"saturated": float(saturated), "dead": float(dead), "spread": float(spread.mean())}
    return health


def work(folder: Path, jobs: Any, rows: Any, args: argparse.Namespace, end: float) -> None:
    """Run a worker: jobs from one queue, rows into the other, None at the end."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.workers))
    worker = Worker(Album(folder), choose_device(args.device), end, args)
    try:
        while time.time() < end:
            job = jobs.get_nowait()
            if not worker.fits(job):
                continue
            try:
                rows.put(worker.row(job))
            except Interrupted:
                break
            except Exception:  # noqa: BLE001 a setting that fails must not stop the others
                rows.put({**asdict(job), "error": traceback.format_exc()})
    except queue.Empty:
        pass
    rows.put(None)


class Study:
    """The result file, replaced as a whole after every row.

    A file that is continued keeps its remark and the commits of its earlier rows.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        before = json.loads(path.read_text()) if path.exists() else {"rows": []}
        self.rows: list[dict[str, Any]] = [short(row) for row in before["rows"]]
        commits = {*before["commit"].split(", "), about["commit"]} if self.rows else {about["commit"]}
        remark = {"remark": before["remark"]} if "remark" in before else {}
        self.about = {**about, **remark, "commit": ", ".join(sorted(commits))}

    def done(self) -> set[Job]:
        return {Job(row["category"], row["setting"], row["seed"]) for row in self.rows if "error" not in row}

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(short(row))
        self.write()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".part")
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in self.rows)
        scratch.write_text(json.dumps(self.about, ensure_ascii=False)[:-1] + f', "rows": [\n{lines}\n]}}\n')
        os.replace(scratch, self.path)


def short(row: dict[str, Any]) -> dict[str, Any]:
    """A row with fewer training records and digits."""
    history = row.get("history", [])
    kept = {"history": [history[index] for index in some(len(history), LOOKS)]} if history else {}
    rounded: dict[str, Any] = _rounded(row | kept)
    return rounded


def _rounded(value: Any) -> Any:
    """JSON with DIGITS significant digits in every number that is not whole."""
    if isinstance(value, Scale):
        return asdict(value)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def summary(row: dict[str, Any]) -> str:
    name = f"{row['category']:<11}{row['setting']:<34}{row['seed']} "
    if "error" in row:
        return name + str(row["error"]).strip().splitlines()[-1]
    if row["collapsed"]:
        return name + str(row["collapsed"])[:80]
    validation, test = row["validation"]["product"], row["test"]["product"]
    return name + (
        f"validation {pair(validation)} test {pair(test)} local {pair(row['test']['local product'])} "
        f"{'λ ' + format(row['lambda'], 'g') + ' ' if row['collapses'] else ''}"
        f"{row['train_seconds']:.1f} of {row['seconds']:.1f} s"
    )


def run(args: argparse.Namespace) -> None:
    """Run all jobs that fit into the time limit."""
    start = time.time()
    end = start + args.seconds
    device = choose_device(args.device)
    categories = args.categories.split(",")
    settings = list(SETTINGS) if args.settings == "all" else args.settings.split(";")
    unknown = [name for name in settings if name not in SETTINGS]
    if unknown:
        raise SystemExit(f"unknown settings {unknown}; known: {'; '.join(SETTINGS)}")
    about = {
        "command": "benchmarks/study.py",
        **circumstances(device),
        "base": BASE,
        "steps": args.steps,
        "kinds": SELECTION_KINDS,
    }
    study = Study(args.out, about)
    seeds = [int(text) for text in args.seeds.split(",")]
    jobs = [Job(category, setting, seed) for seed, setting, category in itertools.product(seeds, settings, categories)]
    done = study.done()
    jobs = [job for job in jobs if job not in done]
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        album = Album(Path(scratch))
        filled = {(job.category, job.config(args.steps).resize): job for job in jobs}
        for (category, _), job in sorted(filled.items()):
            album.fill(args.data, category, job.config(args.steps), (args.image_count, args.test_count))
        print(f"{len(jobs)} jobs; images decoded after {time.time() - start:.1f} s", flush=True)
        waiting, rows = context.Queue(), context.Queue()
        for job in jobs:
            waiting.put(job)
        options = (Path(scratch), waiting, rows, args, end)
        workers = [context.Process(target=work, args=options, daemon=True) for _ in range(args.workers)]
        for worker in workers:
            worker.start()
        at_work = len(workers)
        while at_work > 0:
            try:
                row = rows.get(timeout=5)
            except queue.Empty:
                if not any(worker.is_alive() for worker in workers) or time.time() > end + 30:
                    break
                continue
            if row is None:
                at_work -= 1
            else:
                study.add(row)
                print(f"{time.time() - start:6.1f} s  {summary(row)}", flush=True)
        for worker in workers:
            worker.kill()
        waiting.cancel_join_thread()
    print(f"{time.time() - start:.1f} s, {len(study.rows)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of categories")
    parser.add_argument("--out", type=Path, required=True, help="result file; an existing one is continued")
    parser.add_argument("--categories", default=CATEGORIES, help="comma-separated")
    parser.add_argument("--settings", default="all", help="names separated by semicolons")
    parser.add_argument("--seeds", default="0", help="comma-separated")
    parser.add_argument("--seconds", type=float, default=280, help="time limit")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, help="training steps of every setting, for a quick test")
    parser.add_argument("--image-count", type=int, help="training images used, for a quick test")
    parser.add_argument("--test-count", type=int, help="test images used, for a quick test")
    parser.add_argument("--validation-images", type=int, default=96, help="minimum number of validation images")
    parser.add_argument("--keep", action="store_true", help="keep every trained encoder, in OUT.encoders/")
    parser.add_argument("--thinned", action="store_true", help="also test coresets of the base (slow)")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
