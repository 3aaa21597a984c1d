from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest

from patchsvdd.core.presets import preset
from patchsvdd.evaluation import benchmark_page
from patchsvdd.evaluation.benchmark import Benchmark, run_benchmark
from patchsvdd.evaluation.benchmark_figures import caption_of, rank_images
from patchsvdd.evaluation.benchmark_page import write_benchmark_page
from patchsvdd.evaluation.experiment import Experiment, ExperimentResult
from patchsvdd.evaluation.experiment_store import ExperimentStore
from patchsvdd.evaluation.sample_maps import KeptMaps, SampleMaps
from patchsvdd.report import figures
from support.html import Page
from support.parts import TINY, draw_part, save_picture

pytestmark = pytest.mark.slow

CONFIG = preset("encoder", image_size=64, steps=7)
THRESHOLD = 0.5
SCORES = {"good": [0.4, 0.6], "crack": [2.0, 0.3], "dent": [0.9]}
"""Type → scores of its test images 000.png, 001.png …"""
METRICS = {
    "detection_auroc": 0.912,
    "detection_ap": 0.934,
    "detection_f1_max": 0.878,
    "segmentation_auroc": 0.956,
    "segmentation_ap": 0.523,
    "segmentation_f1_max": 0.567,
    "aupro": 0.789,
    "false_alarm_rate": 0.125,
    "miss_rate": 0.25,
}
CURVES = {name: {"x": [0.0, 0.1, 1.0], "y": [0.0, 0.8, 1.0]} for name in ("roc", "pixel_roc", "pro")}
BEST = "Clearest defects"
WORST = "Hardest defects"
GOOD = "Good images, highest score first"


def make_category(folder: Path) -> Path:
    """The test images of SCORES; a mask for the cracks."""
    for kind, scores in SCORES.items():
        for index in range(len(scores)):
            save_picture(folder / "test" / kind / f"{index:03}.png", draw_part(index, defect=kind != "good"))
    mask = np.zeros((64, 64), np.uint8)
    mask[27:37, 27:37] = 255
    for index in range(2):
        save_picture(folder / "ground_truth" / "crack" / f"{index:03}_mask.png", mask)
    return folder


def result(
    category: Path, seed: int = 0, *, metrics: dict[str, float] | None = None, **changes: Any
) -> ExperimentResult:
    """A result that was never computed; ``changes`` go into its evaluation."""
    images = [
        {"image": f"test/{kind}/{index:03}.png", "defect": kind, "anomalous": score > THRESHOLD, "score": score}
        for kind, scores in SCORES.items()
        for index, score in enumerate(scores)
    ]
    kept = [{**image, "rank": "highest", "ranges": {"0": [0.0, image["score"]], "32": [0.0, 1.0]}} for image in images]
    arrays = {f"{index}.{size}": 255 * np.eye(64, dtype=np.uint8) for index in range(len(kept)) for size in (0, 32)}
    name = f"test-{seed}"
    folder = category.parent / "runs" / category.name
    SampleMaps(None, kept, arrays).write(folder / f"{name}.npz")
    verdicts = {
        kind: {"images": len(scores), "anomalous": sum(score > THRESHOLD for score in scores)}
        for kind, scores in SCORES.items()
    }
    evaluation = {"scales": {}, "skipped": {}, "warnings": [], "images": 5, "seconds_per_image": 0.1}
    data = {
        **{"hardware": "abacus", "commit": "abc1234", "date": "2026-11-15", "versions": {}, "images": images},
        **{"training": {"steps": 7, "seconds": 1234.5}, "curves": CURVES, "kept": kept},
        "evaluation": evaluation
        | (METRICS if metrics is None else metrics)
        | {"verdicts": verdicts, "threshold": THRESHOLD}
        | changes,
    }
    return ExperimentResult(Experiment(category, CONFIG.replace(seed=seed)), data, folder, name)


