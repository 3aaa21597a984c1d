"""What a threshold is for."""

from __future__ import annotations

from typing import Literal, get_args

Aim = Literal["balanced", "few-alarms", "few-misses"]
"""What the threshold is for. "few-alarms": a false-alarm rate that is guaranteed. "balanced": a small sum of false
alarms and missed synthetic defects. "few-misses": the same with misses counted several times."""
Purpose = Aim | Literal["chosen"]
"""The aim of a threshold, or "chosen": someone set its value."""
AIMS: tuple[Aim, ...] = get_args(Aim)
