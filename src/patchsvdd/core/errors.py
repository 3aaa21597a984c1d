"""The exception tree: every error a user can cause.

    PatchSVDDError
    ├── ConfigError        a setting that cannot be used
    ├── ImageError         one image that cannot be used (carries its path)
    ├── DatasetError       a folder or a set of images that cannot be used
    ├── ModelError         a model folder that cannot be read
    ├── OutputError        a file or folder that cannot be written
    ├── ExportRefused      an exported file whose results differ from the model's
    ├── TrainingCollapsed  the encoder maps every patch to one point
    ├── ClusterError       a cluster that is missing, too small or failed
    └── Interrupted        stopped on request; finished work is on disk

Each message says what was wrong, what was given, and what to do. A message names a setting in backticks, by its
name in Python: `image_size`, or `device="cpu"` with a value. ``with_settings`` spells these as the caller's users do.
"""

from __future__ import annotations

import re
from collections.abc import Callable

SETTING = re.compile(r"`(\w+)(?:=([^`]+))?`")
"""A setting in a message, and the value that the message suggests for it."""


def with_settings(message: str, spell: Callable[[str, str | None], str]) -> str:
    """Return the message with ``spell(name, value)`` in place of each setting; ``value`` has no quotes, or is None."""
    return SETTING.sub(lambda found: spell(found[1], found[2] and found[2].strip("\"'")), message)


class PatchSVDDError(Exception):
    """The root of every error this package raises on purpose."""


class ConfigError(PatchSVDDError):
    """A setting that cannot be used."""


class ImageError(PatchSVDDError):
    """One image that cannot be used: its ``name`` and the ``reason``."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{name}: {reason}")


class DatasetError(PatchSVDDError):
    """A folder or a set of images that cannot be used."""


class ModelError(PatchSVDDError):
    """A model folder that is missing, damaged, or from a newer version."""


class OutputError(PatchSVDDError):
    """A file or folder that cannot be written to."""


class ExportRefused(PatchSVDDError):
    """The results of an exported file differ from the model's; the file was not kept."""


class TrainingCollapsed(PatchSVDDError):
    """The encoder maps every patch to (almost) the same embedding."""


class ClusterError(PatchSVDDError):
    """A cluster that is missing, too small or failed."""


class Interrupted(PatchSVDDError):
    """Work was stopped on request after its state had been saved."""
