"""Write the result files in benchmarks/results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from patchsvdd.evaluation.run_info import circumstances as circumstances

RESULTS = Path(__file__).parent / "results"
NUMBERS = re.compile(r"\[\s+([-+.\deE,\s]+?)\s+\]")


def write_result(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    text = NUMBERS.sub(lambda numbers: f"[{' '.join(numbers[1].split())}]", text)  # a list of numbers on one line
    path.write_text(text + "\n")
