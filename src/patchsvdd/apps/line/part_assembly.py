"""Groups the images of several views into parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from patchsvdd.apps.line.parts import Trigger
from patchsvdd.apps.line.sources.source import Frame

EARLY = 0.05
"""Seconds by which a camera's clock may be behind the trigger."""


@dataclass
class OpenPart:
    """A part whose images arrive."""

    trigger: Trigger
    required: tuple[str, ...]
    frames: dict[str, Frame] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Views that have not arrived."""
        return tuple(view for view in self.required if view not in self.frames)

    def accepts(self, frame: Frame) -> bool:
        """Whether an image belongs to this part: a view that it lacks, taken after the trigger."""
        if frame.source not in self.missing:
            return False
        if self.trigger.by == "camera":
            return self.trigger.part_number == (frame.part or "")
        return frame.arrived >= self.trigger.monotonic and frame.captured >= self.trigger.at - EARLY


class PartAssembly:
    """The parts that are open, in the order of their triggers."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._open: list[OpenPart] = []

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, trigger: Trigger, required: tuple[str, ...]) -> OpenPart:
        """Open a part."""
        part = OpenPart(trigger, required)
        self._open.append(part)
        return part

    def add(self, frame: Frame, begin: Callable[[Frame], tuple[Trigger, tuple[str, ...]]] | None) -> OpenPart | None:
        """Add an image to the oldest part that accepts it, and return that part.

        Otherwise the image begins a part, with what ``begin`` returns for it; without ``begin`` it came too late, and
        None is returned.
        """
        for part in self._open:
            if part.accepts(frame):
                part.frames[frame.source] = frame
                return part
        if begin is None:
            return None
        part = self.begin(*begin(frame))
        part.frames[frame.source] = frame
        return part

    def closed(self, now: float) -> Iterator[OpenPart]:
        """Remove and return the parts that are complete, or whose time is over, by ``time.monotonic``."""
        for part in list(self._open):
            if not part.missing or now >= part.trigger.monotonic + self._deadline:
                self._open.remove(part)
                yield part

    def remove(self, part: OpenPart) -> None:
        """Close a part before its time."""
        self._open.remove(part)
