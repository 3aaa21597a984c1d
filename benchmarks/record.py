"""What every result file under benchmarks/results/ says about how it came about."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from patchsvdd import __version__

RESULTS = Path(__file__).parent / "results"


def circumstances(device: torch.device) -> dict[str, Any]:
    """Hardware, date, commit and versions."""
    from patchsvdd.device import describe_device

    return {
        "hardware": describe_device(device),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": os.environ.get("PATCHSVDD_COMMIT") or _commit(),
        "versions": {"patchsvdd": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
    }


def write_result(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _commit() -> str:
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"
