"""Progress callbacks."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[int, int], None]
"""Called with the items done and their total."""
OnStage = Callable[[str, int, int], None]
"""Called with a stage, the items done and their total. Stages: "images", "copies", "validation", "critic",
"memory", "thinning", "graph", "reach", "fusion", "threshold", "evidence"."""


def stage(on_stage: OnStage | None, name: str) -> OnProgress | None:
    """``on_stage`` for one stage."""
    return None if on_stage is None else lambda done, total: on_stage(name, done, total)
