from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
import safetensors.torch
import torch

from patchsvdd.core.errors import ModelError, OutputError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import (
    HISTORY,
    INDEX,
    StoredModel,
    change_model,
    is_model,
    read_index,
    read_model,
    undo_change,
    write_model,
    write_parts,
)
from patchsvdd.memory import bank as memory_module
from patchsvdd.memory import graph_search
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.graph_search import GraphSearch, has_faiss
from patchsvdd.scoring.calibration import calibrate
from patchsvdd.training.checkpoint import Checkpoint, CheckpointFile
from support.parts import assemble, draw_part

PARTS = ["model.json", "encoder", "memory", "pictures"]


@pytest.fixture(scope="module")
def saved(detector: PatchSVDD, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model. Tests that change it work on a copy."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    detector.save(folder)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    """A model folder of one's own."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def part(folder: Path, name: str) -> Path:
    """The file of a part: "model.json", "encoder", "memory", "pictures" or "critic"."""
    (path,) = [path for path in folder.iterdir() if path.name.startswith(name)]
    return path


def scores(detector: PatchSVDD) -> list[float]:
    return [detector.inspect(draw_part(seed, defect=seed == 7)).score for seed in (0, 6, 7)]


def alter_index(folder: Path, **changes: object) -> None:
    index = json.loads((folder / "model.json").read_bytes())
    (folder / "model.json").write_text(json.dumps(index | changes))


def fail_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Let the disk fill up at the given rename."""
    replace, calls = os.replace, iter(range(1, 100))

    def fail(source: Path, target: Path) -> None:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)


class TestSavedIsLoaded:
    def test_every_score_and_setting(self, detector: PatchSVDD, saved: Path) -> None:
        loaded = PatchSVDD.load(saved, device="cpu")
        assert scores(loaded) == scores(detector)
        assert loaded.config == detector.config
        assert loaded.calibration == detector.calibration
        assert loaded.threshold == detector.threshold
        assert loaded.provenance == json.loads(json.dumps(detector.provenance))
        assert loaded.identity == detector.identity

    def test_every_tensor(self, detector: PatchSVDD, saved: Path) -> None:
        loaded = PatchSVDD.load(saved, device="cpu")
        weights, stored = detector.encoder.state_dict(), loaded.encoder.state_dict()
        assert all(torch.equal(weights[name], stored[name]) for name in weights)
        assert loaded.memory.image_names == detector.memory.image_names
        for size, scale in detector.memory.scales.items():
            assert torch.equal(loaded.memory.scales[size].embeddings, scale.embeddings)
            assert torch.equal(loaded.memory.scales[size].origins, scale.origins)

    def test_saved_again_is_the_same_model(self, saved: Path, tmp_path: Path) -> None:
        PatchSVDD.load(saved, device="cpu").save(tmp_path / "again")
        assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == {
            path.name: path.read_bytes() for path in saved.iterdir()
        }

    def test_a_detector_without_threshold(self, detector: PatchSVDD, tmp_path: Path) -> None:
        parts = (detector.config, detector.encoder, detector.normalization, detector.memory)
        assemble(*parts).save(tmp_path)
        assert PatchSVDD.load(tmp_path, device="cpu").calibration is None

    def test_image_names_that_are_not_unicode(self, detector: PatchSVDD, tmp_path: Path) -> None:
        names = (os.fsdecode(b"gr\xfcn.png"), "größe.png", "部品.png", "d.png")
        memory = Memory(names, detector.memory.scales)
        parts = (detector.config, detector.encoder, detector.normalization, memory)
        assemble(*parts, detector.calibration).save(tmp_path)
        assert PatchSVDD.load(tmp_path, device="cpu").memory.image_names == names

    def test_another_threshold_is_another_identity(self, tmp_path: Path) -> None:
        tensors = {"encoder": {"a": torch.zeros(2)}}
        first = write_model(tmp_path / "1", {"config": {}, "calibration": 1.0}, tensors)
        same = write_model(tmp_path / "2", {"config": {}, "calibration": 1.0, "provenance": "other"}, tensors)
        other = write_model(tmp_path / "3", {"config": {}, "calibration": 2.0}, tensors)
        assert first == same != other

    def test_so_is_another_fusion(self, tmp_path: Path) -> None:
        tensors = {"encoder": {"a": torch.zeros(2)}}
        none, first, other = (
            write_model(tmp_path / str(share), {"config": {}, "fusion": share}, tensors) for share in (None, 0.25, 0.5)
        )
        assert len({none, first, other}) == 3
        assert none == write_model(tmp_path / "before", {"config": {}}, tensors), "as earlier versions named it"


class TestOnDisk:
    def test_only_safetensors_and_json(self, saved: Path) -> None:
        assert sorted(path.suffix for path in saved.iterdir()) == [".json", *[".safetensors"] * 3]
        for path in saved.iterdir():
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            else:
                safetensors.torch.load_file(path)

    def test_nothing_is_a_pickle(self, saved: Path) -> None:
        for path in saved.iterdir():
            with path.open("rb") as file, pytest.raises((pickle.UnpicklingError, EOFError, ValueError, KeyError)):
                pickle.load(file)

    def test_a_newer_model_replaces_the_older_ones_parts(self, model: Path) -> None:
        detector = PatchSVDD.load(model, device="cpu")
        old = {path.name for path in model.iterdir()}
        with torch.no_grad():
            next(detector.encoder.parameters()).add_(1.0)
        detector.save(model)
        new = {path.name for path in model.iterdir()}
        assert len(new) == 4
        assert len(new & old) == 3, "model.json, the memory and the pictures, which did not change"
        assert scores(PatchSVDD.load(model, device="cpu")) == scores(detector)

    def test_other_files_in_the_folder_are_left_alone(self, model: Path) -> None:
        (model / "notes.txt").write_text("mine")
        (model / "mine.safetensors").write_bytes(b"mine")
        PatchSVDD.load(model, device="cpu").save(model)
        assert (model / "notes.txt").exists()
        assert (model / "mine.safetensors").exists()


class TestDamage:
    @pytest.mark.parametrize("name", PARTS)
    def test_a_flipped_bit_anywhere_is_found(self, model: Path, name: str) -> None:
        path = part(model, name)
        content = path.read_bytes()
        for position in range(0, len(content), max(1, len(content) // 23)):
            altered = bytearray(content)
            altered[position] ^= 1
            path.write_bytes(altered)
            with pytest.raises(ModelError) as error:
                PatchSVDD.load(model, device="cpu")
            assert path.name in str(error.value), f"byte {position}"
        path.write_bytes(content)
        PatchSVDD.load(model, device="cpu")

    @pytest.mark.parametrize("name", PARTS)
    @pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
    def test_a_truncated_file(self, model: Path, name: str, share: float) -> None:
        path = part(model, name)
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ModelError, match=path.name):
            PatchSVDD.load(model, device="cpu")

    @pytest.mark.parametrize("name", PARTS)
    def test_a_missing_file(self, model: Path, name: str) -> None:
        path = part(model, name)
        path.unlink()
        with pytest.raises(ModelError, match=path.name):
            PatchSVDD.load(model, device="cpu")

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no model folder"):
            PatchSVDD.load(tmp_path / "nowhere")

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"not a model folder: it has no model\.json"):
            PatchSVDD.load(tmp_path)
        assert not is_model(tmp_path)

    def test_an_unfinished_training(self, detector: PatchSVDD, tmp_path: Path) -> None:
        CheckpointFile(tmp_path).write(Checkpoint({}, 1, 0.0, []), detector.config.to_json(), 2, "print")
        with pytest.raises(ModelError, match=r"unfinished training; finish it .* `resume=True`"):
            PatchSVDD.load(tmp_path)

    @pytest.mark.parametrize("content", ["[]", "3", '{"format": "other"}', "null"])
    def test_json_of_something_else(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "model.json").write_text(content)
        with pytest.raises(ModelError, match="does not describe a patchsvdd model"):
            read_index(tmp_path)

    def test_a_newer_format(self, model: Path) -> None:
        alter_index(model, format_version=2)
        with pytest.raises(ModelError, match="format version 2, newer than this software reads"):
            PatchSVDD.load(model)

    def test_an_edited_threshold(self, model: Path) -> None:
        alter_index(model, calibration=None)
        with pytest.raises(ModelError, match="checksum"):
            PatchSVDD.load(model)


class TestInterruptedSave:
    @pytest.mark.parametrize("call", [1, 2, 3])
    def test_the_old_model_stays(self, model: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
        before = read_model(model)
        newer = PatchSVDD.load(model, device="cpu")
        with torch.no_grad():
            next(newer.encoder.parameters()).add_(1.0)
        newer.memory.scales[32].embeddings.add_(1.0)
        with monkeypatch.context() as patch:
            fail_at(patch, call)
            with pytest.raises(OutputError, match="No space left on device"):
                newer.save(model)
        after = read_model(model)
        assert after.identity == before.identity
        for name, tensors in before.parts.items():
            assert all(torch.equal(after.parts[name][key], value) for key, value in tensors.items())
        assert not [path for path in model.iterdir() if path.name.endswith(".tmp")]

        newer.save(model)  # once there is space again
        assert len(list(model.iterdir())) == 4
        assert read_model(model).identity == newer.identity != before.identity

    def test_a_first_save_leaves_no_model(
        self, detector: PatchSVDD, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fail_at(monkeypatch, 2)
        identity = detector.identity
        with pytest.raises(OutputError):
            detector.save(tmp_path / "new")
        assert detector.identity == identity
        assert not is_model(tmp_path / "new")


class TestChange:
    """What model.json says is changed, and none of the parts."""

    CHANGES: ClassVar = {"calibration": {"threshold": 0.5, "false_alarm_rate": 0.1, "scores": [0.5, 0.25]}}

    def test_changes_nothing_else(self, model: Path) -> None:
        before = {path.name: path.read_bytes() for path in model.iterdir()}
        index = read_index(model)
        identity = change_model(model, self.CHANGES, "calibrate")
        after = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
        assert {name for name in after if after[name] != before.get(name)} == {INDEX}
        assert after.keys() == before.keys()
        changed = read_index(model)
        (entry,) = changed.pop("journal")
        assert changed == index | self.CHANGES | {"identity": identity}
        assert (entry["number"], entry["change"], entry["before"]) == (1, "calibrate", index["identity"])

    def test_is_another_identity_and_loads(self, model: Path, detector: PatchSVDD) -> None:
        before = read_model(model).identity
        identity = change_model(model, self.CHANGES, "calibrate")
        loaded = PatchSVDD.load(model, device="cpu")
        assert loaded.identity == identity != before
        assert loaded.threshold == 0.5
        assert scores(loaded) == scores(detector)

    def test_with_the_same_is_the_same_file(self, model: Path) -> None:
        before = (model / INDEX).read_bytes()
        identity = read_model(model).identity
        assert change_model(model, {"calibration": read_index(model)["calibration"]}, "calibrate") == identity
        assert (model / INDEX).read_bytes() == before

    def test_of_a_model_replaced_meanwhile_is_refused(self, model: Path) -> None:
        worked_out_from = read_model(model).identity
        change_model(model, self.CHANGES, "calibrate", of=worked_out_from)
        before = (model / INDEX).read_bytes()
        with pytest.raises(ModelError, match="replaced in the meantime"):
            change_model(model, {"calibration": None}, "calibrate", of=worked_out_from)
        assert (model / INDEX).read_bytes() == before

    def test_is_the_identity_that_saving_would_give(self, model: Path, tmp_path: Path) -> None:
        identity = change_model(model, {"calibration": calibrate([0.5, 0.25], 0.1).to_json()}, "calibrate")
        loaded = PatchSVDD.load(model, device="cpu")
        loaded.save(tmp_path / "again")
        assert loaded.identity == identity

    @pytest.mark.parametrize("write", [1, 2])
    def test_an_interruption_leaves_the_old_one(self, model: Path, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
        before = {path.name: path.read_bytes() for path in model.iterdir()}
        fail_at(monkeypatch, write)
        with pytest.raises(OutputError, match="No space left on device"):
            change_model(model, self.CHANGES, "calibrate")
        assert {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()} == before

    def test_a_damaged_one_is_not_rewritten(self, model: Path) -> None:
        alter_index(model, calibration=None)
        before = (model / INDEX).read_bytes()
        with pytest.raises(ModelError, match="checksum"):
            change_model(model, self.CHANGES, "calibrate")
        assert (model / INDEX).read_bytes() == before

    def test_keeps_the_parts_that_an_earlier_state_needs(self, model: Path) -> None:
        states = [read_model(model)]
        for number in (1, 2):  # only history/000N.json still names the part that each change replaces
            states.append(self._with_other_pictures(model, number))
        for before in reversed(states[:-1]):
            undo_change(model)
            now = read_model(model)
            assert now.identity == before.identity
            assert now.about["files"] == before.about["files"]
            assert now.parts["pictures"].keys() == before.parts["pictures"].keys()
            assert all(torch.equal(one, before.parts["pictures"][name]) for name, one in now.parts["pictures"].items())
        assert {path.name for path in model.iterdir()} == {part(model, name).name for name in PARTS}

    def test_deletes_no_part_while_an_earlier_state_cannot_be_read(self, model: Path) -> None:
        self._with_other_pictures(model, 1)
        needed = {path.name for path in model.iterdir()}
        state = (model / HISTORY / "0001.json").read_bytes()
        (model / HISTORY / "0001.json").write_bytes(state[:-10])
        self._with_other_pictures(model, 2)
        assert needed <= {path.name for path in model.iterdir()}

    @staticmethod
    def _with_other_pictures(model: Path, number: int) -> StoredModel:
        written = write_parts(model, {"pictures": {"any": torch.tensor([number])}}, {})
        change_model(model, {"files": {**read_index(model)["files"], **written}}, "test")
        return read_model(model)

    def test_with_a_critic_keeps_the_fusion(self, critical: PatchSVDD, tmp_path: Path) -> None:
        critical.save(tmp_path)
        change_model(tmp_path, self.CHANGES, "calibrate")
        loaded = PatchSVDD.load(tmp_path, device="cpu")
        assert loaded.map_builder.fusion == critical.map_builder.fusion
        assert scores(loaded) == scores(critical)


def test_models_of_before_thresholds_could_be_set_anew_load(detector: PatchSVDD, model: Path) -> None:
    stored = read_model(model)
    known = stored.about["calibration"]
    stored.about["calibration"] = {name: known[name] for name in ("threshold", "false_alarm_rate", "scores")}
    for name in ("digests", "held_out"):
        del stored.about["provenance"]["data"][name]
    write_model(model, stored.about, stored.parts)
    loaded = PatchSVDD.load(model, device="cpu")
    assert loaded.threshold == detector.threshold
    assert scores(loaded) == scores(detector)
    assert loaded.inspect(draw_part(7, defect=True)).p_value == 0.2, "of 4 good images none scores as high"


def test_settings_without_a_memory_size_still_load(detector: PatchSVDD, model: Path) -> None:
    stored = read_model(model)
    del stored.about["config"]["memory"]  # as version 0.1 wrote it
    write_model(model, stored.about, stored.parts)
    loaded = PatchSVDD.load(model, device="cpu")
    assert loaded.config == detector.config
    assert scores(loaded) == scores(detector)


def test_settings_of_a_newer_version_are_named(model: Path) -> None:
    stored = read_model(model)
    stored.about["config"]["colour"] = "blue"
    write_model(model, stored.about, stored.parts)
    with pytest.raises(ModelError, match=r"was written by patchsvdd .*colour.*train again"):
        PatchSVDD.load(model, device="cpu")


class TestCritic:
    @pytest.fixture
    def critical_model(self, critical: PatchSVDD, tmp_path: Path) -> Path:
        """A saved model with a critic."""
        critical.save(tmp_path / "critical")
        return tmp_path / "critical"

    def test_is_a_part_of_its_own(self, critical: PatchSVDD, critical_model: Path) -> None:
        assert len(list(critical_model.iterdir())) == 5
        stored = read_model(critical_model)
        assert set(stored.parts) == {"encoder", "memory", "critic", "pictures"}
        assert critical.critic is not None
        for name, value in critical.critic.state().items():
            assert torch.equal(stored.parts["critic"][name], value)
        assert scores(PatchSVDD.load(critical_model, "cpu")) == scores(critical)

    def test_saved_again_is_the_same_model(self, critical_model: Path, tmp_path: Path) -> None:
        PatchSVDD.load(critical_model, device="cpu").save(tmp_path / "again")
        assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == {
            path.name: path.read_bytes() for path in critical_model.iterdir()
        }

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
    def test_a_truncated_file(self, critical_model: Path, share: float) -> None:
        path = part(critical_model, "critic")
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ModelError, match=f"{path.name} was truncated or altered"):
            PatchSVDD.load(critical_model, device="cpu")

    def test_a_flipped_bit_and_a_missing_file(self, critical_model: Path) -> None:
        path = part(critical_model, "critic")
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)
        with pytest.raises(ModelError, match=f"{path.name} was altered"):
            PatchSVDD.load(critical_model, device="cpu")
        path.unlink()
        with pytest.raises(ModelError, match=f"the model's file .*{path.name} is missing"):
            PatchSVDD.load(critical_model, device="cpu")

    def test_a_newer_model_replaces_it(self, detector: PatchSVDD, critical_model: Path) -> None:
        old = part(critical_model, "critic")
        mine = critical_model / "critic-of-mine.safetensors"
        mine.write_bytes(b"mine")
        newer = PatchSVDD.load(critical_model, "cpu")
        assert newer.critic is not None
        newer.critic.critic.head.weight.add_(1.0)
        newer.save(critical_model)
        assert not old.exists()
        assert len(list(critical_model.glob("critic-*"))) == 2
        detector.save(critical_model)
        assert list(critical_model.glob("critic-*")) == [mine]
        assert scores(PatchSVDD.load(critical_model, "cpu")) == scores(detector)

    @pytest.mark.parametrize("call", [1, 2, 3, 4])
    def test_an_interrupted_save_leaves_the_old_model(
        self, model: Path, critical: PatchSVDD, monkeypatch: pytest.MonkeyPatch, call: int
    ) -> None:
        before = read_model(model).identity
        with monkeypatch.context() as patch:
            fail_at(patch, call)
            with pytest.raises(OutputError, match="No space left on device"):
                critical.save(model)
        assert read_model(model).identity == before
        critical.save(model)
        assert len(list(model.iterdir())) == 5

    def test_settings_of_a_newer_critic_are_named(self, critical_model: Path) -> None:
        stored = read_model(critical_model)
        stored.about["config"]["critic"]["colour"] = "blue"
        write_model(critical_model, stored.about, stored.parts)
        with pytest.raises(ModelError, match=r"was written by patchsvdd .*colour.*train again"):
            PatchSVDD.load(critical_model, device="cpu")

    def test_models_of_before_there_were_critics_load(self, detector: PatchSVDD, model: Path) -> None:
        stored = read_model(model)
        del stored.about["fusion"], stored.about["config"]["critic"], stored.about["config"]["fusion_share"]
        write_model(model, stored.about, stored.parts)
        loaded = PatchSVDD.load(model, device="cpu")
        assert loaded.critic is None
        assert loaded.map_builder.fusion is None
        assert loaded.config == detector.config
        assert scores(loaded) == scores(detector)


@pytest.mark.skipif(not has_faiss(), reason="takes the package faiss-cpu")
class TestGraphs:
    @pytest.fixture(autouse=True)
    def _graphs_pay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Graphs for memories of a hundred rows: the 32-px patches of the tiny detector, not its 64-px patches."""
        monkeypatch.setattr(graph_search, "MIN_GRAPH_ROWS", 100)
        monkeypatch.setattr(memory_module, "MIN_GRAPH_ROWS", 100)

    @pytest.fixture
    def quick(self, model: Path) -> PatchSVDD:
        """The model with a graph, saved in its place."""
        detector = PatchSVDD.load(model, device="cpu")
        detector.memory = detector.memory.with_graphs()
        detector.save(model)
        return detector

    def test_are_saved_and_mapped(self, quick: PatchSVDD, model: Path) -> None:
        assert [path.name for path in read_model(model).graphs.values()] == [part(model, "graph32").name]
        loaded = PatchSVDD.load(model, device="cpu")
        graph = loaded.memory.scales[32].graph
        assert isinstance(graph, GraphSearch)
        assert (len(graph), graph.shape) == (324, (9, 9))
        assert loaded.memory.scales[64].graph is None
        assert scores(loaded) == scores(quick)
        maps = Path("/proc/self/maps")
        assert not maps.exists() or str(part(model, "graph32")) in maps.read_text()

    @pytest.mark.usefixtures("quick")
    def test_saved_again_is_the_same_model(self, model: Path, tmp_path: Path) -> None:
        PatchSVDD.load(model, device="cpu").save(tmp_path / "again")
        assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == {
            path.name: path.read_bytes() for path in model.iterdir()
        }

    @pytest.mark.usefixtures("quick")
    def test_an_exact_search_leaves_them_alone(self, model: Path, detector: PatchSVDD) -> None:
        exact = PatchSVDD.load(model, device="cpu", search="exact")
        assert all(scale.graph is None for scale in exact.memory.scales.values())
        assert scores(exact) == scores(detector)

    def test_a_search_without_its_graph_names_the_remedy(self, model: Path) -> None:
        with pytest.raises(ModelError, match=f"has no search graph; build one: patchsvdd prepare '{model}'"):
            PatchSVDD.load(model, device="cpu", search="graph")
        assert PatchSVDD.load(model, device="cpu").memory.scales[32].graph is None

    @pytest.mark.usefixtures("quick")
    @pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
    def test_a_truncated_file(self, model: Path, share: float) -> None:
        path = part(model, "graph32")
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ModelError, match=f"{path.name} was truncated or altered"):
            PatchSVDD.load(model, device="cpu")

    @pytest.mark.usefixtures("quick")
    def test_a_flipped_bit_and_a_missing_file(self, model: Path) -> None:
        path = part(model, "graph32")
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)
        with pytest.raises(ModelError, match=f"{path.name} was altered"):
            PatchSVDD.load(model, device="cpu")
        path.unlink()
        with pytest.raises(ModelError, match=f"the model's file .*{path.name} is missing"):
            PatchSVDD.load(model, device="cpu")

    def test_replacing_a_model_removes_the_old_graph(self, quick: PatchSVDD, model: Path) -> None:
        old = part(model, "graph32")
        (model / "graphics.faiss").write_bytes(b"mine")
        quick.memory = quick.memory.without_graphs()
        quick.save(model)
        assert not old.exists()
        assert (model / "graphics.faiss").exists()
        assert read_model(model).graphs == {}

    def test_a_graph_is_another_identity(self, quick: PatchSVDD, saved: Path) -> None:
        assert quick.identity != read_model(saved).identity
