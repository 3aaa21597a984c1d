"""One direction: upper layers import lower ones, never the reverse."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import patchsvdd

PACKAGE = Path(patchsvdd.__file__).parent

LAYERS = [
    ["errors", "kernels", "signals", "onnx_file"],
    ["memory_size", "roi", "config", "files", "halves", "cells", "cuda_graph", "team"],
    [
        "presets",
        "device",
        "decoding",
        "images",
        "patches",
        "components",
        "opening",
        "regions",
        "traits",
        "usual",
        "pictures",
        "comparison",
        "ranking",
        "defect_shapes",
        "defect_fills",
        "defects",
        "duplicates",
        "lighting",
    ],
    [
        "normalization",
        "critic_tiles",
        "conformal",
        "encoder",
        "losses",
        "neighbors",
        "layered_search",
        "gpu_search",
        "graph_search",
    ],
    ["gpu_features", "onnx_graph", "engines", "embedder", "fused_stack", "critic", "fusion", "validation"],
    ["memory", "segments", "anomaly_map", "position", "calibration", "checkpoint", "pairs"],
    ["thinning", "reach", "collapse", "fused_training", "model_file", "searching", "map_maker", "sharding"],
    ["trainer", "training", "explanation", "inspection", "category", "reference", "pipeline", "strips"],
    ["drawn_roi", "explaining", "critic_training", "loading", "provenance"],
    ["crew"],
    ["learning", "schedule"],
    ["selection", "keeping"],
    ["detector"],
    ["prepare", "recalibration", "drift"],
    ["addition"],
    ["upkeep"],
    ["runtime"],
    ["export"],
    ["evaluation"],
    ["output"],
    ["demo", "paper", "watching", "serve", "archive"],
    ["cluster"],
    ["cli"],
    ["__main__"],
]
"""Modules and folders from the bottom up. A module may import lower layers and its own."""
CORE = {name for layer in LAYERS[:16] for name in layer}
CORE_PACKAGES = {"torch", "numpy", "PIL", "safetensors"}
OPTIONAL_PACKAGES = {"kernels": {"triton"}, "graph_search": {"faiss"}, "engines": {"openvino", "onnxruntime"}}
"""What some modules use where it is installed."""
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
MODULES = {
    ".".join(("patchsvdd", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
}
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


def home(path: Path) -> str:
    """The module or folder a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules a file imports, wherever in the file, those for type checks included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            assert node.module is not None
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = whole & MODULES.keys()
            yield from modules
            if modules != whole:
                yield node.module


def test_every_module_has_its_layer() -> None:
    assert {home(path) for path in FILES} == set(LEVEL)


@every_file
def test_imports_only_from_below(path: Path) -> None:
    here = home(path)
    for name in imports(path):
        if name.startswith("patchsvdd."):
            there = name.split(".")[1]
            assert LEVEL[there] <= LEVEL[here], f"{here} imports {there}, which lies above it"
            assert there != "cli" or here in ("cli", "__main__")


def test_the_core_imports_no_edge() -> None:
    for path in FILES:
        if home(path) in CORE:
            edges = {name.split(".")[1] for name in imports(path) if name.startswith("patchsvdd.")} - CORE
            assert not edges, f"{path.name} imports {edges}"


def test_modules_do_not_import_in_circles() -> None:
    graph = {name: set(imports(path)) & MODULES.keys() for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail, name))
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_core_needs_four_packages_only() -> None:
    for path in FILES:
        if home(path) in CORE:
            outside = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names - {"patchsvdd"}
            more = outside - CORE_PACKAGES - OPTIONAL_PACKAGES.get(home(path), set())
            assert not more, f"{path.name} imports {more}"


def test_only_one_folder_knows_ray() -> None:
    assert {home(path) for path in FILES if any(name.split(".")[0] == "ray" for name in imports(path))} == {"cluster"}


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        if home(path) != "cli":
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            assert not any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls), path.name
