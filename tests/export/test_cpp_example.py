"""The C++ example, built here and compared with Python: its regions alone, and the whole with ONNX Runtime."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from patchsvdd import PatchSVDD
from patchsvdd.export.export import export
from patchsvdd.runtime import Detector
from patchsvdd.scoring.regions import find_regions, region_mask
from support.parts import ROOT, draw_part

onnxruntime = pytest.importorskip("onnxruntime", reason="takes ONNX Runtime's shared library")

pytestmark = pytest.mark.slow

HEADERS = [os.environ.get("ORT_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
CPP = ROOT / "examples" / "cpp"
REGIONS_ONLY = """
#include <cstdio>
#include "regions.hpp"

int main() {
  double about[5];  // height, width, threshold, outline, share of the peak
  while (std::fread(about, sizeof(double), 5, stdin) == 5) {
    const auto height = static_cast<int64_t>(about[0]), width = static_cast<int64_t>(about[1]);
    std::vector<float> map(static_cast<size_t>(height * width));
    if (std::fread(map.data(), sizeof(float), map.size(), stdin) != map.size()) return 1;
    for (const auto& one : patchsvdd::find_regions(map.data(), height, width, about[2], about[3], about[4])) {
      std::printf("%ld %ld %ld %ld %ld %.9g %ld %ld:", one.left, one.top, one.right, one.bottom, one.area, one.peak,
                  one.peak_x, one.peak_y);
      for (const auto place : one.pixels) std::printf(" %ld", place);
      std::printf("\\n");
    }
    std::printf("end\\n");
  }
}
"""
"""Regions of maps on stdin, without ONNX Runtime."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, compiled against the shared library of the Python package."""
    headers = next((one for one in HEADERS if one and Path(one, "onnxruntime_cxx_api.h").is_file()), None)
    if headers is None:
        pytest.skip("no onnxruntime_cxx_api.h; install libonnxruntime-dev or set ORT_INCLUDE to its folder")
    if shutil.which("g++") is None or shutil.which("make") is None:
        pytest.skip("no g++ or no make")
    libraries = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not libraries:
        pytest.skip("this onnxruntime package has no libonnxruntime.so")
    folder = tmp_path_factory.mktemp("cpp")
    library = folder / "libonnxruntime.so.1"
    library.symlink_to(libraries[0])
    build = ["make", "-C", str(CPP), f"OUT={folder / 'inspect'}"]
    subprocess.run([*build, f"ORT_INCLUDE={headers}", f"ORT_LIBRARY={library}"], check=True, capture_output=True)
    return folder / "inspect"


def maps() -> list[tuple[NDArray[np.float32], float, float, float]]:
    """Maps with a threshold, an outline (below it, above it, equal to it, and above every pixel) and a share."""
    random = np.random.default_rng(0)
    cases = []
    for _ in range(300):
        height, width = (int(side) for side in random.integers(1, 24, 2))
        if random.random() < 0.5:  # few values: many ties, with thresholds equal to pixels
            values = random.integers(0, 7, (height, width)).astype(np.float32)
            threshold, outline = (float(level) for level in random.integers(0, 7, 2))
        else:
            values = random.random((height, width), dtype=np.float32)
            threshold, outline = (float(level) for level in random.uniform(0.3, 1.05, 2))
        share = float(random.uniform(0, 0.9)) if random.random() < 0.5 else 0.0
        cases.append((values, threshold, threshold if random.random() < 0.1 else outline, share))
    between = np.float32(0.1)  # a threshold that is no float32, next to a pixel that is
    cases.append((np.full((2, 2), between), np.nextafter(float(between), 0.0), 0.0, 0.0))
    cases.append((np.full((2, 2), between), float(between), 0.0, 0.0))
    return cases


def test_its_regions_are_those_of_the_library(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    (tmp_path / "regions.cpp").write_text(REGIONS_ONLY)
    built = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format", f"-I{CPP}"]
    subprocess.run([*built, str(tmp_path / "regions.cpp"), "-o", str(tmp_path / "regions")], check=True)
    cases = maps()
    given = b"".join(np.array([*values.shape, *bounds]).tobytes() + values.tobytes() for values, *bounds in cases)
    done = subprocess.run([tmp_path / "regions"], input=given, capture_output=True, check=True).stdout.decode()
    answers = done.split("end\n")[:-1]
    assert len(answers) == len(cases)
    anomalous = cut = shared = 0
    for (values, threshold, outline, share), answer in zip(cases, answers, strict=True):
        expected = find_regions(values, threshold, outline=outline, share=share)
        mask = np.zeros(values.size, dtype=np.bool_)
        told = []
        for line in answer.splitlines():
            numbers, places = line.split(":")
            left, top, right, bottom, area, peak, x, y = (float(number) for number in numbers.split())
            told.append(((left, top, right, bottom), area, float(np.float32(peak)), (x, y)))
            mask[[int(place) for place in places.split()]] = True
        assert told == [(one.box, one.area, one.peak, one.peak_at) for one in expected]
        np.testing.assert_array_equal(mask.reshape(values.shape), region_mask(values, threshold, outline, share=share))
        anomalous += bool(expected)
        cut += bool(expected) and outline > threshold
        shared += bool(expected) and share > 0
    assert anomalous > 100
    assert cut > 50
    assert shared > 50


@pytest.mark.parametrize("level", [None, 0.8, 1.1])
def test_it_says_what_the_runner_says(
    program: Path, detector: PatchSVDD, good_folder: Path, tmp_path: Path, level: float | None
) -> None:
    assert detector.calibration is not None
    bounded = PatchSVDD(detector.config, detector.learned, detector.device)
    if level is not None:
        bounded.calibration = dataclasses.replace(detector.calibration, region_level=level * detector.threshold)
    exported = export(bounded, tmp_path / "part.onnx", good_folder, count=1).path
    runner = Detector(exported)
    image = draw_part(3, defect=True)
    Image.fromarray(image).save(tmp_path / "image.ppm")
    for arguments in ([], ["1e9"], ["0"]):
        expected = runner.inspect(image, threshold=float(arguments[0]) if arguments else None)
        done = subprocess.run(
            [program, exported, tmp_path / "image.ppm", *arguments], capture_output=True, text=True, check=True
        )
        first, *lines = done.stdout.splitlines()
        score, threshold, told, total = first.split()
        assert float(score) == pytest.approx(expected.score, rel=1e-5)
        assert float(threshold) == pytest.approx(expected.threshold, rel=1e-6)
        assert told == expected.verdict
        assert float(total) == pytest.approx(float(expected.anomaly_map.sum()), rel=1e-4)
        boxes = [tuple(int(number) for number in line.split()[:5]) for line in lines]
        assert boxes == [(*region.box, region.area) for region in expected.regions]


def test_it_refuses_what_does_not_fit(program: Path, detector: PatchSVDD, good_folder: Path, tmp_path: Path) -> None:
    exported = export(detector, tmp_path / "part.onnx", good_folder, count=1).path
    Image.fromarray(draw_part(3, (32, 40))).save(tmp_path / "small.ppm")
    done = subprocess.run([program, exported, tmp_path / "small.ppm"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "error: the detector requires images of 64 x 64\n")
