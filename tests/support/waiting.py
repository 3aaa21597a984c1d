"""Wait for a condition instead of for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float = 60.0, *, poll: float = 0.02) -> None:
    """Return as soon as the condition holds; fail if it does not hold within ``seconds``.

    Limits are generous: a busy machine may be ten times slower than an idle one, and only a failing test waits so long.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition did not hold within {seconds:g} seconds"
        time.sleep(poll)
