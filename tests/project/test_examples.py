"""The examples, the notebook and the README's Python code run."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from support.parts import ROOT

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.glob("*.py") if "sys.argv" in path.read_text(encoding="utf-8"))
PRINTED = {
    "export_and_run": ["flange.onnx: ", "image 0: good", "image 1: anomalous"],
    "train_and_inspect": ["000.png: good", "scratched/000.png: anomalous", "The 32-px patch at"],
    "update_and_recalibrate": ["no false-alarm rate is guaranteed", "given 20 images", "added 4 images", "undone: add"],
}
"""Lines that each script prints, among others."""
QUICK = 'preset="encoder", image_size=96, steps=2, stop="end", device="cpu", synthetic_defects=30'


@pytest.fixture
def _examples_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_every_script_is_known() -> None:
    assert {path.stem for path in SCRIPTS} == set(PRINTED)


@pytest.mark.usefixtures("_examples_importable")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "patchsvdd.runtime" in script.read_text(encoding="utf-8"):
        pytest.importorskip("onnxruntime")
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert [line for line in PRINTED[script.stem] if line not in printed] == [], printed


@pytest.mark.slow
def test_the_notebook_runs_and_is_stored_without_output() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    assert "anomalous" in "".join(output.get("text", "") for cell in cells for output in cell.outputs)


@pytest.mark.usefixtures("_examples_importable")
def test_the_code_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sample_images import flange, write_flanges  # type: ignore[import-not-found]

    write_flanges(tmp_path / "photos" / "good", 12)
    (tmp_path / "photos" / "new").mkdir()
    flange(200, scratched=True).save(tmp_path / "photos" / "new" / "0001.png")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert 'fit("photos/good")' in code
    exec(code.replace('fit("photos/good")', f'fit("photos/good", {QUICK})'), {})
    assert capsys.readouterr().out.startswith(("good ", "anomalous "))
    assert (tmp_path / "models" / "part" / "model.json").exists()
