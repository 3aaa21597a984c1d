from __future__ import annotations

import base64
import io
import os
import re
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.report import report
from patchsvdd.report.detector_card import detector_card
from patchsvdd.report.embedded_images import WIDEST, EmbeddedImages
from patchsvdd.report.model_card import ModelCard
from patchsvdd.report.overview import OverviewEntry, write_overview
from patchsvdd.report.report import write_report
from patchsvdd.report.score_histogram import MAX_BARS, ScoreHistogram, short_ratio
from patchsvdd.scoring.trade_off import Evidence
from support.html import NASTY, Page
from support.parts import draw_part


def scored(image: str, score: float, threshold: float | None = 0.05) -> dict[str, Any]:
    anomalous = threshold is not None and score > threshold
    return {
        "image": image,
        "score": score,
        "threshold": threshold,
        "verdict": "anomalous" if anomalous else "good",
        "is_anomalous": anomalous,
        "regions": [{"area": 4}] if anomalous else [],
        "overlay": f"overlays/{image}.jpg",
    }


def passes(*rows: dict[str, Any]) -> Callable[[], Iterator[dict[str, Any]]]:
    return lambda: iter(rows)


RUN = passes(
    scored("test/scratch/001.png", 0.12),
    scored("test/good/000.png", 0.02),
    scored("test/good/001.png", 0.01),
    {"image": "test/broken.png", "error": "truncated file"},
)


def with_overlays(folder: Path, *rows: dict[str, Any], size: tuple[int, int] = (52, 30)) -> None:
    """Write the pictures that rows speak of."""
    for index, row in enumerate(rows):
        path = folder / row["overlay"]
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (40 * index % 256, 90, 60)).save(path, "JPEG")


def decoded(uri: str | None) -> Image.Image:
    """The picture that a page holds."""
    kind, data = (uri or "").split(";base64,")
    assert kind in ("data:image/webp", "data:image/jpeg")
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_images_come_in_the_order_of_the_rows_with_verdict_score_and_ratio(tmp_path: Path) -> None:
    path = write_report(tmp_path, RUN, title="Screws", facts={"Model": "models/screw"})
    assert path == tmp_path / "index.html"
    page = Page(path)
    statuses = [str(item["class"]).split()[2] for item in page.all("li", **{"class": "item"})]
    assert statuses == ["anomalous", "good", "good", "unreadable"]
    for words in ("Screws", "models/screw", "2.40× threshold", "score 0.12 · 1 region", "truncated file"):
        assert words in page.text


def test_totals_and_buttons_count_each_verdict(tmp_path: Path) -> None:
    source = write_report(tmp_path, RUN, title="t", facts={}, summary={"AUROC": "0.98"}).read_text()
    totals = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", source)
    expected = [("Images", "4"), ("Anomalous", "1"), ("Good", "2"), ("Unreadable", "1")]
    assert totals == [*expected, ("Anomalous verdicts", "33.3%"), ("AUROC", "0.98")]
    buttons = re.findall(r'data-show="(\w+)".*?<small>(\d+)</small>', source)
    assert buttons == [("all", "4"), ("anomalous", "1"), ("good", "2"), ("unreadable", "1")]


def test_pictures_are_part_of_the_page_and_described(tmp_path: Path) -> None:
    rows = [scored(f"{index}.png", 0.1 - index / 50) for index in range(5)]
    with_overlays(tmp_path, *rows)
    page = Page(write_report(tmp_path, passes(*rows), title="t", facts={}))
    pictures = page.all("img")
    assert len(pictures) == 5
    for index, picture in enumerate(pictures):
        shown = decoded(picture["src"])
        assert (str(shown.width), str(shown.height)) == (picture["width"], picture["height"]) == ("52", "30")
        assert abs(int(np.asarray(shown.convert("RGB"))[10, 10, 0]) - 40 * index) < 12, "each image has its own"
    assert [("anomalous" in (picture["alt"] or "")) for picture in pictures] == [True] * 3 + [False] * 2


