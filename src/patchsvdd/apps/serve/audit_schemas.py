"""The response bodies for the audit chain, as Pydantic models."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from patchsvdd.apps.serve.schemas import Answer


class ActorAnswer(Answer):
    """Who did something."""

    name: str
    kind: str = Field(description="key, user, local (anyone on the machine), command, service or unknown")
    id: str = Field(description="number of the key, the user or the service; empty for others")


class SubjectAnswer(Answer):
    """What it was done to."""

    kind: str = Field(description="inspection, job, model, user or key; may be empty")
    id: str = Field(description="its id, or the name of a model, a user or a key")


class AuditEntryAnswer(Answer):
    """An entry of the audit chain."""

    number: int = Field(description="from 1, without gaps")
    at: str = Field(description="time, UTC", examples=["2026-11-15T12:00:00.000Z"])
    who: ActorAnswer
    action: str = Field(examples=["review.given"])
    model: str | None
    subject: SubjectAnswer
    details: dict[str, Any]
    previous: str = Field(description="hash of the entry before")
    hash: str = Field(description="SHA-256 of the entry without its hash, as canonical JSON")


class AuditAnswer(Answer):
    """Entries, the latest first."""

    entries: list[AuditEntryAnswer]
    next: int | None = Field(description="send it as `before` for the next page; null on the last page")


class VerificationAnswer(Answer):
    """Whether the chain is whole."""

    whole: bool
    entries: int = Field(description="number of entries that are right, from the first on")
    head: str = Field(description="number and hash of the last of them; keep it to verify a later chain with it")
    entry: int | None = Field(description="number of the first entry that is wrong or missing")
    fault: str | None = Field(description="what is wrong with it")
    at: str = Field(description="when this was checked, UTC")
