"""Keep the results of a cache of experiments in one small file, and restore them to another cache.

    python benchmarks/kept_results.py keep CACHE
    python benchmarks/kept_results.py restore CACHE

Kept are metrics, settings, provenance and what was computed from embeddings: a few kB per experiment. Networks, maps
and scores of single images are not kept. With restored results, ``patchsvdd paper`` and ``patchsvdd benchmark`` train
only what is missing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from patchsvdd.core.files import atomic_write
from record import RESULTS

LEFT_OUT: dict[str, Any] = {"curves": {}, "images": [], "kept": [], "calibration": None}
"""Parts of a result that are not kept, and what a restored result has instead."""


def keep(cache: Path, file: Path) -> int:
    """Add all results in ``cache`` to those in ``file``; return how many there are now."""
    kept = _read(file)
    for path in sorted(cache.glob("*/*.json")):
        data = json.loads(path.read_bytes().decode("utf-8", "surrogatepass"))
        if path.name.startswith("test-"):
            data = {name: value for name, value in data.items() if name not in LEFT_OUT}
        kept.setdefault(path.parent.name, {})[path.stem] = data
    head = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in _provenance(kept).items()]
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept)]  # one line per experiment
    with atomic_write(file) as out:
        out.write(("{\n" + ",\n".join([*head, '"trainings": {\n' + ",\n".join(lines) + "\n}"]) + "\n}\n").encode())
    return len(kept)


def restore(file: Path, cache: Path) -> int:
    """Write the results in ``file`` to ``cache`` unless it has them; return how many were written."""
    written = 0
    for folder, files in _read(file).items():
        for name, data in files.items():
            path = cache / folder / f"{name}.json"
            if path.is_file():
                continue
            whole = {**LEFT_OUT, **data} if name.startswith("test-") else data
            with atomic_write(path) as out:
                out.write(json.dumps(whole).encode())
            written += 1
    return written


def _provenance(kept: dict[str, dict[str, Any]]) -> dict[str, list[Any]]:
    """Every hardware, date, commit and seed that the results name."""
    tests = [data for files in kept.values() for name, data in files.items() if name.startswith("test-")]
    found = {name: sorted({test[name] for test in tests if test.get(name)}) for name in ("hardware", "date", "commit")}
    return {**found, "seeds": sorted({test["settings"]["seed"] for test in tests if "seed" in test["settings"]})}


def _read(file: Path) -> dict[str, dict[str, Any]]:
    return json.loads(file.read_bytes())["trainings"] if file.is_file() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("keep", "restore"))
    parser.add_argument("cache", type=Path)
    parser.add_argument("--file", type=Path, default=RESULTS / "paper-kept.json")
    args = parser.parse_args()
    if args.action == "keep":
        print(f"{args.file} holds the results of {keep(args.cache, args.file)} trainings")
    else:
        print(f"{restore(args.file, args.cache)} results were written to {args.cache}")


if __name__ == "__main__":
    main()
