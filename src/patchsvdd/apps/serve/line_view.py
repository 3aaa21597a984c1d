"""What the service needs of the line that it runs: its state for the page, and what people may ask of it."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypedDict

from patchsvdd.apps.serve.audit_chain import Actor

State = Literal["starting", "ready", "busy", "fault", "paused", "stopped"]
SourceState = Literal["starting", "running", "failed", "stopped"]


class FaultFacts(TypedDict):
    """Why the line does not work."""

    code: int
    name: str
    """Of the FaultCode, such as SOURCE."""
    text: str
    since: str
    """ISO 8601, UTC."""


class SourceFacts(TypedDict):
    """A camera, a stream or a folder. Counts begin when the line starts."""

    name: str
    view: str
    kind: str
    """Such as genicam, rtsp or folder."""
    state: SourceState
    since: str
    """When it came into this state: ISO 8601, UTC."""
    reason: str | None
    """Why it failed."""
    frames: int
    dropped: int
    """Images for which there was no room in the queue."""
    lost: int
    """Images that the camera or the network lost."""
    late: int
    """Images that came after their part was answered."""
    reconnects: int
    frames_per_second: float


class BusFacts(TypedDict):
    """A field bus."""

    kind: str
    """opcua or modbus."""
    address: str
    clients: int
    trouble: str | None
    """Why it does not work; None if it does."""


class LineFacts(TypedDict):
    """The state of a line at one moment."""

    name: str
    state: State
    mode: Literal["bus", "camera"]
    """What triggers parts."""
    fault: FaultFacts | None
    sources: list[SourceFacts]
    buses: list[BusFacts]
    products: list[str]
    product: str
    views: list[str]
    last: dict[str, Any] | None
    """The last part, by ``PartResult.to_json``."""
    sequence: int
    """Of the last part."""


class LineView(Protocol):
    """A running line. Every call returns at once; requests come from several threads."""

    def state(self) -> LineFacts:
        """What the line is doing now; never raises."""

    def trigger(self, part_number: str, product: str, trigger_id: int) -> None:
        """Begin a part. Raises PatchSVDDError if the line cannot."""

    def acknowledge(self, by: Actor) -> None:
        """Clear a fault whose cause is gone."""

    def pause(self, by: Actor) -> None:
        """Begin no more parts."""

    def resume(self, by: Actor) -> None:
        """Begin parts again."""

    def live(self, view: str) -> bytes | None:
        """The latest image of a view as JPEG; None if there is none."""
