"""The critic alone on real sets: how its input size and its training change it.

    python benchmarks/critic_study.py CATEGORY... --arms square,auto --out FOLDER [--critic-steps 8000] [--workers 8]

Each category is trained once per arm and seed, several side by side. A row per training goes to FOLDER/rows.jsonl; an
interrupted run skips what is there. Besides the critic's own map, each row has the distance maps of a memory of the
critic's inner features. Labels are read only to report.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.device import reproducible
from patchsvdd.core.presets import preset
from patchsvdd.critic.network import TrainedCritic, critic_normalization
from patchsvdd.critic.training import train_critic
from patchsvdd.critic.validation import ValidationSet
from patchsvdd.detector.split import Split
from patchsvdd.evaluation.metrics import auroc, average_precision
from patchsvdd.images import sizing
from patchsvdd.images.image_set import load_image, load_mask
from patchsvdd.images.loading import load_training_images
from patchsvdd.images.mvtec_layout import find_test_images
from patchsvdd.scoring.fusion import TailQuantiles, critic_scale, memory_scale
from patchsvdd.training.hooks import TrainingHooks
from record import circumstances, write_result

LAYERS = ("eighth", "sixteenth", "to_eighth")
PATCHES = 40_000
"""Most features in a memory, drawn at random."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train."""

    image_size: str = "auto"
    critic: dict[str, Any] = dataclasses.field(default_factory=dict)
    patch: Callable[[], None] | None = None


def _each_to_fit() -> None:
    sizing._shows_the_same = lambda *_: True


def _larger() -> None:
    sizing.SHORT_SIDE, sizing.MOST_PIXELS = 384, 163_840 * 9 // 4


def _medium() -> None:
    sizing.SHORT_SIDE, sizing.MOST_PIXELS = 320, 163_840 * 25 // 16


ADAM = {"muon_learning_rate": 0.0}
ARMS = {
    "auto": Arm(critic=ADAM),
    "square": Arm("256", ADAM),
    "fit": Arm(critic=ADAM, patch=_each_to_fit),
    "larger": Arm(critic=ADAM, patch=_larger),
    "medium": Arm(critic=ADAM, patch=_medium),
    "turned": Arm(critic={**ADAM, "turn": math.pi}),
    "muon .02": Arm(critic={"muon_learning_rate": 0.02}),
    "muon .05": Arm(critic={"muon_learning_rate": 0.05}),
    "muon .1": Arm(critic={"muon_learning_rate": 0.1}),
}
"""Arms that were tried and rejected are in the history of this file, at the commits that their rows name."""


def run(
    category: Path, name: str, seed: int, steps: int, batch: int, device: str, width: int, save: Path | None
) -> dict[str, Any]:
    """Train one critic and report what its maps find."""
    torch.set_num_threads(2)
    arm, start = ARMS[name], time.time()
    if arm.patch is not None:
        arm.patch()
    config = preset("best", seed=seed, image_size=arm.image_size)
    assert config.critic is not None
    settings = dataclasses.replace(config.critic, steps=steps, batch_size=batch, width=width, **arm.critic)
    images, config = load_training_images(category, config)
    split = Split.of(config, len(images))
    pixels = images.pixels[split.trained].to(device)
    normalization = critic_normalization(pixels)
    network, record = train_critic(pixels, normalization, settings, seed, "study", TrainingHooks())
    critic = TrainedCritic(network, normalization).to(torch.device(device))
    trained = time.time()
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        state = {
            key: value.half() if value.is_floating_point() else value for key, value in network.state_dict().items()
        }
        torch.save(state, save / f"{category.name}-{name}-{seed}-{steps}.pt")
    held = images.pixels[split.held_out].to(device)
    validation = ValidationSet.draw(held, seed, 96, config.frame)
    found: dict[str, dict[str, Any]] = {}
    with reproducible(), torch.inference_mode():
        memories = Memories(critic, pixels)
        test = find_test_images(category)
        maps: dict[str, list[np.ndarray[Any, Any]]] = {}
        masks: list[np.ndarray[Any, Any]] = []
        for image in test.images:
            loaded = load_image(image.file, config)
            height, width = loaded.content or loaded.tensor.shape[1:]
            for key, each in memories.maps(loaded.tensor[None].to(device)).items():
                maps.setdefault(key, []).append(each[0, :height, :width].float().cpu().numpy())
            if image.mask is not None:
                masks.append(load_mask(image.mask, (height, width), config.resize))
            elif image.is_good:
                masks.append(np.zeros((height, width), bool))
        good = memories.maps(held)
        rarity = {key: TailQuantiles.fit(scaled(key, each)) for key, each in good.items()}
        rare = {
            key: [rarity[key](scaled(key, torch.from_numpy(one).to(device))).cpu().numpy() for one in each]
            for key, each in maps.items()
        }
        for layer in LAYERS:
            for share in (0.25, 0.5):
                pairs = zip(rare["critic"], rare[layer], strict=True)
                maps[f"{layer}@{share}"] = [(1 - share) * one + share * other for one, other in pairs]
        defects = [image.defect for image in test.images]
        for key, tested in maps.items():
            found[key] = measured(tested, defects, masks if len(masks) == len(defects) else None)
        synthetic = memories.maps(validation.images)
        for key, each in synthetic.items():
            scores = each.flatten(1).amax(1)
            found[key]["synthetic"] = round(validation.score(each, scores).criterion, 4)
            found[key]["synthetic_ap"] = round(validation.score(each, scores).average_precision, 4)
    return {
        **{"category": category.name, "arm": name, "seed": seed, "steps": steps, "size": images.size},
        **{"train_seconds": round(record.seconds, 1), "seconds": round(time.time() - start, 1)},
        **{"test_seconds": round(time.time() - trained, 1), "found": found},
    }


