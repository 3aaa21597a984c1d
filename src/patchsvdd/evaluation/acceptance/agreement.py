"""Agreement of inspectors, the model and the reference: kappas and the tables of an attribute study (AIAG MSA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchsvdd.evaluation.acceptance.proportions import Proportion

Verdicts = NDArray[np.bool_]
"""(images, trials): whether the verdict is "defect"."""
MODEL = "model"
"""Name of the model among the inspectors."""
ACCEPTABLE = (0.90, 0.02, 0.05)
"""Effectiveness at least, miss rate and false-alarm rate at most (AIAG MSA, 4th edition)."""
MARGINAL = (0.80, 0.05, 0.10)
"""The same for a marginal result."""
GOOD_KAPPA, POOR_KAPPA = 0.75, 0.40


def cohen_kappa(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float | None:
    """Cohen's kappa of two sets of verdicts; None if both consist of one and the same verdict."""
    same = float(np.mean(one == other))
    first, second = float(np.mean(one)), float(np.mean(other))
    expected = first * second + (1 - first) * (1 - second)
    return (same - expected) / (1 - expected) if expected < 1 else None


def fleiss_kappa(counts: NDArray[np.integer[Any]]) -> float | None:
    """Fleiss' kappa, given how many ratings of each image (rows) fell in each class (columns).

    Every image has the same number of ratings, at least two. None if all ratings are the same.
    """
    ratings = int(counts[0].sum())
    if ratings < 2 or np.any(counts.sum(axis=1) != ratings):
        raise ValueError("every image needs the same number of ratings, at least two")
    observed = float(np.mean((np.sum(counts.astype(np.float64) ** 2, axis=1) - ratings) / (ratings * (ratings - 1))))
    shares = counts.sum(axis=0) / counts.sum()
    expected = float(np.sum(shares**2))
    return (observed - expected) / (1 - expected) if expected < 1 else None


def kappa_word(kappa: float | None) -> str:
    """What AIAG calls such a kappa."""
    if kappa is None:
        return "not defined"
    return "good" if kappa > GOOD_KAPPA else "poor" if kappa < POOR_KAPPA else "moderate"


@dataclass(frozen=True)
class Within:
    """An inspector who judged the same images several times."""

    name: str
    trials: int
    same: Proportion
    """Images that got the same verdict in all trials."""
    kappa: float | None
    """Fleiss' kappa of the trials."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"inspector": self.name, "trials": self.trials, "same": self.same.to_json(), "kappa": self.kappa}


@dataclass(frozen=True)
class Between:
    """All inspectors, compared with each other."""

    inspectors: int
    same: Proportion
    """Images that got the same verdict from all inspectors in all trials."""
    kappa: float | None
    """Fleiss' kappa of all their verdicts."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"inspectors": self.inspectors, "same": self.same.to_json(), "kappa": self.kappa}


@dataclass(frozen=True)
class AgainstReference:
    """An inspector, or the model, compared with the reference."""

    name: str
    right: Proportion
    """Images judged as the reference in all trials: the effectiveness."""
    misses: Proportion
    """Verdicts "good" about defects."""
    false_alarms: Proportion
    """Verdicts "defect" about good images."""
    kappa: float | None
    """Cohen's kappa with the reference, over all trials."""

    @property
    def word(self) -> str:
        """The result by the limits of AIAG: acceptable, marginal or unacceptable."""
        for word, limits in (("acceptable", ACCEPTABLE), ("marginal", MARGINAL)):
            if self._meets(*limits):
                return word
        return "unacceptable"

    def _meets(self, right: float, misses: float, false_alarms: float) -> bool:
        seen = self.right.share or 0.0, self.misses.share or 0.0, self.false_alarms.share or 0.0
        return seen[0] >= right and seen[1] <= misses and seen[2] <= false_alarms

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "inspector": self.name,
            "effectiveness": self.right.to_json(),
            "miss_rate": {"hits": self.misses.hits, "of": self.misses.trials, "share": self.misses.share},
            "false_alarm_rate": {
                "hits": self.false_alarms.hits,
                "of": self.false_alarms.trials,
                "share": self.false_alarms.share,
            },
            "kappa": self.kappa,
            "result": self.word,
        }


@dataclass(frozen=True)
class WithModel:
    """An inspector, compared with the model."""

    name: str
    same: int
    """Verdicts equal to the model's, over all trials."""
    verdicts: int
    kappa: float | None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {"inspector": self.name, "same": self.same, "verdicts": self.verdicts, "kappa": self.kappa}


@dataclass(frozen=True)
class Agreement:
    """The study of some images that all inspectors judged."""

    images: int
    defects: int
    """Images whose reference is "defect"."""
    within: tuple[Within, ...]
    between: Between | None
    """None for a single inspector."""
    against: tuple[AgainstReference, ...]
    """The inspectors, then the model."""
    with_model: tuple[WithModel, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "images": self.images,
            "defects": self.defects,
            "within": [one.to_json() for one in self.within],
            "between": self.between.to_json() if self.between is not None else None,
            "against_reference": [one.to_json() for one in self.against],
            "with_model": [one.to_json() for one in self.with_model],
        }


def agreement(
    inspectors: dict[str, Verdicts], model: NDArray[np.bool_], reference: NDArray[np.bool_], confidence: float
) -> Agreement:
    """The study of images (rows) that every inspector judged in all of their trials."""
    every = np.concatenate(list(inspectors.values()), axis=1)
    between = None
    if len(inspectors) > 1:
        between = Between(len(inspectors), _same(every, confidence), fleiss_kappa(_counts(every)))
    within = tuple(
        Within(name, verdicts.shape[1], _same(verdicts, confidence), fleiss_kappa(_counts(verdicts)))
        for name, verdicts in inspectors.items()
        if verdicts.shape[1] > 1
    )
    against = [_against(name, verdicts, reference, confidence) for name, verdicts in inspectors.items()]
    against.append(_against(MODEL, model[:, None], reference, confidence))
    return Agreement(
        images=len(reference),
        defects=int(reference.sum()),
        within=within,
        between=between,
        against=tuple(against),
        with_model=tuple(_with_model(name, verdicts, model) for name, verdicts in inspectors.items()),
    )


def _same(verdicts: Verdicts, confidence: float) -> Proportion:
    equal = np.all(verdicts == verdicts[:, :1], axis=1)
    return Proportion(int(equal.sum()), len(verdicts), confidence)


def _counts(verdicts: Verdicts) -> NDArray[np.int64]:
    defects = verdicts.sum(axis=1).astype(np.int64)
    return np.stack([verdicts.shape[1] - defects, defects], axis=1)


def _against(name: str, verdicts: Verdicts, reference: NDArray[np.bool_], confidence: float) -> AgainstReference:
    known = np.broadcast_to(reference[:, None], verdicts.shape)
    right = np.all(verdicts == known, axis=1)
    return AgainstReference(
        name,
        Proportion(int(right.sum()), len(reference), confidence),
        Proportion(int(np.sum(known & ~verdicts)), int(known.sum()), confidence),
        Proportion(int(np.sum(~known & verdicts)), int(np.sum(~known)), confidence),
        cohen_kappa(verdicts.ravel(), known.ravel()),
    )


def _with_model(name: str, verdicts: Verdicts, model: NDArray[np.bool_]) -> WithModel:
    said = np.broadcast_to(model[:, None], verdicts.shape)
    return WithModel(name, int(np.sum(verdicts == said)), verdicts.size, cohen_kappa(verdicts.ravel(), said.ravel()))
