from __future__ import annotations

import dataclasses
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd import ConfigError, DatasetError, ExportRefused, ImageError, ModelError, PatchSVDD
from patchsvdd.core.config import Centering
from patchsvdd.core.memory_size import parse_memory_size
from patchsvdd.core.onnx_writer import Graph, model_pieces
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.core.signals import openvino_core
from patchsvdd.encoder.onnx_features import array_of
from patchsvdd.export import export as exporting
from patchsvdd.export.detector_graph import detector_graph
from patchsvdd.export.export import exact_detector, export
from patchsvdd.export.map_nodes import add_rarity
from patchsvdd.export.network_nodes import add_normalization
from patchsvdd.export.parity import EXACT, Parity
from patchsvdd.export.search_nodes import Blocks, add_distances, sort_into_blocks
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import ScaleMemory
from patchsvdd.runtime import Detector
from patchsvdd.scoring.fusion import TailQuantiles
from support.command_line import run
from support.parts import TINY, TINY_CRITIC, draw_part

pytestmark = pytest.mark.slow

onnxruntime = pytest.importorskip("onnxruntime", reason="exports are compared in ONNX Runtime")
openvino = pytest.importorskip("openvino", reason="exports are compared in OpenVINO")

each_format = pytest.mark.parametrize("wanted", ["onnx", "openvino"])
THREE = (Scale(32, 8), Scale(64, 16), Scale(128, 32))
SETTINGS: dict[str, dict[str, Any]] = {
    "places": {"position_normalization": True, "centering": "exposure"},
    "reach": {"local_scaling": True, "memory": "40%", "centering": "pixel"},
    "flat": {"encoder": "flat", "scales": (Scale(64, 16),), "image_size": (72, 88), "centering": "image"},
    "random, 3 scales": {"encoder": "random", "scales": THREE, "image_size": (140, 132), "crop_size": 128},
    "critic": {"preset": "best", **TINY_CRITIC, "image_size": (70, 100)},
}


def images_of(size: tuple[int, int], count: int, first: int = 0) -> list[NDArray[np.uint8]]:
    return [draw_part(first + seed, size) for seed in range(count)]


def evaluate(graph: Graph, **given: NDArray[Any]) -> NDArray[Any]:
    """The first output of a graph, in ONNX Runtime."""
    session = onnxruntime.InferenceSession(b"".join(model_pieces(graph)), providers=["CPUExecutionProvider"])
    found: NDArray[Any] = session.run(None, given)[0]
    return found


