"""Match the names of images in a file of labels with images on disk or in a database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence


class ImageNames:
    """Names of images with folders, to look up by a name that may have more, fewer or no folders."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_file: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for name in dict.fromkeys(names):
            parts = tuple(name.split("/"))
            self._by_file[parts[-1]].append(parts)

    def matches(self, name: str) -> list[str]:
        """Return the names that agree with ``name`` in all folders that both have; those that agree in most only."""
        wanted = tuple(name.split("/"))
        agreeing = [
            (shared, parts) for parts in self._by_file.get(wanted[-1], ()) if (shared := _shared(wanted, parts))
        ]
        most = max((shared for shared, _ in agreeing), default=0)
        return ["/".join(parts) for shared, parts in agreeing if shared == most]


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """How many last parts two names share; 0 if they differ in a part that both have."""
    shared = min(len(one), len(other))
    return shared if one[-shared:] == other[-shared:] else 0
