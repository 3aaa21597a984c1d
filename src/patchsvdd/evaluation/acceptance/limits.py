"""Limits on what an acceptance test measures, such as "miss<=5%", and whether the results meet them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patchsvdd.core.errors import ConfigError
from patchsvdd.evaluation.acceptance.proportions import Proportion, percent_at_least, percent_at_most
from patchsvdd.evaluation.acceptance.sampling_plan import PlanRow, more_needed, sampling_plan

MEASURES = {"miss": "<=", "false-reject": "<=", "repeatability": ">=", "kappa": ">="}
"""What can be limited → the direction of its limit."""
COUNTED = ("miss", "false-reject", "repeatability")
"""Measures that are shares of images or parts, so that a number of parts can show them."""
NEEDS = {
    "miss": ("defects",),
    "false-reject": ("good",),
    "repeatability": ("repeats",),
    "kappa": ("good", "defects"),
}
"""Measure → the folders without which it is not known."""
LEAST_CONFIDENCE = 0.5
SMALLEST = 0.0001
"""Smallest limit, and smallest distance of a limit from 1: tens of thousands of parts show it."""
_LIMIT = re.compile(r"\s*([a-z-]+)\s*(?::\s*(.+?))?\s*(<=|>=|≤|≥)\s*(\d*\.?\d+)\s*(%?)\s*")
_SIGNS = {"≤": "<=", "≥": ">="}


@dataclass(frozen=True)
class Limit:
    """A limit on a measure."""

    measure: str
    """One of ``MEASURES``."""
    value: float
    kind: str | None = None
    """The kind of defect that a miss rate is limited for; None for all."""

    @property
    def words(self) -> str:
        """The limit as it is written: "miss:scratch<=5%"."""
        kind = f":{self.kind}" if self.kind is not None else ""
        value = f"{self.value:g}" if self.measure == "kappa" else f"{100 * self.value:g}%"
        return f"{self.measure}{kind}{MEASURES[self.measure]}{value}"

    @property
    def failure_rate(self) -> float:
        """The largest share of failures: of parts with different verdicts, for a limit on the repeatability."""
        return self.value if MEASURES[self.measure] == "<=" else 1 - self.value


@dataclass(frozen=True)
class CheckedLimit:
    """A limit, compared with the results."""

    limit: Limit
    is_met: bool
    seen: float | None
    """What was measured."""
    bound: float | None
    """What was compared with the limit: the exact bound of a share, or the kappa itself."""
    failures: int | None = None
    parts: int | None = None
    more: int | None = None
    """How many more parts without a failure would show it; None for a kappa."""
    plan: Sequence[PlanRow] = ()
    is_refuted: bool = False
    """Whether a share is on the wrong side of its limit, with the same confidence."""

    @property
    def words(self) -> str:
        """The result in one sentence."""
        if self.parts is None or self.failures is None or self.bound is None:
            seen = "not defined: only one verdict occurs" if self.seen is None else f"{self.seen:.3f}"
            return f"{self.limit.words}: the smallest kappa is {seen}."
        bound = self.bound
        shown = (
            f"at most {percent_at_most(bound)}"
            if MEASURES[self.limit.measure] == "<="
            else f"at least {percent_at_least(bound)}"
        )
        counted = (
            f"{self.limit.words}: {self.failures} of {self.parts} {_FAILED[self.limit.measure]}, which shows {shown}."
        )
        if self.is_refuted:
            return f"{counted} With the same confidence, the limit does not hold."
        if self.is_met or self.more is None:
            return counted
        return f"{counted} {self.more:,} more without a failure would show it."

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {
            "limit": self.limit.words,
            "met": self.is_met,
            "refuted": self.is_refuted,
            "seen": self.seen,
            "bound": self.bound,
            "failures": self.failures,
            "parts": self.parts,
            "more_without_failure": self.more,
            "plan": [row.to_json() for row in self.plan],
        }


_FAILED = {
    "miss": "defects were missed",
    "false-reject": "good images were rejected",
    "repeatability": "parts got different verdicts",
}


def parse_limits(texts: Sequence[str], measures: Sequence[str] = tuple(MEASURES)) -> list[Limit]:
    """The limits that texts such as "miss<=5%" or "kappa>=0.75" name; raise ConfigError for another text."""
    return [_parse(text, measures) for text in texts]


def _parse(text: str, measures: Sequence[str]) -> Limit:
    examples = ", ".join(f"{name}{MEASURES[name]}{'0.75' if name == 'kappa' else _example(name)}" for name in measures)
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise ConfigError(f"'{text}' is not a limit; write one of: {examples}")
    measure, kind, sign, number, percent = found.groups()
    if measure not in measures:
        raise ConfigError(f"'{measure}' in '{text}' cannot be limited here; write one of: {examples}")
    if _SIGNS.get(sign, sign) != MEASURES[measure]:
        raise ConfigError(f"a limit on {measure} is written with {MEASURES[measure]}; got '{text}'")
    if kind is not None and measure != "miss":
        raise ConfigError(f"only a limit on miss can name a kind of defect; got '{text}'")
    value = float(number) / (100 if percent else 1)
    if not SMALLEST <= value <= 1 - SMALLEST:
        raise ConfigError(f"a limit is between {SMALLEST:g} and {1 - SMALLEST:g}, or the same in %; got '{text}'")
    return Limit(measure, value, kind)


def _example(measure: str) -> str:
    return "5%" if MEASURES[measure] == "<=" else "95%"


def check_confidence(confidence: float) -> None:
    """Raise ConfigError for a confidence that proves nothing, or that no number of parts reaches."""
    if not LEAST_CONFIDENCE <= confidence < 1:
        raise ConfigError(f"`confidence` is at least {LEAST_CONFIDENCE} and below 1; got {confidence:g}")


def check_given(limits: Sequence[Limit], folders: Sequence[str], has_inspectors: bool) -> None:
    """Raise ConfigError if one of these folders is missing that a limit or the inspectors need."""
    if not folders:
        raise ConfigError("there is nothing to test; give `good`, `defects` or `repeats`")
    if has_inspectors and not {"good", "defects"} <= set(folders):
        raise ConfigError("`inspectors` needs `good` and `defects`: the images that they judged")
    for limit in limits:
        missing = [name for name in NEEDS[limit.measure] if name not in folders]
        if missing:
            raise ConfigError(f"'{limit.words}' needs `{missing[0]}`")


def check_kinds(limits: Sequence[Limit], kinds: Collection[str]) -> None:
    """Raise ConfigError if a limit names a kind of defect that no image has."""
    for limit in limits:
        if limit.kind is not None and limit.kind not in kinds:
            known = ", ".join(sorted(kinds)) or "none"
            raise ConfigError(f"'{limit.words}' names a kind of defect that no image has; there are: {known}")


def plans(claims: Sequence[Limit], confidence: float) -> dict[str, list[PlanRow]]:
    """Claim → the numbers of parts that show it."""
    check_confidence(confidence)
    return {claim.words: sampling_plan(claim.failure_rate, confidence) for claim in claims}


@dataclass(frozen=True)
class Measured:
    """What an acceptance test measured, as far as limits can name it."""

    misses: Proportion | None
    misses_by_kind: Mapping[str, Proportion]
    false_rejects: Proportion | None
    different: Proportion | None
    """Parts whose shots got different verdicts."""
    kappas: Sequence[float | None]
    """Kappas of the model: with the reference and with each inspector."""
    confidence: float

    def check(self, limit: Limit) -> CheckedLimit:
        """Compare a limit with the results. Raise ConfigError if it names what was not measured."""
        if limit.measure == "kappa":
            return self._check_kappa(limit)
        failed = self._failures(limit)
        rate = limit.failure_rate
        inverted = MEASURES[limit.measure] == ">="
        seen = failed.inverse.share if inverted else failed.share
        bound = 1 - failed.upper if inverted else failed.upper
        return CheckedLimit(
            limit,
            is_met=failed.shows_at_most(rate),
            seen=seen,
            bound=bound,
            failures=failed.hits,
            parts=failed.trials,
            more=more_needed(failed.hits, failed.trials, rate, self.confidence),
            plan=sampling_plan(rate, self.confidence),
            is_refuted=failed.lower > rate,
        )

    def _failures(self, limit: Limit) -> Proportion:
        counted = {"miss": self.misses, "false-reject": self.false_rejects, "repeatability": self.different}
        found = counted[limit.measure]
        if limit.kind is not None:
            check_kinds([limit], self.misses_by_kind)
            found = self.misses_by_kind[limit.kind]
        if found is None:
            raise ConfigError(f"'{limit.words}' needs `{NEEDS[limit.measure][0]}`")
        return found

    def _check_kappa(self, limit: Limit) -> CheckedLimit:
        if not self.kappas:
            raise ConfigError(f"'{limit.words}' needs `good` and `defects`")
        known = [kappa for kappa in self.kappas if kappa is not None]
        smallest = min(known) if len(known) == len(self.kappas) else None
        return CheckedLimit(limit, smallest is not None and smallest >= limit.value, smallest, smallest)
