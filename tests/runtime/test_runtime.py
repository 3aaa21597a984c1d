from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from patchsvdd import ConfigError, ImageError, ModelError, PatchSVDD
from patchsvdd.export.export import describe, export
from patchsvdd.images.image_set import load_image
from patchsvdd.runtime import Detector
from patchsvdd.runtime.__main__ import main
from patchsvdd.runtime.contract import About
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.regions import region_mask
from support.parts import ROOT, TINY, draw_part, save_picture

pytest.importorskip("onnxruntime", reason="the runner takes ONNX Runtime")

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; sys.modules['safetensors'] = None\n"
"""Importing either is now an error."""


@pytest.fixture(scope="module")
def part(detector: PatchSVDD, good_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported file."""
    return export(detector, tmp_path_factory.mktemp("runtime") / "part.onnx", good_folder, count=1).path


@pytest.fixture(scope="module")
def balanced() -> PatchSVDD:
    """A detector whose threshold weighs false alarms against misses."""
    settings = {**TINY, "aim": "balanced", "synthetic_defects": 24}
    return PatchSVDD.fit([draw_part(seed) for seed in range(6)], preset="encoder", device="cpu", **settings)


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


def test_opened_for_a_few_images_it_finds_the_same(part: Path, photograph: Path) -> None:
    found, expected = Detector(part, few=True).inspect(photograph), Detector(part).inspect(photograph)
    assert (found.score, found.verdict) == (expected.score, expected.verdict)
    assert np.array_equal(found.anomaly_map, expected.anomaly_map)


def clear_level(anomaly_map: NDArray[np.float32], near: float) -> float:
    """A level about ``near`` with no pixel next to it, where rounding would decide."""
    values = np.unique(anomaly_map[(anomaly_map > 0.8 * near) & (anomaly_map < 1.2 * near)])
    widest = int(np.diff(values).argmax())
    return float(values[widest] + values[widest + 1]) / 2


def bounded(detector: PatchSVDD, **changes: Any) -> PatchSVDD:
    """The detector with another calibration."""
    assert detector.calibration is not None
    other = PatchSVDD(detector.config, detector.learned, detector.device)
    other.calibration = dataclasses.replace(detector.calibration, **changes)
    return other


def mask_of(inspection: Inspection) -> NDArray[np.bool_]:
    bounds = (inspection.threshold, inspection.outline, inspection.map_area, inspection.outline_share)
    return region_mask(inspection.anomaly_map, *bounds)


@pytest.mark.parametrize("times", [None, 0.6, 1.0, 1.5, 100.0], ids=lambda times: f"outline {times}")
@pytest.mark.parametrize("wanted", ["onnx", "openvino"])
def test_regions_are_the_detectors_whatever_bounds_them(
    wanted: str, times: float | None, detector: PatchSVDD, good_folder: Path, tmp_path: Path
) -> None:
    """Below the threshold, equal to it, above it, above everything, and none."""
    pytest.importorskip(wanted if wanted == "openvino" else "onnxruntime")
    image = draw_part(3, defect=True)
    anomaly_map = detector.inspect(image).anomaly_map
    threshold = clear_level(anomaly_map, 0.3 * float(anomaly_map.max()))
    level = None if times is None else threshold if times == 1 else times * threshold
    if times in (0.6, 1.5):
        level = clear_level(anomaly_map, times * threshold)
    peak = float(anomaly_map.max())
    share = clear_level(anomaly_map, 0.6 * peak) / peak if times == 100.0 else 0.0
    model = bounded(detector, threshold=threshold, aim="chosen", region_level=level, region_share=share)
    runner = Detector(export(model, tmp_path / "part", good_folder, format=wanted, count=1).path)
    found, expected = runner.inspect(image), model.inspect(image)
    assert found.outline == expected.outline == level
    assert (found.verdict, found.threshold) == (expected.verdict, expected.threshold) == ("anomalous", threshold)
    assert [(one.box, one.area, one.peak_at) for one in found.regions] == [
        (one.box, one.area, one.peak_at) for one in expected.regions
    ]
    np.testing.assert_array_equal(mask_of(found), mask_of(expected))
    if times == 100.0:  # the share matters
        assert mask_of(expected).sum() < mask_of(bounded(model, region_share=0.0).inspect(image)).sum()
    if times in (0.6, 1.5):  # the bound matters
        plain = bounded(model, region_level=None).inspect(image)
        assert (mask_of(plain).sum() < mask_of(expected).sum()) == (times < 1)
        assert not np.array_equal(mask_of(plain), mask_of(expected))


def test_the_file_holds_the_aim_and_what_is_missed(balanced: PatchSVDD, good_folder: Path, tmp_path: Path) -> None:
    part = export(balanced, tmp_path / "part.onnx", good_folder, count=1).path
    runner, calibration = Detector(part), balanced.calibration
    assert calibration is not None
    assert calibration.aim == "balanced"
    assert runner.about.calibration == calibration
    assert (runner.threshold, runner.about.miss_rate) == (calibration.threshold, calibration.miss_rate)
    texts = runner.about.to_metadata()
    assert (texts["aim"], float(texts["estimated_miss_rate"])) == ("balanced", calibration.miss_rate)
    assert (float(texts["threshold"]), float(texts["outline"])) == (calibration.threshold, calibration.outline)
    assert float(texts["outline_share"]) == calibration.region_share
    for image in (draw_part(3), draw_part(3, defect=True)):
        found, expected = runner.inspect(image), balanced.inspect(image)
        assert (found.verdict, found.p_value) == (expected.verdict, expected.p_value)
        assert [(one.box, one.area) for one in found.regions] == [(one.box, one.area) for one in expected.regions]


def test_a_threshold_that_is_no_float32_acts_the_same_everywhere(
    detector: PatchSVDD, good_folder: Path, tmp_path: Path
) -> None:
    image = draw_part(3, defect=True)
    score = Detector(export(detector, tmp_path / "first.onnx", good_folder, count=1).path).inspect(image).score
    model = bounded(detector, threshold=math.nextafter(score, 0.0))  # its nearest float32 is the score itself
    runner = Detector(export(model, tmp_path / "part.onnx", good_folder, count=1).path)
    found = runner.inspect(image)
    assert found.is_anomalous
    assert found.regions
    assert bool(runner.run(runner.pixels(image)[0][None])[2][0])
    assert not runner.inspect(image, threshold=score).is_anomalous
    assert not runner.run(runner.pixels(image)[0][None], score)[2][0]


def test_a_threshold_that_is_no_number_is_refused(part: Path, photograph: Path) -> None:
    with pytest.raises(ConfigError, match="must be a number; got nan"):
        Detector(part).inspect(photograph, threshold=math.nan)


def test_files_of_the_first_format_version_are_read(detector: PatchSVDD) -> None:
    """They have no aim: their thresholds were set for few false alarms."""
    texts = describe(detector, (64, 64), "onnx").to_metadata()
    calibration = json.loads(texts["calibration"])
    for name in ("aim", "evidence", "region_level"):
        del calibration[name]
    older = {**texts, "format_version": "1", "calibration": json.dumps(calibration)}
    for name in ("aim", "estimated_miss_rate"):
        del older[name]
    about = About.from_metadata(older, "part.onnx")
    assert about.calibration == detector.calibration
    assert about.miss_rate is None
    with pytest.raises(ModelError, match="has format version 4; this software reads 1, 2, 3; update it"):
        About.from_metadata({**texts, "format_version": "4"}, "part.onnx")


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


def test_the_command_tells_what_the_file_holds(
    part: Path, balanced: PatchSVDD, good_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weighed = export(balanced, tmp_path / "part.onnx", good_folder, count=1).path
    assert main([str(weighed), "--about", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert balanced.calibration is not None
    assert (told["aim"], told["estimated_miss_rate"]) == ("balanced", balanced.calibration.miss_rate)
    assert (told["threshold"], told["outline"]) == (balanced.threshold, balanced.calibration.outline)
    assert "synthetic defects" in told["expectation"]
    assert main([str(part), "--about"]) == 0
    assert "aim: few-alarms\n" in capsys.readouterr().out
    for arguments in ([str(part)], [str(part), "x.png", "--about"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "give images to inspect, or --about" in capsys.readouterr().err


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
