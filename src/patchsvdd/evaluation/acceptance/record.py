"""The record of an acceptance test, stored beside the model so that it can be checked later.

    acceptance/20260102T030405678Z-1a2b3c4d.json   results, images and their digests, settings, a checksum
    acceptance/20260102T030405678Z-1a2b3c4d.html   the report, and the same as .pdf

They are no part of the model: its identity stays the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from patchsvdd.core.errors import ModelError
from patchsvdd.core.files import atomic_write

FOLDER = "acceptance"
FORMAT = "patchsvdd acceptance"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class AcceptanceFiles:
    """The files of an acceptance test."""

    record: Path
    page: Path
    """The HTML report."""
    pdf: Path | None
    """None if reportlab is not installed."""

    def to_json(self) -> dict[str, str | None]:
        """A JSON-ready dictionary."""
        return {
            "record": str(self.record),
            "html": str(self.page),
            "pdf": str(self.pdf) if self.pdf is not None else None,
        }


@dataclass(frozen=True)
class LastAcceptance:
    """The last acceptance test of a model."""

    record: Path
    problem: str | None = None
    """Why the record cannot be used; None if it is intact."""
    at: datetime | None = None
    identity: str | None = None
    is_accepted: bool | None = None
    """Whether all requirements were met; None without requirements."""
    is_same_model: bool = False
    """Whether the model is still the one that was tested."""
    requirements: tuple[str, ...] = ()
    """The limits that were required."""

    @property
    def words(self) -> str:
        """The test in one sentence."""
        if self.problem is not None or self.at is None:
            return f"the record '{self.record.name}' cannot be used: {self.problem}"
        results = {True: "all requirements met", False: "requirements not met", None: "no requirements"}
        asked = f" ({', '.join(self.requirements)})" if self.requirements else ""
        changed = "" if self.is_same_model else f"; the model has changed since then (it was {self.identity})"
        return f"{self.at:%Y-%m-%d %H:%M} UTC, {results[self.is_accepted]}{asked}{changed}"

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "record": str(self.record),
            "problem": self.problem,
            "at": self.at.isoformat(timespec="seconds") if self.at is not None else None,
            "identity": self.identity,
            "accepted": self.is_accepted,
            "model_changed": not self.is_same_model if self.problem is None else None,
            "requirements": list(self.requirements),
        }


def stem_of(at: datetime, identity: str) -> str:
    """The name of a record's files, without their ending: they sort by time."""
    moment = at.astimezone(UTC)
    return f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03}Z-{identity[:8]}"


def write_record(path: Path, content: Mapping[str, Any], reports: Mapping[str, Path]) -> Path:
    """Write a record with the checksums of its reports (name → file) atomically, and return ``path``."""
    files = {name: {"name": file.name, "sha256": _file_digest(file)} for name, file in reports.items()}
    record = {"format": FORMAT, "format_version": FORMAT_VERSION, **content, "files": files}
    record["checksum"] = _digest(record)
    with atomic_write(path) as file:
        # ASCII, because names of images that are not UTF-8 on disk hold lone surrogates.
        file.write(json.dumps(record, indent=1).encode("ascii"))
    return path


def read_record(path: Path, *, reports: bool = True) -> dict[str, Any]:
    """Return the verified content of a record; raise ModelError if it, or one of its ``reports``, was altered."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"the record '{path}' is damaged ({error}); run the acceptance test again") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ModelError(f"'{path}' is no record of an acceptance test; check the path")
    if record.get("format_version") != FORMAT_VERSION:
        raise ModelError(f"'{path}' was written by a newer version; update patchsvdd")
    if record.pop("checksum", None) != _digest(record):
        raise ModelError(f"the record '{path}' was altered: its checksum does not match; run the acceptance test again")
    for entry in record["files"].values() if reports else ():
        file = path.with_name(entry["name"])
        if not file.is_file() or _file_digest(file) != entry["sha256"]:
            raise ModelError(f"the report '{file}' is missing or was altered; run the acceptance test again")
    return record


def last_acceptance(model: Path, identity: str) -> LastAcceptance | None:
    """The last acceptance test of a model folder that now holds ``identity``; None if there is none."""
    records = sorted((model / FOLDER).glob("[0-9]*Z-*.json"))
    if not records:
        return None
    try:
        record = read_record(records[-1], reports=False)
        tested = str(record["model"]["identity"])
        return LastAcceptance(
            records[-1],
            at=datetime.fromisoformat(record["at"]),
            identity=tested,
            is_accepted=record["accepted"],
            is_same_model=tested == identity,
            requirements=tuple(str(one["limit"]) for one in record["requirements"]),
        )
    except ModelError as error:
        return LastAcceptance(records[-1], str(error))
    except (KeyError, TypeError, ValueError) as error:
        return LastAcceptance(records[-1], f"it is incomplete ({error!r})")


def _digest(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
