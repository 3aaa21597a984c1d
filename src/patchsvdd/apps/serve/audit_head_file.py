"""The head of the audit chain in the data folder: what the service has seen, apart from the database."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from patchsvdd.apps.serve.audit_chain import Head, Verification
from patchsvdd.apps.serve.audit_store import AuditStore
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.core.errors import ConfigError, PatchSVDDError
from patchsvdd.core.files import atomic_write

LOG = logging.getLogger("patchsvdd.apps.serve")
NAME = "audit-head"


class HeadFile:
    """The file with the head. It moves forward only if the chain still has the entry that it names."""

    def __init__(self, data: Path, store: AuditStore) -> None:
        self.path = data / NAME
        self._store = store
        self.trouble: str | None = None
        """Why the chain is not the one that the file knows; None if it is."""

    def advance(self) -> None:
        """Write the database's head to the file. Never raises: the change itself is on disk already."""
        try:
            known, head = read_head(self.path), self._store.audit_head()
            if known is not None and (head.number < known.number or not self._store.has_entry(known)):
                words = (
                    f"the audit chain lacks entry {known.number} as this service knew it; run `patchsvdd audit verify`"
                )
                if self.trouble is None:
                    LOG.error(words)
                self.trouble = words
                return
            self.trouble = None
            if known is None or head.number > known.number:
                with atomic_write(self.path) as file:
                    if hasattr(os, "fchmod"):  # not on Windows
                        os.fchmod(file.fileno(), 0o600)
                    file.write(f"{head}\n".encode())
        except (StoreUnavailable, PatchSVDDError, OSError) as error:
            LOG.warning("the head of the audit chain was not written: %s", error)

    def verify(self) -> Verification:
        """Check the whole chain, and that it has the entry that the file names."""
        try:
            known = read_head(self.path)
        except ConfigError as error:
            return Verification(Head(), f"the file {self.path.name} in the data folder is broken: {error}")
        return self._store.verify_audit({} if known is None else {"the data folder": known})


def read_head(path: Path) -> Head | None:
    """The head in a file; None without the file. Raises ConfigError if it holds anything else."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None
    return Head.parse(text[:200])
