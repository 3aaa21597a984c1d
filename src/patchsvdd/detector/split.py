"""Splits good images into training and held-out images."""

from __future__ import annotations

from dataclasses import dataclass

from patchsvdd.core.config import Config
from patchsvdd.core.errors import DatasetError
from patchsvdd.critic.validation import hold_out

FEWEST_TO_HOLD_OUT = 3
"""Minimum number of good images to hold some out for validating an encoder."""


@dataclass(frozen=True)
class Split:
    """Indices of the images to train on, and of those held out to validate the result."""

    trained: list[int]
    held_out: list[int]

    @classmethod
    def of(cls, config: Config, count: int) -> Split:
        """Return a split that trains on all images unless there is a critic or the untrained encoder may be kept.

        Both need images that nothing was trained on: scores on training images say nothing about new ones.
        """
        if config.critic is None and (config.stop == "end" or count < FEWEST_TO_HOLD_OUT):
            return cls(list(range(count)), [])
        require_two(count)
        return cls(*hold_out(count))


def require_two(count: int) -> None:
    """Raise DatasetError if there are too few good images for a threshold."""
    if count < 2:
        raise DatasetError(f"a threshold requires at least 2 good images; got {count}")
