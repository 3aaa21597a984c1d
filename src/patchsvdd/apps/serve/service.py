"""The service without HTTP: inspects and stores uploads, and runs learning and training as jobs."""

from __future__ import annotations

import asyncio
import io
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sqlalchemy.exc import IntegrityError

from patchsvdd.apps.line.parts import PartResult
from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_head_file import HeadFile
from patchsvdd.apps.serve.audit_store import Record
from patchsvdd.apps.serve.auth import Authenticator
from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.byte_budget import ByteBudget
from patchsvdd.apps.serve.candidates import Candidates
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.decoder_pool import Data, Decoded, Decoders, DecodingFailed
from patchsvdd.apps.serve.drift_blocks import Drift
from patchsvdd.apps.serve.golden_checks import GoldenChecks
from patchsvdd.apps.serve.hidden_paths import HiddenPaths
from patchsvdd.apps.serve.idempotency import Repeated, Request, Turns
from patchsvdd.apps.serve.inspection_queue import Computed, InspectionQueue
from patchsvdd.apps.serve.inspection_row import inspection_row
from patchsvdd.apps.serve.line_heat import DefectHeat
from patchsvdd.apps.serve.line_metrics import LineMetrics
from patchsvdd.apps.serve.line_view import LineView
from patchsvdd.apps.serve.memory_return import MemoryReturn
from patchsvdd.apps.serve.model_jobs import ModelJobs
from patchsvdd.apps.serve.model_registry import ModelRegistry, ServedModel, private_copy, trained_models
from patchsvdd.apps.serve.overview_store import Counter
from patchsvdd.apps.serve.pictures import HungUp, Picture, Pictures, nearest_side
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import FORMATS, MapKind, clean_name, map_bytes
from patchsvdd.apps.serve.retention import RetentionTask
from patchsvdd.apps.serve.samples import Samples
from patchsvdd.apps.serve.service_lock import ServiceLock
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.shadow import Shadow
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.telemetry import Telemetry
from patchsvdd.core.errors import ConfigError, ImageError, ModelError, OutputError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.golden_images import GoldenCheck
from patchsvdd.images.image_set import loaded_image
from patchsvdd.report.rows import npy_bytes
from patchsvdd.scoring.explanation import Explanation
from patchsvdd.scoring.inspection import Inspection

LOG = logging.getLogger("patchsvdd.apps.serve")
T = TypeVar("T")

THREADS = 16


@dataclass(frozen=True)
class Inspected:
    """A stored inspection, with data that its row does not contain."""

    row: Row
    inspection: Inspection
    explanation: Explanation | None


