from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from patchsvdd.core.errors import ConfigError
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.encoder import engines
from patchsvdd.encoder import networks as encoder_module
from patchsvdd.encoder.engines import CHOICES, Engine, EngineName, Measurement, choose_engine, open_engine
from patchsvdd.encoder.networks import PatchEncoder, build_encoder, grids_for
from patchsvdd.encoder.onnx_features import EncoderFeatures, features_graph

pytestmark = pytest.mark.slow

INSTALLED = [name for name in ("openvino", "onnxruntime") if importlib.util.find_spec(name) is not None]
each_engine = pytest.mark.parametrize("name", ["torch", *INSTALLED])
with_openvino = pytest.mark.skipif("openvino" not in INSTALLED, reason="takes the package openvino")


def encoder_of(kind: str) -> PatchEncoder:
    """An encoder whose embeddings differ from place to place, as after training."""
    scales = {"flat": (Scale(64, 16),), "raw": (Scale(32, 4),)}.get(kind, (Scale(32, 4), Scale(64, 16)))
    encoder = build_encoder(preset("paper", encoder=kind, scales=scales))
    generator = torch.Generator().manual_seed(3)
    for name, value in encoder.named_parameters():
        fan_in = max(1, value[0].numel())
        spread = (2 / fan_in) ** 0.5 if name.endswith("weight") else 0.2
        torch.nn.init.normal_(value, 0.0, spread, generator=generator)
    return encoder.eval().requires_grad_(False)


