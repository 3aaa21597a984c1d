"""One direction: a package imports those below it, never those above."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import patchsvdd

PACKAGE = Path(patchsvdd.__file__).parent
LAYERS = [
    *(["core"], ["images"], ["encoder"], ["training", "memory"], ["scoring"], ["critic"], ["detector"]),
    *(
        ["baselines"],
        ["runtime"],
        ["report", "export"],
        ["evaluation"],
        ["apps.line"],
        ["apps.serve", "apps.watch", "apps.cluster", "apps.demo"],
    ),
    *(["apps.cli"], ["__init__", "__main__"]),
]
"""Packages from the bottom up. Those on one level do not know each other."""
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
LIBRARY = {name for layer in LAYERS[:8] for name in layer}
"""What runs with torch, numpy, Pillow and safetensors alone."""
LIBRARY_PACKAGES = {"torch", "numpy", "PIL", "safetensors"}
OPTIONAL_PACKAGES = {
    **{"graph_search": {"faiss"}, "engines": {"openvino", "onnxruntime"}},
    **{
        name: {"triton"}
        for name in (
            "triton_support",
            "gpu_features_kernels",
            "gpu_search_kernels",
            "gpu_network_kernels",
            "fused_kernels",
        )
    },
}
"""Packages that some modules use if they are installed."""

FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(("patchsvdd", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
}


def home(path: Path) -> str:
    """The package of a file; of an app, the app."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:2]) if parts[0] == "apps" and parts[1] != "__init__" else parts[0]


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules a file imports, anywhere in the file, type checks included."""
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


@pytest.mark.parametrize("name", LEVEL)
def test_imports_only_from_below(name: str) -> None:
    for path in (path for path in FILES if home(path) == name):
        for there in (home(MODULES[other]) for other in imports(path) if other in MODULES):
            assert there == name or LEVEL[there] < LEVEL[name], f"{path.relative_to(PACKAGE)} imports {there}"


def test_every_package_has_its_layer() -> None:
    assert {home(path) for path in FILES} == {*LEVEL, "apps"}


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


def test_the_library_needs_four_packages_only() -> None:
    for path in FILES:
        if home(path) in LIBRARY:
            outside = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names - {"patchsvdd"}
            more = outside - LIBRARY_PACKAGES - OPTIONAL_PACKAGES.get(path.stem, set())
            assert not more, f"{path.relative_to(PACKAGE)} imports {more}"


def test_only_the_cluster_imports_ray() -> None:
    using = {path for path in FILES if any(name.split(".")[0] == "ray" for name in imports(path))}
    assert {home(path) for path in using} == {"apps.cluster"}
    assert all(path.stem.startswith("ray_") for path in using)


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        if home(path) != "apps.cli":
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            assert not any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls), path.name


def test_the_tree_fits_on_a_screen() -> None:
    assert len([entry for entry in PACKAGE.iterdir() if entry.name != "__pycache__"]) <= 17
