"""The page's view of the audit chain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_head_file import NAME
from patchsvdd.apps.serve.audit_store import Record
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Store
from support.browsing import NEEDS_BROWSER, Server, until
from support.serving import row

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

WIDTHS = (320, 390, 700, 820, 821, 1024, 1101, 1440, 1920)
NOTE = "a-note-without-any-space-that-hardly-ends-" * 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with a chain of more entries than a page shows."""
    folder = tmp_path_factory.mktemp("audited")
    store = Store(Settings((), folder / "data").url)
    part = row(name=f"{'image' * 12}.png", model="washer", serial="S-1")
    store.insert_inspection(part).result()
    store.review(part["id"], "true_defect", NOTE, Actor("anna", "user", "1"))
    for index in range(60):
        details = {"inspections": [f"{number:024x}" for number in range(5)], "aim": "few-alarms"}
        store.record(
            Record(Actor(f"line {index}", "key", "2"), "learn.started", "washer", "job", "3", details)
        ).result()
    store.record(Record(Actor("service", "service"), "retention.deleted", details={"inspections": 12})).result()
    store.close()
    running = Server(folder / "data")
    running.start()
    yield running
    running.stop()


def test_administrators_see_who_did_what(page: Any, server: Server) -> None:
    page.goto(f"{server.url}#/audit")
    page.get_by_text("Chain verified up to entry 62").wait_for()
    rows = page.locator("table.audit tbody tr")
    assert rows.count() == 50
    page.get_by_role("button", name="Show older entries").click()
    page.get_by_text("Review given").wait_for()
    assert rows.count() == 61  # the service by itself is left out
    last = rows.last.inner_text()
    for words in ("anna", "True defect", "S-1", NOTE):
        assert words in last
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, width
    page.set_viewport_size({"width": 1440, "height": 900})
    assert rows.last.locator("a").get_attribute("href").startswith("#/history/")
    rows.last.locator("summary").click()
    assert '"previous": "0000' in rows.last.locator("pre").inner_text()

    page.get_by_label("Also what the service does by itself").check()
    page.get_by_text("Old inspections deleted").wait_for()
    page.locator("#action").select_option("review")
    until(page, lambda: rows.count() == 1)
    page.locator("#who-did").fill("nobody")
    page.keyboard.press("Enter")
    page.get_by_text("No entry matches these filters").wait_for()
    page.locator(".downloads summary").click()
    with page.expect_download() as table:
        page.get_by_role("link", name="What is shown here").click()
    assert len(Path(table.value.path()).read_text().splitlines()) == 1
    page.locator(".downloads summary").click()
    with page.expect_download() as whole:
        page.get_by_role("link", name="Whole chain, to verify").click()
    assert len(Path(whole.value.path()).read_text().splitlines()) == 63

    (server.data / NAME).write_text(f"80:{'0' * 64}\n")
    page.reload()
    page.get_by_text("The chain is not whole: entry 63 is missing").wait_for()
