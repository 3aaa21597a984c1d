"""A line that runs in the service: sources, handshake, field buses, and what the page shows of them."""

from __future__ import annotations

import asyncio
import io
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

from PIL import Image, ImageOps

from patchsvdd.apps.line.bus_state import BusState, ClientWatch
from patchsvdd.apps.line.frame_queue import FrameQueue
from patchsvdd.apps.line.handshake import Handshake
from patchsvdd.apps.line.line import Line
from patchsvdd.apps.line.line_file import LineSettings
from patchsvdd.apps.line.signals import FaultCode, Signals
from patchsvdd.apps.line.sources.make import make_source
from patchsvdd.apps.line.sources.source import Frame
from patchsvdd.apps.line.sources.supervisor import SupervisedSource
from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.line_inspector import ServiceInspector
from patchsvdd.apps.serve.line_products import LineProducts
from patchsvdd.apps.serve.line_rules import LineRules
from patchsvdd.apps.serve.line_view import BusFacts, FaultFacts, LineFacts, SourceFacts, SourceState, State
from patchsvdd.apps.serve.responses import as_time
from patchsvdd.apps.serve.service import Service
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.files import output_errors

LOG = logging.getLogger("patchsvdd.apps.line")
LIVE_SIDE = 1600
"""Longest side of a live image, in pixels."""
LOOK_AT_CLIENTS = 1.0
"""Seconds between two looks at the clients of the field buses."""
LONGEST_PAUSE = 5.0
"""Seconds for which a camera that runs freely may send nothing."""
SOURCE_STATES: dict[str, SourceState] = {
    "connecting": "starting",
    "running": "running",
    "failed": "failed",
    "ended": "stopped",
    "stopped": "stopped",
}


class Bus(Protocol):
    """A server of a field bus."""

    def start(self) -> None:
        """Listen; raises ConfigError."""

    def close(self) -> None:
        """Stop."""

    def state(self) -> BusState:
        """What it does."""


def bus_makers(settings: LineSettings) -> dict[str, Callable[[Handshake], Bus]]:
    """Kind of bus → what makes its server for a handshake."""
    makers: dict[str, Callable[[Handshake], Bus]] = {}
    if settings.opcua is not None:
        from patchsvdd.apps.line.opcua import OpcUaServer

        makers["opcua"] = partial(OpcUaServer, settings=settings.opcua)
    if settings.modbus is not None:
        from patchsvdd.apps.line.modbus import ModbusServer

        makers["modbus"] = partial(ModbusServer, settings=settings.modbus)
    return makers