def benchmark(*results: ExperimentResult, failed: dict[str, str] | None = None) -> Benchmark:
    seeds = tuple(dict.fromkeys(one.experiment.config.seed for one in results)) or (0,)
    names = tuple(dict.fromkeys([one.experiment.category.name for one in results] + list(failed or {})))
    found = Benchmark("parts", CONFIG, seeds, names, failed=failed or {})
    for one in results:
        found.results.setdefault(one.experiment.category.name, {})[one.experiment.config.seed] = one
    return found


def write(found: Benchmark, root: Path) -> Page:
    """The page, whose pictures exist and which names no other machine's folders."""
    path = write_benchmark_page(found, [root / name for name in found.categories], root / "out")
    assert path == root / "out" / "index.html"
    source = path.read_text()
    assert str(root) not in source
    assert not re.search(r"https?:|url\(|@import|<link|<script", source)
    page = Page(path)
    for picture in page.all("img"):
        assert (path.parent / os.fsdecode(unquote_to_bytes(picture["src"] or ""))).is_file()
    return page


def pictures(page: Page) -> list[str]:
    return [Path(picture["src"] or "").name for picture in page.all("img")]


def rows(root: Path) -> list[list[str]]:
    """The cells of every row of every table."""
    source = (root / "out" / "index.html").read_text()
    return [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", source)]


def test_a_page_holds_tables_curves_and_images(tmp_path: Path) -> None:
    bottle, part = make_category(tmp_path / "bottle"), make_category(tmp_path / "part")
    page = write(benchmark(result(bottle), result(part)), tmp_path)
    for words in ("parts", "encoder", "steps 7", "abacus", "abc1234", "2026-11-15", "Yi and Sungroh Yoon"):
        assert words in page.text
    charts = ["auroc.svg", "roc.svg", "pixel_roc.svg", "pro.svg"]
    shown = [f"{name}-{kind}" for name in ("bottle", "part") for kind in ("scores.svg", "images.jpg")]
    assert pictures(page) == charts + shown
    table = rows(tmp_path)
    assert ["bottle", "0.912", "0.986", "0.956", "0.981", "0.789", "7", "1,234.5"] in table
    assert ["part", "0.912", "–", "0.956", "–", "0.789", "7", "1,234.5"] in table
    assert ["mean of all", "0.912", "–", "0.956", "–", "0.789", "", ""] in table
    assert ["bottle", "0.934", "0.878", "0.523", "0.567", "12.5 %", "25.0 %"] in table
    assert ["crack", "2", "1", "50.0 %", ""] in table
    assert ["good", "2", "1", "", "50.0 %"] in table


def test_means_of_objects_and_textures_stand_beside_the_paper_s(tmp_path: Path) -> None:
    names = ("bottle", "cable", "carpet", "grid")
    write(benchmark(*(result(make_category(tmp_path / name)) for name in names)), tmp_path)
    means = [row[:3] for row in rows(tmp_path) if row[0].startswith("mean") and len(row) == 8]
    assert means == [
        ["mean of objects", "0.912", f"{(0.986 + 0.903) / 2:.3f}"],
        ["mean of textures", "0.912", f"{(0.929 + 0.946) / 2:.3f}"],
        ["mean of all", "0.912", "0.941"],
    ]


def test_seeds_are_averaged_and_the_first_is_shown(tmp_path: Path) -> None:
    part = make_category(tmp_path / "part")
    second = result(part, 5, metrics={**METRICS, "detection_auroc": 0.932, "miss_rate": 0.75})
    second.data["evaluation"]["verdicts"]["crack"] = {"images": 2, "anomalous": 2}
    page = write(benchmark(result(part, 3), second), tmp_path)
    table = rows(tmp_path)
    assert ["part", "0.922 ± 0.014", "–"] in [row[:3] for row in table]
    assert ["crack", "2", "1.5", "25.0 %", ""] in table
    for words in ("±: standard deviation over the seeds 3, 5", "50.0 ± 35.4 %", "seed 3.", "mean over 2 seeds"):
        assert words in page.text
    assert not any(row[0].startswith("mean") for row in table)  # of a single category


def test_missing_cells_are_explained(tmp_path: Path) -> None:
    part = make_category(tmp_path / "part")
    detection = {name: value for name, value in METRICS.items() if name.startswith("detection")}
    bare = result(part, metrics=detection, skipped={"segmentation_auroc": "there are no masks"})
    page = write(benchmark(bare, failed={"<b>&": f"'{tmp_path}/<b>&' has no test folder"}), tmp_path)
    assert "part: no segmentation metrics and AUPRO: there are no masks" in page.text
    assert page.text.count("<b>&: no result: '<b>&' has no test folder") == 2  # below both tables
    assert "No result: '<b>&' has no test folder" in page.text
    assert "Detection AUROC 0.912. " in page.text
    assert ["mean of all", "0.912 (1 of 2)", "–", "–", "–", "–", "", ""] in rows(tmp_path)
    assert not page.all("b")


def test_a_seed_that_lacks_a_metric_is_counted(tmp_path: Path) -> None:
    part = make_category(tmp_path / "part")
    page = write(benchmark(result(part, 0), collapsed(result(part, 1))), tmp_path)
    assert "part: no detection metrics for 1 of 2 seeds: training collapsed" in page.text


def collapsed(one: ExperimentResult) -> ExperimentResult:
    """What the store keeps of a collapsed training."""
    reasons = dict.fromkeys(("detection_auroc", "segmentation_auroc"), "training collapsed")
    evaluation = {"scales": {}, "skipped": reasons, "warnings": [], "verdicts": {}, "images": 0}
    training = {"steps": 0, "seconds": 0.0, "collapsed": "all patches at one point"}
    data = {**one.data, "training": training, "evaluation": evaluation, "curves": {}, "images": [], "kept": []}
    return replace(one, data=data)


@pytest.mark.parametrize("first", [True, False])
def test_a_collapsed_training_has_no_pictures(tmp_path: Path, first: bool) -> None:
    part = make_category(tmp_path / "part")
    others = [] if first else [result(part, 1)]
    page = write(benchmark(collapsed(result(part, 0)), *others), tmp_path)
    assert ("No result: training collapsed" in page.text) == first
    assert ("part-images.jpg" in pictures(page)) == (not first)
    assert ("seed 1." in page.text) == (not first)


def test_names_are_escaped(tmp_path: Path) -> None:
    odd = make_category(tmp_path / "<b>&")
    warning = f"{odd}/test/crack/009.png: is an empty file"
    page = write(benchmark(result(odd, warnings=[warning] * 2)), tmp_path)
    assert not page.all("b")
    assert "<b>&/test/crack/009.png: is an empty file" in page.text
    assert len(page.all("img")) == 6


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9"), "long" * 50])
def test_odd_names_do_not_stop_the_page(tmp_path: Path, name: str) -> None:
    page = write(benchmark(result(make_category(tmp_path / name))), tmp_path)
    assert len(page.all("img")) == 6


def test_many_warnings_are_counted(tmp_path: Path) -> None:
    part = make_category(tmp_path / "part")
    page = write(benchmark(result(part, warnings=[f"image {number}" for number in range(8)])), tmp_path)
    assert "image 2… and 5 more warnings" in page.text


def test_without_matplotlib_the_page_says_how_to_get_the_charts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "have_matplotlib", lambda: False)
    page = write(benchmark(result(make_category(tmp_path / "part"))), tmp_path)
    assert pictures(page) == ["part-images.jpg"]
    assert "pip install 'patchsvdd[paper]'" in page.text
    assert "run the same command again; nothing is computed twice" in page.text


