"""What the audit chain says of a job: who asked for it, how it ended, and what it changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import Record

ASKED = (
    "identity",
    "inspections",
    "keep_threshold",
    "kinds",
    "aim",
    "false_alarm_rate",
    "threshold",
    "entry",
    "preset",
    "settings",
)
"""What is recorded of an order; paths are not."""
ACHIEVED = ("identity", "threshold", "threshold_before", "entry", "guarantee", "already")
"""What is recorded of a result."""
UNRECORDED = ("preview", "teach-preview")
"""Kinds of jobs that change nothing."""


def asker(job: Mapping[str, Any]) -> Actor:
    """Who asked for a job; only a name in orders of earlier versions."""
    said = job["order"].get("by")
    return Actor(job["by"]) if said is None else Actor(said["name"], said["kind"], said["id"])


def as_order(by: Actor) -> dict[str, str]:
    """Who asks for a job, for its order."""
    return {"name": by.name, "kind": by.kind, "id": by.id}


def job_record(job: Mapping[str, Any], event: str, by: Actor | None = None, **details: Any) -> Record | None:
    """The entry for an event of a job (started, done, failed, cancelled); None for kinds that change nothing."""
    if job["kind"] in UNRECORDED:
        return None
    order, result = job["order"], job.get("result") or {}
    if event == "started":
        details = {**{key: order[key] for key in ASKED if order.get(key) is not None}, **details}
    if event == "done":
        details = {**{key: result[key] for key in ACHIEVED if result.get(key) is not None}, **details}
        images = result.get("images")
        if images is not None:
            details["images"] = len(images) if isinstance(images, list) else images
    return Record(by or asker(job), f"{job['kind']}.{event}", job["model"], "job", job["id"], details)
