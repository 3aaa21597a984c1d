"""Find defects in images when all you have is pictures of good parts.

from patchsvdd import PatchSVDD

detector = PatchSVDD.fit("good/")
inspection = detector.inspect("new.png")
print(inspection.verdict, inspection.score)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patchsvdd.config import Config, CriticSettings, Scale
    from patchsvdd.detector import PatchSVDD
    from patchsvdd.errors import (
        ClusterError,
        ConfigError,
        DatasetError,
        ExportRefused,
        ImageError,
        Interrupted,
        ModelError,
        OutputError,
        PatchSVDDError,
        TrainingCollapsed,
    )
    from patchsvdd.explanation import Explanation
    from patchsvdd.inspection import Inspection
    from patchsvdd.presets import PRESETS, preset
    from patchsvdd.regions import Region
    from patchsvdd.roi import Roi
    from patchsvdd.training import TrainingHooks, TrainingProgress

__version__ = "0.1.0"

_HOMES = {
    "PRESETS": "presets",
    "ClusterError": "errors",
    "Config": "config",
    "CriticSettings": "config",
    "ConfigError": "errors",
    "DatasetError": "errors",
    "ExportRefused": "errors",
    "Explanation": "explanation",
    "ImageError": "errors",
    "Inspection": "inspection",
    "Interrupted": "errors",
    "ModelError": "errors",
    "OutputError": "errors",
    "PatchSVDD": "detector",
    "PatchSVDDError": "errors",
    "Region": "regions",
    "Roi": "roi",
    "Scale": "config",
    "TrainingCollapsed": "errors",
    "TrainingHooks": "training",
    "TrainingProgress": "training",
    "preset": "presets",
}

__all__ = [
    "PRESETS",
    "ClusterError",
    "Config",
    "ConfigError",
    "CriticSettings",
    "DatasetError",
    "Explanation",
    "ExportRefused",
    "ImageError",
    "Inspection",
    "Interrupted",
    "ModelError",
    "OutputError",
    "PatchSVDD",
    "PatchSVDDError",
    "Region",
    "Roi",
    "Scale",
    "TrainingCollapsed",
    "TrainingHooks",
    "TrainingProgress",
    "preset",
]


def __getattr__(name: str) -> Any:
    """Public names on first use, so that ``patchsvdd --help`` need not wait for PyTorch."""
    if name in _HOMES:
        return getattr(import_module(f"patchsvdd.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'patchsvdd' has no attribute '{name}'")
