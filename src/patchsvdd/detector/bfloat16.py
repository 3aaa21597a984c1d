"""Lets the critic compute in bfloat16 on CPUs that do so fast, if scores of real images hardly change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from patchsvdd.core.config import is_large
from patchsvdd.core.errors import ConfigError, ImageError
from patchsvdd.core.progress import OnProgress
from patchsvdd.critic.inference import CriticInference
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.critic.onnx_logits import CriticLogits
from patchsvdd.detector.detector import ENGINES, PatchSVDD
from patchsvdd.encoder.engines import WITH_BFLOAT16, EngineChoice, choose_engine, forget_choice, sample_size

FEWEST = 5
"""Images that the check requires."""
ALLOWED_CHANGE = 0.1
"""Largest change of a score, as a share of the threshold."""


@dataclass(frozen=True)
class Bfloat16Check:
    """How scores of images change if the critic computes in bfloat16."""

    images: int
    largest_change: float
    """Largest change of a score, as a share of the threshold."""
    median_change: float
    changed_verdicts: int
    skipped: tuple[ImageError, ...] = ()

    def require(self) -> None:
        """Raise ConfigError if the change is too large."""
        if self.changed_verdicts or self.largest_change > ALLOWED_CHANGE:
            raise ConfigError(
                f"bfloat16 changes {self.changed_verdicts} of {self.images} verdicts, and scores by up to "
                f"{self.largest_change:.1%} of the threshold ({ALLOWED_CHANGE:.0%} is allowed); the model still "
                f"computes in float32"
            )


def check_bfloat16(detector: PatchSVDD, images: Sequence[Path], on_progress: OnProgress | None = None) -> Bfloat16Check:
    """Inspect images with the critic in float32 and in bfloat16; unusable ones are skipped."""
    critic, threshold = critic_of(detector), detector.threshold
    if is_large(*detector.image_size):
        raise ConfigError("images of this size are inspected in tiles, always in float32")
    if math.isinf(threshold) or threshold <= 0:
        raise ConfigError("the model has no threshold to compare with; run `patchsvdd calibrate` first")
    found: list[list[tuple[float, bool]]] = []
    skipped: list[ImageError] = []
    plain = detector.critic_inference
    try:
        for precision in WITH_BFLOAT16:
            detector.critic_inference = CriticInference(critic, detector.device, "openvino", None, precision)
            skipped.clear()
            rows: list[tuple[float, bool]] = []
            for one in detector.inspect_many(images, on_error=skipped.append):
                rows.append((one.score, one.is_anomalous))
                if on_progress is not None:
                    on_progress(len(found) * len(images) + len(rows), len(WITH_BFLOAT16) * len(images))
            found.append(rows)
    finally:
        detector.critic_inference = plain
    if len(found[0]) < FEWEST:
        raise ConfigError(f"checking bfloat16 requires at least {FEWEST} usable images; got {len(found[0])}")
    pairs = list(zip(*found, strict=True))
    changes = [abs(score - other) for (score, _), (other, _) in pairs]
    return Bfloat16Check(
        len(pairs),
        max(changes) / threshold,
        median(changes) / threshold,
        sum(verdict != other for (_, verdict), (_, other) in pairs),
        tuple(skipped),
    )


def allow_bfloat16(detector: PatchSVDD, folder: Path, on_progress: OnProgress | None = None) -> EngineChoice:
    """Return the critic's fastest engine, bfloat16 included, and store it in the model's folder."""
    network, size = _network(detector)
    return choose_engine(network, size, folder / ENGINES, WITH_BFLOAT16, on_progress)


def forget_bfloat16(detector: PatchSVDD, folder: Path) -> None:
    """Remove what ``allow_bfloat16`` stored: the critic computes in float32 again."""
    network, size = _network(detector)
    forget_choice(network, size, folder / ENGINES, WITH_BFLOAT16)


def _network(detector: PatchSVDD) -> tuple[CriticLogits, tuple[int, int]]:
    size = sample_size(detector.image_size)
    return CriticLogits(critic_of(detector), size), size


def critic_of(detector: PatchSVDD) -> TrainedCritic:
    """Return the critic; raise ConfigError if there is none."""
    if detector.critic is None:
        raise ConfigError("the model has no critic, the only part that can compute in bfloat16")
    return detector.critic
