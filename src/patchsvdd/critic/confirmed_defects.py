"""Confirmed defects that a model was taught: what they look like, their kinds, and when they were confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from patchsvdd.critic.defect_filters import DefectFilters
from patchsvdd.critic.defect_kinds import CONFIDENT, KindClassifier, describe_defect
from patchsvdd.critic.feature_coreset import smoothed

STORED = ("patches", "images", "descriptors")
"""Tensors of confirmed defects, beside those of the filters."""


@dataclass(frozen=True)
class ConfirmedDefect:
    """An image with a confirmed defect."""

    name: str
    kind: str
    at: str
    """When it was taught: ISO 8601, UTC."""
    digest: str
    """Hash of its pixels (``image_set.digest_of_pixels``)."""
    has_mask: bool
    """Whether a mask said where the defect is."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"name": self.name, "kind": self.kind, "at": self.at, "digest": self.digest, "has_mask": self.has_mask}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConfirmedDefect:
        """Restore what ``to_json`` wrote."""
        return cls(data["name"], data["kind"], data["at"], data["digest"], data["has_mask"])


@dataclass(frozen=True)
class ConfirmedDefects:
    """The second memory: patches of confirmed defects, and the filters that were fitted to them."""

    defects: tuple[ConfirmedDefect, ...]
    patches: Tensor
    """(J, C): smoothed early features of the critic."""
    images: Tensor
    """(J,) int64: index of each patch's image among ``defects``."""
    filters: DefectFilters
    """One filter for each of ``kinds``."""
    descriptors: Tensor
    """(N, D): what each image's defect looks like (``defect_kinds.describe_defect``)."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds, sorted."""
        return kinds_of(self.defects)

    @cached_property
    def classifier(self) -> KindClassifier:
        """Tells the kinds apart."""
        numbers = [self.kinds.index(one.kind) for one in self.defects]
        return KindClassifier.fit(self.descriptors, torch.tensor(numbers, device=self.descriptors.device))

    def kind_of(self, early: Tensor, cells: Tensor) -> str | None:
        """Return the kind that what is in some cells (h, w) resembles, given early features (C, h, w).

        None if no kind is likely, or its filter finds no more there than in an ordinary good image.
        """
        probabilities = self.classifier(describe_defect(smoothed(early[None])[0], cells))
        best = int(probabilities.argmax())
        found = float(self.filters.outputs(early[None])[0, best][cells].max())
        return self.kinds[best] if float(probabilities[best]) >= CONFIDENT and found > 0 else None

    def in_words(self, kind: str) -> str:
        """Describe what an alarm resembles: "like scratch, 3 confirmed in May 2026"."""
        times = sorted(datetime.fromisoformat(one.at) for one in self.defects if one.kind == kind)
        first, last = f"{times[0]:%B %Y}", f"{times[-1]:%B %Y}"
        when = f"in {first}" if first == last else f"from {first} to {last}"
        return f"like {kind}, {len(times)} confirmed {when}"

    def to(self, device: torch.device) -> ConfirmedDefects:
        """Return the same on another device."""
        patches, images = self.patches.to(device), self.images.to(device)
        return ConfirmedDefects(self.defects, patches, images, self.filters.to(device), self.descriptors.to(device))

    def state(self) -> dict[str, Tensor]:
        """Return the tensors to store in a model."""
        return {**{name: getattr(self, name) for name in STORED}, **self.filters.state()}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], defects: Sequence[Mapping[str, Any]]) -> ConfirmedDefects:
        """Return what ``state`` and ``ConfirmedDefect.to_json`` wrote."""
        known = tuple(ConfirmedDefect.from_json(one) for one in defects)
        filters = DefectFilters.from_state(tensors)
        return cls(known, tensors["patches"], tensors["images"], filters, tensors["descriptors"])


def kinds_of(defects: Sequence[ConfirmedDefect]) -> tuple[str, ...]:
    """Return the names of the kinds, sorted."""
    return tuple(sorted({one.kind for one in defects}))
