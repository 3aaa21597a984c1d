"""Collect the source of the distribution ``patchsvdd-runtime``: every module that ``patchsvdd.runtime`` imports.

python distribution/runtime/collect.py build/runtime
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCE = ROOT / "src"


def imported_names(node: ast.AST) -> Iterator[str]:
    """Names that a module may import, inside functions too; imports for type checkers only are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imported_names(child)


def files_of(name: str) -> Iterator[Path]:
    """The file of a module of this package and those of the packages that contain it."""
    for parent in (path := SOURCE.joinpath(*name.split(".")), *path.parents):
        if SOURCE in parent.parents:
            yield from (file for file in (parent / "__init__.py", parent.with_suffix(".py")) if file.exists())


def runtime_files() -> set[Path]:
    """All Python files that ``patchsvdd.runtime`` needs."""
    found: set[Path] = set()
    waiting = set((SOURCE / "patchsvdd" / "runtime").glob("*.py"))
    while waiting:
        path = waiting.pop()
        found.add(path)
        for name in imported_names(ast.parse(path.read_text("utf-8"))):
            waiting |= set(files_of(name)) - found
    return found


def collect(folder: Path) -> None:
    """Fill ``folder`` with a project that builds on its own; what it contained is deleted."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in sorted({*runtime_files(), SOURCE / "patchsvdd" / "py.typed"}):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for path in (HERE / "pyproject.toml", HERE / "README.md", ROOT / "LICENSE"):
        shutil.copy(path, folder)


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
