"""Provenance of a model: versions, data and training."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from patchsvdd.core.config import Config
from patchsvdd.core.device import describe_device
from patchsvdd.images.image_set import ImageSet
from patchsvdd.training.hooks import TrainingRecord


def describe_training(
    images: ImageSet,
    config: Config,
    record: TrainingRecord,
    critic: TrainingRecord | None,
    device: torch.device,
    held_out: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the JSON-ready provenance of a trained model."""
    from patchsvdd.core.version import __version__

    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "patchsvdd": __version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "device": describe_device(device),
        "seed": config.seed,
        "data": {
            "images": len(images),
            "image_size": list(images.size),
            "sizing": dict(images.sizing) if images.sizing is not None else None,
            "original_size": list(images.original_size) if images.original_size is not None else None,
            "fingerprint": images.fingerprint(),
            "digests": images.digests(),
            "held_out": list(held_out),
            "skipped": [str(error) for error in images.skipped],
            "copies": [list(pair) for pair in images.copies],
            "left_out": list(images.left_out),
        },
        "training": {
            "steps": record.steps,
            "seconds": round(record.seconds, 3),
            "lambda": record.lambda_,
            "collapses": list(record.collapses),
            "kept": "untrained" if record.kept_untrained else "trained" if record.steps else None,
            "validation": {name: round(score, 5) for name, score in record.validation.items()},
            "history": record.history,
        },
        "critic": None
        if critic is None
        else {"steps": critic.steps, "seconds": round(critic.seconds, 3), "history": critic.history},
    }