def test_the_page_is_one_file(tmp_path: Path) -> None:
    rows = [scored("a.png", 0.1), scored("b.png", 0.01)]
    with_overlays(tmp_path, *rows)
    (tmp_path / "elsewhere").mkdir()
    path = write_report(tmp_path, passes(*rows), title="t", facts={})
    page = Page(path.rename(tmp_path / "elsewhere" / "page.html"))
    addresses = [value or "" for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href")]
    assert addresses
    assert all(address.startswith(("data:image/", "#")) for address in addresses)


def test_large_pictures_are_shrunk_and_lost_ones_missed_no_more_than_that(tmp_path: Path) -> None:
    large, damaged, lost = (scored(f"{name}.png", 0.1) for name in ("large", "damaged", "lost"))
    with_overlays(tmp_path, large, damaged, size=(3000, 1500))
    (tmp_path / damaged["overlay"]).write_bytes(b"no picture")
    page = Page(write_report(tmp_path, passes(large, damaged, lost), title="t", facts={}))
    (picture,) = page.all("img")
    assert decoded(picture["src"]).size == (WIDEST, WIDEST // 2)
    assert page.text.count("The overlay is in the results folder.") == 2


def test_pictures_stay_within_their_room(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    one = EmbeddedImages(tmp_path)("noise.png")
    assert one is not None
    room = EmbeddedImages(tmp_path, 3 * len(one.uri) + 5)
    found = [room("noise.png") for _ in range(6)]
    assert [picture is not None for picture in found] == [True] * 3 + [False] * 3


REGIONS = [
    {"box": [10, 20, 30, 44], "area": 300, "peak": 0.12, "peak_at": [15, 25]},
    {"box": [50, 60, 52, 63], "area": 6, "peak": 0.06, "peak_at": [51, 61]},
]


def test_regions_have_box_area_peak_and_probability(tmp_path: Path) -> None:
    row = scored("a.png", 0.12) | {"regions": REGIONS, "image_size": [100, 200], "p_value": 0.01}
    card = ModelCard(p_value=lambda peak: 0.01 if peak > 0.1 else 0.04)
    page = Page(write_report(tmp_path, passes(row), title="t", facts={}, model=card))
    cells = re.sub(r"\s+", " ", " | ".join(page.words))
    assert "1 | 10, 20 – 30, 44 | 300 px (1.5%) | 2.40× | 0.01" in cells
    assert "2 | 50, 60 – 52, 63 | 6 px (0.0%) | 1.20× | 0.04" in cells
    assert "p 0.01" in page.text


def test_more_regions_than_fit_are_counted(tmp_path: Path) -> None:
    row = scored("a.png", 0.12) | {"regions": REGIONS[:1] * 30}
    assert "and 22 more with lower scores" in Page(write_report(tmp_path, passes(row), title="t", facts={})).text


def test_reasons_unfold_with_words_picture_and_scales(tmp_path: Path, detector: PatchSVDD) -> None:
    inspection = detector.inspect(draw_part(7, defect=True))
    explanation = inspection.explain()
    explanation.picture().save(tmp_path / "why.jpg")
    told = {"picture": "why.jpg", "reasons": explanation.to_json()["reasons"]}
    row = inspection.to_json() | {"image": NASTY, "explanation": told}
    page = Page(write_report(tmp_path, passes(row), title="t", facts={}))
    assert len(page.all("details", **{"class": "why"})) == 1
    assert decoded(page.all("img")[0]["src"]).size == explanation.picture().size
    for reason in explanation.reasons:
        assert reason.in_words() in page.text
        for scale in reason.scales:
            assert f"{scale.share:.0%}" in page.words
            assert scale.nearest.image in page.words


def test_the_model_and_its_promise_are_told(tmp_path: Path, detector: PatchSVDD) -> None:
    card = detector_card(detector, "models/part")
    text = Page(write_report(tmp_path, RUN, title="t", facts={}, model=card)).text
    known = detector.calibration
    assert known is not None
    for words in (
        "models/part",
        detector.provenance["created"][:10],
        "4, resized to 64 × 64 px",
        "encoder, seed 0",
        detector.provenance["data"]["fingerprint"][:16],
        f"patchsvdd {detector.provenance['versions']['patchsvdd']}",
        "No false-alarm rate is guaranteed: the detector was trained on the images that set the threshold",
        "4 images the detector was trained on",
        "4 good images are too few for a false-alarm rate",
    ):
        assert words in text, words
    assert "would be called anomalous on average" not in text


def test_misses_are_estimated_if_defects_could_be_drawn(detector: PatchSVDD) -> None:
    known, found = detector.calibration, dict[str, str]()
    assert known is not None
    for name, defects in (("drawn", (1e-9, 1.0)), ("none", ())):
        evidence = Evidence((1.0,), defects, defects, defects)
        learned = replace(detector.learned, calibration=replace(known, evidence=evidence))
        card = detector_card(PatchSVDD(detector.config, learned, detector.device), "m")
        found[name] = card.facts.get("Missed", "")
    assert found == {"drawn": "an estimated 50% of 2 visible synthetic defects", "none": ""}


def test_a_guarantee_is_given_where_there_is_one(tmp_path: Path, critical: PatchSVDD) -> None:
    text = Page(write_report(tmp_path, RUN, title="t", facts={}, model=detector_card(critical, "m"))).text
    assert critical.calibration is not None
    assert critical.calibration.basis == "held-out"
    assert critical.calibration.conformal_guarantee.in_words()[1:] in text
    assert "would be called anomalous on average" in text


def test_a_model_with_a_critic_says_so(critical: PatchSVDD) -> None:
    assert detector_card(critical, "m").facts["Critic"] == "2 steps; 50% of the map, the memory 50%"


def test_nasty_names_are_escaped(tmp_path: Path) -> None:
    row = scored(NASTY, 0.1)
    with_overlays(tmp_path, row)
    unreadable = {"image": NASTY, "error": "<script>alert(1)</script>"}
    path = write_report(tmp_path, passes(row, unreadable), title=NASTY, facts={NASTY: NASTY})
    page = Page(path)
    assert not page.all("b")
    assert len(page.all("script")) == 1  # our own
    assert page.text.count(NASTY) == 6  # title, heading, fact twice, image, unreadable
    (picture,) = page.all("img")
    assert (picture["alt"] or "").startswith(NASTY)
    assert decoded(picture["src"]).size == (52, 30)


def test_names_that_are_not_unicode_do_not_stop_the_report(tmp_path: Path) -> None:
    path = write_report(tmp_path, passes(scored(os.fsdecode(b"caf\xe9"), 0.1)), title="t", facts={})
    assert "caf\\udce9" in Page(path).text


def test_cards_are_not_list_items_for_the_browser(tmp_path: Path) -> None:
    """Hiding 10,000 elements of display: list-item froze Chromium for 80 seconds; blocks take 0.2."""
    source = write_report(tmp_path, RUN, title="t", facts={}).read_text()
    assert "\n.card { display: block; " in source


def test_a_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    source = write_report(tmp_path, RUN, title="t", facts={}).read_text()
    assert not re.search(r"https?://|url\(|@import|<link", source)


def test_without_a_threshold_nothing_is_called_good(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path, passes(scored("a.png", 0.1, None)), title="t", facts={}))
    assert "Not calibrated" in page.text
    assert "Good" not in page.text
    assert "× threshold" not in page.text


def test_a_run_without_images_has_a_report(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path, passes(), title="t", facts={}))
    assert not page.all("svg")


@pytest.mark.parametrize("threshold", [0.0, 1e-30])
def test_odd_thresholds_have_a_report(tmp_path: Path, threshold: float) -> None:
    rows = passes(scored("a", 0.1, threshold), scored("b", 0.0, threshold))
    assert "nan" not in write_report(tmp_path, rows, title="t", facts={}).read_text()


def test_many_rows_need_little_memory(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        return (scored(f"folder/{index:05d}.png", 1 / (index + 1)) for index in range(5000))  # 19 of them anomalous

    tracemalloc.start()
    path = write_report(tmp_path, rows, title="t", facts={})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000
    source = path.read_text()
    assert source.count('<li class="item case anomalous">') == 19
    assert source.count('<li class="item card good">') == report.MAX_CARDS
    assert source.count('<tr class="item good">') == 5000 - 19 - report.MAX_CARDS
    assert 1_000_000 < len(source) < 3_000_000


def test_what_has_no_picture_is_a_line_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_CASES", 1)
    monkeypatch.setattr(report, "MAX_CARDS", 1)
    monkeypatch.setattr(report, "MAX_LINES", 3)
    rows = [scored(f"bad/{index}.png", 0.2 - index / 100) | {"p_value": 0.02} for index in range(3)]
    rows += [scored(f"good/{index}.png", 0.01) for index in range(4)]
    with_overlays(tmp_path, *rows)
    page = Page(
        write_report(tmp_path, passes(*rows, {"image": "c.png", "error": "truncated file"}), title="t", facts={})
    )
    assert len(page.all("img")) == 2
    assert [str(line["class"]) for line in page.all("tr", **{"class": "item"})] == [
        "item anomalous",
        "item anomalous",
        "item good",
    ]
    assert "The other 5 images" in page.text
    assert "Not listed: 2 images with the lowest scores" in page.text
    assert "truncated file" in page.text
    assert "3.80" in page.words  # of the second bad image


def test_the_chart_is_there_for_those_who_cannot_see_it(tmp_path: Path) -> None:
    page = Page(write_report(tmp_path, RUN, title="t", facts={}))
    (chart,) = page.all("svg")
    named = {str(attrs["id"]) for tag, attrs in page.tags if tag in ("title", "desc") and "id" in attrs}
    assert set(str(chart["aria-labelledby"]).split()) == named
    table = "".join(page.words).split("The chart as a table")[1]
    assert re.search(r"Score ÷ thresholdImages.*?× threshold1", table)
    assert "1 above the threshold, 2 at or below it" in page.text


def test_paper_is_light_and_unfolded(tmp_path: Path) -> None:
    source = write_report(tmp_path, RUN, title="t", facts={}).read_text()
    printed = source[source.rindex("@media print") :]
    for words in ("color-scheme: light", "break-inside: avoid", "display: table-header-group", "details-content"):
        assert words in printed
    assert "beforeprint" in source


def test_bars_are_few_and_the_threshold_parts_them() -> None:
    histogram = ScoreHistogram()
    for index in range(3000):
        histogram.add(1e-6 * 1.01**index, 0.05)
    histogram.add(0.05, 0.05)  # equal to the threshold: not above
    chart = histogram.to_html()
    bars = [(kind, float(x)) for kind, x in re.findall(r'<rect class="(\w+)" x="([\d.]+)"', chart)]
    assert 8 < len(bars) <= MAX_BARS
    (line,) = re.findall(r'class="limit" d="M([\d.]+)', chart)
    assert all((kind == "high") == (x > float(line)) for kind, x in bars)
    above = sum(1e-6 * 1.01**index > 0.05 for index in range(3000))
    assert f"{above:,} above the threshold, {3001 - above:,} at or below it" in chart


def test_scores_of_zero_are_counted() -> None:
    histogram = ScoreHistogram()
    histogram.add(0.0, 0.05)
    assert "0 above the threshold, 1 at or below it" in histogram.to_html()


@pytest.mark.parametrize(
    ("ratio", "words"), [(2.414, "2.41"), (0.0571, "0.0571"), (153.2, "153"), (0, "0"), (4e-9, "4.0e-09")]
)
def test_ratios_are_short(ratio: float, words: str) -> None:
    assert short_ratio(ratio) == words


def test_overview_shows_each_category(tmp_path: Path) -> None:
    entries = [
        OverviewEntry("metal <nut>", {"AUROC": "0.98"}, [Path("nut/overlays/a b.jpg")] * 3, "nut 1/index.html"),
        OverviewEntry("screw", {}, [], "screw/index.html"),
    ]
    path = write_overview(tmp_path, entries, title="Demo", intro="Good & bad")
    page = Page(path)
    links = [link["href"] for link in page.all("a")]
    assert links.count("nut/overlays/a%20b.jpg") == 3
    assert "nut%201/index.html" in links
    assert "screw/index.html" in links
    for words in ("metal <nut>", "0.98", "Good & bad", "Demo"):
        assert words in page.text
