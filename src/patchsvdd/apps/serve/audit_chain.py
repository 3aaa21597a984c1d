"""The audit chain: entries of which each has the hash of the one before, and their verification.

An entry's hash is the SHA-256 of its canonical JSON without the hash: keys sorted, no spaces, ASCII only. An entry that
was changed, removed, inserted or moved no longer fits its neighbours. Someone who may write everything could compute
all later hashes again, so heads (the number and hash of the last entry) are kept in other places too and compared.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from patchsvdd.core.errors import ConfigError

FORMAT = 1
"""Version of the exported file."""
START = "0" * 64
"""What the first entry has in place of the hash of the one before."""
ActorKind = Literal["local", "key", "user", "command", "service", "unknown"]
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
HEAD = re.compile(r"(\d{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True)
class Actor:
    """Who did something."""

    name: str
    kind: ActorKind = "unknown"
    """A key, a user, anyone on this machine (local), a command, the service itself; unknown for a name alone."""
    id: str = ""
    """The number of the key, the user or the service; empty for others."""

    @classmethod
    def of(cls, by: Actor | str) -> Actor:
        """The actor of a name alone, or the given one."""
        return cls(by) if isinstance(by, str) else by


@dataclass(frozen=True)
class Entry:
    """An entry of the chain."""

    number: int
    """From 1, without gaps."""
    id: str
    at: int
    """Milliseconds since 1970."""
    who: str
    who_kind: str
    who_id: str
    action: str
    model: str | None
    subject_kind: str
    subject: str
    details: str
    """Canonical JSON of an object."""
    previous: str
    hash: str

    def line(self) -> str:
        """The entry as a line of an export."""
        return canonical({**self.__dict__, "details": json.loads(self.details)})

    def computed_hash(self) -> str:
        """The hash that the entry must have."""
        facts = {**self.__dict__, "details": json.loads(self.details)}
        del facts["hash"]
        return hashlib.sha256(canonical(facts).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Head:
    """The last entry of a chain: its number and hash."""

    number: int = 0
    hash: str = START

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """The head that a text names as NUMBER:HASH; raises ConfigError."""
        found = HEAD.fullmatch(text.strip())
        if found is None:
            raise ConfigError(f"a head of the audit chain is NUMBER:HASH, as `audit verify` prints it; got '{text}'")
        return cls(int(found[1]), found[2])


@dataclass(frozen=True)
class Verification:
    """What a verification found."""

    head: Head
    """The last entry that is right, and so are all before it."""
    fault: str | None = None
    """What is wrong; None if the chain is whole."""
    entry: int | None = None
    """Number of the first entry that is wrong or missing."""

    def to_json(self) -> dict[str, Any]:
        """The verification as JSON."""
        head = {"entries": self.head.number, "head": str(self.head)}
        return {"whole": self.fault is None, **head, "entry": self.entry, "fault": self.fault}


class BrokenLine(Exception):
    """A line of an export is not an entry as it was written."""


def canonical(facts: Mapping[str, Any]) -> str:
    """The JSON of which there is only one for the same facts."""
    return _ENCODER.encode(facts)


def plain(value: Any) -> Any:
    """A value that JSON can hold: infinity and NaN as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def verify(entries: Iterable[Entry], heads: Mapping[str, Head], last: Head | None = None) -> Verification:
    """Check all entries in their order, and that the chain has each of the heads; the keys say where a head is from.

    ``last`` is the entry with which the chain must end, if that is known.
    """
    head, wanted = Head(), {known.number for known in heads.values()}
    hashes = {0: START}
    try:
        for entry in entries:
            fault = _fault(entry, head)
            if fault is not None:
                return Verification(head, fault, head.number + 1)
            head = Head(entry.number, entry.hash)
            if entry.number in wanted:
                hashes[entry.number] = entry.hash
    except BrokenLine as error:
        return Verification(head, str(error), head.number + 1)
    for where, known in sorted(heads.items(), key=lambda item: item[1].number):
        if known.number > head.number:
            fault = f"entry {head.number + 1} is missing: {where} knows {known.number} entries"
            return Verification(head, fault, head.number + 1)
        if hashes[known.number] != known.hash:
            fault = f"entry {known.number} is not the one that {where} knows: entries up to it were replaced"
            return Verification(head, fault, known.number)
    if last is not None and head.number > last.number:
        return Verification(last, f"entry {last.number + 1} was added: the chain ended before it", last.number + 1)
    return Verification(head)


def _fault(entry: Entry, before: Head) -> str | None:
    """What is wrong with the entry that follows ``before``; None if nothing is."""
    expected = before.number + 1
    if entry.number != expected:
        return f"entry {expected} is missing: entry {entry.number} stands in its place"
    if entry.previous != before.hash:
        return f"entry {expected} does not follow the one before it: it names another hash"
    try:
        if canonical(json.loads(entry.details)) != entry.details or entry.computed_hash() != entry.hash:
            return f"entry {expected} was changed: its hash does not fit what it says"
    except (ValueError, TypeError, RecursionError):
        return f"entry {expected} was changed: it cannot be read"
    return None


# Exported files


def header_line(head: Head) -> str:
    """The first line of an export."""
    return canonical({"format": FORMAT, "entries": head.number, "head": head.hash})


def parse_header(line: str) -> Head:
    """The head that the first line of an export names; raises ConfigError."""
    try:
        facts = json.loads(line)
        known, head = facts["format"], Head.parse(f"{facts['entries']}:{facts['head']}")
    except (ValueError, KeyError, TypeError, RecursionError, ConfigError):
        raise ConfigError("this is not an export of the audit chain: its first line names no head") from None
    if known != FORMAT:
        words = f"this export of the audit chain has the format {known}; this version reads the format {FORMAT}"
        raise ConfigError(words)
    if line != f"{header_line(head)}\n":
        raise ConfigError("the first line of this export is not in the form in which it was written")
    return head


def parse_lines(lines: Iterable[str]) -> Iterator[Entry]:
    """The entries of an export after its first line; raises BrokenLine."""
    names = {one.name for one in fields(Entry)}
    for number, line in enumerate(lines, start=1):
        try:
            facts = json.loads(line)
            if set(facts) != names or f"{canonical(facts)}\n" != line:
                raise BrokenLine(f"line {number + 1}, entry {number}, is not in the form in which it was written")
            yield Entry(**{**facts, "details": canonical(facts["details"])})
        except (ValueError, TypeError, RecursionError):
            raise BrokenLine(f"line {number + 1}, entry {number}, cannot be read") from None
