"""Fits filters to confirmed defects and sets the threshold again, for a detector and its good images."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.core.errors import ConfigError, ImageError
from patchsvdd.core.progress import OnProgress, OnStage, stage
from patchsvdd.critic.confirmed_defects import ConfirmedDefect, ConfirmedDefects
from patchsvdd.critic.defect_filters import DefectFilters, NormalFeatures
from patchsvdd.critic.defect_kinds import defect_cells, describe_defect
from patchsvdd.critic.feature_coreset import smoothed
from patchsvdd.critic.network import TrainedCritic, critic_map
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.images.defect_examples import DefectExample
from patchsvdd.images.image_set import LoadedImage, digest_of_pixels, load_image
from patchsvdd.images.loading import load_batches
from patchsvdd.images.mvtec_layout import find_good_images
from patchsvdd.scoring.anomaly_map import AnomalyMaps, zero_outside
from patchsvdd.scoring.calibration import Calibration

CELLS_IN_MASK = 16
"""Cells of an image, at most, that a filter is fitted to if a mask says where the defect is."""
CELLS = 8
"""The same without a mask: the cells that the critic finds most suspicious."""
ALLOWED = 0.02
"""Share of the good images the critic was trained on that the filters may lift above the threshold."""
MOST_GOOD = 128
"""Good images, at most, that filters are fitted to."""
CANDIDATES = 12
"""Good images, those with the highest peaks of a filter, that set its level."""
HALVINGS = 14
"""Steps of the search for the level."""
HIGHEST_LEVEL = 64.0
"""Beyond ± this logit, a level changes nothing."""


@dataclass(frozen=True)
class Taught:
    """A defect that was taught, and whether the model finds it."""

    name: str
    kind: str
    has_mask: bool
    score_before: float
    """In multiples of the threshold, before it was taught."""
    found_before: bool
    found_after: bool | None
    """Whether it would be found had only the others of its kind been taught; None for the only one."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        return {
            "name": self.name,
            "kind": self.kind,
            "has_mask": self.has_mask,
            "score_before": round(self.score_before, 4),
            "found_before": self.found_before,
            "found_after": self.found_after,
        }


@dataclass(frozen=True)
class SeenImage:
    """What the critic sees in an image."""

    logits: Tensor
    """(1, h, w): without filters."""
    early: Tensor
    """(1, C, h / 2, w / 2)."""
    scales: dict[int, Tensor]
    """The memory's maps; empty if the memory has no weight."""
    size: tuple[int, int]
    """(height, width) of the image as the critic sees it."""


@dataclass(frozen=True)
class ReadExample:
    """A usable example."""

    defect: ConfirmedDefect
    seen: SeenImage
    patches: Tensor
    """(J, C)."""
    marked: Tensor
    """(h, w) bool: the cells that are taught."""


