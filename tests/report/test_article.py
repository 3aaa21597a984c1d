from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from patchsvdd.core.errors import OutputError
from patchsvdd.report.article import (
    Block,
    FigureBlock,
    Picture,
    PicturesBlock,
    Section,
    TableBlock,
    Verdict,
    write_article,
)
from patchsvdd.report.article_pdf import article_pdf
from patchsvdd.report.html_page import page_end, page_top
from patchsvdd.report.overlay import image_bytes
from support.html import NASTY, Page

TABLE = TableBlock(
    "Scores", ["Category", "AUROC", "Paper"], [["bottle", "0.981", "0.986"], ["mean", "0.9", "–"]], ["no pill"]
)


def article(folder: Path, *sections: Section) -> Page:
    return Page(write_article(folder / "index.html", title="Results", kind="Benchmark", sections=sections))


def test_a_page_says_all_it_was_given(tmp_path: Path) -> None:
    figure = FigureBlock(Path("figures/roc 1.svg"), "All curves", "ROC curves")
    path = write_article(
        tmp_path / "page.html",
        title="Results",
        kind="Benchmark",
        intro="What came out",
        facts={"Seeds": "0, 1"},
        sections=[Section("Table 1", "As printed", [Verdict(True, "It holds")], [TABLE, figure])],
    )
    page = Page(path)
    assert path == tmp_path / "page.html"
    said = ("Results", "Benchmark", "What came out", "Seeds", "0, 1", "Table 1", "As printed", "confirmed", "It holds")
    for words in (*said, "Scores", "Paper", "0.986", "no pill", "All curves"):
        assert words in page.text
    assert page.all("img")[0]["src"] == "figures/roc%201.svg"
    assert page.all("img")[0]["alt"] == "ROC curves"
    assert page.all("a", **{"class": "frame"})[0]["href"] == "figures/roc%201.svg"


def test_pictures_are_part_of_the_page(tmp_path: Path) -> None:
    picture = Picture(image_bytes(Image.new("RGB", (40, 20))), NASTY, "far from it")
    page = article(tmp_path, Section("Missed", blocks=[PicturesBlock("All", [picture, picture])]))
    assert [(one["src"] or "")[:23] for one in page.all("img")] == ["data:image/jpeg;base64,"] * 2
    assert page.all("img")[0]["alt"] == NASTY
    assert page.text.count(NASTY) == 2
    assert page.text.count("far from it") == 2


def test_a_badge_may_have_a_word_of_its_own(tmp_path: Path) -> None:
    page = article(tmp_path, Section("Requirements", verdicts=[Verdict(False, "5%", label="not met")]))
    assert "not met" in page.text
    assert page.all("li", **{"class": "refuted"})


def test_the_pdf_has_as_many_pages_as_the_sections_need() -> None:
    picture = Picture(image_bytes(Image.new("RGB", (400, 200))), NASTY)
    blocks: list[Block] = [
        TABLE,
        PicturesBlock("All", [picture] * 5),
        TableBlock("Two columns", ["a", "b"], [[NASTY, "1"]]),
    ]
    section = Section("Missed", "A lead", [Verdict(None, "claim"), Verdict.remark("note")], blocks)
    short, long = (
        article_pdf("Results", intro="", facts={"Seeds": "0"}, sections=[section] * count) for count in (1, 8)
    )
    assert short.startswith(b"%PDF-")
    pages = [int(re.findall(rb"/Count (\d+)", data)[0]) for data in (short, long)]
    assert pages[0] <= 2
    assert pages[1] > 4


def test_a_long_table_is_split_across_pages() -> None:
    rows = [[f"image {number}", "left out"] for number in range(200)]
    section = Section("Left out", blocks=[TableBlock("Images", ["image", "reason"], rows)])
    data = article_pdf("Results", intro="", facts={}, sections=[section])
    assert 3 <= int(re.findall(rb"/Count (\d+)", data)[0]) <= 8


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    blocks: list[Block] = [
        TableBlock(NASTY, [NASTY, NASTY], [[NASTY, NASTY]], [NASTY]),
        FigureBlock(Path(NASTY), NASTY, NASTY),
    ]
    section = Section(NASTY, NASTY, [Verdict(None, NASTY)], blocks, NASTY)
    path = write_article(
        tmp_path / "index.html", title=NASTY, kind=NASTY, intro=NASTY, facts={NASTY: NASTY}, sections=[section] * 4
    )
    page = Page(path)
    assert not page.all("b")
    assert page.text.count(NASTY) == 2 + 1 + 1 + 1 + 2 + 4 * (1 + 3 + 7)
    assert page.all("img")[0]["alt"] == NASTY
    assert page.all("section")[0]["id"] == NASTY


@pytest.mark.parametrize(
    ("holds", "sign", "word"), [(True, "✓", "confirmed"), (False, "✕", "refuted"), (None, "?", "undecided")]
)
def test_a_verdict_is_a_sign_and_a_word(tmp_path: Path, holds: bool | None, sign: str, word: str) -> None:
    page = article(tmp_path, Section("Claims", verdicts=[Verdict(holds, "more is better")]))
    assert f"{sign}{word}more is better" in page.text


def test_a_remark_is_no_claim(tmp_path: Path) -> None:
    page = article(tmp_path, Section("Claims", verdicts=[Verdict.remark("one image is missing")]))
    assert "inoteone image is missing" in page.text


def test_rows_of_means_are_set_apart(tmp_path: Path) -> None:
    page = article(tmp_path, Section("t", blocks=[TABLE]))
    assert len(page.all("tr", **{"class": "mean"})) == 1
    assert len(page.all("tr")) == 3
    assert len(page.all("th", scope="row")) == 2


def test_contents_link_to_the_sections_of_a_long_page(tmp_path: Path) -> None:
    few = article(tmp_path, *[Section(str(number)) for number in range(3)])
    assert not few.all("nav")
    many = article(tmp_path, Section("first", anchor="top part"), *[Section(str(number)) for number in range(3)])
    links = [link["href"] for link in many.all("a")[1:]]
    assert links == ["#top%20part", "#section-2", "#section-3", "#section-4"]
    assert [section["id"] for section in many.all("section")] == ["top part", "section-2", "section-3", "section-4"]


def test_wide_blocks_scroll_in_a_box_that_the_keyboard_reaches(tmp_path: Path) -> None:
    columns = [f"column {number}" for number in range(9)]
    wide = TableBlock("Wide", columns, [columns])
    page = article(tmp_path, Section("t", blocks=[wide, TABLE, FigureBlock(Path("a.jpg"), "a", "a", wide=True)]))
    assert [figure.get("class") for figure in page.all("figure")] == ["table wide", "table", "wide"]
    boxes = page.all("div", **{"class": "scroll"})
    assert [(box["tabindex"], box["aria-label"]) for box in boxes] == [("0", "Wide"), ("0", "Scores")]


def test_a_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    path = write_article(tmp_path / "index.html", title="t", kind="k", sections=[Section("t", blocks=[TABLE])])
    source = path.read_text()
    assert not re.search(r"https?://|url\(|@import|<link|<script", source)
    assert "How to read the overlays" not in source


def test_an_interrupted_page_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    article(tmp_path, Section("old"))
    before = path.read_bytes()
    broken = TableBlock("t", ["a"], [[]])  # a row without a first cell
    with pytest.raises(ValueError, match="unpack"):
        article(tmp_path, Section("new"), Section("broken", blocks=[broken]))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        article(tmp_path / "file", Section("t"))


def test_other_pages_keep_their_legend() -> None:
    assert "How to read the overlays" in page_end()
    assert "Skip to the images" in page_top("t", kind="k")
