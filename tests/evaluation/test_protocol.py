"""No label of a test image is looked at before the final metrics: shown by scrambling them, and by watching files."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.errors import DatasetError
from patchsvdd.core.presets import preset
from patchsvdd.critic.validation import ValidationSet
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation import experiment_store as module
from patchsvdd.evaluation.collected_results import Key, TestResults
from patchsvdd.evaluation.evaluate import Evaluation, measure
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_store import ExperimentStore
from support.parts import TINY, TINY_CRITIC, draw_part, save_category, square_mask

pytestmark = pytest.mark.slow

JUDGED = TINY | {"stop": "validation"}
CRITICAL = JUDGED | TINY_CRITIC | {"fusion_share": None}
SETTINGS: dict[str, dict[str, Any]] = {"encoder": JUDGED, "paper": TINY, "best": CRITICAL}
"""Preset → what makes it tiny. Drawn defects choose whether training is kept and the share of the critic."""
PRESETS = tuple(SETTINGS)
Maps = dict[str, dict[Key, NDArray[np.float32]]]
"""Hash of an image file → patch size (0: the map that decides) or part → map."""


@pytest.fixture(scope="module", autouse=True)
def _few_drawn_defects() -> Iterator[None]:
    draw = ValidationSet.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ValidationSet, "draw", lambda held_out, seed=0, *_, **__: draw(held_out, seed, 6))
        yield


def draw_category(folder: Path) -> Path:
    """A category with two kinds of defects, each test image and each mask different from every other."""
    defects = {
        kind: [(draw_part(first + i, defect=True), square_mask(columns=slice(27, 33 + 2 * i))) for i in range(2)]
        for kind, first in (("crack", 20), ("dent", 30))
    }
    train, good = [draw_part(seed) for seed in range(3)], [draw_part(seed) for seed in (10, 11)]
    return save_category(folder, train, good, defects)


def swap_labels(category: Path) -> None:
    """Good images are filed as cracked ones and the reverse; the masks stay."""
    test = category / "test"
    (test / "good").rename(test / "held")
    (test / "crack").rename(test / "good")
    (test / "held").rename(test / "crack")


def scramble_masks(category: Path) -> None:
    """The masks of one kind go to the other, in reverse order and inverted."""
    masks = sorted((category / "ground_truth").rglob("*.png"))
    pictures = [Image.open(path).copy() for path in masks]
    for path, picture in zip(masks, reversed(pictures), strict=True):
        Image.fromarray(255 - np.asarray(picture)).save(path)


def mix_labels(category: Path) -> None:
    """One image of each folder moves to the next, under another name."""
    test = category / "test"
    held = {name: (test / name / "000.png").read_bytes() for name in ("crack", "dent", "good")}
    for name, source in (("crack", "good"), ("dent", "crack"), ("good", "dent")):
        (test / name / "000.png").unlink()
        (test / name / "zzz.png").write_bytes(held[source])
    scramble_masks(category)


def mislabel(category: Path) -> None:
    swap_labels(category)
    scramble_masks(category)


@dataclass(frozen=True)
class Known:
    """All there was at the moment the labels were first needed."""

    weights: dict[str, Tensor]
    critic: dict[str, Tensor]
    settings: dict[str, Any]
    fusion: dict[str, Any] | None
    calibration: tuple[float, ...]
    threshold: float
    maps: Maps
    scores: dict[str, float]
    called_anomalous: set[str]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def known_before_the_metrics(results: TestResults, detector: PatchSVDD) -> Known:
    names = [sha256(image.file) for image in results.images]
    assert detector.calibration is not None
    return Known(
        weights={name: value.clone() for name, value in detector.encoder.state_dict().items()},
        critic=critic_weights(detector),
        settings=detector.config.to_json(),
        fusion=detector.map_builder.fusion.to_json() if detector.map_builder.fusion is not None else None,
        calibration=detector.calibration.scores,
        threshold=detector.threshold,
        maps={name: {key: results.map_of(index, key) for key in results.keys} for index, name in enumerate(names)},
        scores=dict(zip(names, results.scores[0], strict=True)),
        called_anomalous={name for name, anomalous in zip(names, results.anomalous, strict=True) if anomalous},
    )


def critic_weights(detector: PatchSVDD) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in detector.critic.state().items()} if detector.critic else {}


def run_experiment(category: Path, runs: Path, preset_name: str) -> tuple[Known, dict[str, float]]:
    """What the experiment knew before it measured, and what it measured."""
    known: list[Known] = []

    def note_and_measure(results: TestResults, detector: PatchSVDD) -> Evaluation:
        known.append(known_before_the_metrics(results, detector))
        return measure(results, detector)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "measure", note_and_measure)
        result = ExperimentStore(runs, device="cpu").result(Experiment(category, tiny(preset_name)))
    (found,) = known
    return found, result.metrics


def tiny(preset_name: str) -> Config:
    return preset(preset_name, **SETTINGS[preset_name])


def check_same_weights(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def check_same_maps(first: Maps, second: Maps) -> None:
    assert first.keys() == second.keys()
    for name, maps in first.items():
        assert maps.keys() == second[name].keys()
        assert maps.keys() - {"memory", "critic"} == {0, 32, 64}
        assert all(np.array_equal(maps[key], second[name][key]) for key in maps)


@pytest.fixture(scope="module")
def category(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A category that is labelled as it should be. Tests share it: change nothing in it."""
    return draw_category(tmp_path_factory.mktemp("data") / "part")


