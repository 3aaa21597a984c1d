"""Export a detector: write a temporary file, compare its results with the detector, and only then rename it."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from patchsvdd.core.errors import ConfigError, DatasetError, ExportRefused
from patchsvdd.core.extras import require
from patchsvdd.core.files import output_errors, require_writable
from patchsvdd.core.memory_size import MemorySize
from patchsvdd.core.progress import OnProgress, OnStage, stage
from patchsvdd.core.version import __version__
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.export.detector_graph import detector_graph, refuse_min_area, refuse_raw
from patchsvdd.export.formats import PACKAGES, Format, as_format, patches_in_words, write
from patchsvdd.export.parity import CELLS, EXACT, Parity, compare, verdict
from patchsvdd.export.tree_nodes import MIN_ROWS
from patchsvdd.images.image_set import ImageBatch, each_image, load_image
from patchsvdd.memory.cell_tree import CellTree, build_tree
from patchsvdd.memory.coreset import select_coreset
from patchsvdd.runtime import Detector
from patchsvdd.runtime.contract import UNRESIZED, About

ExportSearch = Literal["auto", "exact", "cells"]
COUNT = 8
"""Default number of images to compare."""
SPOTS = 2
"""Number of copies with a synthetic spot, so that anomalous images are compared too."""


@dataclass(frozen=True)
class Exported:
    """An exported file whose results agree with its detector."""

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
    search: str = "auto",
    count: int = COUNT,
    on_stage: OnStage | None = None,
    on_compared: Callable[[Parity], None] | None = None,
) -> Exported:
    """Write a detector to one file that does not need PyTorch, after checking that both agree on ``images``.

    At most ``count`` evenly chosen images are compared, and two copies with a spot drawn into them. ``memory`` keeps a
    share of the normal patches; the file is then compared with the detector with that share. With ``search="cells"``
    the file visits only the nearest cells of large memories; "auto" does so unless the results then differ too much
    from those of an exact search. Raise ExportRefused if the results differ. ``on_compared`` receives every
    comparison.
    """
    target, path, chosen = as_format(format), Path(path), as_export_search(search)
    refuse_raw(detector)
    refuse_min_area(detector)
    size = image_size_of(detector)
    pixels = _comparison_images(detector, images, count, size)
    require_writable(path.parent)
    detector = exact_detector(detector, memory, on_stage)
    trees = {} if chosen == "exact" else _trees(detector, stage(on_stage, "sorting"))
    attempts = [trees, {}] if trees and chosen == "auto" else [trees]
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        for attempt in attempts:
            about = describe(detector, size, target, memory, "cells" if attempt else "exact")
            graph = detector_graph(detector, size, threshold_has_default=target == "onnx", trees=attempt)
            write(temporary, target, graph, about)
            limits = CELLS if attempt else EXACT
            parity = compare(detector, Detector(temporary), pixels, limits, stage(on_stage, "comparing"))
            if on_compared is not None:
                on_compared(parity)
            if parity.holds:
                break
            temporary.unlink()
        else:
            raise ExportRefused(_refusal(parity, path, chosen))
        with output_errors(path, temporary=temporary):
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return Exported(path, path.stat().st_size, about, parity)


def as_export_search(text: str) -> ExportSearch:
    """The search that ``text`` names; raise ConfigError if it is unknown."""
    if text not in get_args(ExportSearch):
        raise ConfigError(f"`search` must be one of {', '.join(get_args(ExportSearch))}; got '{text}'")
    return cast(ExportSearch, text)


def _trees(detector: PatchSVDD, on_progress: OnProgress | None) -> dict[int, CellTree]:
    """The cells of every memory that is large enough and that the file needs."""
    if detector.map_builder.ignores_memory:
        return {}
    large = {
        patch_size: memory.embeddings.cpu()
        for patch_size, memory in detector.memory.scales.items()
        if len(memory.embeddings) >= MIN_ROWS and memory.local_scale is None
    }
    trees = {}
    for done, (patch_size, embeddings) in enumerate(large.items(), start=1):
        trees[patch_size] = build_tree(embeddings)
        if on_progress is not None:
            on_progress(done, len(large))
    return trees


def image_size_of(detector: PatchSVDD) -> tuple[int, int]:
    """(height, width) of the images that an export requires: the model's own, or that of its training images."""
    frame = detector.config.frame
    if frame is not None:
        return frame.full
    if detector.config.image_size is not None:
        return detector.config.image_size
    if "image_size" not in detector.provenance.get("data", {}):
        raise ConfigError("the model accepts images of any size and does not record its training size; train it again")
    return detector.image_size


