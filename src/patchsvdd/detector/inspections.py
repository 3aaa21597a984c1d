"""Inspections of images, from the images and their anomaly maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.core.roi import RoiCrop
from patchsvdd.images.image_set import LoadedImage
from patchsvdd.scoring.anomaly_map import AnomalyMaps, Key, LazyMaps
from patchsvdd.scoring.area_opening import area_opening_max
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.explanation import Explanation
from patchsvdd.scoring.inspection import Inspection
from patchsvdd.scoring.regions import Region, find_regions

NameRegions = Callable[[tuple[Region, ...], LoadedImage, NDArray[np.float32]], tuple[Region, ...]]
"""Regions, their image and its map → the regions, with the kinds of confirmed defects that they resemble."""
Explain = Callable[..., Explanation]
"""An inspection and, by keyword, the ``pixels`` the detector saw (None: those of the image) → what explains it."""


def to_inspections(
    batch: Sequence[LoadedImage],
    maps: AnomalyMaps,
    config: Config,
    calibration: Calibration | None,
    min_area: int,
    explain: Explain | None = None,
    name: NameRegions | None = None,
) -> list[Inspection]:
    """Return the inspections of images of one size, given their maps.

    ``min_area``: smallest region that counts, in pixels of the map.
    """
    windows = [Window(config.frame, loaded.content) for loaded in batch]
    combined = [window.of(each) for window, each in zip(windows, maps.combined.cpu().numpy(), strict=True)]
    scales, parts = _of_each(maps.scales, windows), _of_each(maps.parts, windows)
    scores = [
        score if loaded.content is None else area_opening_max(each, min_area)
        for loaded, each, score in zip(batch, combined, maps.scores.tolist(), strict=True)
    ]
    threshold = float("inf") if calibration is None else calibration.threshold
    outline, share = (None, 0.0) if calibration is None else (calibration.outline, calibration.region_share)
    found = []
    for loaded, each in zip(batch, combined, strict=True):
        regions = find_regions(each, threshold, loaded.original_size, outline, min_area, share)
        found.append(regions if name is None or not regions else name(regions, loaded, each))
    return [
        Inspection(
            name=loaded.name,
            score=scores[index],
            threshold=threshold,
            anomaly_map=combined[index],
            scale_maps=scales[index],
            part_maps=parts[index],
            image=loaded.display_pixels,
            image_size=loaded.original_size,
            regions=found[index],
            outline=outline,
            outline_share=share,
            min_area=config.min_area,
            map_area=min_area,
            p_value=calibration.p_value(scores[index]) if calibration is not None else None,
            explainer=None if explain is None else partial(explain, pixels=_pixels_to_explain(loaded)),
            inside=_inside(config, maps.combined.shape[1:], windows[index]),
        )
        for index, loaded in enumerate(batch)
    ]


@dataclass(frozen=True)
class Window:
    """The part of a map that shows the resized image: without the mirrored rest, with what the crop leaves out."""

    frame: RoiCrop | None
    content: tuple[int, int] | None

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return (H, W) of the resized image, given values (h, w) of what the detector sees."""
        canvas = values if self.frame is None else self.frame.spread(values)
        return canvas if self.content is None else canvas[: self.content[0], : self.content[1]].copy()


def _pixels_to_explain(loaded: LoadedImage) -> Tensor | None:
    """The pixels that the detector saw, unless the image for display has them."""
    return None if loaded.pixels.dtype == np.uint8 and loaded.content is None else loaded.tensor


def _inside(config: Config, seen: Sequence[int], window: Window) -> NDArray[np.bool_] | None:
    """Return (H, W): the pixels of the resized image that count; None if all do."""
    size = (int(seen[0]), int(seen[1]))
    area = config.area(size)
    if area is None and window.frame is None:
        return None
    return window.of(np.ones(size, np.bool_) if area is None else area.mask)


def _of_each(maps: Mapping[Key, Tensor], windows: Sequence[Window]) -> list[Mapping[Key, NDArray[np.float32]]]:
    """Split maps (N, h, w) of what the detector sees into the maps of each image; lazy maps stay lazy."""
    if isinstance(maps, LazyMaps):
        return [LazyMaps(tuple(maps), partial(_array_of, maps, window, index)) for index, window in enumerate(windows)]
    on_host = {key: values.cpu() for key, values in maps.items()}
    return [{key: _array_of(on_host, window, index, key) for key in on_host} for index, window in enumerate(windows)]


def _array_of(maps: Mapping[Key, Tensor], window: Window, index: int, key: Key) -> NDArray[np.float32]:
    return window.of(maps[key][index].cpu().numpy())
