"""``inspect`` with an exported file: the same results as with the model, without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from patchsvdd import PatchSVDD
from patchsvdd.export.export import export
from support.command_line import run
from support.parts import draw_part, save_picture

pytestmark = pytest.mark.slow
pytest.importorskip("onnxruntime", reason="exported files run in ONNX Runtime")


@pytest.fixture(scope="module")
def exported(detector: PatchSVDD, good_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the small model."""
    folder = tmp_path_factory.mktemp("exported")
    detector.save(folder / "model")
    return export(detector, folder / "part.onnx", good_folder, count=2).path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A good image, a defect, and a file that is no image."""
    save_picture(tmp_path / "photos" / "good.png", draw_part(40))
    save_picture(tmp_path / "photos" / "defect.png", draw_part(41, defect=True))
    (tmp_path / "photos" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    return tmp_path / "photos"


def rows_of(folder: Path) -> dict[str, dict[str, object]]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    return {row["image"]: row for row in map(json.loads, lines)}


def test_rows_are_those_of_the_model(exported: Path, detector: PatchSVDD, photos: Path, tmp_path: Path) -> None:
    for model, out in ((exported.parent / "model", "by-model"), (exported, "by-file")):
        ended = run("inspect", model, photos, "--out", tmp_path / out)
        assert ended.code == 0, ended.stderr
    expected, found = rows_of(tmp_path / "by-model"), rows_of(tmp_path / "by-file")
    assert set(found) == set(expected) == {"good.png", "defect.png", "broken.png"}
    assert "error" in found["broken.png"]
    for name in ("good.png", "defect.png"):
        assert set(found[name]) == set(expected[name])
        assert found[name]["verdict"] == expected[name]["verdict"]
        assert found[name]["score"] == pytest.approx(expected[name]["score"], rel=1e-3)
        assert (tmp_path / "by-file" / str(found[name]["overlay"])).is_file()
    page = (tmp_path / "by-file" / "index.html").read_text()
    assert "Exported file" in page
    assert detector.identity is not None
    assert detector.identity in page
    again = run("inspect", exported, photos, "--out", tmp_path / "by-file", "--json").json()
    assert again["already_done"] == 2


def test_pytorch_is_not_imported(exported: Path, photos: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from patchsvdd.apps.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", code, "inspect", str(exported), str(photos), "--out", str(tmp_path / "out")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_options_of_a_model_folder_are_refused(exported: Path, photos: Path, tmp_path: Path) -> None:
    ended = run("inspect", exported, photos, "--out", tmp_path / "out", "--explain", "--search", "exact")
    assert "is an exported file, which has no --search, --explain; name a model folder" in ended.error()


def test_a_damaged_file_is_named(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "part.onnx").write_bytes(b"nothing")
    assert "part.onnx" in run("inspect", tmp_path / "part.onnx", photos, "--out", tmp_path / "out").error()
