"""Good images are put into a stored model's memory and taken out again, and every change can be undone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from patchsvdd.core.errors import DatasetError, ModelError, OutputError
from patchsvdd.core.files import locked
from patchsvdd.core.scales import Scale
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.memory_update import add_images, remove_images, undo
from patchsvdd.detector.model_folder import (
    HISTORY,
    INDEX,
    KEPT,
    journal_of,
    read_index,
    read_model,
    undoable,
    write_model,
)
from patchsvdd.detector.recalibration import recalibrate
from patchsvdd.memory.bank import Memory, build_memory
from patchsvdd.memory.exact_search import ExactSearch
from patchsvdd.memory.graph_search import has_faiss
from patchsvdd.memory.layered_search import LayeredSearch, SearchLayer
from patchsvdd.memory.segments import join, segments_of
from support.command_line import run
from support.parts import NO_ESTIMATE, TINY, draw_part, save_picture

pytestmark = pytest.mark.slow


@pytest.fixture
def model(detector: PatchSVDD, tmp_path: Path) -> Path:
    """A model of four images, 000.png to 003.png, without a critic."""
    detector.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """Three more good images."""
    for seed in (4, 5, 6):
        save_picture(tmp_path / "more" / f"{seed:03}.png", draw_part(seed))
    return tmp_path / "more"


def load(folder: Path, **options: Any) -> PatchSVDD:
    return PatchSVDD.load(folder, device="cpu", **options)


def rebuilt(detector: PatchSVDD, seeds: list[int]) -> Memory:
    """The memory that a model of these images would have."""
    pixels = torch.stack([torch.from_numpy(draw_part(seed)).permute(2, 0, 1) for seed in seeds])
    grids = detector.embedder.grids((64, 64))
    with torch.inference_mode():
        images = detector.normalization(pixels)
        return build_memory(detector.encoder, images, [f"{seed:03}.png" for seed in seeds], grids)


def same(one: Memory, other: Memory) -> bool:
    return one.image_names == other.image_names and all(
        torch.equal(scale.embeddings, other.scales[size].embeddings)
        and torch.equal(scale.origins, other.scales[size].origins)
        for size, scale in one.scales.items()
    )


def maps(detector: PatchSVDD) -> list[Tensor]:
    """Maps of a good and a defective image."""
    return [torch.from_numpy(detector.inspect(draw_part(9, defect=defect)).anomaly_map) for defect in (False, True)]


class TestAddedImages:
    def test_are_in_the_memory_as_if_it_had_been_made_with_them(self, model: Path, more: Path) -> None:
        done = add_images(model, more, device="cpu")
        grown = load(model)
        assert done.images == ("004.png", "005.png", "006.png")
        assert done.total == 7
        assert same(grown.memory, rebuilt(grown, [0, 1, 2, 3, 4, 5, 6]))
        whole = load(model)
        whole.memory = rebuilt(grown, [0, 1, 2, 3, 4, 5, 6])
        assert all(map(torch.equal, maps(grown), maps(whole)))

    def test_never_raise_a_score(self, model: Path, more: Path) -> None:
        before = load(model)
        add_images(model, more, device="cpu")
        after = load(model)
        pictures = [draw_part(seed, defect=seed % 2 == 0) for seed in range(20, 30)]
        for picture in pictures:
            assert bool((after.inspect(picture).anomaly_map <= before.inspect(picture).anomaly_map).all())

    def test_can_be_shown(self, model: Path, more: Path) -> None:
        add_images(model, more, device="cpu")
        remove_images(model, ["001.png"], device="cpu")
        grown = load(model)
        assert grown.pictures is not None
        assert len(grown.pictures) == 6
        for number, seed in enumerate([0, 2, 3, 4, 5, 6]):
            difference = grown.pictures[number].astype(float) - draw_part(seed)
            assert abs(difference).mean() < 8, seed
        explained = grown.inspect(draw_part(5)).explain().reasons[0]
        assert {scale.nearest.image for scale in explained.scales} == {"005.png"}

    def test_are_normal_from_then_on(self, model: Path) -> None:
        odd = draw_part(40, defect=True)
        before = load(model).inspect(odd)
        add_images(model, [odd, draw_part(41, defect=True)], device="cpu")
        assert load(model).inspect(odd).score < 1e-3 * before.score

    def test_leave_the_threshold_alone(self, model: Path, more: Path) -> None:
        before = load(model).calibration
        assert before is not None
        save_picture(more / "odd.png", draw_part(40, defect=True))
        done = add_images(model, more, device="cpu")
        assert load(model).calibration == before
        assert done.threshold == done.threshold_before == before.threshold
        assert done.threshold_kept

    @pytest.mark.parametrize("recalibrated", [False, True])
    def test_that_would_still_alarm_are_named(self, model: Path, more: Path, recalibrated: bool) -> None:
        save_picture(more / "odd.png", draw_part(40, defect=True))
        before = load(model)
        assert before.calibration is not None
        assert before.inspect(more / "odd.png").score > before.threshold
        done = add_images(model, more, device="cpu", recalibrate=recalibrated)
        grown = load(model)
        alone = grown.leave_one_out_scores((64, 64))
        scores = dict(zip(grown.memory.image_names, alone, strict=True))
        assert done.alarming == tuple(name for name in done.images if scores[name] > grown.threshold)
        assert ("odd.png" in done.alarming) != recalibrated, "with four images the threshold is the highest score"

    def test_join_what_the_threshold_rests_on_if_asked(self, model: Path, more: Path) -> None:
        before = load(model)
        done = add_images(model, more, device="cpu", recalibrate=True)
        grown = load(model)
        assert before.calibration is not None
        assert grown.calibration is not None
        assert grown.calibration.scores[:4] == before.calibration.scores
        alone = grown.leave_one_out_scores((64, 64))
        assert grown.calibration.scores[4:] == pytest.approx(alone[4:], rel=1e-5)
        assert grown.calibration.digests == tuple(grown.provenance["data"]["digests"])
        assert all(len(values) == 7 for values in grown.calibration.traits.values())
        assert done.threshold == grown.threshold == max(grown.calibration.scores)
        assert done.threshold_before == before.threshold
        assert not done.threshold_kept

    def test_say_whether_the_threshold_was_kept(self, model: Path, more: Path) -> None:
        save_picture(more / "odd.png", draw_part(40, defect=True))
        before = load(model).threshold
        told = run("update", model, "--add", more, "--device", "cpu", "--json").json()
        assert (told["threshold"], told["threshold_before"], told["threshold_kept"]) == (before, before, True)
        assert "odd.png" in told["alarming"]
        undo(model)
        shown = run("update", model, "--add", more, "--device", "cpu")
        assert f"{before:.4g} (kept)" in shown.stdout + shown.stderr
        undo(model)
        told = run("update", model, "--add", more, "--recalibrate", "--device", "cpu", "--json").json()
        assert told["threshold"] == load(model).threshold > before == told["threshold_before"]
        assert told["threshold_kept"] is False
        undo(model)
        shown = run("update", model, "--add", more, "--recalibrate", "--device", "cpu")
        assert f"(was {before:.4g})" in shown.stdout + shown.stderr
        assert "--recalibrate goes with --add" in run("update", model, "--recalibrate", "--undo").error()

    def test_with_a_critic_are_held_out(self, critical: PatchSVDD, more: Path, tmp_path: Path) -> None:
        critical.save(tmp_path / "best")
        add_images(tmp_path / "best", more, device="cpu", recalibrate=True)
        grown = load(tmp_path / "best")
        assert critical.calibration is not None
        assert grown.calibration is not None
        assert len(grown.calibration.scores) == len(critical.calibration.scores) + 3
        assert set(grown.provenance["data"]["held_out"]) >= {4, 5, 6}
        assert grown.map_builder.fusion == critical.map_builder.fusion
        done = recalibrate(grown, more, 0.2)
        assert (done.known, done.unusable) == (3, ())

    def test_may_be_known_broken_or_twice_there(self, model: Path, more: Path) -> None:
        save_picture(more / "known.png", draw_part(2))
        save_picture(more / "twice.png", draw_part(5))
        (more / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
        done = add_images(model, more, device="cpu")
        assert done.images == ("004.png", "005.png", "006.png")
        assert sorted(done.known) == ["known.png", "twice.png"]
        assert [Path(error.name).name for error in done.skipped] == ["broken.png"]
        with pytest.raises(DatasetError, match=r"in the memory of .* already"):
            add_images(model, more, device="cpu")

    def test_of_a_name_that_is_taken_get_a_number(self, model: Path, tmp_path: Path) -> None:
        save_picture(tmp_path / "others" / "000.png", draw_part(8))
        assert add_images(model, tmp_path / "others", device="cpu").images == ("000.png (2)",)
        assert remove_images(model, ["000.png (2)"], device="cpu").total == 4

    def test_of_another_size_are_refused(self, tmp_path: Path) -> None:
        settings = {**TINY, "image_size": "native"}
        PatchSVDD.fit([draw_part(seed) for seed in range(3)], preset="encoder", device="cpu", **settings).save(
            tmp_path / "native"
        )
        with pytest.raises(DatasetError, match="80x72 and those in the memory 64x64"):
            add_images(tmp_path / "native", [draw_part(4, (72, 80))], device="cpu")

    def test_into_a_thinned_memory_keep_the_same_share(self, good_folder: Path, more: Path, tmp_path: Path) -> None:
        thinned = PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **TINY, memory="50%")
        thinned.save(tmp_path / "thin")
        add_images(tmp_path / "thin", more, device="cpu")
        grown = load(tmp_path / "thin").memory
        for size, scale in thinned.memory.scales.items():
            assert len(grown.scales[size].embeddings) == pytest.approx(7 / 4 * len(scale.embeddings), abs=2)

    def test_with_local_scaling_have_a_reach(self, good_folder: Path, more: Path, tmp_path: Path) -> None:
        scaled = PatchSVDD.fit(good_folder, preset="encoder", device="cpu", **TINY, local_scaling=True)
        scaled.save(tmp_path / "scaled")
        add_images(tmp_path / "scaled", more, device="cpu")
        for scale in load(tmp_path / "scaled").memory.scales.values():
            assert scale.local_scale is not None
            assert bool((scale.local_scale > 0).all())


class TestRemovedImages:
    def test_are_out_of_the_memory_as_if_they_had_never_been_in_it(self, model: Path, more: Path) -> None:
        add_images(model, more, device="cpu", recalibrate=True)
        done = remove_images(model, ["001.png", "005.png"], device="cpu")
        left = load(model)
        assert (done.images, done.total) == (("001.png", "005.png"), 5)
        assert same(left.memory, rebuilt(left, [0, 2, 3, 4, 6]))
        assert left.provenance["data"]["images"] == 5
        assert left.calibration is not None
        assert list(left.calibration.scores) == pytest.approx(left.leave_one_out_scores((64, 64)), rel=1e-5)
        assert left.calibration.removed_since == 0

    def test_with_a_critic_leave_a_note(self, critical: PatchSVDD, tmp_path: Path) -> None:
        critical.save(tmp_path / "best")
        held_out = critical.provenance["data"]["held_out"]
        name = critical.memory.image_names[held_out[0]]
        remove_images(tmp_path / "best", [name], device="cpu")
        left = load(tmp_path / "best")
        assert left.calibration is not None
        assert critical.calibration is not None
        assert len(left.calibration.scores) == len(critical.calibration.scores) - 1
        assert "removed from the memory" in str(left.calibration.caveat)
        assert len(left.provenance["data"]["held_out"]) == len(held_out) - 1
        listed = {one["name"]: one["image"] for one in left.provenance["unusual"]}
        assert set(listed) == {one["name"] for one in critical.provenance["unusual"]} - {name}
        assert all(left.memory.image_names[image] == one for one, image in listed.items())

    def test_are_found_by_their_file_name(self, tmp_path: Path) -> None:
        pictures = [save_picture(tmp_path / f"batch{seed}" / f"{seed}.png", draw_part(seed)) for seed in range(4)]
        PatchSVDD.fit(pictures, preset="encoder", device="cpu", **TINY).save(tmp_path / "model")
        assert remove_images(tmp_path / "model", ["2.png"], device="cpu").images == (str(pictures[2]),)

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (["004.png"], "no image named '004.png'; did you mean"),
            (["nothing like it"], "no image named 'nothing like it'; nothing was changed"),
            (["000.png", "001.png", "002.png"], "at least 2 images, 1 would be left"),
        ],
    )
    def test_must_be_there_and_leave_some(self, model: Path, names: list[str], message: str) -> None:
        before = (model / INDEX).read_bytes()
        with pytest.raises(DatasetError, match=message):
            remove_images(model, names, device="cpu")
        assert (model / INDEX).read_bytes() == before


class TestUndo:
    def test_brings_back_the_very_same_model(self, model: Path, more: Path) -> None:
        states = [load(model)]
        add_images(model, more, device="cpu")
        states.append(load(model))
        remove_images(model, ["000.png", "004.png"], device="cpu")
        for before in reversed(states):
            undo(model)
            now = load(model)
            assert now.identity == before.identity
            assert same(now.memory, before.memory)
            assert now.calibration == before.calibration
            assert all(map(torch.equal, maps(now), maps(before)))
        with pytest.raises(ModelError, match=r"no change of .* to undo"):
            undo(model)

    def test_is_journalled_and_can_be_followed_by_other_changes(self, model: Path, more: Path) -> None:
        add_images(model, more, device="cpu")
        assert undo(model).undone == "add"
        remove_images(model, ["003.png"], device="cpu")
        journal = journal_of(read_index(model))
        assert [(one["number"], one["change"]) for one in journal] == [(1, "add"), (2, "undo"), (3, "remove")]
        assert journal[1]["undoes"] == 1
        assert undo(model).images == ("003.png",)
        assert load(model).memory.image_names == ("000.png", "001.png", "002.png", "003.png")

    def test_reaches_back_so_many_changes(self, model: Path) -> None:
        for seed in range(KEPT + 2):
            add_images(model, [draw_part(100 + seed)], device="cpu")
        assert len(list((model / HISTORY).iterdir())) == KEPT
        for _ in range(KEPT):
            undo(model)
        assert len(load(model).memory.image_names) == 6
        with pytest.raises(ModelError, match="too long ago to undo"):
            undo(model)

    def test_a_damaged_earlier_state_is_said_and_costs_nothing_else(self, model: Path, more: Path) -> None:
        add_images(model, more, device="cpu")
        (model / HISTORY / "0001.json").write_text("{}")
        remove_images(model, ["004.png"], device="cpu")
        assert undo(model).images == ("004.png",)
        before = state_of(model)
        with pytest.raises(ModelError, match=r"0001\.json does not describe a patchsvdd model"):
            undo(model)
        assert state_of(model) == before

    def test_leaves_no_file_behind(self, model: Path, more: Path) -> None:
        before = {path.name for path in model.iterdir()}
        add_images(model, more, device="cpu")
        undo(model)
        assert {path.name for path in model.iterdir()} - {".lock"} == before


@pytest.mark.skipif(not has_faiss(), reason="FAISS is not installed")
class TestGraphs:
    @pytest.fixture(autouse=True)
    def _small_ones_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("memory.bank", "detector.memory_addition"):
            monkeypatch.setattr(f"patchsvdd.{module}.MIN_GRAPH_ROWS", 100)

    @pytest.fixture
    def quick(self, model: Path) -> Path:
        """The model with graphs."""
        prepared = load(model)
        prepared.memory = prepared.memory.with_graphs()
        prepared.save(model)
        return model

    def test_grow_with_the_memory(self, quick: Path, more: Path) -> None:
        for step, seed in enumerate((4, 5, 6)):
            add_images(quick, more / f"{seed:03}.png", device="cpu")
            grown, exact = load(quick), load(quick, search="exact")
            assert isinstance(grown.memory.scales[32].graph, LayeredSearch)
            assert len(grown.memory.scales[32].graph) == (5 + step) * 81
            assert same(grown.memory, exact.memory)
            for one, other in zip(maps(grown), maps(exact), strict=True):
                assert torch.allclose(one, other, rtol=0.02, atol=1e-4)
        assert len(read_model(quick).added_graphs) == 1

    def test_of_earlier_states_are_kept_for_undo(self, quick: Path, more: Path) -> None:
        states = []
        for seed in (4, 5, 6):  # each addition replaces the graph over what was added
            add_images(quick, more / f"{seed:03}.png", device="cpu")
            states.append(load(quick))
        for before in reversed(states[:-1]):
            undo(quick)
            now = load(quick)
            assert now.identity == before.identity
            assert all(map(torch.equal, maps(now), maps(before)))

    def test_pass_over_what_was_taken_out(self, quick: Path, more: Path) -> None:
        add_images(quick, more, device="cpu")
        remove_images(quick, ["000.png", "002.png", "005.png"], device="cpu")
        left = load(quick)
        graph = left.memory.scales[32].graph
        assert isinstance(graph, LayeredSearch)
        assert len(graph) == 4 * 81
        queries = rebuilt(left, [0, 5]).scales[32].embeddings
        distances, rows = graph.nearest(queries, None, (9, 9))
        exact, _ = ExactSearch(left.memory.scales[32].embeddings).nearest(queries)
        assert bool((distances >= exact - 2e-3).all())
        found = (left.memory.scales[32].embeddings[rows] - queries).norm(dim=1)
        assert torch.allclose(found, distances, atol=2e-3), "rows are those of the memory that is left"

    def test_become_one_when_the_model_is_saved(self, quick: Path, more: Path, tmp_path: Path) -> None:
        add_images(quick, more, device="cpu")
        grown = load(quick)
        grown.save(tmp_path / "again")
        again = load(tmp_path / "again")
        assert same(again.memory, grown.memory)
        assert set(read_model(tmp_path / "again").graphs) == {32}
        assert not read_model(tmp_path / "again").added_graphs


def test_models_that_do_not_know_their_images_are_refused(model: Path, more: Path) -> None:
    stored = read_model(model)
    del stored.about["provenance"]["data"]["digests"]
    write_model(model, stored.about, stored.parts)
    with pytest.raises(ModelError, match="does not record which images it holds"):
        add_images(model, more)
    with pytest.raises(ModelError, match="does not record which images it holds"):
        remove_images(model, ["000.png"])


def test_layers_find_what_one_search_finds() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn((60, 8), generator=generator)
    queries = torch.randn((30, 8), generator=generator)
    kept = torch.rand(60, generator=generator) > 0.3
    rows = torch.where(kept, kept.cumsum(0) - 1, -1)
    layers = LayeredSearch(
        [SearchLayer(ExactSearch(vectors[:40]), rows[:40]), SearchLayer(ExactSearch(vectors[40:]), rows[40:])]
    )
    one = ExactSearch(vectors[kept])
    for spans in (None, [(0, 7), (12, int(kept.sum()))], [(int(kept[:40].sum()), int(kept.sum()))]):
        for found, expected in zip(layers.nearest(queries, spans), one.nearest(queries, spans), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.slow
def test_a_folder_that_another_process_changes_is_left_alone(model: Path, more: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from patchsvdd.core.files import locked\n"
        "with locked(Path(sys.argv[1]), 'testing'):\n    print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(model)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"locked"
        before = (model / INDEX).read_bytes()
        with pytest.raises(OutputError, match="another process is changing"):
            add_images(model, more, device="cpu")
        assert (model / INDEX).read_bytes() == before
        process.send_signal(signal.SIGKILL)
    with locked(model, "testing"):
        pass
    assert add_images(model, more, device="cpu").total == 7


# What is left after any sequence of changes, some of them cut short


PATCHES = {32: 81, 64: 1}
"""Patch size → number of patches of an image in the memory of ``detector``."""


class Killed(BaseException):
    """The process ends here: nothing after this is done, nothing is cleaned up."""


def change(model: Path, rng: random.Random) -> str:
    """One random change; what it was."""
    names = read_index(model)["image_names"]
    what = rng.choice(["add", "add", "remove", "undo"])
    if what == "remove" and len(names) > 3:
        remove_images(model, rng.sample(names, rng.randint(1, 2)), device="cpu")
    elif what == "undo" and undoable(journal_of(read_index(model))):
        undo(model)
    else:
        pictures = [draw_part(rng.randrange(10**6)) for _ in range(rng.randint(1, 2))]
        add_images(model, pictures, device="cpu", recalibrate=rng.random() < 0.5)
    return what


def kill_at(monkeypatch: pytest.MonkeyPatch, moment: float) -> None:
    """End the process just before the second file takes its place (2), or just after it has (2.5), and so on."""
    seen = 0
    replace = os.replace

    def replace_or_die(source: Any, target: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == moment:
            raise Killed
        replace(source, target)
        if seen == moment - 0.5:
            raise Killed

    unlink = Path.unlink

    def unlink_unless_dead(self: Path, missing_ok: bool = False) -> None:
        if seen >= moment - 0.5:
            raise Killed
        unlink(self, missing_ok)

    monkeypatch.setattr(os, "replace", replace_or_die)
    monkeypatch.setattr(Path, "unlink", unlink_unless_dead)


def state_of(model: Path, patches_of: Mapping[int, int] = PATCHES) -> tuple[str, tuple[str, ...]]:
    """Verify every byte of a model and that each image has its patches in the memory; return identity and images."""
    stored = read_model(model)
    names = stored.about["image_names"]
    memory = join(names, segments_of(stored.about), stored.parts, tuple(patches_of), local_scaling=False)
    for size, patches in patches_of.items():
        counts = torch.bincount(memory.scales[size].origins[:, 0])
        assert counts.tolist() == [patches] * len(names)
    assert len(stored.about["provenance"]["data"]["digests"]) == len(names)
    return stored.identity, memory.image_names


TINIEST = {8: 16, 16: 4}
"""Patch size → number of patches of an image in the memory of ``tiniest``."""


@pytest.fixture(scope="module")
def tiniest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored model of pixel patches of four small images: it has no network, so that a change is quick."""
    settings: dict[str, Any] = {"encoder": "raw", "scales": (Scale(8, 8), Scale(16, 16)), "image_size": 32}
    settings |= {"preset": "encoder", "device": "cpu", **NO_ESTIMATE}
    found = PatchSVDD.fit([draw_part(seed) for seed in range(4)], **settings)
    folder = tmp_path_factory.mktemp("tiniest") / "model"
    found.save(folder)
    return folder


