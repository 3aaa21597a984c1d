"""The line: triggers and images in, one stored verdict per part out."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from patchsvdd.apps.line.frame_queue import FrameQueue
from patchsvdd.apps.line.handshake import Handshake
from patchsvdd.apps.line.inspector import Inspected, InspectionFailed, Inspector, StoreFailed
from patchsvdd.apps.line.line_file import ONLY, LineSettings
from patchsvdd.apps.line.part_assembly import OpenPart, PartAssembly
from patchsvdd.apps.line.part_storage import RETRY, PartStorage
from patchsvdd.apps.line.parts import PartRegion, PartResult, PartView, Trigger
from patchsvdd.apps.line.signals import Fault, FaultCode
from patchsvdd.apps.line.sources.folder import FolderSource
from patchsvdd.apps.line.sources.source import Frame
from patchsvdd.apps.line.sources.supervisor import SupervisedSource
from patchsvdd.apps.line.verdicts import Judgement, PartRule

TICK = 0.1
"""Seconds between two looks at time-outs and faults."""
WAIT = 0.005
"""Seconds that the line waits for an image before it looks at everything else."""
NOTE_EVERY = 10.0
"""Seconds between two notes about images that came too late."""
MISSES = 2
"""Parts in a row without an image after which a source is opened again."""
IN_PROGRESS = 4
"""Views per source that are inspected at a time; more images wait in the queue."""


@dataclass
class _Part:
    """A part whose views are being inspected."""

    trigger: Trigger
    product: str | None
    """None until an image shows which one it is."""
    open: OpenPart
    answers: dict[str, Future[Inspected]] = field(default_factory=dict)
    waiting: list[Frame] = field(default_factory=list)
    """Images that wait until the product is known."""


class Line:
    """Triggers sources, groups their images into parts, has them inspected, stores the verdict and shows it.

    One thread does this work. Another one watches time-outs and faults, so that a database that hangs is noticed.
    """

    def __init__(
        self,
        settings: LineSettings,
        inspector: Inspector,
        rule: PartRule,
        sources: Mapping[str, SupervisedSource],
        frames: FrameQueue,
        on_event: Callable[[str], None],
        choose: Callable[[Frame], str | None] | None = None,
    ) -> None:
        """``choose`` returns the product in an image; None if it is none of them."""
        self.settings, self.sources, self.frames = settings, dict(sources), frames
        self.handshake = Handshake(self, settings.parts.timeout, on_event=on_event)
        self.latest: dict[str, Frame] = {}
        """View → its latest image."""
        self.late = dict.fromkeys(settings.views, 0)
        """View → images that came after their part's deadline."""
        self.is_paused = False
        self._inspector, self._rule, self._note, self._choose = inspector, rule, on_event, choose
        self._assembly = PartAssembly(settings.parts.deadline)
        self._parts: dict[int, _Part] = {}
        self._triggers: queue.SimpleQueue[tuple[str, str, int, str, float, float]] = queue.SimpleQueue()
        self._storage = PartStorage(
            inspector, self.handshake, settings.parts.timeout if self.is_bus else None, self._forget_files, on_event
        )
        self._files: dict[int, list[Frame]] = {}
        """Part → its images that are files; they are done once the part is stored."""
        self._misses = dict.fromkeys(settings.views, 0)
        self._missed: dict[str, float] = {}
        """View → trigger of the last part that went without it, by ``time.monotonic``."""
        self._next_note = 0.0
        self._sequence = 0
        self._is_started = False
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name="line", daemon=True),
            threading.Thread(target=self._watch, name="line-clock", daemon=True),
        ]

    @property
    def is_bus(self) -> bool:
        """Whether a PLC or the API triggers; otherwise each image does."""
        return self.settings.parts.trigger == "bus"

    @property
    def sequence(self) -> int:
        """Number of the latest part."""
        return self._sequence

    @property
    def last_result(self) -> PartResult | None:
        """The latest part that was stored."""
        return self._storage.last

    def start(self) -> None:
        """Start the sources and the work."""
        for source in self.sources.values():
            source.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Finish the parts that are complete, and stop."""
        self.is_paused = True
        end = time.monotonic() + self.settings.parts.timeout
        while self._threads[0].is_alive() and (self._parts or not self._storage.is_empty) and time.monotonic() < end:
            time.sleep(0.02)
        self._stopped.set()
        for source in self.sources.values():
            source.close(5.0)
        self.frames.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(10)

    # What the bus, the API and the page ask for

    def start_part(self, part_number: str, product: str, trigger_id: int, by: str) -> None:
        """Begin a part; its result goes to the handshake."""
        self._triggers.put((part_number, product, trigger_id, by, time.time(), time.monotonic()))

    def pause(self) -> None:
        """Begin no more parts."""
        self.is_paused = True
        self._show_faults()

    def resume(self) -> None:
        """Begin parts again."""
        self.is_paused = False
        self._show_faults()

    # Time-outs and faults

    def faults(self) -> list[Fault]:
        """Why the line does not work at present, the most important first."""
        found = [] if self._is_started else [Fault(FaultCode.STARTING, "the line is starting")]
        if self._storage.problem is not None:
            found.append(Fault(FaultCode.STORE, self._storage.problem))
        found += self._inspector.faults()
        for view, source in self.sources.items():
            state = source.state()
            if state.state == "connecting" and state.reason is None:
                found.append(Fault(FaultCode.STARTING, f"{view} is being opened"))
            elif state.state not in ("running", "ended"):
                found.append(Fault(FaultCode.SOURCE, f"{view}: {state.reason or state.state}"))
        if self.is_paused:
            found.append(Fault(FaultCode.PAUSED, "the line is paused"))
        return found

    def _show_faults(self) -> None:
        self.handshake.block(self.faults())

    def _watch(self) -> None:
        while not self._stopped.wait(TICK):
            self._show_faults()
            self.handshake.tick()

    # The work

    def _work(self) -> None:
        while not self._stopped.is_set() and not self._is_started:
            self._restore()
        while not self._stopped.is_set():
            try:
                self._round()
            except Exception as error:  # noqa: BLE001  # the line goes on with the next part
                self._note(f"the line failed on a part and goes on: {error!r}")
                self._stopped.wait(TICK)

    def _restore(self) -> None:
        """Continue after the part that was stored last."""
        try:
            last = self._storage.restore()
        except StoreFailed as error:
            self._note(f"waiting for the database: {error}")
            self._stopped.wait(RETRY)
            return
        if last is not None:
            self._sequence = last.trigger.sequence
        self._is_started = True
        self._show_faults()

    def _round(self) -> None:
        while not self._triggers.empty():
            self._begin(*self._triggers.get())
        self._storage.store_waiting()
        if len(self._parts) < IN_PROGRESS:
            frame = self.frames.get(WAIT)
            if frame is not None:
                self._take(frame)
        else:
            self._stopped.wait(WAIT)
        for closed in self._assembly.closed(time.monotonic()):
            self._missed |= dict.fromkeys(closed.missing, closed.trigger.monotonic)
            for view in closed.missing:
                self.sources[view].flush()
            self._count_misses(closed)
        for number, part in list(self._parts.items()):
            if self._is_over(part):
                del self._parts[number]
                self._finish(part)

    def _begin(self, part_number: str, product: str, trigger_id: int, by: str, at: float, monotonic: float) -> None:
        """Begin a part that was triggered by the bus or the API."""
        last = self._storage.last_by(by)
        if trigger_id and last is not None and _repeats(last.trigger, part_number, trigger_id):
            self.handshake.answer(last)
            return
        self._sequence += 1
        trigger = Trigger(self._sequence, at, monotonic, part_number, product, trigger_id, by)
        if self._known(product) is None and (product or self._choose is None):
            products = ", ".join(one for one in self.settings.products if one) or "none; leave it empty"
            judged = Judgement("error", None, f"unknown product '{product}'; known: {products}")
            self._storage.add(self._result(trigger, product, judged, (), (), ()))
            return
        required = self._required(product)
        opened = self._assembly.begin(trigger, required)
        self._parts[trigger.sequence] = _Part(trigger, self._known(product), opened)
        for view in required:
            self.sources[view].trigger()

    def _known(self, product: str) -> str | None:
        return product if product in self.settings.products else None

    def _required(self, product: str) -> tuple[str, ...]:
        """The views that a part needs, as far as its product is known."""
        return self.settings.required(product) if product in self.settings.products else self.settings.views

    def _take(self, frame: Frame) -> None:
        """Add an image to its part and have it inspected."""
        self.latest[frame.source] = frame
        if not self.is_bus and self.is_paused:
            return
        opened = self._assembly.add(frame, None if self.is_bus else self._begin_with)
        if opened is None:
            self._unwanted(frame)
            return
        part = self._parts.get(opened.trigger.sequence)
        if part is None:
            part = self._parts[opened.trigger.sequence] = _Part(opened.trigger, self._known(ONLY), opened)
        if frame.data is not None:
            self._files.setdefault(part.trigger.sequence, []).append(frame)
        part.waiting.append(frame)
        if part.product is None and frame.source == self.settings.views[0]:
            self._find_product(part, frame)
        if part.product is not None:
            for waiting in part.waiting:
                self._inspect(part, part.product, waiting)
            part.waiting.clear()

    def _find_product(self, part: _Part, frame: Frame) -> None:
        """Find out which product a part is; a part that is none of them is an error."""
        assert self._choose is not None
        reason = "the image shows none of the known products"
        try:
            chosen = self._choose(frame)
        except InspectionFailed as error:
            chosen, reason = None, str(error)
        if chosen is not None:
            part.product, part.open.required = chosen, self.settings.required(chosen)
            return
        self._assembly.remove(part.open)
        del self._parts[part.trigger.sequence]
        part.waiting.clear()
        self._storage.add(self._result(part.trigger, "", Judgement("error", None, reason), (), (), ()))

    def _inspect(self, part: _Part, product: str, frame: Frame) -> None:
        model = self.settings.products[product].get(frame.source)
        if model is not None:
            remaining = part.trigger.monotonic + self.settings.parts.timeout - time.monotonic()
            part.answers[frame.source] = self._inspector.inspect(frame, model, part.trigger, max(0.01, remaining))

    def _begin_with(self, frame: Frame) -> tuple[Trigger, tuple[str, ...]]:
        """Begin a part with its first image."""
        self._sequence += 1
        trigger = Trigger(self._sequence, frame.captured, frame.arrived, frame.part or "", "", 0, "camera")
        return trigger, self._required(ONLY)

    def _count_misses(self, part: OpenPart) -> None:
        """Open a source again that gave no image for several parts in a row, although it seems to work."""
        for view in part.required:
            self._misses[view] = self._misses[view] + 1 if view in part.missing else 0
            if self._misses[view] >= MISSES:
                self._misses[view] = 0
                self.sources[view].reopen(f"no image for {MISSES} parts in a row")

    def _unwanted(self, frame: Frame) -> None:
        """Count an image that came after its part's deadline; others, of a camera that runs freely, are normal."""
        missed = self._missed.pop(frame.source, None)
        if missed is None or frame.arrived < missed:
            return
        self.late[frame.source] += 1
        if time.monotonic() >= self._next_note:
            self._next_note = time.monotonic() + NOTE_EVERY
            self._note(f"{frame.source}: image {frame.number} came after the deadline of its part")

    def _is_over(self, part: _Part) -> bool:
        """Whether nothing more is to be expected for a part."""
        now, since = time.monotonic(), part.trigger.monotonic
        if now >= since + self.settings.parts.timeout:
            return True
        arrived = not part.open.missing or now >= since + self.settings.parts.deadline
        return arrived and all(answer.done() for answer in part.answers.values())

    def _finish(self, part: _Part) -> None:
        """Judge a part and store the verdict."""
        views: list[PartView] = []
        regions: list[PartRegion] = []
        failures: list[str] = []
        for view, answer in sorted(part.answers.items(), key=lambda one: self.settings.views.index(one[0])):
            if not answer.done():
                failures.append(f"{view}: not inspected within the time-out")
                answer.cancel()
                continue
            try:
                found, above = answer.result()
            except (StoreFailed, InspectionFailed) as error:
                failures.append(f"{view}: {error}")
            else:
                views.append(found)
                regions += above
        regions.sort(key=lambda region: -region.peak)
        if part.product is None:
            reason = f"the view {self.settings.views[0]} shows which product it is, and did not arrive in time"
            judged = Judgement(self.settings.parts.incomplete, None, reason)
        else:
            judged = self._rule(part.product, views, part.open.missing)
        if failures and judged.verdict != "anomalous":
            judged = replace(judged, verdict="error", reason="; ".join(failures))
        self._storage.add(self._result(part.trigger, part.product or "", judged, views, part.open.missing, regions))

    def _result(
        self,
        trigger: Trigger,
        product: str,
        judged: Judgement,
        views: Sequence[PartView],
        missing: Sequence[str],
        regions: Sequence[PartRegion],
    ) -> PartResult:
        return PartResult(
            id=self._inspector.new_id(trigger.at),
            trigger=trigger,
            product=product,
            verdict=judged.verdict,
            score=judged.score,
            threshold=1.0,
            views=tuple(views),
            missing=tuple(missing),
            regions=tuple(regions),
            reason=judged.reason,
            answered=time.time(),
            seconds=time.monotonic() - trigger.monotonic,
        )

    def _forget_files(self, result: PartResult) -> None:
        """Let folders not give the files of a stored part again."""
        for frame in self._files.pop(result.trigger.sequence, ()):
            source = self.sources[frame.source].source
            if isinstance(source, FolderSource):
                source.done(frame)


def _repeats(last: Trigger, part_number: str, trigger_id: int) -> bool:
    """Whether a PLC that missed the last answer asks for it again."""
    return (last.trigger_id, last.part_number) == (trigger_id, part_number)
