"""Accessibility of every view, by axe (WCAG 2.0–2.2 A and AA and best practices), in light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.browsing import NEEDS_BROWSER, Server, inspect

axe = pytest.importorskip("axe_playwright_python.base", reason="pip install axe-playwright-python")

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

VIEWS = ("overview", "inspect", "history", "review", "models", "train", "people", "audit")
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def findings(page: Any) -> list[str]:
    """What axe finds on the page as it is shown now: rule, impact and element."""
    page.evaluate(axe.AXE_FILE_CONTENT if hasattr(axe, "AXE_FILE_CONTENT") else AXE)
    found = page.evaluate("(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags}})", list(TAGS))
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:160]}" for one in found["violations"] for node in one["nodes"]
    ]


AXE = (Path(axe.__file__).with_name("axe.min.js")).read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_view(page: Any, server: Server, files: dict[str, Path], scheme: str) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # axe measures contrast, also in mid-transition
    inspect(page, server, files["fine"], files["stain"])
    found = {}
    for view in VIEWS:
        page.locator(f"#views a[href='#/{view}']").evaluate("link => link.click()")
        page.wait_for_selector(f".view-{view} h1", state="attached")
        page.wait_for_load_state("networkidle")
        if view == "review":
            page.wait_for_selector(".verdicts button:not([aria-disabled='true'])")
        if view == "audit":
            page.locator(".chain .hint.done").wait_for()
        if view == "models":
            page.wait_for_selector(".trade-plot .handle")
            page.locator(".trade-plot").press("ArrowLeft")
        found[view] = findings(page)
    assert found == {view: [] for view in VIEWS}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_images_are_left_out(
    page: Any, server: Server, files: dict[str, Path], scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    details = server.get("models/washer")
    listed = [{**one, "stands_out": True} for one in details["unusual"]]
    page.route("**/v1/models/washer", lambda route: route.fulfill(status=200, json={**details, "unusual": listed}))
    page.goto(f"{server.url}#/models/washer/unusual")
    page.locator(".unusual circle").first.wait_for()
    page.locator(".unusual input").first.check()
    assert findings(page) == []
    page.get_by_role("button", name="Train again without 1 image").click()
    page.wait_for_selector(".left-out .hint")
    page.set_input_files("#good", str(files["fine"]))
    page.wait_for_load_state("networkidle")
    assert findings(page) == []
