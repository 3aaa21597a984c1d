"""Deliver results: one thread per channel works through its outbox, however long the receiver is down.

Inspection never waits for deliveries. Each message is delivered at least once: if the process is killed between a
delivery and its record, the message is sent again under the same id. After a failure the whole channel pauses, longer
each time. A message that the receiver refuses is retried later and does not delay others.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from patchsvdd.apps.watch.outbox import Message, Outbox
from patchsvdd.core.errors import OutputError

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds between attempts."""


class NotDelivered(Exception):
    """A message that was not delivered, and the ``reason``."""

    def __init__(self, reason: str, *, tries: int | None = None, wait: float = 0.0) -> None:
        """``tries``: attempts before giving up on a message that the receiver answers and refuses; None for no
        limit. ``wait``: seconds that the receiver requests."""
        super().__init__(reason)
        self.reason, self.tries, self.wait = reason, tries, wait


class Channel(Protocol):
    """A receiver of messages."""

    name: str
    """Its name in the outbox."""

    def deliver(self, message: Message) -> None:
        """Return when the receiver has the message; raise NotDelivered otherwise."""

    def close(self) -> None:
        """Close connections that ``deliver`` opened."""


class Delivery:
    """A thread that delivers the messages of one channel as they arrive."""

    def __init__(
        self,
        channel: Channel,
        ledger: Path,
        on_note: Callable[[str], None] | None = None,
        *,
        first_pause: float = FIRST_PAUSE,
        longest_pause: float = LONGEST_PAUSE,
    ) -> None:
        """``on_note`` is called, in the thread, with failures and when deliveries work again."""
        self.channel = channel
        self._ledger = ledger
        self._note = on_note or (lambda _: None)
        self._first, self._longest = first_pause, longest_pause
        self._put_off: dict[int, float] = {}  # message number → time of the next attempt
        self._failures = 0
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"delivery {channel.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for new messages now."""
        self._wake.set()

    def stop(self, seconds: float) -> None:
        """Start no further delivery; wait up to this many seconds for the current one."""
        self._stop.set()
        self._wake.set()
        self._thread.join(seconds)

    def _work(self) -> None:
        outbox = Outbox(self._ledger, self.channel.name)
        try:
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    pause = self._next(outbox)
                except OutputError as error:  # for example, the ledger is on a full disk
                    self._note(f"{self.channel.name}: {error}")
                    pause = self._longest
                if pause > 0:
                    self._wait(pause)
        finally:
            self.channel.close()
            outbox.close()

    def _wait(self, seconds: float) -> None:
        """Wait; new messages end the wait only while the receiver answers."""
        (self._stop if self._failures else self._wake).wait(seconds)

    def _next(self, outbox: Outbox) -> float:
        """Deliver one message; returns the seconds to wait before the next one."""
        now = time.monotonic()
        self._put_off = {number: until for number, until in self._put_off.items() if until > now}
        message = outbox.next(self._put_off)
        if message is None:
            return min(self._put_off.values(), default=now + 60.0) - now
        try:
            self.channel.deliver(message)
        except NotDelivered as failure:
            return self._failed(outbox, message, failure)
        outbox.delivered(message)
        if self._failures:
            self._note(f"{self.channel.name}: delivering again")
        self._failures = 0
        return 0.0

    def _failed(self, outbox: Outbox, message: Message, failure: NotDelivered) -> float:
        where = f"{self.channel.name}: {message.row['image']} (delivery {message.id})"
        if failure.tries is not None and message.attempts + 1 >= failure.tries:
            outbox.refused(message, failure.reason)
            self._note(f"{where} given up: {failure.reason}")
            return 0.0
        outbox.failed(message)
        pause = max(self._pause(message.attempts), failure.wait)
        self._put_off[message.number] = time.monotonic() + pause
        if failure.tries is not None:
            self._note(f"{where} refused: {failure.reason}; trying again in {pause:.0f} s")
            return 0.0
        pause = max(self._pause(self._failures), failure.wait)
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:  # the first, second, fourth, … in a row
            self._note(f"{where} not delivered: {failure.reason}; trying again in {pause:.0f} s")
        return pause

    def _pause(self, failures: int) -> float:
        """Seconds that double up to a limit, with random jitter so that many watches do not retry at once."""
        return min(self._longest, self._first * 2.0 ** min(failures, 30)) * random.uniform(0.5, 1.0)
