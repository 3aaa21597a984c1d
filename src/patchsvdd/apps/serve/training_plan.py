"""How long the stages of a training take, relative to one another.

The constants were measured on two CPU cores with 20 to 60 images of 128 and 256 px. On another machine, or a GPU, the
service corrects them by the stages that have passed.
"""

from __future__ import annotations

from patchsvdd.core.config import Config
from patchsvdd.detector.schedule import CRITIC_TIME
from patchsvdd.detector.split import Split

UNIT = 256 * 256
"""Pixels of the images that the constants hold for."""
JUDGED = 192
"""Images mapped to compare the trained encoder with the untrained one."""


def training_plan(config: Config, images: int) -> dict[str, float]:
    """Seconds of each stage for this many images, in the order of the stages."""
    size = config.image_size or (256, 256)
    pixels = size[0] * size[1] / UNIT
    images = max(2, images)
    embed, index = 0.3 * images * pixels**0.5, 0.8 * images * pixels**1.4
    search = 0.55 * (0.3 + 0.7 * pixels)
    split = Split.of(config, images)
    scored = len(split.held_out) if config.critic is not None else images
    plan = {
        "images": 0.01 * images,
        "copies": 0.25 * images,
        "training": 2.0 * (0.45 + 0.55 * pixels) * config.total_steps(len(split.trained)),
        "validation": 2 * (embed + index) + JUDGED * search if config.stop != "end" and split.held_out else 0.0,
        "critic": 0.0 if config.critic is None else 0.9 * pixels * config.critic.batch_size * config.critic.steps,
        "memory": embed,
        "graph": index,
        "thinning": 0.0 if config.memory_size.is_whole else index,
        "threshold": search * scored,
        "fusion": 0.0 if config.critic is None or config.fusion_share is not None else JUDGED / 2 * search,
    }
    if config.minutes is not None:
        share = CRITIC_TIME if config.critic is not None else 0.0
        plan["training"] = min(plan["training"], 60 * config.minutes * (1 - share))
        plan["critic"] = min(plan["critic"], 60 * config.minutes * share)
    return plan