class Memories:
    """The critic's map, and distances of its inner features to those of good images."""

    def __init__(self, critic: TrainedCritic, pixels: Tensor) -> None:
        self.critic = critic
        generator = torch.Generator().manual_seed(0)
        gathered: dict[str, list[Tensor]] = {}
        for index in range(len(pixels)):
            for layer, features in self._features(pixels[index : index + 1])[1].items():
                flat = features[0].flatten(1).T
                few = torch.randperm(len(flat), generator=generator)[: max(1, PATCHES // len(pixels))]
                gathered.setdefault(layer, []).append(flat[few.to(flat.device)])
        self.known, self.scale = {}, {}
        for layer, parts in gathered.items():
            whole = torch.cat(parts)
            self.scale[layer] = whole.std(0).clamp_min(1e-4)
            self.known[layer] = whole / self.scale[layer]

    def _features(self, pixels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        seen: dict[str, Tensor] = {}
        handles = [
            getattr(self.critic.folded, layer).register_forward_hook(
                lambda _, __, out, layer=layer: seen.__setitem__(layer, F.avg_pool2d(out.float(), 3, 1, 1))
            )
            for layer in LAYERS
        ]
        logits = self.critic.logits(pixels)
        for handle in handles:
            handle.remove()
        return logits, seen

    def maps(self, pixels: Tensor) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {}
        size = (int(pixels.shape[2]), int(pixels.shape[3]))
        for one in torch.split(pixels, 1):
            found.setdefault("critic", []).append(self.critic(one))
            for layer, features in self._features(one)[1].items():
                _, channels, rows, columns = features.shape
                queries = features[0].flatten(1).T / self.scale[layer]
                nearest = torch.cat(
                    [torch.cdist(part, self.known[layer]).amin(1) for part in torch.split(queries, 2048)]
                )
                grid = (nearest / channels**0.5).view(1, 1, rows, columns)
                padded = (-(-size[0] // 32) * 32, -(-size[1] // 32) * 32)
                whole = F.interpolate(grid, padded, mode="bilinear", align_corners=False)[0, :, : size[0], : size[1]]
                found.setdefault(layer, []).append(whole)
        return {key: torch.cat(parts) for key, parts in found.items()}


def scaled(key: str, maps: Tensor) -> Tensor:
    return critic_scale(maps) if key == "critic" else memory_scale(maps)


def measured(
    maps: list[np.ndarray[Any, Any]], defects: list[str], masks: list[np.ndarray[Any, Any]] | None
) -> dict[str, Any]:
    labels = np.array([defect != "good" for defect in defects])
    scores = np.array([float(one.max()) for one in maps])
    row: dict[str, Any] = {}
    if labels.any() and not labels.all():
        row["detection"] = round(auroc(labels, scores), 4)
        row["kinds"] = {
            defect: round(auroc(labels[chosen], scores[chosen]), 3)
            for defect in sorted(set(defects) - {"good"})
            for chosen in [np.array([one in ("good", defect) for one in defects])]
        }
    if masks is not None:
        truth = np.concatenate([mask.ravel() for mask in masks])
        values = np.concatenate([one.ravel() for one in maps])
        row["segmentation"] = round(auroc(truth, values), 4)
        row["ap"] = round(average_precision(truth, values), 4)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--arms", default="square,auto")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--critic-steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--save", type=Path, help="folder for the weights")
    parser.add_argument("--result", type=Path, help="write all rows to this result file")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    until = time.time() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    rows = args.out / "rows.jsonl"
    done = set()
    if rows.exists():
        done = {tuple(json.loads(line)[key] for key in KEY) for line in rows.read_text().splitlines()}
    jobs = [
        (path, arm, int(seed), args.critic_steps)
        for seed in args.seeds.split(",")
        for path in args.categories
        for arm in args.arms.split(",")
        if (path.name, arm, int(seed), args.critic_steps) not in done
    ]
    run_info = circumstances(torch.device(args.device))
    print(run_info, len(jobs), flush=True)
    # A process for each training: an arm may patch modules.
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = [pool.submit(_in_time, until, *job, args.batch, args.device, args.width, args.save) for job in jobs]
        for future in as_completed(futures):
            if (row := future.result()) is not None:
                with rows.open("a") as file:
                    file.write(json.dumps(row | {"run": run_info}) + "\n")
                short = {key: {k: v for k, v in one.items() if k != "kinds"} for key, one in row["found"].items()}
                print(*(row[key] for key in KEY), row["train_seconds"], row["seconds"], json.dumps(short), flush=True)
    if args.result is not None:
        collect(rows, args.result)


def collect(rows: Path, result: Path) -> None:
    """Write the rows as a result file."""
    found = sorted((json.loads(line) for line in rows.read_text().splitlines()), key=lambda row: [row[k] for k in KEY])
    write_result(result, {"command": "benchmarks/critic_study.py", **found[-1]["run"], "rows": found})


KEY = ("category", "arm", "seed", "steps")


def _in_time(until: float, *job: Any) -> dict[str, Any] | None:
    if time.time() > until:
        return None
    return run(*job)


if __name__ == "__main__":
    main()