@pytest.fixture(scope="module", params=PRESETS)
def labelled(request: pytest.FixtureRequest, category: Path) -> tuple[str, Known, dict[str, float]]:
    """A preset, and the experiment with the right labels."""
    name = str(request.param)
    return name, *run_experiment(category, category.parent / name, name)


@pytest.mark.parametrize("scramble", [mislabel, mix_labels], ids=lambda scramble: scramble.__name__)
def test_other_labels_and_masks_change_nothing_but_the_metrics(
    category: Path,
    labelled: tuple[str, Known, dict[str, float]],
    tmp_path: Path,
    scramble: Callable[[Path], None],
) -> None:
    name, right, metrics = labelled
    scrambled = Path(shutil.copytree(category, tmp_path / "part"))
    scramble(scrambled)
    wrong, wrong_metrics = run_experiment(scrambled, tmp_path / "runs", name)
    check_same_weights(right.weights, wrong.weights)
    check_same_weights(right.critic, wrong.critic)
    assert bool(right.critic) == (name in ("best", "auto"))
    assert right.settings == wrong.settings
    assert right.fusion == wrong.fusion
    assert right.calibration == wrong.calibration
    assert right.threshold == wrong.threshold
    check_same_maps(right.maps, wrong.maps)
    assert right.scores == wrong.scores
    assert right.called_anomalous == wrong.called_anomalous
    assert len(right.maps) == 6
    for metric in ("detection_auroc", "segmentation_auroc", "aupro"):  # labels do count in the end
        assert metrics[metric] != wrong_metrics[metric]


def test_training_and_threshold_need_no_test_folder(
    category: Path, labelled: tuple[str, Known, dict[str, float]], tmp_path: Path
) -> None:
    name, right, _ = labelled
    bare = Path(shutil.copytree(category, tmp_path / "part"))
    shutil.rmtree(bare / "test")
    shutil.rmtree(bare / "ground_truth")
    detector = PatchSVDD.fit(bare, preset=name, device="cpu", **SETTINGS[name])
    check_same_weights(right.weights, detector.encoder.state_dict())
    check_same_weights(right.critic, critic_weights(detector))
    assert right.settings == detector.config.to_json()
    assert detector.calibration is not None
    assert detector.calibration.scores == right.calibration
    assert detector.threshold == right.threshold
    maps: Maps = {}
    for file in (category / "test").rglob("*.png"):
        one = detector.inspect(file)
        maps[sha256(file)] = dict((*one.scale_maps.items(), *one.part_maps.items(), (0, one.anomaly_map)))
    check_same_maps(right.maps, maps)


def test_an_experiment_without_test_images_stores_the_same_encoder(
    category: Path, labelled: tuple[str, Known, dict[str, float]], tmp_path: Path
) -> None:
    name, right, _ = labelled
    bare = Path(shutil.copytree(category, tmp_path / "part"))
    shutil.rmtree(bare / "test")
    shutil.rmtree(bare / "ground_truth")
    (bare / "test").mkdir()
    with pytest.raises(DatasetError, match="there is no image in"):
        ExperimentStore(tmp_path / "runs", device="cpu").result(Experiment(bare, tiny(name)))
    (path,) = (tmp_path / "runs").rglob("encoder.safetensors")
    check_same_weights(right.weights, safetensors.torch.load_file(path))
    critics = [safetensors.torch.load_file(path) for path in (tmp_path / "runs").rglob("critic.safetensors")]
    assert len(critics) == bool(right.critic)
    for critic in critics:
        check_same_weights(right.critic, critic)