def test_without_a_threshold_nothing_is_judged(tmp_path: Path) -> None:
    part = make_category(tmp_path / "part")
    page = write(benchmark(result(part, metrics={}, threshold=None, confusion=None)), tmp_path)
    assert "no verdicts without a threshold" in page.text
    assert "part-images.jpg" in pictures(page)
    assert "auroc.svg" not in pictures(page)


def test_lost_images_are_left_out_with_a_note(tmp_path: Path) -> None:
    part = make_category(tmp_path / "part")
    found = benchmark(result(part))
    (part / "test" / "crack" / "001.png").unlink()
    (part / "test" / "good" / "000.png").write_bytes(b"no image")
    page = write(found, tmp_path)
    assert "cannot be read: test/crack/001.png, test/good/000.png." in page.text
    assert "part-images.jpg" in pictures(page)


def test_a_category_that_is_gone_has_a_page(tmp_path: Path) -> None:
    page = write(benchmark(result(tmp_path / "part")), tmp_path)
    assert "Not shown" in page.text
    assert "part-images.jpg" not in pictures(page)


@pytest.mark.parametrize("content", [None, b"", b"no maps"])
def test_lost_maps_are_left_out_with_a_note(tmp_path: Path, content: bytes | None) -> None:
    one = result(make_category(tmp_path / "part"))
    maps = one.folder / f"{one.name}.npz"
    maps.unlink() if content is None else maps.write_bytes(content)
    page = write(benchmark(one), tmp_path)
    assert "the stored anomaly maps are missing" in page.text
    assert "part-scores.svg" in pictures(page)


