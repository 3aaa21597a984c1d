"""The C++ example, built here and compared with the runner in Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from patchsvdd import PatchSVDD
from patchsvdd.export.export import export
from patchsvdd.runtime import Detector
from support.parts import ROOT, draw_part

onnxruntime = pytest.importorskip("onnxruntime", reason="takes ONNX Runtime's shared library")

pytestmark = pytest.mark.slow

HEADERS = [os.environ.get("ORT_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]


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
    build = ["make", "-C", str(ROOT / "examples" / "cpp"), f"OUT={folder / 'inspect'}"]
    subprocess.run([*build, f"ORT_INCLUDE={headers}", f"ORT_LIBRARY={library}"], check=True, capture_output=True)
    return folder / "inspect"


def test_it_says_what_the_runner_says(program: Path, detector: PatchSVDD, good_folder: Path, tmp_path: Path) -> None:
    exported = export(detector, tmp_path / "part.onnx", good_folder, count=1).path
    runner = Detector(exported)
    image = draw_part(3, defect=True)
    Image.fromarray(image).save(tmp_path / "image.ppm")
    expected = runner.inspect(image)
    for arguments, verdict in (([], expected.verdict), (["1e9"], "good"), (["0"], "anomalous")):
        done = subprocess.run(
            [program, exported, tmp_path / "image.ppm", *arguments], capture_output=True, text=True, check=True
        )
        score, threshold, told, total = done.stdout.split()
        assert float(score) == pytest.approx(expected.score, rel=1e-5)
        assert float(threshold) == pytest.approx(float(arguments[0]) if arguments else expected.threshold, rel=1e-6)
        assert told == verdict
        assert float(total) == pytest.approx(float(expected.anomaly_map.sum()), rel=1e-4)


def test_it_refuses_what_does_not_fit(program: Path, detector: PatchSVDD, good_folder: Path, tmp_path: Path) -> None:
    exported = export(detector, tmp_path / "part.onnx", good_folder, count=1).path
    Image.fromarray(draw_part(3, (32, 40))).save(tmp_path / "small.ppm")
    done = subprocess.run([program, exported, tmp_path / "small.ppm"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "error: the detector requires images of 64 x 64\n")
