"""Times of a camera's clock, mapped to the clock of this machine."""

from __future__ import annotations

import time

DRIFT = 200e-6
"""Largest difference between the speeds of two clocks: quartz crystals are within 100 ppm of the true time."""
JUMP = 10.0
"""A camera's clock that differs by more seconds from its mapping was set, as was one that went back."""


class CameraClock:
    """The difference between a camera's clock and that of this machine, estimated from the images themselves.

    An image arrives after it was taken: later by the exposure, the read-out and the network. This delay varies, but is
    never shorter than some minimum. The difference is therefore the smallest one seen, corrected for the drift of the
    two clocks. Mapped times are late by that minimum: the exposure and a few milliseconds with a camera, more with a
    stream that buffers.
    """

    def __init__(self) -> None:
        self._difference: float | None = None
        self._last = 0.0

    def captured(self, camera: float, arrived: float) -> float:
        """Return when an image was taken, by ``time.monotonic``.

        ``camera``: the same in seconds of the camera's clock; ``arrived``: when it arrived, by ``time.monotonic``.
        """
        seen = arrived - camera
        if self._difference is None or camera < self._last or abs(seen - self._difference) > JUMP:
            self._difference = seen
        else:
            self._difference = min(seen, self._difference + DRIFT * (camera - self._last))
        self._last = camera
        return camera + self._difference


def since_1970(monotonic: float) -> float:
    """Return a time of ``time.monotonic`` as seconds since 1970."""
    return time.time() - (time.monotonic() - monotonic)


def by_monotonic(since_1970: float) -> float:
    """Return seconds since 1970 as a time of ``time.monotonic``."""
    return time.monotonic() - (time.time() - since_1970)
