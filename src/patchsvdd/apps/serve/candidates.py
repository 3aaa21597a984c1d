"""Candidates: which model inspects in the shadow of another, the switch to it, and the way back.

The database says which folder is served under a name. A switch is written first and takes effect then, by replacing one
entry of the registry: a request finishes with the model that it began with. A service that ended between the two finds
the switch in the database at its start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import Record
from patchsvdd.apps.serve.golden_checks import GoldenChecks
from patchsvdd.apps.serve.ids import new_id
from patchsvdd.apps.serve.job_store import CHANGING, UNFINISHED
from patchsvdd.apps.serve.model_registry import ModelRegistry, ServedModel
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.shadow import BACKLOG, Shadow
from patchsvdd.apps.serve.shadow_store import Row
from patchsvdd.apps.serve.store import Store
from patchsvdd.core.errors import PatchSVDDError
from patchsvdd.detector.followed_model import FollowedModel

MOST = 4
"""Candidates of a service at most: each has a process with a model in memory."""


class Candidates:
    """Sets and removes candidates, switches to them and rolls back."""

    def __init__(self, store: Store, models: ModelRegistry, golden: GoldenChecks, shadow: Shadow, owner: str) -> None:
        self._store, self._models, self._golden, self._shadow, self._owner = store, models, golden, shadow, owner
        self._changing = threading.Lock()

    def start(self) -> None:
        """Let the stored candidates inspect."""
        for row in self._store.candidates(self._owner):
            self._shadow.follow(row["model"], row["candidate"])

    # What is so

    def of(self, name: str) -> Row:
        """The candidate of a model; raises Problem if it has none."""
        row = self._store.candidate(self._owner, name)
        if row is None:
            raise Problem("conflict", f"the model '{name}' has no candidate; set one first")
        return row

    def state(self, name: str) -> dict[str, Any]:
        """What is live under a name, its candidate, and what a roll back would restore."""
        self._require_known(name)
        row, last = self._store.candidate(self._owner, name), self._store.last_switch(self._owner, name)
        live = self._models.get(name)
        return {"live": live, "candidate": row, "last": last, "situation": self._shadow.situation(name)}

    def pair(self, name: str) -> tuple[ServedModel, ServedModel]:
        """The live model of a name and its candidate; raises Problem if there is none, or it is not served."""
        return self._models.named(name), self._models.named(self.of(name)["candidate"])

    def comparison(self, name: str) -> dict[str, Any]:
        """What the present versions of a model and its candidate said about the same images."""
        live, candidate = self.pair(name)
        counted = self._store.shadow_counts(name, live.identity, candidate.identity).to_json()
        situation = self._shadow.situation(name)
        return {
            "model": name,
            "identity": live.identity,
            "candidate": candidate.name,
            "candidate_identity": candidate.identity,
            "images": counted["images"],
            "both": counted["both"],
            "only_live": counted["only_first"],
            "only_candidate": counted["only_second"],
            "neither": counted["neither"],
            "live_alarms": counted["first"],
            "candidate_alarms": counted["second"],
            **{key: counted[key] for key in ("difference", "interval", "confidence", "method", "p_value")},
            **{key: situation[key] for key in ("waiting", "dropped", "failed", "trouble")},
            "room": BACKLOG,
        }

    # Changes

    def set(self, name: str, candidate: str, by: Actor) -> None:
        """Let a served model inspect in the shadow of another; raises Problem if that makes no sense."""
        with self._changing:
            live, other = self._models.named(name), self._models.named(candidate)
            if live.identity == other.identity:
                raise Problem("conflict", f"'{name}' and '{candidate}' are the same model; choose another candidate")
            for model in (live, other):
                if model.detector.calibration is None:
                    words = f"the model '{model.name}' has no threshold and so gives no verdicts; calibrate it first"
                    raise Problem("conflict", words)
            others = [row["model"] for row in self._store.candidates(self._owner) if row["model"] != name]
            if len(others) >= MOST:
                raise Problem(
                    "conflict", f"there are {MOST} candidates already ({', '.join(others)}); remove one first"
                )
            row = {"owner": self._owner, "model": name, "candidate": candidate, "at": time.time(), "by": by.name}
            details = {"candidate": candidate, "identity": other.identity}
            self._store.set_candidate(row, Record(by, "candidate.set", name, "model", name, details))
            self._shadow.follow(name, candidate)

    def remove(self, name: str, by: Actor) -> None:
        """Remove the candidate of a model; raises Problem if it has none."""
        with self._changing:
            self._require_known(name)
            details = {"candidate": self.of(name)["candidate"]}
            record = Record(by, "candidate.removed", name, "model", name, details)
            self._store.remove_candidate(self._owner, name, record)
            self._shadow.forget(name)

    def switch(self, name: str, by: Actor, identity: str | None = None) -> None:
        """Serve the candidate under the name of the live model; raises Problem if it fails its golden images."""
        with self._changing:
            live, candidate = self.pair(name)
            if identity is not None and candidate.identity != identity:
                words = f"the candidate '{candidate.name}' was changed in the meantime; look at the comparison again"
                raise Problem("conflict", words)
            self._require_no_job(name, candidate.name)
            if live.identity == candidate.identity:
                raise Problem("conflict", f"'{name}' is the candidate already; nothing was changed")
            fresh = self._opened(name, candidate.folder)
            if identity is not None and fresh.detector.identity != identity:
                raise Problem("conflict", f"the candidate '{candidate.name}' was changed just now; try again")
            found = self._golden.examine(self._models.with_home(name, candidate.folder), fresh.detector)
            if found.problem is not None and self._golden.mode == "block":
                words = f"the candidate failed the check with the golden images: {found.problem}"
                raise Problem("conflict", f"{words}. The live model stays in use")
            row = {
                "id": new_id(),
                "owner": self._owner,
                "model": name,
                "at": time.time(),
                "by": by.name,
                "folder_before": str(live.folder.resolve()),
                "identity_before": live.identity,
                "folder": str(candidate.folder.resolve()),
                "identity": fresh.detector.identity or "",
                "rolled_back": None,
            }
            details = {"candidate": candidate.name, "identity_before": live.identity, "identity": row["identity"]}
            self._store.add_switch(row, Record(by, "model.switched", name, "model", name, details))
            self._shadow.forget(name)
            self._take_effect(name, fresh, lambda: self._golden.keep(name, found, "switched", by), found.problem)

    def roll_back(self, name: str, by: Actor, identity: str | None = None) -> None:
        """Undo the last switch of a model; raises Problem if there is none.

        Golden images do not prevent it: the model is blocked if it fails, as after a reload.
        """
        with self._changing:
            self._require_known(name)
            last = self._store.last_switch(self._owner, name)
            if last is None:
                raise Problem("conflict", f"the model '{name}' was not switched, so there is nothing to roll back")
            live = self._models.get(name)
            present = last["identity"] if live is None else live.identity
            if identity is not None and present != identity:
                raise Problem("conflict", f"the model '{name}' was changed in the meantime; look at it again")
            self._require_no_job(name)
            folder = Path(last["folder_before"])
            fresh = self._opened(name, folder)
            found = self._golden.examine(self._models.with_home(name, folder), fresh.detector)
            details = {"identity_before": present, "identity": fresh.detector.identity}
            self._store.roll_back(last["id"], Record(by, "model.rolled-back", name, "model", name, details))
            self._take_effect(name, fresh, lambda: self._golden.keep(name, found, "rolled back", by), found.problem)

    def _take_effect(self, name: str, fresh: FollowedModel, keep: Callable[[], object], problem: str | None) -> None:
        """Serve a model; if it failed its check, it is blocked before it is in use."""
        if problem is not None:
            keep()
        self._models.put(name, fresh)
        if problem is None:
            keep()

    def _opened(self, name: str, folder: Path) -> FollowedModel:
        try:
            return self._models.opened(name, folder, is_checked=True)
        except (PatchSVDDError, OSError) as error:
            words = f"the model cannot be loaded, and the present one stays in use: {error}"
            raise Problem("model-unusable", words, retry_after=10) from None

    def _require_known(self, name: str) -> None:
        if not self._models.is_known(name):
            self._models.named(name)  # raises Problem

    def _require_no_job(self, *names: str) -> None:
        """Raise Problem if a job is changing one of the models."""
        for name in names:
            found = self._store.jobs(model=name, states=UNFINISHED, owner=self._owner)
            if any(row["kind"] in CHANGING for row in found):
                raise Problem("conflict", f"a job is changing the model '{name}'; wait until it has ended")
