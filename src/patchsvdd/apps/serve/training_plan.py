"""How long the stages of a training take, relative to one another.

The constants were measured on two CPU cores with 20 images of 128 and 256 px. On another machine, or on a GPU, the
service corrects them by the stages that have passed.
"""

from __future__ import annotations

from patchsvdd.core.config import Config
from patchsvdd.detector.fitting import JUDGED
from patchsvdd.detector.image_check import can_check
from patchsvdd.detector.split import Split
from patchsvdd.detector.threshold_evidence import counts

UNIT = 256 * 256
"""Pixels of the images that the constants hold for."""
FUSED = 48
"""Minimum number of images that memory and critic are fused on."""


def training_plan(config: Config, images: int) -> dict[str, float]:
    """Seconds of each stage for this many images, in the order of the stages."""
    size = config.image_size or (256, 256)
    pixels = size[0] * size[1] / UNIT
    split = Split.of(config, max(2, images))
    trained, held_out = len(split.trained), len(split.held_out)
    critic, search = config.critic, 0.12 * pixels
    embed_and_index = 0.07 * pixels + 0.21 * pixels**1.2
    judged = 2 * (trained * embed_and_index + max(JUDGED, 2 * held_out) * search)
    fused = 0.0 if critic is None else max(FUSED, 2 * held_out) * search
    checked = 0 if critic is None or not can_check(images, critic) else critic.check_steps
    plan = {
        "images": 0.01 * images,
        "copies": 0.2 + 0.001 * images,
        "training": 0.62 * (0.23 + 0.77 * pixels) * config.total_steps(trained),
        "validation": judged if config.stop != "end" and held_out else 0.0,
        "critic": 0.0 if critic is None else 0.155 * pixels * critic.batch_size * critic.steps,
        "features": 0.0 if critic is None else 0.05 * pixels * trained,
        "memory": 0.07 * pixels * images,
        "graph": 0.21 * pixels**1.2 * images,
        "thinning": 0.0 if config.memory_size.is_whole else 0.21 * pixels**1.2 * images,
        "threshold": search * (images if critic is None else held_out),
        "fusion": fused,
        "evidence": sum(counts(config.synthetic_defects, size[0] * size[1])) * search,
        "check": 0.0 if critic is None else 0.155 * pixels * critic.batch_size * 2 * checked,
        "unusual": 0.0 if critic is None or checked else 0.2 * pixels * images,
        "saving": fused + 1.0 + 0.01 * images,  # not reported: after the last report there is still work to do
    }
    if config.minutes is not None:
        left = 60 * config.minutes
        for name in ("critic", "check", "training"):  # as ``fit_schedule`` does
            plan[name] = min(plan[name], left)
            left -= plan[name]
        if plan["training"] == 0:
            plan["validation"] = 0.0
    return plan
