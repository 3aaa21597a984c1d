"""The result of an acceptance test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from patchsvdd.core.version import __version__
from patchsvdd.evaluation.acceptance.agreement import Agreement
from patchsvdd.evaluation.acceptance.limits import CheckedLimit
from patchsvdd.evaluation.acceptance.proportions import Proportion
from patchsvdd.evaluation.acceptance.record import AcceptanceFiles
from patchsvdd.evaluation.acceptance.repeatability import Repeatability
from patchsvdd.evaluation.acceptance.tested_images import InspectedImage, LeftOut, WrongImage


@dataclass(frozen=True)
class Acceptance:
    """The result of an acceptance test."""

    model: str
    """Name of the model folder."""
    identity: str
    threshold: float
    min_area: int
    at: datetime
    confidence: float
    settings: dict[str, Any]
    """What was tested, and how: folders, inspectors, device and engine."""
    misses: Proportion | None
    """Defects that the model calls good; None without defects."""
    misses_by_kind: dict[str, Proportion]
    false_rejects: Proportion | None
    """Good images that the model rejects; None without good images."""
    kappa: float | None
    """Cohen's kappa of the model with the reference; None if it is not defined, or one of the folders is missing."""
    repeats: Repeatability | None
    inspectors: Agreement | None
    ignored_judgements: int
    """Verdicts of inspectors about images that were left out."""
    images: tuple[InspectedImage, ...]
    left_out: tuple[LeftOut, ...]
    too_few_shots: tuple[str, ...]
    """Parts of which fewer than two different shots can be used."""
    requirements: tuple[CheckedLimit, ...]
    claims: tuple[CheckedLimit, ...]
    missed: tuple[WrongImage, ...]
    """Pictures of missed defects, the lowest score first."""
    rejected: tuple[WrongImage, ...]
    """Pictures of rejected good images, the highest score first."""
    files: AcceptanceFiles | None = None
    """Where the record and the reports are; None if they were not stored."""

    @property
    def is_accepted(self) -> bool | None:
        """Whether all requirements are met; None without requirements."""
        return all(one.is_met for one in self.requirements) if self.requirements else None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary, without the images one by one."""
        return {
            "version": __version__,
            "at": self.at.isoformat(timespec="seconds"),
            "model": {
                "name": self.model,
                "identity": self.identity,
                "threshold": self.threshold,
                "min_area": self.min_area,
            },
            "settings": self.settings,
            "confidence": self.confidence,
            "accepted": self.is_accepted,
            "requirements": [one.to_json() for one in self.requirements],
            "claims": [one.to_json() for one in self.claims],
            "misses": self.misses.to_json() if self.misses is not None else None,
            "misses_by_kind": {kind: one.to_json() for kind, one in self.misses_by_kind.items()},
            "false_rejects": self.false_rejects.to_json() if self.false_rejects is not None else None,
            "kappa": self.kappa,
            "repeatability": self.repeats.to_json() if self.repeats is not None else None,
            "agreement": self.inspectors.to_json() if self.inspectors is not None else None,
            "ignored_judgements": self.ignored_judgements,
            "too_few_shots": list(self.too_few_shots),
            "left_out": [one.to_json() for one in self.left_out],
        }
