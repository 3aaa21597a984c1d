from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from patchsvdd.core.errors import ModelError, OutputError
from patchsvdd.detector.detector import ENGINES, PatchSVDD
from patchsvdd.detector.model_folder import read_model
from patchsvdd.detector.prepare import engines_are_known, prepare
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.encoder import engines
from patchsvdd.encoder.engines import CHOICES
from patchsvdd.memory import bank as memory
from patchsvdd.memory import graph_search
from patchsvdd.memory.graph_search import has_faiss
from support.command_line import files
from support.parts import NO_ESTIMATE, draw_part

needs_faiss = pytest.mark.skipif(not has_faiss(), reason="takes the package faiss-cpu")
SIZE = (64, 64)


@pytest.fixture
def model(detector: PatchSVDD, tmp_path: Path) -> Path:
    """A model that no graph was built for."""
    detector.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are measured once."""
    monkeypatch.setattr(engines, "ROUNDS", 1)


@pytest.fixture
def graphs_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs for memories of a hundred rows: the 32-px patches of the tiny detector, not its 64-px patches."""
    monkeypatch.setattr(graph_search, "MIN_GRAPH_ROWS", 100)
    monkeypatch.setattr(memory, "MIN_GRAPH_ROWS", 100)


@needs_faiss
@pytest.mark.usefixtures("graphs_pay")
class TestGraphs:
    def test_builds_graphs_and_sets_the_threshold_anew(self, model: Path, detector: PatchSVDD) -> None:
        before = read_model(model).identity
        stages: list[str] = []
        done = prepare(model, lambda stage, *_: stages.append(stage))
        prepared = PatchSVDD.load(model, "cpu")
        assert done.graphs == (32,)
        assert {size for size, scale in prepared.memory.scales.items() if scale.graph is not None} == {32}
        assert done.threshold == (detector.threshold, prepared.threshold)
        assert prepared.threshold == pytest.approx(detector.threshold, rel=0.2)
        assert prepared.calibration is not None
        assert prepared.calibration.scores == tuple(prepared.leave_one_out_scores(SIZE))
        assert prepared.identity != before
        assert list(dict.fromkeys(stages))[:2] == ["graph", "threshold"]

    def test_a_prepared_model_inspects_nearly_alike(self, model: Path, detector: PatchSVDD) -> None:
        prepare(model)
        prepared = PatchSVDD.load(model, "cpu")
        for seed in (5, 6):
            picture = draw_part(seed, defect=seed == 6)
            assert prepared.inspect(picture).score == pytest.approx(detector.inspect(picture).score, rel=0.2)

    def test_a_second_time_there_is_nothing_to_do(self, model: Path) -> None:
        first = prepare(model)
        before = files(model)
        again = prepare(model)
        assert (again.graphs, again.threshold) == ((), None)
        assert again.engines["encoder"].engine == first.engines["encoder"].engine
        assert again.engines["encoder"].stored == bool(first.engines["encoder"].measured)
        assert files(model) == before

    @pytest.mark.parametrize("last", ["graph32", "model.json"])
    def test_a_full_disk_leaves_the_old_model(self, model: Path, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
        before, replace = read_model(model), os.replace

        def fail(source: Path, target: Path) -> None:
            if target.name.startswith(last):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fail)
            with pytest.raises(OutputError, match="No space left on device"):
                prepare(model)
        after = read_model(model)
        assert (after.identity, after.graphs) == (before.identity, {})
        assert PatchSVDD.load(model, "cpu").memory.scales[32].graph is None
        assert prepare(model).graphs == (32,)  # once there is space again

    def test_ctrl_c_while_the_threshold_is_set_leaves_the_old_model(self, model: Path) -> None:
        before = files(model)

        def stop(stage: str, done: int, total: int) -> None:
            if stage == "threshold":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(model, stop)
        assert files(model) == before

    def test_a_thinned_memory_keeps_its_threshold(self, good_folder: Path, tmp_path: Path) -> None:
        thinned = PatchSVDD.fit(
            good_folder,
            preset="encoder",
            device="cpu",
            image_size=64,
            encoder="random",
            memory="50%",
            search="exact",
            **NO_ESTIMATE,
        )
        thinned.save(tmp_path / "model")
        done = prepare(tmp_path / "model")
        prepared = PatchSVDD.load(tmp_path / "model", "cpu")
        assert (done.graphs, done.threshold) == ((32,), None)
        assert prepared.calibration == thinned.calibration
        graph = prepared.memory.scales[32].graph
        assert graph is not None
        assert len(graph) == len(thinned.memory.scales[32].embeddings)

    def test_a_threshold_from_images_it_does_not_hold_stays(self, model: Path) -> None:
        calibrated = PatchSVDD.load(model, "cpu")
        recalibrate(calibrated, [draw_part(seed) for seed in range(50, 56)], 0.2)
        calibrated.save(model)
        before = read_model(model).about["calibration"]
        assert before["basis"] == "separate"
        done = prepare(model)
        assert (done.graphs, done.threshold) == ((32,), None), "its images are not there to set it anew by"
        assert read_model(model).about["calibration"] == before

    def test_a_prepared_model_scores_its_own_images_alike(self, model: Path, good_folder: Path) -> None:
        prepare(model)
        prepared = PatchSVDD.load(model, "cpu")
        assert prepared.calibration is not None
        expected = prepared.calibration.scores
        assert recalibrate(prepared, good_folder).calibration.scores == pytest.approx(expected, rel=1e-3)

    def test_a_model_with_a_critic_keeps_its_threshold(self, critical: PatchSVDD, tmp_path: Path) -> None:
        critical.save(tmp_path / "model")
        stages: list[str] = []
        done = prepare(tmp_path / "model", lambda stage, *_: stages.append(stage))
        prepared = PatchSVDD.load(tmp_path / "model", "cpu", engine="torch")
        assert (done.graphs, done.threshold) == ((32,), None)
        assert "threshold" not in stages
        assert prepared.calibration == critical.calibration
        assert prepared.map_builder.fusion == critical.map_builder.fusion
        picture = draw_part(6, defect=True)
        found, expected = prepared.inspect(picture), critical.inspect(picture)
        assert (found.part_maps["critic"] == expected.part_maps["critic"]).all()
        assert found.score == pytest.approx(expected.score, rel=0.2)

    def test_a_detector_without_threshold_stays_without(self, model: Path) -> None:
        uncalibrated = PatchSVDD.load(model, "cpu")
        uncalibrated.calibration = None
        uncalibrated.save(model)
        done = prepare(model)
        assert (done.graphs, done.threshold) == ((32,), None)
        assert PatchSVDD.load(model, "cpu").calibration is None


