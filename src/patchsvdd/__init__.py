"""Find defects in images when all you have are images of good parts.

from patchsvdd import PatchSVDD

detector = PatchSVDD.fit("good/")
inspection = detector.inspect("new.png")
print(inspection.verdict, inspection.score)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from patchsvdd.core.version import __version__ as __version__

if TYPE_CHECKING:
    from patchsvdd.core.config import Config
    from patchsvdd.core.critic_settings import CriticSettings
    from patchsvdd.core.errors import (
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
    from patchsvdd.core.presets import PRESETS, preset
    from patchsvdd.core.roi import Roi
    from patchsvdd.core.scales import Scale
    from patchsvdd.detector.detector import PatchSVDD
    from patchsvdd.detector.recalibration import recalibrate_model
    from patchsvdd.detector.train_model import train_model
    from patchsvdd.scoring.explanation import Explanation
    from patchsvdd.scoring.inspection import Inspection
    from patchsvdd.scoring.regions import Region
    from patchsvdd.training.hooks import TrainingHooks, TrainingProgress


_MODULES = {
    "PRESETS": "core.presets",
    "ClusterError": "core.errors",
    "Config": "core.config",
    "CriticSettings": "core.critic_settings",
    "ConfigError": "core.errors",
    "DatasetError": "core.errors",
    "ExportRefused": "core.errors",
    "Explanation": "scoring.explanation",
    "ImageError": "core.errors",
    "Inspection": "scoring.inspection",
    "Interrupted": "core.errors",
    "ModelError": "core.errors",
    "OutputError": "core.errors",
    "PatchSVDD": "detector.detector",
    "PatchSVDDError": "core.errors",
    "Region": "scoring.regions",
    "Roi": "core.roi",
    "Scale": "core.scales",
    "TrainingCollapsed": "core.errors",
    "TrainingHooks": "training.hooks",
    "TrainingProgress": "training.hooks",
    "preset": "core.presets",
    "recalibrate_model": "detector.recalibration",
    "train_model": "detector.train_model",
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
    "recalibrate_model",
    "train_model",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the command line starts without waiting for PyTorch."""
    if name in _MODULES:
        return getattr(import_module(f"patchsvdd.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'patchsvdd' has no attribute '{name}'")
