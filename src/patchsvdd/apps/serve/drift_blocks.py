"""Drift of a served model: tests of its last two blocks of stored inspections."""

from __future__ import annotations

from dataclasses import dataclass

from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.apps.serve.store import Store
from patchsvdd.detector.drift import RATE, Change, DriftTest, drift_test


@dataclass(frozen=True)
class Drift:
    """Tests of the last two blocks of inspections."""

    size: int
    first: int
    """Position of the current block's first inspection."""
    current: DriftTest
    previous: DriftTest
    whole: bool
    """False if the first inspections of the current block were deleted; the block is then not tested."""

    @classmethod
    def of(cls, model: ServedModel, store: Store, size: int) -> Drift:
        """Test inspections by the current version of a model, in blocks of ``size``, counted from its first.

        Blocks never move, so repeated requests test the same blocks: each raises a false alarm with probability RATE at
        most. A block whose first inspections were deleted is not tested, because the rest of it would be a different
        test.
        """
        first, rows = store.last_block(model.name, model.identity, size)
        previous, current = drift_test(model.detector, RATE), drift_test(model.detector, RATE)
        kept = {row["position"] for row in rows}
        for test, start in ((previous, first - size), (current, first)):
            for row in rows if start in kept else ():
                if start <= row["position"] < start + size:
                    test.add(row["id"], row["traits"])
        return cls(size, first, current, previous, whole=not rows or first in kept)

    @property
    def changes(self) -> list[tuple[str, Change]]:
        """("current" or "previous", change) for each statistic that changed; the current block takes precedence."""
        changes = {name: ("previous", change) for name, change in self.previous.changes.items()}
        changes |= {name: ("current", change) for name, change in self.current.changes.items()}
        return list(changes.values())