def test_the_engine_is_remembered(model: Path) -> None:
    assert not engines_are_known(PatchSVDD.load(model, "cpu"), model)
    choice = prepare(model).engines["encoder"]
    prepared = PatchSVDD.load(model, "cpu")
    assert prepared.image_size == SIZE
    assert prepared.embedder.engine_for(SIZE) == f"{choice.engine} float32"
    if choice.measured:
        assert (model / ENGINES / CHOICES).is_file()
        assert engines_are_known(prepared, model)
        assert choice.engine == choice.measured[0].engine


def test_the_engines_of_a_critic_are_remembered(critical: PatchSVDD, tmp_path: Path) -> None:
    model = tmp_path / "model"
    critical.save(model)
    choices = prepare(model).engines
    assert list(choices) == ["encoder", "critic"]
    prepared = PatchSVDD.load(model, "cpu")
    assert prepared.critic_inference is not None
    assert prepared.critic_inference.engine(SIZE).name == choices["critic"].engine
    if choices["critic"].measured:
        assert engines_are_known(prepared, model)
        assert not engines_are_known(prepared, tmp_path)


def test_small_memories_get_no_graph(model: Path) -> None:
    before = read_model(model).identity
    done = prepare(model)
    assert (done.graphs, done.threshold) == ((), None)
    assert read_model(model).identity == before


@pytest.mark.usefixtures("graphs_pay")
def test_without_faiss_the_search_stays_exact(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert prepare(model).graphs == ()
    assert PatchSVDD.load(model, "cpu").memory.scales[32].graph is None


def test_a_damaged_model_is_not_prepared(model: Path) -> None:
    (memory_file,) = model.glob("memory-*")
    memory_file.write_bytes(memory_file.read_bytes()[:-1])
    before = files(model)
    with pytest.raises(ModelError, match=memory_file.name):
        prepare(model)
    assert files(model) == before
    shutil.rmtree(model)
    with pytest.raises(ModelError, match="no model folder"):
        prepare(model)
