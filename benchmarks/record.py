"""Write the result files in benchmarks/results/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from patchsvdd.evaluation.run_info import circumstances as circumstances

RESULTS = Path(__file__).parent / "results"


def write_result(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
