"""Disk size of the runner without PyTorch: install a fresh environment, measure it, and run an export in it.

python benchmarks/runtime_size.py part.onnx image.png --out benchmarks/results/runtime-size.json

Two sets of packages: the small one of constraints-runtime.txt, installed without bytecode and without packages that
are never imported (--no-deps), and the newest one with all dependencies, as pip installs it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from record import circumstances, write_result

ROOT = Path(__file__).parent.parent
PACKAGES = ("numpy", "onnxruntime", "pillow")


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def measure(folder: Path, flags: list[str], model: Path, image: Path) -> dict[str, Any]:
    """Create an environment in ``folder``; return the packages, the size and the output of the runner."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, *flags, *PACKAGES], check=True)
    subprocess.run([*pip, "--no-deps", "--no-compile", str(ROOT)], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    listed = subprocess.run([*pip[:-2], "list", "--format", "json"], check=True, capture_output=True, text=True)
    bytes_ = {entry.name: size_of(entry) for entry in site.iterdir() if entry.is_dir()}
    command = [str(python), "-B", "-m", "patchsvdd.runtime", str(model), str(image), "--json"]
    alone = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }  # the installed package, not ours
    ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=alone)
    return {
        "megabytes": round(size_of(site) / 1e6, 1),
        "folders": {name: round(size / 1e6, 2) for name, size in sorted(bytes_.items()) if size > 10_000},
        "packages": {one["name"]: one["version"] for one in json.loads(listed.stdout)},
        "said": {key: json.loads(ran.stdout)[key] for key in ("score", "threshold", "verdict")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    small = ["--no-deps", "--no-compile", "--constraint", str(ROOT / "constraints-runtime.txt")]
    newest = ["--constraint", str(ROOT / "constraints.txt")]
    with tempfile.TemporaryDirectory() as temporary:
        sets = {
            name: measure(Path(temporary, name), flags, args.model.resolve(), args.image.resolve())
            for name, flags in (("small", small), ("newest", newest))
        }
    for name, one in sets.items():
        print(name, one["megabytes"], "MB", one["said"]["score"])
    write_result(args.out, {**circumstances(torch.device("cpu")), "seed": None, "limit_megabytes": 100, "sets": sets})


if __name__ == "__main__":
    main()
