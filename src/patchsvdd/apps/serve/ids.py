"""Ids of rows: they sort by time."""

from __future__ import annotations

import math
import secrets
import time


def new_id(at: float | None = None) -> str:
    """A new id; ids sort by time."""
    return f"{int((time.time() if at is None else at) * 1000):012x}{secrets.token_hex(6)}"


def id_at(at: float) -> str:
    """A bound between the ids before a time and those from it on."""
    return f"{max(0, math.ceil(at * 1000)):012x}"