class ServedLine:
    """Runs a line beside the routes of a service."""

    def __init__(self, settings: LineSettings, service: Service) -> None:
        """Check the settings; nothing is opened before ``start``. Raise ConfigError for an unusable one."""
        self.settings, self._service = settings, service
        self.frames = FrameQueue(settings.queue_size, settings.when_full)
        records = service.settings.data / "sources"
        with output_errors(records):
            records.mkdir(parents=True, exist_ok=True)
        self.sources = {
            view: SupervisedSource(
                make_source(view, table, records=records), self.frames, on_event=LOG.info, stall=_stall(table)
            )
            for view, table in settings.sources.items()
        }
        self._rules = LineRules(settings, service.models, LOG.warning)
        self._makers = bus_makers(settings)
        self._buses: dict[str, Bus] = {}
        self._clients = {kind: ClientWatch(kind, LOG.info) for kind in self._makers}
        self._inspector = ServiceInspector(service, settings.name, settings.models)
        choose = None if settings.chooser is None else LineProducts(settings, service, settings.chooser)
        self.line = Line(settings, self._inspector, self._rules, self.sources, self.frames, LOG.info, choose)
        self.line.handshake.subscribe(self._remember_fault)
        self._is_running = False
        self._fault = Signals().fault
        self._fault_since = time.time()
        self._live: dict[str, tuple[Frame, bytes]] = {}
        self._drawing = threading.Lock()

    def listen(self) -> None:
        """Start the field buses; raises ConfigError. The line shows the fault STARTING until ``start``."""
        try:
            for kind, make in self._makers.items():
                bus = make(self.line.handshake)
                bus.start()
                self._buses[kind] = bus
                LOG.info("%s of the line '%s' at %s", kind, self.settings.name, bus.state().address)
        except BaseException:
            self._close_buses()
            raise

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the line in the service's loop; at the end, finish the part in progress."""
        loop = asyncio.get_running_loop()
        self._inspector.start(loop)
        self.line.start()
        self._is_running = True
        watching = loop.create_task(self._watch_clients())
        try:
            yield
        finally:
            watching.cancel()
            await loop.run_in_executor(None, self.close)

    async def _watch_clients(self) -> None:
        while True:
            self._bus_states()
            await asyncio.sleep(LOOK_AT_CLIENTS)

    def _bus_states(self) -> dict[str, BusState]:
        return {kind: self._clients[kind].look(bus.state()) for kind, bus in self._buses.items()}

    def close(self) -> None:
        """Finish the part in progress, then stop."""
        self._is_running = False
        self.line.close()
        self._close_buses()
        self._inspector.close()

    def _close_buses(self) -> None:
        for bus in self._buses.values():
            bus.close()
        self._buses.clear()

    # What the page shows

    def state(self) -> LineFacts:
        """What the line is doing now."""
        signals, last = self.line.handshake.snapshot(), self.line.last_result
        return LineFacts(
            name=self.settings.name,
            state=_state(signals) if self._is_running else "stopped",
            mode=self.settings.parts.trigger,
            fault=self._fault_facts(signals),
            sources=[self._source_facts(view) for view in self.sources],
            buses=[_bus_facts(kind, state) for kind, state in self._bus_states().items()],
            products=[product for product in self.settings.products if product],
            product=signals.product,
            views=list(self.settings.views),
            last=None if last is None else last.to_json(),
            sequence=signals.sequence,
        )

    def live(self, view: str) -> bytes | None:
        """The latest image of a view as JPEG; None if there is none."""
        frame = self.line.latest.get(view)
        if frame is None:
            return None
        with self._drawing:
            known = self._live.get(view)
            if known is None or known[0] is not frame:
                known = self._live[view] = (frame, _jpeg(frame))
            return known[1]

    def _source_facts(self, view: str) -> SourceFacts:
        state = self.sources[view].state()
        return SourceFacts(
            name=view,
            view=view,
            kind=str(self.settings.sources[view]["kind"]),
            state=SOURCE_STATES[state.state],
            since=as_time(state.since),
            reason=state.reason,
            frames=state.frames,
            dropped=state.dropped,
            lost=state.lost,
            late=self.line.late[view],
            reconnects=state.reconnects,
            frames_per_second=round(state.frames_per_second, 3),
        )

    def _fault_facts(self, signals: Signals) -> FaultFacts | None:
        if signals.fault in (FaultCode.NONE, FaultCode.PAUSED):
            return None
        code, text = signals.fault, self._service.paths.hide(signals.fault_text)
        return FaultFacts(code=int(code), name=code.name, text=text, since=as_time(self._fault_since))

    def _remember_fault(self, signals: Signals) -> None:
        if signals.fault != self._fault:
            self._fault, self._fault_since = signals.fault, time.time()
            if signals.fault in (FaultCode.STARTING, FaultCode.PAUSED):
                LOG.info(signals.fault_text)
            elif signals.fault:
                LOG.warning("fault %s: %s", signals.fault.name, signals.fault_text)
            else:
                LOG.info("the fault is over")

    # What people ask for

    def trigger(self, part_number: str, product: str, trigger_id: int) -> None:
        """Begin a part. Raise ConfigError if the line is not ready."""
        line = self._running()
        if not line.is_bus:
            raise ConfigError("the cameras of this line trigger themselves; it cannot be triggered")
        if not line.handshake.snapshot().ready:
            raise ConfigError("the line is not ready; wait until it is")
        if not line.handshake.trigger("api", part_number=part_number, product=product, trigger_id=trigger_id):
            raise ConfigError("another part was triggered just now; wait until the line is ready")

    def acknowledge(self, by: Actor) -> None:  # noqa: ARG002
        """Clear a fault whose cause is gone."""
        self._running().handshake.acknowledge()

    def pause(self, by: Actor) -> None:
        """Begin no more parts."""
        self._running().pause()
        LOG.info("%s paused the line", by.name)

    def resume(self, by: Actor) -> None:
        """Begin parts again."""
        self._running().resume()
        LOG.info("%s resumed the line", by.name)

    def _running(self) -> Line:
        if not self._is_running:
            raise ConfigError("the line is not running")
        return self.line


def _stall(table: Mapping[str, Any]) -> float | None:
    """Seconds without an image after which a camera that runs freely has failed; None for what waits for triggers.

    Streams have a time-out of their own.
    """
    if table["kind"] != "genicam" or table.get("trigger", "none") != "none":
        return None
    return float(max(LONGEST_PAUSE, 3 / table.get("frame_rate", 1.0)))


def _state(signals: Signals) -> State:
    if signals.fault == FaultCode.PAUSED:
        return "paused"
    if signals.fault == FaultCode.STARTING:
        return "starting"
    if signals.fault:
        return "fault"
    return "busy" if signals.busy else "ready"


def _bus_facts(kind: str, state: BusState) -> BusFacts:
    return BusFacts(kind=kind, address=state.address, clients=state.clients, trouble=state.trouble)


def _jpeg(frame: Frame) -> bytes:
    picture = Image.fromarray(frame.pixels) if frame.pixels is not None else Image.open(io.BytesIO(frame.data or b""))
    small = ImageOps.exif_transpose(picture).convert("RGB")
    small.thumbnail((LIVE_SIDE, LIVE_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