def exact_detector(detector: PatchSVDD, memory: MemorySize | None = None, on_stage: OnStage | None = None) -> PatchSVDD:
    """The same detector with PyTorch, exact search, and only that share of its memory.

    The threshold does not change; distances to a coreset are slightly larger. A memory without weight stays
    whole: it is not exported.
    """
    other = PatchSVDD(detector.config, detector.learned, detector.device, engine="torch")
    other.identity = detector.identity
    other.memory = detector.memory.without_graphs()
    if memory is not None and not memory.is_whole and not detector.map_builder.ignores_memory:
        other.memory = select_coreset(other.memory, memory, on_progress=stage(on_stage, "thinning"))
    return other


def describe(
    detector: PatchSVDD,
    size: tuple[int, int],
    target: Format,
    memory: MemorySize | None = None,
    search: ExportSearch = "exact",
) -> About:
    """Metadata of the exported file."""
    counts = {patch_size: len(scale.embeddings) for patch_size, scale in detector.memory.scales.items()}
    patches = patches_in_words(counts, str(memory) if memory is not None else detector.config.memory)
    engine = PACKAGES[target]
    return About(
        identity=detector.identity or "",
        image_size=size,
        resize=detector.config.resize if detector.config.image_size is not None else UNRESIZED,
        fit=detector.config.fit,
        pixel_scale=detector.config.pixel_scale,
        memory="not needed: the critic alone decides" if detector.map_builder.ignores_memory else patches,
        search=search,
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


def _comparison_images(
    detector: PatchSVDD, images: ImageBatch, count: int, size: tuple[int, int]
) -> list[tuple[str, NDArray[np.uint8]]]:
    """Names and pixels (H, W, 3) of the images to compare."""
    if count < 1:
        raise ConfigError(f"`count` must be at least 1 image to compare on; got {count}")
    sources = list(each_image(images))
    if not sources:
        raise DatasetError("there is no image to compare the export on; name a folder of real images with `images`")
    chosen = np.unique(np.linspace(0, len(sources) - 1, min(count, len(sources))).round().astype(int))
    chosen_images = []
    for index in chosen:
        name, source = sources[index]
        image = load_image(source, detector.config, name).canvas
        if image.shape[:2] != size:
            raise DatasetError(
                f"{name} is {image.shape[1]}x{image.shape[0]} pixels and the export requires {size[1]}x{size[0]}, "
                f"the size of the images that the model learned from; name a folder of such images with `images`"
            )
        chosen_images.append((name, image))
    return chosen_images + [(f"{name} with a spot", with_spot(image)) for name, image in chosen_images[:SPOTS]]


def with_spot(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image (H, W, 3) with a spot that no good image has: the negative of its centre, with channels reversed."""
    height, width = image.shape[:2]
    spot = (slice(height * 3 // 8, height // 2), slice(width * 3 // 8, width // 2))
    changed = image.copy()
    changed[spot] = 255 - image[spot][..., ::-1]
    return changed


def _refusal(parity: Parity, path: Path, search: ExportSearch) -> str:
    """The error message: what differs, and what to do."""
    worst = max(parity.images, key=lambda item: (not item.agrees, item.error))
    differing: Sequence[str] = [item.name for item in parity.images if not item.agrees]
    verdicts = f"{verdict(worst.exported_is_anomalous)}, not {verdict(worst.is_anomalous)}"
    also = f" and its verdict is {verdicts}" if worst.is_anomalous != worst.exported_is_anomalous else ""
    limits = worst.limits
    allowed = f"{limits.map:g}" if limits.map == limits.score else f"{limits.map:g}, {limits.score:g} for the score"
    remedy = "use `search=exact`" if search == "cells" else "try another `format` or version of its software"
    return (
        f"the export does not say what the model says on {len(differing)} of {len(parity.images)} images, so {path} "
        f"was not written: the map or score of {worst.name} is off by {worst.error:.1e} of the map's largest value "
        f"(allowed: {allowed}){also}; {remedy}, and report this"
    )
