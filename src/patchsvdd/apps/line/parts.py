"""A part, as its views and its one verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

PartVerdict = Literal["good", "anomalous", "incomplete", "error"]
"""Only ``good`` means that the part may pass."""


class VerdictCode(IntEnum):
    """Verdicts as numbers, for field buses."""

    NONE = 0
    GOOD = 1
    ANOMALOUS = 2
    INCOMPLETE = 3
    ERROR = 4


CODES: dict[PartVerdict, VerdictCode] = {
    "good": VerdictCode.GOOD,
    "anomalous": VerdictCode.ANOMALOUS,
    "incomplete": VerdictCode.INCOMPLETE,
    "error": VerdictCode.ERROR,
}


@dataclass(frozen=True)
class PartRegion:
    """A region of one view that is above the threshold."""

    view: str
    left: int
    top: int
    width: int
    height: int
    peak: float
    """In multiples of the view's threshold."""
    kind: str | None = None
    """The kind of confirmed defect it resembles."""


@dataclass(frozen=True)
class PartView:
    """One inspected view of a part."""

    view: str
    inspection: str
    """Number of the stored inspection."""
    model: str
    identity: str
    score: float
    threshold: float
    verdict: str
    """Of the view alone."""
    frame: int
    captured: float
    """Seconds since 1970."""

    @property
    def relative(self) -> float:
        """The score in multiples of the threshold."""
        return self.score / self.threshold if self.threshold > 0 else float(self.score > 0) * 1e9


@dataclass(frozen=True)
class Trigger:
    """A part that arrived."""

    sequence: int
    """Counts the parts of a line, from 1; never repeats, also after a restart."""
    at: float
    """Seconds since 1970."""
    monotonic: float
    """The same by ``time.monotonic``."""
    part_number: str = ""
    product: str = ""
    """Empty if the line has one product, or chooses it by the images."""
    trigger_id: int = 0
    """As the PLC numbered the trigger; 0 if it did not. A repeated one is answered with the stored result."""
    by: str = "camera"
    """Who triggered: camera, opcua, modbus, api or folder."""


@dataclass(frozen=True)
class PartResult:
    """The verdict on a part. It is stored before it is shown anywhere."""

    id: str
    trigger: Trigger
    product: str
    verdict: PartVerdict
    score: float | None
    """The highest ``relative`` of its views, or what a calibration of whole parts makes of them; None without views."""
    threshold: float
    """What ``score`` is compared with."""
    views: tuple[PartView, ...]
    missing: tuple[str, ...]
    """Views that did not arrive in time."""
    regions: tuple[PartRegion, ...]
    reason: str | None
    """Why the part is incomplete or could not be judged."""
    answered: float
    """Seconds since 1970."""
    seconds: float
    """From the trigger to the stored verdict."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "id": self.id,
            "sequence": self.trigger.sequence,
            "part_number": self.trigger.part_number,
            "product": self.product,
            "trigger_id": self.trigger.trigger_id,
            "by": self.trigger.by,
            "triggered": self.trigger.at,
            "answered": self.answered,
            "seconds": round(self.seconds, 6),
            "verdict": self.verdict,
            "score": self.score,
            "threshold": self.threshold,
            "views": [vars(one) for one in self.views],
            "missing": list(self.missing),
            "regions": [vars(one) for one in self.regions],
            "reason": self.reason,
        }