def test_best_and_worst_images_are_chosen_by_score(tmp_path: Path) -> None:
    kept = result(make_category(tmp_path / "part")).sample_maps().read()
    assert {label: [one.score for one in members] for label, members in rank_images(kept).items()} == {
        BEST: [2.0, 0.9],
        WORST: [0.3],
        GOOD: [0.6, 0.4],
    }


def test_a_row_of_images_is_short() -> None:
    maps = {0: np.zeros((4, 4), np.float32)}
    kept = [
        KeptMaps(f"test/{kind}/{rank}.png", f"kind {kind}", rank, kind + (rank == "highest") / 2, True, maps)
        for kind in range(20)
        for rank in ("highest", "lowest")
    ]
    ranked = rank_images(kept)
    assert [one.score for one in ranked[BEST]] == [19.5, 18.5, 17.5, 16.5, 15.5, 14.5]
    assert [one.score for one in ranked[WORST]] == [0, 1, 2, 3, 4, 5]


def test_captions_give_the_score_in_thresholds_and_the_verdict(tmp_path: Path) -> None:
    kept = result(make_category(tmp_path / "part")).sample_maps().read()
    captions = ["good/000: 0.80×, passed", "good/001: 1.20×, false alarm", "crack/000: 4.00×, found"]
    captions += ["crack/001: 0.60×, missed", "dent/000: 1.80×, found"]
    assert [caption_of(one, THRESHOLD) for one in kept] == captions
    assert caption_of(kept[2], 0.0) == "crack/000: 2"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("/data/sets/part/test/a.png: is damaged", "part/test/a.png: is damaged"),
        ("there is no image in '/my data/part/train/good'; give", "there is no image in 'part/train/good'; give"),
        ("'/data/part' has no test folder; it holds test/good", "'part' has no test folder; it holds test/good"),
        ("there are no masks (no ground_truth folder)", "there are no masks (no ground_truth folder)"),
    ],
)
def test_folders_of_this_machine_are_not_named(words: str, expected: str) -> None:
    assert benchmark_page._local(words, "part") == expected


def test_an_interrupted_page_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = benchmark(result(make_category(tmp_path / "part")))
    write(found, tmp_path)
    path = tmp_path / "out" / "index.html"
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    found.dataset = "other"
    monkeypatch.setattr("patchsvdd.report.article._section", fail)
    with pytest.raises(KeyboardInterrupt):
        write(found, tmp_path)
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["figures", "index.html"]


def test_a_real_run_has_a_page(tmp_path: Path, category: Path) -> None:
    store = ExperimentStore(tmp_path / "runs", device="cpu")
    found = Benchmark("toys", preset("encoder", **TINY), (0,), (category.name,))
    assert list(run_benchmark(found, [category], store)) == [("part", 0)]
    page = write(found, tmp_path)
    shown = ["auroc.svg", "roc.svg", "pixel_roc.svg", "pro.svg", "part-scores.svg", "part-images.jpg"]
    assert pictures(page) == shown
    assert ["crack", "2"] in [row[:2] for row in rows(tmp_path)]
