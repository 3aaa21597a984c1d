"""Checks of the served models with their golden images: when a model is loaded, at the start of a shift, on request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import AuditStore, Record
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.hidden_paths import HiddenPaths
from patchsvdd.apps.serve.inspection_queue import InspectionQueue
from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.settings import GoldenMode
from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.detector.base import Detector
from patchsvdd.detector.golden_images import GoldenCheck, check_golden_images

LOG = logging.getLogger("patchsvdd.apps.serve")
WAIT_SECONDS = 600.0
"""How long a check waits for its turn."""
EVERY = 20.0
"""Seconds between two looks at the clock."""


class GoldenChecks:
    """The last check of each model, and what follows from it."""

    def __init__(
        self, mode: GoldenMode, shift_starts: Sequence[str], store: AuditStore, actor: Actor, paths: HiddenPaths
    ) -> None:
        self.mode: GoldenMode = mode
        self._starts = tuple(shift_starts)
        self._store, self._actor, self._paths = store, actor, paths
        self._last: dict[str, GoldenCheck] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def check(
        self, name: str, folders: Sequence[Path], detector: Detector, reason: str, by: Actor | None = None
    ) -> GoldenCheck:
        """Check a model with the golden images of its folders and keep the result.

        ``reason`` says why it is checked now: loaded, shift, request, switched or rolled back.
        """
        return self.keep(name, self.examine(folders, detector), reason, by)

    def examine(self, folders: Sequence[Path], detector: Detector) -> GoldenCheck:
        """Check a model with the golden images of folders; the result is not kept."""
        try:
            checks = [check_golden_images(folder, detector) for folder in folders]
        except (PatchSVDDError, OSError) as error:
            said = self._paths.hide(str(error))
            return GoldenCheck(detector.identity or "", time.time(), (), f"the check itself failed: {said}")
        results = tuple(result for check in checks for result in check.results)
        damage = next((check.damage for check in checks if check.damage is not None), None)
        return GoldenCheck(checks[0].identity, checks[0].at, results, damage)

    def keep(self, name: str, found: GoldenCheck, reason: str, by: Actor | None = None) -> GoldenCheck:
        """Keep the result of a check. Without golden images there is nothing to check, and no result is kept."""
        if not found.results and found.damage is None:
            self._last.pop(name, None)
            return found
        self._last[name] = found
        if found.problem is not None:
            LOG.error("the model '%s' failed its check: %s", name, found.problem)
        facts: dict[str, Any] = {"passed": found.problem is None, "problem": found.problem, "identity": found.identity}
        facts |= {"images": len(found.results), "reason": reason}
        self._store.record(Record(by or self._actor, "model.checked", name, "model", name, facts))
        return found

    def check_between(
        self,
        model: ServedModel,
        folders: Sequence[Path],
        queue: InspectionQueue,
        reason: str,
        by: Actor | None = None,
    ) -> GoldenCheck:
        """Check a served model between inspections; waits for the result."""

        def work() -> GoldenCheck:
            return self.check(model.name, folders, model.detector, reason, by)

        return queue.compute(model, work, time.monotonic() + WAIT_SECONDS).result()

    def failed(self, name: str) -> str | None:
        """Why the last check of a model failed; None if it passed."""
        found = self._last.get(name)
        return None if found is None else found.problem

    def is_blocked(self, name: str) -> bool:
        """Whether a model gives no verdicts now."""
        return self.mode == "block" and self.failed(name) is not None

    def require(self, name: str) -> None:
        """Raise Problem if a model gives no verdicts now."""
        if self.is_blocked(name):
            words = f"the model '{name}' failed its check and gives no verdicts: {self.failed(name)}"
            raise Problem("conflict", f"{words}. Improve the model or correct its golden images, then check it again")

    def answer(self, name: str) -> dict[str, Any] | None:
        """The last check of a model for a response; None if it has no golden images."""
        found = self._last.get(name)
        return None if found is None else {**found.to_json(), "blocked": self.is_blocked(name)}

    def follow_shifts(self, check_all: Callable[[], None]) -> None:
        """Call ``check_all`` at the start of each shift from now on, in a thread."""
        if self._starts:
            self._thread = threading.Thread(target=self._follow, args=(check_all,), name="golden", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop following the shifts."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, check_all: Callable[[], None]) -> None:
        seen = datetime.now()
        while not self._stopped.wait(EVERY):
            now = datetime.now()
            if shift_began(self._starts, seen, now):
                try:
                    check_all()
                except (Problem, PatchSVDDError, StoreUnavailable, OSError) as error:
                    LOG.error("the check at the start of the shift failed: %s", error)
                except Exception:  # this thread must outlive any error
                    LOG.exception("golden images")
            seen = now


def shift_began(starts: Sequence[str], seen: datetime, now: datetime) -> bool:
    """Whether one of the local times (HH:MM) lies after ``seen`` and not after ``now``."""
    days = {seen.date() + timedelta(days=back) for back in range(max(0, (now.date() - seen.date()).days) + 1)}
    moments = [datetime.combine(day, datetime.strptime(start, "%H:%M").time()) for day in days for start in starts]
    return any(seen < moment <= now for moment in moments)