class Service:
    """The application behind the HTTP routes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.telemetry = Telemetry()
        self.store = Store(settings.url)
        self.guard = Authenticator(self.store, settings, self.telemetry)
        if settings.needs_key and not self.store.anyone():
            self.store.close()
            store = " and the same `store`" if settings.store is not None else ""
            raise ConfigError(
                f"a service that requires sign-in needs a user or an API key, but there is none; add one with "
                f"`patchsvdd user add` or `patchsvdd key add`, `role=admin`, `data={settings.data}`{store}"
            )
        self.blobs = Blobs(settings.data / "pictures")
        self._owner = settings.service_id
        self.actor = Actor("service", "service", self._owner)
        """The service itself, in the audit chain."""
        self._first_seconds = 0.1
        shutil.rmtree(settings.data / "loading", ignore_errors=True)  # left by a service that was killed
        self.paths = HiddenPaths(settings.data, settings.models)
        self.golden = GoldenChecks(settings.golden_check, settings.shift_starts, self.store, self.actor, self.paths)
        self.models = ModelRegistry(
            self._load,
            LOG.info,
            self.paths.hide,
            check=lambda name, folder, detector: self.golden.check(
                name, self.models.with_home(name, folder), detector, "loaded"
            ),
            live_folders=self.store.live_folders(settings.service_id),
        )
        try:
            self.models.open(settings.models, trained_models(settings.trained))
            self._lock = ServiceLock(self.store.url, settings.service_id)
        except BaseException:
            self.store.close()
            raise
        self.models.on_reload = self._replaced
        self.audit = HeadFile(settings.data, self.store)
        self.audit.advance()
        self.store.on_audit = self.audit.advance
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="request")
        limits = settings.limits
        self.decoders = Decoders(limits.decoders, limits.decode_seconds, limits.pixels)
        self._decoding = ThreadPoolExecutor(limits.decoders, thread_name_prefix="decoding")
        self.pictures = Pictures(self.store, self.blobs, limits, self._owner)
        self.queue = InspectionQueue(limits.queue, limits.batch_size, self.telemetry, self._first_seconds)
        self.arriving = ByteBudget(limits.arriving_bytes, self.telemetry.refused.labels("memory").inc)
        self.turns = Turns()
        self._memory = MemoryReturn(lambda: self.is_idle)
        self.model_jobs = ModelJobs(settings, self.store, self.blobs, self.models, self.paths, self._lock.is_held)
        self.jobs = self.model_jobs.jobs
        self.keeper = RetentionTask(self.store, self.blobs, settings.retention, self._owner)
        self.counter = Counter(self.store)
        self.samples = Samples(self.store, self.counter)
        self.shadow = Shadow(
            self.store, self.blobs, self.models, settings, self.paths, self.telemetry, lambda: self.is_idle
        )
        self.candidates = Candidates(self.store, self.models, self.golden, self.shadow, self._owner)
        self.heat = DefectHeat(self.store, self.blobs)
        self.line_view: LineView | None = None
        """The line that runs together with the service; set by the caller that starts both."""
        self.telemetry.registry.register(LineMetrics(lambda: self.line_view.state() if self.line_view else None))

    @property
    def is_idle(self) -> bool:
        """Whether no image is arriving, waiting or being inspected."""
        return self.queue.in_flight == 0 and self.arriving.used == 0

    def start(self) -> None:
        """Start the background work."""
        self.models.follow(self.settings.trained)
        self.jobs.start()
        self.keeper.start()
        self._memory.start()
        self.golden.follow_shifts(self._check_all)
        self.candidates.start()
        self.shadow.start()

    def close(self) -> None:
        """Finish accepted work and stop."""
        self.shadow.close()
        self.jobs.close()
        self.golden.close()
        self.keeper.close()
        self._memory.close()
        self.models.close()
        self.queue.close()
        self.pictures.close()
        for threads in (self._decoding, self._threads):
            threads.shutdown()
        self.guard.close()
        self.decoders.close()
        self.store.close()
        self._lock.close()

    def _load(self, folder: Path) -> PatchSVDD:
        options: dict[str, Any] = {"engine": self.settings.engine, "search": self.settings.search}
        with private_copy(folder, self.settings.data / "loading") as copy:
            try:
                detector = PatchSVDD.load(copy, self.settings.device, **options)
            except ModelError as error:
                raise ModelError(str(error).replace(str(copy), str(folder))) from None
            grey = np.full((*detector.image_size, 3), 128, np.uint8)
            detector.inspect(grey)  # selects engines, warms caches
            start = time.monotonic()
            detector.inspect(grey)
            self._first_seconds = max(self._first_seconds, time.monotonic() - start)
        return detector

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Run work in a thread, so that it does not block other requests."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args))

    # Inspecting

    def time_limit(self, seconds: float | None) -> float:
        """Seconds within which an image is answered, if the client asks for ``seconds``."""
        limit = self.settings.limits.deadline
        return limit if seconds is None else min(seconds, limit)

    async def inspect(
        self,
        model: ServedModel,
        data: Data,
        name: str,
        seconds: float | None = None,
        *,
        explain: bool = False,
        details: Mapping[str, str | None] | None = None,
        request: Request | None = None,
    ) -> Inspected:
        """Inspect an upload; the result is on disk before this returns.

        ``details`` are columns of the inspection, such as a serial number. Raises Repeated if ``request`` was answered
        by another service in the meantime.
        """
        self.golden.require(model.name)
        start = time.monotonic()
        deadline = start + self.time_limit(seconds)
        name = clean_name(name)
        decoded = await self._decoded(model, data, name, deadline)
        decode_seconds = time.monotonic() - start
        self.telemetry.stage_seconds.labels("decode").observe(decode_seconds)
        image = loaded_image(decoded.pixels, decoded.original_size, model.detector.config, name)
        computed: Computed = await asyncio.wrap_future(self.queue.inspect(model, image, deadline))
        explanation = None
        if explain:
            future = self.queue.compute(model, computed.inspection.explain, deadline)
            explanation = await asyncio.wrap_future(future)
        timings = {"decode": decode_seconds, "wait": computed.waited, "compute": computed.seconds}
        timings = {stage: round(value, 6) for stage, value in timings.items()} | {"batch": computed.batch}
        columns = {**(details or {}), "timings": timings}
        row = await self._stored(model, data, decoded, computed.inspection, columns, request)
        self.queue.done(start)
        self.shadow.offer(row)
        return Inspected(row, computed.inspection, explanation)

    async def _decoded(
        self, model: ServedModel, data: Data, name: str, deadline: float, *, previews: bool = True
    ) -> Decoded:
        loop = asyncio.get_running_loop()
        remaining = deadline - time.monotonic()
        try:
            async with asyncio.timeout(remaining):
                work = partial(self.decoders.decode, data, model.detector.config, name, previews=previews)
                return await loop.run_in_executor(self._decoding, work)
        except TimeoutError:
            self.telemetry.refused.labels("deadline").inc()
            detail = "other images took too long; send fewer at a time, or allow more time"
            raise Problem("deadline-exceeded", detail, retry_after=self.queue.expected_wait) from None
        except DecodingFailed as error:
            self.telemetry.refused.labels("decoding").inc()
            raise Problem("invalid-image", f"{name}: {error}") from None
        except ImageError:
            self.telemetry.refused.labels("image").inc()
            raise

    async def _stored(
        self,
        model: ServedModel,
        data: Data,
        decoded: Decoded,
        inspection: Inspection,
        columns: dict[str, Any],
        request: Request | None,
    ) -> Row:
        start = time.monotonic()

        def write_files() -> Row:
            npy = npy_bytes(inspection.anomaly_map)
            picture = self.blobs.put(data)
            return {
                **inspection_row(model, inspection, decoded),
                **columns,
                "owner": self._owner,
                "picture": picture,
                "media_type": FORMATS[decoded.format][0],
                "picture_bytes": len(data),
                "map": self.blobs.put(npy),
                "map_bytes": len(npy),
                **self.pictures.write_previews(picture, decoded.previews),
            }

        try:
            row = await self.aside(write_files)
            also = request.write(row["id"]) if request is not None else None
            await asyncio.wrap_future(self.store.insert_inspection(row, also))
        except IntegrityError:
            if request is None:
                raise
            raise Repeated from None
        except (OutputError, StoreUnavailable) as error:
            self.telemetry.refused.labels("store").inc()
            LOG.error("an inspection could not be stored: %s", error)
            detail = "the image was inspected, but the result could not be stored; please retry"
            raise Problem("store-unavailable", detail, retry_after=5) from None
        seconds = time.monotonic() - start
        self.telemetry.stage_seconds.labels("store").observe(seconds)
        self.telemetry.inspections.labels(model.name, row["verdict"]).inc()
        if row["threshold"]:
            self.telemetry.scores.labels(model.name).observe(row["score"] / row["threshold"])
        return row

    def store_part(self, line: str, result: PartResult) -> None:
        """Store a part of the service's line; it is on disk when this returns.

        Raises StoreUnavailable, and RepeatedSequence if the line has stored another part under its sequence number.
        """
        self.store.insert_part(self._owner, line, result).result()
        self.telemetry.parts.labels(line, result.verdict).inc()
        self.telemetry.part_seconds.labels(line).observe(result.seconds)

    # Stored inspections

    async def picture(self, row: Row, side: int | None, hung_up: HungUp | None = None) -> Picture:
        """An inspection's image and its media type, at most ``side`` pixels long if given (but no less than 256).

        As it was sent if browsers can display it, otherwise as a JPEG. ``hung_up`` returns when nobody waits for it.
        """
        side = nearest_side(side)
        found = await self.aside(self.pictures.read, row, side)
        return found if found is not None else await self.pictures.decoded(row, side, hung_up)

    def map(self, row: Row, kind: MapKind) -> bytes:
        """The anomaly map as a .npy array, or as a transparent PNG to lay over the image."""
        data = self.blobs.get(row["map"]) if row["map"] else None
        if data is None:
            raise self.pictures.missing(row, "map")
        if kind == "npy":
            return data
        threshold = float("inf") if row["threshold"] is None else row["threshold"]
        return map_bytes(np.load(io.BytesIO(data), allow_pickle=False), kind, threshold)

    async def explanation(self, row: Row) -> Explanation:
        """Explain a stored inspection with the current model."""
        model = self.models.named(row["model"])
        data = await self.aside(self.blobs.get, row["picture"]) if row["picture"] else None
        if data is None:
            raise self.pictures.missing(row, "picture")
        deadline = time.monotonic() + self.settings.limits.deadline
        decoded = await self._decoded(model, data, row["name"], deadline, previews=False)
        image = loaded_image(decoded.pixels, decoded.original_size, model.detector.config, row["name"])

        def work() -> Explanation:
            return model.detector.inspect_loaded([image])[0].explain()

        return await asyncio.wrap_future(self.queue.compute(model, work, deadline))

    def drift(self, name: str, size: int) -> Drift:
        """Test whether inspections by the current version of a model resemble its calibration images."""
        return Drift.of(self.models.named(name), self.store, size)

    def ready(self) -> list[str]:
        """Problems that keep the service from working; empty if it is ready."""
        problems = []
        models = self.models.all()
        if not models:
            problems.append("no model is served")
        elif all(self.golden.is_blocked(model.name) for model in models):
            problems.append("every model failed the check with its golden images and gives no verdicts")
        try:
            self.store.check()
        except StoreUnavailable:
            problems.append("the database does not answer")
        return problems

    def warnings(self) -> list[str]:
        """What is wrong without keeping the service from working."""
        found = [f"the model '{name}' cannot be loaded and is not served" for name, _ in self.models.unavailable()]
        failed = [model.name for model in self.models.all() if self.golden.failed(model.name) is not None]
        found += [f"the model '{name}' failed the check with its golden images" for name in failed]
        return found if self.audit.trouble is None else [*found, self.audit.trouble]

    # Golden images

    def check_golden(self, name: str, by: Actor | None = None, reason: str = "request") -> GoldenCheck:
        """Check a model with its golden images, between inspections; waits for the result."""
        model = self.models.named(name)
        return self.golden.check_between(model, self.models.with_home(name, model.folder), self.queue, reason, by)

    def _check_all(self) -> None:
        for model in self.models.all():
            self.check_golden(model.name, reason="shift")

    def _replaced(self, name: str) -> None:
        self.telemetry.reloads.labels(name).inc()
        facts = {"identity": self.models[name].identity}
        self.store.record(Record(self.actor, "model.replaced", name, "model", name, facts))
