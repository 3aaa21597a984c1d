"""A small line for tests: real inspections by a running service, parts stored by it, faults on demand."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from PIL import Image

from patchsvdd.apps.line.parts import PartRegion, PartResult, PartVerdict, PartView, Trigger
from patchsvdd.apps.line.signals import FaultCode
from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.ids import new_id
from patchsvdd.apps.serve.line_view import BusFacts, FaultFacts, LineFacts, SourceFacts, State
from patchsvdd.apps.serve.responses import as_time, encoded
from patchsvdd.apps.serve.service import Inspected, Service
from patchsvdd.core.errors import ConfigError

Images = Mapping[str, bytes | None]
"""View → its image; None if it does not arrive."""


def now() -> str:
    return as_time(time.time())


class SmallLine:
    """A LineView. ``model`` inspects every view; ``images`` are those of the parts that are triggered, in a circle."""

    def __init__(
        self, service: Service, model: str, images: Sequence[Images], name: str = "L1", views: Sequence[str] = ("top",)
    ) -> None:
        self._service, self._model, self._images = service, model, list(images)
        self.name, self.views = name, list(views)
        self.products, self.product = ["washer", "bolt"], "washer"
        last = service.store.last_part(service.settings.service_id, name)
        self._last: dict[str, Any] | None = None
        self._sequence = 0 if last is None else last["sequence"]
        self._live: dict[str, bytes] = {}
        self._state: State = "ready"
        self._fault: FaultFacts | None = None
        self._lock = threading.Lock()
        self.acknowledged: list[Actor] = []
        self.sources: list[SourceFacts] = [source(view) for view in self.views]
        self.buses: list[BusFacts] = [
            {"kind": "opcua", "address": "opc.tcp://127.0.0.1:4840", "clients": 1, "trouble": None},
            {"kind": "modbus", "address": "127.0.0.1:502", "clients": 0, "trouble": None},
        ]
        self._worker = ThreadPoolExecutor(1)

    def close(self) -> None:
        self._worker.shutdown()

    # LineView

    def state(self) -> LineFacts:
        with self._lock:
            return {
                "name": self.name,
                "state": "fault" if self._fault is not None else self._state,
                "mode": "bus",
                "fault": self._fault,
                "sources": [one.copy() for one in self.sources],
                "buses": [one.copy() for one in self.buses],
                "products": self.products,
                "product": self.product,
                "views": self.views,
                "last": self._last,
                "sequence": self._sequence,
            }

    def trigger(self, part_number: str, product: str, trigger_id: int) -> None:
        began = self._next(part_number, product, trigger_id)

        def work() -> None:
            self.be("busy")
            self._inspect(began)
            self.be("ready")

        self._worker.submit(work)

    def acknowledge(self, by: Actor) -> None:
        self.acknowledged.append(by)
        with self._lock:
            self._fault = None

    def pause(self, by: Actor) -> None:  # noqa: ARG002
        self.be("paused")

    def resume(self, by: Actor) -> None:  # noqa: ARG002
        self.be("ready")

    def live(self, view: str) -> bytes | None:
        return self._live.get(view)

    # For tests

    def be(self, state: State) -> None:
        with self._lock:
            self._state = state

    def fail(self, code: FaultCode, text: str) -> None:
        with self._lock:
            self._fault = {"code": int(code), "name": code.name, "text": text, "since": now()}

    def show(self, view: str, jpeg: bytes) -> None:
        """Let this be the latest image of a view."""
        self._live[view] = jpeg

    def part(self, images: Images | None = None, *, part_number: str = "", reason: str | None = None) -> PartResult:
        """Inspect and store a part now; without images the next ones in the circle."""
        return self._worker.submit(self._inspect, self._next(part_number, "", 0), images, reason).result()

    def correct(self, result: PartResult) -> None:
        """Replace a stored part by one with another verdict."""
        self._service.store.correct_part(self._service.settings.service_id, self.name, result)
        with self._lock:
            self._last = result.to_json()

    def _next(self, part_number: str, product: str, trigger_id: int) -> Trigger:
        if product and product not in self.products:
            raise ConfigError(f"there is no product '{product}'")
        with self._lock:
            self._sequence += 1
            number = self._sequence
        return Trigger(number, time.time(), time.monotonic(), part_number, product or self.product, trigger_id, "api")

    def _inspect(self, trigger: Trigger, images: Images | None = None, reason: str | None = None) -> PartResult:
        images = self._images[(trigger.sequence - 1) % len(self._images)] if images is None else images
        found = {view: self._inspected(view, data) for view, data in images.items() if data is not None}
        views = tuple(
            PartView(
                view,
                one.row["id"],
                one.row["model"],
                one.row["identity"],
                one.row["score"],
                one.row["threshold"],
                one.row["verdict"],
                trigger.sequence,
                trigger.at,
            )
            for view, one in found.items()
        )
        regions = tuple(
            PartRegion(view, left, top, right - left, bottom - top, region["peak"] / one.row["threshold"])
            for view, one in found.items()
            for region in one.row["regions"]
            for left, top, right, bottom in [region["box"]]
        )
        missing = tuple(view for view in self.views if view not in found)
        verdict: PartVerdict = "anomalous" if any(one.verdict == "anomalous" for one in views) else "good"
        if reason is not None:
            verdict = "error"
        elif missing:
            verdict, reason = "incomplete", f"no image of: {', '.join(missing)}"
        score = max((one.relative for one in views), default=None)
        taken = time.monotonic() - trigger.monotonic
        result = PartResult(
            new_id(trigger.at),
            trigger,
            trigger.product,
            verdict,
            score,
            1.0,
            views,
            missing,
            regions,
            reason,
            trigger.at + taken,
            taken,
        )
        self._service.store_part(self.name, result)
        with self._lock:
            self._last = result.to_json()
        return result

    def _inspected(self, view: str, data: bytes) -> Inspected:
        async def ask() -> Inspected:
            model = self._service.models.named(self._model)
            with self._service.queue.place():
                return await self._service.inspect(model, data, f"{view}.png", details={"line": self.name})

        for one in self.sources:
            if one["view"] == view:
                one["frames"] += 1
        with Image.open(io.BytesIO(data)) as image:
            self._live[view] = encoded(image, "JPEG")
        return asyncio.run(ask())


def source(view: str) -> SourceFacts:
    """A source that works."""
    return {
        "name": f"camera-{view}",
        "view": view,
        "kind": "genicam",
        "state": "running",
        "since": now(),
        "reason": None,
        "frames": 0,
        "dropped": 0,
        "lost": 0,
        "late": 0,
        "reconnects": 0,
        "frames_per_second": 2.5,
    }


def result(at: float, sequence: int, verdict: PartVerdict = "good", **more: Any) -> PartResult:
    """A part without views, for tests of what is stored."""
    trigger = Trigger(sequence, at, 0.0, more.pop("part_number", ""), "washer", more.pop("trigger_id", 0), "modbus")
    facts = {"score": 0.5, "threshold": 1.0, "views": (), "missing": (), "regions": (), "reason": None, **more}
    return PartResult(new_id(at), trigger, "washer", verdict, answered=at + 0.2, seconds=0.2, **facts)


@contextmanager
def lined(
    service: Service, model: str, images: Sequence[Images], name: str = "L1", views: Sequence[str] = ("top",)
) -> Iterator[SmallLine]:
    """A line that runs together with a service until the end of the block."""
    line = SmallLine(service, model, images, name, views)
    service.line_view = line
    try:
        yield line
    finally:
        service.line_view = None
        line.close()
