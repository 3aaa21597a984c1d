"""``patchsvdd train``."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.aims import AimOption, aim_facts, checked_aim, misses_to_json
from patchsvdd.apps.cli.console import (
    ClusterOption,
    CriticStepsOption,
    DeviceOption,
    ImageSizeOption,
    JsonOption,
    MemoryOption,
    RoiOption,
    SearchOption,
    StageBars,
    StopRequest,
    escape,
    one_line_errors,
    print_facts,
    print_json,
    progress_bar,
    say,
    warn_of_skipped,
)
from patchsvdd.apps.cli.info import critic_facts, min_area_fact, sizing_fact
from patchsvdd.core.presets import DEFAULT

if TYPE_CHECKING:
    from patchsvdd.core.config import Config
    from patchsvdd.core.roi import Roi
    from patchsvdd.detector.base import Detector
    from patchsvdd.detector.training_backend import TrainingBackend
    from patchsvdd.training.hooks import TrainingProgress

EXAMPLE = "Example: patchsvdd train photos/good --out models/part --steps 2000"


@one_line_errors
def train(
    good: Annotated[
        Path, typer.Argument(metavar="GOOD_OR_CATEGORY", help="Folder of good images, or an MVTec category.")
    ],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
    preset: Annotated[
        str,
        typer.Option(
            help="best (memory and critic), encoder (memory only), paper, or a baseline: deep-svdd, l2-ae, ssim-ae."
        ),
    ] = DEFAULT,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Training length in epochs of 100 samples per image.")] = None,
    lambda_: Annotated[float | None, typer.Option("--lambda", help="Weight of L_SVDD' against L_SSL.")] = None,
    image_size: ImageSizeOption = None,
    smallest_defect: Annotated[
        float | None,
        typer.Option(
            metavar="PIXELS",
            help="Diameter of the smallest defect that must be visible, in pixels of your images; for --image-size "
            "auto.",
        ),
    ] = None,
    resize: Annotated[str | None, typer.Option(help="nearest, area or bicubic.")] = None,
    scales: Annotated[str | None, typer.Option(help="Patch sizes and strides, e.g. 32:4,64:16,128:32.")] = None,
    embedding_dim: Annotated[int | None, typer.Option(help="Length of an embedding.")] = None,
    encoder: Annotated[str | None, typer.Option(help="hierarchical, flat, random or raw.")] = None,
    objective: Annotated[str | None, typer.Option(help="patch-svdd, svdd-prime or svdd.")] = None,
    sampling: Annotated[str | None, typer.Option(help="patches (the paper) or dense.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs (patches) or images (dense) per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate of Adam.")] = None,
    photometric: Annotated[float | None, typer.Option(help="Strength of lighting changes, 0 to 1.")] = None,
    false_alarm_rate: Annotated[
        float | None, typer.Option(help="Share of good images that may be called anomalous.")
    ] = None,
    aim: AimOption = None,
    synthetic_defects: Annotated[
        int | None,
        typer.Option(help="Synthetic defects that estimate what the threshold misses; 0 for no estimate."),
    ] = None,
    roi: RoiOption = None,
    min_area: Annotated[
        int | None,
        typer.Option(metavar="PIXELS", help="Ignore regions smaller than this many pixels of the original image."),
    ] = None,
    memory: MemoryOption = None,
    search: SearchOption = "auto",
    critic_steps: CriticStepsOption = None,
    fusion_share: Annotated[
        float | None,
        typer.Option(help="Weight of the memory in the map, 0 to 1; chosen with synthetic defects by default."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Maximum training time; 40 on a CPU unless a number of steps is given."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    device: DeviceOption = "auto",
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes that share every batch; the result differs only by rounding."),
    ] = None,
    cluster: ClusterOption = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Good image not to use; repeat it, or give a text file of names."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted training.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing model.")] = False,
    json: JsonOption = False,
) -> None:
    """Train a model on good images."""
    from patchsvdd.core import presets
    from patchsvdd.core.device import choose_device
    from patchsvdd.core.scales import parse_scales
    from patchsvdd.detector.schedule import limit_cpu_minutes

    settings = {
        "steps": steps,
        "epochs": epochs,
        "lambda_": lambda_,
        "image_size": image_size,
        "smallest_defect": smallest_defect,
        "resize": resize,
        "scales": parse_scales(scales) if scales is not None else None,
        "embedding_dim": embedding_dim,
        "encoder": encoder,
        "objective": objective,
        "sampling": sampling,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "photometric": photometric,
        "false_alarm_rate": false_alarm_rate,
        "aim": checked_aim(aim),
        "synthetic_defects": synthetic_defects,
        "roi": _roi(roi, good),
        "min_area": min_area,
        "memory": memory,
        "fusion_share": fusion_share,
        "minutes": minutes,
        "seed": seed,
    }
    config = presets.with_critic_steps(presets.preset(preset, **settings), critic_steps)
    with _backend(workers, cluster, device) as backend:
        backend.check(config)
        given = {**settings, "critic_steps": critic_steps}
        config = limit_cpu_minutes(config, backend.device or choose_device(device), given)
        if config.minutes != minutes:
            say(f"training on a CPU is limited to {config.minutes:g} minutes; change this with --minutes or --steps")
        detector = _train(good, out, config, device, search, resume, overwrite, backend, _names(leave_out))
    report_model(detector, out, json)


def _backend(workers: int | None, cluster: str | None, device: str) -> AbstractContextManager[TrainingBackend]:
    """The processes that train: this one, or workers on a cluster if any were requested."""
    from patchsvdd.detector.training_backend import LOCAL

    if workers is None and cluster is None:
        return nullcontext(LOCAL)
    from patchsvdd.apps.cluster.ray_training import backend_on

    return backend_on(cluster or "local", workers, device)


def _names(given: Sequence[str] | None) -> list[str]:
    """Names of images; those in a text file replace its own name."""
    names: list[str] = []
    for name in given or ():
        listed = Path(name)
        if listed.suffix.lower() == ".txt" and listed.is_file():
            names += [line.strip() for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()]
        else:
            names.append(name)
    return names


def _roi(text: str | None, good: Path) -> Roi | None:
    """The region of interest, sized for the first good image."""
    from patchsvdd.images.loading import good_sources
    from patchsvdd.images.roi_input import roi_for

    return None if text is None else roi_for(text, good_sources(good))


def _train(
    good: Path,
    out: Path,
    config: Config,
    device: str,
    search: str,
    resume: bool,
    overwrite: bool,
    backend: TrainingBackend,
    leave_out: Collection[str],
) -> Detector:
    """Train with progress bars; raises Interrupted after Ctrl-C."""
    from patchsvdd.baselines.load import method_of
    from patchsvdd.core.errors import Interrupted
    from patchsvdd.detector.train_model import is_finished, train_model
    from patchsvdd.training.checkpoint import CheckpointFile
    from patchsvdd.training.hooks import TrainingHooks

    if resume and not overwrite and is_finished(out):
        say(f"{escape(str(out))} is complete; nothing to resume")
    stop = StopRequest()
    with stop.listening(), progress_bar() as progress:
        bars = StageBars(progress)

        def on_stage(stage: str, done: int, total: int) -> None:
            bars(stage, done, total)
            if stop():
                raise Interrupted(f"stopped during {stage}")

        def on_progress(now: TrainingProgress) -> None:
            bars("training", now.step, now.steps)
            bars.note("training", _describe(now))

        try:
            detector = train_model(
                good,
                out,
                config,
                device=device,
                search=search,
                resume=resume,
                overwrite=overwrite,
                hooks=TrainingHooks(on_progress, stop),
                on_stage=on_stage,
                backend=backend,
                leave_out=leave_out,
                method=method_of(config),
            )
        except Interrupted as error:
            raise Interrupted(f"{error}; {_next_step(good, out, CheckpointFile(out).any_exists())}") from None
    warn_of_skipped(detector.provenance["data"]["skipped"])
    return detector


def report_model(detector: Detector, out: Path, json: bool) -> None:
    """Print a summary of a finished model."""
    from patchsvdd.core.roi import roi_in_words
    from patchsvdd.detector.unusual_images import unusual_images, unusual_in_words

    region = roi_in_words(detector.config.roi)
    calibration = detector.calibration
    training = detector.provenance["training"]
    if json:
        print_json(
            {
                "model": str(out),
                "preset": detector.config.preset,
                "images": detector.provenance["data"]["images"],
                "roi": region,
                "skipped": detector.provenance["data"]["skipped"],
                "copies": detector.provenance["data"].get("copies", []),
                "left_out": detector.provenance["data"].get("left_out", []),
                "unusual": detector.provenance.get("unusual", []),
                "sizing": detector.provenance["data"].get("sizing"),
                "steps": training["steps"],
                "train_seconds": training["seconds"],
                "device": detector.provenance["device"],
                "threshold": detector.threshold if calibration is not None else None,
                "false_alarm_rate": calibration.false_alarm_rate if calibration is not None else None,
                "guaranteed": calibration.is_guaranteed if calibration is not None else False,
                "guarantee": calibration.guarantee if calibration is not None else None,
                "caveat": calibration.caveat if calibration is not None else None,
                "aim": calibration.aim if calibration is not None else None,
                **(misses_to_json(calibration) if calibration is not None else {}),
                "min_area": detector.min_area,
                "lambda": training.get("lambda"),
                "encoder": training.get("kept"),
                "validation": training.get("validation"),
                "critic": _without_history(detector.provenance.get("critic")),
                "fusion": detector.provenance.get("fusion"),
                "last": training["history"][-1] if training["history"] else None,
            }
        )
        return
    if copies := detector.provenance["data"].get("copies"):
        say(f"[yellow]note:[/] {copies_in_words(copies)}")
    if note := unusual_in_words(unusual_images(detector.provenance), detector.provenance["data"]["images"]):
        see = f"patchsvdd info {shlex.quote(str(out))} --unusual unusual.png"
        say(f"[yellow]note:[/] {escape(note)} ({escape(see)}), and train again with --leave-out NAME if you find one")
    if note := stretch_note(detector.config, detector.provenance["data"]):
        say(f"[yellow]note:[/] {note}")
    for note in notes_on(detector.config.lambda_, training):
        say(f"[yellow]note:[/] {note}")
    if calibration is not None and calibration.caveat:
        say(f"[yellow]note:[/] {calibration.caveat}")
    print_facts(
        f"Model {out}",
        {
            "learned from": f"{detector.provenance['data']['images']} good images",
            **_trained(training),
            **({"region": region} if region is not None else {}),
            **sizing_fact(detector.provenance["data"]),
            **critic_facts(detector.provenance),
            "device": detector.provenance["device"],
            "threshold": f"{detector.threshold:.4g}",
            **({"false alarms": calibration.guarantee, **aim_facts(calibration)} if calibration is not None else {}),
            **min_area_fact(detector.min_area),
            "next": f"patchsvdd inspect {shlex.quote(str(out))} IMAGE_OR_FOLDER --out inspected",
        },
    )


def copies_in_words(copies: Sequence[Sequence[str]]) -> str:
    """A sentence with the number of images that are copies of others, and the first few names."""
    shown = ", ".join(f"{escape(name)} of {escape(other)}" for name, other in copies[:3])
    more = f", and {len(copies) - 3} more" if len(copies) > 3 else ""
    many = "1 image is a copy or a near-copy" if len(copies) == 1 else f"{len(copies)} images are copies or near-copies"
    return f"{many} of another and left out ({shown}{more})"


def stretch_note(config: Config, data: dict[str, Any]) -> str | None:
    """A note if images were stretched; None if their aspect ratio is kept."""
    from patchsvdd.images.sizing import ALIKE

    if config.image_size is None or config.fit != "stretch" or not data.get("original_size"):
        return None
    (height, width), (rows, columns) = data["original_size"], config.image_size
    ratio = height / width * columns / rows
    if max(ratio, 1 / ratio) <= ALIKE:
        return None
    return f"images of {width}x{height} are stretched to {columns}x{rows}; --image-size auto keeps their aspect ratio"


def notes_on(lambda_: float, training: dict[str, Any]) -> Iterator[str]:
    """Notes on problems in the training of an encoder."""
    if training.get("collapses") and training["lambda"] is None:
        last = training["collapses"][-1]
        yield f"the encoder was left untrained, because every attempt to train it failed; the last error: {last}"
    elif training.get("collapses"):
        yield f"training collapsed with λ = {lambda_:g} and was repeated with {training['lambda']:g}"
    validation = training.get("validation")
    if validation and training["kept"] == "untrained":
        yield (
            "the untrained encoder was kept: the trained one does not find more synthetic defects "
            f"({validation['trained']:.3f} against {validation['untrained']:.3f})"
        )


def _without_history(record: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if record is None else {name: value for name, value in record.items() if name != "history"}


def _describe(now: TrainingProgress) -> str:
    """Losses, accuracy and speed, for the progress bar."""
    scales = now.metrics.values()
    words = [f"L_SVDD' {sum(values['svdd_loss'] for values in scales):.3f}"]
    if all("position_loss" in values for values in scales):
        accuracy = " ".join(f"{size}px {values['position_accuracy']:.0%}" for size, values in now.metrics.items())
        words = [f"L_SSL {sum(values['position_loss'] for values in scales):.3f}", *words, f"position {accuracy}"]
    speed = f"{now.steps_per_second:.0f}" if now.steps_per_second >= 10 else f"{now.steps_per_second:.2f}"
    retried = [f"λ {now.lambda_:g} after a collapse"] if now.collapses else []
    return "  ".join((*words, f"{speed} steps/s", *retried))


def _next_step(good: Path, out: Path, kept: bool) -> str:
    if not kept:
        return "nothing was written; run the same command again"
    command = f"patchsvdd train {shlex.quote(str(good))} --out {shlex.quote(str(out))}"
    return f"the training is saved; continue with the same command and --resume ({command} … --resume)"


def _trained(training: dict[str, Any]) -> dict[str, str]:
    """How long the encoder, or the network of a baseline, was trained."""
    if training["steps"] == 0:
        return {"encoder": "untrained"}
    return {"training": f"{training['steps']:,} steps in {training['seconds']:.0f} s"}
