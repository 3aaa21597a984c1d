"""``patchsvdd import-reference``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    JsonOption,
    MemoryOption,
    SearchOption,
    StageBars,
    one_line_errors,
    progress_bar,
    warn_of_skipped,
)
from patchsvdd.apps.cli.train import report_model

EXAMPLE = "Example: patchsvdd import-reference bottle.pkl mvtec/bottle --out models/bottle --resize nearest"


@one_line_errors
def import_reference(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Encoder weights from the authors' code.")],
    good: Annotated[Path, typer.Argument(metavar="GOOD_OR_CATEGORY", help="Good images, or an MVTec category.")],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
    resize: Annotated[str | None, typer.Option(help="nearest (the paper's), area or bicubic.")] = None,
    image_size: Annotated[
        str | None, typer.Option(help="256 (the paper's), auto, 336x448 (width x height) or native.")
    ] = None,
    false_alarm_rate: Annotated[
        float | None, typer.Option(help="Fraction of good images that may be classified as anomalous.")
    ] = None,
    memory: MemoryOption = None,
    search: SearchOption = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing model at --out.")] = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Build a model from the authors' checkpoint without training; memory and threshold come from good images."""
    from patchsvdd.core.device import choose_device
    from patchsvdd.core.errors import OutputError
    from patchsvdd.core.files import require_writable
    from patchsvdd.core.presets import preset
    from patchsvdd.detector.detector import PatchSVDD
    from patchsvdd.detector.model_folder import is_model
    from patchsvdd.detector.stored_memory import as_search
    from patchsvdd.encoder.reference_weights import load_reference_encoder
    from patchsvdd.images.loading import load_good_images, sized_for
    from patchsvdd.memory.bank import memory_bytes

    config = preset("paper", resize=resize, image_size=image_size, false_alarm_rate=false_alarm_rate, memory=memory)
    how = as_search(search, choose_device(device))
    encoder = load_reference_encoder(checkpoint, config)
    if is_model(out) and not overwrite:
        raise OutputError(f"{out} already holds a model; choose another --out, or replace it with --overwrite")
    require_writable(out)
    with progress_bar() as progress:
        bars = StageBars(progress)
        config = sized_for(good, config)
        images = load_good_images(good, config, bars)
        require_writable(out, memory_bytes(config, images.size, len(images)))
        detector = PatchSVDD.fit_images(images, config, device=device, on_stage=bars, encoder=encoder, search=how)
        detector.provenance["reference_checkpoint"] = checkpoint.name
        detector.save(out)
    warn_of_skipped(images.skipped)
    report_model(detector, out, json)