def images_of(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def encoder() -> PatchEncoder:
    return encoder_of("hierarchical")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one item with each measuring."""
    calls: list[int] = []
    measure = engines._measure

    def counted(*arguments: Any) -> list[Measurement]:
        calls.append(1)
        return measure(*arguments)

    monkeypatch.setattr(engines, "_measure", counted)
    return calls


# What an engine computes


@each_engine
@pytest.mark.parametrize(
    ("kind", "step", "size"),
    [
        ("hierarchical", 1, (32, 32)),
        ("hierarchical", 1, (67, 45)),
        ("hierarchical", 2, (64, 64)),
        ("hierarchical", 2, (71, 90)),
        ("hierarchical", 4, (65, 83)),
        ("flat", 1, (64, 101)),
        ("flat", 2, (97, 75)),
    ],
)
def test_equals_the_encoder(name: EngineName, kind: str, step: int, size: tuple[int, int]) -> None:
    encoder, images = encoder_of(kind), images_of(3, *size)
    expected = encoder.features(images, step)
    assert expected.std() > 0.1
    features = open_engine(name, "float32", EncoderFeatures(encoder, step))(images)
    assert features.dtype == torch.float32
    assert features.shape == expected.shape
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-4)


@each_engine
def test_takes_any_memory_layout(name: EngineName, encoder: PatchEncoder) -> None:
    images = images_of(2, 60, 52)
    engine = open_engine(name, "float32", EncoderFeatures(encoder, 2))
    expected = encoder.features(images, 2)
    strip = images_of(2, 80, 52)
    strip[:, :, 10:70] = images
    for same in (images.contiguous(memory_format=torch.channels_last), strip[:, :, 10:70], images.requires_grad_()):
        torch.testing.assert_close(engine(same).detach(), expected.detach(), rtol=0, atol=1e-4)


@each_engine
def test_a_result_outlives_the_next_call(name: EngineName, encoder: PatchEncoder) -> None:
    engine = open_engine(name, "float32", EncoderFeatures(encoder, 2))
    first = engine(images_of(2, 48, 48, seed=1))
    copy = first.clone()
    images = images_of(2, 48, 48, seed=2)
    untouched = images.clone()
    engine(images)
    del engine
    assert torch.equal(first, copy)
    assert torch.equal(images, untouched)


@each_engine
def test_threads_may_share_an_engine(name: EngineName, encoder: PatchEncoder) -> None:
    engine = open_engine(name, "float32", EncoderFeatures(encoder, 2))
    many = [images_of(1, 40 + 4 * (seed % 6), 48, seed) for seed in range(18)]  # more shapes than are kept
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(engine, many))
    for images, features in zip(many, results, strict=True):
        torch.testing.assert_close(features, encoder.features(images, 2), rtol=0, atol=1e-4)


@each_engine
def test_dense_embeddings_stay_the_same(
    name: EngineName, encoder: PatchEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(encoder_module.STRIP_BYTES, "cpu", 2**20)  # several strips
    images = images_of(1, 160, 96)
    config = preset("paper", scales=(Scale(32, 4), Scale(64, 16)))
    grids = grids_for(encoder, config, (160, 96))
    engine = open_engine(name, "float32", EncoderFeatures(encoder, encoder.feature_step(grids)))
    for got, expected in zip(encoder.dense(images, grids, [engine]), encoder.dense(images, grids), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@with_openvino
def test_float16_is_near_or_refused(encoder: PatchEncoder) -> None:
    images = images_of(1, 64, 64)
    try:
        features = open_engine("openvino", "float16", EncoderFeatures(encoder, 2))(images)
    except ConfigError as error:
        pytest.skip(str(error))
    torch.testing.assert_close(features, encoder.features(images, 2), rtol=0, atol=0.1)


# What cannot be opened


def test_raw_pixels_take_no_engine() -> None:
    for name in INSTALLED:
        with pytest.raises(ConfigError, match="raw pixels have no features"):
            open_engine(name, "float32", EncoderFeatures(encoder_of("raw"), 2))  # type: ignore[arg-type]
    choice = choose_engine(EncoderFeatures(encoder_of("raw"), 2), (64, 64))
    assert (choice.engine, choice.precision, choice.measured) == ("torch", "float32", ())


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_a_missing_package_names_the_command(
    name: EngineName, encoder: PatchEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf'{name} is not installed .*pip install "patchsvdd\[fast\]"'):
        open_engine(name, "float32", EncoderFeatures(encoder, 2))


def test_unknown_names_are_refused(encoder: PatchEncoder) -> None:
    with pytest.raises(ConfigError, match="must be one of torch, openvino, onnxruntime; got 'tpu'"):
        open_engine("tpu", "float32", EncoderFeatures(encoder, 2))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="torch does not compute in 'float16'"):
        open_engine("torch", "float16", EncoderFeatures(encoder, 2))
    with pytest.raises(ConfigError, match="openvino does not compute in 'int8'"):
        open_engine("openvino", "int8", EncoderFeatures(encoder, 2))  # type: ignore[arg-type]


# Choosing


@with_openvino
def test_every_engine_is_measured(encoder: PatchEncoder) -> None:
    steps = []
    choice = choose_engine(EncoderFeatures(encoder, 2), (48, 48), on_progress=lambda *step: steps.append(step))
    names = {one.engine for one in choice.measured}
    assert names == {"torch", *INSTALLED}
    assert steps == [(done + 1, len(steps)) for done in range(len(names) * engines.ROUNDS)]
    fastest = choice.measured[0]
    assert (choice.engine, choice.precision) == (fastest.engine, fastest.precision)
    assert not choice.stored
    for one in choice.measured:
        assert fastest.milliseconds <= one.milliseconds <= one.median
        assert one.rms_error <= one.largest_error < 1e-4
        assert one.precision == "float32"


@with_openvino
def test_a_choice_is_kept(encoder: PatchEncoder, tmp_path: Path, timed: list[int]) -> None:
    size, cache = (48, 48), tmp_path / "engines"
    first = choose_engine(EncoderFeatures(encoder, 2), size, cache)
    second = choose_engine(EncoderFeatures(encoder, 2), size, cache)
    assert len(timed) == 1
    assert second.stored
    assert (second.engine, second.precision, second.measured) == (first.engine, first.precision, first.measured)
    assert [path.name for path in cache.iterdir()] == [CHOICES]


@with_openvino
def test_another_situation_is_measured_anew(
    encoder: PatchEncoder, tmp_path: Path, timed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = encoder_of("hierarchical")
    next(changed.parameters()).add_(0.01)
    situations = [
        (EncoderFeatures(encoder, 2), (48, 48)),
        (EncoderFeatures(encoder, 4), (48, 48)),
        (EncoderFeatures(encoder, 2), (48, 50)),
        (EncoderFeatures(changed, 2), (48, 48)),
    ]
    for _ in range(2):
        for situation in situations:
            choose_engine(*situation, tmp_path)
    assert len(timed) == len(situations)
    monkeypatch.setattr(engines, "_version", lambda name: f"a newer {name}")
    assert not choose_engine(*situations[0], tmp_path).stored


@with_openvino
@pytest.mark.parametrize("damage", ["cut", "bytes", "foreign", "fields", "chosen"])
def test_a_damaged_file_is_replaced(encoder: PatchEncoder, tmp_path: Path, damage: str) -> None:
    size, path = (40, 40), tmp_path / CHOICES
    choose_engine(EncoderFeatures(encoder, 2), size, tmp_path)
    whole = path.read_bytes()
    edited = json.loads(whole)
    if damage == "fields":
        edited[0]["choice"]["measured"] = [{"engine": "openvino"}, None]
    edited[0]["choice"]["chosen"] = ["abacus", "float32"]
    broken = {"cut": whole[:50], "bytes": b"\xff\xfe\x00", "foreign": b'["a", 1, null]'}
    path.write_bytes(broken.get(damage, json.dumps(edited).encode()))
    assert not choose_engine(EncoderFeatures(encoder, 2), size, tmp_path).stored
    assert choose_engine(EncoderFeatures(encoder, 2), size, tmp_path).stored


@with_openvino
def test_a_folder_that_cannot_be_written_to_is_no_obstacle(encoder: PatchEncoder, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        choice = choose_engine(EncoderFeatures(encoder, 2), (40, 40), tmp_path / "file" / "engines")
        assert choice.measured
        assert not choice.stored


def test_engines_not_installed_are_left_out(encoder: PatchEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("openvino", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    choice = choose_engine(EncoderFeatures(encoder, 2), (40, 40))
    assert (choice.engine, choice.measured) == ("torch", ())
    assert set(choice.skipped) == {"openvino float32", "onnxruntime float32"}
    assert all("not installed" in reason for reason in choice.skipped.values())


@with_openvino
def test_an_engine_that_computes_something_else_is_not_chosen(
    encoder: PatchEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        name: EngineName = "openvino"
        precision: engines.Precision = "float32"

        def __call__(self, images: Tensor) -> Tensor:
            return images.new_zeros(len(images), 64, 5, 5)

    size = (48, 48)
    right = open_engine

    def opened(name: EngineName, *arguments: Any) -> Engine:
        return Wrong() if name == "openvino" else right(name, *arguments)

    monkeypatch.setattr(engines, "open_engine", opened)
    choice = choose_engine(EncoderFeatures(encoder, 2), size)
    assert choice.measured[0].engine == "openvino"
    assert choice.engine != "openvino"


def test_the_graph_depends_on_weights_and_step_alone(encoder: PatchEncoder) -> None:
    assert features_graph(encoder, 2) == features_graph(encoder_of("hierarchical"), 2)
    assert features_graph(encoder, 2) != features_graph(encoder, 1)


@with_openvino
def test_ctrl_c_is_taken_after_engines_have_come_and_gone() -> None:
    program = """
import gc, os, signal
import torch
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.encoder.engines import open_engine
from patchsvdd.encoder.onnx_features import EncoderFeatures
from patchsvdd.core.presets import preset

engines = [open_engine("openvino", "float32", EncoderFeatures(build_encoder(preset("paper")), 2)) for _ in range(2)]
for engine in engines:
    engine(torch.zeros(1, 3, 64, 64))
while engines:
    del engine, engines[0]
    engine = None
    gc.collect()
signal.signal(signal.SIGINT, lambda *_: print("taken"))
os.kill(os.getpid(), signal.SIGINT)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "taken\n"), done.stderr
