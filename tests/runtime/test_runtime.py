from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchsvdd import ImageError, ModelError, PatchSVDD
from patchsvdd.export.export import export
from patchsvdd.images.image_set import load_image
from patchsvdd.runtime import Detector
from patchsvdd.runtime.__main__ import main
from support.parts import ROOT, draw_part, save_picture

pytest.importorskip("onnxruntime", reason="the runner takes ONNX Runtime")

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; sys.modules['safetensors'] = None\n"
"""Importing either is now an error."""


@pytest.fixture(scope="module")
def part(detector: PatchSVDD, good_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported file."""
    return export(detector, tmp_path_factory.mktemp("runtime") / "part.onnx", good_folder, count=1).path


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    """A defective part, larger than the model's images."""
    return save_picture(tmp_path / "new.png", draw_part(3, (100, 120), defect=True))


def test_an_inspection_is_the_detectors(part: Path, photograph: Path, detector: PatchSVDD) -> None:
    found, expected = Detector(part).inspect(photograph), detector.inspect(photograph)
    assert found.name == expected.name
    assert (found.verdict, found.threshold, found.p_value) == (expected.verdict, expected.threshold, expected.p_value)
    assert found.score == pytest.approx(expected.score, rel=1e-4)
    assert found.image_size == (100, 120)
    assert [one.box for one in found.regions] == [one.box for one in expected.regions]
    np.testing.assert_allclose(found.anomaly_map, expected.anomaly_map, atol=1e-4 * expected.score)


@pytest.mark.parametrize("kind", ["RGB", "L", "P", "RGBA", "CMYK", "1", "I;16"])
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff", "bmp"])
def test_pixels_are_the_librarys_bit_for_bit(
    kind: str, suffix: str, part: Path, detector: PatchSVDD, tmp_path: Path
) -> None:
    picture = Image.fromarray(draw_part(5, (90, 77)))
    if kind == "I;16":
        picture = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 251)
    else:
        picture = picture.convert(kind)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    try:
        picture.save(tmp_path / f"x.{suffix}", exif=exif)
    except (OSError, ValueError):
        pytest.skip(f"no {suffix} holds {kind}")
    expected = load_image(tmp_path / f"x.{suffix}", detector.config)
    pixels, original = Detector(part).pixels(tmp_path / f"x.{suffix}")
    np.testing.assert_array_equal(pixels, expected.display_pixels)
    assert original == expected.original_size


def test_the_threshold_can_be_overridden(part: Path, photograph: Path) -> None:
    runner = Detector(part)
    score = runner.inspect(photograph).score
    for threshold, verdict in ((score * 1.01, "good"), (score * 0.99, "anomalous")):
        found = runner.inspect(photograph, threshold=threshold)
        assert (found.verdict, found.threshold) == (verdict, threshold)
        pixels = runner.pixels(photograph)[0]
        assert bool(runner.run(pixels[None], threshold)[2][0]) is (verdict == "anomalous")


def test_a_batch_is_its_images(part: Path) -> None:
    runner = Detector(part)
    images = [draw_part(40 + seed, defect=seed % 2 == 0) for seed in range(5)]
    alone = [runner.inspect(image) for image in images]
    for batch_size in (2, 5, 9):
        together = list(runner.inspect_many(images, batch_size=batch_size))
        assert [one.name for one in together] == [f"image {index}" for index in range(5)]
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(other.anomaly_map, one.anomaly_map, atol=1e-3 * one.score)


@pytest.mark.slow
def test_it_runs_where_there_is_no_torch(part: Path, photograph: Path) -> None:
    code = WITHOUT_TORCH + (
        "from patchsvdd.runtime import Detector\n"
        f"print(Detector({str(part)!r}).inspect({str(photograph)!r}).verdict)\n"
        "ours = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(ours & {'torch', 'safetensors', 'typer', 'rich', 'openvino', 'faiss'}, key=str))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["anomalous", "['safetensors', 'torch']"]  # the two that were blocked


def test_the_command_writes_a_line_or_json_for_each_image(
    part: Path, photograph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(part), str(photograph), "--threshold", "1e9"]) == 0
    assert capsys.readouterr().out.startswith("good")
    assert main([str(part), str(photograph), "missing.png", "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["verdict"] == "anomalous"
    assert told.err == "error: missing.png: there is no such file; check the path\n"
    assert main(["none.onnx", "x.png"]) == 1
    assert "error: 'none.onnx' cannot be read" in capsys.readouterr().err


def test_other_files_are_refused(part: Path, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("not a model, and shorter than a checksum")
    with pytest.raises(ModelError, match="or not an exported detector"):
        Detector(tmp_path / "text.onnx")
    with pytest.raises(ImageError, match="there is no such file"):
        Detector(part).inspect(tmp_path / "none.png")
    with pytest.raises(ImageError, match="smallest usable image"):
        Detector(part).inspect(np.zeros((8, 40, 3), np.uint8))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}
