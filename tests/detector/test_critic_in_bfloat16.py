from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from patchsvdd.core.errors import ConfigError
from patchsvdd.detector import bfloat16
from patchsvdd.detector.bfloat16 import Bfloat16Check, check_bfloat16
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.prepare import prepare
from patchsvdd.encoder import engines
from patchsvdd.encoder.engines import EngineChoice, Measurement
from support.command_line import files, run
from support.parts import draw_part

SIZE = (64, 64)
needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="requires the package openvino"
)


def computes_in_bfloat16() -> bool:
    from patchsvdd.core.signals import openvino_core

    return "BF16" in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are measured once."""
    monkeypatch.setattr(engines, "ROUNDS", 1)


@pytest.fixture
def model(critical: PatchSVDD, tmp_path: Path) -> Path:
    """A model with a critic."""
    critical.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Good and defective images."""
    folder = tmp_path / "images"
    folder.mkdir()
    for seed in range(6):
        Image.fromarray(draw_part(seed, defect=seed == 5)).save(folder / f"{seed}.png")
    return sorted(folder.iterdir())


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not depend on the format is tested everywhere: a CPU without bfloat16 compares float32 with itself."""
    if not computes_in_bfloat16():
        monkeypatch.setattr(bfloat16, "WITH_BFLOAT16", ("float32", "float32"))


@needs_openvino
class TestOnThisMachine:
    def test_the_critic_computes_in_bfloat16_after_a_check(
        self, model: Path, images: Sequence[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not computes_in_bfloat16():
            with pytest.raises(ConfigError, match="this CPU does not compute in bfloat16"):
                prepare(model, bfloat16_images=images)
            return
        monkeypatch.setattr(bfloat16, "ALLOWED_CHANGE", 10.0)  # the tiny critic is unsure of everything
        before = PatchSVDD.load(model, "cpu", engine="torch")
        done = prepare(model, bfloat16_images=images)
        assert done.bfloat16 is not None
        assert done.bfloat16.images == len(images)
        assert 0 < done.bfloat16.median_change <= done.bfloat16.largest_change
        prepared = PatchSVDD.load(model, "cpu")
        assert prepared.critic_inference is not None
        engine, chosen = prepared.critic_inference.engine(SIZE), done.engines["critic"]
        assert (engine.name, engine.precision) == (chosen.engine, chosen.precision)
        assert {one.precision for one in chosen.measured} == {"float32", "bfloat16"}
        for path in images:
            assert prepared.inspect(path).score == pytest.approx(before.inspect(path).score, rel=0.2)

    def test_without_the_option_it_computes_in_float32_again(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pretend(monkeypatch, model)
        prepared = PatchSVDD.load(model, "cpu")
        assert prepared.critic_inference is not None
        if computes_in_bfloat16():
            assert prepared.critic_inference.engine(SIZE).precision == "bfloat16"
        prepare(model)
        prepared = PatchSVDD.load(model, "cpu")
        assert prepared.critic_inference is not None
        assert prepared.critic_inference.engine(SIZE).precision == "float32"

    @pytest.mark.usefixtures("compared")
    def test_a_change_that_is_too_large_is_refused(
        self, model: Path, images: Sequence[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Equal formats change nothing: there, even that is too much.
        monkeypatch.setattr(bfloat16, "ALLOWED_CHANGE", 0.0 if computes_in_bfloat16() else -1.0)
        with pytest.raises(ConfigError, match=r"scores by up to \d.*the model still computes in float32"):
            prepare(model, bfloat16_images=images)
        prepared = PatchSVDD.load(model, "cpu")
        assert prepared.critic_inference is not None
        assert prepared.critic_inference.engine(SIZE).precision == "float32"

    @pytest.mark.usefixtures("compared")
    def test_the_command_reports_skipped_images(
        self, model: Path, images: Sequence[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bfloat16, "ALLOWED_CHANGE", 10.0)
        images[0].write_bytes(images[0].read_bytes()[:200])
        (images[0].parent / "text.png").write_text("no image")
        done = run("prepare", model, "--bfloat16", images[0].parent, "--json")
        found = done.json()
        assert found["bfloat16"]["images"] == len(images) - 1
        assert found["bfloat16"]["changed_verdicts"] == 0
        assert found["critic"]["precision"] in ("float32", "bfloat16")
        assert done.stderr.count("skipped:") == 2


def pretend(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """Store bfloat16 in OpenVINO as the fastest for the critic."""
    timing = Measurement("openvino", "bfloat16", 1.0, 1.0, 0.0, 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(engines, "_measure", lambda *_: [timing])
        patched.setattr(engines, "_candidates", lambda *_: ([None, None], {}))
        choice: EngineChoice = bfloat16.allow_bfloat16(PatchSVDD.load(model, "cpu"), model)
    assert choice.precision == "bfloat16"


@pytest.mark.parametrize(
    ("check", "refused"),
    [
        (Bfloat16Check(50, 0.099, 0.01, 0), False),
        (Bfloat16Check(50, 0.101, 0.01, 0), True),
        (Bfloat16Check(50, 0.001, 0.001, 1), True),
    ],
)
def test_verdicts_must_stay_and_scores_nearly(check: Bfloat16Check, refused: bool) -> None:
    if not refused:
        check.require()
        return
    with pytest.raises(ConfigError, match=f"bfloat16 changes {check.changed_verdicts} of 50 verdicts"):
        check.require()


def test_a_model_without_critic_is_refused_before_anything_changes(
    detector: PatchSVDD, images: Sequence[Path], tmp_path: Path
) -> None:
    detector.save(tmp_path / "plain")
    before = files(tmp_path / "plain")
    with pytest.raises(ConfigError, match="no critic"):
        prepare(tmp_path / "plain", bfloat16_images=images)
    assert files(tmp_path / "plain") == before


def test_a_model_without_threshold_is_refused(critical: PatchSVDD, images: Sequence[Path], tmp_path: Path) -> None:
    critical.save(tmp_path / "model")
    uncalibrated = PatchSVDD.load(tmp_path / "model", "cpu")
    uncalibrated.calibration = None
    with pytest.raises(ConfigError, match="run `patchsvdd calibrate` first"):
        check_bfloat16(uncalibrated, images)


@needs_openvino
@pytest.mark.usefixtures("compared")
def test_too_few_images_are_refused(critical: PatchSVDD, images: Sequence[Path]) -> None:
    with pytest.raises(ConfigError, match="at least 5 usable images; got 4"):
        check_bfloat16(critical, images[:4])
