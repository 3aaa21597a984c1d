"""The tables of README.md and docs/ from the result files, between markers; nothing is typed by hand.

python benchmarks/tables.py            # rewrite them
python benchmarks/tables.py --check    # fail if a table is not what its result file says
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any

from patchsvdd.evaluation.benchmark import markdown_table
from record import RESULTS

ROOT = RESULTS.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKER = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
TASKS = ("detection_auroc", "segmentation_auroc")


def benchmark_paper() -> str:
    return markdown_table(_read("benchmark-paper"))


def losses() -> str:
    return _comparison(_read("paper-losses"))


def hierarchy() -> str:
    return _comparison(_read("paper-hierarchy"))


def baselines() -> str:
    categories = _read("paper-baselines")["categories"]
    lines = [
        "| category | " + " | ".join(f"{kind}, {one}" for kind in ("random", "raw") for one in _MAPS.values()) + " |"
    ]
    lines.append("|---" * (1 + 2 * len(_MAPS)) + "|")
    for name, entry in categories.items():
        cells = [_pair(entry[kind][one]) for kind in ("random", "raw") for one in _MAPS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_MAPS = {"32": "32 px", "64": "64 px", "product": "product", "published": "paper"}
TABLES: dict[str, Callable[[], str]] = {
    "benchmark-paper": benchmark_paper,
    "losses": losses,
    "hierarchy": hierarchy,
    "baselines": baselines,
}


def _comparison(data: dict[str, Any]) -> str:
    """Variants as columns, categories as rows; "detection / segmentation" in each cell."""
    variants = list(data["means"])
    lines = ["| category | " + " | ".join(variants) + " |", "|---" * (1 + len(variants)) + "|"]
    for name, row in data["categories"].items():
        lines.append(f"| {name} | {' | '.join(_pair(row[variant]) for variant in variants)} |")
    lines.append(f"| **mean** | {' | '.join(_pair(data['means'][variant]) for variant in variants)} |")
    theirs = [_pair(data["published"].get(variant, {})) for variant in variants]
    lines.append(f"| the paper, mean of 15 categories | {' | '.join(theirs)} |")
    return "\n".join(lines) + "\n"


def _pair(values: dict[str, float | None]) -> str:
    """ "0.987 / 0.981"."""
    known = [values.get(task) for task in TASKS]
    return "" if known == [None, None] else " / ".join("–" if value is None else f"{value:.3f}" for value in known)


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def fill(text: str) -> str:
    """The document with every marked table as its result file has it."""
    return MARKER.sub(lambda match: match[1] + "\n" + TABLES[match[2]]() + "\n" + match[3], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for path in DOCUMENTS:
        before = path.read_text()
        after = fill(before)
        if before == after:
            continue
        if args.check:
            raise SystemExit(f"{path.name}: a table differs from its result file; run python benchmarks/tables.py")
        path.write_text(after)
        print(f"{path.name} rewritten")


if __name__ == "__main__":
    main()
