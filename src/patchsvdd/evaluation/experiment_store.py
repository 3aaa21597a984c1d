"""A store of experiments on disk; each is computed once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from patchsvdd.baselines.detector import BaselineDetector, resolved
from patchsvdd.baselines.training import build_baseline
from patchsvdd.core.config import Config
from patchsvdd.core.device import choose_device, reproducible
from patchsvdd.core.errors import ConfigError, DatasetError, Interrupted, ModelError, TrainingCollapsed
from patchsvdd.core.files import atomic_write
from patchsvdd.core.progress import OnStage
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.detector.base import Detector
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.fitting import learn_critic, revert_if_not_better, rounded
from patchsvdd.detector.split import Split
from patchsvdd.encoder.networks import PatchEncoder, build_encoder
from patchsvdd.encoder.untrained import inspection_encoder
from patchsvdd.evaluation.collected_results import inspect_test_images
from patchsvdd.evaluation.evaluate import measure
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult, collapsed, measured
from patchsvdd.evaluation.experiment_files import (
    Files,
    read_critic,
    read_encoder,
    read_result,
    write_critic,
    write_encoder,
)
from patchsvdd.evaluation.run_info import circumstances
from patchsvdd.evaluation.sample_maps import SampleMaps
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.loading import load_good_images
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import Memory, ScaleMemory
from patchsvdd.training.checkpoint import CheckpointFile
from patchsvdd.training.hooks import TrainingHooks, TrainingProgress, TrainingRecord
from patchsvdd.training.loop import train
from patchsvdd.training.step import embedding_centers

ENCODER, CRITIC = "encoder.safetensors", "critic.safetensors"


class ExperimentStore:
    """Runs experiments or loads stored results: a folder per trained encoder, a file in it per test."""

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "auto",
        on_stage: OnStage | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.folder = folder
        self.device = choose_device(device)
        self.should_stop = should_stop
        self._on_stage = on_stage

    def find(self, experiment: Experiment) -> ExperimentResult | None:
        """The stored result, or None. A calibrated result also serves an experiment without a threshold.

        A result is found without its encoder too, which is far larger. Test files are not read before there is one.
        """
        experiment = experiment.sized()
        folder = self._folder(experiment)
        if not any(folder.glob("test-*.json")):
            return None
        for calibrated in (True,) if experiment.calibrated else (False, True):
            name = f"test-{experiment.test_key(calibrated)}"
            path = folder / f"{name}.json"
            if path.is_file():
                return ExperimentResult(experiment, read_result(path), folder, name)
        return None

    def result(self, experiment: Experiment) -> ExperimentResult:
        """The result, stored or computed now; its experiment has the image size that was used."""
        experiment = experiment.sized()
        stored = self.find(experiment)
        if stored is not None:
            return stored
        if not (experiment.category / "test").is_dir():  # checked before training
            raise DatasetError(
                f"'{experiment.category}' has no test folder; a category holds test/good and test/<defect>"
            )
        folder = self._folder(experiment)
        try:
            detector, training = self.detector(experiment)
        except TrainingCollapsed as error:
            name = f"test-{experiment.test_key(experiment.calibrated)}"
            return self._write(experiment, folder, name, collapsed(error), None)
        # The key is computed before the files are read: if they change in between, the result keeps the old key.
        name = f"test-{experiment.test_key(experiment.calibrated)}"
        results = inspect_test_images(
            detector, experiment.category, lambda done, total: self._stage("inspect", done, total)
        )
        data = {"training": training, **measured(results, measure(results, detector))}
        data["calibration"] = detector.calibration.to_json() if detector.calibration is not None else None
        return self._write(experiment, folder, name, data, SampleMaps.choose(results))

    def remember(self, experiment: Experiment, name: str, compute: Callable[[], Any]) -> Any:
        """What ``compute`` returned for the experiment's encoder, stored or computed now: anything that JSON holds.

        ``name`` distinguishes everything that it depends on besides the encoder.
        """
        path = self._folder(experiment.sized()) / f"{name}.json"
        if path.is_file():
            try:
                return json.loads(path.read_bytes())
            except ValueError as error:
                raise ModelError(f"'{path}' cannot be read ({error}); delete it to compute it again") from None
        text = json.dumps(compute())
        with atomic_write(path) as file:
            file.write(text.encode())
        return json.loads(text)

    def name_of(self, experiment: Experiment) -> str:
        """The name of the experiment's folder."""
        return self._folder(experiment).name

    def files_for(self, experiment: Experiment) -> Files:
        """The stored files of an experiment without a result, so that another machine can continue it."""
        folder = self._folder(experiment)
        unfinished = [path.name for path in CheckpointFile(folder).paths()]
        return Files.of(folder, [ENCODER, CRITIC, *unfinished])

    def put(self, files: Files) -> None:
        """Store files of an experiment."""
        files.write(self.folder)

    def take(self, experiment: Experiment, files: Files) -> ExperimentResult:
        """Store the files of an experiment that another machine ran; return its result."""
        self.put(files)
        CheckpointFile(self._folder(experiment)).remove()
        result = self.find(experiment)
        if result is None:
            raise DatasetError(
                f"the test images of '{experiment.category}' differ on the machine that ran the experiment; every "
                f"machine needs the same data set"
            )
        return result

    def detector(self, experiment: Experiment) -> tuple[Detector, dict[str, Any]]:
        """The detector of an experiment and its training record; stored parts are not trained again."""
        experiment = experiment.sized()
        folder, config = self._folder(experiment), experiment.config
        images = load_good_images(experiment.category, config, self._stage)
        if config.baseline is not None:
            return self._baseline(folder, experiment, images)
        encoder, training = self._encoder(folder, config, images)
        critic = None
        if config.critic is not None:
            critic, training["critic_seconds"] = self._critic(folder, config, images)
        detector = self._detector(experiment, config, images, encoder, critic)
        if detector.map_builder.fusion is not None:
            training["fusion_share"] = detector.map_builder.fusion.share
            training["fusion_tried"] = detector.provenance["fusion"]["tried"]
        return detector, training

    def encoder(self, experiment: Experiment, images: ImageSet) -> tuple[PatchEncoder, dict[str, Any]]:
        """The encoder and its training record, stored or trained now; an interrupted training continues.

        ``images`` have the size that ``experiment.sized()`` chooses.
        """
        experiment = experiment.sized()
        return self._encoder(self._folder(experiment), experiment.config, images)

    def critic(self, experiment: Experiment, images: ImageSet) -> TrainedCritic | None:
        """The trained critic, stored or trained now; None if the settings have none."""
        experiment = experiment.sized()
        if experiment.config.critic is None:
            return None
        return self._critic(self._folder(experiment), experiment.config, images)[0]

    def _encoder(self, folder: Path, config: Config, images: ImageSet) -> tuple[PatchEncoder, dict[str, Any]]:
        path = folder / ENCODER
        encoder = build_encoder(config)
        if path.is_file():
            stored = inspection_encoder(encoder, config)
            training = read_encoder(path, stored)
            if "collapsed" in training:
                raise TrainingCollapsed(training["collapsed"])
            return stored.to(self.device), training
        encoder = encoder.to(self.device)
        record = TrainingRecord(0, 0.0, [])
        collapsed = None
        scheduled = config.total_steps(len(Split.of(config, len(images)).trained))
        if encoder.trainable and scheduled:
            try:
                record = self._train(encoder, images, config, folder)
                record = revert_if_not_better(encoder, record, images, config, self._stage)
            except TrainingCollapsed as error:
                collapsed = str(error)
        training = {"steps": record.steps, "seconds": record.seconds, **circumstances(self.device)}
        training |= {"lambda": record.lambda_, "collapses": list(record.collapses)} if record.collapses else {}
        training |= {"kept_untrained": record.kept_untrained} if config.stop == "validation" else {}
        training |= {"validation": record.validation} if record.validation else {}
        training |= {"collapsed": collapsed} if collapsed else {}
        training |= {"scheduled_steps": scheduled} if 0 < record.steps < scheduled else {}
        encoder = rounded(inspection_encoder(encoder, config))
        write_encoder(path, encoder, {**training, "history": record.history, "settings": config.to_json()})
        CheckpointFile(folder).remove()
        if collapsed:
            raise TrainingCollapsed(collapsed)
        return encoder, training

    def _critic(self, folder: Path, config: Config, images: ImageSet) -> tuple[TrainedCritic, float]:
        """The critic and its training seconds, stored or trained now; an interrupted training continues."""
        assert config.critic is not None
        path = folder / CRITIC
        if path.is_file():
            return read_critic(path, config.critic)
        hooks = TrainingHooks(None, self.should_stop, CheckpointFile(folder), resume=True)
        critic, record = learn_critic(images, config, self.device, hooks, self._quietly)
        write_critic(path, critic, record.seconds)
        CheckpointFile(folder).remove()
        return critic, record.seconds

    def _baseline(
        self, folder: Path, experiment: Experiment, images: ImageSet
    ) -> tuple[BaselineDetector, dict[str, Any]]:
        """A baseline and its training record, stored or trained now; an interrupted training continues."""
        config, path = experiment.config, folder / ENCODER
        network, training = None, dict[str, Any]()
        if path.is_file():
            settings = resolved(config, images)
            network = build_baseline(settings, settings.view == "crops", config.seed)
            training = read_encoder(path, network)
        hooks = TrainingHooks(None, self.should_stop, CheckpointFile(folder), resume=True)
        detector = BaselineDetector.fit_images(
            images,
            config,
            device=str(self.device),
            hooks=hooks,
            on_stage=self._stage,
            calibrated=experiment.calibrated,
            network=network,
        )
        if network is None:
            record = detector.provenance["training"]
            training = {"steps": record["steps"], "seconds": record["seconds"], **circumstances(self.device)}
            about = {**training, "history": record["history"], "settings": detector.config.to_json()}
            write_encoder(path, detector.network, about)
            CheckpointFile(folder).remove()
        return detector, training

    def _train(self, encoder: PatchEncoder, images: ImageSet, config: Config, folder: Path) -> TrainingRecord:
        trained = images.pixels[Split.of(config, len(images)).trained]
        pixels = Normalization.fit(images.pixels, config)(trained).to(self.device)
        checkpoint = CheckpointFile(folder)
        hooks = TrainingHooks(self._on_training, self.should_stop, checkpoint, resume=True)
        # Settings that are not part of the folder's name must not prevent continuing a checkpoint.
        same = dataclasses.replace(
            config,
            preset="any",
            false_alarm_rate=0.5,
            memory="100%",
            position_normalization=False,
            local_scaling=False,
            min_area=0,
            aim="few-alarms",
            synthetic_defects=0,
        )
        try:
            return train(encoder, pixels, same, images.fingerprint(), hooks)
        except (ModelError, ConfigError) as error:
            raise ModelError(f"'{checkpoint.path}' cannot be continued ({error}); delete it to train again") from None

    def _detector(
        self,
        experiment: Experiment,
        config: Config,
        images: ImageSet,
        encoder: PatchEncoder,
        critic: TrainedCritic | None,
    ) -> PatchSVDD:
        nearest = experiment.scoring == "nearest"
        detector = PatchSVDD.fit_images(
            images,
            config,
            device=str(self.device),
            on_stage=self._stage,
            encoder=encoder,
            critic=critic,
            calibrated=experiment.calibrated and nearest,
        )
        if not nearest:
            detector.memory = _centers_as_memory(config, images, detector)
        return detector

    def _write(
        self, experiment: Experiment, folder: Path, name: str, data: dict[str, Any], kept: SampleMaps | None
    ) -> ExperimentResult:
        data = {
            "category": experiment.category.name,
            "scoring": experiment.scoring,
            "settings": experiment.config.to_json(),
            **circumstances(self.device),
            **data,
            "kept": kept.about if kept else [],
        }
        text = json.dumps(data, ensure_ascii=False)
        if kept:
            kept.write(folder / f"{name}.npz")
        with atomic_write(folder / f"{name}.json") as file:  # last: if it exists, all files exist
            file.write(text.encode("utf-8", "surrogatepass"))
        return ExperimentResult(experiment, json.loads(text), folder, name)

    def _folder(self, experiment: Experiment) -> Path:
        return self.folder / f"{experiment.category.name}-{experiment.training_key()}"

    def _on_training(self, now: TrainingProgress) -> None:
        self._stage("training", now.step, now.steps, stop=False)  # the training loop stops and saves its state

    def _quietly(self, stage: str, done: int, total: int) -> None:
        self._stage(stage, done, total, stop=False)  # the training loop stops and saves its state

    def _stage(self, stage: str, done: int, total: int, stop: bool = True) -> None:
        if self._on_stage is not None:
            self._on_stage(stage, done, total)
        if stop and self.should_stop():
            raise Interrupted(f"stopped during {stage}")


def _centers_as_memory(config: Config, images: ImageSet, detector: PatchSVDD) -> Memory:
    """A memory with only the centre c of each scale: the distance to it is Deep SVDD's score."""
    fresh = build_encoder(config).to(detector.device).eval()
    pixels = detector.normalization(images.pixels).to(detector.device)
    with reproducible():  # in full float32, like the embeddings
        centers = embedding_centers(fresh, pixels, config)
    origin = torch.zeros((1, 3), dtype=torch.int32)
    return Memory(("centre",), {size: ScaleMemory(center[None], origin) for size, center in centers.items()})
