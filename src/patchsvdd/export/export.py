"""Exporting: write under a temporary name, compare with the detector, and only then let the file have its name."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError, DatasetError, ExportRefused
from patchsvdd.core.extras import require
from patchsvdd.core.files import output_errors, require_writable
from patchsvdd.core.memory_size import MemorySize
from patchsvdd.core.version import __version__
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.export.detector_graph import detector_graph, refuse_min_area, refuse_raw
from patchsvdd.export.formats import PACKAGES, Format, as_format, patches_in_words, write
from patchsvdd.export.parity import ALLOWED, Parity, compare, verdict
from patchsvdd.images.image_set import ImageBatch, each_image, load_image
from patchsvdd.images.loading import OnStage, stage
from patchsvdd.memory.coreset import select_coreset
from patchsvdd.runtime import Detector
from patchsvdd.runtime.contract import KEPT, About

COUNT = 8
"""Images compared unless more are asked for."""
SPOTS = 2
"""Copies of the first of them with a spot in them, so that what is anomalous is compared too."""


@dataclass(frozen=True)
class Exported:
    """A file that says what its detector says."""

    path: Path
    bytes: int
    about: About
    parity: Parity


def export(
    detector: PatchSVDD,
    path: str | os.PathLike[str],
    images: ImageBatch,
    *,
    format: str = "onnx",  # noqa: A002
    memory: MemorySize | None = None,
    count: int = COUNT,
    on_stage: OnStage | None = None,
    on_compared: Callable[[Parity], None] | None = None,
) -> Exported:
    """Write a detector to one file that needs no PyTorch, once it has given the detector's own answers on ``images``.

    At most ``count`` of the images are compared, evenly chosen, and two with a spot drawn into them. ``memory`` keeps a
    share of the normal patches; answers are then those of the detector with that share. ExportRefused if they differ.
    ``on_compared`` is told how they compare, whatever comes of it.
    """
    wanted, path = as_format(format), Path(path)
    refuse_raw(detector)
    refuse_min_area(detector)
    size = image_size_of(detector)
    pixels = _pictures(detector, images, count, size)
    require_writable(path.parent)
    detector = exact(detector, memory, on_stage)
    about = describe(detector, size, wanted, memory)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        write(temporary, wanted, detector_graph(detector, size, threshold_has_default=wanted == "onnx"), about)
        parity = compare(detector, Detector(temporary), pixels, stage(on_stage, "comparing"))
        if on_compared is not None:
            on_compared(parity)
        if not parity.holds:
            raise ExportRefused(_refusal(parity, path))
        with output_errors(path, temporary=temporary):
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return Exported(path, path.stat().st_size, about, parity)


def image_size_of(detector: PatchSVDD) -> tuple[int, int]:
    """(height, width) of the images that an export takes: the model's own, or those it learned from."""
    frame = detector.config.frame
    if frame is not None:
        return frame.full
    if detector.config.image_size is not None:
        return detector.config.image_size
    known = detector.provenance.get("data", {}).get("image_size")
    if known is None:
        raise ConfigError("the model takes images of any size and does not say which it learned from; train it again")
    return int(known[0]), int(known[1])


def exact(detector: PatchSVDD, memory: MemorySize | None = None, on_stage: OnStage | None = None) -> PatchSVDD:
    """The same detector computed by PyTorch and searched exactly, with that share of its memory.

    The threshold stays what it was; distances to a thinned memory are a little larger.
    """
    other = PatchSVDD(detector.config, detector.learned, detector.device, engine="torch")
    other.identity = detector.identity
    other.memory = detector.memory.without_graphs()
    if memory is not None and not memory.is_whole:
        other.memory = select_coreset(other.memory, memory, on_progress=stage(on_stage, "thinning"))
    return other


def describe(detector: PatchSVDD, size: tuple[int, int], wanted: Format, memory: MemorySize | None = None) -> About:
    """What the file says about itself."""
    counts = {patch_size: len(scale.embeddings) for patch_size, scale in detector.memory.scales.items()}
    engine = PACKAGES[wanted]
    return About(
        identity=detector.identity or "",
        image_size=size,
        resize=detector.config.resize if detector.config.image_size is not None else KEPT,
        memory=patches_in_words(counts, str(memory) if memory is not None else detector.config.memory),
        calibration=detector.calibration,
        config=detector.config.to_json(),
        provenance=detector.provenance,
        versions={
            "patchsvdd": __version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
            engine: str(require(engine, "deploy", "exporting").__version__),
        },
    )


def _pictures(
    detector: PatchSVDD, images: ImageBatch, count: int, size: tuple[int, int]
) -> list[tuple[str, NDArray[np.uint8]]]:
    """Names and pixels (H, W, 3) of the images to compare on."""
    if count < 1:
        raise ConfigError(f"--count takes at least 1 image to compare on; got {count}")
    sources = list(each_image(images))
    if not sources:
        raise DatasetError("there is no image to compare the export on; give a folder of real images: --images DIR")
    chosen = np.unique(np.linspace(0, len(sources) - 1, min(count, len(sources))).round().astype(int))
    found = []
    for index in chosen:
        name, source = sources[index]
        picture = load_image(source, detector.config, name).picture
        if picture.shape[:2] != size:
            raise DatasetError(
                f"{name} is {picture.shape[1]}x{picture.shape[0]} pixels and the export takes {size[1]}x{size[0]}, "
                f"the size of the images that the model learned from; give such images: --images DIR"
            )
        found.append((name, picture))
    return found + [(f"{name} with a spot", with_spot(picture)) for name, picture in found[:SPOTS]]


def with_spot(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture (H, W, 3) with a spot that no good image has: the negative of its middle, channels exchanged."""
    height, width = picture.shape[:2]
    middle = (slice(height * 3 // 8, height // 2), slice(width * 3 // 8, width // 2))
    spotted = picture.copy()
    spotted[middle] = 255 - picture[middle][..., ::-1]
    return spotted


def _refusal(parity: Parity, path: Path) -> str:
    """What differs, and what to do."""
    worst = max(parity.images, key=lambda one: (not one.agrees, one.error))
    differing: Sequence[str] = [one.name for one in parity.images if not one.agrees]
    verdicts = f"{verdict(worst.exported_is_anomalous)}, not {verdict(worst.is_anomalous)}"
    also = f" and its verdict is {verdicts}" if worst.is_anomalous != worst.exported_is_anomalous else ""
    return (
        f"the export does not say what the model says on {len(differing)} of {len(parity.images)} images, so {path} "
        f"was not written: the map or score of {worst.name} is off by {worst.error:.1e} of the map's largest value "
        f"(allowed: {ALLOWED:g}){also}; try another --format or version of its software, and report this"
    )
