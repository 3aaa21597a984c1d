from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.encoder import networks as encoder_module
from patchsvdd.encoder.embedder import Embedder
from patchsvdd.encoder.engines import CHOICES, choose_engine
from patchsvdd.encoder.networks import PatchEncoder, build_encoder, in_strips, rows_of
from patchsvdd.encoder.onnx_features import EncoderFeatures
from patchsvdd.images.normalization import Normalization

INSTALLED = [name for name in ("openvino", "onnxruntime") if importlib.util.find_spec(name) is not None]
CPU = torch.device("cpu")
SCALES = {"flat": (Scale(64, 16),), "raw": (Scale(32, 8),)}
SIZE = (72, 80)


def config_of(kind: str) -> Config:
    return preset("encoder", encoder=kind, scales=SCALES.get(kind, (Scale(32, 4), Scale(64, 16))), image_size=SIZE)


def encoder_of(kind: str) -> PatchEncoder:
    """An encoder whose embeddings differ from place to place, as after training."""
    encoder = build_encoder(config_of(kind))
    generator = torch.Generator().manual_seed(3)
    for name, value in encoder.named_parameters():
        spread = (1.5 / max(1, value[0].numel())) ** 0.5 if name.endswith("weight") else 0.1
        torch.nn.init.normal_(value, 0.0, spread, generator=generator)
    return encoder.eval().requires_grad_(False)


def pixels_of(count: int, height: int, width: int) -> Tensor:
    return 255 * torch.rand((count, 3, height, width), generator=torch.Generator().manual_seed(0))


def embedder_of(kind: str = "hierarchical", device: torch.device = CPU, **options: Any) -> Embedder:
    config = config_of(kind)
    normalization = Normalization.fit(pixels_of(2, *SIZE), config)
    return Embedder(encoder_of(kind), normalization, config, device, **options)


# Which engine


def test_without_a_stored_choice_pytorch_computes(tmp_path: Path) -> None:
    assert embedder_of().engine_for(SIZE) == "torch float32"
    assert embedder_of(cache=tmp_path / "engines").engine_for(SIZE) == "torch float32"


@pytest.mark.skipif(not INSTALLED, reason="takes openvino or onnxruntime")
def test_a_stored_choice_is_followed(tmp_path: Path) -> None:
    embedder = embedder_of()
    step = embedder.encoder.feature_step(embedder.grids(SIZE))
    choose_engine(EncoderFeatures(embedder.encoder, step), SIZE, tmp_path)
    entries = json.loads((tmp_path / CHOICES).read_bytes())
    for name in ("torch", *INSTALLED):
        entries[0]["choice"]["chosen"] = [name, "float32"]
        (tmp_path / CHOICES).write_text(json.dumps(entries))
        assert embedder_of(cache=tmp_path).engine_for(SIZE) == f"{name} float32"
        other_size = (SIZE[0] + 8, SIZE[1])
        assert embedder_of(cache=tmp_path).engine_for(other_size) == "torch float32", "nobody measured that"
        assert embedder_of(cache=tmp_path, engine="torch").engine_for(SIZE) == "torch float32"


