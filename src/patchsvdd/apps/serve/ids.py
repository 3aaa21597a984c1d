"""Ids of rows: they sort by time."""

from __future__ import annotations

import secrets
import time


def new_id(at: float | None = None) -> str:
    """A new id; ids sort by time."""
    return f"{int((time.time() if at is None else at) * 1000):012x}{secrets.token_hex(6)}"
