"""What a line shows on a field bus, and what the bus asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from patchsvdd.apps.line.parts import PartRegion, VerdictCode

MOST_REGIONS = 8
"""Regions of a part that are shown, those with the highest peaks."""


class FaultCode(IntEnum):
    """Why a line does not work, or a part got no verdict in time."""

    NONE = 0
    STARTING = 1
    """Models are being loaded."""
    SOURCE = 2
    """A camera, stream or folder does not answer."""
    STORE = 3
    """The database or the disk does not accept results."""
    MODEL = 4
    """No model for the product, or it failed its golden images."""
    OVERRUN = 5
    """Triggered while a part was being inspected."""
    TIMEOUT = 6
    """A part got no verdict in time."""
    PRODUCT = 7
    """The requested product is unknown."""
    PAUSED = 8
    """Somebody paused the line on the page."""


@dataclass(frozen=True)
class Fault:
    """A fault in words."""

    code: FaultCode
    text: str


@dataclass(frozen=True)
class Signals:
    """Everything a PLC reads, at one moment."""

    ready: bool = False
    trigger: bool = False
    """As the PLC wrote it last."""
    busy: bool = False
    result_valid: bool = False
    verdict: VerdictCode = VerdictCode.NONE
    score: float = 0.0
    """In multiples of the threshold; above 1 is anomalous."""
    regions: tuple[PartRegion, ...] = ()
    part_number: str = ""
    product: str = ""
    model: str = ""
    """Identities of the models of the last result, comma-separated."""
    sequence: int = 0
    """Of the last result."""
    trigger_id: int = 0
    """Of the last result."""
    heartbeat: int = 0
    """Counts up every half second while the line works, and starts again from 0 after 65,535."""
    fault: FaultCode = FaultCode.NONE
    fault_text: str = ""


class LineControl(Protocol):
    """What a handshake asks of the line. Every call returns at once."""

    def start_part(self, part_number: str, product: str, trigger_id: int, by: str) -> None:
        """Begin a part; its result comes through ``Handshake.answer``."""