@pytest.mark.parametrize("name", ["torch", *INSTALLED])
def test_an_engine_asked_for_is_taken(name: str) -> None:
    assert embedder_of(engine=name).engine_for(SIZE) == f"{name} float32"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "tensorrt"}, "`engine` must be one of auto, torch, openvino, onnxruntime; got 'tensorrt'"),
        ({"precision": "float8"}, "`precision` must be one of float32, float16; got 'float8'"),
        ({"precision": "float16", "engine": "torch"}, "`precision=float16` requires `engine=openvino`"),
        ({"precision": "float16", "engine": "onnxruntime"}, "`precision=float16` requires `engine=openvino`"),
        ({"precision": "float16", "device": torch.device("cuda")}, "`precision=float16`"),
        ({"engine": "openvino", "device": torch.device("cuda")}, "`engine=openvino` runs on the CPU; use `device"),
        ({"engine": "onnxruntime", "device": torch.device("cuda")}, "`engine=onnxruntime` runs on the CPU"),
    ],
    ids=str,
)
def test_what_cannot_work_names_the_flag(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        embedder_of(**options)
    assert words in str(error.value)


def test_raw_patches_take_no_engine() -> None:
    assert embedder_of("raw").engine_for(SIZE) == "torch float32"
    with pytest.raises(ConfigError, match="`engine=openvino`: raw patches have no network to run"):
        embedder_of("raw", engine="openvino")(pixels_of(1, *SIZE))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_weights_too_large_for_half_precision_stay_with_pytorch() -> None:
    device = torch.device("cuda")
    config = config_of("hierarchical")
    normalization = Normalization.fit(pixels_of(2, *SIZE), config).to(device)
    usual, large = encoder_of("hierarchical").to(device), encoder_of("hierarchical").to(device)
    next(large.parameters()).mul_(1e6)
    assert Embedder(usual, normalization, config, device).engine_for(SIZE) == "triton float32"
    assert Embedder(usual, normalization, config, device, engine="torch").engine_for(SIZE) == "torch float32"
    assert Embedder(large, normalization, config, device).engine_for(SIZE) == "torch float32"


# What comes out


@pytest.mark.parametrize("kind", ["hierarchical", "flat", "raw"])
@pytest.mark.parametrize("size", [SIZE, (81, 67)])
def test_equals_the_dense_encoder(kind: str, size: tuple[int, int]) -> None:
    config = config_of(kind).replace(centering="channel")
    pixels = pixels_of(2, *size)
    normalization = Normalization.fit(pixels_of(2, *SIZE), config)
    embedder = Embedder(encoder_of(kind), normalization, config, CPU)
    expected = embedder.encoder.dense(normalization(pixels), embedder.grids(size))
    for got, one in zip(embedder(pixels), expected, strict=True):
        torch.testing.assert_close(got, rows_of(one), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", INSTALLED)
def test_every_engine_embeds_alike(name: str) -> None:
    pixels = pixels_of(2, *SIZE)
    for got, expected in zip(embedder_of(engine=name)(pixels), embedder_of()(pixels), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


# Strips


@pytest.mark.parametrize("kind", ["hierarchical", "flat"])
@pytest.mark.parametrize("size", [(150, 72), (97, 81)])
@pytest.mark.parametrize("budget", [1, 2 * 2**20])
def test_strips_equal_one_pass(kind: str, size: tuple[int, int], budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, images = encoder_of(kind), torch.randn((1, 3, *size), generator=torch.Generator().manual_seed(1))
    grids = encoder_module.grids_for(encoder, config_of(kind), size)
    whole = encoder.dense(images, grids)
    monkeypatch.setitem(encoder_module.STRIP_BYTES, "cpu", budget)
    for got, expected in zip(encoder.dense(images, grids), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def mean_of_windows(images: Tensor, field: int, spacing: int) -> Tensor:
    """A map that looks at ``field`` pixels every ``spacing``."""
    return torch.nn.functional.avg_pool2d(images, field, spacing)


@settings(max_examples=60)
@given(
    height=st.integers(32, 200),
    count=st.integers(1, 3),
    spacing=st.sampled_from([2, 4, 8, 16]),
    budget=st.integers(1, 4 * 2**20),
)
def test_a_strip_fits_its_budget(height: int, count: int, spacing: int, budget: int) -> None:
    field, width = 32, 40
    images = torch.rand((count, 3, height, width), generator=torch.Generator().manual_seed(height))
    heights: list[int] = []

    def features(strip: Tensor) -> Tensor:
        heights.append(int(strip.shape[2]))
        return mean_of_windows(strip, field, spacing)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(encoder_module.STRIP_BYTES, "cpu", budget)
        got = in_strips(features, images, spacing, field)
    torch.testing.assert_close(got, mean_of_windows(images, field, spacing), rtol=0, atol=1e-6)
    if len(heights) > 1:
        per_row = 256 * width * count  # bytes of the widest layer
        assert max(heights) <= max(field, budget // per_row)
        assert len(set(heights)) == 1, "one shape, so that an engine compiles once"
