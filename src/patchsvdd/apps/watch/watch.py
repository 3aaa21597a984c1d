"""The watch loop: scan the folder, inspect complete files, store and deliver the results."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from patchsvdd.apps.watch.command import Command
from patchsvdd.apps.watch.delivery import Channel, Delivery
from patchsvdd.apps.watch.outbox import waiting_by_channel
from patchsvdd.apps.watch.results_folder import Pictures, WatchResults
from patchsvdd.core.errors import ImageError
from patchsvdd.detector.followed_model import FollowedModel
from patchsvdd.images.watched_folder import Arrival, WatchedFolder, current_state, digest_of
from patchsvdd.report.rows import Row, error_row, inspection_row, timed
from patchsvdd.scoring.inspection import Inspection

Notify = Literal["anomalous", "all"]

AT_ONCE = {"cuda": 64, "cpu": 8}
"""Files per batch, by device; between batches, a replaced model is reloaded."""
SCAN_SHARE = 0.2
"""Maximum share of the time spent on scanning the folder."""
DELIVERY_GRACE = 10.0
"""Seconds that a stopping watch waits for a delivery in progress."""


@dataclass(frozen=True)
class WatchSettings:
    """How a folder is watched."""

    poll: float = 1.0
    """Minimum seconds between two scans of the folder."""
    patience: float = 30.0
    """Seconds for which a file that cannot be decoded is retried before it is recorded as unreadable."""
    pictures: Pictures = "all"
    notify: Notify = "anomalous"
    once: bool = False
    """Stop when no file is left, instead of waiting for more."""
    heartbeat: float = 60.0
    """Seconds between two status reports."""


@dataclass(frozen=True)
class Status:
    """State of a watch."""

    counts: dict[str, int]
    """Images by verdict, including those of earlier runs."""
    inspected: int
    """Images inspected in this run."""
    waiting: int
    """Files that wait, or are still being written."""
    undelivered: dict[str, int]
    """Channel → number of messages to deliver."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "images": sum(self.counts.values()),
            **self.counts,
            "inspected": self.inspected,
            "waiting": self.waiting,
            "undelivered": self.undelivered,
        }


