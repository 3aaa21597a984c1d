"""Provenance recorded with every stored result: hardware, date, commit and versions."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from patchsvdd.core.device import describe_device
from patchsvdd.core.version import __version__


def circumstances(device: torch.device) -> dict[str, Any]:
    """Hardware, date, commit and versions of this run."""
    return {
        "hardware": describe_device(device),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "versions": {"patchsvdd": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
    }


@cache
def commit() -> str:
    """The commit of the running code: PATCHSVDD_COMMIT, else ``git describe`` of its checkout, else the version of the
    installed package."""
    if "PATCHSVDD_COMMIT" in os.environ:
        return os.environ["PATCHSVDD_COMMIT"]
    command = ["git", "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return f"patchsvdd {__version__}"
    return described.stdout.strip() or f"patchsvdd {__version__}"
