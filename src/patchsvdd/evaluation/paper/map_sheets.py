"""Contact sheets of the maps that experiments stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from patchsvdd.evaluation.collected_results import PRODUCT
from patchsvdd.evaluation.experiment import ExperimentResult
from patchsvdd.evaluation.sample_maps import KeptMaps
from patchsvdd.report.contact_sheet import SheetCell, SheetRow, draw_sheet, look_at
from patchsvdd.report.overlay import save_image


def map_sheet(category: Path, result: ExperimentResult, names: Mapping[int, str], path: Path) -> Path | None:
    """Write a sheet of the median image of each defect type with some of its maps (``names``: size → title).

    A map's colour scale ends at its highest value over all images shown. Returns ``path``; None if no map was stored.
    """
    kept = [one for one in result.sample_maps().read() if one.rank == "median"]
    full = {title: max((float(one.maps[size].max()) for one in kept), default=0.0) for size, title in names.items()}
    seen = look_at(category, [one.image for one in kept], result.experiment.config)
    rows = []
    for one in kept:
        if one.image in seen:
            maps = {title: one.maps[size] for size, title in names.items()}
            rows.append(SheetRow(one.defect, [SheetCell(*seen[one.image], maps, full, Path(one.image).name)]))
    return _save(rows, category, path)


def compare_maps(category: Path, results: Mapping[str, ExperimentResult], path: Path) -> Path | None:
    """Write a sheet of the final maps of several detectors for the same images; returns ``path``, None if empty.

    The images are those with the median score of each defect type under the last detector, if all detectors stored
    them. The colour scale of each detector covers the values of its maps over all stored images.
    """
    kept = {name: {one.image: one for one in result.sample_maps().read()} for name, result in results.items()}
    ranges = {name: _range(ones.values()) for name, ones in kept.items()}
    full = {name: high - low for name, (low, high) in ranges.items()}
    last = list(results)[-1]
    common = [one for one in kept[last].values() if all(one.image in ones for ones in kept.values())]
    seen = look_at(category, [one.image for one in common], results[last].experiment.config)
    rows: dict[str, SheetRow] = {}
    for one in sorted(common, key=lambda one: one.rank != "median"):
        if one.image in seen and one.defect not in rows:
            maps = {name: ones[one.image].maps[PRODUCT] - ranges[name][0] for name, ones in kept.items()}
            rows[one.defect] = SheetRow(one.defect, [SheetCell(*seen[one.image], maps, full, Path(one.image).name)])
    return _save([rows[defect] for defect in sorted(rows)], category, path)


def _range(kept: Iterable[KeptMaps]) -> tuple[float, float]:
    """The lowest and the highest value of the final maps; zeros for none."""
    values = [float(end) for one in kept for end in (one.maps[PRODUCT].min(), one.maps[PRODUCT].max())]
    return min(values, default=0.0), max(values, default=0.0)


def _save(rows: list[SheetRow], category: Path, path: Path) -> Path | None:
    return save_image(draw_sheet(rows, title=category.name), path) if rows else None
