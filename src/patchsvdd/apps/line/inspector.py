"""What a line needs from the service that inspects and stores."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from patchsvdd.apps.line.parts import PartRegion, PartResult, PartView, Trigger
from patchsvdd.apps.line.signals import Fault
from patchsvdd.apps.line.sources.source import Frame
from patchsvdd.core.errors import PatchSVDDError


class StoreFailed(PatchSVDDError):
    """A result could not be stored; trying again may help."""


class InspectionFailed(PatchSVDDError):
    """A view could not be inspected; trying again does not help."""


Inspected = tuple[PartView, tuple[PartRegion, ...]]
"""A stored view, and what exceeds its threshold."""


class Inspector(Protocol):
    """Inspects views and stores parts. May be called by several threads."""

    def new_id(self, at: float) -> str:
        """An id for a part that was triggered at a time, in seconds since 1970; ids sort by it."""

    def inspect(self, frame: Frame, model: Path, trigger: Trigger, seconds: float) -> Future[Inspected]:
        """Inspect and store a view within ``seconds``. The future raises StoreFailed or InspectionFailed."""

    def store(self, result: PartResult) -> None:
        """Store a part; raises StoreFailed."""

    def correct(self, result: PartResult) -> None:
        """Replace a stored part, because its verdict did not reach the field bus in time; raises StoreFailed."""

    def last(self) -> PartResult | None:
        """The part of this line that was stored last; raises StoreFailed."""

    def faults(self) -> Sequence[Fault]:
        """Why nothing can be inspected or stored at present."""
