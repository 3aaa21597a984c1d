"""The size of the memory: which share or number of patches to keep."""

from __future__ import annotations

import re
from dataclasses import dataclass

from patchsvdd.core.errors import ConfigError


@dataclass(frozen=True)
class MemorySize:
    """How many patches of each scale to keep: a share of them, or a number."""

    amount: float
    is_share: bool
    """Whether ``amount`` is a percentage; otherwise it is a number of patches per scale."""

    @property
    def is_whole(self) -> bool:
        """Whether every patch is kept."""
        return self.is_share and self.amount == 100

    def rows_of(self, total: int) -> int:
        """Return how many of ``total`` rows to keep: at least one, at most all."""
        rows = round(total * self.amount / 100) if self.is_share else int(self.amount)
        return min(total, max(1, rows))

    def __str__(self) -> str:
        return f"{self.amount:.15g}%" if self.is_share else f"{self.amount:.0f}"


def parse_memory_size(text: str) -> MemorySize:
    """Parse "10%" (a share) or "5000" (patches per scale)."""
    if not isinstance(text, str):
        raise ConfigError(f'`memory` must be text like "10%" or "5000"; got {text!r}')
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%|([0-9]{1,18})", text.strip())
    if found is None:
        raise ConfigError(f"`memory` must be a share like 10% or a number of patches per scale like 5000; got '{text}'")
    share, count = found.groups()
    if share is None:
        if int(count) == 0:
            raise ConfigError("`memory=0` would keep no patch to compare with; keep at least 1, or a share like 10%")
        return MemorySize(int(count), is_share=False)
    if not 0 < float(share) <= 100:
        raise ConfigError(f"`memory` must be a share above 0% and up to 100%; got '{text}'")
    return MemorySize(float(share), is_share=True)