WATCHED = """
import json, os, sys
from pathlib import Path
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.presets import preset
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation import experiment_store
from patchsvdd.evaluation.experiment import Experiment
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.critic.validation import ValidationSet

category, runs, presets = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
draw = ValidationSet.draw
ValidationSet.draw = lambda held_out, seed=0, *_, **__: draw(held_out, seed, 6)
phase = None
seen = []

def purpose(event):
    # A file is opened to hash it for the name of a result, to see what kind of file it is, or for its content.
    frame, functions = sys._getframe(2), set()
    while frame is not None:
        functions.add(frame.f_code.co_name)
        frame = frame.f_back
    if "digest_of" in functions:
        return "hash"
    if event != "open":
        return "list"
    return "kind" if "opens_as_image" in functions else "content"

def watch(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        path = Path(os.fsdecode(arguments[0]))
        if path != category and path.is_relative_to(category):
            seen.append((phase, path.relative_to(category).parts[0], purpose(event)))

def phased(function, during, after=None):
    def run(*arguments, **named):
        global phase
        phase = during
        result = function(*arguments, **named)
        phase = after or phase
        return result
    return run

experiment_store.train = phased(experiment_store.train, "training", "memory and threshold")
validate = experiment_store.revert_if_not_better
experiment_store.revert_if_not_better = phased(validate, "validation", "memory and threshold")
experiment_store.learn_critic = phased(experiment_store.learn_critic, "critic", "memory and threshold")
ExperimentStore._detector = phased(ExperimentStore._detector, "memory and threshold", "naming the result")
experiment_store.inspect_test_images = phased(experiment_store.inspect_test_images, "inspecting")
experiment_store.measure = phased(experiment_store.measure, "measuring")
sys.addaudithook(watch)
told = {}
for name, settings in presets.items():
    if "critic" in settings:
        settings["critic"] = CriticSettings(**settings["critic"])
    seen.clear()
    phase = "fit"
    PatchSVDD.fit(category, preset=name, device="cpu", **settings)
    phase = "before training"
    ExperimentStore(runs, device="cpu").result(Experiment(category, preset(name, **settings)))
    told[name] = sorted(set(seen))
print(json.dumps(told))
"""
"""Which files of a category are opened, and which folders listed, in each phase of fit and of an experiment."""


@pytest.fixture(scope="module")
def watched(category: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str, str]]]:
    """Preset → (phase, part of the category, purpose) of all that was opened or listed."""
    presets = {
        name: settings | ({"critic": asdict(settings["critic"])} if "critic" in settings else {})
        for name, settings in SETTINGS.items()
    }
    arguments = [str(category), str(tmp_path_factory.mktemp("runs")), json.dumps(presets)]
    command = [sys.executable, "-c", WATCHED, *arguments]  # in a process of its own: the watch cannot be ended
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    told: dict[str, list[tuple[str, str, str]]] = json.loads(ended.stdout)
    return told


@pytest.mark.parametrize("name", PRESETS)
def test_no_file_is_opened_before_its_time(watched: dict[str, list[tuple[str, str, str]]], name: str) -> None:
    opened: dict[str, set[tuple[str, str]]] = {}
    for phase, part, purpose in watched[name]:
        opened.setdefault(phase, set()).add((part, purpose))
    train = {("train", purpose) for purpose in ("list", "kind", "content")}
    assert opened.pop("fit") == train
    assert opened.pop("before training") == train | {("train", "hash")}
    for phase in ("training", "validation", "critic", "memory and threshold"):
        assert opened.pop(phase, set()) == set()
    # All parts and the threshold are final. Files are hashed for the name of the result; only that name comes of it.
    assert opened.pop("naming the result") == {("test", "hash"), ("ground_truth", "hash")}
    assert opened.pop("inspecting") == {("test", purpose) for purpose in ("list", "kind", "content")}
    assert ("ground_truth", "content") in opened["measuring"]  # the watch does see it
    assert set(opened) == {"measuring"}