@pytest.mark.parametrize("twenty", range(10))
@pytest.mark.slow
def test_any_sequence_of_changes_leaves_a_valid_model(tiniest: Path, tmp_path: Path, twenty: int) -> None:
    """Two hundred sequences of up to three changes, of which every third is cut short at a random moment."""
    for number in range(20 * twenty, 20 * twenty + 20):
        model, rng = tmp_path / str(number), random.Random(number)
        shutil.copytree(tiniest, model)
        before = after = state_of(model, TINIEST)
        for _ in range(rng.randint(1, 3)):
            before = after
            with pytest.MonkeyPatch.context() as patch:
                cut = rng.random() < 0.35
                if cut:
                    kill_at(patch, rng.randint(2, 11) / 2)
                try:
                    change(model, rng)
                except Killed:
                    assert cut
            after = state_of(model, TINIEST)
        if after != before and journal_of(read_index(model))[-1]["change"] != "undo":
            undo(model)
            assert state_of(model, TINIEST) == before
    assert load(model).inspect(draw_part(7)).score > 0, "the last of them inspects"


STOP_AFTER_A_WRITE = """
import os, sys, time
from pathlib import Path
import patchsvdd.core.files
replace, left = os.replace, [int(sys.argv.pop(1))]
def replace_and_wait(source, target):
    replace(source, target)
    left[0] -= 1
    if not left[0]:
        print("written", flush=True)
        time.sleep(600)
os.replace = replace_and_wait
from patchsvdd.apps.cli import main
main()
"""
"""A command that stops for good once its given number of files are in place, and says so."""


@pytest.mark.parametrize("written", [1, 4])
@pytest.mark.slow
def test_a_killed_command_leaves_the_old_model_or_the_new(model: Path, more: Path, written: int) -> None:
    before, files = state_of(model), {path.name for path in model.iterdir()}
    update = ["update", str(model), "--add", str(more), "--device", "cpu"]
    command = [sys.executable, "-c", STOP_AFTER_A_WRITE, str(written), *update]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.kill()
    assert {path.name for path in model.iterdir()} - {".lock"} > files
    after = state_of(model)
    assert after == before or len(after[1]) == 7
    assert (after == before) == (written < 4)
    if after != before:
        undo(model)
    assert state_of(model) == before
