"""Detects failed training: collapsed embeddings, or position accuracy that stays at chance."""

from __future__ import annotations

import math
from typing import Any

from patchsvdd.core.config import Config
from patchsvdd.core.errors import TrainingCollapsed

COLLAPSED_SHARE = 0.01
"""Embeddings have collapsed when their spread falls below this share of its maximum so far. (Healthy training dips
to a tenth in its first steps, when L_SVDD' acts and L_SSL has not started to fall.)"""
STUCK_ACCURACY = 0.2
"""Position accuracy, at the best scale, below which L_SSL has learned nothing; chance is 1/8."""
LONG_ENOUGH = 1000
"""Schedules of at least this many steps should show progress in L_SSL by their midpoint."""


def check_collapse(history: list[dict[str, Any]], config: Config) -> None:
    """Raise TrainingCollapsed if all patches have nearly the same embedding; the ablations are exempt."""
    if not config.learns_positions:
        return
    step = history[-1]["step"]
    for size, now in history[-1]["scales"].items():
        if not math.isfinite(now["spread"]) or not math.isfinite(now["position_loss"]):
            raise TrainingCollapsed(
                f"training diverged at step {step}: the loss is no longer a number; "
                f"lower `learning_rate` (it is {config.learning_rate:g})"
            )
        before = max(row["scales"][size]["spread"] for row in history)
        if now["spread"] < COLLAPSED_SHARE * before:
            raise TrainingCollapsed(
                f"the embeddings collapsed by step {step}: all {size}-px patches are mapped to nearly the same point "
                f"(their spread is {now['spread']:.1e}, it was {before:.1e}), so every distance would be 0 and no "
                f"defect could be found. {_remedy(config)}"
            )


def is_constant(history: list[dict[str, Any]], config: Config) -> bool:
    """Return whether an ablation without L_SSL maps all patches to exactly one point: no gradient is left.

    A small spread is not enough. Embeddings of about 0.03 that differ by 1e-7 still rank test images well.
    """
    if config.learns_positions or not history:
        return False
    return all(scale["spread"] == 0 for scale in history[-1]["scales"].values())


def check_stuck(history: list[dict[str, Any]], config: Config, steps: int) -> None:
    """Raise TrainingCollapsed at half of a long schedule if position accuracy is still at chance on every scale.

    Then only L_SVDD' has shaped the embeddings. Repeating textures cause it: their positions are hard to predict, and a
    large λ lets L_SVDD' dominate before L_SSL falls.
    """
    middle = len(history) > 1 and history[-2]["step"] < steps / 2 <= history[-1]["step"]
    if not config.learns_positions or config.lambda_ == 0 or steps < LONG_ENOUGH or not middle:
        return
    best = max(scale["position_accuracy"] for scale in history[-1]["scales"].values())
    if best < STUCK_ACCURACY:
        raise TrainingCollapsed(
            f"the position classifier is still at chance after {history[-1]['step']} steps "
            f"({best:.0%} correct, chance is 12.5%). {_remedy(config)}"
        )


def _remedy(config: Config) -> str:
    """Return advice for the error message."""
    if config.lambda_ == 0:
        return f"Nothing pulls them together: lower `learning_rate` (it is {config.learning_rate:g})"
    # A relative L_SVDD' gains nothing from shrinking, but it dominates where L_SSL cannot fall.
    cause = "λ L_SVDD' outweighs L_SSL" if config.relative_svdd else "λ pulls them together"
    return f"{cause}: lower it, e.g. `lambda_={config.lambda_ / 10:g}` (it is {config.lambda_:g})"
