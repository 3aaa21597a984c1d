"""``patchsvdd watch``."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    EngineOption,
    GoldenOption,
    JsonOption,
    MinAreaOption,
    PrecisionOption,
    SearchOption,
    StopRequest,
    escape,
    load_detector,
    one_line_errors,
    print_json,
    say,
    stdout,
)
from patchsvdd.core.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchsvdd.apps.watch.delivery import Channel
    from patchsvdd.apps.watch.watch import Status, WatchSettings
    from patchsvdd.detector.detector import PatchSVDD
    from patchsvdd.detector.followed_model import FollowedModel

EXAMPLE = "Example: patchsvdd watch models/part /mnt/camera --out watched --webhook https://mes.local/defects"


@one_line_errors
def watch(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Model folder; a new model there is loaded automatically.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder in which images arrive.")],
    out: Annotated[Path, typer.Option(help="Folder for the ledger, results.jsonl, results.csv and overlays.")],
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="POST results to this URL as JSON.")] = None,
    mqtt: Annotated[
        str | None, typer.Option(metavar="URL", help="Publish results to mqtt://[user@]host[:port]/topic.")
    ] = None,
    on_anomaly: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Run this command for each anomalous image, with JSON on its standard input."
        ),
    ] = None,
    notify: Annotated[str, typer.Option(help="Results to send by webhook and MQTT: anomalous or all.")] = "anomalous",
    settle: Annotated[
        float, typer.Option(help="Seconds without a change after which a file counts as complete.")
    ] = 1.0,
    poll: Annotated[float, typer.Option(help="Seconds between two scans of the folder.")] = 1.0,
    patience: Annotated[
        float, typer.Option(help="Seconds after which a broken file is reported as unreadable.")
    ] = 30.0,
    pictures: Annotated[str, typer.Option(help="Overlays to write: all, anomalous or none.")] = "all",
    once: Annotated[bool, typer.Option("--once", help="Exit when no image is left to inspect.")] = False,
    heartbeat: Annotated[float, typer.Option(help="Seconds between two reports on stderr.")] = 60.0,
    min_area: MinAreaOption = None,
    golden_check: GoldenOption = "block",
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Inspect images as they arrive in a folder, each exactly once, even if this process is killed."""
    settings = _settings(settle, poll, patience, pictures, notify, once, heartbeat)
    channels = _channels(webhook, mqtt, on_anomaly)

    from patchsvdd.apps.watch.results_folder import WatchResults
    from patchsvdd.apps.watch.watch import Watch
    from patchsvdd.detector.followed_model import FollowedModel
    from patchsvdd.detector.golden_images import TOLERANCE
    from patchsvdd.detector.model_folder import read_index
    from patchsvdd.images.watched_folder import WatchedFolder

    def note(text: str) -> None:
        say(f"{_now()} {escape(text)}")

    def load(path: Path) -> PatchSVDD:
        return load_detector(path, device, engine, precision, search, min_area)

    def show(row: dict[str, Any]) -> None:
        if "error" in row:
            note(f"unreadable: {row['image']}: {row['error']}")
        elif row["is_anomalous"]:
            note(f"anomalous: {row['image']}, score {row['score']:.4g}, threshold {row['threshold']:.4g}")

    stop = StopRequest()
    with stop.listening():
        watched = WatchedFolder(folder, settle=settle, leave_out=out)
        read_index(model)  # raises an error before anything is written
        with WatchResults(out, folder) as results:
            current = FollowedModel(model, load, note)
            alike = min_area is None and precision == "float32"  # otherwise scores differ from the recorded ones
            _require_golden(current, golden_check, note, TOLERANCE if alike else float("inf"))
            note(f"watching {folder} with model {current.detector.identity}; results go to {out}")
            status = Watch(
                current,
                watched,
                results,
                settings,
                channels,
                on_row=show,
                on_note=note,
                on_status=lambda status: note(_describe(status)),
                should_stop=stop,
            ).run()
    if json:
        print_json({"model": str(model), "folder": str(folder), "out": str(out), **status.to_json()})
    else:
        stdout().print(escape(f"{_describe(status)}. Results are in {out / 'results.jsonl'}"))


def _require_golden(model: FollowedModel, mode: str, note: Callable[[str], None], tolerance: float) -> None:
    """Check the model with its golden images; raise ModelError if it fails, or only warn."""
    from patchsvdd.detector.golden_images import check_golden_images

    problem = check_golden_images(model.folder, model.detector, tolerance=tolerance).problem
    if problem is None:
        return
    words = f"the model failed its check: {problem}"
    if mode == "block":
        raise ModelError(f"{words}; see patchsvdd check {model.folder}, or continue with `golden_check=warn`")
    note(f"warning: {words}")


def _settings(
    settle: float, poll: float, patience: float, pictures: str, notify: str, once: bool, heartbeat: float
) -> WatchSettings:
    from typing import get_args

    from patchsvdd.apps.watch.results_folder import Pictures
    from patchsvdd.apps.watch.watch import Notify, WatchSettings

    for name, value in {"--settle": settle, "--poll": poll, "--patience": patience, "--heartbeat": heartbeat}.items():
        if not 0 <= value < float("inf"):
            raise ConfigError(f"{name} must be 0 seconds or more; got {value:g}")
    for name, choice, allowed in (("--pictures", pictures, get_args(Pictures)), ("--notify", notify, get_args(Notify))):
        if choice not in allowed:
            raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got '{choice}'")
    options: dict[str, Any] = {"pictures": pictures, "notify": notify}
    return WatchSettings(poll=max(poll, 0.01), patience=patience, once=once, heartbeat=heartbeat, **options)


def _channels(webhook: str | None, mqtt: str | None, on_anomaly: str | None) -> list[Channel]:
    """The requested channels; secrets come from the environment."""
    channels: list[Channel] = []
    if webhook is not None:
        from patchsvdd.apps.watch.webhook import SECRET, Webhook

        channels.append(Webhook(webhook, os.environ.get(SECRET)))
    if mqtt is not None:
        from patchsvdd.apps.watch.mqtt import PASSWORD, Mqtt

        channels.append(Mqtt(mqtt, os.environ.get(PASSWORD)))
    if on_anomaly is not None:
        from patchsvdd.apps.watch.command import Command

        channels.append(Command(on_anomaly))
    return channels


def _describe(status: Status) -> str:
    counts = status.to_json()
    text = (
        f"{counts['images']} images: {counts['anomalous']} anomalous, {counts['good']} good, "
        f"{counts['unreadable']} unreadable; {counts['waiting']} waiting"
    )
    for channel, count in status.undelivered.items():
        text += f"; {count} to deliver by {channel}"
    return text


def _now() -> str:
    return datetime.now().strftime("%Y-%m-%d %H:%M:%S")