class Teacher:
    """Fits filters to confirmed defects, for a detector and its good images; changes neither."""

    def __init__(
        self,
        detector: PatchSVDD,
        calibration: Calibration,
        good: str | os.PathLike[str] | None,
        on_stage: OnStage | None,
    ) -> None:
        assert detector.critic is not None
        self.detector, self.calibration, self.on_stage = detector, calibration, on_stage
        self.critic: TrainedCritic = detector.critic.with_filters(None)
        self.normal: NormalFeatures | None = None
        self.good: list[SeenImage] = []
        self.quiet: list[SeenImage] = []
        self.calibrating: dict[str, SeenImage] = {}
        self.digests: list[str] = detector.provenance["data"]["digests"]
        self.originals = self._find(good) if good is not None else {}

    # Examples

    def read(self, examples: Sequence[DefectExample]) -> tuple[list[ReadExample], tuple[str, ...], list[ImageError]]:
        """Return the new examples, the names of known ones, and the errors of those that cannot be used."""
        earlier = self.detector.defects
        taught = {one.digest for one in earlier.defects} if earlier is not None else set[str]()
        good = set(self.digests) | set(self.calibration.digests)
        new: list[ReadExample] = []
        known: list[str] = []
        broken: list[ImageError] = []
        progress, now = stage(self.on_stage, "defects"), datetime.now(UTC).isoformat(timespec="seconds")
        for done, example in enumerate(examples):
            try:
                loaded = load_image(example.file, self.detector.config, example.name)
                digest = digest_of_pixels(loaded.tensor)
                if digest in taught:
                    known.append(example.name)
                elif digest in good:
                    raise ImageError(example.name, "is a good image in the model; remove it from the model first")
                else:
                    defect = ConfirmedDefect(example.name, example.kind, now, digest, example.mask is not None)
                    new.append(self._read(defect, loaded, example.mask))
                    taught.add(digest)
            except ImageError as error:
                broken.append(error)
            _report(progress, done, len(examples))
        return new, tuple(known), broken

    def _read(self, defect: ConfirmedDefect, loaded: LoadedImage, mask: Path | None) -> ReadExample:
        seen = self.see(loaded.tensor)
        height, width = (int(length) for length in seen.early.shape[2:])
        if mask is None:
            suspicion = seen.early[0, -1].flatten()
            cells = suspicion.topk(min(CELLS, len(suspicion))).indices
        else:
            drawn = load_image(mask, self.detector.config, f"mask of {defect.name}")
            if drawn.original_size != loaded.original_size:
                raise ImageError(
                    defect.name,
                    f"is {loaded.original_size[1]}x{loaded.original_size[0]} and its mask "
                    f"{drawn.original_size[1]}x{drawn.original_size[0]}",
                )
            marked = (drawn.tensor[0].float() > 127).float()[None, None]
            covered = F.adaptive_avg_pool2d(marked, (height, width)).flatten().to(seen.early.device)
            count = int((covered > 0).sum())
            if count == 0:
                raise ImageError(defect.name, "has an empty mask: mark the defect in white")
            cells = covered.topk(min(CELLS_IN_MASK, count)).indices
        features = smoothed(seen.early)[0]
        marked = torch.zeros(height * width, dtype=torch.bool, device=features.device)
        marked[cells] = True
        return ReadExample(defect, seen, features.flatten(1).T[cells], marked.view(height, width))

    # Fitting

    def fit(self, new: Sequence[ReadExample]) -> ConfirmedDefects:
        """Return the second memory with the new examples, its filters at levels where they raise few alarms."""
        if self.normal is None:
            self._look_at_good_images()
        earlier = self.detector.defects
        first = len(earlier.defects) if earlier is not None else 0
        defects = (*(earlier.defects if earlier is not None else ()), *(one.defect for one in new))
        counts = torch.tensor([len(one.patches) for one in new])
        numbers = torch.arange(first, first + len(new)).repeat_interleave(counts)
        patches = torch.cat([one.patches for one in new])
        if earlier is not None:
            patches, numbers = torch.cat((earlier.patches, patches)), torch.cat((earlier.images.cpu(), numbers))
        filters = self._filters(defects, patches, numbers)
        filters = filters.with_levels(self._levels(filters))
        descriptors = torch.stack([self._described(one, filters) for one in new])
        if earlier is not None:
            descriptors = torch.cat((earlier.descriptors, descriptors))
        return ConfirmedDefects(defects, patches, numbers, filters, descriptors)

    def _described(self, example: ReadExample, filters: DefectFilters) -> Tensor:
        """Describe what an image shows above the threshold, as it will be described when it is inspected."""
        anomaly_map, early = self._maps(example.seen, filters).combined[0], example.seen.early
        shape = (int(early.shape[2]), int(early.shape[3]))
        cells = defect_cells(anomaly_map, self.calibration.threshold, shape, example.marked)
        return describe_defect(smoothed(early)[0], cells)

    def _filters(self, defects: Sequence[ConfirmedDefect], patches: Tensor, numbers: Tensor) -> DefectFilters:
        assert self.normal is not None
        kind_of = [one.kind for one in defects]
        rows = [
            patches[torch.tensor([kind_of[number] == kind for number in numbers.tolist()]).to(patches.device)]
            for kind in sorted({kind_of[number] for number in numbers.tolist()})
        ]
        return DefectFilters.fit(rows, self.normal, [smoothed(one.early.float())[0] for one in self.good])

    def _look_at_good_images(self) -> None:
        """Compute the features of good images that the critic was trained on."""
        held_out = set(self.detector.provenance["data"]["held_out"])
        trained = [index for index in range(len(self.digests)) if index not in held_out] or list(
            range(len(self.digests))
        )
        step = max(1, math.ceil(len(trained) / MOST_GOOD))
        chosen, progress = trained[::step], stage(self.on_stage, "good images")
        for done, index in enumerate(chosen):
            self.good.append(self.see(self._pixels(index)))
            _report(progress, done, len(chosen))
        self.normal = NormalFeatures.fit([smoothed(one.early)[0] for one in self.good])
        self.quiet = [one for one in self.good if self.score(one, None) <= self.calibration.threshold]

    def _levels(self, filters: DefectFilters) -> Tensor:
        """Return the highest levels (K,) at which few good images rise above the threshold because of the filters.

        Each kind has a level of its own, so that one that resembles good parts does not hold the others back.
        """
        allowed = math.floor(ALLOWED * len(self.good))
        kinds = range(len(filters.levels))
        if not self.quiet:
            return torch.full_like(filters.levels, -HIGHEST_LEVEL)
        peaks = torch.stack([filters.outputs(one.early)[0].flatten(1).amax(1) for one in self.quiet])  # (N, K)
        crossings, places = [], set[int]()
        for kind in kinds:
            highest = peaks[:, kind].argsort(descending=True)[: max(CANDIDATES, 4 * allowed)].tolist()
            alone = filters.of_kind(kind)
            crossings.append(sorted(self._crossing(self.quiet[place], alone) for place in highest))
            places.update(highest)
        for rank in range(allowed, -1, -1):
            levels = torch.tensor([each[min(rank, len(each) - 1)] for each in crossings])
            tried = filters.with_levels(levels)
            raised = sum(self.score(self.quiet[place], tried) > self.calibration.threshold for place in places)
            if raised <= allowed:
                break
        return levels

    def _crossing(self, seen: SeenImage, filters: DefectFilters) -> float:
        """Return the highest level, of those tried, at which an image does not exceed the threshold."""
        low, high = -HIGHEST_LEVEL, HIGHEST_LEVEL
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self.score(seen, filters.with_levels(middle)) > self.calibration.threshold:
                high = middle
            else:
                low = middle
        return low

    # Threshold

    def recalibrated(self, filters: DefectFilters) -> tuple[Calibration, int]:
        """Return the calibration with the scores of the taught model, and how many were measured on copies.

        Each good image's score grows by as much as that of the same pixels does. At most as many of them exceed the
        threshold as before.
        """
        known = self.calibration
        indices = {digest: index for index, digest in enumerate(self.digests)}
        missing = [digest for digest in known.digests if digest not in indices and digest not in self.originals]
        if missing or len(known.digests) != len(known.scores):
            raise ConfigError(
                f"the threshold was set with {len(known.scores)} good images, and {len(missing) or 'all'} of them are "
                f"not in the model; give the folder with them as `good`"
            )
        earlier = self.detector.defects.filters if self.detector.defects is not None else None
        scores, copies, progress = [], 0, stage(self.on_stage, "threshold")
        for done, (digest, score) in enumerate(zip(known.digests, known.scores, strict=True)):
            copies += digest not in self.originals
            if digest not in self.calibrating:
                index = indices.get(digest)
                pixels = self._pixels(index) if index is not None else self.originals[digest]
                self.calibrating[digest] = self.see(pixels, index)
            seen = self.calibrating[digest]
            scores.append(score + max(0.0, self.score(seen, filters) - self.score(seen, earlier)))
            _report(progress, done, len(known.scores))
        above = sum(score > known.threshold for score in known.scores)
        kept = sorted(scores)[max(0, len(scores) - 1 - above)] if above < len(scores) else known.threshold
        return replace(known, scores=tuple(scores), threshold=max(known.threshold, kept)), copies

    # Outcome

    def tried(self, new: Sequence[ReadExample], defects: ConfirmedDefects, threshold: float) -> tuple[Taught, ...]:
        """Return whether each new example was found before, and would be found if only the others were taught."""
        earlier = self.detector.defects.filters if self.detector.defects is not None else None
        limit, first, rows = self.calibration.threshold, len(defects.defects) - len(new), []
        progress = stage(self.on_stage, "examples")
        for place, one in enumerate(new):
            score = self.score(one.seen, earlier)
            found = None
            if sum(other.kind == one.defect.kind for other in defects.defects) > 1:
                others = defects.images != first + place
                left, numbers = defects.patches[others.to(defects.patches.device)], defects.images[others]
                filters = self._filters(defects.defects, left, numbers)
                found = self.score(one.seen, filters.with_levels(defects.filters.levels)) > threshold
            facts = (one.defect.name, one.defect.kind, one.defect.has_mask)
            rows.append(Taught(*facts, score / limit if limit > 0 else math.inf, score > limit, found))
            _report(progress, place, len(new))
        return tuple(rows)

    # Pixels and scores

    def _find(self, good: str | os.PathLike[str]) -> dict[str, Tensor]:
        """Return the pixels of those good images in a folder that the threshold was set with, by digest."""
        files, wanted = find_good_images(Path(good)).files, set(self.calibration.digests)
        found = {}
        for batch in load_batches(files, self.detector.config, 1, lambda _: None):
            digest = digest_of_pixels(batch[0].tensor)
            if digest in wanted:
                found[digest] = batch[0].tensor
        return found

    def _pixels(self, index: int) -> Tensor:
        """Return the pixels (3, H, W) of a good image of the model."""
        original = self.originals.get(self.digests[index])
        if original is not None:
            return original
        assert self.detector.pictures is not None
        return torch.tensor(self.detector.pictures[index]).permute(2, 0, 1)

    def see(self, pixels: Tensor, without_image: int | None = None) -> SeenImage:
        """Return what the critic sees in pixels (3, H, W), and the memory's maps without the patches of one image."""
        logits, early = self.critic.with_early_features(pixels[None])
        scales: dict[int, Tensor] = {}
        if not self.detector.map_builder.ignores_memory:
            scales = dict(self.detector.anomaly_maps(pixels[None], without_image).scales)
        return SeenImage(logits, early, scales, (int(pixels.shape[1]), int(pixels.shape[2])))

    def score(self, seen: SeenImage, filters: DefectFilters | None) -> float:
        """Return the score of an image with these filters."""
        return float(self._maps(seen, filters).scores[0])

    def _maps(self, seen: SeenImage, filters: DefectFilters | None) -> AnomalyMaps:
        map_builder, config = self.detector.map_builder, self.detector.config
        logits, size = seen.logits, seen.size
        if filters is not None:
            logits = torch.maximum(logits, filters.logits(seen.early, (int(logits.shape[1]), int(logits.shape[2]))))
        maps = zero_outside(critic_map(logits, size, self.critic.smoothing), config.area(size))
        if map_builder.ignores_memory:
            return map_builder.without_search(dict, maps)
        return map_builder.combine(seen.scales, maps)


def _report(progress: OnProgress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done + 1, total)
