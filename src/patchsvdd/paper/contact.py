"""Contact sheets from the maps that experiments kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from patchsvdd.category import find_test_images
from patchsvdd.config import Config
from patchsvdd.errors import ImageError
from patchsvdd.evaluation.experiment import ExperimentResult
from patchsvdd.evaluation.keepsake import KeptMaps
from patchsvdd.images import load_image, load_mask
from patchsvdd.output.sheet import SheetCell, SheetRow, draw_sheet, save_sheet


def map_sheet(category: Path, result: ExperimentResult, names: Mapping[int, str], path: Path) -> Path | None:
    """``path``, now showing the median image of each defect type with some of its maps (size → title).

    A map's full colour is the highest value it has on any image shown. None where no map was kept.
    """
    kept = [one for one in result.keepsakes().read() if one.rank == "median"]
    full = {title: max((float(one.maps[size].max()) for one in kept), default=0.0) for size, title in names.items()}
    rows = []
    for one in kept:
        seen = _look_at(category, one, result.experiment.config)
        if seen is not None:
            maps = {title: one.maps[size] for size, title in names.items()}
            rows.append(SheetRow(one.defect, [SheetCell(seen[0], seen[1], maps, full, Path(one.image).name)]))
    if not rows:
        return None
    return save_sheet(draw_sheet(rows, title=category.name), path)


def compare_maps(category: Path, results: Mapping[str, ExperimentResult], path: Path) -> Path | None:
    """``path``, now showing the product maps of several detectors for the same images.

    The images are those with the median score of each defect type under the last detector, so far as all kept them.
    Each detector's maps are shown from the lowest to the highest value they have on any image kept.
    """
    kept = {name: {one.image: one for one in result.keepsakes().read()} for name, result in results.items()}
    last = list(kept)[-1]
    low = {name: min((float(one.maps[0].min()) for one in ones.values()), default=0.0) for name, ones in kept.items()}
    high = {name: max((float(one.maps[0].max()) for one in ones.values()), default=0.0) for name, ones in kept.items()}
    full = {name: high[name] - low[name] for name in kept}
    rows: list[SheetRow] = []
    config = results[last].experiment.config
    for one in sorted(kept[last].values(), key=lambda one: one.rank != "median"):
        common = {name: ones[one.image].maps[0] - low[name] for name, ones in kept.items() if one.image in ones}
        seen = _look_at(category, one, config)
        if len(common) == len(kept) and seen is not None and one.defect not in {row.label for row in rows}:
            rows.append(SheetRow(one.defect, [SheetCell(seen[0], seen[1], common, full, Path(one.image).name)]))
    if not rows:
        return None
    return save_sheet(draw_sheet(sorted(rows, key=lambda row: row.label), title=category.name), path)


def _look_at(
    category: Path, kept: KeptMaps, config: Config
) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None] | None:
    """The image and its mask as the detector saw them; None if the file is gone or broken."""
    try:
        image = load_image(category / kept.image, config).picture
    except ImageError:
        return None
    by_file = {one.file: one.mask for one in find_test_images(category).images}
    mask_file = by_file.get(category / kept.image)
    if mask_file is None:
        return image, None
    try:
        return image, load_mask(mask_file, (image.shape[0], image.shape[1]), config.resize)
    except ImageError:
        return image, None
