"""The search by cells in an exported file, in both runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd import ExportRefused, PatchSVDD
from patchsvdd.core.onnx_writer import Graph, model_pieces
from patchsvdd.core.signals import openvino_core
from patchsvdd.export import export as exporting
from patchsvdd.export import tree_nodes
from patchsvdd.export.export import export
from patchsvdd.export.parity import CELLS, EXACT, Limits, Parity
from patchsvdd.export.tree_nodes import add_tree_distances
from patchsvdd.memory.cell_tree import build_tree
from patchsvdd.runtime import Detector
from support.command_line import run
from support.parts import draw_part

pytestmark = pytest.mark.slow

onnxruntime = pytest.importorskip("onnxruntime", reason="exports are compared in ONNX Runtime")
pytest.importorskip("openvino", reason="exports are compared in OpenVINO")


def in_onnxruntime(graph: Graph, queries: Tensor) -> NDArray[Any]:
    session = onnxruntime.InferenceSession(b"".join(model_pieces(graph)), providers=["CPUExecutionProvider"])
    found: NDArray[Any] = session.run(None, {"queries": queries.numpy()})[0]
    return found


def in_openvino(graph: Graph, queries: Tensor) -> NDArray[Any]:
    core = openvino_core()
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    network = core.compile_model(core.read_model(b"".join(model_pieces(graph))), "CPU", settings)
    return np.array(network({"queries": queries.numpy()})[0])


each_runtime = pytest.mark.parametrize("evaluate", [in_onnxruntime, in_openvino])


def graph_of(vectors: Tensor, per_image: int) -> Graph:
    graph = Graph("distances")
    queries = graph.input("queries", "float32", ["Q", vectors.shape[1]])
    graph.output(add_tree_distances(graph, build_tree(vectors), queries, per_image), "float32", ["Q"])
    return graph


def patches(rows: int, seed: int) -> Tensor:
    """Vectors (rows, 64) near a surface of six dimensions, as embeddings of patches are, and a plain ground."""
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(0)
    wide, narrow = torch.randn((6, 96), generator=fixed), torch.randn((96, 64), generator=fixed) / 10
    vectors = (torch.randn((rows, 6), generator=generator) @ wide).tanh() @ narrow
    vectors += 0.01 * torch.randn(vectors.shape, generator=generator)
    vectors[::5] = 0.9 + 1e-4 * torch.randn(vectors[::5].shape, generator=generator)
    return vectors


@each_runtime
def test_nearly_all_distances_are_those_of_an_exact_search(evaluate: Any) -> None:
    vectors, queries = patches(30_000, 1), patches(1000, 2)
    queries[:20] = vectors[:20]
    queries[20] += 5  # a defect
    found = evaluate(graph_of(vectors, 500), queries)
    expected = torch.cdist(queries.double(), vectors.double()).amin(1).numpy()
    error = (found - expected) / expected.max()
    assert error.min() > -2e-3  # rows are rounded
    assert np.abs(error[:21]).max() < 2e-3
    assert error.mean() < 2e-3
    assert np.quantile(error, 0.95) < 5e-3


@each_runtime
def test_a_small_memory_is_searched_whole(evaluate: Any) -> None:
    vectors, queries = patches(150, 3), patches(40, 4)
    found = evaluate(graph_of(vectors, 20), queries)
    expected = torch.cdist(queries.double(), vectors.double()).amin(1).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-3 * expected.max())


@each_runtime
def test_large_images_are_searched_in_parts(evaluate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = patches(5000, 5), patches(300, 6)
    whole = evaluate(graph_of(vectors, 150), queries)
    monkeypatch.setattr(tree_nodes, "AT_ONCE", 64)
    monkeypatch.setattr(tree_nodes, "BUDGET", 1)
    np.testing.assert_allclose(evaluate(graph_of(vectors, 150), queries), whole, atol=1e-5)


def test_a_large_memory_is_exported_in_cells(
    detector: PatchSVDD, good_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MIN_ROWS", 100)
    for wanted in ("onnx", "openvino"):
        done = export(detector, tmp_path / f"part.{wanted}", good_folder, format=wanted)
        assert done.about.search == "cells"
        assert done.parity.images[0].limits == CELLS
        runner = Detector(done.path)
        assert runner.about.search == "cells"
        image = draw_part(33, defect=True)
        found = runner.inspect(image).score
        assert found == pytest.approx(detector.inspect(image).score, rel=0.01)
        assert Detector(done.path, few=True).inspect(image).score == pytest.approx(found, rel=1e-6)
    exact = export(detector, tmp_path / "exact.onnx", good_folder, search="exact")
    assert exact.about.search == "exact"
    assert exact.parity.images[0].limits == EXACT


def test_a_search_by_cells_that_differs_gives_way_to_an_exact_one(
    detector: PatchSVDD, good_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MIN_ROWS", 100)
    monkeypatch.setattr(exporting, "CELLS", Limits(1e-9, 1e-9))
    compared: list[Parity] = []
    done = export(detector, tmp_path / "part.onnx", good_folder, on_compared=compared.append)
    assert done.about.search == "exact"
    assert [one.holds for one in compared] == [False, True]
    with pytest.raises(ExportRefused, match=r"allowed: 1e-09.*; use `search=exact`"):
        export(detector, tmp_path / "other.onnx", good_folder, search="cells")
    assert [path.name for path in tmp_path.iterdir()] == ["part.onnx"]


def test_an_unknown_search_is_named(tmp_path: Path) -> None:
    arguments = ("export", tmp_path, "--images", tmp_path, "--out", tmp_path / "part.onnx", "--search", "fast")
    assert "--search must be one of auto, exact, cells; got 'fast'" in run(*arguments).error()