@pytest.fixture(scope="module")
def exported(detector: PatchSVDD, good_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each format, part.onnx and part.openvino, in one folder."""
    folder = tmp_path_factory.mktemp("exported")
    for wanted in ("onnx", "openvino"):
        export(detector, folder / f"part.{wanted}", good_folder, format=wanted, count=2)
    return folder


# The whole way


@pytest.mark.parametrize("name", SETTINGS)
def test_every_kind_of_model_says_the_same_in_both_runtimes(name: str, tmp_path: Path) -> None:
    changes = {"preset": "encoder", **TINY, **SETTINGS[name]}
    side = changes["image_size"]
    size = (side, side) if isinstance(side, int) else side
    detector = PatchSVDD.fit(images_of(size, 4), device="cpu", search="exact", **changes)
    for wanted in ("onnx", "openvino"):
        done = export(detector, tmp_path / wanted, images_of(size, 3, first=50), format=wanted)
        assert done.parity.holds
        assert done.parity.largest_error < 1e-3
        assert done.parity.same_verdicts == len(done.parity.images) == 5


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_critic_alone_and_a_memory_alone_export_too(share: float, critical: PatchSVDD, tmp_path: Path) -> None:
    assert critical.map_builder.fusion is not None
    map_builder = dataclasses.replace(critical.map_builder, fusion=critical.map_builder.fusion.with_share(share))
    detector = PatchSVDD(
        critical.config, dataclasses.replace(critical.learned, map_builder=map_builder), critical.device
    )
    done = export(detector, tmp_path / "part", images_of((64, 64), 1, first=50))
    assert done.parity.holds
    row = array_of(detector.memory.scales[32].embeddings[0]).tobytes()
    assert (row in done.path.read_bytes()) == (share > 0), "a memory without weight is left out"
    assert ("not needed" in done.about.memory) == (share == 0)


@pytest.mark.parametrize("centering", ["image", "exposure"])
def test_the_mean_of_a_whole_image_is_exact_to_the_last_digits(centering: Centering) -> None:
    """ONNX Runtime adds up a mean in one float32 number, which was off by 2e-4 on real images of 256 px."""
    image = torch.from_numpy(draw_part(3, (256, 256)).transpose(2, 0, 1)[None].astype(np.float32))
    normalization = Normalization.fit(image, preset("encoder", centering=centering, image_size=256))
    graph = Graph("normalized")
    pixels = graph.input("pixels", "float32", ["count", 3, 256, 256])
    graph.output(add_normalization(graph, normalization, pixels, (256, 256)), "float32", ["count", 3, 256, 256])
    expected = normalization(image).numpy()
    assert np.abs(evaluate(graph, pixels=image.numpy()) - expected).max() < 2e-6


def test_native_images_are_taken_at_the_size_that_was_learned(tmp_path: Path) -> None:
    detector = PatchSVDD.fit(images_of((66, 80), 3), preset="encoder", device="cpu", **{**TINY, "image_size": "native"})
    with pytest.raises(DatasetError, match="is 64x64 pixels and the export requires 80x66"):
        export(detector, tmp_path / "part.onnx", images_of((64, 64), 1))
    export(detector, tmp_path / "part.onnx", images_of((66, 80), 2, first=9))
    runner = Detector(tmp_path / "part.onnx")
    assert runner.inspect(draw_part(5, (66, 80))).anomaly_map.shape == (66, 80)
    with pytest.raises(ImageError, match="is 64x64 pixels and this export requires 80x66 without resizing"):
        runner.inspect(draw_part(5))


def test_raw_pixels_are_refused_with_the_reason(good_folder: Path, tmp_path: Path) -> None:
    detector = PatchSVDD.fit(
        good_folder, preset="encoder", device="cpu", **TINY, encoder="raw", scales=(Scale(32, 16),)
    )
    with pytest.raises(ConfigError, match="compares raw pixels"):
        export(detector, tmp_path / "part.onnx", good_folder)
    assert list(tmp_path.iterdir()) == []


@each_format
def test_a_damaged_export_is_refused_and_leaves_nothing(
    wanted: str, detector: PatchSVDD, good_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(original: PatchSVDD, *arguments: Any, **options: Any) -> Graph:
        other = exact_detector(original)
        scale = other.memory.scales[32]
        moved = dataclasses.replace(scale, embeddings=scale.embeddings + 0.01)
        other.memory = dataclasses.replace(other.memory, scales={**other.memory.scales, 32: moved})
        return detector_graph(other, *arguments, **options)

    monkeypatch.setattr(exporting, "detector_graph", damaged)
    mine = tmp_path / "part"
    mine.write_text("what was there before")
    told: list[float] = []
    with pytest.raises(ExportRefused, match=r"does not say what the model says on \d of 6 images"):
        export(detector, mine, good_folder, format=wanted, on_compared=lambda one: told.append(one.largest_error))
    assert told[0] > 1e-3
    assert mine.read_text() == "what was there before"
    assert list(tmp_path.iterdir()) == [mine]


def test_an_export_with_another_threshold_is_refused(
    detector: PatchSVDD, good_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Detector, "threshold", 1e-9)
    with pytest.raises(ExportRefused, match="its verdict is anomalous, not good"):
        export(detector, tmp_path / "part.onnx", images_of((64, 64), 2, first=70))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1.0])
@pytest.mark.parametrize("where", ["map", "score"])
def test_an_export_that_gives_wrong_numbers_or_none_is_refused(
    where: str, wrong: float, detector: PatchSVDD, good_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All verdicts stay what they are: only one number of one good image is wrong."""
    original = Detector.run

    def run_wrongly(self: Detector, pixels: NDArray[np.uint8]) -> Any:
        maps, scores, anomalous = (one.copy() for one in original(self, pixels))
        if not anomalous[0]:
            if where == "map":
                maps[0, 3, 5] = wrong
            else:
                scores[0] = wrong
        return maps, scores, anomalous

    monkeypatch.setattr(Detector, "run", run_wrongly)
    compared: list[Parity] = []
    with pytest.raises(ExportRefused, match=r"the map or score of .* is off by .*\(allowed: 0\.001\); try"):
        export(detector, tmp_path / "part.onnx", good_folder, on_compared=compared.append)
    (parity,) = compared
    assert not parity.holds
    assert parity.same_verdicts == len(parity.images)
    assert parity.largest_error == np.inf if not np.isfinite(wrong) else parity.largest_error > EXACT.map
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_gives_no_number_is_not_exported(
    detector: PatchSVDD, good_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = PatchSVDD.anomaly_maps

    def maps(self: PatchSVDD, pixels: Tensor) -> Any:
        found = original(self, pixels)
        combined = found.combined.clone()
        combined[0, 3, 5] = np.nan
        return dataclasses.replace(found, combined=combined)

    monkeypatch.setattr(PatchSVDD, "anomaly_maps", maps)
    with pytest.raises(ExportRefused, match="is off by inf"):
        export(detector, tmp_path / "part.onnx", good_folder)
    assert list(tmp_path.iterdir()) == []


def test_a_thinned_export_is_that_of_the_thinned_detector(detector: PatchSVDD, tmp_path: Path) -> None:
    size = parse_memory_size("30%")
    done = export(detector, tmp_path / "part.onnx", images_of((64, 64), 2, first=9), memory=size)
    assert done.about.memory == "30%: 97 of 32 px, 1 of 64 px"
    image = draw_part(33, defect=True)
    expected = exact_detector(detector, size).inspect(image)
    assert Detector(done.path).inspect(image).score == pytest.approx(expected.score, rel=1e-4)
    assert expected.score > detector.inspect(image).score


# The parts


@settings(max_examples=12)
@given(
    rows=st.integers(1, 700),
    queries=st.integers(1, 9),
    per_image=st.sampled_from([1, 2**16, 2**20]),
    length=st.sampled_from([1, 5, 64]),
    spread=st.sampled_from([1.0, 1e-3]),
    with_local_scale=st.booleans(),
)
def test_distances_are_those_of_the_exact_search(
    rows: int, queries: int, per_image: int, length: int, spread: float, with_local_scale: bool
) -> None:
    generator = torch.Generator().manual_seed(rows)
    vectors = 0.5 + spread * torch.randn((rows, length), generator=generator)
    reach = torch.rand(rows, generator=generator) + 0.5 if with_local_scale else None
    wanted = torch.cat((vectors[:1], 0.5 + spread * torch.randn((queries, length), generator=generator)))
    graph = Graph("distances")
    given_queries = graph.input("queries", "float32", ["Q", length])
    memory = ScaleMemory(vectors, torch.zeros((rows, 3), dtype=torch.int32), None, reach)
    found = add_distances(
        graph, memory, given_queries, per_image
    )  # the more there are, the smaller are blocks and groups
    graph.output(found, "float32", ["Q"])
    distances = evaluate(graph, queries=array_of(wanted))
    expected = ScaleMemory(vectors, memory.origins, None, reach).measure(wanted)
    assert distances[0] == 0  # a stored patch
    np.testing.assert_allclose(distances, expected, rtol=1e-4, atol=1e-4 * spread)


def test_a_plain_ground_is_searched_as_finely_as_anything_else() -> None:
    """Patches that differ by less than products of whole embeddings are rounded by, beside others far from them."""
    generator = torch.Generator().manual_seed(0)
    plain = 0.9 + 1e-4 * torch.randn((3000, 64), generator=generator)
    vectors = torch.cat((plain, torch.randn((3000, 64), generator=generator)))[torch.randperm(6000)]
    queries = 0.9 + 1e-4 * torch.randn((200, 64), generator=generator)
    graph = Graph("distances")
    memory = ScaleMemory(vectors, torch.zeros((6000, 3), dtype=torch.int32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchsvdd.export.search_nodes.LARGEST_BLOCK", 512)
        found = add_distances(graph, memory, graph.input("queries", "float32", ["Q", 64]), 200)
    graph.output(found, "float32", ["Q"])
    expected = torch.cdist(queries.double(), vectors.double()).amin(1)
    np.testing.assert_allclose(evaluate(graph, queries=array_of(queries)), expected, rtol=1e-3)


@given(st.integers(1, 300), st.integers(1, 64), st.sampled_from([1, 3]))
def test_an_order_holds_every_row(rows: int, per_image: int, length: int) -> None:
    vectors = torch.randn((rows, length), generator=torch.Generator().manual_seed(rows))
    blocks = Blocks.within_budget(rows, length, per_image)
    order, middles = sort_into_blocks(vectors, blocks)
    assert set(order.tolist()) == set(range(rows))
    assert len(order) == blocks.count * blocks.rows
    assert middles.shape == (blocks.count, length)


@given(st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=60))
@settings(max_examples=25)
def test_rarities_are_those_of_the_tail(values: list[float]) -> None:
    tail = TailQuantiles.fit(torch.tensor(values))
    asked = torch.tensor([*values, *tail.values, -30.0, 30.0])
    graph = Graph("rarity")
    found = add_rarity(graph, tail, graph.input("values", "float32", ["N"]))
    graph.output(found, "float32", ["N"])
    np.testing.assert_array_equal(evaluate(graph, values=array_of(asked)), tail(asked).numpy())


# What the file holds


def test_the_file_tells_what_it_is(exported: Path, detector: PatchSVDD) -> None:
    session = onnxruntime.InferenceSession(exported / "part.onnx", providers=["CPUExecutionProvider"])
    texts = session.get_modelmeta().custom_metadata_map
    assert detector.calibration is not None
    assert float(texts["threshold"]) == detector.threshold
    assert float(texts["false_alarm_rate"]) == detector.calibration.false_alarm_rate
    assert (texts["aim"], texts["estimated_miss_rate"], texts["outline"]) == ("few-alarms", "", "")
    assert json.loads(texts["calibration"])["scores"] == list(detector.calibration.scores)
    assert json.loads(texts["config"])["embedding_dim"] == detector.config.embedding_dim
    assert json.loads(texts["provenance"])["data"]["image_size"] == [64, 64]
    assert texts["inputs"] == "images: uint8 (N, 64, 64, 3), RGB; threshold: float32 ()"
    shapes = {one.name: (one.shape, one.type) for one in (*session.get_inputs(), *session.get_outputs())}
    assert shapes["images"] == (["count", 64, 64, 3], "tensor(uint8)")
    assert shapes["map"] == (["count", 64, 64], "tensor(float)")
    assert shapes["is_anomalous"] == (["count"], "tensor(bool)")
    defaults = session.get_overridable_initializers()
    assert [one.name for one in defaults] == ["threshold"]


def test_any_runtime_reads_the_onnx_file(exported: Path, detector: PatchSVDD) -> None:
    network = openvino_core().compile_model(exported / "part.onnx", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    images = np.stack(images_of((64, 64), 3, first=20))
    found = network({"images": images})
    for index, image in enumerate(images):
        expected = detector.inspect(image)
        np.testing.assert_allclose(found["map"][index], expected.anomaly_map, atol=1e-3 * expected.score)
        assert bool(found["is_anomalous"][index]) == expected.is_anomalous


def test_the_archive_is_what_openvino_reads(exported: Path, detector: PatchSVDD, tmp_path: Path) -> None:
    with zipfile.ZipFile(exported / "part.openvino") as archive:
        assert set(archive.namelist()) == {"model.xml", "model.bin", "about.json"}
        archive.extractall(tmp_path)
    model = openvino_core().read_model(tmp_path / "model.xml")
    assert float(model.get_rt_info(["patchsvdd", "threshold"]).value) == detector.threshold
    image = draw_part(8, defect=True)
    network = openvino_core().compile_model(model, "CPU")
    for threshold, expected in ((0.0, True), (1e9, False)):
        found = network({"images": image[None], "threshold": np.array(threshold, np.float32)})
        assert bool(found["is_anomalous"][0]) is expected


def test_equal_models_make_equal_files(exported: Path, detector: PatchSVDD, good_folder: Path, tmp_path: Path) -> None:
    again = export(detector, tmp_path / "again.onnx", good_folder, count=1).path
    assert again.read_bytes() == (exported / "part.onnx").read_bytes()


@each_format
def test_one_flipped_bit_is_refused_when_the_file_is_opened(wanted: str, exported: Path, tmp_path: Path) -> None:
    data = bytearray((exported / f"part.{wanted}").read_bytes())
    for place in np.linspace(0, len(data) - 1, 9).astype(int):
        damaged = data.copy()
        damaged[place] ^= 4
        (tmp_path / "part").write_bytes(damaged)
        try:
            Detector(tmp_path / "part")
        except ModelError:
            continue
        # A zip says some things twice, and nobody reads the second: what is read must be whole.
        assert wanted == "openvino"
        assert place > len(data) - 1000
    (tmp_path / "part").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="export the model again"):
        Detector(tmp_path / "part")


def test_a_file_keeps_its_threshold_until_the_model_is_exported_again(
    detector: PatchSVDD, good_folder: Path, tmp_path: Path
) -> None:
    detector.save(tmp_path / "model")
    arguments = ("export", tmp_path / "model", "--out", tmp_path / "part.onnx", "--images", good_folder, "--count", 1)
    assert run(*arguments).code == 0
    first = Detector(tmp_path / "part.onnx").about
    run("calibrate", tmp_path / "model", "--threshold", 123.5)
    assert Detector(tmp_path / "part.onnx").about == first
    identity = run("info", tmp_path / "model", "--json").json()["identity"]
    assert identity != first.identity
    assert run(*arguments, "--overwrite").code == 0
    again = Detector(tmp_path / "part.onnx").about
    assert again.calibration is not None
    assert (again.identity, again.threshold, again.calibration.aim) == (identity, 123.5, "chosen")


# The command


def test_the_command_prints_the_comparison(detector: PatchSVDD, good_folder: Path, tmp_path: Path) -> None:
    detector.save(tmp_path / "model")
    out = tmp_path / "part.onnx"
    arguments = ("export", tmp_path / "model", "--format", "onnx", "--out", out, "--images", good_folder)
    ended = run(*arguments)
    assert ended.code == 0, ended.stderr
    assert "000.png with a spot" in ended.stdout
    assert "6 of 6 agree" in ended.stdout
    assert Detector(out).about.identity == detector.identity
    assert "exists; choose another --out, or add --overwrite" in run(*arguments).error()
    told = run(*arguments, "--overwrite", "--json", "--count", 1).json()
    assert told["parity"]["holds"] is True
    assert told["bytes"] == out.stat().st_size
    assert [one["image"] for one in told["compared"]] == ["000.png", "000.png with a spot"]
    wrong = ("export", tmp_path / "model", "--out", tmp_path / "x", "--images", good_folder)
    assert "--format must be one of onnx, openvino" in run(*wrong, "--format", "coreml").error()


def test_a_missing_package_names_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    ended = run("export", tmp_path, "--format", "openvino", "--out", tmp_path / "x", "--images", tmp_path)
    assert 'pip install "patchsvdd[deploy]"' in ended.error()
