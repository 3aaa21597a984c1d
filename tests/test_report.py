from __future__ import annotations

import os
import re
import tracemalloc
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest

from patchsvdd.output import report
from patchsvdd.output.chart import MAX_BARS, ScoreHistogram, short_ratio
from patchsvdd.output.report import OverviewEntry, write_overview, write_report

NASTY = """a "quoted" <b>bold & 'single' #1 100% ?x=1 größe 日本:\\.png"""


class Page(HTMLParser):
    """Links, pictures and text of a page; every tag must be closed in order."""

    VOID = frozenset({"meta", "img", "input", "wbr"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attrs
            for name, attrs in self.tags
            if name == tag and all((attrs.get(key) or "").split()[:2].count(value) for key, value in wanted.items())
        ]


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


def test_cards_come_in_the_order_of_the_rows_with_verdict_score_and_ratio(tmp_path: Path) -> None:
    path = write_report(tmp_path, RUN, title="Screws", facts={"Model": "models/screw"})
    assert path == tmp_path / "index.html"
    page = Page(path)
    statuses = [str(card["class"]).split()[1] for card in page.all("li", **{"class": "card"})]
    assert statuses == ["anomalous", "good", "good", "unreadable"]
    for words in ("Screws", "models/screw", "2.40× threshold", "score 0.12 · 1 region", "truncated file"):
        assert words in page.text


def test_totals_and_buttons_count_each_verdict(tmp_path: Path) -> None:
    source = write_report(tmp_path, RUN, title="t", facts={}, summary={"AUROC": "0.98"}).read_text()
    totals = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", source)
    expected = [("Images", "4"), ("Anomalous", "1"), ("Good", "2"), ("Unreadable", "1"), ("AUROC", "0.98")]
    assert totals == expected
    buttons = re.findall(r'data-show="(\w+)".*?<small>(\d+)</small>', source)
    assert buttons == [("all", "4"), ("anomalous", "1"), ("good", "2"), ("unreadable", "1")]


def test_pictures_are_lazy_described_and_linked(tmp_path: Path) -> None:
    rows = [scored(f"{index}.png", 0.1) for index in range(6)]
    page = Page(write_report(tmp_path, passes(*rows), title="t", facts={}))
    pictures = page.all("img")
    assert [picture.get("loading") for picture in pictures] == [None] * 4 + ["lazy"] * 2
    assert all("anomalous" in (picture["alt"] or "") for picture in pictures)


def test_nasty_names_are_escaped_and_their_links_work(tmp_path: Path) -> None:
    overlay = tmp_path / "overlays" / f"{NASTY}.jpg"
    overlay.parent.mkdir()
    overlay.write_bytes(b"")
    unreadable = {"image": NASTY, "error": "<script>alert(1)</script>"}
    path = write_report(tmp_path, passes(scored(NASTY, 0.1), unreadable), title=NASTY, facts={NASTY: NASTY})
    page = Page(path)
    assert not page.all("b")
    assert len(page.all("script")) == 1  # our own
    assert page.text.count(NASTY) == 6  # title, heading, fact twice, card, unreadable
    (picture,) = page.all("img")
    source = picture["src"] or ""
    assert re.fullmatch(r"[\w./%~-]+", source, re.ASCII)
    assert (tmp_path / os.fsdecode(unquote_to_bytes(source))).exists()


def test_names_that_are_not_unicode_do_not_stop_the_report(tmp_path: Path) -> None:
    path = write_report(tmp_path, passes(scored(os.fsdecode(b"caf\xe9"), 0.1)), title="t", facts={})
    assert Page(path).all("img")[0]["src"] == "overlays/caf%E9.jpg"


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
        return (scored(f"folder/{index:05d}.png", 1 / (index + 1)) for index in range(5000))

    tracemalloc.start()
    path = write_report(tmp_path, rows, title="t", facts={})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 2_000_000
    assert peak < 500_000
    assert path.read_text().count('<li class="card') == 5000


def test_a_page_holds_only_as_many_cards_as_a_browser_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_CARDS", 2)
    page = Page(write_report(tmp_path, RUN, title="t", facts={}))
    assert len(page.all("img")) == 2
    assert "scores are the lowest: 1." in page.text
    assert "truncated file" in page.text


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
