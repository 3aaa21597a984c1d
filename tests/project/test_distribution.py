"""The wheels of both distributions, each installed into an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.parts import ROOT, draw_part

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("build") is None, reason="no build"),
    pytest.mark.skipif(find_spec("onnxruntime") is None, reason="no onnxruntime"),
]
VARIABLES = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""Without the source of the package, which pip would take for an installed distribution."""
RUNTIME_PACKAGES = ("numpy", "numpy.libs", "PIL", "pillow.libs", "onnxruntime")


@dataclass(frozen=True)
class Environment:
    """A virtual environment with one wheel, run from a folder that has no source of the package."""

    folder: Path

    @property
    def site(self) -> Path:
        return next((self.folder / "lib").glob("python*/site-packages"))

    def run(self, *command: str) -> str:
        """What a program of the environment prints."""
        program = [str(self.folder / "bin" / command[0]), *command[1:]]
        done = subprocess.run(program, cwd=self.folder, env=VARIABLES, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def packages_here() -> Path:
    """The folder that the packages of this interpreter are installed in."""
    return Path(np.__file__).parent.parent


def build_wheel(project: Path, out: Path) -> Path:
    """Build in place, with the setuptools of this interpreter."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(project)]
    subprocess.run(command, env=VARIABLES, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def install(wheel: Path, folder: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)], env=VARIABLES, check=True)
    return Environment(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """``patchsvdd``, beside the packages of this interpreter."""
    folder = tmp_path_factory.mktemp("whole")
    project = folder / "project"
    shutil.copytree(ROOT / "src", project / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    environment = install(build_wheel(project, folder), folder / "environment")
    # A folder named in a .pth file comes last on the path, and .pth files in that folder are not read: the source
    # that is installed for development stays out.
    (environment.site / "others.pth").write_text(f"{packages_here()}\n")
    return environment


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """``patchsvdd-runtime`` with its dependencies and ONNX Runtime, and nothing else."""
    folder = tmp_path_factory.mktemp("runtime")
    collect = ROOT / "distribution" / "runtime" / "collect.py"
    subprocess.run([sys.executable, str(collect), str(folder / "project")], check=True)
    environment = install(build_wheel(folder / "project", folder), folder / "environment")
    for name in RUNTIME_PACKAGES:
        if (packages_here() / name).exists():
            (environment.site / name).symlink_to(packages_here() / name)
    return environment


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    with tarfile.open(ROOT / "tests" / "data" / "model-0.1.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "model-0.1.0"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    Image.fromarray(draw_part(50, defect=True)).save(folder / "part.png")
    return folder


def test_the_installed_command_inspects(whole: Environment, model: Path, images: Path, tmp_path: Path) -> None:
    assert "inspect" in whole.run("patchsvdd", "--help")
    place = whole.run("python", "-c", "import patchsvdd; print(patchsvdd.__file__)")
    assert Path(place.strip()).is_relative_to(whole.site)
    whole.run("patchsvdd", "inspect", str(model), str(images), "--out", str(tmp_path), "--device", "cpu")
    row = json.loads((tmp_path / "results.jsonl").read_text())
    assert row["score"] == pytest.approx(2.3602609634399414, rel=1e-3)
    assert "--warm-bar" in (tmp_path / "index.html").read_text(), "the style sheet is in the wheel"


def test_the_wheel_contains_all_files_of_the_package(whole: Environment) -> None:
    source = ROOT / "src"
    expected = {str(path.relative_to(source)) for path in (source / "patchsvdd").rglob("*") if path.is_file()}
    expected = {name for name in expected if "__pycache__" not in name}
    with zipfile.ZipFile(next(whole.folder.parent.glob("*.whl"))) as wheel:
        assert expected <= set(wheel.namelist())


def test_the_runtime_inspects_without_pytorch(
    whole: Environment, runtime: Environment, model: Path, images: Path, tmp_path: Path
) -> None:
    file, image = tmp_path / "part.onnx", images / "part.png"
    whole.run("patchsvdd", "export", str(model), "--images", str(images), "--out", str(file))
    found = json.loads(runtime.run("python", "-m", "patchsvdd.runtime", str(file), str(image), "--json"))
    assert found["score"] == pytest.approx(2.3602609634399414, rel=1e-3)
    missing = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('patchsvdd.detector'))"
    assert runtime.run("python", "-c", missing) == "None None\n"


def test_the_runtime_declares_no_pytorch(runtime: Environment) -> None:
    (metadata,) = runtime.site.glob("patchsvdd_runtime-*.dist-info/METADATA")
    required = [line.split(": ")[1] for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist")]
    plain = [one for one in required if "extra ==" not in one]
    assert sorted(plain) == ["numpy>=1.26", "pillow>=11"]
