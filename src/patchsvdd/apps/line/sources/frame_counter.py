"""The numbers of a camera's frames: which are missing, and where a short counter started again."""

from __future__ import annotations

SHORT = 65_535
"""GigE Vision cameras may number their frames with 16 bits: 1 comes after 65,535."""


class FrameCounter:
    """Counts lost frames by the gaps between their numbers."""

    def __init__(self) -> None:
        self.lost = 0
        self._last: int | None = None
        self._wraps = 0

    def restart(self) -> None:
        """The camera was opened again and may number its frames from any number; ``lost`` keeps counting."""
        self._last = None
        self._wraps = 0

    def count(self, number: int) -> int:
        """Return the number of a frame that arrived, which counts on where a short counter started again."""
        if self._last is not None:
            if number <= self._last - SHORT // 2 and self._last <= SHORT:
                self._wraps += 1
                self.lost += max(0, number + SHORT - self._last - 1)
            else:
                self.lost += max(0, number - self._last - 1)
        self._last = number
        return number + self._wraps * SHORT
