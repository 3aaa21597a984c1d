"""The charts of docs/pictures: what is fitted, and that every chart can be drawn from its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_study_report import row

from growth import ascending, exponents, predicted
from plots import CHARTS, draw_all

ABOUT = {"hardware": "a machine", "date": "2026-01-01", "limit_bytes": 2**31}


def growth(device: str) -> dict[str, Any]:
    """Rows whose times grow linearly with images and pixels, and whose thresholds grow as the square."""
    images = [
        {"images": n, "search": "graph", "memory_seconds": 2.0 * n, "index_seconds": 3.0 * n, "disk_bytes": 1000 * n}
        | {"threshold_seconds": float(n**2), "inspect_milliseconds": 5.0, "memory_bytes": 10**6}
        for n in (10, 20, 50)
    ]
    sizes = [
        {"size": s, "pixels": s**2, "rows": {"32": 100}, "encode_milliseconds": s**2 / 10}
        | {"process_bytes": 10**8 + s**2, "memory_bytes": 10**7 + s**2}
        for s in (64, 128)
    ]
    fitted = {"images": exponents(images, "images"), "size": exponents(sizes, "pixels")}
    return {**ABOUT, "device": device, "images": images, "sizes": sizes, "exponents": fitted}


def results(folder: Path) -> Path:
    thinned = [
        {"category": "pill", "method": method, "size": size, "detection_auroc": 0.9, "segmentation_auroc": 0.8}
        for method in ("random", "settled")
        for size in ("1%", "10%")
    ]
    trained = [
        {"category": "pill", "seed": 0, "sampling": kind, "budget": budget, "train_seconds": budget}
        | {"detection_auroc": 0.9, "segmentation_auroc": 0.8}
        for kind in ("dense", "patches")
        for budget in (5, 20)
    ]
    files = {"growth-cpu": growth("cpu"), "growth-gpu": growth("cuda")}
    files |= {"thinning": {**ABOUT, "rows": thinned}, "sampling": {**ABOUT, "rows": trained}}
    studied = [
        row(category, setting, 0.8 + index / 100, 0.9, None if category == "grid" else 0.9 - index / 100)
        for category in ("grid", "pill", "screw", "tile")
        for index, setting in enumerate(("base", "lamp 1", "noise 0"))
    ]
    files |= {"study": {**ABOUT, "rows": studied}}
    shards = [
        {"shards": n, "seconds": 2.0 / n, "own_bytes_per_actor": 3e8 / n, "vector_bytes_per_actor": 2e8 / n}
        for n in (1, 2, 4)
    ]
    coreset = {"sharded": [{"shards": n, "radius_ratio": 1 + n / 10} for n in (1, 2, 4)]}
    expected = {"expected_miss_rate": 0.2, "miss_rate": 0.1}
    judged = [{"category": name, "seed": 0, "aims": {"balanced": expected}} for name in ("pill", "screw")]
    files |= {"verdict-table": {**ABOUT, "rows": judged}}
    files |= {
        "sharded-search": {**ABOUT, "rows": 1000, "length": 64, "queries": 9, "searches": shards, "coreset": coreset}
    }
    curves = {"one": [3.0, 2.0], "workers": [3.0, 2.0], "another seed": [3.1, 2.2]}
    files |= {"ddp": {**ABOUT, "images": "bolts", "batch_size": 4, "workers": 2, "curves": curves}}
    variants = {name: {"detection_auroc": 0.9} for name in ("one", "two")}
    item = {"categories": {"pill": variants}, "means": variants}
    plot = {"points": [[0.0, 1.0], [1.0, 0.0]], "positions": [[0.5, 0.5], [-0.5, 0.5]]}
    kept = {
        f"toothbrush-{index}": {"test-a": {"settings": {"objective": objective}}, "tsne-2-2": plot}
        for index, objective in enumerate(("svdd", "svdd-prime", "patch-svdd"))
    }
    files |= {"paper-losses": item, "paper-hierarchy": item, "paper-kept": {"trainings": kept}}
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def test_exponents_are_those_of_the_rows() -> None:
    fitted = growth("cpu")["exponents"]
    assert fitted["images"]["memory_seconds"]["all"] == pytest.approx(1)
    assert fitted["images"]["threshold_seconds"]["last"] == pytest.approx(2)
    assert fitted["images"]["inspect_milliseconds"]["all"] == pytest.approx(0)
    assert fitted["size"]["encode_milliseconds"]["all"] == pytest.approx(1)


def test_a_point_is_predicted_from_the_last_two() -> None:
    assert predicted([(10, 5.0)], 20) == 0
    assert predicted([(5, 9.0), (10, 2.0), (20, 3.0)], 40) == pytest.approx(1.1 * 5)
    assert ascending("1,2,3") == [1, 2, 3]


def test_every_chart_is_drawn_and_no_cpu_time_is_absolute(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = draw_all(results(tmp_path), tmp_path)
    assert [path.stem for path in drawn] == list(CHARTS)
    on_cpu, on_gpu = ((tmp_path / f"growth-images-{kind}.svg").read_text() for kind in ("cpu", "gpu"))
    assert "times the smallest" in on_cpu
    assert ">seconds<" not in on_cpu
    assert ">seconds<" in on_gpu
    assert "find the threshold: 2.00" in on_cpu
    on_choices = (tmp_path / "selection.svg").read_text()
    assert "pill  ρ = -1.00" in on_choices
    assert on_choices.count("test, segmentation only") == 1
    assert "grid<" in on_choices, "settings that are all alike have no order"


def test_a_chart_without_results_is_left_out(tmp_path: Path) -> None:
    assert draw_all(tmp_path, tmp_path) == []