class Watch:
    """Inspects images that arrive in a folder; all persistent state is in ``results``."""

    def __init__(
        self,
        model: FollowedModel,
        folder: WatchedFolder,
        results: WatchResults,
        settings: WatchSettings,
        channels: Sequence[Channel] = (),
        *,
        on_row: Callable[[Row], None] | None = None,
        on_note: Callable[[str], None] | None = None,
        on_status: Callable[[Status], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """``on_row`` is called with every row once it is on disk, ``on_note`` with messages for the user."""
        self.model, self.folder, self.results, self.settings = model, folder, results, settings
        self._on_row, self._on_status = on_row or (lambda _: None), on_status or (lambda _: None)
        self._note, self._should_stop = on_note or (lambda _: None), should_stop
        self._deliveries = [Delivery(channel, results.ledger.path, self._note) for channel in channels]
        self._counts = results.ledger.counts()
        self._inspected = self._waiting = 0
        self._problems: set[str] = set()

    def run(self) -> Status:
        """Watch until ``should_stop`` is true or, with ``once``, no file is left; returns the final state."""
        self._report_undeliverable()
        next_report = time.monotonic() + self.settings.heartbeat
        try:
            while not self._should_stop():
                if not self._round() and self.settings.once:
                    self._await_deliveries(self.settings.patience)
                    break
                if time.monotonic() >= next_report:
                    self._on_status(self.status())
                    next_report = time.monotonic() + self.settings.heartbeat
        finally:
            end = time.monotonic() + DELIVERY_GRACE
            for delivery in self._deliveries:
                delivery.stop(max(0.0, end - time.monotonic()))
        return self.status()

    def status(self) -> Status:
        """The current state."""
        return Status(dict(self._counts), self._inspected, self._waiting, waiting_by_channel(self.results.ledger.path))

    def _round(self) -> bool:
        """Scan the folder and inspect until the next scan is due; returns whether files are left."""
        start = time.monotonic()
        look = self.folder.look(self.results.ledger.is_done)
        now = time.monotonic()
        next_scan = now + max(self.settings.poll, (now - start) * (1 / SCAN_SHARE - 1))
        for problem in set(look.problems) - self._problems:
            self._note(f"{problem}; trying again")
        self._problems = set(look.problems)
        queue = deque(look.ready)
        while queue and time.monotonic() < next_scan and not self._should_stop():
            self._inspect_new([queue.popleft() for _ in range(min(len(queue), self._at_once))])
        self._waiting = len(queue) + look.settling
        if not queue and (look.settling or look.ready or not self.settings.once):
            self._sleep(next_scan)
        return bool(look.ready or look.settling)

    @property
    def _at_once(self) -> int:
        return AT_ONCE.get(self.model.detector.device.type, AT_ONCE["cpu"])

    def _inspect_new(self, arrivals: Sequence[Arrival]) -> None:
        """Inspect the files that are new; changed files come back with the next scan."""
        new: dict[str, tuple[Arrival, str]] = {}
        for arrival in arrivals:
            try:
                digest = digest_of(arrival)
                if digest is None:
                    continue
                if self.results.ledger.recognise(arrival, digest, self.folder.holds):
                    self.folder.done(arrival)
                else:
                    new[str(arrival.path)] = arrival, digest
            except OSError as error:  # the share is not mounted, or access is denied: the image may be fine
                self._put_off(arrival, f"cannot be read ({error.strerror or error})")
        if new:
            self._inspect(new)
            self.results.sync()

    def _inspect(self, new: dict[str, tuple[Arrival, str]]) -> None:
        """Inspect the files ``new`` (path → file and digest) and remove them from it one by one."""
        detector = self.model.refresh()
        failures: list[ImageError] = []
        try:
            for inspection, seconds in timed(detector.inspect_many(list(new), on_error=failures.append)):
                arrival, digest = new.pop(inspection.name)
                self._record(inspection, arrival, digest, detector.identity, seconds)
                if self._should_stop():
                    return
        except (RuntimeError, MemoryError) as error:  # an image that is too large must not stop the others
            if not isinstance(error, MemoryError) and not re.search("(not enough|out of) memory", str(error)):
                raise
            if len(new) == 1:
                [(arrival, _)] = new.values()
                self._put_off(arrival, f"does not fit in this machine's memory ({error})")
                return
        for failure in failures:
            if failure.name in new:
                arrival, digest = new.pop(failure.name)
                self._failed(arrival, digest, failure.reason)
        for name, remaining in new.items():
            self._inspect({name: remaining})

    def _record(self, inspection: Inspection, arrival: Arrival, digest: str, model: str | None, seconds: float) -> None:
        """Store a result, unless the file was changed while it was read."""
        if current_state(arrival) == "changed":
            return
        drawn = self.settings.pictures == "all" or (self.settings.pictures == "anomalous" and inspection.is_anomalous)
        overlay = self.results.draw(inspection, arrival, digest) if drawn else None
        origin = _origin(arrival, digest, model)
        self._add(arrival, digest, inspection_row(inspection, **origin, seconds=seconds, overlay=overlay))

    def _failed(self, arrival: Arrival, digest: str, reason: str) -> None:
        """Schedule a retry of a file that cannot be decoded, or record it as unreadable."""
        if current_state(arrival) != "same":
            return
        if self.folder.later(arrival) >= self.settings.patience:
            origin = _origin(arrival, digest, self.model.detector.identity)
            self._add(arrival, digest, error_row(reason, **origin))

    def _add(self, arrival: Arrival, digest: str, row: Row) -> None:
        row = self.results.add(arrival, digest, row, self._channels(row))
        self.folder.done(arrival)
        self._counts["unreadable" if "error" in row else row["verdict"]] += 1
        self._inspected += 1
        for delivery in self._deliveries:
            delivery.wake()
        self._on_row(row)

    def _channels(self, row: Row) -> list[str]:
        """Names of the channels that a row is delivered to."""
        names = [delivery.channel.name for delivery in self._deliveries]
        if row.get("is_anomalous"):
            return names
        return [name for name in names if name != Command.name] if self.settings.notify == "all" else []

    def _put_off(self, arrival: Arrival, reason: str) -> None:
        """Schedule a retry of a file that cannot be read, without a limit."""
        failing = self.folder.later(arrival)
        if failing == 0:
            self._note(f"{arrival.name} {reason}; trying again")
        elif self.settings.once and failing >= self.settings.patience:
            self.folder.done(arrival)  # only in this run: the ledger does not contain it

    def _report_undeliverable(self) -> None:
        """Report messages of earlier runs for channels that this run does not have."""
        channels = {delivery.channel.name for delivery in self._deliveries}
        for channel, count in waiting_by_channel(self.results.ledger.path).items():
            if channel not in channels:
                self._note(f"{count} messages of earlier runs wait for a {channel}, which this run does not have")

    def _await_deliveries(self, seconds: float) -> None:
        channels = {delivery.channel.name for delivery in self._deliveries}
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._should_stop():
            if not channels & waiting_by_channel(self.results.ledger.path).keys():
                return
            time.sleep(0.05)

    def _sleep(self, until: float) -> None:
        """Wait in short steps, because a signal only sets a flag."""
        while not self._should_stop() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))


def _origin(arrival: Arrival, digest: str, model: str | None) -> Row:
    """The part of a row that names the file and the model."""
    file = {"bytes": arrival.state.size, "modified_ns": arrival.state.modified_ns, "sha256": digest}
    return {"image": arrival.name, "path": str(arrival.path), "model": model, "file": file}
